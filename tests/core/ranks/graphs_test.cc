// Graphs by shape, on the fake CUDA device.
#include "core/ranks/graphs.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/device/staging.h"
#include "tests/device/fake_cuda.h"

namespace specd {
namespace {

class GraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    device_ = open_cuda_device(0, {}).value();
    record();
  }
  static fake_cuda::Record record() {
    static void* library = dlopen(SPECD_TEST_FAKE_CUDA, RTLD_NOW);
    const auto take =
        reinterpret_cast<fake_cuda::TakeRecordFn>(dlsym(library, fake_cuda::kTakeRecord));
    fake_cuda::Record all;
    take(&all);
    EXPECT_EQ(all.faults, std::vector<std::string>());
    return all;
  }
  std::unique_ptr<Device> device_;
};

TEST_F(GraphsTest, there_are_never_more_than_so_many_and_the_oldest_go_first) {
  Graphs graphs(*device_);
  Staging staging = Staging::create(*device_, 4096, "numbers").value();
  const auto numbers = staging.add(std::vector<int32_t>{0, 1, 2, 3});
  const auto out = staging.add<int32_t>(4);
  int submitted = 0, announced = 0;
  const auto submit = [&](uint64_t shape) {
    const auto forward = [&](bool) {
      ++submitted;
      device_->ops().pick_tokens(device_->stream(), {.source = numbers.device,
                                                     .from = numbers.device,
                                                     .target = out.device,
                                                     .to = numbers.device,
                                                     .n = 4,
                                                     .vocab = 100,
                                                     .otherwise = 0});
      staging.download(out);
      return true;
    };
    const Status status = graphs.submit({shape}, {},
                                        {.upload = [&] { staging.upload_all(); },
                                         .announce = [&] { ++announced; },
                                         .forward = forward});
    EXPECT_TRUE(status.ok()) << status.to_string();
    EXPECT_TRUE(device_->synchronize().ok());
  };
  constexpr uint64_t kMore = Graphs::kGraphsMax + 40;
  for (uint64_t shape = 0; shape < kMore; ++shape) {
    // A graph uses what its columns contain when it runs, not when it was captured.
    for (int32_t time = 0; time < 3; ++time) {
      numbers.host[0] = 0;
      for (int32_t i = 1; i < 4; ++i) numbers.host[i] = (i + time - 1) % 3 + 1;
      std::fill_n(out.host, 4, -1);
      submit(shape);
      for (int32_t i = 0; i < 4; ++i)
        ASSERT_EQ(out.host[numbers.host[i]], numbers.host[numbers.host[i]]);
    }
    ASSERT_LE(record().n_graphs, Graphs::kGraphsMax);
  }
  EXPECT_EQ(submitted, 2 * static_cast<int>(kMore)) << "the third time nothing is submitted";
  EXPECT_EQ(announced, 3 * static_cast<int>(kMore)) << "other ranks know of each";
  const int before = submitted;
  submit(kMore - 1);
  EXPECT_EQ(submitted, before) << "the newest is still there";
  submit(0);
  EXPECT_EQ(submitted, before + 1) << "the oldest is not";
  graphs.clear();
  EXPECT_EQ(record().n_graphs, 0u);
}

}  // namespace
}  // namespace specd
