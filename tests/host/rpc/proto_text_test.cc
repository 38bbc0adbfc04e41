#include "host/rpc/proto_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/base/utf8.h"
#include "core/engine.h"
#include "host/proto/specd.pb.h"

namespace specd::host {
namespace {

TEST(ProtoText, what_is_not_utf8_is_shown_at_any_depth_and_bytes_are_left) {
  v1::ListPluginsResponse response;
  response.add_plugins()->set_id("good é");
  v1::Plugin& bad = *response.add_plugins();
  bad.set_reason(
      "a\xff"
      "b");
  bad.add_factories()->set_id("\xc3");
  EXPECT_EQ(make_utf8(response), "plugins[1].reason");
  EXPECT_EQ(response.plugins(0).id(), "good é");
  EXPECT_EQ(response.plugins(1).reason(), "a\\xffb");
  EXPECT_EQ(response.plugins(1).factories(0).id(), "\\xc3");

  v1::GenerateRequest request;
  request.set_text("\xff");
  request.set_route("\xff");
  EXPECT_EQ(make_utf8(request), "route");
  EXPECT_EQ(request.text(), "\xff");
  EXPECT_EQ(request.route(), "\\xff");
  EXPECT_EQ(make_utf8(request), "");

  v1::Model model;
  model.add_generation_config_ignored("\xff");
  make_utf8(model);
  EXPECT_EQ(model.generation_config_ignored(0), "\\xff");
}

TEST(ProtoText, every_kind_of_event_has_a_word_in_the_protocol) {
  std::set<int> numbers;
  for (int i = 0; i <= static_cast<int>(kLastEventKind); ++i) {
    const char* const word = event_kind_name(static_cast<EventKind>(i));
    const auto kind = enum_value<v1::EventKind>(word);
    EXPECT_NE(kind, v1::EVENT_KIND_UNSPECIFIED) << word;
    EXPECT_TRUE(numbers.insert(kind).second) << word;
  }
}

TEST(ProtoText, enums_are_words_and_back) {
  EXPECT_EQ(enum_word(v1::ROUTE_STATE_LIVE), "live");
  EXPECT_EQ(enum_word(v1::ROUTE_STATE_UNSPECIFIED), "");
  EXPECT_EQ(enum_word(static_cast<v1::RouteState>(99)), "unknown");
  EXPECT_EQ(enum_value<v1::RouteState>("draining"), v1::ROUTE_STATE_DRAINING);
  EXPECT_EQ(enum_value<v1::RouteState>("asleep"), v1::ROUTE_STATE_UNSPECIFIED);
}

TEST(ProtoText, a_report_in_json_has_words_for_enums_and_survives_a_newer_daemons_values) {
  v1::ListRoutesResponse response;
  response.add_routes()->set_state(v1::ROUTE_STATE_LIVE);
  response.add_routes()->set_state(static_cast<v1::RouteState>(99));
  response.add_routes();
  const nlohmann::json routes = nlohmann::json::parse(report_to_json(response))["routes"];
  EXPECT_EQ(routes[0]["state"], "live");
  EXPECT_EQ(routes[1]["state"], "unknown");
  EXPECT_EQ(routes[2]["state"], "");
}

// What the engine says in words has a value each.
TEST(ProtoText, every_word_of_the_engine_has_its_value) {
  for (const char* word : {"discovered", "loaded", "refused"})
    EXPECT_NE(enum_value<v1::PluginState>(word), 0) << word;
  for (const char* word : {"drafter", "verifier"})
    EXPECT_NE(enum_value<v1::PluginKind>(word), 0) << word;
  for (const char* word : {"live", "refused", "draining", "staged", "canary"})
    EXPECT_NE(enum_value<v1::RouteState>(word), 0) << word;
  for (const char* word : {"none", "law", "identical"})
    EXPECT_NE(enum_value<v1::Guarantee>(word), 0) << word;
  for (const char* word : {"target", "draft"})
    EXPECT_NE(enum_value<v1::ModelRole>(word), 0) << word;
  for (const char* word : {"loaded", "refused"})
    EXPECT_NE(enum_value<v1::ModelState>(word), 0) << word;
  for (const char* word : {"ready", "draining", "failed"})
    EXPECT_NE(enum_value<v1::EngineState>(word), 0) << word;
}

}  // namespace
}  // namespace specd::host
