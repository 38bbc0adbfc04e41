#include <gtest/gtest.h>

#include <atomic>
#include <vector>

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
