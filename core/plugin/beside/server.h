// The host's side of a drafter's own thread: makes calls of messages, and answers. It knows which sequences
// the drafter has, so that one that has failed is left out of the calls behind.
//
// One thread: that of the drafter. It allocates nothing for a call, once it has seen calls as large.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/heartbeat.h"
#include "core/plugin/beside/messages.h"
#include "core/plugin/beside/score.h"
#include "core/plugin/instance/instance.h"

namespace specd {

// Of a shadow: is told what becomes of its calls, on its thread, or on the step's for a process.
class ShadowObserver {
 public:
  virtual ~ShadowObserver() = default;
  // A propose() of which nothing is usable has failed.
  virtual void called(CallKind kind, const Status& status, uint64_t took_ns) = 0;
  virtual void lost(uint32_t n_sequences, const std::string& why) = 0;
  virtual void refused(uint32_t n_proposals, const std::string& defect) = 0;  // or parts of them
  virtual void scored(int32_t n_nodes, int32_t n_accepted) = 0;
};

// Scores the proposals of `drafter`, which is active.
std::unique_ptr<ProposalScore> score_for(const Drafter& drafter, const CallShape& shape,
                                         ShadowObserver& observer);

class DrafterServer {
 public:
  // All must outlive this. `drafter` is active, in host memory. `lane`: where its services work. `replies` is
  // null for a shadow, which has `score` and `observer` instead.
  DrafterServer(Drafter& drafter, const CallShape& shape, ServiceLane& lane, RingReader requests,
                RingWriter* replies, ProposalScore* score, ShadowObserver* observer);

  // Serves calls until `stop` is true and the bell rings, and ends the sequences that are left. Once `abandoned`
  // is true it makes no further call.
  void run(const std::atomic<bool>& stop, const std::atomic<bool>& abandoned);

 private:
  struct Seat {
    uint64_t seq_id = 0;
    void* state = nullptr;
    bool is_on = false;
  };
  struct Message {
    MessageHead head;
    const std::byte* data;
    MessageLayout at;
    template <typename T>
    const T* array(size_t offset) const {
      return reinterpret_cast<const T*>(data + offset);
    }
    const MessageSequence* sequences() const { return array<MessageSequence>(at.sequences); }
  };
  Message read(std::span<const std::byte> bytes) const;
  void handle(const Message& message);
  void begin(const Message& message);
  void update(const Message& message);
  void propose(const Message& message);
  void end(const Message& message);
  void end_all(uint32_t reason);
  void skip_to(uint32_t epoch);

  void open_batch(const MessageHead& head);
  void add(const MessageSequence& sequence);
  specd_batch& close_batch();
  bool has(const MessageSequence& sequence) const {
    const Seat& its = seats_[sequence.slot];
    return its.is_on && its.seq_id == sequence.seq_id;
  }
  // After begin() or update(): ends the sequences that failed, and answers.
  void finish(const Message& message, const Status& status, uint64_t took_ns);
  void call_end(uint32_t slot, uint32_t reason);

  struct Reply {
    ReplyHead head;
    std::string text;
    ReplyLayout at;
    std::byte* data = nullptr;
    Reply(const ReplyHead& its_head, std::string its_text)
        : head(its_head), text(std::move(its_text)), at(its_head, {}) {}
    ReplySequence* sequences() { return reinterpret_cast<ReplySequence*>(data + at.sequences); }
    int32_t* array(size_t offset) { return reinterpret_cast<int32_t*>(data + offset); }
  };
  bool open(Reply& reply);
  void answer(uint64_t number, const Status& status, uint64_t took_ns);
  void score_all(const Status& status, uint64_t took_ns);
  std::string why(const Status& status) const;
  // Calls fn(); a call for which there is no memory has failed.
  template <typename Fn>
  static Status or_exhausted(Fn&& fn);

  Drafter& drafter_;
  const CallShape shape_;
  RingReader requests_;
  RingWriter* const replies_;
  ProposalScore* const score_;
  ShadowObserver* const observer_;
  // A call that does not return is given up by the step; see LiveRoute::condemn().
  Heartbeat beat_;
  const std::atomic<bool>* stop_ = nullptr;
  uint32_t epoch_ = 0;
  std::vector<Seat> seats_;  // by slot

  // The batch of the call that runs.
  specd_call call_;
  specd_batch batch_{};
  specd_tensor slots_{};
  std::vector<uint64_t> seq_id_;
  std::vector<void*> state_;
  std::vector<uint32_t> slot_;
  std::vector<int32_t> slot_column_;
  std::vector<specd_status> status_;
  std::vector<specd_sampling> sampling_;
  std::vector<const specd_sampling*> sampling_ptr_;
  std::vector<const MessageSequence*> asked_;
  const std::vector<std::span<const int32_t>> no_text_;  // what propose() may follow: nothing
  // Columns of update().
  std::vector<uint32_t> offsets_;
  std::vector<int32_t> seq_index_, position_, token_, next_token_, node_, hidden_row_, last_row_,
      last_hidden_row_, top_row_;
  std::vector<specd_tensor> hidden_;
  std::vector<const specd_tensor*> hidden_ptr_;
  // Columns of propose().
  std::vector<int32_t> root_token_, root_position_, budget_, n_nodes_, draft_, parent_, flags_,
      q_row_;
};

}  // namespace specd
