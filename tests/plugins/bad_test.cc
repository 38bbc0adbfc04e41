// The broken plugins must really be broken, or the tests of the host prove nothing.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;

FakeDraft draft_of(const char* factory, const char* mode, int32_t budget = 8) {
  static const sdk::FakeModule loaded(SPECD_TEST_BAD_BUNDLES "/drafter_bad/drafter_bad.so");
  sdk::FakeHost host;
  sdk::FakeDrafter drafter(host, loaded.factory(factory), FakeConfig().set("mode", mode));
  EXPECT_EQ(drafter.status(), SPECD_OK) << mode;
  return drafter.propose(drafter.begin({1, 2, 3}), budget);
}

TEST(BadDrafter, breaks_what_its_mode_says) {
  EXPECT_EQ(draft_of("bad", "token_negative").token[4], -2);
  EXPECT_EQ(draft_of("bad", "token_vocab").token[4], 1000);
  EXPECT_EQ(draft_of("bad", "token_min").token[4], INT32_MIN);
  EXPECT_EQ(draft_of("bad_tree", "parent_forward").parent[4], 5);
  EXPECT_EQ(draft_of("bad_tree", "parent_self").parent[4], 4);
  EXPECT_EQ(draft_of("bad_tree", "parent_negative").parent[4], -2);
  EXPECT_EQ(draft_of("bad", "count_huge").count, INT32_MAX);
  EXPECT_EQ(draft_of("bad", "count_over", 5).count, 6);
  EXPECT_EQ(draft_of("bad", "count_negative").count, -1);
  EXPECT_EQ(draft_of("bad", "status_unknown").call_status, 12345);
  EXPECT_EQ(draft_of("bad", "status_error").call_status, SPECD_E_INTERNAL);
  EXPECT_EQ(draft_of("bad", "status_deadline").call_status, SPECD_E_DEADLINE);
  EXPECT_EQ(draft_of("bad", "status_one").status, SPECD_E_INTERNAL);
  EXPECT_EQ(draft_of("bad", "status_one_unknown").status, -77);
  EXPECT_EQ(draft_of("bad_tree", "flags_garbage").flags[4], 0x7ffffff0);
  EXPECT_EQ(draft_of("bad_tree", "deep_chain").parent[7], 6);
}

TEST(BadVerifier, breaks_what_its_mode_says) {
  static const sdk::FakeModule loaded(SPECD_TEST_BAD_BUNDLES "/verifier_bad/verifier_bad.so");
  // Nodes 0 and 2 below the root, 1 below 0, a probe 3 below the root.
  const sdk::FakeTree tree{{5, 6, 7, 8}, {-1, 0, -1, -1}, {0, 0, 0, 1}, {5, 6, 9, 9, 9}, 0};
  const auto verdict = [&](const char* mode) {
    sdk::FakeHost host;
    sdk::FakeVerifier verifier(host, loaded.factory("bad"), FakeConfig().set("mode", mode));
    EXPECT_EQ(verifier.status(), SPECD_OK) << mode;
    return verifier.verify(tree);
  };
  EXPECT_EQ(verdict("path_out_of_range").path[0], 9);
  EXPECT_EQ(verdict("path_not_root").path[0], 1);
  EXPECT_EQ(verdict("path_broken").path, (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(verdict("path_repeats").path, (std::vector<int32_t>{3, 3}));
  EXPECT_EQ(verdict("path_probe").path[0], 3);
  EXPECT_EQ(verdict("next_negative").next_token, -1);
  EXPECT_EQ(verdict("next_vocab").next_token, 1000);
  EXPECT_EQ(verdict("count_huge").n_accepted, INT32_MAX);
  EXPECT_EQ(verdict("count_over").n_accepted, 5);
  EXPECT_EQ(verdict("count_negative").n_accepted, -1);
  EXPECT_EQ(verdict("status_error").call_status, SPECD_E_INTERNAL);
  EXPECT_EQ(verdict("status_unknown").call_status, 12345);
  EXPECT_EQ(verdict("status_one").status, SPECD_E_INTERNAL);
}

}  // namespace
}  // namespace specd
