// Work that others put on a worker's stream within a step: a drafter that writes its tokens on the
// device before the forward, and the verifier that judges them there behind the draw. The worker
// and its graphs know parts by this face alone.
// [step] all functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/device/staging.h"

namespace specd {

// Everything that decides what a step submits and where its columns lie; what the columns hold is
// no part of it.
using StepShape = std::vector<uint64_t>;

// What a part has to do again on the host when what it submitted is repeated as a graph.
class StreamRecord {
 public:
  virtual ~StreamRecord() = default;
};

class StreamPart {
 public:
  virtual ~StreamPart() = default;

  // Of no other submitter of this process: one whose work cannot be captured is remembered by it.
  virtual uint64_t submitter() const = 0;
  virtual void add_shape(StepShape& shape) const = 0;
  // Whether submit() does the same each time, so that a graph may stand for it.
  virtual bool may_capture() const = 0;
  // The tokens that it writes, for TokenPick; in the worker's staging.
  virtual const Column<int32_t>& tokens() const = 0;

  // Puts its work before the forward on the stream. Null: it failed, or did what cannot be
  // repeated.
  virtual std::unique_ptr<StreamRecord> submit(bool capturing) = 0;
  // Puts its work behind the draw on the stream. `drawn`: [logits rows] on the device. False: the
  // work depends on more than its columns and must not be repeated as a graph.
  virtual bool submit_behind(const Column<int32_t>& drawn, bool capturing) = 0;

  // Whether what `record` notes would be asked for again now; then the memory it needs is taken.
  // The numbers say where that lies: a graph fits only where they are equal. Between this and
  // submit() or repeat() nothing else happens on the stream.
  virtual std::optional<std::vector<uint64_t>> reserve(const StreamRecord& record) = 0;
  // The host's part of what is noted; a graph does the rest.
  virtual void repeat(const StreamRecord& record) = 0;
  // After a graph was captured and launched: whether it does what `first`, submitted without
  // capturing, did, and nothing of it failed.
  virtual bool repeats(const StreamRecord& first, const StreamRecord& captured) const = 0;
  // Nothing of what submit() put on the stream will run.
  virtual void drop() = 0;
};

}  // namespace specd
