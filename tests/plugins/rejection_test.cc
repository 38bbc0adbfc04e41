// verifier_rejection: its rule by enumeration, and the shipped bundle by chi-square.
#include "plugins/verifier_rejection/rejection.h"

#include <gtest/gtest.h>
#include <specd/sdk/every_way.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "tests/plugins/chi_square.h"

namespace specd {
namespace {

using Text = std::vector<int32_t>;

// A target over a small vocabulary: a distribution behind every text, with zeros in some.
class Target {
 public:
  Target(int32_t vocab, uint64_t seed) : vocab_(vocab), seed_(seed) {}
  int32_t vocab() const { return vocab_; }
  std::vector<double> behind(const Text& text) const {
    uint64_t key = seed_;
    for (const int32_t token : text) key = key * 31 + static_cast<uint64_t>(token) + 7;
    std::mt19937_64 random(key);
    std::vector<double> p(static_cast<size_t>(vocab_));
    double total = 0;
    for (double& each : p) {
      const uint64_t kind = random() % 4;  // none, tiny, or any
      total += each = kind == 0 ? 0 : kind == 1 ? 1e-3 : static_cast<double>(random() % 1000 + 1);
    }
    if (total == 0) total = p[0] = 1;
    for (double& each : p) each /= total;
    return p;
  }
  // Of every text that continues `text` to `length`, times `probability`.
  void continue_to(size_t length, Text text, double probability,
                   std::map<Text, double>& law) const {
    if (text.size() >= length) {
      text.resize(length);
      law[text] += probability;
      return;
    }
    const std::vector<double> p = behind(text);
    text.push_back(0);
    for (int32_t token = 0; token < vocab_; ++token) {
      text.back() = token;
      const double each = p[static_cast<size_t>(token)];
      if (each > 0) continue_to(length, text, probability * each, law);
    }
  }

 private:
  int32_t vocab_;
  uint64_t seed_;
};

// A chain with the target's exact laws, as the rule sees it.
struct Chain {
  const Target& target;
  Text drafts;
  struct Law {
    std::vector<double> probability;
    double p(int32_t token) const { return probability[static_cast<size_t>(token)]; }
    int32_t vocab_size() const { return static_cast<int32_t>(probability.size()); }
  };
  int32_t size() const { return static_cast<int32_t>(drafts.size()); }
  int32_t token(int32_t node) const { return drafts[static_cast<size_t>(node)]; }
  static int32_t parent(int32_t node) { return node - 1; }
  static bool is_probe(int32_t) { return false; }
  static bool can_draw(int32_t) { return true; }
  Law law(int32_t node) const {
    return {target.behind({drafts.begin(), drafts.begin() + node + 1})};
  }
};

struct Emitted {
  const Chain& chain;
  Text text = {};
  void accept(int32_t node) { text.push_back(chain.token(node)); }
  void next_token(int32_t token) { text.push_back(token); }
};

// The total variation between what a rule emits, continued by the target, and the target's law.
template <class Judge>
double bias_of(const Target& target, const Text& drafts, Judge&& judge) {
  const Chain chain{target, drafts};
  const size_t length = drafts.size() + 1;
  std::map<Text, double> law, expected;
  sdk::EveryWay noise;
  do {
    Emitted out{chain};
    judge(chain, noise, out);
    target.continue_to(length, out.text, noise.probability(), law);
  } while (noise.next());
  target.continue_to(length, {}, 1, expected);
  for (const auto& [text, probability] : expected) law[text] -= probability;
  double distance = 0;
  for (const auto& [text, difference] : law) distance += std::fabs(difference) / 2;
  return distance;
}

const auto kRule = [](const Chain& chain, sdk::EveryWay& noise, Emitted& out) {
  std::vector<double> weight;
  judge_chain(chain, noise, weight, out);
};

// Calls fn(target, drafts) for vocabularies up to 4 and every chain up to 3 tokens.
template <class Fn>
void for_every_chain(Fn&& fn) {
  for (int32_t vocab = 1; vocab <= 4; ++vocab) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const Target target(vocab, seed);
      for (int32_t length = 0; length <= 3; ++length) {
        const auto n = static_cast<int32_t>(std::lround(std::pow(vocab, length)));
        for (int32_t number = 0; number < n; ++number) {
          Text drafts;
          for (int32_t rest = number, i = 0; i < length; ++i, rest /= vocab) {
            drafts.push_back(rest % vocab);
          }
          fn(target, drafts);
        }
      }
    }
  }
}

TEST(Rejection, has_the_law_of_the_target_for_every_chain) {
  int chains = 0;
  for_every_chain([&](const Target& target, const Text& drafts) {
    ++chains;
    EXPECT_LT(bias_of(target, drafts, kRule), 1e-12) << ::testing::PrintToString(drafts);
  });
  EXPECT_EQ(chains, 12 * (4 + 15 + 40 + 85));
}

// What the enumeration must see.
TEST(Rejection, a_wrong_rule_is_caught_by_enumeration) {
  const auto residual_of_p = [](const Chain& chain, sdk::EveryWay& noise, Emitted& out) {
    int32_t at = -1;
    while (at + 1 < chain.size() && noise.bernoulli(chain.law(at).p(chain.token(at + 1)))) {
      out.accept(++at);
    }
    const Chain::Law law = chain.law(at);  // with the rejected token
    out.next_token(
        static_cast<int32_t>(noise.categorical(law.probability.data(), law.probability.size())));
  };
  const auto likeliest_bonus = [](const Chain& chain, sdk::EveryWay& noise, Emitted& out) {
    struct Greedy {
      sdk::EveryWay& noise;
      bool accepted = true;
      bool bernoulli(double p) { return accepted = noise.bernoulli(p); }
      size_t categorical(const double* weight, size_t n) {
        if (!accepted) return noise.categorical(weight, n);
        return static_cast<size_t>(std::max_element(weight, weight + n) - weight);
      }
    } greedy{noise};
    std::vector<double> weight;
    judge_chain(chain, greedy, weight, out);
  };
  const auto one_decision_for_all = [](const Chain& chain, sdk::EveryWay& noise, Emitted& out) {
    // u < p at the first node decides the second one too, as if u were the same number.
    int32_t at = -1;
    double passed = 1;  // u is below this
    while (at + 1 < chain.size()) {
      const double p = chain.law(at).p(chain.token(at + 1));
      if (p < passed && !noise.bernoulli(p / passed)) break;
      passed = std::min(passed, p);
      out.accept(++at);
    }
    Chain::Law law = chain.law(at);
    if (at + 1 < chain.size()) law.probability[static_cast<size_t>(chain.token(at + 1))] = 0;
    double left = 0;
    for (const double p : law.probability) left += p;
    if (left <= 0) law = chain.law(at);
    out.next_token(
        static_cast<int32_t>(noise.categorical(law.probability.data(), law.probability.size())));
  };
  double worst[3] = {};
  for_every_chain([&](const Target& target, const Text& drafts) {
    worst[0] = std::max(worst[0], bias_of(target, drafts, residual_of_p));
    worst[1] = std::max(worst[1], bias_of(target, drafts, likeliest_bonus));
    worst[2] = std::max(worst[2], bias_of(target, drafts, one_decision_for_all));
  });
  for (const double each : worst) EXPECT_GT(each, 0.01);
}

// ---- the shipped bundle ------------------------------------------------------------------------

const specd_factory& factory() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES
                                      "/verifier_rejection/verifier_rejection.so");
  return loaded.factory("rejection");
}

// A target and a chain whose every token it draws sometimes and not always.
std::pair<Target, Text> uncertain_chain(size_t length, int number) {
  for (uint64_t seed = 500;; ++seed) {
    const Target target(3, seed);
    Text drafts;
    while (drafts.size() < length) {
      const std::vector<double> p = target.behind(drafts);
      const auto found =
          std::find_if(p.begin(), p.end(), [](double each) { return each > 0.2 && each < 0.8; });
      if (found == p.end()) break;
      drafts.push_back(static_cast<int32_t>(found - p.begin()));
    }
    if (drafts.size() == length && number-- == 0) return {target, drafts};
  }
}

sdk::FakeTree tree_of(const Target& target, const Text& drafts, uint64_t seed) {
  sdk::FakeTree tree;
  for (int32_t node = -1; node < static_cast<int32_t>(drafts.size()); ++node) {
    if (node >= 0) {
      tree.token.push_back(drafts[static_cast<size_t>(node)]);
      tree.parent.push_back(node - 1);
    }
    std::vector<float> row;
    for (const double p : target.behind({drafts.begin(), drafts.begin() + node + 1})) {
      // Any constant may be added to logits.
      row.push_back(p > 0 ? static_cast<float>(std::log(p)) + 3
                          : -std::numeric_limits<float>::infinity());
    }
    tree.law.push_back(row);
    tree.row_token.push_back(0);
  }
  tree.sampling.flags = 0;
  tree.sampling.seed = seed;
  return tree;
}

TEST(Rejection, the_bundle_follows_the_law_over_many_seeds_and_roots) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, factory(), sdk::FakeConfig());
  ASSERT_EQ(verifier.status(), SPECD_OK);
  constexpr int kRuns = 4, kSamples = 100000;
  for (int run = 0; run < kRuns; ++run) {
    const auto [target, drafts] = uncertain_chain(static_cast<size_t>(2 + run % 2), run);
    const size_t length = drafts.size() + 1;
    std::vector<int> accepted(drafts.size() + 1);
    std::map<Text, double> expected, counted;
    target.continue_to(length, {}, kSamples, expected);
    std::mt19937_64 random(static_cast<uint64_t>(run));
    std::vector<sdk::FakeTree> trees(50, tree_of(target, drafts, 123));
    for (int sample = 0; sample < kSamples; sample += static_cast<int>(trees.size())) {
      for (size_t i = 0; i < trees.size(); ++i) {
        // New numbers from another seed, or from another root of the same few texts.
        const bool is_new_text = run >= kRuns / 2;
        trees[i].sampling.seed = is_new_text ? random() : i;
        trees[i].text.resize(is_new_text ? 5 : 1 + static_cast<size_t>(sample) / trees.size());
      }
      const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(trees);
      for (const sdk::FakeVerdict& verdict : verdicts) {
        ASSERT_EQ(verdict.status, SPECD_OK);
        ++accepted[verdict.path.size()];
        Text text;
        for (const int32_t node : verdict.path) text.push_back(drafts[static_cast<size_t>(node)]);
        text.push_back(verdict.next_token);
        while (text.size() < length) {
          const std::vector<double> p = target.behind(text);
          std::discrete_distribution<int32_t> next(p.begin(), p.end());
          text.push_back(next(random));
        }
        text.resize(length);
        counted[text] += 1;
      }
    }
    std::vector<double> got, want;
    for (const auto& [text, count] : expected) want.push_back(count), got.push_back(counted[text]);
    double impossible = kSamples;
    for (const double count : got) impossible -= count;
    EXPECT_EQ(impossible, 0) << "a text that the target cannot write";
    for (const int n : accepted) EXPECT_GT(n, kSamples / 500) << "each depth ends some rounds";
    EXPECT_GE(chi_square_p(got, want), 1e-4 / kRuns) << run;
  }
}

TEST(Rejection, of_a_greedy_row_is_the_walk_along_equal_tokens) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, factory(), sdk::FakeConfig());
  const float no = -std::numeric_limits<float>::infinity();
  sdk::FakeTree tree;
  tree.token = {2, 0, 1};
  tree.parent = {-1, 0, 1};
  tree.row_token = {2, 0, 0, 1};
  for (const int32_t token : tree.row_token) {
    tree.law.emplace_back(3, no);
    tree.law.back()[static_cast<size_t>(token)] = -7.5f;
  }
  const sdk::FakeVerdict verdict = verifier.verify(tree);
  EXPECT_EQ(verdict.path, (Text{0, 1}));
  EXPECT_EQ(verdict.next_token, 0);
}

TEST(Rejection, a_row_that_can_draw_nothing_fails_only_its_sequence) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, factory(), sdk::FakeConfig());
  sdk::FakeTree good;
  good.token = {1, 2};
  good.parent = {-1, 0};
  good.row_token = {0, 0, 0};
  const float no = -std::numeric_limits<float>::infinity();
  good.law = {{no, 0, no}, {no, no, 0}, {0, 0, 0}};
  good.sampling.flags = 0;
  good.sampling.seed = 5;
  std::vector<sdk::FakeTree> trees(4, good);
  trees[1].law[0].assign(3, no);
  trees[3].law[1].assign(3, no);
  const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(trees);
  EXPECT_EQ(verdicts[0].status, SPECD_OK);
  EXPECT_NE(verdicts[1].status, SPECD_OK);
  EXPECT_EQ(verdicts[1].n_accepted, 0);
  EXPECT_EQ(verdicts[2].status, SPECD_OK);
  EXPECT_EQ(verdicts[2].path, verdicts[0].path) << "the same seed and root";
  EXPECT_EQ(verdicts[2].next_token, verdicts[0].next_token);
  EXPECT_EQ(verdicts[0].path, (Text{0, 1}));
  // Behind a drafted token: it is emitted, so that the next step finds out.
  EXPECT_EQ(verdicts[3].status, SPECD_OK);
  EXPECT_EQ(verdicts[3].n_accepted, 0);
  EXPECT_EQ(verdicts[3].next_token, 1);
}

TEST(Rejection, a_probe_ends_the_chain_and_nothing_left_keeps_the_token) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, factory(), sdk::FakeConfig());
  const float no = -std::numeric_limits<float>::infinity();
  sdk::FakeTree tree;
  tree.token = {1, 2};
  tree.parent = {-1, 0};
  tree.flags = {0, SPECD_NODE_PROBE};
  tree.row_token = {0, 0, 0};
  tree.law = {{no, 0, no}, {no, no, 0}, {}};
  tree.sampling.flags = 0;
  const sdk::FakeVerdict verdict = verifier.verify(tree);
  EXPECT_EQ(verdict.path, (Text{0}));
  EXPECT_EQ(verdict.next_token, 2);
  // A probability of 1 but for rounding, rejected: there is nothing else to draw.
  struct Never {
    static bool bernoulli(double) { return false; }
    static size_t categorical(const double* weight, size_t n) {
      return static_cast<size_t>(std::max_element(weight, weight + n) - weight);
    }
  } noise;
  struct Sure {
    struct Law {
      static double p(int32_t token) { return token == 2 ? 1 : 0; }
      static int32_t vocab_size() { return 3; }
    };
    static int32_t size() { return 1; }
    static int32_t token(int32_t) { return 2; }
    static int32_t parent(int32_t) { return -1; }
    static bool is_probe(int32_t) { return false; }
    static bool can_draw(int32_t) { return true; }
    static Law law(int32_t) { return {}; }
  };
  struct Out {
    int32_t next = -1;
    static void accept(int32_t) { FAIL(); }
    void next_token(int32_t token) { next = token; }
  } out;
  std::vector<double> weight;
  judge_chain(Sure(), noise, weight, out);
  EXPECT_EQ(out.next, 2);
}

}  // namespace
}  // namespace specd
