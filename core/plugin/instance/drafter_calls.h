// The [step] calls of a drafter, whoever runs them: the step's thread itself (Drafter), or a thread beside
// it (DrafterClient).
#pragma once

#include <cstdint>

#include "core/base/status.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/drafter.h"

namespace specd {

// Of a sequence that was begun.
enum class SequenceLoss {
  kNone,
  kFinal,     // the drafter has failed it, and keeps nothing of it
  kMayBegin,  // it is not up to date, and may begin again
};

class DrafterCalls {
 public:
  virtual ~DrafterCalls() = default;

  // The caller must set args.batch->call to `call`. The Status has the plugin's text. DEADLINE
  // counts as ok: what was written is usable.
  virtual Status begin(const specd_begin_args& args, specd_call& call) = 0;
  virtual Status update(const specd_update_args& args, specd_call& call) = 0;
  virtual Status propose(const specd_propose_args& args, specd_call& call) = 0;
  virtual void end(const specd_end_args& args, specd_call& call) = 0;

  // Whether begin() and update() have run when they return.
  virtual bool is_immediate() const { return true; }
  // Once a step, before the calls: takes the answers of those that had not run. An error when none will come any
  // more: the drafter must not be called again.
  virtual Status take_answers() { return Status(); }
  // Whether there is room for begin(). It fails sequences for want of room only, unless it is immediate.
  virtual bool may_begin() const { return true; }
  // Whether propose() may be called: no proposal is still to come.
  virtual bool is_ready() const { return true; }
  virtual SequenceLoss loss_of(uint32_t /*slot*/, uint64_t /*seq_id*/) {
    return SequenceLoss::kNone;
  }
  virtual const char* why_lost() const { return ""; }  // the last one
};

}  // namespace specd
