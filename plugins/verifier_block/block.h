// Block verification on a chain x_1..x_K (Sun et al., arXiv 2403.10444): all drafts are judged
// together, so that a later one that the target likes more can make up for an earlier one.
//
//   P_0 = 1, P_i = min(1, P_(i-1) * p_i(x_i) / q_i(x_i))
//   r_i(x) = (P_i * p_(i+1)(x) - q_(i+1)(x))+, R_i = sum of r_i, h_i = R_i / (R_i + 1 - P_i), h_K = P_K
//   accept x_1..x_t, t = the largest i with u_i <= h_i, 0 without one; every u_i is a new one
//   the next token is drawn from norm(r_t), behind the last node from p
//
// p_i and q_i are those of x_i; q_i is 1 at x_i for drafts that are a point mass. The text has the law
// of plain decoding, and no rule for chains accepts more of them. A node behind which the target can
// draw nothing is the last one: where it would be accepted, its token becomes the next one, and the
// next step fails the sequence, as plain decoding does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Nodes, Noise and Out: see verifier_rejection/rejection.h. `is_drawn`: q is there. `weight` is scratch
// memory.
template <class Nodes, class Noise, class Out>
void judge_block(const Nodes& nodes, bool is_drawn, Noise& noise, std::vector<double>& weight,
                 Out& out) {
  std::vector<double> kept{1};  // P_i
  bool ends_damaged = false;
  for (int32_t node = 0; node < nodes.size() && !ends_damaged; ++node) {
    if (nodes.parent(node) != node - 1 || nodes.is_probe(node)) break;
    const int32_t x = nodes.token(node);
    const double p = kept.back() * nodes.law(node - 1).p(x);
    const double q = is_drawn ? nodes.q(node - 1).p(x) : 1;
    kept.push_back(p < q ? p / q : p > 0 ? 1 : 0);
    ends_damaged = !nodes.can_draw(node);
  }
  const auto n = static_cast<int32_t>(kept.size()) - 1;
  const auto accept = [&](int32_t count) {
    for (int32_t node = 0; node < count; ++node) out.accept(node);
  };
  const auto draw = [&] {
    out.next_token(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
  };
  // r_i; returns R_i. i = K: p alone.
  const auto rest = [&](int32_t i) {
    const auto law = nodes.law(i - 1);
    weight.resize(static_cast<std::size_t>(law.vocab_size()));
    double sum = 0;
    const auto fill = [&](auto&& value) {
      for (std::size_t t = 0; t < weight.size(); ++t) {
        sum += weight[t] = value(static_cast<int32_t>(t));
      }
    };
    const double share = kept[static_cast<std::size_t>(i)];
    if (i == n) {
      fill([&](int32_t t) { return law.p(t); });
    } else if (is_drawn) {
      const auto q = nodes.q(i - 1);
      fill([&](int32_t t) { return std::max(0.0, share * law.p(t) - q.p(t)); });
    } else {
      const int32_t x = nodes.token(i);
      fill([&](int32_t t) { return t == x ? 0.0 : share * law.p(t); });
    }
    return sum;
  };
  if (noise.bernoulli(kept.back())) {
    if (ends_damaged) {
      accept(n - 1);
      out.next_token(nodes.token(n - 1));
      return;
    }
    accept(n);
    (void)rest(n);
    draw();
    return;
  }
  for (int32_t i = n - 1; i > 0; --i) {
    const double sum = rest(i);
    if (sum <= 0 || !noise.bernoulli(sum / (sum + 1 - kept[static_cast<std::size_t>(i)]))) continue;
    accept(i);
    draw();
    return;
  }
  // Nothing is left when p and q are the same but for rounding: then p it is.
  if (rest(0) <= 0) {
    const auto law = nodes.law(-1);
    for (std::size_t t = 0; t < weight.size(); ++t) weight[t] = law.p(static_cast<int32_t>(t));
  }
  draw();
}

}  // namespace specd
