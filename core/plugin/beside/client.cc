#include "core/plugin/beside/client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/bad_alloc.h"
#include "core/base/clock.h"

namespace specd {
namespace {

// Most drafters answer sooner.
constexpr uint64_t kAnswerSpinNs = 200'000;
// So often at least the step looks before it gives a drafter up.
constexpr uint64_t kLooksMin = 4;
// Answers that the step takes at once: no writer may keep it.
constexpr int kRepliesMax = 256;

const int32_t* ints(const specd_tensor& tensor) { return static_cast<const int32_t*>(tensor.data); }

template <typename T>
T* array(std::byte* data, size_t offset) {
  return reinterpret_cast<T*>(data + offset);
}
template <typename T>
const T* array(const std::byte* data, size_t offset) {
  return reinterpret_cast<const T*>(data + offset);
}

// How the call ended.
Status status_of(const ReplyHead& head, std::string_view text) {
  if (head.code == 0) return Status();
  const bool is_code = head.code <= static_cast<uint32_t>(Code::kInternal);
  return Status(is_code ? static_cast<Code>(head.code) : Code::kInternal, std::string(text));
}

}  // namespace

DrafterClient::DrafterClient(std::string name, const CallShape& shape, const ClientLimits& limits,
                             RingWriter requests, RingReader* replies, ClientHooks hooks)
    : name_(std::move(name)),
      shape_(shape),
      limits_(limits),
      requests_(requests),
      replies_(replies),
      hooks_(std::move(hooks)),
      seats_(shape.max_batch),
      index_(shape.max_batch, -1) {}

bool DrafterClient::has(const specd_batch& batch, uint32_t s) const {
  const Seat& its = seats_[batch.slot[s]];
  return its.seq_id == batch.seq_id[s] && its.loss == SequenceLoss::kNone;
}

MessageHead DrafterClient::head_of(CallKind kind, const specd_batch& batch) const {
  return {.kind = kind, .epoch = epoch_, .step_id = batch.step_id};
}

std::byte* DrafterClient::open(MessageHead& head, const MessageLayout& at) {
  head.number = n_calls_ + 1;
  std::byte* const data = requests_.reserve(at.bytes);
  if (data != nullptr) std::memcpy(data, &head, sizeof(head));
  return data;
}

void DrafterClient::publish() {
  ++n_calls_;
  if (requests_.is_empty()) waited_ns_ = 0;
  requests_.publish();
}

void DrafterClient::fall_behind() {
  epoch_ = requests_.drop_all();
  is_behind_ = true;
  for (Seat& seat : seats_) seat.loss = SequenceLoss::kMayBegin;
  say_why("the drafter is so far behind that there is no room for more calls");
}

void DrafterClient::say_why(std::string_view text) { why_[text.copy(why_, kReplyTextMax)] = 0; }

// A message for each sequence, since each may have a long text.
Status DrafterClient::begin(const specd_begin_args& args, specd_call& /*call*/) {
  const specd_batch& batch = *args.batch;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    const uint64_t first = args.token_offsets[s];
    MessageHead head = head_of(CallKind::kBegin, batch);
    head.n_seqs = 1;
    head.argument = args.attach_mode;
    head.n_rows = static_cast<uint32_t>(args.token_offsets[s + 1] - first);
    const MessageLayout at(head, shape_);
    std::byte* const data = open(head, at);
    if (data == nullptr) {
      batch.seq_status[s] = SPECD_E_EXHAUSTED;
      continue;
    }
    *array<MessageSequence>(data, at.sequences) = {.seq_id = batch.seq_id[s],
                                                   .slot = batch.slot[s],
                                                   .sampling = *args.sampling[s],
                                                   .tenant = args.tenant[s]};
    std::copy_n(args.tokens + first, head.n_rows, array<int32_t>(data, at.token));
    publish();
    seats_[batch.slot[s]] = {.seq_id = batch.seq_id[s], .begun_by = n_calls_};
    args.seq_state[s] = nullptr;
  }
  return Status();
}

Status DrafterClient::update(const specd_update_args& args, specd_call& /*call*/) {
  const specd_batch& batch = *args.batch;
  const size_t cells = size_t{shape_.node_capacity} + 1;
  const bool has_top = shape_.top_k > 0 && args.top_row != nullptr;
  MessageHead head = head_of(CallKind::kUpdate, batch);
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    if (!has(batch, s)) continue;
    ++head.n_seqs;
    head.n_rows += args.row_offsets[s + 1] - args.row_offsets[s];
    const int32_t* const rows = has_top ? ints(*args.top_row) + s * cells : nullptr;
    if (has_top)
      head.n_top += static_cast<uint32_t>(
          std::count_if(rows, rows + cells, [](int32_t row) { return row >= 0; }));
  }
  if (head.n_seqs == 0) return Status();
  const MessageLayout at(head, shape_);
  std::byte* const data = open(head, at);
  if (data == nullptr) {
    fall_behind();
    return Status();
  }
  auto* sequence = array<MessageSequence>(data, at.sequences);
  auto* token = array<int32_t>(data, at.token);
  auto* position = array<int32_t>(data, at.position);
  auto* next_token = array<int32_t>(data, at.next_token);
  auto* node = array<int32_t>(data, at.node);
  auto* top_row = array<int32_t>(data, at.top_row);
  auto* top_token = array<int32_t>(data, at.top_token);
  const size_t width = shape_.hidden_size;
  size_t done = 0;  // rows
  int32_t n_top = 0;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    if (!has(batch, s)) continue;
    const uint32_t first = args.row_offsets[s], n = args.row_offsets[s + 1] - first;
    *sequence++ = {.seq_id = batch.seq_id[s], .slot = batch.slot[s], .n_rows = n};
    std::copy_n(ints(*args.token) + first, n, token + done);
    std::copy_n(ints(*args.position) + first, n, position + done);
    std::copy_n(ints(*args.next_token) + first, n, next_token + done);
    std::copy_n(ints(*args.node) + first, n, node + done);
    for (size_t tap = 0; tap < shape_.n_taps; ++tap) {
      const specd_tensor& from = *args.hidden[tap];
      auto* const to = array<float>(data, at.hidden) + (tap * head.n_rows + done) * width;
      for (size_t r = 0; r < n; ++r) {
        const int64_t row = ints(*args.hidden_row)[first + r];
        std::copy_n(static_cast<const float*>(from.data) + row * from.stride[0], width,
                    to + r * width);
      }
      if (hooks_.hidden_bytes != nullptr) *hooks_.hidden_bytes += n * width * sizeof(float);
    }
    done += n;
    for (size_t cell = 0; shape_.top_k > 0 && cell < cells; ++cell) {
      const int64_t row = has_top ? ints(*args.top_row)[s * cells + cell] : -1;
      *top_row++ = row < 0 ? -1 : n_top++;
      if (row < 0) continue;
      top_token = std::copy_n(ints(*args.top_token) + row * args.top_token->stride[0], shape_.top_k,
                              top_token);
    }
  }
  publish();
  return Status();
}

Status DrafterClient::propose(const specd_propose_args& args, specd_call& /*call*/) {
  const specd_batch& batch = *args.batch;
  // A shadow that does not keep up misses proposals before it misses the text.
  if (is_shadow() && requests_.backlog() > requests_.capacity() / 4) return Status();
  MessageHead head = head_of(CallKind::kPropose, batch);
  for (uint32_t s = 0; s < batch.n_seqs; ++s) head.n_seqs += has(batch, s) ? 1 : 0;
  if (head.n_seqs == 0) return Status();
  const MessageLayout at(head, shape_);
  const uint64_t until_ns = is_shadow() ? 0 : now_ns() + limits_.wait_ns;
  head.deadline_ns = until_ns;
  std::byte* const data = open(head, at);
  if (data == nullptr) {
    fall_behind();
    return Status();
  }
  auto* sequence = array<MessageSequence>(data, at.sequences);
  std::fill(index_.begin(), index_.end(), -1);
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    if (!has(batch, s)) continue;
    index_[batch.slot[s]] = static_cast<int32_t>(s);
    *sequence++ = {.seq_id = batch.seq_id[s],
                   .slot = batch.slot[s],
                   .root_token = ints(*args.root_token)[s],
                   .root_position = ints(*args.root_position)[s],
                   .budget = ints(*args.node_budget)[s],
                   .sampling = *args.sampling[s]};
  }
  publish();
  if (is_shadow()) return Status();
  awaited_ = n_calls_;
  awaited_end_ = requests_.written();
  Status status;
  while (true) {
    const uint32_t bell = replies_->bell();
    if (take_replies(&args, status)) return status;
    if (now_ns() >= until_ns || replies_->is_broken() || is_gone()) break;
    replies_->wait(bell, until_ns, kAnswerSpinNs);
  }
  if (is_gone()) return Status(Code::kUnavailable, "plugin " + name_ + ": its process has ended");
  return Status(Code::kDeadlineExceeded,
                "plugin " + name_ + ": propose() has not answered within " +
                    std::to_string(limits_.wait_ns / 1000) + " us (step_budget_us)");
}

void DrafterClient::end(const specd_end_args& args, specd_call& /*call*/) {
  const specd_batch& batch = *args.batch;
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    if (!has(batch, s)) continue;
    MessageHead head = head_of(CallKind::kEnd, batch);
    head.n_seqs = 1;
    head.argument = args.reason;
    const MessageLayout at(head, shape_);
    std::byte* const data = open(head, at);
    seats_[batch.slot[s]] = {};
    if (data == nullptr) {
      fall_behind();  // which ends it, too
      continue;
    }
    *array<MessageSequence>(data, at.sequences) = {.seq_id = batch.seq_id[s],
                                                   .slot = batch.slot[s]};
    publish();
  }
}

Status DrafterClient::take_answers() {
  Status late;
  if (!is_shadow() && take_replies(nullptr, late)) waited_ns_ = 0;
  const uint64_t now = now_ns(), read = requests_.read();
  if (awaited_ != 0 && read >= awaited_end_) awaited_ = 0;  // it was skipped, see fall_behind()
  // The drafter is given time in small pieces, since the clock goes on while the whole process is stopped.
  if (looked_ns_ != 0) waited_ns_ += std::min(now - looked_ns_, limits_.hang_ns / kLooksMin);
  looked_ns_ = now;
  if (requests_.is_empty()) is_behind_ = false;
  if (requests_.is_empty() || read != seen_read_) waited_ns_ = 0;
  seen_read_ = read;
  if ((replies_ != nullptr && replies_->is_broken()) || requests_.backlog() > requests_.capacity())
    return Status(Code::kDataLoss, "it has written where only the daemon writes");
  if (waited_ns_ < limits_.hang_ns) return Status();
  return Status(Code::kDeadlineExceeded, "a call has not returned within call_ms_max, " +
                                             std::to_string(limits_.hang_ns / 1'000'000) + " ms");
}

bool DrafterClient::may_begin() const {
  return !is_behind_ && requests_.backlog() <= requests_.capacity() / 2;
}

SequenceLoss DrafterClient::loss_of(uint32_t slot, uint64_t seq_id) {
  const Seat& its = seats_[slot];
  return its.seq_id == seq_id ? its.loss : SequenceLoss::kMayBegin;
}

// True when the answer that is awaited has come; its proposals go to `args`. Without `args`, when any answer has.
bool DrafterClient::take_replies(const specd_propose_args* args, Status& status) {
  bool has_come = false;
  for (int n = 0; n < kRepliesMax; ++n) {
    const std::span<const std::byte> bytes = replies_->front();
    if (bytes.empty()) break;
    has_come = has_come || args == nullptr;
    ReplyHead head;
    std::memcpy(&head, bytes.data(), std::min(sizeof(head), bytes.size()));
    head.took_ns = std::min(head.took_ns, kTookNsMax);
    const ReplyLayout at(head, shape_);
    const bool is_good = bytes.size() >= sizeof(head) && head.n_seqs <= shape_.max_batch &&
                         head.text_bytes <= kReplyTextMax && bytes.size() == at.bytes;
    if (is_good && hooks_.on_answered) tell(hooks_.on_answered, head, bytes.data(), at);
    if (is_good && head.kind == CallKind::kPropose && head.number == awaited_) {
      awaited_ = 0;
      has_come = true;
      if (args != nullptr) status = take_proposals(head, bytes.data(), at, *args);
    } else if (is_good && head.kind != CallKind::kPropose) {
      note_losses(head, bytes.data(), at);
    }
    replies_->pop();
  }
  return has_come;
}

void DrafterClient::note_losses(const ReplyHead& head, const std::byte* data,
                                const ReplyLayout& at) {
  const std::string_view text{array<char>(data, at.text), head.text_bytes};
  if (head.n_seqs > 0) say_why(text);
  for (uint32_t i = 0; i < head.n_seqs; ++i) {
    ReplySequence its;
    std::memcpy(&its, array<ReplySequence>(data, at.sequences) + i, sizeof(its));
    if (its.slot >= seats_.size()) continue;
    Seat& seat = seats_[its.slot];
    if (seat.seq_id == its.seq_id && head.number >= seat.begun_by) seat.loss = SequenceLoss::kFinal;
  }
  if (hooks_.on_called) tell(hooks_.on_called, head, data, at);
}

void DrafterClient::tell(const OnCalled& whom, const ReplyHead& head, const std::byte* data,
                         const ReplyLayout& at) {
  if (head.was_called == 0) return;
  const std::string_view text{array<char>(data, at.text), head.text_bytes};
  or_drop([&] { whom(head.kind, status_of(head, text), head.took_ns); });
}

Status DrafterClient::take_proposals(const ReplyHead& head, const std::byte* data,
                                     const ReplyLayout& at, const specd_propose_args& args) {
  const std::string_view text{array<char>(data, at.text), head.text_bytes};
  SPECD_OK_OR_RETURN(status_of(head, text));
  const size_t capacity = shape_.node_capacity;
  const specd_proposal& out = *args.out;
  for (uint32_t i = 0; i < head.n_seqs; ++i) {
    ReplySequence its;
    std::memcpy(&its, array<ReplySequence>(data, at.sequences) + i, sizeof(its));
    const int32_t s = its.slot < index_.size() ? index_[its.slot] : -1;
    if (s < 0 || args.batch->seq_id[s] != its.seq_id) continue;
    const auto copy = [&](size_t from, const specd_tensor& to) {
      std::copy_n(array<int32_t>(data, from) + i * capacity, capacity,
                  static_cast<int32_t*>(to.data) + static_cast<size_t>(s) * capacity);
    };
    args.batch->seq_status[s] = its.status;
    static_cast<int32_t*>(out.n_nodes->data)[s] = its.n_nodes;
    copy(at.token, *out.token);
    if (shape_.sends_parents) copy(at.parent, *out.parent);
    if (shape_.sends_flags) copy(at.flags, *out.flags);
    if (its.status != SPECD_OK && its.status != SPECD_E_DEADLINE) {
      report_text(args.batch->call, s, text);
    }
  }
  return Status();
}

}  // namespace specd
