#include "core/step/device_draft.h"

#include <algorithm>
#include <utility>

namespace specd {
namespace {

// The draft-model calls of one propose().
struct AskedModels final : StreamRecord {
  ModelRecord asked;
};

const ModelRecord& asked_of(const StreamRecord& record) {
  return static_cast<const AskedModels&>(record).asked;
}

}  // namespace

DeviceDraft::DeviceDraft(StepContext& step, LiveRoute& route, Members members, Staging& columns)
    : step_(step), columns_(columns), proposal_(step, route, std::move(members), columns) {
  proposal_.expect_trees();
  proposal_.batch().offer_committed();
}

void DeviceDraft::prepare_verdict() {
  if (proposal_.route().verifies_on_device) verification_.emplace(step_, proposal_, columns_);
}

void DeviceDraft::take(const std::vector<int32_t>& drawn) {
  const std::vector<bool> counts = proposal_.take();
  for (size_t s = 0; s < counts.size(); ++s) {
    ActiveSequence& member = *proposal_.members()[s];
    if (counts[s]) member.place.logits_of_node.resize(to_size(member.tree.size()));
  }
  if (verification_.has_value() && !proposal_.failed()) verification_->judge(counts, drawn);
}

void DeviceDraft::add_shape(StepShape& shape) const {
  shape.push_back(submitter());
  shape.push_back(reinterpret_cast<uintptr_t>(proposal_.token.device));
  if (verification_.has_value()) {
    shape.push_back(reinterpret_cast<uintptr_t>(verification_->row_token().device));
  }
  shape.insert(shape.end(), proposal_.given().begin(), proposal_.given().end());
}

std::unique_ptr<StreamRecord> DeviceDraft::submit(bool capturing) {
  auto record = std::make_unique<AskedModels>();
  step_.models.watch(&record->asked, capturing);
  const bool proposed = proposal_.call();
  step_.models.watch(nullptr, false);
  if (!proposed) return nullptr;
  return record;
}

bool DeviceDraft::submit_behind(const DrawnColumns& drawn, bool capturing) {
  if (!verification_.has_value()) return true;
  ModelRecord asked;
  verification_->submit_inputs(drawn);
  step_.models.watch(&asked, capturing);
  verification_->call();
  step_.models.watch(nullptr, false);
  verification_->submit_outputs(columns_);
  // A verifier's calls to draft models are not recorded, so a graph could not repeat them.
  return asked.calls.empty() && asked.repeatable;
}

std::optional<std::vector<uint64_t>> DeviceDraft::reserve(const StreamRecord& record) {
  return step_.models.reserve(asked_of(record), proposal_.batch().call);
}

void DeviceDraft::repeat(const StreamRecord& record) {
  step_.models.repeat(asked_of(record), proposal_.batch().call);
}

bool DeviceDraft::repeats(const StreamRecord& first, const StreamRecord& captured) const {
  const ModelRecord &was = asked_of(first), &is = asked_of(captured);
  return proposal_.is_well() && (!verification_.has_value() || verification_->is_well()) &&
         is.repeatable &&
         std::equal(was.calls.begin(), was.calls.end(), is.calls.begin(), is.calls.end(),
                    ModelRecord::alike);
}

void DeviceDraft::drop() {
  const specd_batch& batch = proposal_.batch().batch;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) step_.models.end(batch.seq_id[s]);
}

}  // namespace specd
