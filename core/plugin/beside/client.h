// The step's side of a drafter that works on a thread of its own: calls become messages. begin(), update() and
// end() return at once; only propose() waits, until a deadline.
//
//   after the commit   update ->                       the drafter learns, while the host plans the next step
//   in the next step   begin, propose ->  <- proposals   one wait
//
// A proposal that comes too late is dropped, and until it comes the drafter is not ready. When the ring has no
// room for an update, an end or a proposal, the drafter is far behind: it loses all its sequences, and what it has
// not read is skipped.
//
// [step] all functions, none of which allocates but for the text of an error.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/beside/messages.h"
#include "core/plugin/instance/drafter_calls.h"

namespace specd {

using OnCalled = std::function<void(CallKind kind, const Status& status, uint64_t took_ns)>;

// What others are told; each may be missing.
struct ClientHooks {
  // How a begin() or an update() has ended, told in take_answers().
  OnCalled on_called = {};
  // The same of every call, propose() too, for a drafter whose calls nothing else counts here.
  OnCalled on_answered = {};
  std::atomic<uint64_t>* hidden_bytes = nullptr;  // of hidden states that were copied
  // Nobody will answer any more. propose() then waits no longer, once the bell of the replies rings.
  const std::atomic<bool>* is_gone = nullptr;
};

struct ClientLimits {
  uint64_t wait_ns = 0;  // for a proposal; 0 = a shadow, for whom nobody waits
  uint64_t hang_ns = 0;  // a call that has not returned by then never will
};

class DrafterClient final : public DrafterCalls {
 public:
  // `name`: of the plugin, for errors. A shadow has no `replies`.
  DrafterClient(std::string name, const CallShape& shape, const ClientLimits& limits,
                RingWriter requests, RingReader* replies, ClientHooks hooks);

  Status begin(const specd_begin_args& args, specd_call& call) override;
  Status update(const specd_update_args& args, specd_call& call) override;
  // Writes the proposals to args.out, as the drafter would.
  Status propose(const specd_propose_args& args, specd_call& call) override;
  void end(const specd_end_args& args, specd_call& call) override;
  bool is_immediate() const override { return false; }
  Status take_answers() override;
  bool may_begin() const override;
  bool is_ready() const override { return awaited_ == 0; }
  SequenceLoss loss_of(uint32_t slot, uint64_t seq_id) override;
  const char* why_lost() const override { return why_; }

 private:
  struct Seat {
    uint64_t seq_id = 0;    // 0 = free
    uint64_t begun_by = 0;  // number of its begin(): a sequence may begin again in the same slot
    SequenceLoss loss = SequenceLoss::kNone;
  };
  bool is_gone() const { return hooks_.is_gone != nullptr && *hooks_.is_gone; }
  bool is_shadow() const { return replies_ == nullptr; }
  bool has(const specd_batch& batch, uint32_t s) const;
  // Room for a message, with its head in place; null when the drafter is too far behind.
  std::byte* open(MessageHead& head, const MessageLayout& at);
  MessageHead head_of(CallKind kind, const specd_batch& batch) const;
  void publish();
  // Starts anew: the drafter has no sequence any more.
  void fall_behind();
  void say_why(std::string_view text);
  bool take_replies(const specd_propose_args* args, Status& status);
  void note_losses(const ReplyHead& head, const std::byte* data, const ReplyLayout& at);
  static void tell(const OnCalled& whom, const ReplyHead& head, const std::byte* data,
                   const ReplyLayout& at);
  Status take_proposals(const ReplyHead& head, const std::byte* data, const ReplyLayout& at,
                        const specd_propose_args& args);

  const std::string name_;
  const CallShape shape_;
  const ClientLimits limits_;
  RingWriter requests_;
  RingReader* const replies_;
  const ClientHooks hooks_;
  std::vector<Seat> seats_;     // by slot
  std::vector<int32_t> index_;  // by slot: its index in the proposal that is awaited, or -1
  uint32_t epoch_ = 0;
  uint64_t n_calls_ = 0;
  uint64_t awaited_end_ = 0;  // behind its message in the ring
  uint64_t awaited_ = 0;      // number of the propose() that has not been answered; 0 = none
  bool is_behind_ = false;    // since fall_behind(), until it has read everything
  uint64_t seen_read_ = 0;    // how far the drafter had read
  uint64_t looked_ns_ = 0;    // when that was
  uint64_t waited_ns_ = 0;    // for that to change
  char why_[kReplyTextMax + 1] = {};
};

}  // namespace specd
