// Reading a configuration and a route with the first, second, third .. allocation failing, until
// one passes untouched.
#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <string>

#include "host/config/config.h"
#include "host/config/config_print.h"
#include "tests/failing_new.h"
#include "tests/host/config/config_rig.h"

namespace specd::host {
namespace {

// `read` gives what it understood, as text. Memory that ends is told as such or thrown, and what is
// read in spite of it is the whole; that nothing is lost is LeakSanitizer's to say.
long until_untouched(const std::function<Result<std::string>()>& read) {
  const auto whole = read();
  EXPECT_TRUE(whole.ok()) << whole.status().to_string();
  for (long n = 1;; ++n) {
    g_failed = false;
    g_allocations_left = n;
    Result<std::string> got = Status(Code::kExhausted, "thrown");
    try {
      got = read();
    } catch (const std::bad_alloc&) {
    }
    g_allocations_left = 0;
    if (got.ok()) {
      EXPECT_EQ(got.value(), whole.value()) << n;
    } else {
      EXPECT_EQ(got.status().code(), Code::kExhausted) << n << ": " << got.status().to_string();
    }
    EXPECT_TRUE(g_failed || got.ok()) << n << ": " << got.status().to_string();
    if (!g_failed || testing::Test::HasFailure()) return n;
  }
}

TEST(ConfigNthFailure, of_allocations_is_told_or_thrown) {
  const ConfigFolder folder;
  const std::string text = PlacedYaml(every_key()).text();
  EXPECT_GT(until_untouched([&]() -> Result<std::string> {
              SPECD_TRY(const Config config, folder.parse(text, {}));
              return print_config(config);
            }),
            500);
}

TEST(ConfigNthFailure, of_allocations_in_a_route_is_told_or_thrown) {
  const ConfigFolder folder;
  const auto config = folder.parse(PlacedYaml(every_key()).text());
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  const std::string text = "name: x\n" + PlacedYaml(every_key()["routes"]["r"]).text();
  EXPECT_GT(until_untouched([&]() -> Result<std::string> {
              SPECD_TRY(const RouteFile file, parse_route(text, "r.yaml", config.value().engine));
              return route_to_json(file.route).dump();
            }),
            100);
}

}  // namespace
}  // namespace specd::host
