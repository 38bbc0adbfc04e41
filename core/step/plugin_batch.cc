#include "core/step/plugin_batch.h"

#include "core/base/clock.h"
#include "core/plugin/instance/instance.h"
#include "core/plugin/instance/tensor.h"

namespace specd {

specd_tensor tensor_of(const Device& device, bool on_device, const Column<int32_t>& column,
                       std::initializer_list<int64_t> shape) {
  if (!on_device) return host_i32(column.host, shape);
  return in_device_memory(host_i32(column.device, shape), device.index());
}

PluginBatch::PluginBatch(const Members& members, uint64_t step_id) {
  for (const ActiveSequence* member : members) {
    const Sequence& sequence = *member->sequence;
    committed_.emplace_back(sequence.tokens());
    seq_id_.push_back(sequence.number());
    state_.push_back(member->draft.drafter_state);
    slot_.push_back(static_cast<uint32_t>(member->slot));
    slot_column_.push_back(member->slot);
    sampling_.push_back(sequence.sampling().for_plugins(sequence.n_left()));
  }
  for (const specd_sampling& each : sampling_) sampling_ptr.push_back(&each);
  status.assign(members.size(), SPECD_OK);
  slots_ = host_i32(slot_column_.data(), {static_cast<int64_t>(members.size())});
  batch.struct_size = sizeof(batch);
  batch.n_seqs = static_cast<uint32_t>(members.size());
  batch.step_id = step_id;
  batch.call = &call;
  batch.seq_id = seq_id_.data();
  batch.seq_state = state_.data();
  batch.seq_status = status.data();
  batch.slot = slot_.data();
  batch.slots = &slots_;
  call.batch = &batch;
  call.sampling = sampling_ptr.data();
}

Status PluginBatch::place_on(Device& device, Staging& columns) {
  const Column<int32_t> column = columns.add(slot_column_);
  SPECD_OK_OR_RETURN(columns.status());
  slots_ = tensor_of(device, true, column, {static_cast<int64_t>(column.n)});
  batch.stream = device.native_stream();
  return Status();
}

std::vector<const int32_t*> PluginBatch::text() const {
  std::vector<const int32_t*> text;
  for (const auto& each : committed_) text.push_back(each.data());
  return text;
}

std::vector<uint32_t> PluginBatch::text_len() const {
  std::vector<uint32_t> n;
  for (const auto& each : committed_) n.push_back(static_cast<uint32_t>(each.size()));
  return n;
}

std::string PluginBatch::why(size_t i) const {
  const auto text = call.sequence_text.find(static_cast<int32_t>(i));
  return status_text(status[i]) + (text == call.sequence_text.end() ? "" : ": " + text->second);
}

uint64_t PluginBatch::start(const LiveRoute& route) {
  const uint64_t now = now_ns();
  batch.deadline_ns = route.call_ns_max == 0 ? 0 : now + route.call_ns_max;
  return now;
}

bool PluginBatch::all_ok() const {
  return std::all_of(status.begin(), status.end(),
                     [](specd_status each) { return each == SPECD_OK; });
}

}  // namespace specd
