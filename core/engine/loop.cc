#include "core/engine/loop.h"

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/failpoint.h"
#include "core/base/log.h"
#include "core/base/thread.h"

namespace specd {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{10};

}  // namespace

Loop::~Loop() { SPECD_CHECK(!thread_.joinable(), "call stop() first"); }

void Loop::start() {
  thread_ = start_thread("specd-step", [this] { run(); });
}

void Loop::stop() {
  if (!thread_.joinable()) return;
  intake_.stop();
  thread_.join();
}

void Loop::run() {
  bool goes_on = true;
  while (goes_on) {
    // A shortage of memory ends requests and nothing else. If there is not even the memory to end
    // them, the next turn tries again.
    try {
      goes_on = turn();
    } catch (const std::bad_alloc&) {
      is_out_of_memory_ = true;
      std::this_thread::sleep_for(kMemoryRetry);
    }
  }
}

// False when it was the last one.
bool Loop::turn() {
  if (is_out_of_memory_) {
    if (failed_.ok()) failed_ = runner_.abandon();
    batch_.fail_running(no_memory_for("a step"));
    is_out_of_memory_ = false;
    log(LogLevel::kError, "a step found no memory; the requests that it computed have ended");
  }
  Intake::Arrived arrived = intake_.wait(!batch_.empty(), beat_);
  for (ActiveSequence& next : arrived.sequences) batch_.add(std::move(next));
  if (arrived.task != nullptr) {
    bool has_memory = true;
    try {
      arrived.task();
    } catch (const std::bad_alloc&) {
      has_memory = false;
    }
    intake_.finish_task(has_memory);
  }
  batch_.end_unwanted();
  if (arrived.stop) return false;
  if (failed_.ok()) failed_ = step();
  if (failed_.ok()) return true;
  // The KV of all sequences is lost with the device: every request ends with the reason.
  for (ActiveSequence& next : intake_.fail(failed_)) batch_.add(std::move(next));
  batch_.fail_all(intake_.failure());
  return true;
}

Status Loop::step() {
  SPECD_FAILPOINT(kStepBegin);
  batch_.start_followers();
  const StepPlan plan = batch_.plan();
  SPECD_OK_OR_RETURN(batch_.carry_out(plan));
  intake_.set_waiting(static_cast<int32_t>(batch_.n_waiting()));
  // With a CUDA device the text of a step is sent while the next step is computed.
  const auto send_all = [this] {
    for (ActiveSequence& member : batch_.running()) {
      const bool runs = member.slot >= 0 && member.sequence->finish() == FinishReason::kNone;
      if (runs) member.sequence->send();  // a sequence that has ended gets one last event
    }
  };
  SPECD_TRY(const StepCounters done, runner_.run(plan, batch_.running(), send_all));
  counters_.steps += done.rows > 0 ? 1 : 0;  // 0 when all planned sequences have ended meanwhile
  counters_.rows += done.rows;
  counters_.kv_moves += done.kv_moves;
  batch_.settle([this](Sequence& sequence) {
    if (device_.is_host()) sequence.send();
  });
  return Status();
}

}  // namespace specd
