#include "host/bench/ballast_channels.h"

#include <algorithm>

#include "core/base/to_size.h"
#include "core/model/split.h"

namespace specd::host {
namespace {

int64_t segment_begin(int64_t width, int64_t segment) {
  return width * segment / kRowParallelSegments;
}

}  // namespace

std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width, int32_t group) {
  std::vector<int32_t> channels(to_size(width), -1);
  int64_t free = 0;  // all behind it is, with groups by whole ones
  for (int64_t segment = 0; segment < kRowParallelSegments; ++segment) {
    const int64_t end = segment_begin(width, segment + 1),
                  source_end = segment_begin(source_width, segment + 1);
    free = std::max(free, segment_begin(width, segment));
    for (int64_t from = segment_begin(source_width, segment), n = 0; from < source_end; from += n) {
      n = source_end - from;
      if (group > 0) {
        n = std::min(n, group - from % group);
        // A segment may begin or end inside a group.
        const int64_t next = (free / group + 1) * group;
        if (std::min(next, end) - free < n) free = next;
      }
      if (free + n > end) return {};
      for (int64_t i = 0; i < n; ++i) channels[to_size(free + i)] = static_cast<int32_t>(from + i);
      free += n;
      if (group > 0) free = (free + group - 1) / group * group;
    }
  }
  return channels;
}

}  // namespace specd::host
