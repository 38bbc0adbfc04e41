// What the files of ModelService agree on.
#pragma once

#include <algorithm>
#include <string>

#include "core/exec/service_arguments.h"
#include "core/kv/block_table.h"
#include "core/model/draft_model.h"
#include "specd/plugin_api/drafter.h"

namespace specd {

inline constexpr uint32_t kRowsMax = 1u << 24;  // of one call; keeps sums inside 32 bits
inline constexpr int32_t kTailMax = SPECD_MAX_TREE_NODES;
inline constexpr size_t kNameBytesMax = 256;
// A sequence that drafted in the step before misses the last committed token, and the last draft as
// well when all were accepted, since that one was never fed.
inline constexpr int32_t kSteadyRows = 2;
inline constexpr uint64_t kBlocks =
    4;  // forwards of the largest size between two waits; more of usual ones
inline constexpr size_t kTopKMax = 64;  // on or beside a device that is not the host

inline size_t at(int32_t i) { return static_cast<size_t>(i); }

// Of one forward: pages of a sequence, and rows of all tails together.
inline int64_t table_max(const DraftModel& model) {
  return pages_for(int64_t{model.config.max_positions} + kTailMax) + model.kv->parts_per_page();
}
inline int64_t tail_max(const DraftModel& model) {
  return std::max<int64_t>(2 * kTailMax, int64_t{16} * model.rows_max);
}

inline std::string range_of(int64_t end) { return "0.." + std::to_string(end - 1); }

inline specd_status refuse_capture(specd_call* call, const char* what) {
  return refuse(call, SPECD_E_PRECONDITION,
                std::string("model.") + what + ": not in a propose() that is being captured");
}

// Empty when the arrays of a call can be walked.
inline std::string offsets_fault(const uint32_t* offsets, uint32_t n_seqs, uint32_t n_rows) {
  if (offsets[0] != 0) return "row_offsets[0] is " + std::to_string(offsets[0]) + ", expected 0";
  for (uint32_t s = 0; s < n_seqs; ++s) {
    if (offsets[s + 1] < offsets[s]) return "row_offsets decrease at " + std::to_string(s + 1);
  }
  if (offsets[n_seqs] != n_rows) {
    return "row_offsets end at " + std::to_string(offsets[n_seqs]) + ", expected n_rows " +
           std::to_string(n_rows);
  }
  return std::string();
}

}  // namespace specd
