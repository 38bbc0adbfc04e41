#include "core/plugin/instance/instance.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/plugin/bundle_fixture.h"
#include "tests/core/plugin/propose_fixture.h"

namespace specd {
namespace {

class Instance : public testing::Test {
 protected:
  void SetUp() override {
    tree_.add("a", read_bytes(fixture("good")));
    auto registry = tree_.open(host_);
    ASSERT_TRUE(registry.ok()) << registry.status().text();
    registry_ = std::move(registry).value();
  }
  std::unique_ptr<Drafter> make(const std::string& mode) {
    auto made = registry_->make_drafter("org.example.fixture", "next", Json{{"mode", mode}},
                                        target_, "route.drafter");
    SPECD_CHECK(made.ok(), made.status().text());
    return std::move(made).value();
  }
  static specd_drafter_grant grant() {
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = grant.max_depth = 8;
    grant.max_batch = 1;
    grant.memory_bytes_max = 4096;
    return grant;
  }

  TestServices services_;
  const specd_host* host_ = make_host(&services_);
  specd_target_info target_ = test_target();
  BundleTree tree_;
  std::unique_ptr<PluginRegistry> registry_;
};

TEST_F(Instance, loaded_bundle_drafts) {
  auto drafter = make("plain");
  EXPECT_EQ(drafter->owner().quota_bytes, 1024u) << "of the caps before activate()";
  ASSERT_TRUE(drafter->activate(grant()).ok());
  EXPECT_EQ(drafter->owner().quota_bytes, 4096u);
  Step step;
  ASSERT_TRUE(drafter->propose(step.args, step.call).ok());
  EXPECT_EQ(step.n_nodes, 8);
  EXPECT_EQ(step.tokens, (std::vector<int32_t>{41, 42, 43, 44, 45, 46, 47, 48}));
  EXPECT_EQ(drafter->propose_stats.calls, 1u);
  EXPECT_EQ(drafter->propose_stats.failures, 0u);
  EXPECT_GT(drafter->propose_stats.total_ns, 0u);
}

TEST_F(Instance, step_calls_need_an_active_instance) {
  auto drafter = make("plain");
  Step step;
  EXPECT_EQ(drafter->propose(step.args, step.call).code(), Code::kFailedPrecondition);
  ASSERT_TRUE(drafter->activate(grant()).ok());
  EXPECT_EQ(drafter->activate(grant()).code(), Code::kFailedPrecondition) << "only once";
}

TEST_F(Instance, failed_activation_is_told_and_leaves_it_inactive) {
  auto drafter = make("activate_fails");
  const Status status = drafter->activate(grant());
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_NE(status.text().find("org.example.fixture (route.drafter): activate() returned "
                               "SPECD_E_DEVICE (8)"),
            std::string::npos)
      << status.text();
}

TEST_F(Instance, unknown_status_is_internal_and_counted) {
  auto drafter = make("status_unknown");
  ASSERT_TRUE(drafter->activate(grant()).ok());
  Step step;
  const Status status = drafter->propose(step.args, step.call);
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.text().find("an unknown status (12345)"), std::string::npos);
  EXPECT_EQ(drafter->propose_stats.failures, 1u);
}

TEST_F(Instance, deadline_counts_as_ok) {
  auto drafter = make("deadline");
  ASSERT_TRUE(drafter->activate(grant()).ok());
  Step step;
  EXPECT_TRUE(drafter->propose(step.args, step.call).ok());
  EXPECT_EQ(step.n_nodes, 8);
  EXPECT_EQ(drafter->propose_stats.failures, 0u);
}

TEST_F(Instance, what_the_plugin_reports_is_in_the_status) {
  auto drafter = make("propose_fails");
  ASSERT_TRUE(drafter->activate(grant()).ok());
  Step step;
  const Status status = drafter->propose(step.args, step.call);
  EXPECT_EQ(status.text(),
            "plugin org.example.fixture (route.drafter): propose() returned SPECD_E_INTERNAL (11): "
            "no luck");
  EXPECT_EQ(step.call.sequence_text.at(0), "of this one");
}

TEST_F(Instance, static_tree_is_taken_when_its_parents_are_in_order) {
  auto drafter = make("static_good");
  ASSERT_TRUE(drafter->activate(grant()).ok());
  EXPECT_EQ(drafter->static_parents(), (std::vector<int32_t>{-1, 0, -1}));
  auto shallow = make("static_good");
  specd_drafter_grant small = grant();
  small.max_depth = 1;
  EXPECT_NE(shallow->activate(small).text().find("node 1 has depth 2, the grant allows 1"),
            std::string::npos);
  auto narrow = make("static_good");
  small = grant();
  small.max_nodes = 2;
  EXPECT_NE(narrow->activate(small).text().find("returned 0 nodes, expected 1..2"),
            std::string::npos);
}

TEST_F(Instance, static_tree_with_a_parent_out_of_order_is_refused) {
  auto drafter = make("static_bad");
  const Status status = drafter->activate(grant());
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_NE(status.text().find("static_tree(): node 1 has parent 1, expected -1..0"),
            std::string::npos)
      << status.text();
}

TEST_F(Instance, memory_left_at_destroy_is_freed_and_logged) {
  auto drafter = make("leak");
  EXPECT_EQ(drafter->owner().used_bytes, 300u);
  testing::internal::CaptureStderr();
  drafter.reset();
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("plugin org.example.fixture (route.drafter): destroy() left 1 blocks of 300 "
                      "bytes"),
            std::string::npos)
      << text;
}

TEST(PairGuarantee, is_what_the_verifier_states_or_unusable_with_a_reason) {
  specd_drafter_caps drafter{};
  drafter.tree_mode = SPECD_TREE_VARIABLE;
  drafter.draft_rule = SPECD_RULE_IID;
  drafter.device_types = 1u << SPECD_DEV_CPU;
  drafter.max_nodes = 16;
  specd_verifier_caps verifier{};
  verifier.tree_modes = 1u << SPECD_TREE_VARIABLE;
  verifier.device_types = 1u << SPECD_DEV_CPU;
  verifier.guarantee[SPECD_RULE_IID] = SPECD_GUARANTEE_LAW;
  std::string why = "x";
  EXPECT_EQ(pair_guarantee(drafter, verifier, &why), uint32_t{SPECD_GUARANTEE_LAW});
  EXPECT_EQ(why, "");
  verifier.max_nodes = 8;
  EXPECT_EQ(pair_guarantee(drafter, verifier, &why), uint32_t{SPECD_GUARANTEE_LAW})
      << "a smaller grant fits";
  const auto expect_unusable = [&](const char* words) {
    EXPECT_EQ(pair_guarantee(drafter, verifier, &why), uint32_t{SPECD_GUARANTEE_UNUSABLE});
    EXPECT_NE(why.find(words), std::string::npos) << why;
  };
  drafter.tree_mode = SPECD_TREE_STATIC;
  expect_unusable("trees of mode static");
  verifier.tree_modes |= 1u << SPECD_TREE_STATIC;
  expect_unusable("fixed tree has up to 16 nodes");
  drafter.tree_mode = SPECD_TREE_VARIABLE;
  drafter.draft_rule = SPECD_RULE_NO_REPLACE;
  expect_unusable("drafts of rule 'without replacement'");
  drafter.draft_rule = SPECD_RULE_IID;
  verifier.needs = SPECD_NEED_Q;
  expect_unusable("which the drafter does not hand on");
  drafter.features = SPECD_FEATURE_Q;
  EXPECT_EQ(pair_guarantee(drafter, verifier, &why), uint32_t{SPECD_GUARANTEE_LAW});
  for (uint32_t* types : {&drafter.device_types, &verifier.device_types}) {
    *types = 1u << SPECD_DEV_CUDA;
    expect_unusable("handed on in host memory, where the pair cannot work");
    *types |= 1u << SPECD_DEV_CPU;
  }
  drafter.draft_rule = SPECD_RULE_POINT_MASS;  // q is 1
  verifier.guarantee[SPECD_RULE_POINT_MASS] = SPECD_GUARANTEE_LAW;
  drafter.features = 0;
  EXPECT_EQ(pair_guarantee(drafter, verifier, &why), uint32_t{SPECD_GUARANTEE_LAW});
}

}  // namespace
}  // namespace specd
