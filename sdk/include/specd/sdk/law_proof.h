// Proves by enumeration what a verifier's rule does to the law of the text, for tests of verifiers.
// The rule must be a template over a source of noise, as sdk::Noise is one (every_way.h), over nodes, of
// which it uses what ToyNodes has of sdk::Nodes, and over a verdict.
//
//   const ToyLaw p = random_law(3, 1), q = random_law(3, 2);
//   const double bias = law_bias(p, 3, [&](EveryWay& noise, ToyVerdict& out) {
//     const ToyTree tree = draw_tree(p, q, parents, SPECD_RULE_IID, noise);
//     judge(ToyNodes(tree, noise), noise, out.of(tree));
//   });
//   EXPECT_LT(bias, 1e-12);
#ifndef SPECD_SDK_LAW_PROOF_H
#define SPECD_SDK_LAW_PROOF_H

#include <specd/plugin_api/drafter.h>
#include <specd/sdk/every_way.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <utility>
#include <vector>

namespace specd::sdk {

using ToyText = std::vector<int32_t>;
// A model over a small vocabulary: the distribution of the token behind a text. All zero: the model can draw
// nothing there, as behind a row of NaN, and plain decoding ends.
using ToyLaw = std::function<std::vector<double>(const ToyText&)>;

inline bool has_mass(const std::vector<double>& p) {
  return std::any_of(p.begin(), p.end(), [](double each) { return each > 0; });
}

// Another number for every text.
inline uint64_t key_of(const ToyText& text, uint64_t seed) {
  for (const int32_t token : text) seed = seed * 31 + static_cast<uint64_t>(token) + 7;
  return seed;
}

// A distribution behind every text, different ones, some with zeros and some with tiny probabilities.
inline ToyLaw random_law(int32_t vocab_size, uint64_t seed) {
  return [vocab_size, seed](const ToyText& text) {
    std::mt19937_64 random(key_of(text, seed));
    std::vector<double> p(static_cast<std::size_t>(vocab_size));
    double total = 0;
    for (double& each : p) {
      const uint64_t kind = random() % 4;  // none, tiny, or any
      total += each = kind == 0 ? 0 : kind == 1 ? 1e-3 : static_cast<double>(random() % 1000 + 1);
    }
    if (total <= 0) total = p[0] = 1;
    for (double& each : p) each /= total;
    return p;
  };
}
// `other`, which can draw nothing behind some of the texts, but something behind the empty one.
inline ToyLaw damaged(ToyLaw other, uint64_t seed) {
  return [other = std::move(other), seed](const ToyText& text) {
    std::vector<double> p = other(text);
    const bool is_bad = !text.empty() && std::mt19937_64(key_of(text, seed))() % 3 == 0;
    if (is_bad) std::fill(p.begin(), p.end(), 0);
    return p;
  };
}
// Nearly all on the token that `other` finds least likely.
inline ToyLaw against(ToyLaw other) {
  return [other = std::move(other)](const ToyText& text) {
    std::vector<double> p = other(text);
    const auto worst = static_cast<std::size_t>(std::min_element(p.begin(), p.end()) - p.begin());
    std::fill(p.begin(), p.end(), p.size() > 1 ? 0.1 / static_cast<double>(p.size() - 1) : 0);
    p[worst] = p.size() > 1 ? 0.9 : 1;
    return p;
  };
}

// A proposal, what the target draws from behind each node and, where it was drawn, the drafter.
struct ToyTree {
  ToyLaw target, drafter;
  std::vector<int32_t> token, parent;

  ToyText text(int32_t node) const {
    ToyText path;
    for (; node >= 0; node = parent[static_cast<std::size_t>(node)]) {
      path.insert(path.begin(), token[static_cast<std::size_t>(node)]);
    }
    return path;
  }
};

// A tree of this shape: each child drawn from the drafter's distribution behind its parent, in index
// order. It ends before the first node for which no token is left.
template <class Noise>
ToyTree draw_tree(const ToyLaw& target, const ToyLaw& drafter, const std::vector<int32_t>& parent,
                  uint32_t rule, Noise& noise) {
  ToyTree tree{target, drafter, {}, {}};
  std::map<int32_t, std::vector<double>> left;  // by parent
  for (const int32_t at : parent) {
    if (left.count(at) == 0) left[at] = drafter(tree.text(at));
    std::vector<double>& weight = left[at];
    if (!has_mass(weight)) break;
    const std::size_t token = noise.categorical(weight.data(), weight.size());
    if (rule == SPECD_RULE_NO_REPLACE) weight[token] = 0;
    tree.token.push_back(static_cast<int32_t>(token));
    tree.parent.push_back(at);
  }
  return tree;
}

// A tree as a rule sees it (sdk::Nodes).
template <class Noise>
class ToyNodes {
 public:
  struct Law {
    std::vector<double> probability;
    double p(int32_t token) const { return probability[static_cast<std::size_t>(token)]; }
    int32_t vocab_size() const { return static_cast<int32_t>(probability.size()); }
  };
  ToyNodes(const ToyTree& tree, Noise& noise) : tree_(tree), noise_(noise) {}
  int32_t size() const { return static_cast<int32_t>(tree_.token.size()); }
  int32_t token(int32_t node) const { return tree_.token[static_cast<std::size_t>(node)]; }
  int32_t parent(int32_t node) const { return tree_.parent[static_cast<std::size_t>(node)]; }
  bool is_probe(int32_t) const { return false; }
  bool can_draw(int32_t node) const { return has_mass(law(node).probability); }
  Law law(int32_t node) const { return {tree_.target(tree_.text(node))}; }
  Law q(int32_t node) const { return {tree_.drafter(tree_.text(node))}; }
  // The target's own draw behind the node.
  int32_t row_token(int32_t node) const {
    const auto known = drawn_.find(node);
    if (known != drawn_.end()) return known->second;
    const Law p = law(node);
    const std::size_t token = noise_.categorical(p.probability.data(), p.probability.size());
    return drawn_[node] = static_cast<int32_t>(token);
  }

 private:
  const ToyTree& tree_;
  Noise& noise_;
  mutable std::map<int32_t, int32_t> drawn_;
};

// Collects the text of a verdict.
struct ToyVerdict {
  const ToyTree* tree = nullptr;
  ToyText text = {};
  ToyVerdict& of(const ToyTree& judged) {
    tree = &judged;
    return *this;
  }
  void accept(int32_t node) { text.push_back(tree->token[static_cast<std::size_t>(node)]); }
  void next_token(int32_t token) { text.push_back(token); }
};

// Adds `probability` to the law of every text of `length` tokens that begins with `text`, as the
// target would continue it; shorter ones where it can draw nothing.
inline void continue_toy(const ToyLaw& target, std::size_t length, ToyText text, double probability,
                         std::map<ToyText, double>& law) {
  if (text.size() >= length) {
    text.resize(length);
    law[text] += probability;
    return;
  }
  const std::vector<double> p = target(text);
  if (!has_mass(p)) law[text] += probability;
  text.push_back(0);
  for (std::size_t token = 0; token < p.size(); ++token) {
    text.back() = static_cast<int32_t>(token);
    if (p[token] > 0) continue_toy(target, length, text, probability * p[token], law);
  }
}

// The total variation between the first `length` tokens of what `step` emits, continued by the target,
// and the target's own. step(noise, verdict) drafts and judges once, all by the noise.
template <class Step>
double law_bias(const ToyLaw& target, std::size_t length, Step&& step) {
  std::map<ToyText, double> law, expected;
  EveryWay noise;
  std::map<ToyText, double> emitted;
  do {
    ToyVerdict out;
    step(noise, out);
    emitted[out.text] += noise.probability();
  } while (noise.next());
  for (const auto& [text, probability] : emitted) {
    continue_toy(target, length, text, probability, law);
  }
  continue_toy(target, length, {}, 1, expected);
  for (const auto& [text, probability] : expected) law[text] -= probability;
  double distance = 0;
  for (const auto& [text, difference] : law) distance += std::fabs(difference) / 2;
  return distance;
}

}  // namespace specd::sdk

#endif
