#include "core/base/thread.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace specd {
namespace {

TEST(Thread, CarriesItsName) {
  std::array<char, 16> name{};
  std::thread thread = start_thread(
      "fifteen-letters", [&name] { pthread_getname_np(pthread_self(), name.data(), name.size()); });
  thread.join();
  EXPECT_EQ(std::string(name.data()), "fifteen-letters");
}

}  // namespace
}  // namespace specd
