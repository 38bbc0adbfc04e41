// Each run of the source stays one, in its segment and in a group of its own.
#include "host/bench/ballast_channels.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace specd::host {
namespace {

constexpr int64_t kSegments = 8;

// The segment of channel `k`, and its group.
std::pair<int64_t, int64_t> run_of(int64_t k, int64_t width, int64_t group) {
  int64_t segment = 0;
  while (width * (segment + 1) / kSegments <= k) ++segment;
  return {segment, group == 0 ? 0 : k / group};
}

void check(int32_t source_width, int32_t width, int32_t group) {
  const std::vector<int32_t> channels = ballast_channels(source_width, width, group);
  if (channels.empty()) return;
  ASSERT_EQ(channels.size(), static_cast<size_t>(width));
  std::map<std::pair<int64_t, int64_t>, std::pair<int64_t, int64_t>> runs;  // of the source's
  std::map<int64_t, std::set<int64_t>> groups;
  int32_t next = 0;
  for (int32_t k = 0; k < width; ++k) {
    const int32_t from = channels[static_cast<size_t>(k)];
    if (from < 0) continue;
    EXPECT_EQ(from, next++) << "in order, each once";
    const auto source = run_of(from, source_width, group), run = run_of(k, width, group);
    EXPECT_EQ(run.first, source.first) << "segment";
    EXPECT_EQ(runs.emplace(source, run).first->second, run) << "a run is not cut";
    if (group > 0) groups[k / group].insert(from / group);
  }
  EXPECT_EQ(next, source_width);
  std::set<std::pair<int64_t, int64_t>> targets;
  for (const auto& [source, run] : runs)
    EXPECT_TRUE(targets.insert(run).second) << "two runs became one";
  for (const auto& [at, sources] : groups) EXPECT_EQ(sources.size(), 1u) << "group " << at;
}

TEST(BallastChannels, runs_stay_whole_apart_and_in_order) {
  for (const int32_t source : {8, 9, 97, 103, 448, 1000, 1024}) {
    for (const int32_t group : {0, 64, 128}) {
      const int32_t step = group == 0 ? 8 : group;
      for (int32_t width = (source / step + 1) * step; width < 2 * source + 1024; width += step) {
        SCOPED_TRACE(std::to_string(source) + " in " + std::to_string(width) + ", groups of " +
                     std::to_string(group));
        check(source, width, group);
        if (HasFailure()) return;
      }
    }
  }
}

TEST(BallastChannels, what_is_wide_enough_for_whole_groups_holds_its_source) {
  for (const int32_t source : {9, 97, 448, 1024, 11008, 14336}) {
    for (const int32_t group : {64, 128}) {
      const int32_t least = (source / (8 * group) + 3) * 8 * group;
      for (int32_t width = least; width < least + 32 * group; width += group)
        EXPECT_FALSE(ballast_channels(source, width, group).empty()) << source << " " << width;
    }
    for (int32_t width = source + 8; width < source + 100; ++width)
      EXPECT_FALSE(ballast_channels(source, width, 0).empty()) << source << " " << width;
  }
}

TEST(BallastChannels, a_width_without_room_is_none) {
  EXPECT_TRUE(ballast_channels(448, 512, 64).empty());  // segments of 64 for runs of 56, 8 and 48
  EXPECT_FALSE(ballast_channels(448, 1024, 64).empty());
  EXPECT_TRUE(ballast_channels(100, 99, 0).empty());
  const std::vector<int32_t> same = ballast_channels(512, 512, 64);  // nothing is cut
  for (int32_t k = 0; k < 512; ++k) EXPECT_EQ(same[static_cast<size_t>(k)], k);
}

}  // namespace
}  // namespace specd::host
