// The trees of drafter_draft_target: which nodes are run, which are proposed, in what order.
// Compared with a slow oracle, on a model that is a function of the text.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/plugins/draft_target_bundle.h"
#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using Json = nlohmann::json;
using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;
using Likely = std::vector<std::pair<int32_t, float>>;

FakeConfig config(int depth, int branches, int nodes) {
  return FakeConfig()
      .set("model", "draft")
      .set("draft_tokens", depth)
      .set("tree.branches", branches)
      .set("tree.nodes", nodes);
}

// Eight tokens, with probabilities from a hash of the last three tokens.
Likely eight_likely(const TokenList& text) {
  uint32_t seed = 17;
  for (size_t i = text.size() < 3 ? 0 : text.size() - 3; i < text.size(); ++i) {
    seed = seed * 2654435761u + static_cast<uint32_t>(text[i]);
  }
  std::mt19937 random(seed);
  std::vector<float> weight(8);
  float sum = 0;
  for (float& each : weight) sum += each = std::exp(static_cast<float>(random()) / 8.6e8f);
  Likely all;
  for (int32_t token = 0; token < 8; ++token) {
    all.emplace_back(token, std::log(weight[static_cast<size_t>(token)] / sum));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return all;
}

// Paths with their scores, grown as sets, one path at a time.
using Scored = std::map<TokenList, float>;
Scored oracle(const TokenList& text, size_t depth, size_t branches, size_t nodes, double p_min) {
  Scored all;
  std::vector<TokenList> run{{}};
  for (size_t level = 1; level <= depth && !run.empty(); ++level) {
    std::vector<TokenList> fresh;
    for (const TokenList& path : run) {
      TokenList whole = text;
      whole.insert(whole.end(), path.begin(), path.end());
      const Likely likely = eight_likely(whole);
      for (size_t i = 0; i < std::min(branches, likely.size()); ++i) {
        TokenList child = path;
        child.push_back(likely[i].first);
        const float score = (path.empty() ? 0.0f : all.at(path)) + likely[i].second;
        if (score < static_cast<float>(std::log(p_min))) continue;
        all[child] = score;
        fresh.push_back(child);
      }
    }
    const auto beaten_by = [&](const TokenList& path) {
      return static_cast<size_t>(std::count_if(
          all.begin(), all.end(), [&](const auto& other) { return other.second > all.at(path); }));
    };
    std::sort(fresh.begin(), fresh.end(),
              [&](const auto& a, const auto& b) { return all.at(a) > all.at(b); });
    run.clear();
    for (const TokenList& path : fresh) {
      if (run.size() < branches && beaten_by(path) < nodes) run.push_back(path);
    }
  }
  std::vector<float> scores;
  for (const auto& each : all) scores.push_back(each.second);
  std::sort(scores.rbegin(), scores.rend());
  if (scores.size() > nodes) {
    std::erase_if(all, [&](const auto& each) { return each.second < scores[nodes - 1]; });
  }
  return all;
}

std::vector<TokenList> paths_of(const FakeDraft& draft) {
  std::vector<TokenList> paths;
  for (size_t i = 0; i < draft.token.size(); ++i) {
    TokenList path =
        draft.parent[i] < 0 ? TokenList{} : paths[static_cast<size_t>(draft.parent[i])];
    path.push_back(draft.token[i]);
    paths.push_back(path);
  }
  return paths;
}

class DraftTree : public ::testing::Test {
 protected:
  DraftTree() {
    host_.model().next = [](const TokenList& text) { return eight_likely(text)[0].first; };
    host_.model().likely = eight_likely;
  }
  void TearDown() override {
    for (const std::string& violation : host_.violations()) ADD_FAILURE() << violation;
  }
  FakeHost host_;
};

TEST_F(DraftTree, proposes_the_likeliest_paths_of_what_was_grown) {
  struct Setting {
    int depth, branches, nodes;
    double p_min;
  };
  for (const Setting& at : {Setting{4, 4, 16, 0}, Setting{3, 2, 14, 0}, Setting{6, 3, 8, 0},
                            Setting{5, 8, 64, 0.01}, Setting{1, 5, 3, 0}, Setting{4, 1, 4, 0}}) {
    FakeDrafter drafter(host_, chain_factory(),
                        config(at.depth, at.branches, at.nodes).set("tree.p_min", at.p_min));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    host_.model().session.clear();
    std::mt19937 random(9);
    const int s = drafter.begin({1, 2, 3});
    for (int round = 0; round < 60; ++round) {
      const int budget = round % 3 == 0 ? static_cast<int>(random() % 20) : at.nodes;
      const FakeDraft draft = drafter.propose(s, budget);
      const std::vector<TokenList> paths = paths_of(draft);
      const auto n = static_cast<size_t>(std::min(budget, at.nodes));
      const Scored expected = n == 0 ? Scored()
                                     : oracle(drafter.tokens(s), static_cast<size_t>(at.depth),
                                              static_cast<size_t>(at.branches), n, at.p_min);
      std::set<TokenList> wanted, got(paths.begin(), paths.end());
      for (const auto& each : expected) wanted.insert(each.first);
      ASSERT_EQ(got, wanted) << "round " << round << ", depth " << at.depth;
      ASSERT_EQ(got.size(), paths.size()) << "a path was proposed twice";
      // Any path may be accepted; the target's token follows.
      TokenList commit;
      std::vector<int32_t> nodes;
      if (!paths.empty() && random() % 4 > 0) {
        const size_t end = random() % paths.size();
        commit = paths[end];
        for (auto node = static_cast<int32_t>(end); node >= 0;
             node = draft.parent[static_cast<size_t>(node)]) {
          nodes.insert(nodes.begin(), node);
        }
      }
      commit.push_back(static_cast<int32_t>(random() % 8));
      nodes.push_back(SPECD_NODE_ROOT);
      ASSERT_EQ(drafter.commit(s, commit, nodes), SPECD_OK);
    }
  }
}

TEST_F(DraftTree, is_that_of_the_reference_on_the_zoo) {
  const Json goldens = Json::parse(std::ifstream(SPECD_TEST_REFERENCE "/draft_tree_goldens.json"));
  size_t n_nodes = 0, n_accepted = 0;
  for (const Json& context : goldens["contexts"]) {
    host_.model().session.clear();
    std::map<TokenList, Likely> said;  // by text
    host_.model().likely = [&](const TokenList& text) {
      const auto found = said.find(text);
      if (found == said.end())
        host_.violate("the model was run on a text that the reference did not");
      return found == said.end() ? Likely() : found->second;
    };
    host_.model().next = [&](const TokenList& text) { return said.at(text)[0].first; };
    FakeDrafter drafter(host_, chain_factory(),
                        config(context["depth"], context["branches"], context["nodes"])
                            .set("tree.p_min", context["p_min"].get<double>()));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int s = drafter.begin(context["prompt"].get<TokenList>());
    for (const Json& step : context["steps"]) {
      said.clear();
      for (const Json& asked : step["asked"]) {
        TokenList text = drafter.tokens(s);
        for (const Json& token : asked[0]) text.push_back(token);
        Likely& likely = said[text];
        for (size_t i = 0; i < asked[1].size(); ++i) {
          likely.emplace_back(asked[1][i], asked[2][i].get<float>() / 1024);
        }
      }
      const FakeDraft draft = drafter.propose(s);
      ASSERT_EQ(draft.token, step["token"].get<TokenList>());
      ASSERT_EQ(draft.parent, step["parent"].get<TokenList>());
      TokenList nodes = step["accepted"];
      n_nodes += draft.token.size();
      n_accepted += nodes.size();
      nodes.push_back(SPECD_NODE_ROOT);
      ASSERT_EQ(drafter.commit(s, step["committed"].get<TokenList>(), nodes), SPECD_OK);
    }
  }
  EXPECT_GT(n_nodes, 4000u);
  EXPECT_GT(n_accepted, 500u);
}

TEST_F(DraftTree, the_likeliest_path_comes_first_and_lies_in_place) {
  FakeDrafter drafter(host_, chain_factory(), config(5, 3, 24));
  const int s = drafter.begin({4, 4});
  TokenList text = drafter.tokens(s);
  const FakeDraft draft = drafter.propose(s);
  for (int32_t i = 0; i < draft.count && draft.parent[static_cast<size_t>(i)] == i - 1; ++i) {
    EXPECT_EQ(draft.token[static_cast<size_t>(i)], eight_likely(text)[0].first);
    text.push_back(draft.token[static_cast<size_t>(i)]);
  }
  EXPECT_GE(text.size(), 2u + 3u);
}

TEST_F(DraftTree, what_was_accepted_is_not_fed_again) {
  FakeDrafter drafter(host_, chain_factory(), config(3, 2, 6));
  const int s = drafter.begin({1, 2, 3, 4, 5, 6, 7});
  const FakeDraft draft = drafter.propose(s);
  ASSERT_GE(draft.count, 2);
  const uint64_t rows = host_.model().rows, forwards = host_.model().forwards;
  EXPECT_EQ(forwards, 3u) << "one for the text, one for each level but the last";
  EXPECT_LE(rows, 7u + 2u + 2u);
  drafter.commit(s, {draft.token[0], 0}, {0, SPECD_NODE_ROOT});
  drafter.propose(s, 1);
  EXPECT_EQ(host_.model().rows - rows, 1u) << "the accepted node was run; one child needs no level";
  EXPECT_EQ(host_.model().session.at(1).kept, drafter.tokens(s));
}

TEST_F(DraftTree, the_batch_shares_one_forward_per_level) {
  FakeDrafter drafter(host_, chain_factory(), config(4, 2, 8));
  const int a = drafter.begin({1}), b = drafter.begin({2}), c = drafter.begin({3});
  const std::vector<FakeDraft> drafts = drafter.propose_batch({a, b, c}, {8, 0, 3});
  EXPECT_EQ(drafts[0].count, 8);
  EXPECT_EQ(drafts[1].count, 0);
  EXPECT_EQ(drafts[2].count, 3);
  EXPECT_EQ(host_.model().forwards, 4u);
}

TEST_F(DraftTree, a_draw_that_is_not_the_likeliest_takes_its_place) {
  host_.model().next = [](const TokenList& text) { return eight_likely(text)[3].first; };
  for (const bool noise : {true, false}) {
    host_.model().session.clear();
    FakeDrafter drafter(host_, chain_factory(),
                        config(1, 3, 3).set("draw", noise ? "target_noise" : "most_likely"));
    const TokenList text = {5, 6};
    const FakeDraft draft = drafter.propose(drafter.begin(text));
    const Likely likely = eight_likely(text);
    const TokenList drawn = {likely[3].first, likely[0].first, likely[1].first};
    const TokenList best = {likely[0].first, likely[1].first, likely[2].first};
    EXPECT_EQ(draft.token, noise ? drawn : best);
  }
}

TEST_F(DraftTree, attached_in_mid_stream_it_drafts_as_if_it_had_been_there) {
  for (const int nodes : {0, 12}) {  // 0: a chain; 12: a tree
    host_.model().session.clear();
    FakeDrafter drafter(host_, chain_factory(),
                        nodes == 0 ? FakeConfig().set("model", "draft").set("draft_tokens", 4)
                                   : config(4, 3, nodes));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    std::mt19937 random(4);
    const int fresh = drafter.begin({1, 2, 3});
    for (int step = 0; step < 40; ++step) {
      const FakeDraft expected = drafter.propose(fresh);
      ASSERT_GT(expected.count, 0);
      for (const uint32_t mode : {SPECD_ATTACH_TOKENS, SPECD_ATTACH_COLD}) {
        const int late = drafter.begin(drafter.tokens(fresh), mode);
        const FakeDraft draft = drafter.propose(late);
        ASSERT_EQ(draft.token, expected.token) << step;
        ASSERT_EQ(draft.parent, expected.parent);
        drafter.end(late);
      }
      drafter.commit(fresh,
                     {static_cast<int32_t>(random() % 8), static_cast<int32_t>(random() % 8)});
    }
  }
}

TEST_F(DraftTree, no_level_is_grown_that_the_text_has_no_room_for) {
  FakeDrafter drafter(host_, chain_factory(), config(6, 2, 12));
  specd_sampling sampling = sdk::greedy_sampling();
  sampling.tokens_left = 3;
  const int s = drafter.begin({1, 2}, SPECD_ATTACH_TOKENS, sampling);
  for (const TokenList& path : paths_of(drafter.propose(s))) EXPECT_LE(path.size(), 2u);
  drafter.commit(s, {1, 2});
  EXPECT_EQ(drafter.propose(s).count, 0) << "one token is left: the step's own";
}

TEST_F(DraftTree, a_model_at_its_limits_proposes_what_it_has) {
  host_.model().max_positions = 4;
  FakeDrafter drafter(host_, chain_factory(), config(6, 2, 12));
  const int s = drafter.begin({1, 2, 3});
  size_t deepest = 0;
  for (const TokenList& path : paths_of(drafter.propose(s)))
    deepest = std::max(deepest, path.size());
  EXPECT_EQ(deepest, 2u) << "the row of a node at position 4 has no room";
  drafter.commit(s, {4, 5});
  EXPECT_EQ(drafter.propose(s).count, 0);

  host_.model().max_positions = 4096;
  host_.model().exhausted = true;
  const int other = drafter.begin({1});
  EXPECT_EQ(drafter.propose(other).count, 0);
  host_.model().exhausted = false;
  EXPECT_EQ(drafter.propose(other).count, 12);
}

TEST_F(DraftTree, what_cannot_work_is_refused) {
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), FakeConfig()).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(65, 2, 8)).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(4, 0, 8)).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(4, 17, 8)).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(4, 2, 1025)).status(), SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(4, 2, 8).set("tree.p_min", -1)).status(),
            SPECD_E_CONFIG);
  EXPECT_EQ(FakeDrafter(host_, chain_factory(), config(4, 2, 8).set("p_min", 0.5)).status(),
            SPECD_E_CONFIG)
      << "of chains";
}

}  // namespace
}  // namespace specd
