// Plugins built with other versions of the headers than the daemon, all in one registry.
#include <gtest/gtest.h>

#include <string>

#include "tests/core/plugin/bundle_fixture.h"
#include "tests/core/plugin/propose_fixture.h"

namespace specd {
namespace {

class ServiceLayout : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"before_a_service", "changed_service", "changed_core"}) {
      const std::string bytes = read_bytes(fixture(name));
      Json manifest = BundleTree::manifest(bytes);
      manifest["id"] = std::string("org.example.") + name;
      tree_.add(name, bytes, manifest);
    }
    auto registry = tree_.open(host_);
    ASSERT_TRUE(registry.ok()) << registry.status().message();
    registry_ = std::move(registry).value();
  }

  Result<std::unique_ptr<Drafter>> make(const std::string& name, const std::string& mode) {
    return registry_->make_drafter("org.example." + name, "next", Json{{"mode", mode}}, target_,
                                   "route.drafter");
  }
  // The value of a macro of the generated header that the plugin was built with.
  static std::string layout(const std::string& name, const std::string& macro) {
    const std::string text = read_bytes(std::string(SPECD_TEST_HEADER_SETS) + "/" + name +
                                        "/include/specd/plugin_api/abi_layout.h");
    const size_t at = text.find("#define " + macro + " \"");
    if (at == text.npos) return "no " + macro;
    const size_t begin = text.find('"', at) + 1;
    return text.substr(begin, text.find('"', begin) - begin);
  }
  static void expect_drafts(Drafter& drafter) {
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = grant.max_depth = 8;
    grant.max_batch = 1;
    grant.memory_bytes_max = 4096;
    ASSERT_TRUE(drafter.activate(grant).ok());
    Step step;
    ASSERT_TRUE(drafter.propose(step.args, step.call).ok());
    EXPECT_EQ(step.tokens, (std::vector<int32_t>{41, 42, 43, 44, 45, 46, 47, 48}));
  }

  TestServices services_;
  const specd_host* host_ = make_host(&services_);
  specd_target_info target_ = test_target();
  BundleTree tree_;
  std::unique_ptr<PluginRegistry> registry_;
};

TEST_F(ServiceLayout, a_plugin_from_before_a_service_was_added_loads_and_drafts) {
  ASSERT_EQ(layout("before_a_service", "SPECD_METRICS_LAYOUT"), "no SPECD_METRICS_LAYOUT");
  for (const char* mode : {"plain", "needs_memory"}) {
    auto made = make("before_a_service", mode);
    ASSERT_TRUE(made.ok()) << made.status().message();
    expect_drafts(*made.value());
  }
}

TEST_F(ServiceLayout,
       a_plugin_with_another_layout_of_a_service_runs_beside_it_without_that_service) {
  auto older = make("before_a_service", "needs_memory");
  ASSERT_TRUE(older.ok()) << older.status().message();
  // It asks for memory in create() and does without.
  testing::internal::CaptureStderr();
  auto changed = make("changed_service", "plain");
  const std::string logged = testing::internal::GetCapturedStderr();
  ASSERT_TRUE(changed.ok()) << changed.status().message();
  EXPECT_NE(logged.find("org.example.changed_service: host service 'specd.host.memory/1': "),
            std::string::npos)
      << logged;
  expect_drafts(*older.value());
  expect_drafts(*changed.value());
}

TEST_F(ServiceLayout, a_plugin_that_needs_another_layout_of_a_service_is_told_both_and_what_to_do) {
  const std::string found = layout("changed_service", "SPECD_MEMORY_LAYOUT");
  ASSERT_NE(found, SPECD_MEMORY_LAYOUT);
  const auto made = make("changed_service", "needs_memory");
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kUnsupported);
  const std::string expected =
      "host service 'specd.host.memory/1': the plugin was built against another layout of it: "
      "expected " SPECD_MEMORY_LAYOUT ", found '" +
      found + "'; rebuild the plugin with this daemon's SDK";
  EXPECT_NE(made.status().message().find(expected), std::string::npos) << made.status().message();
}

// The control: the same fixture is refused as a whole when what differs is not a service.
TEST_F(ServiceLayout, a_plugin_with_another_core_layout_does_not_load) {
  const std::string found = layout("changed_core", "SPECD_ABI_LAYOUT");
  ASSERT_NE(found, SPECD_ABI_LAYOUT);
  EXPECT_EQ(layout("before_a_service", "SPECD_ABI_LAYOUT"), SPECD_ABI_LAYOUT);
  EXPECT_EQ(layout("changed_service", "SPECD_ABI_LAYOUT"), SPECD_ABI_LAYOUT);
  const auto made = make("changed_core", "plain");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find(
                "built against another plugin_api: expected layout " SPECD_ABI_LAYOUT ", found '" +
                found + "'"),
            std::string::npos)
      << made.status().message();
}

}  // namespace
}  // namespace specd
