// The step thread: takes new requests, plans and runs steps, and sends their text to clients.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/base/heartbeat.h"
#include "core/engine/batch.h"
#include "core/engine/intake.h"
#include "core/step/runner.h"

namespace specd {

// Written by the step thread, read by reports.
struct LoopCounters {
  std::atomic<uint64_t> steps{0}, rows{0}, kv_moves{0};
};

class Loop {
 public:
  // All must outlive this.
  Loop(Intake& intake, Batch& batch, StepRunner& runner, Device& device)
      : intake_(intake), batch_(batch), runner_(runner), device_(device) {}
  // REQUIRES that stop() was called, or start() was not.
  ~Loop();

  // [control]
  void start();
  void stop();  // cancels what is left and waits for the thread

  const LoopCounters& counters() const { return counters_; }
  const Heartbeat& beat() const { return beat_; }

 private:
  void run();
  bool turn();
  Status step();

  Intake& intake_;
  Batch& batch_;
  StepRunner& runner_;
  Device& device_;
  LoopCounters counters_;
  Heartbeat beat_{"specd-step", "", Heartbeat::kNoLimit};
  bool is_out_of_memory_ = false;  // the last turn was
  Status failed_;                  // of the device
  std::thread thread_;
};

}  // namespace specd
