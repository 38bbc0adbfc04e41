// Runs the bundles that were built outside the tree, against the installed SDK, in the real engine.
#include <gtest/gtest.h>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

class OutsideBundle : public EngineTest, public testing::WithParamInterface<const char*> {};

TEST_P(OutsideBundle, loads_drafts_and_changes_no_token) {
  EngineOptions o = options();
  o.plugin_directories = {std::string(SPECD_OUTSIDE) + "/" + GetParam() + "/build/plugins",
                          std::string(SPECD_OUTSIDE) + "/plugins/build/plugins"};
  std::string id;
  start(o);
  for (const PluginReport& bundle : engine_->plugins()) {
    EXPECT_NE(bundle.state, PluginState::kRefused) << bundle.directory << ": " << bundle.reason;
    if (bundle.directory.find("drafter_bigram") != std::string::npos) id = bundle.id;
  }
  ASSERT_NE(id, "") << "no bundle in " << o.plugin_directories[0];
  o.routes.push_back(route("outside", plugin(id), 4));
  start(o);
  ASSERT_EQ(report("outside").state, RouteState::kLive) << report("outside").refused.to_string();
  for (const std::string& prompt : prompts()) {
    for (const float temperature : {0.0f, 0.8f}) {
      const Outcome plain = run(request(prompt, "off", 32, temperature, 3));
      EXPECT_EQ(run(request(prompt, "outside", 32, temperature, 3)).tokens, plain.tokens);
    }
  }
  EXPECT_GT(report("outside").counts.drafted, 0u);
  EXPECT_GT(report("outside").counts.accepted, 0u);
}

using OutsideVerifier = EngineTest;

TEST_F(OutsideVerifier, loads_and_accepts_more_than_match) {
  EngineOptions o = options();
  o.plugin_directories = {std::string(SPECD_OUTSIDE) + "/template/build/plugins",
                          std::string(SPECD_OUTSIDE) + "/plugins/build/plugins"};
  const PluginUse bigram = plugin("org.example.bigram");
  o.routes = {route("match", bigram, 4),
              route("mine", bigram, 4, plugin("org.example.threshold", {{"least", 0.05}}))};
  o.routes[1].guarantee = Guarantee::kNone;
  start(o);
  ASSERT_EQ(report("mine").state, RouteState::kLive) << report("mine").refused.to_string();
  for (const std::string& prompt : prompts()) {
    EXPECT_EQ(run(request(prompt, "mine", 32)).tokens, run(request(prompt, "match", 32)).tokens);
    for (const char* name : {"match", "mine"}) {
      EXPECT_EQ(run(request(prompt, name, 32, 0.8f, 3)).tokens.size(), 32u);
    }
  }
  EXPECT_GT(report("mine").counts.accepted, report("match").counts.accepted);
  EXPECT_EQ(report("mine").counts.cut, 0u) << report("mine").last_problem;
}

using OutsideHead = EngineTest;

// A drafter with weights needs nothing but the installed SDK either.
TEST_F(OutsideHead, loads_its_weights_and_changes_no_token) {
  EngineOptions o = options();
  o.plugin_directories = {std::string(SPECD_OUTSIDE) + "/head/build/plugins",
                          std::string(SPECD_OUTSIDE) + "/plugins/build/plugins"};
  o.routes.push_back(
      route("own",
            plugin("specd.test.drafter_head",
                   {{"weights", o.model.path}, {"tensor", "model.embed_tokens.weight"}}),
            1));
  o.routes.push_back(route("target", plugin("specd.test.drafter_head"), 1));
  start(o);
  for (const char* name : {"own", "target"}) {
    ASSERT_EQ(report(name).state, RouteState::kLive) << report(name).refused.to_string();
    for (const std::string& prompt : prompts()) {
      EXPECT_EQ(run(request(prompt, name, 32)).tokens, run(request(prompt, "off", 32)).tokens);
    }
    EXPECT_GT(report(name).counts.drafted, 0u);
    EXPECT_EQ(report(name).counts.lost, 0u) << report(name).last_problem;
  }
}

INSTANTIATE_TEST_SUITE_P(Bundles, OutsideBundle, testing::Values("template", "template_c"));

}  // namespace
}  // namespace specd
