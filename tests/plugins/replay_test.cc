#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "plugins/drafter_replay/coin.h"
#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

const specd_factory& replay_factory() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/drafter_replay/drafter_replay.so");
  return loaded.factory("replay");
}

class ReplayDrafter : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "replay_" + std::to_string(getpid()) + "_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
    std::mt19937 random(9);
    for (int i = 0; i < 600; ++i) output_.push_back(static_cast<int32_t>(random() % 1000));
    write("{\"sequences\": [" + record({1, 2, 3}, output_) + "]}");
  }
  void TearDown() override { std::remove(path_.c_str()); }

  void write(const std::string& text) { std::ofstream(path_) << text; }
  static std::string list(const TokenList& tokens) {
    std::string text = "[";
    for (const int32_t t : tokens) text += (text.size() > 1 ? "," : "") + std::to_string(t);
    return text + "]";
  }
  static std::string record(const TokenList& prompt, const TokenList& output,
                            const std::string& more = "") {
    return "{\"prompt\": " + list(prompt) + ", \"output\": " + list(output) + more + "}";
  }
  FakeConfig config() const { return FakeConfig().set("file", path_); }

  // Drives the whole record, accepting what equals it; returns the number accepted per step.
  static std::vector<int> run(FakeDrafter& drafter, const TokenList& prompt,
                              const TokenList& output, std::vector<std::size_t>* known = nullptr) {
    std::vector<int> accepted;
    const int s = drafter.begin(prompt);
    std::size_t done = 0;
    while (done < output.size()) {
      if (known != nullptr) known->push_back(prompt.size() + done);
      const FakeDraft draft = drafter.propose(s);
      int32_t at = -1;
      std::size_t n = 0;
      for (bool found = true; found && done + n < output.size();) {
        found = false;
        for (std::size_t i = 0; i < draft.token.size() && !found; ++i) {
          if (draft.parent[i] == at && draft.token[i] == output[done + n] &&
              (draft.flags[i] & SPECD_NODE_PROBE) == 0) {
            at = static_cast<int32_t>(i);
            found = true;
            ++n;
          }
        }
      }
      accepted.push_back(static_cast<int>(n));
      const std::size_t to = std::min(done + n + 1, output.size());
      drafter.commit(s, TokenList(output.begin() + static_cast<long>(done),
                                  output.begin() + static_cast<long>(to)));
      done = to;
    }
    drafter.end(s);
    return accepted;
  }

  std::string path_;
  TokenList output_;
};

TEST_F(ReplayDrafter, full_acceptance_replays_the_record_to_its_end) {
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(), config().set("draft_tokens", 7));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  const std::vector<int> accepted = run(drafter, {1, 2, 3}, output_);
  EXPECT_EQ(accepted.size(), 75u);  // 600 tokens, 7 + 1 each
  for (const int n : accepted) EXPECT_EQ(n, 7);
  EXPECT_TRUE(host.violations().empty());
}

TEST_F(ReplayDrafter, accepted_counts_are_those_of_the_documented_coin) {
  for (const double acceptance : {0.0, 0.3, 0.7, 0.95}) {
    for (const bool tree : {false, true}) {
      FakeHost host;
      FakeConfig c = config();
      c.set("draft_tokens", 6).set("acceptance", acceptance).set("seed", 42);
      if (tree) c.set("tree.nodes", 40).set("tree.probes", 10);
      FakeConfig with_json("{\"acceptance\": " + std::to_string(acceptance) + "}");
      with_json.set("file", path_)
          .set("draft_tokens", 6)
          .set("acceptance", acceptance)
          .set("seed", 42);
      if (tree) with_json.set("tree.nodes", 40).set("tree.probes", 10);
      FakeDrafter drafter(host, replay_factory(), with_json);
      ASSERT_EQ(drafter.status(), SPECD_OK);
      std::vector<std::size_t> known;
      const std::vector<int> accepted = run(drafter, {1, 2, 3}, output_, &known);
      for (std::size_t i = 0; i < accepted.size(); ++i) {
        int expected = 0;
        while (expected < 6 && known[i] + static_cast<std::size_t>(expected) < 603 &&
               replay::tells_truth(42, known[i] + static_cast<std::size_t>(expected), acceptance)) {
          ++expected;
        }
        ASSERT_EQ(accepted[i], expected) << acceptance << " step " << i;
      }
      EXPECT_TRUE(host.violations().empty());
    }
  }
}

TEST_F(ReplayDrafter, coin_is_fair) {
  int truths = 0;
  for (uint64_t position = 0; position < 100000; ++position) {
    truths += replay::tells_truth(7, position, 0.37);
  }
  EXPECT_NEAR(truths / 1e5, 0.37, 0.006);  // 4 standard deviations
}

TEST_F(ReplayDrafter, acceptance_may_be_a_list_by_place) {
  FakeHost host;
  FakeConfig c("{\"acceptance\": [1.0, 1, 0]}");
  c.set("file", path_).set("draft_tokens", 5).set_other("acceptance");
  FakeDrafter drafter(host, replay_factory(), c);
  ASSERT_EQ(drafter.status(), SPECD_OK);
  for (const int n : run(drafter, {1, 2, 3}, TokenList(output_.begin(), output_.begin() + 300))) {
    EXPECT_EQ(n, 2);
  }
}

TEST_F(ReplayDrafter, tree_hides_the_truth_among_decoys_and_probes) {
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(),
                      config().set("draft_tokens", 5).set("tree.nodes", 60).set("tree.probes", 20));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  ASSERT_EQ(drafter.caps().tree_mode, static_cast<uint32_t>(SPECD_TREE_VARIABLE));
  const int s = drafter.begin({1, 2, 3});
  int honest_probes = 0, shuffled = 0;
  for (std::size_t done = 0; done + 8 < output_.size(); ++done) {
    const FakeDraft draft = drafter.propose(s);
    ASSERT_EQ(draft.count, 60);
    std::vector<int> depth;
    std::vector<bool> on_chain;
    int chain = 0, probes = 0;
    for (std::size_t i = 0; i < 60; ++i) {
      const int32_t parent = draft.parent[i];
      ASSERT_GE(parent, -1);
      ASSERT_LT(parent, static_cast<int32_t>(i));
      depth.push_back(parent < 0 ? 1 : depth[static_cast<std::size_t>(parent)] + 1);
      ASSERT_LE(depth.back(), 5);
      const bool truth =
          draft.token[i] == output_[done + static_cast<std::size_t>(depth.back()) - 1];
      const bool probe = (draft.flags[i] & SPECD_NODE_PROBE) != 0;
      probes += probe;
      honest_probes += probe && truth;
      if (!probe && truth) {
        // Only chain nodes have the recorded token.
        ASSERT_TRUE(parent < 0 || on_chain[static_cast<std::size_t>(parent)]);
        ++chain;
      }
      on_chain.push_back(!probe && truth);
      shuffled += !on_chain[i] && i < 5;
    }
    ASSERT_EQ(chain, 5);
    ASSERT_EQ(probes, 20);
    drafter.commit(s, {output_[done]});
  }
  EXPECT_GT(honest_probes, 1000);
  EXPECT_GT(shuffled, 1000);
  EXPECT_TRUE(host.violations().empty());
}

TEST_F(ReplayDrafter, budget_below_the_chain_cuts_the_tree) {
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(),
                      config().set("draft_tokens", 8).set("tree.nodes", 30).set("tree.probes", 4));
  const int s = drafter.begin({1, 2, 3});
  for (int budget = 0; budget <= 30; ++budget) EXPECT_EQ(drafter.propose(s, budget).count, budget);
  EXPECT_TRUE(host.violations().empty());
}

TEST_F(ReplayDrafter, unknown_text_gets_no_draft) {
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(), config());
  EXPECT_EQ(drafter.propose(drafter.begin({1, 2})).count, 0);
  EXPECT_EQ(drafter.propose(drafter.begin({1, 2, 4})).count, 0);
  const int s = drafter.begin({1, 2, 3});
  EXPECT_EQ(drafter.propose(s).count, 8);
  drafter.commit(s, {output_[0], (output_[1] + 1) % 1000});
  EXPECT_EQ(drafter.propose(s).count, 0);  // the text left the record
}

TEST_F(ReplayDrafter, record_is_found_in_mid_stream) {
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(), config().set("draft_tokens", 3));
  TokenList tokens = {1, 2, 3};
  tokens.insert(tokens.end(), output_.begin(), output_.begin() + 100);
  const FakeDraft draft = drafter.propose(drafter.begin(tokens, SPECD_ATTACH_TOKENS));
  EXPECT_EQ(draft.token, TokenList(output_.begin() + 100, output_.begin() + 103));
}

TEST_F(ReplayDrafter, seed_of_the_request_chooses_among_records_of_one_prompt) {
  write("{\"sequences\": [" + record({1, 2}, {10, 11}, ", \"seed\": 5") + "," +
        record({1, 2}, {20, 21}, ", \"seed\": 6") + "," + record({1, 2}, {30, 31}) + "]}");
  FakeHost host;
  FakeDrafter drafter(host, replay_factory(), config());
  for (const auto& [seed, first] : {std::pair{5, 10}, {6, 20}, {7, 30}}) {
    specd_sampling sampling = sdk::greedy_sampling();
    sampling.seed = static_cast<uint64_t>(seed);
    const FakeDraft draft = drafter.propose(drafter.begin({1, 2}, SPECD_ATTACH_FRESH, sampling));
    EXPECT_EQ(draft.token, (TokenList{first, first + 1})) << seed;
  }
}

TEST_F(ReplayDrafter, bad_files_are_refused_with_the_place) {
  const std::pair<std::string, const char*> bad[] = {
      {std::string("{\"sequences\": []}\0x", 19), "not JSON at byte 17"},
      {"", "not JSON at byte 0"},
      {"[1,]", "not JSON at byte 3"},
      {"{\"a\": 1e999}", "a number is too large"},
      {"[]", "sequences"},
      {"{\"sequences\": 3}", "sequences"},
      {"{\"sequences\": [3]}", "sequences[0]"},
      {"{\"sequences\": [{\"prompt\": [], \"output\": []}]}", "prompt"},
      {"{\"sequences\": [{\"prompt\": [1]}]}", "output"},
      {"{\"sequences\": [{\"prompt\": [1], \"output\": [1, 1000]}]}", "output[1]"},
      {"{\"sequences\": [{\"prompt\": [-1], \"output\": []}]}", "prompt[0]"},
      {"{\"sequences\": [{\"prompt\": [1.5], \"output\": []}]}", "prompt[0]"},
      {"{\"sequences\": [{\"prompt\": [1], \"output\": [], \"seed\": \"x\"}]}", "seed"},
      {"{\"sequences\": [[[[[[[[[[[[]]]]]]]]]]]]}", "nested"},
  };
  for (const auto& [text, words] : bad) {
    write(text);
    FakeHost host;
    FakeDrafter drafter(host, replay_factory(), config());
    EXPECT_EQ(drafter.status(), SPECD_E_DATA) << text;
    ASSERT_FALSE(host.reports().empty());
    EXPECT_NE(host.reports()[0].text.find(words), std::string::npos) << host.reports()[0].text;
    EXPECT_TRUE(host.violations().empty());
  }
  FakeHost host;
  FakeDrafter missing(host, replay_factory(), FakeConfig().set("file", "/nonexistent.json"));
  EXPECT_EQ(missing.status(), SPECD_E_CONFIG);
  FakeDrafter none(host, replay_factory(), FakeConfig());
  EXPECT_EQ(none.status(), SPECD_E_CONFIG);
  for (const char* json : {"{\"acceptance\": 1.5}", "{\"acceptance\": []}",
                           "{\"acceptance\": [0.5, \"x\"]}", "{\"acceptance\": null}"}) {
    FakeDrafter drafter(host, replay_factory(),
                        FakeConfig(json).set("file", path_).set_other("acceptance"));
    EXPECT_EQ(drafter.status(), SPECD_E_CONFIG) << json;
  }
}

}  // namespace
}  // namespace specd
