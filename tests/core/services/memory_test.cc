#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "specd/plugin_api/services/memory.h"
#include "tests/core/services/services_rig.h"

namespace specd {
namespace {

TEST_F(ServicesTest, memory_is_aligned_counted_and_limited) {
  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  std::string text;
  const PluginScope scope(owner_.label, &text);
  const auto alloc = [&](uint64_t bytes, uint64_t align, void** out,
                         int32_t device = SPECD_DEV_CPU) {
    return memory.alloc(host_, &owner_, device, 0, bytes, align, out);
  };
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(alloc(600, 4096, &a), SPECD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 4096, 0u);
  EXPECT_EQ(owner_.used_bytes, 600u);
  EXPECT_EQ(alloc(401, 1, &b), SPECD_E_EXHAUSTED);
  EXPECT_EQ(b, nullptr);
  EXPECT_NE(text.find("401 bytes requested, 400 of the quota of 1000 are left"), std::string::npos)
      << text;
  EXPECT_EQ(alloc(UINT64_MAX, 1, &b), SPECD_E_EXHAUSTED);
  EXPECT_EQ(alloc(400, 1, &b), SPECD_OK);
  memory.free(host_, &owner_, a);
  EXPECT_EQ(owner_.used_bytes, 400u);
  memory.free(host_, &owner_, &text);  // not ours: ignored
  memory.free(host_, &owner_, nullptr);
  EXPECT_EQ(owner_.used_bytes, 400u);
  memory.free(host_, &owner_, b);
  EXPECT_EQ(owner_.used_bytes, 0u);
  EXPECT_TRUE(owner_.blocks.empty());
  EXPECT_EQ(alloc(8, 3, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 0, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8192, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(0, 8, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8, &a, SPECD_DEV_CUDA), SPECD_E_UNSUPPORTED);
  EXPECT_EQ(memory.alloc(host_, nullptr, SPECD_DEV_CPU, 0, 8, 8, &a), SPECD_E_INVALID);
}

TEST_F(ServicesTest, scratch_lives_as_long_as_the_call) {
  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(memory.scratch(host_, &call_, 100, 64, &a), SPECD_OK);
  ASSERT_EQ(memory.scratch(host_, &call_, 100, 4096, &b), SPECD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 4096, 0u);
  std::fill_n(static_cast<char*>(a), 100, 'a');
  std::fill_n(static_cast<char*>(b), 100, 'b');
  EXPECT_EQ(memory.scratch(host_, &call_, uint64_t{256} << 20, 1, &a), SPECD_E_EXHAUSTED);
  EXPECT_EQ(memory.scratch(host_, &call_, UINT64_MAX, 1, &a), SPECD_E_EXHAUSTED);
  EXPECT_EQ(memory.scratch(host_, &call_, 8, 5, &a), SPECD_E_INVALID);
  EXPECT_EQ(memory.scratch(host_, nullptr, 8, 8, &a), SPECD_E_INVALID);
  expect_text("memory.scratch");
  EXPECT_EQ(memory.scratch(host_, &call_, 256, 1, &a), SPECD_OK);
}

}  // namespace
}  // namespace specd
