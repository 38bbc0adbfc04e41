#include "core/plugin/process/protocol.h"

#include <gtest/gtest.h>

#include <string>

#include "core/base/mutex.h"
#include "specd/plugin_api/services/memory.h"

namespace specd {
namespace {

CreatedDrafter created() {
  CreatedDrafter made;
  made.caps.max_nodes = 4;
  made.caps.max_depth = 4;
  made.caps.n_taps = 2;
  made.caps.taps[1] = 7;
  made.caps.bytes_per_seq = UINT64_MAX;
  made.services = {SPECD_SERVICE_MEMORY};
  made.caps.services = made.services.data();
  made.caps.n_services = 1;
  made.has_update = true;
  made.parts = {"a.b"};
  made.contents = {{"a.b", "0123"}};
  return made;
}

TEST(Protocol, what_is_written_is_read_again) {
  DrafterOrder order;
  order.registry.directories = {"/a", "/b"};
  order.registry.approved = {.sha256 = {"00"}, .keys = {"/k"}};
  order.plugin = "x@1.0.0";
  order.config = {{"n", 3}};
  order.log_level = LogLevel::kWarn;
  specd_target_info target{};
  target.vocab_size = UINT32_MAX;
  target.eos_token = -1;
  target.norm_eps = 1e-5f;
  target.model_id = "m";
  order.set_target(target);
  const auto again = order_from_json(order_to_json(order));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(order_to_json(again.value()), order_to_json(order));
  EXPECT_EQ(again.value().target_info().norm_eps, 1e-5f);

  const Json json = created_to_json(created());
  const auto made = created_from_json(json);
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_EQ(made.value().caps.taps[1], 7u);
  EXPECT_EQ(std::string(made.value().caps.services[0]), SPECD_SERVICE_MEMORY);
  EXPECT_EQ(created_to_json(made.value()), json);

  const Status status(Code::kDataLoss, "a.b", "why \xff");
  EXPECT_EQ(status_from_json({{"status", status_to_json(status)}}), status);
  EXPECT_TRUE(status_from_json({{"status", status_to_json(Status())}}).ok());
}

// Every value of every message replaced by every kind of value: an answer comes back, and nothing else happens.
TEST(Protocol, values_of_other_kinds_are_refused_or_left_out) {
  const Json strange[] = {
      nullptr,        -1,   3.5,       1e300,     "text", std::string(9000, 'x'), Json::array({{}}),
      Json::object(), true, INT64_MIN, UINT64_MAX};
  const Json answers[] = {
      {{"status", status_to_json(Status(Code::kInternal, "f", "m"))}},
      created_to_json(created()),
      {{"memory_bytes", 1},
       {"metrics", {{{"name", "a"}, {"help", "h"}, {"counter", true}, {"value", 1}}}}}};
  size_t n = 0;
  for (const Json& answer : answers) {
    const Json flat = answer.flatten();
    for (const auto& [path, unused] : flat.items()) {
      const Json::json_pointer place(path);
      for (auto at = place; !at.empty(); at.pop_back()) {
        for (const Json& value : strange) {
          Json changed = answer;
          changed[at] = value;
          specd_owner owner;
          (void)status_from_json(changed);
          (void)created_from_json(changed);
          take_figures(changed, {}, owner);
          const MutexLock lock(owner.mutex);
          EXPECT_LE(owner.metrics.size(), kMetricsMax);
          ++n;
        }
      }
    }
  }
  EXPECT_GT(n, 500u);
  for (const Json& value : strange) {
    specd_owner owner;
    take_figures(value, {}, owner);
  }
}

TEST(Protocol, metrics_beyond_the_limit_and_with_bad_names_are_left_out) {
  Json metrics = Json::array();
  for (int i = 0; i < 200; ++i)
    metrics.push_back({{"name", "m" + std::to_string(i)}, {"help", std::string(2000, 'h')}});
  metrics.insert(metrics.begin(), {{"name", "Bad name"}, {"help", ""}});
  specd_owner owner;
  take_figures({{"metrics", metrics}}, {}, owner);
  const MutexLock lock(owner.mutex);
  EXPECT_EQ(owner.metrics.size(), kMetricsMax);
  EXPECT_EQ(owner.metrics.count("Bad name"), 0u);
  EXPECT_EQ(owner.metrics.at("m0")->help.size(), kMetricHelpBytesMax);
}

TEST(Protocol, counters_go_on_over_the_lives_of_a_process) {
  const auto figures = [](double value, const std::string& name = "n") {
    return Json{{"memory_bytes", 5},
                {"metrics",
                 {{{"name", name}, {"help", ""}, {"counter", true}, {"value", value}},
                  {{"name", "gauge"}, {"help", ""}, {"counter", false}, {"value", value}}}}};
  };
  specd_owner owner;
  Counted counted;
  const auto value = [&](const std::string& name) -> double {
    const MutexLock lock(owner.mutex);
    return owner.metrics.count(name) == 0 ? -1 : owner.metrics.at(name)->value.load();
  };
  take_figures(figures(3), counted, owner);
  take_figures(figures(2), counted, owner);
  EXPECT_EQ(value("n"), 3) << "a counter does not fall";
  EXPECT_EQ(value("gauge"), 2);
  end_figures(counted, owner);
  EXPECT_EQ(value("gauge"), -1);
  take_figures(figures(1), counted, owner);
  EXPECT_EQ(value("n"), 4);
  take_figures(figures(1, std::string("a\0b", 3)), counted, owner);
  const MutexLock lock(owner.mutex);
  EXPECT_EQ(owner.used_bytes, 5u);
  EXPECT_EQ(owner.metrics.size(), 2u);
}

TEST(Protocol, an_unknown_service_is_refused) {
  Json json = created_to_json(created());
  json["caps"]["services"] = {"specd.host.telepathy/1#0"};
  EXPECT_EQ(created_from_json(json).status().code(), Code::kUnsupported);
}

}  // namespace
}  // namespace specd
