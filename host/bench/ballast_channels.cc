#include "host/bench/ballast_channels.h"

#include "core/base/check.h"
#include "core/base/to_size.h"

namespace specd::host {

std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width, int32_t n_segments) {
  SPECD_CHECK(width >= source_width + n_segments, "each segment has room");
  const auto begin = [&](int64_t n, int64_t segment) { return n * segment / n_segments; };
  std::vector<int32_t> channels(to_size(width), -1);
  for (int64_t segment = 0; segment < n_segments; ++segment) {
    int64_t to = begin(width, segment);
    for (int64_t from = begin(source_width, segment); from < begin(source_width, segment + 1);)
      channels[to_size(to++)] = static_cast<int32_t>(from++);
  }
  return channels;
}

}  // namespace specd::host
