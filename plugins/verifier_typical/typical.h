// Typical acceptance (Cai et al., "Medusa", arXiv 2401.10774; FasterDecoding/Medusa, medusa/model/
// utils.py, evaluate_posterior):
//
//   a node x below a row with law p passes when p(x) > min(epsilon, alpha * exp(-H)), strictly,
//   H = -sum p log(p + 1e-5)
//   accept the longest path whose nodes all pass; among equals the one with the largest sum of log p,
//   the first one on ties
//
// The text does not have the target's law. The next token is the target's own draw behind the path;
// the original takes the most likely one.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace specd {

struct TypicalLimits {
  double epsilon = 0.09, alpha = 0.3;
};

// Nodes: see verifier_rejection/rejection.h, and row_token(node). Out: accept(node), next_token(token).
template <class Nodes, class Out>
void judge_typical(const Nodes& nodes, const TypicalLimits& limits, Out& out) {
  struct Path {
    int32_t length = -1;  // -1: a node of it does not pass
    double log_p = 0;
    double limit = -1;  // of its children; -1 = not computed yet
  };
  std::vector<Path> paths(static_cast<std::size_t>(nodes.size()) + 1);  // of the root, of node i
  paths[0].length = 0;
  const auto limit_below = [&](int32_t node) {
    const auto law = nodes.law(node);
    double entropy = 0;
    for (int32_t token = 0; token < law.vocab_size(); ++token) {
      if (const double p = law.p(token); p > 0) entropy -= p * std::log(p + 1e-5);
    }
    return std::min(limits.epsilon, limits.alpha * std::exp(-entropy));
  };
  int32_t best = -1;
  for (int32_t node = 0; node < nodes.size(); ++node) {
    Path& above = paths[static_cast<std::size_t>(nodes.parent(node) + 1)];
    if (above.length < 0 || nodes.is_probe(node) || !nodes.can_draw(node)) continue;
    if (above.limit < 0) above.limit = limit_below(nodes.parent(node));
    const double p = nodes.law(nodes.parent(node)).p(nodes.token(node));
    if (!(p > above.limit)) continue;
    Path& path = paths[static_cast<std::size_t>(node) + 1];
    path.length = above.length + 1;
    path.log_p = above.log_p + std::log(p);
    const Path& longest = paths[static_cast<std::size_t>(best + 1)];
    if (path.length > longest.length ||
        (path.length == longest.length && path.log_p > longest.log_p)) {
      best = node;
    }
  }
  std::vector<int32_t> path;
  for (int32_t node = best; node >= 0; node = nodes.parent(node)) path.push_back(node);
  for (std::size_t i = path.size(); i-- > 0;) out.accept(path[i]);
  out.next_token(nodes.row_token(best));
}

}  // namespace specd
