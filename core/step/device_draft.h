// A route's drafts on a device: its drafter proposes in the worker's stream right before the
// forward, and its verifier, where it can work there, judges right behind the draw. Both are
// checked on the host when the step's work is done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/services/model.h"
#include "core/ranks/stream_part.h"
#include "core/step/proposal.h"
#include "core/step/verification.h"

namespace specd {

class DeviceDraft final : public StreamPart {
 public:
  // Before compose(): the members get trees of the expected shape. `columns` is the worker's.
  DeviceDraft(StepContext& step, LiveRoute& route, Members members, Staging& columns);
  // After compose(), which gave the members their places.
  void prepare_verdict();
  // When the device is done: drafts and verdicts become those of the members.
  void take(const std::vector<int32_t>& drawn);

  const Members& members() const { return proposal_.members(); }
  // Element of tokens() that is node 0 of member s.
  int32_t first_token(size_t s) const {
    return static_cast<int32_t>(static_cast<int64_t>(s) * proposal_.capacity());
  }

  uint64_t submitter() const override { return proposal_.route().number; }
  void add_shape(StepShape& shape) const override;
  bool may_capture() const override { return proposal_.route().may_capture(); }
  const Column<int32_t>& tokens() const override { return proposal_.token; }
  std::unique_ptr<StreamRecord> submit(bool capturing) override;
  bool submit_behind(const Column<int32_t>& drawn, bool capturing) override;
  std::optional<std::vector<uint64_t>> reserve(const StreamRecord& record) override;
  void repeat(const StreamRecord& record) override;
  bool repeats(const StreamRecord& first, const StreamRecord& captured) const override;
  void drop() override;

 private:
  StepContext& step_;
  Staging& columns_;
  Proposal proposal_;
  std::optional<Verification> verification_;
};

}  // namespace specd
