// Token-level rejection on a chain (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv
// 2302.01318), for drafts that are a point mass: q is 1 at the drafted token x.
//
//   at each node, from the root: accept x with probability min(1, p(x) / q(x)) = p(x)
//   at the first rejection: the next token is drawn from norm((p - q)+), that is p without x
//   behind the last node: from p
//
// The text has the law of plain decoding. A node behind which the target can draw nothing ends the
// draft: its token becomes the next one, and the next step fails the sequence, as plain decoding does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Nodes: size(), token(i), parent(i), is_probe(i), can_draw(node), law(node) with p(token) and
// vocab_size(), as sdk::Nodes has them. Noise: bernoulli(p) and categorical(weights, n), as sdk::Noise. Out:
// accept(node), next_token(token). `weight` is scratch memory of vocab_size.
template <class Nodes, class Noise, class Out>
void judge_chain(const Nodes& nodes, Noise& noise, std::vector<double>& weight, Out& out) {
  int32_t at = -1, rejected = -1;
  for (int32_t node = 0; node < nodes.size() && rejected < 0; ++node) {
    if (nodes.parent(node) != at || nodes.is_probe(node)) break;
    const int32_t token = nodes.token(node);
    if (!noise.bernoulli(nodes.law(at).p(token))) {
      rejected = token;
    } else if (!nodes.can_draw(node)) {
      out.next_token(token);
      return;
    } else {
      out.accept(at = node);
    }
  }
  const auto law = nodes.law(at);
  weight.resize(static_cast<std::size_t>(law.vocab_size()));
  double left = 0;
  for (int32_t token = 0; token < law.vocab_size(); ++token) {
    const double p = token == rejected ? 0 : law.p(token);
    left += p;
    weight[static_cast<std::size_t>(token)] = p;
  }
  // p was 1 but for rounding, so nothing else is left.
  if (left <= 0) weight[static_cast<std::size_t>(rejected)] = 1;
  out.next_token(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
}

}  // namespace specd
