#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <vector>

#include "core/base/last_words.h"
#include "specd/plugin_api/services/pool.h"
#include "tests/core/services/services_rig.h"

namespace specd {
namespace {

TEST_F(ServicesTest, pool_runs_every_index_once) {
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  EXPECT_EQ(pool.width(host_), 3u);
  for (const uint32_t n : {0u, 1u, 2u, 3u, 100u}) {
    std::vector<std::atomic<int>> seen(n);
    ASSERT_EQ(
        pool.run(
            host_, &call_, n,
            [](void* ctx, uint32_t i) { ++(*static_cast<std::vector<std::atomic<int>>*>(ctx))[i]; },
            &seen),
        SPECD_OK);
    for (const auto& one : seen) EXPECT_EQ(one, 1);
  }
  EXPECT_EQ(pool.run(host_, &call_, 1, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(pool.run(
                host_, nullptr, 1, [](void*, uint32_t) {}, nullptr),
            SPECD_E_INVALID);
}

TEST_F(ServicesTest, pool_tasks_run_in_the_name_of_the_plugin_that_gave_them) {
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  struct Seen {
    std::atomic<int> named{0}, others{0};
  } seen;
  const Activity before = set_activity({"org.example.p", "plugin org.example.p", "propose"});
  // Each waits a while, so that the workers take part.
  ASSERT_EQ(pool.run(
                host_, &call_, 60,
                [](void* ctx, uint32_t) {
                  usleep(1000);
                  Seen& mine = *static_cast<Seen*>(ctx);
                  const char* plugin = current_activity().plugin;
                  const bool is_named = plugin != nullptr && std::string(plugin) == "org.example.p";
                  ++(is_named ? mine.named : mine.others);
                },
                &seen),
            SPECD_OK);
  EXPECT_STREQ(current_activity().plugin, "org.example.p");
  set_activity(before);
  EXPECT_EQ(seen.named, 60);
  EXPECT_EQ(seen.others, 0);
  // Afterwards the workers run for nobody.
  cpu_->stream().pool().run(
      [](void* ctx, int, int) {
        if (current_activity().plugin != nullptr) ++static_cast<Seen*>(ctx)->others;
      },
      &seen);
  EXPECT_EQ(seen.others, 0);
}

TEST_F(ServicesTest, pool_refuses_what_would_wait_for_itself_or_race_with_the_step) {
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  struct Nested {
    const specd_pool* pool;
    const specd_host* host;
    specd_call* call;
    specd_status status;
  } nested{&pool, host_, &call_, SPECD_OK};
  ASSERT_EQ(pool.run(
                host_, &call_, 1,
                [](void* ctx, uint32_t) {
                  auto& mine = *static_cast<Nested*>(ctx);
                  mine.status = mine.pool->run(
                      mine.host, mine.call, 1, [](void*, uint32_t) {}, nullptr);
                },
                &nested),
            SPECD_OK);
  EXPECT_EQ(nested.status, SPECD_E_PRECONDITION);
  specd_call control;  // create(): no batch
  EXPECT_EQ(pool.run(
                host_, &control, 1, [](void*, uint32_t) {}, nullptr),
            SPECD_E_PRECONDITION);
}

}  // namespace
}  // namespace specd
