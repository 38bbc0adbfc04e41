#include "core/plugin/bundle/version_order.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace specd {
namespace {

TEST(VersionOrder, is_that_of_semver) {
  // The examples of semver.org 2.0.0, item 11, and around them.
  const std::vector<std::string> order{"0",
                                       "0.9",
                                       "1.0.0-alpha",
                                       "1.0.0-alpha.1",
                                       "1.0.0-alpha.beta",
                                       "1.0.0-beta",
                                       "1.0.0-beta.2",
                                       "1.0.0-beta.11",
                                       "1.0.0-rc.1",
                                       "1.0.0",
                                       "1.0.1",
                                       "1.2",
                                       "1.9.9",
                                       "1.10",
                                       "2.0.0-0",
                                       "2.0.0",
                                       "2.1.0",
                                       "2.1.1",
                                       "10",
                                       "18446744073709551616.1",
                                       "18446744073709551617"};
  for (size_t i = 0; i < order.size(); ++i) {
    for (size_t j = 0; j < order.size(); ++j) {
      EXPECT_EQ(is_newer(order[i], order[j]), i > j) << order[i] << " and " << order[j];
    }
  }
}

TEST(VersionOrder, of_the_same_version_neither_is_newer) {
  for (const auto& [a, b] : {std::pair("1.0.0", "1.0.0+build.5"), std::pair("1.0+a", "1+b"),
                             std::pair("1.02", "1.2"), std::pair("", "0")}) {
    EXPECT_FALSE(is_newer(a, b)) << a << " and " << b;
    EXPECT_FALSE(is_newer(b, a)) << a << " and " << b;
  }
}

TEST(VersionOrder, puts_words_behind_numbers) {
  EXPECT_TRUE(is_newer("1.x", "1.99"));
  EXPECT_TRUE(is_newer("b", "a"));
}

}  // namespace
}  // namespace specd
