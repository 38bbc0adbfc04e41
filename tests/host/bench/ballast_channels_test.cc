// Each segment of the source stays whole, in order, in the segment of its number.
#include "host/bench/ballast_channels.h"

#include <gtest/gtest.h>

namespace specd::host {
namespace {

int64_t segment_of(int64_t k, int64_t width, int64_t n_segments) {
  int64_t segment = 0;
  while (width * (segment + 1) / n_segments <= k) ++segment;
  return segment;
}

TEST(BallastChannels, segments_stay_whole_and_in_order) {
  for (const int32_t source : {8, 9, 97, 103, 448, 1000, 1024}) {
    for (int32_t width = source + 8; width < 2 * source + 100; ++width) {
      const std::vector<int32_t> channels = ballast_channels(source, width, 8);
      ASSERT_EQ(channels.size(), static_cast<size_t>(width));
      int32_t next = 0;
      for (int32_t k = 0; k < width; ++k) {
        const int32_t from = channels[static_cast<size_t>(k)];
        if (from < 0) continue;
        ASSERT_EQ(from, next++) << "in order, each once";
        ASSERT_EQ(segment_of(k, width, 8), segment_of(from, source, 8))
            << source << " in " << width;
      }
      ASSERT_EQ(next, source);
    }
  }
}

TEST(BallastChannels, of_codes_stay_where_they_are) {
  const std::vector<int32_t> channels = ballast_channels(100, 192, 1);
  for (int32_t k = 0; k < 192; ++k) ASSERT_EQ(channels[static_cast<size_t>(k)], k < 100 ? k : -1);
}

}  // namespace
}  // namespace specd::host
