#include "core/services/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "specd/plugin_api/services/metrics.h"
#include "tests/core/services/services_rig.h"

namespace specd {
namespace {

TEST_F(ServicesTest, metrics_count_and_gauge) {
  const auto& metrics = table<specd_metrics>(SPECD_SERVICE_METRICS);
  specd_metric *hits = nullptr, *same = nullptr, *load = nullptr, *other = nullptr;
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_COUNTER, "hits_2", "how many", &hits),
            SPECD_OK);
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_COUNTER, "hits_2", nullptr, &same),
            SPECD_OK);
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, "a_load", nullptr, &load), SPECD_OK);
  EXPECT_EQ(hits, same);
  EXPECT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, "hits_2", nullptr, &other),
            SPECD_E_INVALID);
  for (const char* name : {"", "Upper", "1x", "a-b", "a b"}) {
    EXPECT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, name, nullptr, &other),
              SPECD_E_INVALID)
        << name;
  }
  EXPECT_EQ(metrics.define(host_, &owner_, 2, "x", nullptr, &other), SPECD_E_INVALID);
  EXPECT_EQ(metrics.define(host_, &owner_, 1, std::string(65, 'a').c_str(), nullptr, &other),
            SPECD_E_INVALID);
  EXPECT_EQ(metrics.define(host_, &owner_, 1, std::string(64, 'a').c_str(), nullptr, &other),
            SPECD_OK);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) metrics.record(host_, hits, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    metrics.record(host_, hits, bad);
  }
  metrics.record(host_, load, -2.5);
  metrics.record(host_, nullptr, 1);
  const auto all = plugin_metrics(owner_);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "a_load");
  EXPECT_EQ(all[0].value, -2.5);
  EXPECT_EQ(all[2].name, "hits_2");
  EXPECT_EQ(all[2].value, 4000.0);
  EXPECT_TRUE(all[2].counter);
  EXPECT_EQ(all[2].help, "how many");
  EXPECT_EQ(all[2].instance, "inst");
  specd_status last = SPECD_OK;
  for (int i = 0; i < 100 && last == SPECD_OK; ++i) {
    last = metrics.define(host_, &owner_, 1, ("m" + std::to_string(i)).c_str(), nullptr, &other);
  }
  EXPECT_EQ(last, SPECD_E_EXHAUSTED);
}

}  // namespace
}  // namespace specd
