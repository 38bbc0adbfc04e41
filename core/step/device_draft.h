// A route that drafts on a device: its drafter proposes on the worker's stream right before the
// forward, and its verifier, if it can work there, judges right after the draw. The host checks the
// results of both when the step's work is done.
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
  // Call before compose(): gives the members trees of the expected shape. `columns` are the
  // worker's.
  DeviceDraft(StepContext& step, LiveRoute& route, Members members, Staging& columns);
  // Call after compose(), which sets the members' places.
  void prepare_verdict();
  // Call when the device is done: gives the members their checked drafts and verdicts.
  void take(const std::vector<int32_t>& drawn);

  const Members& members() const { return proposal_.members(); }
  // The element of tokens() for node 0 of member s.
  int32_t first_token(size_t s) const {
    return static_cast<int32_t>(static_cast<int64_t>(s) * proposal_.capacity());
  }

  uint64_t submitter() const override { return proposal_.route().number; }
  void add_shape(StepShape& shape) const override;
  bool may_capture() const override { return proposal_.route().may_capture(); }
  const Column<int32_t>& tokens() const override { return proposal_.token; }
  std::unique_ptr<StreamRecord> submit(bool capturing) override;
  bool submit_behind(const DrawnColumns& drawn, bool capturing) override;
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
