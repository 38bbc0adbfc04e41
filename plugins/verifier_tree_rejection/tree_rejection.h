// Multi-candidate rejection at each node of a tree, from the root down:
//
//   for the children x of the node, in index order:
//     accept x with probability min(1, p(x) / q(x)) and go on below it, else
//     p = norm((p - q)+), and, drawn without replacement, q = norm(q without x)
//   no child is left: the next token is drawn from p
//
// q is what the child was drawn from, or 1 at x for children that are a point mass, where the rule is
// that of EAGLE-2; drawn with replacement it is SpecInfer's (arXiv 2305.09781), without replacement
// that of EAGLE-1 and RSD (arXiv 2402.14160). The text has the law of plain decoding. A node behind
// which the target can draw nothing ends the draft: its token becomes the next one, and the next step
// fails the sequence, as plain decoding does.
#pragma once

#include <specd/plugin_api/drafter.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

// Nodes, Noise and Out: see verifier_rejection/rejection.h. `rule`: SPECD_RULE_*.
class TreeRejection {
 public:
  explicit TreeRejection(uint32_t rule) : rule_(rule) {}

  template <class Nodes, class Noise, class Out>
  void judge(const Nodes& nodes, Noise& noise, Out& out) {
    int32_t at = -1;
    has_p_ = false;
    for (int32_t node = 0; node < nodes.size(); ++node) {
      if (nodes.parent(node) != at || nodes.is_probe(node)) continue;
      const auto x = static_cast<std::size_t>(nodes.token(node));
      // Until a child is rejected, the laws are as they came.
      const double p = has_p_ ? p_[x] : nodes.law(at).p(nodes.token(node));
      const double q = rule_ == SPECD_RULE_POINT_MASS ? 1
                       : has_p_                       ? q_[x]
                                                      : nodes.q(at).p(nodes.token(node));
      if (!noise.bernoulli(p < q ? p / q : p > 0 ? 1 : 0)) {
        if (!has_p_) load(nodes, at);
        reject(x);
      } else if (!nodes.can_draw(node)) {
        out.next_token(nodes.token(node));
        return;
      } else {
        out.accept(at = node);
        has_p_ = false;
      }
    }
    if (!has_p_) load_p(nodes, at);
    out.next_token(static_cast<int32_t>(noise.categorical(p_.data(), p_.size())));
  }

 private:
  template <class Law>
  static void values_of(const Law& law, std::vector<double>& out) {
    out.resize(static_cast<std::size_t>(law.vocab_size()));
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = law.p(static_cast<int32_t>(i));
  }
  template <class Nodes>
  void load_p(const Nodes& nodes, int32_t at) {
    values_of(nodes.law(at), p_);
    has_p_ = true;
  }
  template <class Nodes>
  void load(const Nodes& nodes, int32_t at) {
    load_p(nodes, at);
    if (rule_ != SPECD_RULE_POINT_MASS) values_of(nodes.q(at), q_);
  }
  // What is left of p, and of q, when x was not accepted.
  void reject(std::size_t x) {
    if (rule_ == SPECD_RULE_POINT_MASS) {
      scale(p_, [&](std::size_t i) { return i == x ? 0.0 : p_[i]; });
      return;
    }
    scale(p_, [&](std::size_t i) { return std::max(0.0, p_[i] - q_[i]); });
    if (rule_ == SPECD_RULE_NO_REPLACE) {
      scale(q_, [&](std::size_t i) { return i == x ? 0.0 : q_[i]; });
    }
  }
  // values = norm(rest). Where nothing is left but for rounding, they stay.
  template <class Rest>
  static void scale(std::vector<double>& values, Rest&& rest) {
    double sum = 0;
    for (std::size_t i = 0; i < values.size(); ++i) sum += rest(i);
    if (sum <= 0) return;
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = rest(i) / sum;
  }

  const uint32_t rule_;
  bool has_p_ = false;
  std::vector<double> p_, q_;  // of the node that the walk is at, once a child of it was rejected
};

}  // namespace specd
