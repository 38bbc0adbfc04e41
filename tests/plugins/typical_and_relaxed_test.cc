// The verifiers that change the text, as the shipped bundles: what they accept, by configuration and state.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace specd {
namespace {

constexpr int kVocab = 5;

const sdk::FakeModule& module_of(const std::string& plugin) {
  static const sdk::FakeModule typical(SPECD_TEST_BUNDLES "/verifier_typical/verifier_typical.so");
  static const sdk::FakeModule relaxed(SPECD_TEST_BUNDLES "/verifier_relaxed/verifier_relaxed.so");
  return plugin == "typical" ? typical : relaxed;
}

// What the plugin accepts of one tree. The next token is the target's own draw behind that.
std::vector<int32_t> accepted_by(const std::string& plugin, const sdk::FakeConfig& config,
                                 const sdk::FakeTree& tree) {
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, module_of(plugin).factory(plugin.c_str()), config);
  const sdk::FakeVerdict verdict = verifier.verify(tree);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  const int32_t last = verdict.path.empty() ? -1 : verdict.path.back();
  EXPECT_EQ(verdict.next_token, tree.row_token[static_cast<size_t>(last + 1)]);
  return verdict.path;
}

// Tokens, probes and laws at random; some laws have zeros, and some nodes' logits are NaN.
sdk::FakeTree tree_with_laws(std::mt19937& random) {
  sdk::FakeTree tree;
  const auto token = [&] { return static_cast<int32_t>(random() % kVocab); };
  const size_t n = random() % 12;
  for (size_t row = 0; row <= n; ++row) {
    tree.row_token.push_back(token());
    std::vector<float> law(kVocab);
    for (float& each : law) {
      each = random() % 4 == 0 ? -std::numeric_limits<float>::infinity()
                               : static_cast<float>(random() % 4000) / 1000;
    }
    law[static_cast<size_t>(token())] = 1;
    if (row > 0 && random() % 5 == 0) law.assign(kVocab, std::numeric_limits<float>::quiet_NaN());
    tree.law.push_back(law);
    if (row == n) continue;
    tree.parent.push_back(
        std::max(-1, static_cast<int32_t>(row) - 1 - static_cast<int32_t>(random() % 3)));
    tree.token.push_back(token());
    tree.flags.push_back(random() % 6 == 0 ? SPECD_NODE_PROBE : 0);
  }
  return tree;
}

std::vector<double> probabilities(const sdk::FakeTree& tree, int32_t node) {
  const std::vector<float>& law = tree.law[static_cast<size_t>(node + 1)];
  std::vector<double> p;
  double sum = 0;
  for (const float each : law) {
    p.push_back(std::exp(double{each}));
    sum += p.back();
  }
  for (double& each : p) each /= sum;
  return p;
}
bool can_accept(const sdk::FakeTree& tree, size_t node) {
  return (tree.flags[node] & SPECD_NODE_PROBE) == 0 && !std::isnan(tree.law[node + 1][0]);
}

// The first child that the target drew, or that is one of the `top_n` most likely and near the best.
std::vector<int32_t> relaxed_path(const sdk::FakeTree& tree, size_t top_n, double delta) {
  std::vector<int32_t> path;
  int32_t at = -1;
  for (bool went_on = true; went_on;) {
    went_on = false;
    const std::vector<double> p = probabilities(tree, at);
    std::vector<double> sorted = p;
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t node = 0; node < tree.token.size() && !went_on; ++node) {
      if (tree.parent[node] != at || !can_accept(tree, node)) continue;
      const double of_token = p[static_cast<size_t>(tree.token[node])];
      const bool is_near =
          of_token > 0 && of_token >= sorted[top_n - 1] && of_token >= sorted[0] - delta;
      if (tree.token[node] != tree.row_token[static_cast<size_t>(at + 1)] && !is_near) continue;
      path.push_back(at = static_cast<int32_t>(node));
      went_on = true;
    }
  }
  return path;
}

TEST(RelaxedVerifier, accepts_the_first_child_that_is_likely_enough) {
  std::mt19937 random(1);
  size_t accepted = 0, beyond_the_draws = 0;
  for (int round = 0; round < 2500; ++round) {
    const sdk::FakeTree tree = tree_with_laws(random);
    const auto top_n = 1 + static_cast<int>(random() % kVocab);
    const double delta = static_cast<double>(random() % 1000) / 1000 + 1e-4;
    const std::vector<int32_t> path =
        accepted_by("relaxed", sdk::FakeConfig().set("top_n", top_n).set("delta", delta), tree);
    ASSERT_EQ(path, relaxed_path(tree, static_cast<size_t>(top_n), delta)) << round;
    accepted += path.size();
    int32_t at = -1;
    for (const int32_t node : path) {
      beyond_the_draws +=
          tree.token[static_cast<size_t>(node)] != tree.row_token[static_cast<size_t>(at + 1)] ? 1
                                                                                               : 0;
      at = node;
    }
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(beyond_the_draws, 500u);
}

// A text grows by a few tokens a step; its state says where the next step reads on.
TEST(RelaxedVerifier, is_strict_outside_of_the_begin_and_end_token) {
  constexpr int32_t kBegin = 3, kEnd = 4;
  sdk::FakeHost host;
  sdk::FakeVerifier verifier(host, module_of("relaxed").factory("relaxed"),
                             sdk::FakeConfig()
                                 .set("top_n", 2)
                                 .set("delta", 1.0)
                                 .set("begin_token", kBegin)
                                 .set("end_token", kEnd));
  ASSERT_EQ(verifier.status(), SPECD_OK);
  std::mt19937 random(2);
  const auto token = [&] { return static_cast<int32_t>(random() % kVocab); };
  // The target drew 0; the draft is the second most likely token.
  sdk::FakeTree proposal;
  proposal.token = {1};
  proposal.parent = {-1};
  proposal.row_token = {0, 2};
  proposal.law = {{4, 3, 0, 0, 0}, {0, 0, 1, 0, 0}};
  std::vector<sdk::FakeTree> sequences(6, proposal);
  for (sdk::FakeTree& each : sequences) each.text = {token()};
  int relaxed = 0, strict = 0;
  for (int step = 0; step < 200; ++step) {
    const std::vector<sdk::FakeVerdict> verdicts = verifier.verify_batch(sequences);
    for (size_t i = 0; i < sequences.size(); ++i) {
      bool is_inside = false;
      for (const int32_t each : sequences[i].text) {
        if (each == kBegin || each == kEnd) is_inside = each == kBegin;
      }
      ASSERT_EQ(verdicts[i].path.size(), is_inside ? 1u : 0u) << step << ", " << i;
      ASSERT_EQ(verdicts[i].next_token, is_inside ? 2 : 0);
      (is_inside ? relaxed : strict) += 1;
      sequences[i].state = verdicts[i].state;
      for (unsigned n = 1 + random() % 4; n > 0; --n) sequences[i].text.push_back(token());
    }
  }
  EXPECT_GT(relaxed, 200);
  EXPECT_GT(strict, 200);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
}

TEST(RelaxedVerifier, refuses_half_a_pair_of_tokens_and_numbers_out_of_range) {
  const auto status_of = [](const sdk::FakeConfig& config) {
    sdk::FakeHost host;
    return sdk::FakeVerifier(host, module_of("relaxed").factory("relaxed"), config).status();
  };
  using Config = sdk::FakeConfig;
  EXPECT_EQ(status_of(Config().set("begin_token", 1).set("end_token", 2)), SPECD_OK);
  EXPECT_EQ(status_of(Config().set("begin_token", 1)), SPECD_E_CONFIG);
  EXPECT_EQ(status_of(Config().set("end_token", 1)), SPECD_E_CONFIG);
  EXPECT_EQ(status_of(Config().set("begin_token", 1).set("end_token", 1)), SPECD_E_CONFIG);
  EXPECT_EQ(status_of(Config().set("begin_token", 1).set("end_token", 1 << 30)), SPECD_E_CONFIG);
  EXPECT_EQ(status_of(Config().set("top_n", 0)), SPECD_E_CONFIG);
  EXPECT_EQ(status_of(Config().set("delta", 1.5)), SPECD_E_CONFIG);
}

// The longest path of nodes that are likelier than min(epsilon, alpha * exp(-entropy)); of equally
// long ones the likeliest.
std::vector<int32_t> typical_path(const sdk::FakeTree& tree, double epsilon, double alpha) {
  std::vector<int32_t> best;
  double best_p = 1;
  for (size_t leaf = 0; leaf < tree.token.size(); ++leaf) {
    std::vector<int32_t> path;
    bool passes = true;
    double of_path = 1;
    for (auto node = static_cast<int32_t>(leaf); node >= 0;
         node = tree.parent[static_cast<size_t>(node)]) {
      path.insert(path.begin(), node);
    }
    for (const int32_t node : path) {
      const auto i = static_cast<size_t>(node);
      passes = passes && can_accept(tree, i);
      if (!passes) break;
      const std::vector<double> p = probabilities(tree, tree.parent[i]);
      double entropy = 0;
      for (const double each : p) entropy -= each > 0 ? each * std::log(each + 1e-5) : 0;
      const double of_token = p[static_cast<size_t>(tree.token[i])];
      passes = of_token > std::min(epsilon, alpha * std::exp(-entropy));
      of_path *= of_token;
    }
    if (!passes || path.size() < best.size()) continue;
    if (path.size() > best.size() || of_path > best_p * (1 + 1e-9)) {
      best = path;
      best_p = of_path;
    }
  }
  return best;
}

TEST(TypicalVerifier, accepts_the_longest_path_that_is_typical) {
  std::mt19937 random(3);
  size_t accepted = 0, bounded_by_epsilon = 0;
  for (int round = 0; round < 2500; ++round) {
    const sdk::FakeTree tree = tree_with_laws(random);
    const double epsilon = static_cast<double>(random() % 500) / 1000 + 1e-4,
                 alpha = static_cast<double>(random() % 1000) / 1000 + 1e-4;
    const sdk::FakeConfig config = sdk::FakeConfig().set("epsilon", epsilon).set("alpha", alpha);
    const std::vector<int32_t> expected = typical_path(tree, epsilon, alpha);
    ASSERT_EQ(accepted_by("typical", config, tree), expected) << round;
    accepted += expected.size();
    bounded_by_epsilon += typical_path(tree, 1, alpha) != expected ? 1 : 0;
  }
  EXPECT_GT(accepted, 1000u);
  EXPECT_GT(bounded_by_epsilon, 50u);
}

}  // namespace
}  // namespace specd
