// Relaxed acceptance (TensorRT-LLM, use_relaxed_acceptance_for_thinking): between a begin and an end
// token, such as those around the reasoning of DeepSeek-R1, a drafted token is accepted when it is the
// target's own draw, or when fewer than top_n tokens are more likely and it is at most delta less
// likely than the best. Everywhere else, and behind the last accepted node, the text is the target's own
// draw.
//
// The walk takes the first such child, in index order. The text does not have the target's law.
// Differs from the original where requests sample, which it does not support, and in that the begin
// token may also be in the prompt, as chat templates put it. At temperature 0 one token has all the
// probability, so nothing is relaxed.
#pragma once

#include <cstdint>

namespace specd {

struct RelaxedRule {
  int32_t top_n = 10;
  double delta = 0.6;
  int32_t begin_token = -1, end_token = -1;  // -1 = relaxed everywhere
};

// State of a sequence between steps: how many tokens of its text were read, and whether the last
// begin or end token among them was a begin token.
inline int64_t relaxed_state(const RelaxedRule& rule, int64_t state, const int32_t* text,
                             uint32_t text_len) {
  bool is_inside = (state & 1) != 0;
  for (auto i = static_cast<uint64_t>(state) >> 1; i < text_len; ++i) {
    if (text[i] == rule.begin_token) is_inside = true;
    if (text[i] == rule.end_token) is_inside = false;
  }
  return static_cast<int64_t>(uint64_t{text_len} << 1) | (is_inside ? 1 : 0);
}

// Nodes: see verifier_rejection/rejection.h, and row_token(node). Out: accept(node), next_token(token).
template <class Nodes, class Out>
void judge_relaxed(const Nodes& nodes, const RelaxedRule& rule, bool is_relaxed, Out& out) {
  int32_t at = -1;
  const auto passes = [&](int32_t token) {
    if (token == nodes.row_token(at)) return true;
    if (!is_relaxed) return false;
    const auto law = nodes.law(at);
    const double p = law.p(token);
    double most = 0;
    int32_t more_likely = 0;
    for (int32_t other = 0; other < law.vocab_size(); ++other) {
      const double q = law.p(other);
      if (q > p) ++more_likely;
      if (q > most) most = q;
    }
    return p > 0 && more_likely < rule.top_n && p >= most - rule.delta;
  };
  for (int32_t node = 0; node < nodes.size(); ++node) {
    if (nodes.parent(node) != at || nodes.is_probe(node) || !nodes.can_draw(node)) continue;
    if (passes(nodes.token(node))) out.accept(at = node);
  }
  out.next_token(nodes.row_token(at));
}

}  // namespace specd
