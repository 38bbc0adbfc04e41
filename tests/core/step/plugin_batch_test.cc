#include "core/step/plugin_batch.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "core/device/cuda_device.h"

namespace specd {
namespace {

// A plugin that gets a host address as one of the device crashes.
TEST(PluginBatch, without_device_memory_its_slots_stay_on_the_host) {
  setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
  setenv("SPECD_FAKE_CUDA", "bytes=4096", 1);
  const auto device = open_cuda_device(0, {}).value();
  unsetenv("SPECD_FAKE_CUDA");
  Staging columns = Staging::create(*device, 1024, "numbers").value();
  columns.add<int32_t>(100'000);
  ASSERT_EQ(columns.status().code(), Code::kExhausted);
  PluginBatch batch({}, 1);
  EXPECT_EQ(batch.place_on(*device, columns).code(), Code::kExhausted);
  EXPECT_EQ(batch.batch.slots->device_type, SPECD_DEV_CPU);
  EXPECT_EQ(batch.batch.stream, nullptr);
  columns.clear();
  ASSERT_TRUE(batch.place_on(*device, columns).ok());
  EXPECT_EQ(batch.batch.slots->device_type, SPECD_DEV_CUDA);
}

}  // namespace
}  // namespace specd
