// What each verifier in the tree does to the law of the text, for every draft rule and tree mode: by
// enumeration of the plugins' own rules, and of the shipped bundles by chi-square.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>
#include <specd/sdk/law_proof.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "plugins/drafter_draft_target/siblings.h"
#include "plugins/verifier_block/block.h"
#include "plugins/verifier_rejection/rejection.h"
#include "plugins/verifier_relaxed/relaxed.h"
#include "plugins/verifier_tree_rejection/tree_rejection.h"
#include "plugins/verifier_typical/typical.h"
#include "tests/plugins/chi_square.h"

namespace specd {
namespace {

using sdk::EveryWay;
using sdk::ToyLaw;
using sdk::ToyText;
using sdk::ToyTree;
using sdk::ToyVerdict;
using Parents = std::vector<int32_t>;
template <class Noise>
using Nodes = sdk::ToyNodes<Noise>;

constexpr const char* kRuleNames[SPECD_RULE_COUNT] = {"point mass", "independent",
                                                      "without replacement"};
constexpr const char* kModeNames[] = {"chain", "static", "variable"};

// The rule of the plugin, over any noise.
template <class Noise>
void judge(const std::string& plugin, uint32_t rule, const ToyTree& tree, Noise& noise,
           ToyVerdict& out) {
  const Nodes<Noise> nodes(tree, noise);
  std::vector<double> scratch;
  out.of(tree);
  if (plugin == "rejection") {
    judge_chain(nodes, rule != SPECD_RULE_POINT_MASS, noise, scratch, out);
  } else if (plugin == "block") {
    judge_block(nodes, rule != SPECD_RULE_POINT_MASS, noise, scratch, out);
  } else if (plugin == "tree_rejection") {
    TreeRejection(rule).judge(nodes, noise, out);
  } else if (plugin == "typical") {
    judge_typical(nodes, TypicalLimits(), out);
  } else if (plugin == "relaxed") {
    judge_relaxed(nodes, RelaxedRule(), true, out);
  } else {  // match: what ops.walk() does
    int32_t at = -1;
    for (int32_t node = 0; node < nodes.size(); ++node) {
      if (nodes.parent(node) != at || !nodes.can_draw(at)) continue;
      if (nodes.token(node) == nodes.row_token(at)) out.accept(at = node);
    }
    if (nodes.can_draw(at)) out.next_token(nodes.row_token(at));
  }
}

const std::vector<Parents>& shapes(uint32_t mode) {
  static const std::vector<Parents> chains = {{}, {-1}, {-1, 0}, {-1, 0, 1}};
  // The last one is that of drafter_draft_target with draw: own.
  static const std::vector<Parents> trees = {
      {-1, -1}, {-1, -1, -1}, {-1, 0, 0}, {-1, -1, 0, 0, 1, 1}, {-1, 0, -1, 0}};
  return mode == SPECD_TREE_CHAIN ? chains : trees;
}
size_t depth_of(const Parents& parents) {
  std::vector<size_t> depth;
  for (const int32_t parent : parents) {
    depth.push_back(parent < 0 ? 1 : depth[static_cast<size_t>(parent)] + 1);
  }
  return depth.empty() ? 0 : *std::max_element(depth.begin(), depth.end());
}

// Calls fn(target, drafter) for drafters that agree, know nothing, or are adversaries, and for targets
// that can draw nothing behind some of the drafts.
template <class Fn>
void for_every_pair(int32_t vocab, Fn&& fn) {
  const ToyLaw p = sdk::random_law(vocab, 11);
  fn(p, p);
  fn(p, sdk::against(p));
  for (uint64_t seed = 0; seed < 3; ++seed) {
    fn(sdk::random_law(vocab, seed), sdk::random_law(vocab, 100 + seed));
  }
  for (uint64_t seed = 3; seed < 5; ++seed) {
    fn(sdk::damaged(sdk::random_law(vocab, seed), seed), sdk::random_law(vocab, 100 + seed));
  }
}

// The largest bias of the rule over all pairs, shapes and, for a point mass, drafts.
template <class Judge>
double worst_bias(uint32_t rule, uint32_t mode, Judge&& judged) {
  double worst = 0;
  for (int32_t vocab = 1; vocab <= 4; ++vocab) {
    for (const Parents& parents : shapes(mode)) {
      const size_t n = parents.size(), length = depth_of(parents) + 1;
      if (vocab == 3 && n > 4 && rule == SPECD_RULE_IID) continue;  // a minute
      if (vocab == 4 && n > 3) continue;
      for_every_pair(vocab, [&](const ToyLaw& target, const ToyLaw& drafter) {
        if (rule != SPECD_RULE_POINT_MASS) {
          worst = std::max(worst, sdk::law_bias(target, length, [&](auto& noise, ToyVerdict& out) {
                             const ToyTree tree =
                                 sdk::draw_tree(target, drafter, parents, rule, noise);
                             judged(tree, noise, out);
                           }));
          return;
        }
        const auto drafts = static_cast<int>(std::lround(std::pow(vocab, n)));
        for (int number = 0; number < drafts; ++number) {
          ToyTree tree{target, {}, {}, parents};
          for (int rest = number; tree.token.size() < n; rest /= vocab) {
            tree.token.push_back(rest % vocab);
          }
          worst = std::max(worst, sdk::law_bias(target, length, [&](auto& noise, ToyVerdict& out) {
                             judged(tree, noise, out);
                           }));
        }
      });
    }
  }
  return worst;
}

// ---- the proof table ---------------------------------------------------------------------------

const char* const kPlugins[] = {"match", "rejection", "tree_rejection",
                                "block", "typical",   "relaxed"};

const sdk::FakeModule& module_of(const std::string& plugin) {
  static std::map<std::string, sdk::FakeModule> loaded;
  const auto found = loaded.find(plugin);
  if (found != loaded.end()) return found->second;
  return loaded
      .emplace(std::piecewise_construct, std::forward_as_tuple(plugin),
               std::forward_as_tuple(SPECD_TEST_BUNDLES "/verifier_" + plugin + "/verifier_" +
                                     plugin + ".so"))
      .first->second;
}

specd_verifier_caps caps_of(const std::string& plugin) {
  sdk::FakeHost host;
  return sdk::FakeVerifier(host, module_of(plugin).factory(plugin.c_str()), sdk::FakeConfig())
      .caps();
}

TEST(ProofTable, every_verifier_does_what_it_states_for_every_rule_and_tree) {
  int usable = 0;
  for (const std::string plugin : kPlugins) {
    const specd_verifier_caps caps = caps_of(plugin);
    for (uint32_t rule = 0; rule < SPECD_RULE_COUNT; ++rule) {
      for (uint32_t mode = 0; mode <= SPECD_TREE_VARIABLE; ++mode) {
        const std::string pair = plugin + ", " + kRuleNames[rule] + ", " + kModeNames[mode];
        if ((caps.tree_modes & (1u << mode)) == 0) continue;  // refused by the host
        ++usable;
        const double bias =
            worst_bias(rule, mode, [&](const ToyTree& tree, auto& noise, ToyVerdict& out) {
              judge(plugin, rule, tree, noise, out);
            });
        if (caps.guarantee[rule] >= SPECD_GUARANTEE_LAW) {
          EXPECT_LT(bias, 1e-12) << pair;
        } else {
          ASSERT_EQ(caps.guarantee[rule], uint32_t{SPECD_GUARANTEE_NONE}) << pair;
          EXPECT_GT(bias, 0.01) << pair << ": could state more";
        }
        std::cout << "  " << pair << ": "
                  << (caps.guarantee[rule] == SPECD_GUARANTEE_IDENTICAL ? "identical"
                      : caps.guarantee[rule] == SPECD_GUARANTEE_LAW     ? "law"
                                                                        : "none")
                  << ", bias " << bias << "\n";
      }
    }
  }
  EXPECT_EQ(usable, 4 * 9 + 2 * 3) << "every pair is in the table";
}

// `identical`: the emitted tokens are the target's own draws.
TEST(ProofTable, match_emits_the_tokens_of_plain_decoding) {
  for (uint32_t rule = 0; rule < SPECD_RULE_COUNT; ++rule) {
    ASSERT_EQ(caps_of("match").guarantee[rule], uint32_t{SPECD_GUARANTEE_IDENTICAL});
  }
  std::mt19937_64 random(5);
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, module_of("match").factory("match"), sdk::FakeConfig());
  for (int trial = 0; trial < 2000; ++trial) {
    sdk::FakeTree tree;
    const auto n = static_cast<int32_t>(random() % 12);
    for (int32_t node = 0; node < n; ++node) {
      tree.token.push_back(static_cast<int32_t>(random() % 3));
      tree.parent.push_back(static_cast<int32_t>(random() % (static_cast<uint64_t>(node) + 1)) - 1);
    }
    for (int32_t node = 0; node <= n; ++node) {
      tree.row_token.push_back(static_cast<int32_t>(random() % 3));
    }
    const sdk::FakeVerdict verdict = verifier.verify(tree);
    int32_t at = -1;
    for (const int32_t node : verdict.path) {
      EXPECT_EQ(tree.token[static_cast<size_t>(node)], tree.row_token[static_cast<size_t>(at + 1)]);
      at = node;
    }
    EXPECT_EQ(verdict.next_token, tree.row_token[static_cast<size_t>(at + 1)]);
  }
}

// ---- wrong rules -------------------------------------------------------------------------------

// What the enumeration must see.
class WrongRule {
 public:
  template <class Noise>
  static void residual_of_p(const ToyTree& tree, Noise& noise, ToyVerdict& out) {
    const Nodes<Noise> nodes(tree, noise);
    out.of(tree);
    int32_t at = -1;
    while (at + 1 < nodes.size()) {
      const int32_t x = nodes.token(at + 1);
      if (!noise.bernoulli(std::min(1.0, nodes.law(at).p(x) / nodes.q(at).p(x)))) break;
      out.accept(++at);
    }
    draw(nodes.law(at).probability, noise, out);
  }
  template <class Noise>
  static void first_failure_ends_a_block(const ToyTree& tree, Noise& noise, ToyVerdict& out) {
    const Nodes<Noise> nodes(tree, noise);
    out.of(tree);
    double kept = 1;
    for (int32_t i = 0;; ++i) {
      auto law = nodes.law(i - 1);
      if (i == nodes.size()) return draw(law.probability, noise, out);
      const auto q = nodes.q(i - 1);
      const int32_t x = nodes.token(i);
      const double next = std::min(1.0, kept * law.p(x) / q.p(x));
      double rest = 0;
      for (size_t t = 0; t < law.probability.size(); ++t) {
        rest += law.probability[t] = std::max(0.0, kept * law.probability[t] - q.probability[t]);
      }
      double h = next;
      if (i + 1 < nodes.size()) {
        const auto below = nodes.law(i), q_below = nodes.q(i);
        double sum = 0;
        for (size_t t = 0; t < below.probability.size(); ++t) {
          sum += std::max(0.0, next * below.probability[t] - q_below.probability[t]);
        }
        h = sum <= 0 ? 0 : sum / (sum + 1 - next);
      }
      if (!noise.bernoulli(h)) {
        return draw(rest > 0 ? law.probability : nodes.law(i - 1).probability, noise, out);
      }
      out.accept(i);
      kept = next;
    }
  }
  template <class Noise>
  static void draw(const std::vector<double>& weight, Noise& noise, ToyVerdict& out) {
    if (!sdk::has_mass(weight)) return;
    out.next_token(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
  }
};

// Of TreeRejection, with one thing wrong at a node with leaves below.
enum class Wrong {
  kNone,
  kNotNormalised,
  kSameNumber,
  kSorted,
  kNoDuplicates,
  kKeepsQ,
  kOneHotOfQ
};
template <class Noise>
void judge_leaves(Wrong wrong, uint32_t rule, const ToyTree& tree, Noise& noise, ToyVerdict& out) {
  const Nodes<Noise> nodes(tree, noise);
  out.of(tree);
  std::vector<double> p = nodes.law(-1).probability, q = nodes.q(-1).probability;
  std::vector<int32_t> order(static_cast<size_t>(nodes.size()));
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  const auto x_of = [&](int32_t node) { return static_cast<size_t>(nodes.token(node)); };
  if (wrong == Wrong::kSorted) {
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return q[x_of(a)] > q[x_of(b)]; });
  }
  double below = 1;  // u is below this, where it is one number for all
  std::vector<size_t> seen;
  for (const int32_t node : order) {
    const size_t x = x_of(node);
    const bool is_duplicate = std::find(seen.begin(), seen.end(), x) != seen.end();
    seen.push_back(x);
    if (wrong == Wrong::kNoDuplicates && is_duplicate) continue;
    double accept = q[x] <= 0 ? 0 : std::min(1.0, p[x] / q[x]);
    if (wrong == Wrong::kSameNumber) {
      // u in [accept, 1) was seen: u < accept now only if it is in [last, accept).
      const double last = 1 - below;
      accept = accept <= last ? 0 : (accept - last) / below;
      below = 1 - std::max(last, q[x] <= 0 ? 0 : std::min(1.0, p[x] / q[x]));
    }
    if (noise.bernoulli(accept)) {
      out.accept(node);
      WrongRule::draw(nodes.law(node).probability, noise, out);
      return;
    }
    double left = 0, left_q = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      left += p[t] = wrong == Wrong::kOneHotOfQ && t != x ? p[t] : std::max(0.0, p[t] - q[t]);
    }
    for (double& each : p) each /= wrong == Wrong::kNotNormalised || left <= 0 ? 1 : left;
    if (left <= 0) p = nodes.law(-1).probability;
    if (rule != SPECD_RULE_NO_REPLACE) continue;
    q[x] = 0;
    for (const double each : q) left_q += each;
    for (double& each : q) each /= wrong == Wrong::kKeepsQ || left_q <= 0 ? 1 : left_q;
  }
  WrongRule::draw(p, noise, out);
}

double worst_of_leaves(Wrong wrong, uint32_t rule) {
  double worst = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const ToyLaw p = sdk::random_law(4, seed), q = sdk::random_law(4, 50 + seed);
    worst = std::max(worst, sdk::law_bias(p, 2, [&](auto& noise, ToyVerdict& out) {
                       const ToyTree tree = sdk::draw_tree(p, q, {-1, -1}, rule, noise);
                       judge_leaves(wrong, rule, tree, noise, out);
                     }));
  }
  return worst;
}

TEST(WrongRules, are_caught_by_enumeration) {
  const auto of_chains = [](auto&& rule) {
    return worst_bias(
        SPECD_RULE_IID, SPECD_TREE_CHAIN,
        [&](const ToyTree& tree, auto& noise, ToyVerdict& out) { rule(tree, noise, out); });
  };
  EXPECT_GT(of_chains([](auto&... all) { WrongRule::residual_of_p(all...); }), 0.01);
  EXPECT_GT(of_chains([](auto&... all) { WrongRule::first_failure_ends_a_block(all...); }), 0.01);
  for (const uint32_t rule : {uint32_t{SPECD_RULE_IID}, uint32_t{SPECD_RULE_NO_REPLACE}}) {
    EXPECT_LT(worst_of_leaves(Wrong::kNone, rule), 1e-12) << "the mutants' own base";
  }
  EXPECT_GT(worst_of_leaves(Wrong::kNotNormalised, SPECD_RULE_IID), 0.01);
  EXPECT_GT(worst_of_leaves(Wrong::kSameNumber, SPECD_RULE_IID), 0.01);
  EXPECT_GT(worst_of_leaves(Wrong::kNoDuplicates, SPECD_RULE_IID), 0.005);
  EXPECT_GT(worst_of_leaves(Wrong::kSorted, SPECD_RULE_NO_REPLACE), 0.01);
  EXPECT_GT(worst_of_leaves(Wrong::kKeepsQ, SPECD_RULE_NO_REPLACE), 0.01);
  EXPECT_GT(worst_of_leaves(Wrong::kOneHotOfQ, SPECD_RULE_NO_REPLACE), 0.01);
}

// A rule whose bonus token is the likeliest one, not a draw.
TEST(WrongRules, a_bonus_without_temperature_is_caught) {
  struct Greedy {
    EveryWay& noise;
    bool accepted = true;
    bool bernoulli(double p) { return accepted = noise.bernoulli(p); }
    size_t categorical(const double* weight, size_t n) {
      if (!accepted) return noise.categorical(weight, n);
      return static_cast<size_t>(std::max_element(weight, weight + n) - weight);
    }
  };
  EXPECT_GT(worst_bias(SPECD_RULE_IID, SPECD_TREE_CHAIN,
                       [](const ToyTree& tree, EveryWay& noise, ToyVerdict& out) {
                         Greedy greedy{noise};
                         judge("rejection", SPECD_RULE_IID, tree, greedy, out);
                       }),
            0.01);
}

// Numbers under keys, enumerated: a key that comes again gives the number that it gave before.
class KeyedNoise {
 public:
  explicit KeyedNoise(EveryWay& ways) : ways_(ways) {}
  std::function<int32_t(int32_t call)> key_of;  // of the round's call-th number

  void begin_round() { call_ = 0; }
  bool bernoulli(double p) {
    auto& [low, high] = known_.try_emplace(key_of(call_++), 0.0, 1.0).first->second;
    if (p >= high) return true;
    if (p <= low) return false;
    const bool below = ways_.bernoulli((p - low) / (high - low));
    (below ? high : low) = p;
    return below;
  }
  size_t categorical(const double* weight, size_t n) { return ways_.categorical(weight, n); }

 private:
  EveryWay& ways_;
  std::map<int32_t, std::pair<double, double>> known_;  // where the number of a key is
  int32_t call_ = 0;
};

// Two rounds of block verification. Numbers keyed by the position of a node come again when the first
// round does not reach it.
TEST(WrongRules, noise_that_is_not_new_in_every_round_is_caught) {
  const auto worst = [](bool is_new) {
    double most = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      const ToyLaw p = sdk::random_law(2, seed), q = sdk::random_law(2, seed + 100);
      most = std::max(
          most, sdk::law_bias(p, 3, [&](EveryWay& ways, ToyVerdict& all) {
            KeyedNoise noise(ways);
            for (int32_t round = 0; round < 2; ++round) {
              const ToyText before = all.text;
              const auto behind = [&before](const ToyLaw& law) -> ToyLaw {
                return [&before, law](const ToyText& text) {
                  ToyText whole = before;
                  whole.insert(whole.end(), text.begin(), text.end());
                  return law(whole);
                };
              };
              const ToyTree tree =
                  sdk::draw_tree(behind(p), behind(q), {-1, 0}, SPECD_RULE_IID, ways);
              const auto root = static_cast<int32_t>(before.size());
              noise.key_of = [=, n = static_cast<int32_t>(tree.token.size())](int32_t call) {
                return is_new ? 100 * round + call : root + n - call;
              };
              noise.begin_round();
              ToyVerdict out;
              judge("block", SPECD_RULE_IID, tree, noise, out);
              all.text.insert(all.text.end(), out.text.begin(), out.text.end());
            }
          }));
    }
    return most;
  };
  EXPECT_LT(worst(true), 1e-12);
  EXPECT_GT(worst(false), 0.01);
}

// ---- what the drafter draws --------------------------------------------------------------------

// Draws of the plugin, in order, have the law that verifiers assume: each from what q leaves.
TEST(Siblings, are_drawn_with_and_without_replacement_in_order) {
  for (const bool with_replacement : {false, true}) {
    const std::vector<double> q = {0.5, 0.2, 0, 0.3};
    std::map<ToyText, double> law, expected;
    EveryWay noise;
    do {
      std::vector<double> weight = q;
      ToyText drawn{static_cast<int32_t>(noise.categorical(q.data(), q.size()))};
      draft_target::draw_siblings(weight, drawn[0], 3, with_replacement, noise,
                                  [&](int32_t token) { drawn.push_back(token); });
      law[drawn] += noise.probability();
    } while (noise.next());
    for (const int32_t a : {0, 1, 3}) {
      for (const int32_t b : {0, 1, 3}) {
        for (const int32_t c : {0, 1, 3}) {
          const auto at = [&](int32_t token) { return q[static_cast<size_t>(token)]; };
          if (with_replacement) {
            for (const int32_t d : {0, 1, 3})
              expected[{a, b, c, d}] = at(a) * at(b) * at(c) * at(d);
          } else if (a != b && b != c && a != c) {
            expected[{a, b, c}] = at(a) * at(b) / (1 - at(a));  // then one token is left, and none
          }
        }
      }
    }
    ASSERT_EQ(law.size(), expected.size());
    for (const auto& [text, probability] : expected) {
      EXPECT_NEAR(law[text], probability, 1e-12) << ::testing::PrintToString(text);
    }
  }
}

// Acceptance, which the law of the text does not show.
TEST(Acceptance, of_one_draft_is_the_sum_of_the_smaller_probabilities) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const ToyLaw p = sdk::random_law(4, seed), q = sdk::random_law(4, 70 + seed);
    double expected = 0;
    for (size_t t = 0; t < 4; ++t) expected += std::min(p({})[t], q({})[t]);
    for (const std::string plugin : {"rejection", "tree_rejection", "block"}) {
      double accepted = 0;
      EveryWay noise;
      do {
        ToyVerdict out;
        const ToyTree tree = sdk::draw_tree(p, q, {-1}, SPECD_RULE_IID, noise);
        judge(plugin, SPECD_RULE_IID, tree, noise, out);
        if (out.text.size() == 2) accepted += noise.probability();
      } while (noise.next());
      EXPECT_NEAR(accepted, expected, 1e-12) << plugin;
    }
  }
}

double mean_length(const std::string& plugin, uint32_t rule, const Parents& parents,
                   const ToyLaw& p, const ToyLaw& q) {
  double mean = 0;
  EveryWay noise;
  do {
    ToyVerdict out;
    const ToyTree tree = sdk::draw_tree(p, q, parents, rule, noise);
    judge(plugin, rule, tree, noise, out);
    mean += noise.probability() * static_cast<double>(out.text.size());
  } while (noise.next());
  return mean;
}

TEST(Acceptance, of_a_block_is_never_below_that_of_rejection) {
  double gained = 0;
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const ToyLaw p = sdk::random_law(3, seed), q = sdk::random_law(3, 70 + seed);
    const double one_by_one = mean_length("rejection", SPECD_RULE_IID, {-1, 0, 1}, p, q);
    const double together = mean_length("block", SPECD_RULE_IID, {-1, 0, 1}, p, q);
    EXPECT_GE(together, one_by_one - 1e-12);
    gained = std::max(gained, together - one_by_one);
  }
  EXPECT_GT(gained, 0.02);
}

// The example of specs: two tokens, q even and p (3/4, 1/4) everywhere.
TEST(Acceptance, of_a_block_in_the_worked_example) {
  const ToyLaw p = [](const ToyText&) { return std::vector<double>{0.75, 0.25}; };
  const ToyLaw q = [](const ToyText&) { return std::vector<double>{0.5, 0.5}; };
  const auto kept = [&](const std::vector<int32_t>& drafts) {
    std::vector<double> by_count(3);
    EveryWay noise;
    do {
      ToyTree tree{p, q, drafts, {-1, 0}};
      ToyVerdict out;
      judge("block", SPECD_RULE_IID, tree, noise, out);
      by_count[out.text.size() - 1] += noise.probability();
      if (out.text.size() == 1) {
        EXPECT_EQ(out.text[0], 0) << "the residual of the root";
      }
    } while (noise.next());
    return by_count;
  };
  EXPECT_EQ(kept({0, 0}), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(kept({0, 1}), (std::vector<double>{0, 0.5, 0.5}));
  EXPECT_EQ(kept({1, 0}), (std::vector<double>{0.25, 0, 0.75}));
  EXPECT_EQ(kept({1, 1}), (std::vector<double>{0.75, 0, 0.25}));
}

// ---- the shipped bundles -----------------------------------------------------------------------

struct Draws {
  std::mt19937_64& random;
  bool bernoulli(double probability) {
    return std::uniform_real_distribution<double>()(random) < probability;
  }
  size_t categorical(const double* weight, size_t n) {
    std::discrete_distribution<size_t> draw(weight, weight + n);
    return draw(random);
  }
};

// Every token has some probability, but for one behind some texts. Remembers what it has said.
ToyLaw smooth_law(uint64_t seed) {
  auto known = std::make_shared<std::map<ToyText, std::vector<double>>>();
  return [seed, known](const ToyText& text) {
    const auto found = known->find(text);
    if (found != known->end()) return found->second;
    uint64_t key = seed;
    for (const int32_t token : text) key = key * 31 + static_cast<uint64_t>(token) + 7;
    std::mt19937_64 random(key);
    std::vector<double> p(3);
    double total = 0;
    for (double& each : p) total += each = static_cast<double>(2 + random() % 9);
    if (text.size() == 1) total -= p[0], p[0] = 0;
    for (double& each : p) each /= total;
    return (*known)[text] = p;
  };
}

std::vector<float> logits_of(const std::vector<double>& p) {
  std::vector<float> row;
  for (const double each : p) {
    // Any constant may be added to logits.
    row.push_back(each > 0 ? static_cast<float>(std::log(each)) + 3
                           : -std::numeric_limits<float>::infinity());
  }
  return row;
}

sdk::FakeTree fake_tree(const ToyTree& tree, uint64_t seed) {
  sdk::FakeTree fake;
  fake.token = tree.token;
  fake.parent = tree.parent;
  for (int32_t node = -1; node < static_cast<int32_t>(tree.token.size()); ++node) {
    fake.law.push_back(logits_of(tree.target(tree.text(node))));
    if (tree.drafter) fake.q.push_back(logits_of(tree.drafter(tree.text(node))));
    fake.row_token.push_back(0);
  }
  fake.sampling.flags = 0;
  fake.sampling.seed = seed;
  return fake;
}

struct Pair {
  const char* plugin;
  uint32_t rule;
  Parents parents;
};
const Pair kPairs[] = {
    {"rejection", SPECD_RULE_POINT_MASS, {-1, 0, 1}},
    {"rejection", SPECD_RULE_IID, {-1, 0, 1}},
    {"block", SPECD_RULE_POINT_MASS, {-1, 0, 1}},
    {"block", SPECD_RULE_IID, {-1, 0, 1}},
    {"tree_rejection", SPECD_RULE_POINT_MASS, {-1, -1, 0, 0}},
    {"tree_rejection", SPECD_RULE_IID, {-1, -1, 0, 0}},
    {"tree_rejection", SPECD_RULE_NO_REPLACE, {-1, -1, 0, 0}},
    {"tree_rejection", SPECD_RULE_IID, {-1, 0, 1}},
};

// New numbers from another seed, or from another root of the same few texts.
TEST(Bundles, follow_the_law_over_many_seeds_and_roots) {
  const bool is_full = std::getenv("SPECD_NIGHTLY") != nullptr;
  const int n_samples = is_full ? 1000000 : 100000;
  for (const Pair& pair : kPairs) {
    const std::string name = std::string(pair.plugin) + ", " + kRuleNames[pair.rule];
    sdk::FakeHost host;
    sdk::FakeVerifier verifier(host, module_of(pair.plugin).factory(pair.plugin), sdk::FakeConfig(),
                               pair.rule);
    ASSERT_EQ(verifier.status(), SPECD_OK);
    const ToyLaw p = smooth_law(501), q = smooth_law(502);
    const size_t length = depth_of(pair.parents) + 1;
    std::mt19937_64 random(pair.rule + 1);
    Draws noise{random};
    ToyTree fixed{p, {}, {}, pair.parents};
    for (size_t i = 0; i < pair.parents.size(); ++i) {
      fixed.token.push_back(1 + static_cast<int32_t>(i % 2));  // siblings differ
    }
    std::vector<int> accepted(length);
    std::map<ToyText, double> expected, counted;
    sdk::continue_toy(p, length, {}, n_samples, expected);
    std::vector<ToyTree> trees(50);
    std::vector<sdk::FakeTree> fakes(trees.size());
    for (int sample = 0; sample < n_samples; sample += static_cast<int>(trees.size())) {
      for (size_t i = 0; i < trees.size(); ++i) {
        trees[i] = pair.rule == SPECD_RULE_POINT_MASS
                       ? fixed
                       : sdk::draw_tree(p, q, pair.parents, pair.rule, noise);
        const bool is_new_text = sample >= n_samples / 2;
        fakes[i] = fake_tree(trees[i], is_new_text ? random() : i);
        fakes[i].text.resize(is_new_text ? 5 : 1 + static_cast<size_t>(sample) / trees.size());
      }
      const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(fakes);
      for (size_t i = 0; i < trees.size(); ++i) {
        ASSERT_EQ(verdicts[i].status, SPECD_OK);
        ++accepted[verdicts[i].path.size()];
        ToyText text;
        for (const int32_t node : verdicts[i].path) {
          text.push_back(trees[i].token[static_cast<size_t>(node)]);
        }
        text.push_back(verdicts[i].next_token);
        while (text.size() < length) {
          const std::vector<double> weight = p(text);
          text.push_back(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
        }
        text.resize(length);
        counted[text] += 1;
      }
    }
    std::vector<double> got, want;
    double impossible = n_samples;
    for (const auto& [text, count] : expected) {
      want.push_back(count), got.push_back(counted[text]);
      impossible -= got.back();
    }
    EXPECT_EQ(impossible, 0) << name << ": a text that the target cannot write";
    EXPECT_GT(accepted[0], n_samples / 500) << name;
    EXPECT_GT(accepted.back(), n_samples / 500) << name;
    EXPECT_GE(chi_square_p(got, want), 1e-4 / static_cast<double>(std::size(kPairs))) << name;
  }
}

// The same samples as those of the bundles, of wrong rules.
TEST(WrongRules, are_caught_by_chi_square_where_their_bias_shows) {
  const ToyLaw p = smooth_law(501), q = smooth_law(502);
  constexpr int kSamples = 100000;
  const auto p_value = [&](const Parents& parents, uint32_t rule, auto&& judged) {
    const size_t length = depth_of(parents) + 1;
    std::map<ToyText, double> expected, counted;
    sdk::continue_toy(p, length, {}, kSamples, expected);
    std::mt19937_64 random(3);
    Draws noise{random};
    for (int sample = 0; sample < kSamples; ++sample) {
      const ToyTree tree = sdk::draw_tree(p, q, parents, rule, noise);
      ToyVerdict out;
      judged(tree, noise, out);
      while (out.text.size() < length) {
        const std::vector<double> weight = p(out.text);
        out.next_token(static_cast<int32_t>(noise.categorical(weight.data(), weight.size())));
      }
      out.text.resize(length);
      counted[out.text] += 1;
    }
    std::vector<double> got, want;
    for (const auto& [text, count] : expected) want.push_back(count), got.push_back(counted[text]);
    return chi_square_p(got, want);
  };
  const auto leaves = [](Wrong wrong, uint32_t rule) {
    return [wrong, rule](const ToyTree& tree, Draws& noise, ToyVerdict& out) {
      judge_leaves(wrong, rule, tree, noise, out);
    };
  };
  EXPECT_GT(p_value({-1, -1}, SPECD_RULE_IID, leaves(Wrong::kNone, SPECD_RULE_IID)), 1e-4);
  EXPECT_LT(p_value({-1, -1}, SPECD_RULE_NO_REPLACE, leaves(Wrong::kSorted, SPECD_RULE_NO_REPLACE)),
            1e-6);
  EXPECT_LT(p_value({-1, -1}, SPECD_RULE_NO_REPLACE, leaves(Wrong::kKeepsQ, SPECD_RULE_NO_REPLACE)),
            1e-6);
  EXPECT_LT(p_value({-1, 0, 1}, SPECD_RULE_IID,
                    [](const ToyTree& tree, Draws& noise, ToyVerdict& out) {
                      WrongRule::residual_of_p(tree, noise, out);
                    }),
            1e-6);
  EXPECT_LT(p_value({-1, 0, 1}, SPECD_RULE_IID,
                    [](const ToyTree& tree, Draws& noise, ToyVerdict& out) {
                      WrongRule::first_failure_ends_a_block(tree, noise, out);
                    }),
            1e-6);
}

// p and q are the same but for rounding, and the draft is rejected all the same: nothing is left of p.
TEST(Rules, draw_from_p_where_rounding_leaves_nothing) {
  struct Never {
    static bool bernoulli(double) { return false; }
    static size_t categorical(const double* weight, size_t n) {
      EXPECT_GT(*std::max_element(weight, weight + n), 0) << "something to draw";
      return static_cast<size_t>(std::max_element(weight, weight + n) - weight);
    }
  };
  const ToyLaw sure = [](const ToyText&) { return std::vector<double>{0, 0, 1}; };
  const ToyLaw even = [](const ToyText&) { return std::vector<double>{0.25, 0.25, 0.5}; };
  for (const std::string plugin : {"rejection", "tree_rejection", "block"}) {
    for (const auto& [law, rule] : {std::pair<ToyLaw, uint32_t>{sure, SPECD_RULE_POINT_MASS},
                                    {sure, SPECD_RULE_IID},
                                    {even, SPECD_RULE_IID},
                                    {sure, SPECD_RULE_NO_REPLACE}}) {
      const ToyTree tree{law, law, {2}, {-1}};
      Never noise;
      ToyVerdict out;
      judge(plugin, rule, tree, noise, out);
      EXPECT_EQ(out.text, ToyText{2}) << plugin << ", " << kRuleNames[rule];
    }
  }
}

TEST(Bundles, accept_along_equal_tokens_of_greedy_rows) {
  const float no = -std::numeric_limits<float>::infinity();
  for (const std::string plugin : {"rejection", "tree_rejection", "block", "typical", "relaxed"}) {
    sdk::FakeHost host;
    sdk::FakeVerifier verifier(host, module_of(plugin).factory(plugin.c_str()), sdk::FakeConfig());
    sdk::FakeTree tree;
    tree.token = {2, 0, 1};
    tree.parent = {-1, 0, 1};
    tree.row_token = {2, 0, 0, 1};
    for (const int32_t token : tree.row_token) {
      tree.law.emplace_back(3, no);
      tree.law.back()[static_cast<size_t>(token)] = -7.5f;
    }
    const sdk::FakeVerdict verdict = verifier.verify(tree);
    EXPECT_EQ(verdict.path, (ToyText{0, 1})) << plugin;
    EXPECT_EQ(verdict.next_token, 0) << plugin;
  }
}

TEST(Bundles, a_row_that_can_draw_nothing_fails_only_its_sequence) {
  const float no = -std::numeric_limits<float>::infinity();
  for (const std::string plugin : {"rejection", "tree_rejection", "block"}) {
    sdk::FakeHost host;
    sdk::FakeVerifier verifier(host, module_of(plugin).factory(plugin.c_str()), sdk::FakeConfig());
    sdk::FakeTree good;
    good.token = {1, 2};
    good.parent = {-1, 0};
    good.row_token = {0, 0, 0};
    good.law = {{no, 0, no}, {no, no, 0}, {0, 0, 0}};
    good.sampling.flags = 0;
    good.sampling.seed = 5;
    std::vector<sdk::FakeTree> trees(4, good);
    trees[1].law[0].assign(3, no);
    trees[3].law[1].assign(3, no);
    const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(trees);
    EXPECT_EQ(verdicts[0].status, SPECD_OK) << plugin;
    EXPECT_NE(verdicts[1].status, SPECD_OK) << plugin;
    EXPECT_EQ(verdicts[1].n_accepted, 0) << plugin;
    EXPECT_EQ(verdicts[2].status, SPECD_OK) << plugin;
    EXPECT_EQ(verdicts[2].path, verdicts[0].path) << plugin << ": the same seed and root";
    EXPECT_EQ(verdicts[2].next_token, verdicts[0].next_token) << plugin;
    EXPECT_EQ(verdicts[0].path, (ToyText{0, 1})) << plugin;
    // Behind a drafted token: it is emitted, so that the next step finds out.
    EXPECT_EQ(verdicts[3].status, SPECD_OK) << plugin;
    EXPECT_EQ(verdicts[3].n_accepted, 0) << plugin;
    EXPECT_EQ(verdicts[3].next_token, 1) << plugin;
  }
}

TEST(Bundles, a_probe_is_never_accepted) {
  const float no = -std::numeric_limits<float>::infinity();
  for (const std::string plugin : {"rejection", "tree_rejection", "block"}) {
    sdk::FakeHost host;
    sdk::FakeVerifier verifier(host, module_of(plugin).factory(plugin.c_str()), sdk::FakeConfig());
    sdk::FakeTree tree;
    tree.token = {1, 2};
    tree.parent = {-1, 0};
    tree.flags = {0, SPECD_NODE_PROBE};
    tree.row_token = {0, 0, 0};
    tree.law = {{no, 0, no}, {no, no, 0}, {}};
    tree.sampling.flags = 0;
    const sdk::FakeVerdict verdict = verifier.verify(tree);
    EXPECT_EQ(verdict.path, (ToyText{0})) << plugin;
    EXPECT_EQ(verdict.next_token, 2) << plugin;
  }
}

// ---- rules that change the text ----------------------------------------------------------------

TEST(Typical, takes_the_longest_path_of_tokens_that_are_likely_enough) {
  const ToyLaw p = [](const ToyText& text) {
    return text.empty() ? std::vector<double>{0.5, 0.3, 0.2} : std::vector<double>{0.9, 0.06, 0.04};
  };
  // Below the root alpha * exp(-H) is 0.107, so the limit is 0.09; below a node H is small.
  const ToyTree tree{p, {}, {1, 0, 2, 0, 1}, {-1, -1, 0, 1, 1}};
  EveryWay noise;
  const Nodes<EveryWay> nodes(tree, noise);
  ToyVerdict out;
  judge_typical(nodes, TypicalLimits(), out.of(tree));
  EXPECT_EQ((ToyText{out.text.begin(), out.text.end() - 1}), (ToyText{0, 0}));
  // With a low limit all pass, and the more likely path wins.
  ToyVerdict all;
  judge_typical(nodes, {0.01, 0.3}, all.of(tree));
  EXPECT_EQ((ToyText{all.text.begin(), all.text.end() - 1}), (ToyText{0, 0}));
  const ToyTree unlikely{p, {}, {2}, {-1}};
  const Nodes<EveryWay> below(unlikely, noise);
  ToyVerdict none;
  judge_typical(below, {0.3, 1}, none.of(unlikely));
  EXPECT_EQ(none.text.size(), 1u);
}

TEST(Relaxed, accepts_near_the_best_between_begin_and_end_alone) {
  const RelaxedRule rule{2, 0.25, 7, 8};
  const int32_t text[] = {1, 7, 2, 8, 3, 7};
  int64_t state = relaxed_state(rule, 0, text, 1);
  EXPECT_EQ(state & 1, 0);
  state = relaxed_state(rule, state, text, 3);
  EXPECT_EQ(state & 1, 1);
  EXPECT_EQ(relaxed_state(rule, state, text, 5) & 1, 0);
  EXPECT_EQ(relaxed_state(rule, 0, text, 6) & 1, 1) << "also in a prompt";
  const ToyLaw p = [](const ToyText&) { return std::vector<double>{0.4, 0.3, 0.2, 0.1}; };
  const auto accepted = [&](int32_t drafted, const RelaxedRule& with, bool is_relaxed) {
    double probability = 0;
    EveryWay noise;
    do {
      const ToyTree tree{p, {}, {drafted}, {-1}};
      const Nodes<EveryWay> nodes(tree, noise);
      ToyVerdict out;
      judge_relaxed(nodes, with, is_relaxed, out.of(tree));
      if (out.text.size() == 2) probability += noise.probability();
    } while (noise.next());
    return probability;
  };
  EXPECT_NEAR(accepted(1, rule, true), 1, 1e-12) << "0.3 is within 0.25 of 0.4, and the second";
  EXPECT_NEAR(accepted(2, rule, true), 0.2, 1e-12) << "the third: only where the target draws it";
  EXPECT_NEAR(accepted(2, {3, 0.25, 7, 8}, true), 1, 1e-12);
  EXPECT_NEAR(accepted(1, {2, 0.05, 7, 8}, true), 0.3, 1e-12);
  EXPECT_NEAR(accepted(1, rule, false), 0.3, 1e-12) << "outside";
}

}  // namespace
}  // namespace specd
