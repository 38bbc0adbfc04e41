// What the ranks of a group tell each other about what each has done by itself.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/collective.h"

namespace specd {

// Called by all ranks: ok when it is for each of them, else the first rank's error, which names the
// rank. Other ranks get at most 895 bytes of its message.
Status agree(Collective& ranks, const Status& mine);
// What each rank gives; `ranks` null = this one alone.
std::vector<uint64_t> gathered(Collective* ranks, uint64_t mine);
// agree() for something that each rank has made; `ranks` null = this one alone.
template <typename T>
Result<T> agreed(Collective* ranks, Result<T> mine) {
  if (ranks != nullptr) SPECD_OK_OR_RETURN(agree(*ranks, mine.status()));
  return mine;
}

}  // namespace specd
