// The CUDA library, as far as it can be tested without a GPU: it loads, has its exports, and
// reports what is missing. Tests that need a device are in tests/gpu.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

#include "specd/kernels/cuda.h"

namespace specd::kernels {
namespace {

const CudaLibrary* library() {
  static void* handle = dlopen(SPECD_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(handle, nullptr) << dlerror();
  const auto entry = reinterpret_cast<CudaLibraryFn>(dlsym(handle, kCudaSymbol));
  return entry == nullptr ? nullptr : entry();
}

TEST(CudaLibrary, loads_without_a_driver) {
  ASSERT_NE(library(), nullptr);
  EXPECT_STREQ(library()->build, kCudaBuild);
}

TEST(CudaLibrary, says_what_is_missing_where_there_is_no_device) {
  ASSERT_NE(library(), nullptr);
  CudaProblem problem;
  const int32_t n = library()->count(problem);
  if (n > 0) GTEST_SKIP() << "this machine has " << n;
  const std::unique_ptr<CudaDevice> device(library()->open(0, {}, problem));
  EXPECT_EQ(device, nullptr);
  const std::string words = problem.text;
  EXPECT_NE(words.find(n < 0 ? "driver" : "0 CUDA devices"), std::string::npos) << words;
}

TEST(CudaLibrary, refuses_a_device_that_is_not_there) {
  ASSERT_NE(library(), nullptr);
  CudaProblem problem;
  if (library()->count(problem) < 1) GTEST_SKIP() << problem.text;
  for (const int32_t index : {-1, 1000}) {
    const std::unique_ptr<CudaDevice> device(library()->open(index, {}, problem));
    EXPECT_EQ(device, nullptr);
    EXPECT_NE(std::string(problem.text).find("cuda:" + std::to_string(index)), std::string::npos)
        << problem.text;
  }
}

}  // namespace
}  // namespace specd::kernels
