// A drafter composed of drafters: which one proposes, and what each part receives. Compared with
// the parts alone, and with parts that record their calls.
#include <gtest/gtest.h>
#include <specd/sdk/drafter.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

const specd_factory& cascade() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/drafter_cascade/drafter_cascade.so");
  return loaded.factory("cascade");
}
const specd_factory& lookup() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES
                                      "/drafter_prompt_lookup/drafter_prompt_lookup.so");
  return loaded.factory("ngram");
}
const specd_factory& lookahead() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/drafter_lookahead/drafter_lookahead.so");
  return loaded.factory("window");
}
const specd_factory& draft_target() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES
                                      "/drafter_draft_target/drafter_draft_target.so");
  return loaded.factory("chain");
}

// The calls that a part received.
struct Log {
  struct Update {
    std::vector<int32_t> positions, tokens, nodes, top1;
  };
  std::vector<TokenList> begun;
  std::vector<Update> updates;
  std::vector<uint32_t> ended;
  TokenList ended_texts;  // their first tokens
  int budget = -1;        // in the last propose(), for the first sequence
  uint32_t fails_at_begin = UINT32_MAX;
  bool fails_in_update = false, fails_in_propose = false;
  int nodes = 0;  // to propose: a chain of token 100 + i, the last a probe
  bool variable = true;
  int alive = 0;
};
std::map<std::string, Log>& logs() {
  static std::map<std::string, Log> all;
  return all;
}

// Proposes what its log says.
class Spy final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = nullptr;
  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.max_nodes = caps.max_depth = 8;
    caps.draft_rule = static_cast<uint32_t>(context.config.i64("rule", 0, 0, 2));
    caps.attach_modes = static_cast<uint32_t>(context.config.i64("attach", 7, 1, 7));
    caps.max_batch = static_cast<uint32_t>(context.config.i64("batch", 0, 0, 64));
    caps.bytes_per_seq = 100;
    if (context.config.boolean("probes", false)) {
      caps.needs |= SPECD_NEED_PROBES;
      caps.top_k = 1;
    }
    if (context.config.boolean("fixed", false)) caps.tree_mode = SPECD_TREE_STATIC;
    if (context.config.boolean("chain", false)) caps.tree_mode = SPECD_TREE_CHAIN;
  }
  explicit Spy(const sdk::Context& context)
      : Drafter(context), log_(logs()[context.config.required_string("log")]) {
    log_.variable =
        !context.config.boolean("fixed", false) && !context.config.boolean("chain", false);
  }

  struct Sequence {
    explicit Sequence(Spy& spy) : log(spy.log_) { ++log.alive; }
    ~Sequence() { --log.alive; }
    Log& log;
    int32_t first = -1;
  };
  void begin(Sequence& sequence, const sdk::Begin& in) {
    sequence.first = in.tokens[0];
    if (log_.begun.size() == log_.fails_at_begin) {
      throw sdk::Error(SPECD_E_EXHAUSTED, "the spy was told to fail");
    }
    log_.begun.emplace_back(in.tokens.begin(), in.tokens.end());
  }
  void update(Sequence&, const sdk::Rows& rows) {
    if (log_.fails_in_update) throw sdk::Error(SPECD_E_EXHAUSTED, "the spy was told to fail");
    Log::Update update;
    for (int32_t r = 0; r < rows.size(); ++r) {
      update.positions.push_back(rows[r].position);
      update.tokens.push_back(rows[r].next_token);
      update.nodes.push_back(rows[r].node);
    }
    for (int32_t node = 0; node < 8; ++node) {
      const int32_t* top = rows.top(node);
      update.top1.push_back(top == nullptr ? -1 : *top);
    }
    log_.updates.push_back(update);
  }
  void propose(Sequence&, sdk::Proposal& out) {
    log_.budget = out.budget();
    if (log_.fails_in_propose) throw sdk::Error(SPECD_E_INTERNAL, "the spy was told to fail");
    if (!log_.variable) {
      for (int i = 0; i < log_.nodes && out.push(100 + i); ++i) {
      }
      return;
    }
    for (int i = 0; i < log_.nodes; ++i) {
      out.push(100 + i, i - 1, i + 1 == log_.nodes ? SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP : 0);
    }
  }
  void end(Sequence& sequence, uint32_t reason) noexcept {
    log_.ended.push_back(reason);
    log_.ended_texts.push_back(sequence.first);
  }
  std::vector<int32_t> static_tree() { return {-1, 0, -1, 2, 2}; }

 private:
  Log& log_;
};
constexpr specd_factory kSpy = sdk::drafter<Spy>("spy", "writes down what it is told");

class Cascade : public ::testing::Test {
 protected:
  Cascade() { logs().clear(); }
  void TearDown() override {
    for (const std::string& violation : host_.violations()) ADD_FAILURE() << violation;
    for (const auto& [name, log] : logs()) EXPECT_EQ(log.alive, 0) << name;
  }
  void spies(FakeConfig a = FakeConfig(), FakeConfig b = FakeConfig()) {
    host_.set_part("drafters.0", kSpy, a.set("log", "a"));
    host_.set_part("drafters.1", kSpy, b.set("log", "b"));
  }
  FakeHost host_;
};

TEST_F(Cascade, the_first_drafter_that_has_something_proposes) {
  const FakeConfig lookup_config = FakeConfig()
                                       .set("num_speculative_tokens", 5)
                                       .set("prompt_lookup_min", 2)
                                       .set("prompt_lookup_max", 4);
  const FakeConfig tree_config = FakeConfig()
                                     .set("model", "draft")
                                     .set("draft_tokens", 3)
                                     .set("tree.branches", 2)
                                     .set("tree.nodes", 6);
  FakeHost alone;
  host_.set_part("drafters.0", lookup(), lookup_config);
  host_.set_part("drafters.1", draft_target(), tree_config);
  FakeDrafter both(host_, cascade(), FakeConfig().set("min_nodes.0", 3));
  FakeDrafter first(alone, lookup(), lookup_config), second(alone, draft_target(), tree_config);
  ASSERT_EQ(both.status(), SPECD_OK);
  EXPECT_EQ(both.caps().tree_mode, uint32_t{SPECD_TREE_VARIABLE});
  EXPECT_EQ(both.caps().max_nodes, 6u);
  EXPECT_EQ(both.caps().bytes_per_seq, first.caps().bytes_per_seq + second.caps().bytes_per_seq);
  std::mt19937 random(2);
  const auto text = [&](size_t n) {
    TokenList all;
    for (size_t i = 0; i < n; ++i) all.push_back(static_cast<int32_t>(random() % 3));
    return all;
  };
  std::vector<int> sequences;
  for (int i = 0; i < 3; ++i) {
    const TokenList prompt = text(4 + random() % 20);
    sequences.push_back(both.begin(prompt));
    ASSERT_EQ(first.begin(prompt), sequences.back());
    ASSERT_EQ(second.begin(prompt), sequences.back());
  }
  std::map<int, int> chosen;
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> budgets;
    for (int i = 0; i < 3; ++i) budgets.push_back(static_cast<int32_t>(random() % 7));
    const std::vector<FakeDraft> got = both.propose_batch(sequences, budgets);
    std::vector<FakeDrafter::Commit> commits;
    for (size_t s = 0; s < 3; ++s) {
      const FakeDraft one = first.propose(sequences[s], std::min(budgets[s], 5));
      const FakeDraft two = second.propose(sequences[s], budgets[s]);
      const bool is_first = one.count >= 3;
      const FakeDraft& expected = is_first ? one : two;
      ++chosen[expected.count == 0 ? 2 : is_first ? 0 : 1];
      ASSERT_EQ(got[s].token, expected.token) << "round " << round;
      ASSERT_EQ(got[s].parent, expected.parent) << "round " << round;
      TokenList commit = text(1);
      std::vector<int32_t> nodes{SPECD_NODE_ROOT};
      if (got[s].count > 0 && random() % 2 == 0) {
        commit.insert(commit.begin(), got[s].token[0]);
        nodes.insert(nodes.begin(), 0);
      }
      commits.push_back({sequences[s], commit, nodes});
    }
    for (FakeDrafter* each : {&both, &first, &second}) {
      ASSERT_EQ(each->commit_batch(commits), SPECD_OK);
    }
  }
  EXPECT_GT(chosen[0], 50);
  EXPECT_GT(chosen[1], 50);
}

TEST_F(Cascade, attached_in_mid_stream_it_drafts_as_if_it_had_been_there) {
  host_.set_part("drafters.0", lookup(),
                 FakeConfig().set("num_speculative_tokens", 5).set("prompt_lookup_min", 3));
  host_.set_part("drafters.1", draft_target(),
                 FakeConfig().set("model", "draft").set("draft_tokens", 3));
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  ASSERT_EQ(drafter.status(), SPECD_OK);
  std::mt19937 random(6);
  const int fresh = drafter.begin({1, 2, 3});
  for (int step = 0; step < 60; ++step) {
    const FakeDraft expected = drafter.propose(fresh);
    ASSERT_GT(expected.count, 0);
    for (const uint32_t mode : {SPECD_ATTACH_TOKENS, SPECD_ATTACH_COLD}) {
      const int late = drafter.begin(drafter.tokens(fresh), mode);
      ASSERT_EQ(drafter.propose(late).token, expected.token) << step;
      drafter.end(late);
    }
    drafter.commit(fresh, {static_cast<int32_t>(random() % 3), static_cast<int32_t>(random() % 3)});
  }
}

TEST_F(Cascade, a_part_hears_of_its_own_nodes_alone) {
  spies();
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  ASSERT_EQ(drafter.status(), SPECD_OK);
  const int s = drafter.begin({1, 2, 3});
  logs()["b"].nodes = 2;
  EXPECT_EQ(drafter.propose(s).token, (TokenList{100, 101}));
  drafter.commit(s, {100, 9}, {SPECD_NODE_ROOT, 0});
  logs()["a"].nodes = 1;
  EXPECT_EQ(drafter.propose(s).token, (TokenList{100}));
  drafter.commit(s, {100, 9}, {SPECD_NODE_ROOT, 0});
  // A step without a proposal.
  drafter.commit(s, {7}, {SPECD_NODE_ROOT});
  const TokenList positions[] = {{2, 3}, {4, 5}, {6}};
  const TokenList nodes_of_a[] = {{-1, -2}, {-1, 0}, {-1}};
  const TokenList nodes_of_b[] = {{-1, 0}, {-1, -2}, {-1}};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(logs()["a"].updates[i].positions, positions[i]);
    EXPECT_EQ(logs()["b"].updates[i].positions, positions[i]);
    EXPECT_EQ(logs()["a"].updates[i].nodes, nodes_of_a[i]) << i;
    EXPECT_EQ(logs()["b"].updates[i].nodes, nodes_of_b[i]) << i;
  }
}

// Lookahead moves its window by the target's answers to its probes. In steps for which another
// drafter proposes the window does not move, as if it had not been called.
TEST_F(Cascade, what_the_target_says_reaches_the_part_that_asked) {
  const FakeConfig window =
      FakeConfig().set("window", 3).set("ngram", 3).set("guesses", 2).set("max_pool_ngrams", 64);
  host_.set_part("drafters.0", kSpy, FakeConfig().set("log", "a").set("probes", true));
  host_.set_part("drafters.1", lookahead(), window);
  FakeHost other;
  FakeDrafter both(host_, cascade(), FakeConfig()), alone(other, lookahead(), window);
  ASSERT_EQ(both.status(), SPECD_OK);
  std::mt19937 random(5);
  const TokenList prompt = {1, 2, 3, 1, 2};
  const int s = both.begin(prompt);
  ASSERT_EQ(alone.begin(prompt), s);
  size_t guesses = 0;
  for (int round = 0; round < 120; ++round) {
    const bool spy_proposes = round % 3 == 2;
    logs()["a"].nodes = spy_proposes ? 2 : 0;
    const FakeDraft got = both.propose(s);
    TokenList top1;
    for (const int32_t flags : got.flags) {
      const bool asked = (flags & SPECD_NODE_WANT_TOP) != 0;
      top1.push_back(asked ? static_cast<int32_t>(random() % 4) : -1);
    }
    if (!spy_proposes) {
      const FakeDraft expected = alone.propose(s);
      ASSERT_EQ(got.token, expected.token) << "round " << round;
      ASSERT_EQ(got.parent, expected.parent) << "round " << round;
      ASSERT_EQ(got.flags, expected.flags) << "round " << round;
      guesses += static_cast<size_t>(std::count(got.flags.begin(), got.flags.end(), 0));
    }
    const TokenList commit = {static_cast<int32_t>(random() % 4)};
    const FakeDrafter::Top top = FakeDrafter::top_of_nodes(top1);
    both.commit(s, commit, {SPECD_NODE_ROOT}, top);
    alone.commit(s, commit, {SPECD_NODE_ROOT}, spy_proposes ? FakeDrafter::Top() : top);
    if (spy_proposes) {
      EXPECT_EQ(logs()["a"].updates.back().top1[1], top1[1]);
    } else {
      EXPECT_EQ(logs()["a"].updates.back().top1, TokenList(8, -1)) << "it was not asked";
    }
  }
  EXPECT_GT(guesses, 50u);
}

TEST_F(Cascade, who_comes_later_is_not_asked_for_what_is_there) {
  spies();
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  const int s = drafter.begin({1});
  logs()["a"].nodes = 2;
  logs()["b"].nodes = 3;
  EXPECT_EQ(drafter.propose(s, 5).count, 2);
  EXPECT_EQ(logs()["a"].budget, 5);
  EXPECT_EQ(logs()["b"].budget, -1);
  logs()["a"].nodes = 0;
  EXPECT_EQ(drafter.propose(s, 5).count, 3);
  EXPECT_EQ(logs()["b"].budget, 5);
}

TEST_F(Cascade, who_has_probes_alone_proposes_when_nobody_else_does) {
  host_.set_part("drafters.0", kSpy, FakeConfig().set("log", "a").set("probes", true));
  host_.set_part("drafters.1", kSpy, FakeConfig().set("log", "b"));
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  const int s = drafter.begin({1});
  logs()["a"].nodes = 1;  // the last of its nodes is a probe
  EXPECT_EQ(drafter.propose(s).flags, (TokenList{SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP}));
  logs()["b"].nodes = 3;
  EXPECT_EQ(drafter.propose(s).flags, TokenList(3, 0));
}

TEST_F(Cascade, a_fixed_tree_keeps_its_parents) {
  spies(FakeConfig().set("fixed", true));
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  ASSERT_EQ(drafter.status(), SPECD_OK);
  const int s = drafter.begin({1});
  logs()["a"].nodes = 5;
  EXPECT_EQ(drafter.propose(s).parent, (TokenList{-1, 0, -1, 2, 2}));
  EXPECT_EQ(drafter.propose(s, 3).parent, (TokenList{-1, 0, -1}));
  logs()["a"].nodes = 0;
  logs()["b"].nodes = 2;
  EXPECT_EQ(drafter.propose(s).parent, (TokenList{-1, 0}));
}

TEST_F(Cascade, a_chain_beside_a_tree_gets_no_more_nodes_than_the_text_can_use) {
  spies(FakeConfig().set("chain", true));
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  logs()["a"].nodes = 8;
  specd_sampling sampling = sdk::greedy_sampling();
  sampling.tokens_left = 4;
  const int s = drafter.begin({1}, SPECD_ATTACH_TOKENS, sampling);
  EXPECT_EQ(drafter.propose(s).count, 3);
  EXPECT_EQ(logs()["a"].budget, 3);
}

TEST_F(Cascade, a_route_that_is_too_narrow_for_min_nodes_is_refused) {
  spies();
  FakeDrafter narrow(host_, cascade(), FakeConfig().set("min_nodes.1", 5), {.max_nodes = 4});
  EXPECT_EQ(narrow.status(), SPECD_E_CONFIG);
  EXPECT_NE(host_.reports().back().text.find("min_nodes.1: expected at most 4, found 5"),
            std::string::npos);
}

TEST_F(Cascade, a_part_that_fails_to_propose_leaves_the_step_to_the_others) {
  spies();
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  const int s = drafter.begin({1});
  logs()["a"].fails_in_propose = true;
  logs()["b"].nodes = 2;
  const FakeDraft draft = drafter.propose(s);
  EXPECT_EQ(draft.call_status, SPECD_OK);
  EXPECT_EQ(draft.status, SPECD_OK);
  EXPECT_EQ(draft.token, (TokenList{100, 101}));
  drafter.propose(drafter.begin({3}));
  ASSERT_EQ(host_.logs().size(), 1u) << "told once";
  EXPECT_NE(host_.logs()[0].text.find("drafters.0: propose() failed with status"),
            std::string::npos);
  logs()["b"].nodes = 0;
  EXPECT_EQ(drafter.propose(drafter.begin({2})).status, SPECD_E_INTERNAL) << "nobody else had any";
}

TEST_F(Cascade, a_sequence_that_one_part_fails_in_begin_is_ended_in_the_others) {
  for (const char* failing : {"a", "b"}) {
    logs().clear();
    spies();
    FakeDrafter drafter(host_, cascade(), FakeConfig());
    drafter.begin({1});
    logs()[failing].fails_at_begin = 1;
    const int failed = drafter.begin({2});
    EXPECT_EQ(drafter.sequence_status(failed), SPECD_E_EXHAUSTED);
    const char* other = failing[0] == 'a' ? "b" : "a";
    EXPECT_EQ(logs()[other].ended, (std::vector<uint32_t>{SPECD_END_QUARANTINED}));
    EXPECT_EQ(logs()[failing].ended, std::vector<uint32_t>());
    EXPECT_EQ(logs()["a"].alive, 1);
    EXPECT_EQ(logs()["b"].alive, 1);
  }
}

TEST_F(Cascade, of_several_that_begin_the_one_that_fails_is_ended_and_no_other) {
  spies();
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  logs()["b"].fails_at_begin = 1;
  const std::vector<int> s = drafter.begin_batch({{1, 2}, {3}, {4, 5, 6}});
  EXPECT_EQ(drafter.sequence_status(s[0]), SPECD_OK);
  EXPECT_EQ(drafter.sequence_status(s[1]), SPECD_E_EXHAUSTED);
  EXPECT_EQ(drafter.sequence_status(s[2]), SPECD_E_EXHAUSTED) << "the spy fails from the second on";
  EXPECT_EQ(logs()["a"].begun, (std::vector<TokenList>{{1, 2}, {3}, {4, 5, 6}}));
  EXPECT_EQ(logs()["a"].ended, (std::vector<uint32_t>(2, SPECD_END_QUARANTINED)));
  EXPECT_EQ(logs()["a"].ended_texts, (TokenList{3, 4}));
  EXPECT_EQ(logs()["a"].alive, 1);
  logs()["a"].nodes = 2;
  EXPECT_EQ(drafter.propose(s[0]).count, 2);
}

TEST_F(Cascade, a_part_that_fails_in_update_fails_the_sequence) {
  spies();
  FakeDrafter drafter(host_, cascade(), FakeConfig());
  const int s = drafter.begin({1});
  logs()["b"].fails_in_update = true;
  EXPECT_EQ(drafter.commit(s, {2}), SPECD_OK);
  EXPECT_EQ(drafter.sequence_status(s), SPECD_E_EXHAUSTED);
  drafter.end(s, SPECD_END_QUARANTINED);
  EXPECT_EQ(logs()["a"].ended, (std::vector<uint32_t>{SPECD_END_QUARANTINED}));
  EXPECT_EQ(logs()["b"].ended, (std::vector<uint32_t>{SPECD_END_QUARANTINED}));
}

TEST_F(Cascade, can_do_what_all_of_its_parts_can) {
  spies(FakeConfig().set("attach", 3).set("batch", 5),
        FakeConfig().set("attach", 5).set("batch", 9));
  const FakeDrafter drafter(host_, cascade(), FakeConfig());
  EXPECT_EQ(drafter.caps().attach_modes, uint32_t{SPECD_ATTACH_FRESH});
  EXPECT_EQ(drafter.caps().max_batch, 5u);
  EXPECT_EQ(drafter.caps().bytes_per_seq, 200u);
  EXPECT_EQ(drafter.caps().needs, uint32_t{SPECD_NEED_HOST_TOKENS});
}

TEST_F(Cascade, what_cannot_work_is_refused_with_the_place) {
  const auto expect = [&](const FakeConfig& config, specd_status status, const std::string& words) {
    host_.clear_reports();
    EXPECT_EQ(FakeDrafter(host_, cascade(), config).status(), status) << words;
    ASSERT_FALSE(host_.reports().empty());
    EXPECT_NE(host_.reports().back().text.find(words), std::string::npos)
        << host_.reports().back().text;
  };
  host_.set_part("drafters.0", kSpy, FakeConfig().set("log", "a"));
  expect(FakeConfig(), SPECD_E_CONFIG, "drafters: expected 2 to 8, found 1");
  spies(FakeConfig(), FakeConfig().set("rule", 1));
  expect(FakeConfig(), SPECD_E_UNSUPPORTED,
         "drafters.1: its draft rule differs from that of drafters.0");
  spies();
  expect(FakeConfig().set("min_nodes.0", 9), SPECD_E_CONFIG, "min_nodes.0: expected at most 8");
  expect(FakeConfig().set("min_nodes.2", 1), SPECD_E_CONFIG,
         "min_nodes.2: there is no such drafter");
  host_.set_part("drafters.1", draft_target(), FakeConfig());
  expect(FakeConfig(), SPECD_E_CONFIG, "drafters.1: describe() refused");
  host_.withhold_service(SPECD_SERVICE_PARTS);
  expect(FakeConfig(), SPECD_E_UNSUPPORTED, "specd.host.parts/1");
}

}  // namespace
}  // namespace specd
