#include "host/bench/ballast_channels.h"

#include "core/base/check.h"
#include "core/base/to_size.h"
#include "core/model/split.h"

namespace specd::host {
namespace {

int64_t segment_begin(int64_t width, int64_t segment) {
  return width * segment / kRowParallelSegments;
}

}  // namespace

std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width) {
  SPECD_CHECK(width >= source_width + kRowParallelSegments, "each segment has room");
  std::vector<int32_t> channels(to_size(width), -1);
  for (int64_t segment = 0; segment < kRowParallelSegments; ++segment) {
    const int64_t to = segment_begin(width, segment), from = segment_begin(source_width, segment);
    for (int64_t i = 0; from + i < segment_begin(source_width, segment + 1); ++i)
      channels[to_size(to + i)] = static_cast<int32_t>(from + i);
  }
  return channels;
}

}  // namespace specd::host
