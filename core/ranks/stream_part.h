// Work that others submit to a worker's stream within a step: a drafter that writes its tokens on
// the device before the forward, and the verifier that judges them there after the draw. The worker
// and its graphs know parts only through this interface.
// [step] all functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/device/staging.h"

namespace specd {

// Everything that determines what a step submits and where its columns are, but not the content of
// the columns.
using StepShape = std::vector<uint64_t>;

// What the rows of a step have drawn, on the device.
struct DrawnColumns {
  Column<int32_t> token;       // [logits rows]
  const float* law = nullptr;  // [logits rows, vocab], of the rows that want it
  Column<float> lse = {};      // [logits rows]; empty when no row wants its law
};

// What a part must repeat on the host when its work is repeated as a graph.
class StreamRecord {
 public:
  virtual ~StreamRecord() = default;
};

class StreamPart {
 public:
  virtual ~StreamPart() = default;

  // A number that is unique in this process. Submitters whose work cannot be captured are
  // remembered by it.
  virtual uint64_t submitter() const = 0;
  virtual void add_shape(StepShape& shape) const = 0;
  // Whether submit() does the same each time, so that a graph can replace it.
  virtual bool may_capture() const = 0;
  // The tokens that it writes, for TokenPick; in the worker's staging.
  virtual const Column<int32_t>& tokens() const = 0;

  // Submits the work before the forward. Null: it failed, or it cannot be repeated.
  virtual std::unique_ptr<StreamRecord> submit(bool capturing) = 0;
  // Submits the work after the draw. False: the work depends on more than its columns and must not be
  // repeated as a graph.
  virtual bool submit_behind(const DrawnColumns& drawn, bool capturing) = 0;

  // Returns nothing when the part would now do other work than `record` says, or when memory for it
  // is short. Otherwise takes the memory and returns its layout; a graph fits only an equal layout.
  // REQUIRES that nothing else is submitted between this and submit() or repeat().
  virtual std::optional<std::vector<uint64_t>> reserve(const StreamRecord& record) = 0;
  // Repeats the host's part of the recorded work; a graph does the rest.
  virtual void repeat(const StreamRecord& record) = 0;
  // Called after a graph was captured and launched: whether its work is that of `first`, which was
  // submitted without a graph, and nothing of it failed.
  virtual bool repeats(const StreamRecord& first, const StreamRecord& captured) const = 0;
  // Called when none of the work that submit() submitted will run.
  virtual void drop() = 0;
};

}  // namespace specd
