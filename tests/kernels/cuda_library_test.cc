// The CUDA library, as far as it can be tested without a GPU: it loads, has its exports, and
// reports what is missing. Tests that need a device are in tests/gpu.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif

#include "kernels/cuda/nccl.h"
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

TEST(CudaLibrary, finds_nccl_or_says_what_to_install) {
  ASSERT_NE(library(), nullptr);
  CudaProblem problem;
  void* nccl = dlopen(cuda::nccl::kLibrary, RTLD_NOW | RTLD_LOCAL);
  EXPECT_EQ(library()->make_group(nullptr, problem), nccl != nullptr) << problem.text;
  if (nccl != nullptr) return;
  EXPECT_STREQ(problem.text,
               "ranks need NCCL, and libnccl.so.2 cannot be loaded; install libnccl2");
}

#ifdef NCCL_MAJOR

// What a call passes for one argument: the same for both, or what looks the same to a machine.
template <typename Ours, typename Theirs>
constexpr bool passes_the_same =
    std::is_same_v<Ours, Theirs> || (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) ||
    (std::is_same_v<Ours, int> && std::is_enum_v<Theirs> && sizeof(Theirs) == sizeof(int)) ||
    (std::is_same_v<Ours, cuda::nccl::UniqueId> && std::is_same_v<Theirs, ncclUniqueId>);

template <typename Ours, typename Theirs>
constexpr bool calls_the_same = false;
template <typename OurResult, typename... Ours, typename TheirResult, typename... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) constexpr bool calls_the_same<
    OurResult (*)(Ours...), TheirResult (*)(Theirs...)> = passes_the_same<OurResult, TheirResult> &&
                                                          (passes_the_same<Ours, Theirs> && ...);

TEST(CudaLibrary, declares_nccl_as_its_header_does) {
  using cuda::nccl::Calls;
  static_assert(cuda::nccl::kSuccess == ncclSuccess && cuda::nccl::kInProgress == ncclInProgress &&
                cuda::nccl::kBytes == ncclUint8);
  static_assert(sizeof(cuda::nccl::UniqueId) == sizeof(ncclUniqueId) &&
                alignof(cuda::nccl::UniqueId) == alignof(ncclUniqueId));
  static_assert(calls_the_same<decltype(Calls::get_unique_id), decltype(&ncclGetUniqueId)>);
  static_assert(calls_the_same<decltype(Calls::comm_init_rank), decltype(&ncclCommInitRank)>);
  static_assert(calls_the_same<decltype(Calls::comm_abort), decltype(&ncclCommAbort)>);
  static_assert(
      calls_the_same<decltype(Calls::comm_get_async_error), decltype(&ncclCommGetAsyncError)>);
  static_assert(calls_the_same<decltype(Calls::get_error_string), decltype(&ncclGetErrorString)>);
  static_assert(calls_the_same<decltype(Calls::get_last_error), decltype(&ncclGetLastError)>);
  static_assert(calls_the_same<decltype(Calls::all_gather), decltype(&ncclAllGather)>);
  static_assert(calls_the_same<decltype(Calls::broadcast), decltype(&ncclBroadcast)>);
  static_assert(calls_the_same<decltype(Calls::send), decltype(&ncclSend)>);
  static_assert(calls_the_same<decltype(Calls::receive), decltype(&ncclRecv)>);
  static_assert(calls_the_same<decltype(Calls::group_start), decltype(&ncclGroupStart)>);
  static_assert(calls_the_same<decltype(Calls::group_end), decltype(&ncclGroupEnd)>);
}

#endif

}  // namespace
}  // namespace specd::kernels
