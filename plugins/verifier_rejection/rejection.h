// Token-level rejection on a chain (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
// 2302.01318):
//
//   at each node, from the root: accept the drafted token x with probability min(1, p(x) / q(x))
//   at the first rejection: the next token is drawn from norm((p - q)+)
//   behind the last node: from p
//
// q is what x was drawn from, or 1 at x for drafts that are a point mass. The text has the law of
// plain decoding. A node behind which the target can draw nothing ends the draft: its token becomes
// the next one, and the next step fails the sequence, as plain decoding does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Nodes: size(), token(i), parent(i), is_probe(i), can_draw(node), law(node) and q(node) with p(token)
// and vocab_size(), as sdk::Nodes has them. Noise: bernoulli(p) and categorical(weights, n), as
// sdk::Noise. Out: accept(node), next_token(token). `is_drawn`: q is there. `weight` is scratch memory.
template <class Nodes, class Noise, class Out>
void judge_chain(const Nodes& nodes, bool is_drawn, Noise& noise, std::vector<double>& weight,
                 Out& out) {
  int32_t at = -1, rejected = -1;
  for (int32_t node = 0; node < nodes.size() && rejected < 0; ++node) {
    if (nodes.parent(node) != at || nodes.is_probe(node)) break;
    const int32_t token = nodes.token(node);
    const double p = nodes.law(at).p(token), q = is_drawn ? nodes.q(at).p(token) : 1;
    if (!noise.bernoulli(p < q ? p / q : p > 0 ? 1 : 0)) {
      rejected = node;
    } else if (!nodes.can_draw(node)) {
      out.next_token(token);
      return;
    } else {
      out.accept(at = node);
    }
  }
  const auto law = nodes.law(at);
  const auto n = static_cast<std::size_t>(law.vocab_size());
  const auto fill = [&](auto&& value) {
    weight.resize(n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += weight[i] = value(static_cast<int32_t>(i));
    return sum;
  };
  double left = 0;
  if (rejected >= 0 && is_drawn) {
    const auto q = nodes.q(at);
    left = fill([&](int32_t token) { return std::max(0.0, law.p(token) - q.p(token)); });
  } else if (rejected >= 0) {
    const int32_t x = nodes.token(rejected);
    left = fill([&](int32_t token) { return token == x ? 0.0 : law.p(token); });
  }
  // After a rejection nothing is left when p and q are the same but for rounding: then p it is.
  if (left <= 0) fill([&](int32_t token) { return law.p(token); });
  out.next_token(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
}

}  // namespace specd
