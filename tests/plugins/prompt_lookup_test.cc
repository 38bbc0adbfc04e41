#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <random>

#include "prompt_lookup_oracle.h"
#include "random_text.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

const sdk::FakeModule& module() {
  static const sdk::FakeModule loaded(SPECD_TEST_BUNDLES
                                      "/drafter_prompt_lookup/drafter_prompt_lookup.so");
  return loaded;
}
const specd_factory& ngram_factory() { return module().factory("ngram"); }

TEST(PromptLookup, earliest_occurrence_of_the_longest_match_as_the_oracle_says) {
  std::mt19937 random(7);
  int drafts = 0;
  for (int round = 0; round < 60; ++round) {
    FakeHost host;
    host.target().max_positions = 400;
    const int k = 1 + static_cast<int>(random() % 16);
    const int min = 1 + static_cast<int>(random() % 4);
    const int max = min + static_cast<int>(random() % 5);
    FakeDrafter drafter(host, ngram_factory(),
                        FakeConfig()
                            .set("num_speculative_tokens", k)
                            .set("prompt_lookup_min", min)
                            .set("prompt_lookup_max", max));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int alphabet = 2 + static_cast<int>(random() % 12);
    TokenList text = random_text(random, alphabet, 1 + random() % 100);
    constexpr uint32_t kModes[] = {SPECD_ATTACH_FRESH, SPECD_ATTACH_TOKENS, SPECD_ATTACH_COLD};
    const int s = drafter.begin(text, kModes[round % 3]);
    while (text.size() < 398) {
      const FakeDraft draft = drafter.propose(s);
      const TokenList expected = lookup_oracle(text, k, min, max, 400);
      ASSERT_EQ(draft.token, expected) << "round " << round << " at " << text.size();
      drafts += !expected.empty();
      TokenList piece = next_piece(random, text, alphabet);
      if (piece.size() > 400 - text.size()) piece.resize(400 - text.size());
      ASSERT_EQ(drafter.commit(s, piece), SPECD_OK);
      ASSERT_EQ(drafter.sequence_status(s), SPECD_OK);
      text.insert(text.end(), piece.begin(), piece.end());
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
  EXPECT_GT(drafts, 1000);
}

// Runs sequences one after the other and two at a time; the shared pool learns from all of them.
void compare_with_pool_oracle(bool shared, bool oldest, bool keep_all) {
  std::mt19937 random(11u + 4u * shared + 2u * oldest + keep_all);
  int drafts = 0;
  for (int round = 0; round < 20; ++round) {
    FakeHost host;
    const int p = 1 + static_cast<int>(random() % 8), m = 1 + static_cast<int>(random() % 4);
    FakeDrafter drafter(host, ngram_factory(),
                        FakeConfig()
                            .set("max_draft_len", p)
                            .set("max_matching_ngram_size", m)
                            .set("is_keep_all", keep_all)
                            .set("is_use_oldest", oldest)
                            .set("is_public_pool", shared));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int alphabet = 2 + static_cast<int>(random() % 6);
    PoolOracle common{p, m, keep_all, oldest, {}};
    for (int pair = 0; pair < 3; ++pair) {
      PoolOracle own[2] = {{p, m, keep_all, oldest, {}}, {p, m, keep_all, oldest, {}}};
      TokenList text[2];
      int start[2] = {0, 0}, handle[2] = {-1, -1};
      for (int step = 0; step < 60; ++step) {
        for (int i = 0; i < 2; ++i) {
          if (handle[i] < 0) {
            text[i] = random_text(random, alphabet, 1 + random() % 40);
            handle[i] = drafter.begin(text[i]);
          } else {
            const TokenList piece = next_piece(random, text[i], alphabet);
            drafter.commit(handle[i], piece);
            text[i].insert(text[i].end(), piece.begin(), piece.end());
          }
          const TokenList expected = (shared ? common : own[i]).step(text[i], start[i], 1 << 20);
          const FakeDraft draft = drafter.propose(handle[i]);
          ASSERT_EQ(draft.token, expected) << "round " << round << " step " << step;
          drafts += !expected.empty();
        }
      }
      drafter.end(handle[0]);
      drafter.end(handle[1]);
    }
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
  EXPECT_GT(drafts, 1000);
}

TEST(PromptLookup, private_pool_with_oldest_match_as_the_oracle_says) {
  compare_with_pool_oracle(false, true, true);
  compare_with_pool_oracle(false, true, false);
}
TEST(PromptLookup, private_pool_with_newest_match_as_the_oracle_says) {
  compare_with_pool_oracle(false, false, true);
  compare_with_pool_oracle(false, false, false);
}
TEST(PromptLookup, public_pool_with_oldest_match_as_the_oracle_says) {
  compare_with_pool_oracle(true, true, true);
  compare_with_pool_oracle(true, true, false);
}
TEST(PromptLookup, public_pool_with_newest_match_as_the_oracle_says) {
  compare_with_pool_oracle(true, false, true);
  compare_with_pool_oracle(true, false, false);
}

TEST(PromptLookup, never_drafts_past_the_tokens_a_request_may_still_emit) {
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(), FakeConfig().set("max_draft_len", 8));
  const TokenList text = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2};
  for (const uint64_t left : {0, 1, 2, 4, 100}) {
    const int s = drafter.begin(text, SPECD_ATTACH_FRESH, sdk::greedy_sampling(left));
    const std::size_t expected = left <= 1 ? 0 : std::min<std::size_t>(left - 1, 8);
    EXPECT_EQ(drafter.propose(s).token.size(), expected) << left;
  }
}

TEST(PromptLookup, budget_of_the_step_is_kept) {
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(),
                      FakeConfig().set("num_speculative_tokens", 8).set("prompt_lookup_max", 1));
  const int a = drafter.begin({1, 2, 3, 4, 5, 6, 7, 8, 9, 1});
  const int b = drafter.begin({5, 6, 5});
  const auto drafts = drafter.propose_batch({a, b, a, b}, {3, 8, 0, 1});
  EXPECT_EQ(drafts[0].token, (TokenList{2, 3, 4}));
  EXPECT_EQ(drafts[1].token, (TokenList{6, 5}));
  EXPECT_EQ(drafts[2].count, 0);
  EXPECT_EQ(drafts[3].token, (TokenList{6}));
  EXPECT_TRUE(host.violations().empty());
}

TEST(PromptLookup, missing_bound_takes_the_value_of_the_other) {
  FakeHost host;
  const TokenList text = {1, 2, 3, 4, 9, 9, 2, 3, 4};  // suffix of 3 occurs earlier, of 4 does not
  FakeDrafter four(host, ngram_factory(), FakeConfig().set("prompt_lookup_max", 4));
  EXPECT_TRUE(four.propose(four.begin(text)).token.empty());
  FakeDrafter three(host, ngram_factory(), FakeConfig().set("prompt_lookup_min", 3));
  EXPECT_EQ(three.propose(three.begin(text)).token, (TokenList{9, 9, 2, 3, 4}));
  FakeDrafter five(host, ngram_factory(), FakeConfig());
  EXPECT_TRUE(five.propose(five.begin(text)).token.empty());
  EXPECT_EQ(five.caps().max_nodes, 5u);
}

TEST(PromptLookup, mixed_families_are_refused_with_words) {
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(),
                      FakeConfig().set("num_speculative_tokens", 4).set("max_draft_len", 4));
  EXPECT_EQ(drafter.status(), SPECD_E_CONFIG);
  ASSERT_EQ(host.reports().size(), 1u);
  EXPECT_NE(host.reports()[0].text.find("different families"), std::string::npos);
}

TEST(PromptLookup, values_out_of_range_are_refused_naming_the_key) {
  const std::pair<const char*, int> bad[] = {
      {"num_speculative_tokens", 0}, {"num_speculative_tokens", 65},  {"prompt_lookup_max", -1},
      {"max_draft_len", 1 << 20},    {"max_matching_ngram_size", 17}, {"max_pool_tokens", 1}};
  for (const auto& [key, value] : bad) {
    FakeHost host;
    FakeDrafter drafter(host, ngram_factory(), FakeConfig().set(key, value));
    EXPECT_EQ(drafter.status(), SPECD_E_CONFIG) << key;
    ASSERT_EQ(host.reports().size(), 1u);
    EXPECT_NE(host.reports()[0].text.find(key), std::string::npos) << host.reports()[0].text;
  }
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(),
                      FakeConfig().set("prompt_lookup_min", 4).set("prompt_lookup_max", 2));
  EXPECT_EQ(drafter.status(), SPECD_E_CONFIG);
  FakeDrafter typed(host, ngram_factory(), FakeConfig().set("is_use_oldest", "yes"));
  EXPECT_EQ(typed.status(), SPECD_E_CONFIG);
}

TEST(PromptLookup, public_pool_is_bounded_and_goes_on_after_it_was_emptied) {
  std::mt19937 random(3);
  for (const bool oldest : {true, false}) {
    FakeHost host;
    FakeDrafter drafter(host, ngram_factory(),
                        FakeConfig()
                            .set("max_draft_len", 4)
                            .set("is_use_oldest", oldest)
                            .set("max_pool_tokens", 1024));
    uint64_t most = 0;
    int drafts = 0;
    for (int i = 0; i < 400; ++i) {
      TokenList text = random_text(random, 500, 1 + random() % 300);
      if (i % 50 == 0) text = random_text(random, 500, 3000);  // longer than the pool
      const int s = drafter.begin(text);
      drafts += drafter.propose(s).count > 0;
      for (int step = 0; step < 5; ++step) {
        drafter.commit(s, {text[random() % text.size()], text[random() % text.size()]});
        drafts += drafter.propose(s).count > 0;
      }
      drafter.end(s);
      most = std::max(most, host.memory_used());
    }
    EXPECT_GT(drafts, 500);
    // Texts of 3,000 tokens take 12 bytes a token; tables of 1,024 tokens about 100.
    EXPECT_LT(most, 2u << 20);
    EXPECT_TRUE(host.violations().empty());
  }
}

int begin_for(FakeDrafter& drafter, const TokenList& text, uint64_t tenant) {
  return drafter.begin(text, SPECD_ATTACH_FRESH, sdk::greedy_sampling(), tenant);
}

// Ids from 500 on are in the texts of tenant 7 only.
TEST(PromptLookup, text_of_one_tenant_is_never_drafted_for_another_and_changes_no_draft) {
  for (const bool oldest : {true, false}) {
    std::mt19937 random(9);
    FakeHost host, other_host;
    const FakeConfig config = FakeConfig()
                                  .set("max_draft_len", 8)
                                  .set("max_matching_ngram_size", 3)
                                  .set("is_use_oldest", oldest);
    FakeDrafter drafter(host, ngram_factory(), config);
    FakeDrafter alone(other_host, ngram_factory(), config);  // sees nothing of tenant 7
    const auto canary = [&] {
      TokenList text = random_text(random, 20, 10 + random() % 20);
      for (std::size_t i = 1; i < text.size(); i += 2) text[i] += 500;
      return text;
    };
    int n_canaries = 0, n_drafts = 0;
    for (int i = 0; i < 200; ++i) {
      const int victim = begin_for(drafter, canary(), 7);
      for (const int32_t token : drafter.propose(victim).token) n_canaries += token >= 500;
      drafter.commit(victim, canary());
      const TokenList text = random_text(random, 20, 2 + random() % 20);
      const uint64_t tenant = random() % 3;
      const int mine = begin_for(drafter, text, tenant);
      const int reference = begin_for(alone, text, tenant);
      const FakeDraft draft = drafter.propose(mine);
      ASSERT_EQ(draft.token, alone.propose(reference).token) << i;
      for (const int32_t token : draft.token) ASSERT_LT(token, 500) << i;
      n_drafts += draft.count > 0;
      for (const int handle : {victim, mine}) drafter.end(handle);
      alone.end(reference);
    }
    EXPECT_GT(n_canaries, 100) << "one tenant's sequences share";
    EXPECT_GT(n_drafts, 100);
    EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
  }
}

TEST(PromptLookup, the_pools_of_all_tenants_are_bounded_together) {
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(),
                      FakeConfig().set("max_draft_len", 4).set("max_pool_tokens", 1024));
  std::mt19937 random(3);
  uint64_t most = 0;
  const TokenList known = random_text(random, 1000, 50);
  const TokenList start(known.begin(), known.begin() + 2);
  for (uint64_t tenant = 1; tenant <= 2000; ++tenant) {
    const int first = begin_for(drafter, known, tenant);
    const int second = begin_for(drafter, start, tenant);
    ASSERT_EQ(drafter.propose(second).token, TokenList(known.begin() + 2, known.begin() + 6));
    most = std::max(most, host.memory_used());
    drafter.end(first);
    drafter.end(second);
  }
  EXPECT_TRUE(drafter.propose(begin_for(drafter, start, 1)).token.empty()) << "long forgotten";
  EXPECT_LT(most, 2u << 20);
  EXPECT_TRUE(host.violations().empty());
}

TEST(PromptLookup, the_pools_of_tenants_whose_sequences_go_on_are_bounded_too) {
  FakeHost host;
  FakeDrafter::Options options;
  options.max_batch = 100;  // more tenants than pools are kept without sequences
  FakeDrafter drafter(host, ngram_factory(),
                      FakeConfig().set("max_draft_len", 4).set("max_pool_tokens", 1024), options);
  std::mt19937 random(5);
  std::vector<int> open;
  for (uint64_t tenant = 1; tenant <= 100; ++tenant)
    open.push_back(begin_for(drafter, random_text(random, 1000, 20), tenant));
  const uint64_t begun = host.memory_used();
  uint64_t most = 0;
  for (int step = 0; step < 20; ++step) {
    for (const int each : open) {
      drafter.commit(each, random_text(random, 1000, 20));
      most = std::max(most, host.memory_used());
    }
  }
  // 100 sequences with 420 tokens each would be 42,000 in pools; the texts themselves are kept by each.
  EXPECT_LT(most, begun + (3u << 20)) << "they had " << begun;
  EXPECT_EQ(host.violations(), std::vector<std::string>());
}

TEST(PromptLookup, every_failed_allocation_fails_one_sequence_and_leaks_nothing) {
  for (const bool pool : {false, true}) {
    for (const bool shared : {false, true}) {
      for (uint64_t nth = 1; nth < 60; ++nth) {
        FakeHost host;
        const FakeConfig config =
            pool ? FakeConfig().set("is_public_pool", shared).set("is_use_oldest", shared)
                 : FakeConfig().set("prompt_lookup_min", 1).set("prompt_lookup_max", 3);
        {
          FakeDrafter drafter(host, ngram_factory(), config);
          ASSERT_EQ(drafter.status(), SPECD_OK);
          std::mt19937 random(5);
          host.fail_allocation(nth);
          for (int i = 0; i < 3; ++i) {
            const int s = drafter.begin(random_text(random, 50, 200));
            if (drafter.sequence_status(s) != SPECD_OK) {
              EXPECT_EQ(drafter.sequence_status(s), SPECD_E_EXHAUSTED);
              continue;
            }
            for (int step = 0; step < 10; ++step) {
              drafter.commit(s, random_text(random, 50, 150));
              const FakeDraft draft = drafter.propose(s);
              EXPECT_EQ(draft.call_status, SPECD_OK);
              EXPECT_TRUE(draft.status == SPECD_OK || draft.status == SPECD_E_EXHAUSTED);
            }
          }
        }
        ASSERT_TRUE(host.violations().empty()) << nth << ": " << host.violations()[0];
      }
    }
  }
}

TEST(PromptLookup, caps_say_chain_of_point_masses_that_attaches_anywhere) {
  FakeHost host;
  FakeDrafter drafter(host, ngram_factory(), FakeConfig().set("prompt_lookup_max", 1));
  ASSERT_EQ(drafter.caps().needs, static_cast<uint32_t>(SPECD_NEED_HOST_TOKENS));
  ASSERT_EQ(drafter.caps().tree_mode, static_cast<uint32_t>(SPECD_TREE_CHAIN));
  ASSERT_EQ(drafter.caps().draft_rule, static_cast<uint32_t>(SPECD_RULE_POINT_MASS));
  ASSERT_EQ(drafter.caps().attach_modes,
            static_cast<uint32_t>(SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD));
}

TEST(PromptLookup, another_layout_is_refused_and_the_table_is_shown) {
  const sdk::FakeModule other(SPECD_TEST_BUNDLES "/drafter_prompt_lookup/drafter_prompt_lookup.so",
                              "v0-00000000000000000000000000000000");
  EXPECT_EQ(other.status(), SPECD_E_ABI);
  EXPECT_STREQ(other.plugin().layout, SPECD_ABI_LAYOUT);
  EXPECT_STREQ(other.plugin().id, "specd.drafter.prompt_lookup");
}

}  // namespace
}  // namespace specd
