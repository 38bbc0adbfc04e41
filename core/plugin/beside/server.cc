#include "core/plugin/beside/server.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "core/base/bad_alloc.h"
#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/plugin/instance/tensor.h"

namespace specd {
namespace {

// After an update() the step plans, and asks for a proposal.
constexpr uint64_t kCallSpinNs = 50'000;
constexpr std::chrono::milliseconds kReplyPause{1};

int64_t size_of(const std::vector<int32_t>& column) { return static_cast<int64_t>(column.size()); }

specd_tensor tensor_of(std::vector<int32_t>& column) {
  return host_i32(column.data(), {size_of(column)});
}

}  // namespace

std::unique_ptr<ProposalScore> score_for(const Drafter& drafter, const CallShape& shape,
                                         ShadowObserver& observer) {
  const specd_drafter_grant& grant = drafter.grant();
  const TreeLimits limits{.vocab_size = static_cast<int32_t>(shape.vocab_size),
                          .node_budget = 0,
                          .max_depth = static_cast<int32_t>(grant.max_depth),
                          .probes = shape.sends_flags};
  return std::make_unique<ProposalScore>(
      shape.max_batch, limits,
      [&observer](int32_t n_nodes, int32_t n_accepted) { observer.scored(n_nodes, n_accepted); },
      [&observer](const char* defect, int32_t node) {
        observer.refused(1, std::string(defect) + " at node " + std::to_string(node));
      });
}

DrafterServer::DrafterServer(Drafter& drafter, const CallShape& shape, ServiceLane& lane,
                             RingReader requests, RingWriter* replies, ProposalScore* score,
                             ShadowObserver* observer)
    : drafter_(drafter),
      shape_(shape),
      requests_(requests),
      replies_(replies),
      score_(score),
      observer_(observer),
      beat_(replies == nullptr ? "specd-shadow" : "specd-drafter", drafter.owner().label,
            Heartbeat::kNoLimit),
      seats_(shape.max_batch) {
  call_.lane = &lane;
}

void DrafterServer::run(const std::atomic<bool>& stop, const std::atomic<bool>& abandoned) {
  stop_ = &stop;
  while (!abandoned) {
    const uint32_t bell = requests_.bell();
    const bool is_over = stop;
    const std::span<const std::byte> bytes = requests_.front();
    skip_to(requests_.epoch());
    if (bytes.empty()) {
      if (is_over || requests_.is_broken()) break;
      requests_.wait(bell, UINT64_MAX, replies_ == nullptr ? 0 : kCallSpinNs);
      continue;
    }
    const BusyTurn turn(beat_);
    const Message message = read(bytes);
    // Nobody waits any more for what the others would do.
    const MessageHead& head = message.head;
    if (head.epoch == epoch_ && (!is_over || head.kind == CallKind::kEnd)) handle(message);
    requests_.pop();
  }
  const BusyTurn turn(beat_);
  if (!abandoned) end_all(SPECD_END_SWAPPED);
}

DrafterServer::Message DrafterServer::read(std::span<const std::byte> bytes) const {
  constexpr char kWhy[] = "the step writes messages of this shape";
  MessageHead head;
  SPECD_CHECK(bytes.size() >= sizeof(head), kWhy);
  std::memcpy(&head, bytes.data(), sizeof(head));
  SPECD_CHECK(head.n_seqs > 0 && head.n_seqs <= shape_.max_batch, kWhy);
  const Message message{head, bytes.data(), MessageLayout(head, shape_)};
  SPECD_CHECK(message.at.bytes == bytes.size(), kWhy);
  for (uint32_t s = 0; s < head.n_seqs; ++s)
    SPECD_CHECK(message.sequences()[s].slot < seats_.size(), kWhy);
  return message;
}

void DrafterServer::handle(const Message& message) {
  switch (message.head.kind) {
    case CallKind::kBegin:
      return begin(message);
    case CallKind::kUpdate:
      return update(message);
    case CallKind::kPropose:
      return propose(message);
    case CallKind::kEnd:
      return end(message);
  }
}

template <typename Fn>
Status DrafterServer::or_exhausted(Fn&& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, "there is no memory for the call");
  }
}

void DrafterServer::open_batch(const MessageHead& head) {
  call_.clear();
  batch_ = {};
  batch_.struct_size = sizeof(batch_);
  batch_.step_id = head.step_id;
  batch_.deadline_ns = head.deadline_ns;
  for (auto* column : {&slot_column_, &seq_index_, &position_, &token_, &next_token_, &node_,
                       &hidden_row_, &last_row_, &last_hidden_row_, &top_row_, &root_token_,
                       &root_position_, &budget_, &n_nodes_, &draft_, &parent_, &flags_, &q_row_}) {
    column->clear();
  }
  seq_id_.clear();
  state_.clear();
  slot_.clear();
  status_.clear();
  sampling_.clear();
  sampling_ptr_.clear();
  asked_.clear();
  offsets_.assign(1, 0);
}

void DrafterServer::add(const MessageSequence& sequence) {
  asked_.push_back(&sequence);
  seq_id_.push_back(sequence.seq_id);
  state_.push_back(seats_[sequence.slot].state);
  slot_.push_back(sequence.slot);
  slot_column_.push_back(static_cast<int32_t>(sequence.slot));
  status_.push_back(SPECD_OK);
  sampling_.push_back(sequence.sampling);
}

specd_batch& DrafterServer::close_batch() {
  for (const specd_sampling& each : sampling_) sampling_ptr_.push_back(&each);
  slots_ = tensor_of(slot_column_);
  batch_.n_seqs = static_cast<uint32_t>(seq_id_.size());
  batch_.call = &call_;
  batch_.seq_id = seq_id_.data();
  batch_.seq_state = state_.data();
  batch_.seq_status = status_.data();
  batch_.slot = slot_.data();
  batch_.slots = &slots_;
  call_.batch = &batch_;
  call_.sampling = sampling_ptr_.data();
  call_.committed = nullptr;
  return batch_;
}

void DrafterServer::begin(const Message& message) {
  const uint64_t start_ns = now_ns();
  const Status status = or_exhausted([&] {
    const MessageSequence& sequence = *message.sequences();
    Seat& its = seats_[sequence.slot];
    if (its.is_on) call_end(sequence.slot, SPECD_END_SWAPPED);  // its end was lost
    open_batch(message.head);
    add(sequence);
    const uint64_t offsets[2] = {0, message.head.n_rows};
    specd_begin_args args{};
    args.struct_size = sizeof(args);
    args.attach_mode = message.head.argument;
    args.batch = &close_batch();
    batch_.seq_state = nullptr;
    args.token_offsets = offsets;
    args.tokens = message.array<int32_t>(message.at.token);
    args.sampling = sampling_ptr_.data();
    args.seq_state = state_.data();
    args.tenant = &sequence.tenant;
    Status begun = drafter_.begin(args, call_);
    if (begun.ok() && status_[0] == SPECD_OK) its = {sequence.seq_id, state_[0], true};
    return begun;
  });
  finish(message, status, now_ns() - start_ns);
}

void DrafterServer::update(const Message& message) {
  const uint64_t start_ns = now_ns();
  const Status status = or_exhausted([&] {
    open_batch(message.head);
    const MessageSequence* const sequences = message.sequences();
    const auto* const token = message.array<int32_t>(message.at.token);
    const auto* const position = message.array<int32_t>(message.at.position);
    const auto* const next_token = message.array<int32_t>(message.at.next_token);
    const auto* const node = message.array<int32_t>(message.at.node);
    const auto* const top_row = message.array<int32_t>(message.at.top_row);
    const size_t n_top = shape_.top_k > 0 ? size_t{shape_.node_capacity} + 1 : 0;
    uint32_t row = 0;
    for (uint32_t s = 0; s < message.head.n_seqs; ++s) {
      const MessageSequence& sequence = sequences[s];
      const uint32_t first = row;
      row += sequence.n_rows;
      if (!has(sequence)) continue;
      const auto index = static_cast<int32_t>(seq_id_.size());
      add(sequence);
      for (uint32_t r = first; r < row; ++r) {
        seq_index_.push_back(index);
        position_.push_back(position[r]);
        token_.push_back(token[r]);
        next_token_.push_back(next_token[r]);
        node_.push_back(node[r]);
        hidden_row_.push_back(static_cast<int32_t>(r));
        if (score_ != nullptr) score_->committed(sequence.slot, position[r] + 1, next_token[r]);
      }
      const bool has_rows = row > first;
      last_row_.push_back(has_rows ? static_cast<int32_t>(position_.size()) - 1 : -1);
      last_hidden_row_.push_back(has_rows ? static_cast<int32_t>(row) - 1 : -1);
      offsets_.push_back(static_cast<uint32_t>(position_.size()));
      top_row_.insert(top_row_.end(), top_row + s * n_top, top_row + (s + 1) * n_top);
    }
    if (seq_id_.empty() || !drafter_.has_update()) return Status();
    const auto n_seqs = static_cast<int64_t>(seq_id_.size());
    const bool mirrors = (drafter_.grant().needs & SPECD_NEED_HOST_TOKENS) != 0;
    const specd_tensor seq_index = tensor_of(seq_index_), positions = tensor_of(position_),
                       tokens = tensor_of(token_), next_tokens = tensor_of(next_token_),
                       nodes = tensor_of(node_), last_row = tensor_of(last_row_),
                       hidden_row = tensor_of(hidden_row_),
                       last_hidden_row = tensor_of(last_hidden_row_);
    specd_update_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = static_cast<uint32_t>(position_.size());
    args.batch = &close_batch();
    args.row_offsets = offsets_.data();
    args.seq_index = &seq_index;
    args.position = &positions;
    args.token = &tokens;
    args.next_token = &next_tokens;
    args.node = &nodes;
    args.last_row = &last_row;
    if (mirrors) {
      args.host_position = position_.data();
      args.host_token = token_.data();
      args.host_next_token = next_token_.data();
      args.host_node = node_.data();
    }
    if (shape_.n_taps > 0) {
      const size_t n_rows = message.head.n_rows, width = shape_.hidden_size;
      // Tensors have no const; the header forbids writing.
      auto* const first = const_cast<float*>(message.array<float>(message.at.hidden));
      hidden_.clear();
      hidden_ptr_.clear();
      for (size_t tap = 0; tap < shape_.n_taps; ++tap) {
        hidden_.push_back(host_tensor(first + tap * n_rows * width, SPECD_DT_FLOAT, 32,
                                      {static_cast<int64_t>(n_rows), static_cast<int64_t>(width)}));
      }
      for (const specd_tensor& each : hidden_) hidden_ptr_.push_back(&each);
      args.hidden_row = &hidden_row;
      args.last_hidden_row = &last_hidden_row;
      args.hidden = hidden_ptr_.data();
      if (mirrors) args.host_hidden_row = hidden_row_.data();
    }
    specd_tensor top_rows{}, top_token{};
    if (message.head.n_top > 0) {
      auto* const top = const_cast<int32_t*>(message.array<int32_t>(message.at.top_token));
      top_rows = host_i32(top_row_.data(), {n_seqs, static_cast<int64_t>(n_top)});
      top_token = host_i32(top, {message.head.n_top, shape_.top_k});
      args.top_row = &top_rows;
      args.top_token = &top_token;
      if (mirrors) {
        args.host_top_row = top_row_.data();
        args.host_top_token = top;
      }
    }
    return drafter_.update(args, call_);
  });
  finish(message, status, now_ns() - start_ns);
}

void DrafterServer::propose(const Message& message) {
  const uint64_t start_ns = now_ns();
  const size_t capacity = shape_.node_capacity;
  const specd_drafter_grant& grant = drafter_.grant();
  const Status status = or_exhausted([&] {
    open_batch(message.head);
    for (uint32_t s = 0; s < message.head.n_seqs; ++s) {
      const MessageSequence& sequence = message.sequences()[s];
      if (!has(sequence)) continue;
      add(sequence);
      root_token_.push_back(sequence.root_token);
      root_position_.push_back(sequence.root_position);
      budget_.push_back(sequence.budget);
    }
    if (seq_id_.empty()) return Status();
    const size_t cells = seq_id_.size() * capacity;
    n_nodes_ = budget_;
    draft_.assign(cells, SPECD_NO_TOKEN);
    parent_.assign(cells, 0);
    flags_.assign(cells, 0);
    if (!shape_.sends_parents) drafter_.set_fixed_parents(parent_.data(), cells, capacity);
    const auto n = static_cast<int64_t>(seq_id_.size());
    const auto width = static_cast<int64_t>(capacity);
    const specd_tensor root_token = tensor_of(root_token_),
                       root_position = tensor_of(root_position_), budget = tensor_of(budget_),
                       n_nodes = tensor_of(n_nodes_), token = host_i32(draft_.data(), {n, width}),
                       parent = host_i32(parent_.data(), {n, width}),
                       flags = host_i32(flags_.data(), {n, width});
    specd_proposal out{};
    out.struct_size = sizeof(out);
    out.node_capacity = shape_.node_capacity;
    out.n_nodes = &n_nodes;
    out.token = &token;
    out.parent = &parent;
    out.flags = shape_.sends_flags ? &flags : nullptr;
    specd_tensor q_row{}, q{}, q_lse{};
    if ((grant.features & SPECD_FEATURE_Q) != 0) {  // of a shadow: no verifier reads them
      q_row_.assign(cells + seq_id_.size(), -1);
      q_row = host_i32(q_row_.data(), {n, width + 1});
      q = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0, shape_.vocab_size});
      q_lse = host_tensor(nullptr, SPECD_DT_FLOAT, 32, {0});
      out.q_row = &q_row;
      out.q = &q;
      out.q_lse = &q_lse;
    }
    specd_propose_args args{};
    args.struct_size = sizeof(args);
    args.batch = &close_batch();
    args.root_token = &root_token;
    args.root_position = &root_position;
    args.node_budget = &budget;
    if ((grant.needs & SPECD_NEED_HOST_TOKENS) != 0) {
      args.host_root_token = root_token_.data();
      args.host_root_position = root_position_.data();
      args.host_node_budget = budget_.data();
    }
    args.sampling = sampling_ptr_.data();
    args.out = &out;
    call_.committed = &no_text_;
    Status proposed = drafter_.propose(args, call_);
    if (!shape_.sends_parents)  // the plugin may have changed them
      drafter_.set_fixed_parents(parent_.data(), cells, capacity);
    return proposed;
  });
  const uint64_t took_ns = now_ns() - start_ns;
  if (score_ != nullptr) return or_drop([&] { score_all(status, took_ns); });
  answer(message.head.number, status, took_ns);
}

void DrafterServer::end(const Message& message) {
  for (uint32_t s = 0; s < message.head.n_seqs; ++s) {
    const MessageSequence& sequence = message.sequences()[s];
    if (has(sequence)) call_end(sequence.slot, message.head.argument);
  }
}

// Needs no memory.
void DrafterServer::call_end(uint32_t slot, uint32_t reason) {
  Seat& its = seats_[slot];
  specd_status status = SPECD_OK;
  auto slot_value = static_cast<int32_t>(slot);
  const specd_tensor slots = host_i32(&slot_value, {1});
  call_.clear();
  specd_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.n_seqs = 1;
  batch.call = &call_;
  batch.seq_id = &its.seq_id;
  batch.seq_state = &its.state;
  batch.seq_status = &status;
  batch.slot = &slot;
  batch.slots = &slots;
  call_.batch = nullptr;
  call_.sampling = nullptr;
  call_.committed = nullptr;
  specd_end_args args{};
  args.struct_size = sizeof(args);
  args.reason = reason;
  args.batch = &batch;
  drafter_.end(args, call_);
  if (score_ != nullptr) score_->ended(slot);
  its = {};
}

void DrafterServer::end_all(uint32_t reason) {
  for (uint32_t slot = 0; slot < seats_.size(); ++slot) {
    if (seats_[slot].is_on) call_end(slot, reason);
  }
}

void DrafterServer::finish(const Message& message, const Status& status, uint64_t took_ns) {
  const bool is_begin = message.head.kind == CallKind::kBegin;
  // Without memory the batch may lack sequences of the message.
  const auto each_failed = [&](auto&& fn) {
    const size_t n = status.ok() ? asked_.size() : message.head.n_seqs;
    for (size_t s = 0; s < n; ++s) {
      const specd_status failed = status.ok() ? status_[s] : specd_status{SPECD_E_INTERNAL};
      const MessageSequence& its = status.ok() ? *asked_[s] : message.sequences()[s];
      if (failed != SPECD_OK && (is_begin || has(its))) fn(its, failed);
    }
  };
  const uint32_t was_called = !status.ok() || !asked_.empty() ? 1 : 0;
  uint32_t n_failed = 0;
  each_failed([&](const MessageSequence&, specd_status) { ++n_failed; });
  Reply reply({.kind = message.head.kind,
               .code = static_cast<uint32_t>(status.code()),
               .number = message.head.number,
               .took_ns = took_ns,
               .was_called = was_called,
               .n_seqs = n_failed},
              n_failed > 0 || !status.ok() ? why(status) : std::string());
  if (open(reply)) {
    ReplySequence* next = reply.sequences();
    each_failed([&](const MessageSequence& its, specd_status failed) {
      *next++ = {.seq_id = its.seq_id, .slot = its.slot, .status = failed};
    });
    replies_->publish();
  }
  if (!is_begin) {  // which keeps nothing of those
    each_failed([&](const MessageSequence& its, specd_status) {
      call_end(its.slot, SPECD_END_QUARANTINED);
    });
  }
  if (observer_ == nullptr) return;
  or_drop([&] {
    if (was_called != 0) observer_->called(message.head.kind, status, took_ns);
    if (n_failed > 0) observer_->lost(n_failed, reply.text);
  });
}

// Of the proposals of a shadow.
void DrafterServer::score_all(const Status& status, uint64_t took_ns) {
  const size_t capacity = shape_.node_capacity;
  if (status.ok() && asked_.empty()) return;  // it was not called
  bool is_usable = false;
  auto n_refused = static_cast<uint32_t>(status.ok() ? 0 : std::max<size_t>(asked_.size(), 1));
  for (size_t s = 0; status.ok() && s < asked_.size(); ++s) {
    if (status_[s] != SPECD_OK && status_[s] != SPECD_E_DEADLINE) {
      ++n_refused;
      continue;
    }
    const bool usable =
        score_->proposed(asked_[s]->slot, asked_[s]->root_position, asked_[s]->budget, n_nodes_[s],
                         draft_.data() + s * capacity, parent_.data() + s * capacity,
                         shape_.sends_flags ? flags_.data() + s * capacity : nullptr);
    is_usable = is_usable || usable;
  }
  const std::string text = why(status);
  if (n_refused > 0) observer_->refused(n_refused, text);
  const bool has_failed = status.ok() && !is_usable;
  observer_->called(CallKind::kPropose,
                    has_failed ? Status(Code::kInternal, "nothing is usable: " + text) : status,
                    took_ns);
}

void DrafterServer::answer(uint64_t number, const Status& status, uint64_t took_ns) {
  const auto n = static_cast<uint32_t>(status.ok() ? asked_.size() : 0);
  Reply reply({.kind = CallKind::kPropose,
               .code = static_cast<uint32_t>(status.code()),
               .number = number,
               .took_ns = took_ns,
               .was_called = 1,
               .n_seqs = n},
              why(status));
  if (!open(reply)) return;
  for (uint32_t s = 0; s < n; ++s) {
    reply.sequences()[s] = {.seq_id = asked_[s]->seq_id,
                            .slot = asked_[s]->slot,
                            .status = status_[s],
                            .n_nodes = n_nodes_[s]};
  }
  std::copy_n(draft_.data(), n * shape_.node_capacity, reply.array(reply.at.token));
  if (shape_.sends_parents) {
    std::copy_n(parent_.data(), n * shape_.node_capacity, reply.array(reply.at.parent));
  }
  if (shape_.sends_flags) {
    std::copy_n(flags_.data(), n * shape_.node_capacity, reply.array(reply.at.flags));
  }
  replies_->publish();
}

// Makes room for a reply and writes its head and its text; false when there is nobody to read it. Waits while
// the step has not read the others.
bool DrafterServer::open(Reply& reply) {
  if (replies_ == nullptr) return false;
  reply.head.text_bytes = static_cast<uint32_t>(std::min(reply.text.size(), kReplyTextMax));
  reply.at = ReplyLayout(reply.head, shape_);
  while ((reply.data = replies_->reserve(reply.at.bytes)) == nullptr) {
    if (*stop_) return false;
    std::this_thread::sleep_for(kReplyPause);
  }
  std::memcpy(reply.data, &reply.head, sizeof(reply.head));
  std::memcpy(reply.data + reply.at.text, reply.text.data(), reply.head.text_bytes);
  return true;
}

// Of the call, or of the first sequence that failed; empty when none did.
std::string DrafterServer::why(const Status& status) const {
  std::string text;
  or_drop([&] {
    if (!status.ok()) text = status.message();
    for (size_t s = 0; status.ok() && s < status_.size() && text.empty(); ++s) {
      if (status_[s] == SPECD_OK || status_[s] == SPECD_E_DEADLINE) continue;
      text = status_text(status_[s]);
      const auto more = call_.sequence_text.find(static_cast<int32_t>(s));
      if (more != call_.sequence_text.end()) text += ": " + more->second;
    }
  });
  return text;
}

void DrafterServer::skip_to(uint32_t epoch) {
  if (epoch == epoch_) return;
  end_all(SPECD_END_SWAPPED);
  epoch_ = epoch;
}

}  // namespace specd
