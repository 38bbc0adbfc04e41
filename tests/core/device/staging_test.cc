#include "core/device/staging.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "core/device/cuda_device.h"

namespace specd {
namespace {

std::vector<int32_t> counted(size_t n, int32_t from) {
  std::vector<int32_t> values(n);
  std::iota(values.begin(), values.end(), from);
  return values;
}

// On the host, and on the fake CUDA device, whose memory is apart.
class StagingTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    if (GetParam()) {
      device_ = open_cuda_device(0, {}).value();
    } else {
      device_ = CpuDevice::create("", 1).value();
    }
  }
  // What the device holds of a column.
  std::vector<int32_t> on_device(const Column<int32_t>& column) {
    Buffer copy = device_->allocate_pinned(std::max<uint64_t>(column.bytes(), 1), "copy").value();
    device_->copy_out(copy.data(), column.device, column.bytes());
    EXPECT_TRUE(device_->synchronize().ok());
    return {copy.as<int32_t>(), copy.as<int32_t>() + column.n};
  }
  std::unique_ptr<Device> device_;
};

TEST_P(StagingTest, columns_that_find_no_room_open_another_block_and_all_arrive) {
  Staging staging = Staging::create(*device_, 256, "numbers").value();
  std::vector<Column<int32_t>> columns;
  for (const size_t n : {10, 0, 64, 7, 500, 3}) {
    columns.push_back(staging.add(counted(n, static_cast<int32_t>(n))));
  }
  ASSERT_TRUE(staging.status().ok());
  staging.upload();
  for (const Column<int32_t>& column : columns) {
    EXPECT_EQ(on_device(column), counted(column.n, static_cast<int32_t>(column.n)));
  }
}

TEST_P(StagingTest, after_an_overflow_the_same_columns_lie_in_one_block_and_stay_there) {
  Staging staging = Staging::create(*device_, 64, "numbers").value();
  const auto addresses = [&] {
    std::vector<const int32_t*> all;
    for (const size_t n : {30, 5, 100}) all.push_back(staging.add<int32_t>(n).device);
    return all;
  };
  addresses();
  const uint64_t used = staging.used();
  EXPECT_TRUE(staging.clear()) << "two blocks became one";
  const auto first = addresses();
  EXPECT_EQ(staging.used(), used);
  EXPECT_EQ(first[1] - first[0], 32) << "columns are aligned to 64 bytes";
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(staging.clear());
    EXPECT_EQ(addresses(), first);
  }
}

TEST_P(StagingTest, upload_sends_what_is_new_and_upload_all_sends_everything) {
  Staging staging = Staging::create(*device_, 1024, "numbers").value();
  const auto first = staging.add(counted(4, 0));
  staging.upload();
  ASSERT_EQ(on_device(first), counted(4, 0));
  first.host[0] = 7;
  const auto second = staging.add(counted(4, 10));
  staging.upload();
  EXPECT_EQ(on_device(second), counted(4, 10));
  if (GetParam()) {
    EXPECT_EQ(on_device(first)[0], 0);
  }
  staging.upload_all();
  EXPECT_EQ(on_device(first)[0], 7);
}

INSTANTIATE_TEST_SUITE_P(Devices, StagingTest, testing::Bool(),
                         [](const auto& fake) { return fake.param ? "fake_cuda" : "cpu"; });

TEST(Staging, without_memory_a_column_can_still_be_filled_and_the_status_says_so) {
  setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
  setenv("SPECD_FAKE_CUDA", "bytes=4096", 1);
  const auto device = open_cuda_device(0, {}).value();
  unsetenv("SPECD_FAKE_CUDA");
  Staging staging = Staging::create(*device, 1024, "numbers").value();
  const auto column = staging.add(counted(100'000, 0));
  EXPECT_EQ(column.host[99'999], 99'999);
  EXPECT_EQ(staging.status().code(), Code::kExhausted);
  EXPECT_NE(staging.status().message().find("numbers"), std::string::npos);
  staging.clear();
  EXPECT_TRUE(staging.status().ok());
  staging.add(counted(10, 0));
  EXPECT_TRUE(staging.status().ok());
}

}  // namespace
}  // namespace specd
