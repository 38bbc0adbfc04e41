// Where the channels of an FFN go when it is widened, so that the sums of down_proj keep their bits.
//
// Strict arithmetic adds down_proj in kRowParallelSegments segments of k, and each segment in runs: the k
// of one group of scales, if there are groups, else all of them. What is added has a weight of zero there,
// and adding zero changes no bit. So each run of the source goes, in order, to the start of a run of the
// same segment: elsewhere it would be rounded differently. With groups that run belongs to a group of its
// own, which gets the scale of the source's group.
#pragma once

#include <cstdint>
#include <vector>

namespace specd::host {

// The source's channel at each of `width` places, or -1 at those that are added. Empty when `width` is too
// narrow. `group`: k that share a scale, and a divisor of `width`; 0 = there are no groups.
std::vector<int32_t> ballast_channels(int32_t source_width, int32_t width, int32_t group);

}  // namespace specd::host
