#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;
using Json = nlohmann::json;

constexpr int32_t kLast = SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP;

const specd_factory& window_factory() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES "/drafter_lookahead/drafter_lookahead.so");
  return loaded.factory("window");
}
FakeConfig sizes(int window, int ngram, int guesses) {
  return FakeConfig().set("window", window).set("ngram", ngram).set("guesses", guesses);
}
const Json& goldens() {
  static const Json loaded =
      Json::parse(std::ifstream(SPECD_TEST_REFERENCE "/lookahead_goldens.json"));
  return loaded;
}
FakeConfig config_of(const Json& context) {
  return sizes(context["window"], context["ngram"], context["guesses"])
      .set("pool_from_prompt", context["pool_from_prompt"].get<bool>());
}
// Vocabulary and context of the recorded model.
void like_pico_target(FakeHost& host) {
  host.target().vocab_size = 4096;
  host.target().max_positions = 2048;
}

bool probe(const FakeDraft& draft, size_t node) {
  return (draft.flags[node] & SPECD_NODE_PROBE) != 0;
}
TokenList probes(const FakeDraft& draft) {
  TokenList tokens;
  for (size_t i = 0; i < draft.token.size(); ++i) {
    if (probe(draft, i)) tokens.push_back(draft.token[i]);
  }
  return tokens;
}
TokenList path_to(const FakeDraft& draft, int32_t node) {
  TokenList path;
  for (; node >= 0; node = draft.parent[static_cast<size_t>(node)]) {
    path.insert(path.begin(), draft.token[static_cast<size_t>(node)]);
  }
  return path;
}
// The guesses: paths from the root to ordinary leaves.
std::set<TokenList> guesses(const FakeDraft& draft) {
  std::set<TokenList> paths;
  for (size_t i = 0; i < draft.token.size(); ++i) {
    const bool inner = std::find(draft.parent.begin(), draft.parent.end(),
                                 static_cast<int32_t>(i)) != draft.parent.end();
    if (!probe(draft, i) && !inner) paths.insert(path_to(draft, static_cast<int32_t>(i)));
  }
  return paths;
}
// A target whose answers are a function of the path.
TokenList answers(const FakeDraft& draft, int32_t vocab) {
  TokenList top1;
  for (size_t i = 0; i < draft.token.size(); ++i) {
    uint32_t x = 7;
    for (const int32_t token : path_to(draft, static_cast<int32_t>(i))) {
      x = x * 1664525 + static_cast<uint32_t>(token) + 1013904223;
    }
    top1.push_back(static_cast<int32_t>((x >> 8) % static_cast<uint32_t>(vocab)));
  }
  return top1;
}

FakeDrafter::Top top(const TokenList& after_nodes) {
  return FakeDrafter::top_of_nodes(after_nodes);
}

TEST(Lookahead, proposals_are_those_of_the_reference_step_by_step) {
  for (const Json& context : goldens()["contexts"]) {
    FakeHost host;
    like_pico_target(host);
    FakeDrafter drafter(host, window_factory(), config_of(context));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int s = drafter.begin(context["prompt"].get<TokenList>());
    int step_number = 0;
    for (const Json& step : context["steps"]) {
      SCOPED_TRACE(context["prompt"].dump() + ", step " + std::to_string(step_number++));
      const FakeDraft draft = drafter.propose(s);
      ASSERT_EQ(draft.token, step["token"].get<TokenList>());
      ASSERT_EQ(draft.parent, step["parent"].get<TokenList>());
      ASSERT_EQ(draft.flags, step["flags"].get<TokenList>());
      drafter.commit(s, step["committed"].get<TokenList>(), {}, top(step["top1"].get<TokenList>()));
      ASSERT_EQ(drafter.sequence_status(s), SPECD_OK);
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
}

TEST(Lookahead, windows_and_guesses_are_those_of_its_authors_program) {
  size_t tested = 0;
  for (const Json& context : goldens()["recorded"]) {
    FakeHost host;
    like_pico_target(host);
    FakeDrafter drafter(host, window_factory(), config_of(context));
    const int s = drafter.begin(context["prompt"].get<TokenList>());
    int step_number = 0;
    for (const Json& step : context["steps"]) {
      SCOPED_TRACE(context["prompt"].dump() + ", step " + std::to_string(step_number++));
      const FakeDraft draft = drafter.propose(s);
      TokenList window;
      for (const TokenList level : step["levels"])
        window.insert(window.end(), level.begin(), level.end());
      ASSERT_EQ(probes(draft), window);
      ASSERT_EQ(guesses(draft), step["guesses"].get<std::set<TokenList>>());
      tested += step["guesses"].size();
      TokenList top1;
      size_t answered = 0;
      for (const int32_t flags : draft.flags) {
        top1.push_back(flags == kLast ? step["top1"][answered++].get<int32_t>() : -1);
      }
      ASSERT_EQ(answered, step["top1"].size());
      drafter.commit(s, step["committed"].get<TokenList>(), {}, top(top1));
    }
  }
  EXPECT_GT(tested, 300u);
}

TEST(Lookahead, two_sequences_do_not_disturb_each_other) {
  const Json& a = goldens()["contexts"][2];
  const Json& b = goldens()["contexts"][12];
  ASSERT_EQ(a["window"], b["window"]);
  ASSERT_EQ(a["pool_from_prompt"], b["pool_from_prompt"]);
  FakeHost host;
  like_pico_target(host);
  FakeDrafter drafter(host, window_factory(), config_of(a));
  const int s[2] = {drafter.begin(a["prompt"].get<TokenList>()),
                    drafter.begin(b["prompt"].get<TokenList>())};
  for (size_t i = 0; i < a["steps"].size(); ++i) {
    const Json* step[2] = {&a["steps"][i], &b["steps"][i]};
    const std::vector<FakeDraft> drafts = drafter.propose_batch({s[0], s[1]});
    std::vector<FakeDrafter::Commit> commits;
    for (size_t k = 0; k < 2; ++k) {
      ASSERT_EQ(drafts[k].token, (*step[k])["token"].get<TokenList>()) << i;
      commits.push_back({s[k],
                         (*step[k])["committed"].get<TokenList>(),
                         {},
                         top((*step[k])["top1"].get<TokenList>())});
    }
    drafter.commit_batch(commits);
  }
  EXPECT_TRUE(host.violations().empty());
}

TEST(Lookahead, no_ordinary_node_hangs_below_a_probe_and_probes_are_silent_before_the_last_level) {
  for (const auto& [w, n, g] : std::vector<std::tuple<int, int, int>>{
           {7, 5, 7}, {1, 2, 3}, {4, 2, 3}, {1, 7, 2}, {9, 3, 0}, {3, 10, 6}}) {
    FakeHost host;
    FakeDrafter drafter(host, window_factory(), sizes(w, n, g).set("pool_from_prompt", true));
    const int s = drafter.begin({1, 2, 3, 1, 2, 4, 1, 2, 3, 3});
    for (int step = 0; step < 60; ++step) {
      const FakeDraft draft = drafter.propose(s);
      ASSERT_LE(draft.token.size(), drafter.caps().max_nodes);
      int asked = 0;
      for (size_t i = 0; i < draft.token.size(); ++i) {
        const int32_t parent = draft.parent[i];
        if (parent >= 0) {
          EXPECT_EQ(probe(draft, static_cast<size_t>(parent)), probe(draft, i));
        }
        ASSERT_LE(path_to(draft, static_cast<int32_t>(i)).size(), drafter.caps().max_depth);
        asked += draft.flags[i] == kLast;
      }
      const int columns = w + std::max(0, n - 2 - step);
      EXPECT_EQ(asked, step == 0 || n == 2 ? columns - 1 : columns) << w << " " << n << " " << step;
      drafter.commit(s, {step % 5}, {}, top(answers(draft, 6)));
    }
    EXPECT_TRUE(host.violations().empty());
  }
}

TEST(Lookahead, same_branch_of_two_guesses_is_tested_once) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(8, 4, 4).set("pool_from_prompt", true));
  const int s = drafter.begin({1, 2, 3, 4, 1, 2, 3, 5, 1, 7, 8, 9, 1, 2, 3, 4, 1});
  const FakeDraft draft = drafter.propose(s, 8);  // no room for the window
  // Newest first: 2 3 4, then 7 8 9, then 5 below the 2 3 that is there.
  EXPECT_EQ(draft.token, (TokenList{2, 3, 4, 7, 8, 9, 5}));
  EXPECT_EQ(draft.parent, (TokenList{-1, 0, 1, -1, 3, 4, 1}));
  EXPECT_EQ(draft.flags, TokenList(7, 0));
}

TEST(Lookahead, budget_below_the_window_gives_guesses_alone_and_the_window_waits) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(6, 3, 3).set("pool_from_prompt", true));
  const int s = drafter.begin({1, 2, 3, 1, 2, 4, 1});
  const FakeDraft first = drafter.propose(s);
  EXPECT_EQ(probes(first).size(), 6u);
  EXPECT_EQ(guesses(first).size(), 0u) << "none while the window fills";
  const TokenList top1 = answers(first, 1000);
  // Too little for the window while it fills: only guesses, cut to the budget.
  const FakeDraft small = drafter.propose(s, 2);
  EXPECT_EQ(small.token, (TokenList{2, 4}));
  drafter.commit(s, {2}, {}, top(TokenList(2, 5)));
  EXPECT_EQ(probes(drafter.propose(s)), probes(first)) << "it has moved without answers";
  drafter.commit(s, {1}, {}, top(top1));
  // Full now: 11 nodes. Guesses 2 1, 2 4 and 2 3 take four, so 14 nodes do not hold all.
  const FakeDraft full = drafter.propose(s), less = drafter.propose(s, 14);
  EXPECT_EQ(full.token.size(), 15u);
  EXPECT_EQ(less.token, (TokenList{2, 1, 4, 3}));
  EXPECT_EQ(drafter.propose(s, 3).token, (TokenList{2, 1, 4}));
  EXPECT_EQ(drafter.propose(s, 0).count, 0);
  EXPECT_EQ(drafter.propose(s).token, full.token);
  EXPECT_TRUE(host.violations().empty());
}

TEST(Lookahead, window_stays_when_any_answer_is_missing) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(4, 4, 2));
  const int s = drafter.begin({1, 2, 3, 4, 5});
  for (int step = 0; step < 6; ++step) {
    const FakeDraft before = drafter.propose(s);
    const TokenList all = answers(before, 1000);
    for (size_t i = 0; i < all.size(); ++i) {
      if (before.flags[i] != kLast) continue;
      TokenList holed = all;
      holed[i] = -1;
      drafter.commit(s, {9}, {}, top(holed));
      EXPECT_EQ(probes(drafter.propose(s)), probes(before));
    }
    drafter.commit(s, {9});  // none at all
    EXPECT_EQ(probes(drafter.propose(s)), probes(before));
    drafter.commit(s, {9}, {}, top(answers(drafter.propose(s), 1000)));
    drafter.commit(s, {9}, {}, top(all));  // after a step without a proposal: no answers requested
    EXPECT_NE(probes(drafter.propose(s)), probes(before));
  }
}

TEST(Lookahead, window_moves_by_one_however_many_tokens_are_accepted) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(5, 3, 2));
  const int one = drafter.begin({1, 2, 3}), five = drafter.begin({1, 2, 3});
  for (int step = 0; step < 4; ++step) {
    const FakeDraft a = drafter.propose(one), b = drafter.propose(five);
    EXPECT_EQ(probes(a), probes(b));
    TokenList top1;  // by tree position, because the two have different guesses
    for (int32_t i = 0; i < 40; ++i) top1.push_back(100 + i);
    drafter.commit(one, {50}, {}, top(top1));
    drafter.commit(five, {60, 61, 62, 63, 64}, {}, top(top1));
  }
}

TEST(Lookahead, bigrams_of_column_0_end_with_the_committed_token) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(1, 2, 4));  // no window node at all
  const int s = drafter.begin({1});
  for (const int32_t token : {2, 1, 3, 1, 2, 1}) {
    drafter.propose(s);
    drafter.commit(s, {token});
  }
  EXPECT_EQ(drafter.propose(s).token, (TokenList{2, 3})) << "what followed 1, the newest first";
}

TEST(Lookahead, short_and_monotonous_texts_work) {
  for (const TokenList& text : {TokenList{5}, TokenList{5, 6}, TokenList(30, 5)}) {
    for (const bool from_prompt : {false, true}) {
      FakeHost host;
      FakeDrafter drafter(host, window_factory(),
                          sizes(4, 3, 3).set("pool_from_prompt", from_prompt));
      const int s = drafter.begin(text);
      for (int step = 0; step < 8; ++step) {
        const FakeDraft draft = drafter.propose(s);
        EXPECT_GE(probes(draft).size(), 4u);
        // Every answer is 5: from the third pass on, 5 5 5 is the only n-gram there is.
        drafter.commit(s, {5}, {}, top(TokenList(draft.token.size(), 5)));
        EXPECT_EQ(drafter.sequence_status(s), SPECD_OK);
      }
      std::set<TokenList> found = guesses(drafter.propose(s));
      if (text == TokenList{5, 6}) found.erase({6, 5});  // its window began with a 6
      EXPECT_EQ(found, (std::set<TokenList>{{5, 5}}));
      EXPECT_TRUE(host.violations().empty());
    }
  }
}

TEST(Lookahead, what_is_attached_in_mid_stream_drafts_as_what_was_there_from_the_start) {
  std::mt19937 random(3);
  for (const bool from_prompt : {false, true}) {
    FakeHost host;
    FakeDrafter drafter(host, window_factory(),
                        sizes(5, 4, 3).set("pool_from_prompt", from_prompt));
    TokenList text;
    for (int i = 0; i < 80; ++i) text.push_back(static_cast<int32_t>(random() % 4));
    const int fresh = drafter.begin(TokenList(text.begin(), text.begin() + 20));
    drafter.commit(fresh, TokenList(text.begin() + 20, text.end()));
    const int tokens = drafter.begin(text, SPECD_ATTACH_TOKENS);
    const int cold = drafter.begin(text, SPECD_ATTACH_COLD);
    for (int step = 0; step < 20; ++step) {
      const FakeDraft draft = drafter.propose(fresh);
      EXPECT_EQ(drafter.propose(tokens).token, draft.token);
      EXPECT_EQ(drafter.propose(cold).token, draft.token);
      for (const int s : {fresh, tokens, cold}) {
        drafter.commit(s, {step % 3, step % 4}, {}, top(answers(draft, 5)));
      }
    }
  }
}

TEST(Lookahead, another_instance_drafts_the_same) {
  FakeHost host;
  FakeDrafter a(host, window_factory(), FakeConfig());
  FakeHost other;
  FakeDrafter b(other, window_factory(), FakeConfig());
  const int s = a.begin({1, 2, 3, 4}), t = b.begin({1, 2, 3, 4});
  for (int step = 0; step < 200; ++step) {
    const FakeDraft x = a.propose(s), y = b.propose(t);
    ASSERT_EQ(x.token, y.token);
    ASSERT_EQ(x.parent, y.parent);
    a.commit(s, {step % 7}, {}, top(answers(x, 9)));
    b.commit(t, {step % 7}, {}, top(answers(y, 9)));
  }
}

// n-grams of the text only, because the budget never holds the window.
TEST(Lookahead, pool_forgets_the_oldest_of_a_key_and_the_oldest_of_all) {
  std::mt19937 random(11);
  size_t seen = 0;
  for (int round = 0; round < 30; ++round) {
    const int n = 2 + round % 3, g = 1 + round % 4, most = 1 + static_cast<int>(random() % 60);
    FakeHost host;
    FakeDrafter drafter(host, window_factory(),
                        sizes(20, n, g).set("pool_from_prompt", true).set("max_pool_ngrams", most));
    std::deque<TokenList> pool;  // by age
    const auto insert = [&](const TokenList& ngram) {
      std::erase(pool, ngram);
      const auto same_key = [&](const TokenList& other) { return other[0] == ngram[0]; };
      if (std::count_if(pool.begin(), pool.end(), same_key) == g) {
        pool.erase(std::find_if(pool.begin(), pool.end(), same_key));
      }
      if (static_cast<int>(pool.size()) == most) pool.pop_front();
      pool.push_back(ngram);
    };
    TokenList text = {0};
    const int s = drafter.begin(text);
    for (int step = 0; step < 300; ++step) {
      const auto token = static_cast<int32_t>(random() % 7);
      text.push_back(token);
      drafter.commit(s, {token});
      if (static_cast<int>(text.size()) >= n) insert(TokenList(text.end() - n, text.end()));
      std::set<TokenList> expected;
      for (const TokenList& ngram : pool) {
        if (ngram[0] == token) expected.insert(TokenList(ngram.begin() + 1, ngram.end()));
      }
      seen += expected.size();
      ASSERT_EQ(guesses(drafter.propose(s, std::min(g * (n - 1), 18))), expected)
          << round << " " << step;
    }
  }
  EXPECT_GT(seen, 5000u);
}

TEST(Lookahead, memory_stays_below_what_the_caps_say) {
  for (const auto& [w, n, g, most] : std::vector<std::tuple<int, int, int, int>>{
           {7, 5, 7, 8192}, {15, 5, 15, 100}, {3, 2, 900, 5000}, {30, 20, 20, 1}}) {
    FakeHost host;
    host.target().max_positions = 1300;
    FakeDrafter drafter(host, window_factory(), sizes(w, n, g).set("max_pool_ngrams", most));
    ASSERT_EQ(drafter.status(), SPECD_OK) << host.reports()[0].text;
    host.set_memory_quota(drafter.caps().bytes_fixed + drafter.caps().bytes_per_seq);
    const int s = drafter.begin({1});
    for (int32_t step = 1; step < 1299; ++step) {
      const FakeDraft draft = drafter.propose(s);
      ASSERT_EQ(draft.status, SPECD_OK) << step;
      drafter.commit(s, {step % 997}, {}, top(answers(draft, 1000)));
      ASSERT_EQ(drafter.sequence_status(s), SPECD_OK) << step;
    }
    EXPECT_TRUE(host.violations().empty());
  }
}

TEST(Lookahead, quota_fails_the_sequence_that_meets_it_with_words_and_no_other) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), sizes(7, 5, 7));
  const int good = drafter.begin({1, 2, 3});
  for (int step = 0; step < 10; ++step) {
    drafter.commit(good, {step}, {}, top(answers(drafter.propose(good), 1000)));
  }
  host.set_memory_quota(host.memory_used() + 5000);
  const int bad = drafter.begin({1, 2, 3});
  ASSERT_EQ(drafter.sequence_status(bad), SPECD_OK);
  specd_status status = SPECD_OK;
  for (int step = 0; step < 20 && status == SPECD_OK; ++step) {
    const FakeDraft draft = drafter.propose(bad);
    status = draft.status;
    if (status != SPECD_OK) break;
    drafter.commit(bad, {step}, {}, top(answers(draft, 1000)));
    status = drafter.sequence_status(bad);
  }
  EXPECT_EQ(status, SPECD_E_EXHAUSTED);
  ASSERT_FALSE(host.reports().empty());
  EXPECT_NE(host.reports()[0].text.find("over the memory quota"), std::string::npos);
  const FakeDraft draft = drafter.propose(good);
  EXPECT_EQ(draft.status, SPECD_OK);
  EXPECT_GT(draft.count, 0);
  EXPECT_TRUE(host.violations().empty());
}

TEST(Lookahead, every_failed_allocation_fails_one_sequence_and_leaks_nothing) {
  for (uint64_t nth = 1; nth < 40; ++nth) {
    FakeHost host;
    {
      FakeDrafter drafter(host, window_factory(), sizes(5, 3, 4).set("pool_from_prompt", true));
      host.fail_allocation(nth);
      for (int i = 0; i < 3; ++i) {
        const int s = drafter.begin({1, 2, 3, 4, 5, 6});
        for (int32_t step = 0; step < 100; ++step) {
          if (drafter.sequence_status(s) != SPECD_OK) {
            EXPECT_EQ(drafter.sequence_status(s), SPECD_E_EXHAUSTED);
            break;
          }
          const FakeDraft draft = drafter.propose(s);
          EXPECT_TRUE(draft.status == SPECD_OK || draft.status == SPECD_E_EXHAUSTED);
          drafter.commit(s, {step, step * 7 % 100}, {}, top(answers(draft, 1000)));
        }
      }
    }
    ASSERT_TRUE(host.violations().empty()) << nth << ": " << host.violations()[0];
  }
}

TEST(Lookahead, nothing_stands_past_the_last_position_of_the_model) {
  FakeHost host;
  host.target().max_positions = 60;
  FakeDrafter drafter(host, window_factory(), sizes(6, 4, 4).set("pool_from_prompt", true));
  TokenList text(40, 3);
  const int s = drafter.begin(text);
  size_t without_window = 0;
  for (int32_t root = 39; root < 60; ++root) {
    const FakeDraft draft = drafter.propose(s);
    size_t deepest = 0;
    for (int32_t i = 0; i < draft.count; ++i) {
      deepest = std::max(deepest, path_to(draft, i).size());
    }
    EXPECT_LE(root + static_cast<int32_t>(deepest), 59);
    const bool fits = root + 7 <= 59;
    EXPECT_EQ(!probes(draft).empty(), fits) << root;
    if (!fits) {
      EXPECT_EQ(deepest, static_cast<size_t>(std::min(3, 59 - root))) << "guesses cut to what fits";
      ++without_window;
    }
    if (root < 59) drafter.commit(s, {3}, {}, top(TokenList(draft.token.size(), 3)));
  }
  EXPECT_EQ(without_window, 7u);
}

std::string refusal(const FakeConfig& config, uint32_t max_nodes = 0) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), config, {.max_nodes = max_nodes});
  EXPECT_EQ(drafter.status(), SPECD_E_CONFIG);
  EXPECT_EQ(host.reports().size(), 1u);
  return host.reports().empty() ? std::string() : host.reports()[0].text;
}

TEST(Lookahead, refusals_name_the_key_the_limit_and_what_was_found) {
  const auto says = [](const std::string& text, const std::vector<const char*>& words) {
    for (const char* word : words) {
      EXPECT_NE(text.find(word), std::string::npos) << word << " is not in: " << text;
    }
  };
  says(refusal(sizes(0, 5, 7)), {"window", "from 1 to 65", "found 0"});
  says(refusal(sizes(7, 1, 7)), {"ngram", "from 2 to 65", "found 1"});
  says(refusal(sizes(7, 5, -1)), {"guesses", "from 0 to 1024", "found -1"});
  says(refusal(FakeConfig().set("max_pool_ngrams", 0)), {"max_pool_ngrams", "found 0"});
  says(refusal(FakeConfig().set("pool_from_prompt", 3)), {"pool_from_prompt", "true or false"});
  says(refusal(sizes(60, 8, 60)),
       {"window 60 and ngram 8", "depth 65", "limit is 64", "lower window or ngram"});
  says(refusal(sizes(33, 34, 0)), {"1088 nodes", "1024", "lower window or ngram"});
  says(refusal(sizes(7, 5, 250)),
       {"guesses 250", "1027 nodes", "1024", "lower guesses to at most 249"});
  says(refusal(FakeConfig().set("window", 4).set("max_ngram_size", 3)),
       {"window and max_ngram_size", "different families"});
  says(refusal(FakeConfig().set("pool_from_prompt", true).set("max_window_size", 3)),
       {"different families", "always feeds the pool"});
  says(refusal(FakeConfig().set("max_ngram_size", 1)),
       {"max_ngram_size 1 is plain decoding", "max_window_size 1", "found max_window_size 4"});
  says(refusal(sizes(7, 5, 7), 8), {"27 draft nodes", "allows 8", "draft_nodes_max", "to 55"});
}

TEST(Lookahead, largest_trees_of_both_families_are_those_of_their_engines) {
  const auto nodes = [](const FakeConfig& config) {
    FakeHost host;
    FakeDrafter drafter(host, window_factory(), config);
    EXPECT_EQ(drafter.status(), SPECD_OK);
    return drafter.caps().max_nodes;
  };
  const auto engine = [](int w, int n, int g) {
    return FakeConfig()
        .set("max_window_size", w)
        .set("max_ngram_size", n)
        .set("max_verification_set_size", g);
  };
  EXPECT_EQ(nodes(FakeConfig()), 55u);                            // 7, 5, 7
  EXPECT_EQ(nodes(engine(7, 7, 7)), 83u);                         // as documented there
  EXPECT_EQ(nodes(FakeConfig().set("max_window_size", 4)), 15u);  // 4, 3, 4
  EXPECT_EQ(nodes(sizes(15, 5, 15)), 119u);
  EXPECT_EQ(nodes(sizes(7, 5, 249)), 1023u);
  EXPECT_EQ(nodes(sizes(1, 10, 0)), 24u);  // five levels of five columns while it fills
  EXPECT_EQ(nodes(engine(1, 1, 0)), 1u);   // never used
}

TEST(Lookahead, n_grams_of_one_token_are_plain_decoding) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(),
                      FakeConfig()
                          .set("max_window_size", 1)
                          .set("max_ngram_size", 1)
                          .set("max_verification_set_size", 0));
  ASSERT_EQ(drafter.status(), SPECD_OK);
  const int s = drafter.begin({1, 2, 3});
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(drafter.propose(s).count, 0);
    drafter.commit(s, {step});
    EXPECT_EQ(drafter.sequence_status(s), SPECD_OK);
  }
}

TEST(Lookahead, keys_of_the_second_family_feed_the_pool_from_the_text) {
  FakeHost host;
  FakeDrafter theirs(host, window_factory(), FakeConfig().set("max_window_size", 4));
  FakeDrafter ours(host, window_factory(), sizes(4, 3, 4).set("pool_from_prompt", true));
  const TokenList text = {1, 2, 3, 1, 2, 4, 1};
  const int s = theirs.begin(text), t = ours.begin(text);
  for (int step = 0; step < 10; ++step) {
    const FakeDraft draft = theirs.propose(s);
    EXPECT_EQ(draft.token, ours.propose(t).token);
    theirs.commit(s, {1}, {}, top(answers(draft, 5)));
    ours.commit(t, {1}, {}, top(answers(draft, 5)));
  }
}

TEST(Lookahead, caps_say_a_tree_of_point_masses_with_probes_that_attaches_anywhere) {
  FakeHost host;
  FakeDrafter drafter(host, window_factory(), FakeConfig());
  EXPECT_EQ(drafter.caps().needs,
            static_cast<uint32_t>(SPECD_NEED_HOST_TOKENS | SPECD_NEED_PROBES));
  EXPECT_EQ(drafter.caps().tree_mode, static_cast<uint32_t>(SPECD_TREE_VARIABLE));
  EXPECT_EQ(drafter.caps().draft_rule, static_cast<uint32_t>(SPECD_RULE_POINT_MASS));
  EXPECT_EQ(drafter.caps().attach_modes,
            static_cast<uint32_t>(SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD));
  EXPECT_EQ(drafter.caps().max_depth, 9u);
}

}  // namespace
}  // namespace specd
