// Where the channels of an FFN go when it is widened, so that the sums of down_proj keep their bits.
//
// Strict arithmetic adds down_proj in segments of k: kRowParallelSegments, or one for codes, whose runs
// groups alone cut. What is added has a weight of zero there, and adding zero changes no bit. So the
// channels of a segment go, in order, to the start of the same segment.
#pragma once

#include <cstdint>
#include <vector>

namespace specd::host {

// The source's channel at each of `width` places, or -1 at those that are added. REQUIRES
// width >= source_width + n_segments, so that each segment has room.
std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width, int32_t n_segments);

}  // namespace specd::host
