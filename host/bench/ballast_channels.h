// Where the channels of an FFN go when it is widened, so that the sums of down_proj keep their bits.
//
// Strict arithmetic adds down_proj in kRowParallelSegments segments of k. What is added has a weight of
// zero there, and adding zero changes no bit. So the channels of a segment go, in order, to the start of
// the same segment. Of codes each output is one sum over all k, in runs that groups alone cut: there the
// channels stay where they are, and zeros follow.
#pragma once

#include <cstdint>
#include <vector>

namespace specd::host {

// For weights that are not codes: the source's channel at each of `width` places, or -1 at those that are
// added. REQUIRES width >= source_width + kRowParallelSegments, so that each segment has room.
std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width);

}  // namespace specd::host
