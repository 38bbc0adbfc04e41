// Drafters built outside the tree, against only the installed SDK, load and draft.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;
using TokenList = std::vector<int32_t>;

class OutsideDrafter : public ::testing::TestWithParam<const char*> {};

TEST_P(OutsideDrafter, drafts_what_followed_last_time) {
  const sdk::FakeModule module(GetParam());
  ASSERT_EQ(module.status(), SPECD_OK);
  EXPECT_STREQ(module.plugin().id, "org.example.bigram");
  EXPECT_STREQ(module.plugin().version, "1.0.0");
  FakeHost host;
  {
    FakeDrafter drafter(host, module.factory("bigram"), FakeConfig().set("draft_tokens", 3));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int a = drafter.begin({1, 2, 3, 1});
    const int b = drafter.begin({7});
    auto drafts = drafter.propose_batch({a, b});
    EXPECT_EQ(drafts[0].token, (TokenList{2, 3, 1}));
    EXPECT_EQ(drafts[1].count, 0);
    drafter.commit_batch({{a, {5, 1}, {}}, {b, {7}, {}}});
    drafts = drafter.propose_batch({a, b}, {2, 1});
    EXPECT_EQ(drafts[0].token, (TokenList{5, 1}));
    EXPECT_EQ(drafts[1].token, (TokenList{7}));
  }
  FakeDrafter refused(host, module.factory("bigram"), FakeConfig().set("draft_tokens", 65));
  EXPECT_EQ(refused.status(), SPECD_E_CONFIG);
  EXPECT_NE(host.reports().at(0).text.find("draft_tokens"), std::string::npos);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
}

TEST(OutsideVerifier, accepts_what_is_likely_enough) {
  const sdk::FakeModule module(SPECD_OUTSIDE
                               "/template/build/plugins/verifier_threshold/verifier_threshold.so");
  ASSERT_EQ(module.status(), SPECD_OK);
  FakeHost host;
  sdk::FakeVerifier verifier(host, module.factory("threshold"), FakeConfig().set("least", 0.25));
  ASSERT_EQ(verifier.status(), SPECD_OK);
  sdk::FakeTree tree;
  tree.token = {1, 1, 1};
  tree.parent = {-1, 0, 1};
  tree.row_token = {0, 0, 0, 2};
  tree.law = {{0, 0, 0}, {3, 2, 0}, {3, 0, 0}, {0, 0, 0}};  // 1/3, 0.26, 0.05
  const sdk::FakeVerdict verdict = verifier.verify(tree);
  EXPECT_EQ(verdict.path, (TokenList{0, 1}));
  EXPECT_EQ(verdict.next_token, 0);
  sdk::FakeVerifier refused(host, module.factory("threshold"), FakeConfig().set("least", 1.5));
  EXPECT_EQ(refused.status(), SPECD_E_CONFIG);
  EXPECT_TRUE(host.violations().empty()) << host.violations()[0];
}

INSTANTIATE_TEST_SUITE_P(Bundles, OutsideDrafter,
                         ::testing::Values(SPECD_OUTSIDE "/template_c/build/plugins/drafter_bigram/"
                                                         "drafter_bigram.so",
                                           SPECD_OUTSIDE "/template/build/plugins/drafter_bigram/"
                                                         "drafter_bigram.so"));

}  // namespace
}  // namespace specd
