// What the engine is made of. For the files of Engine alone.
//
//   options   what the options mean, and what can be said about them without loading anything
//   target    what clients and plugins know of the target model; prompts to ids
//   models    devices, weights, KV pages, draft models
//   intake    where clients' threads and the step thread meet; the books of requests
//   routes/   what can be asked for (board), changes of it (control)
//   batch     the sequences that wait and run, with their pages
//   loop      the step thread
//   admit     requests are checked and queued
//   reports   snapshots; metrics: the same as named numbers
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/clock.h"
#include "core/engine.h"
#include "core/engine/batch.h"
#include "core/engine/intake.h"
#include "core/engine/loop.h"
#include "core/engine/models.h"
#include "core/engine/routes/control.h"
#include "core/engine/target.h"
#include "core/request/request_metrics.h"
#include "core/step/runner.h"

namespace specd {

struct Engine::Impl {
  explicit Impl(const EngineOptions& wanted)
      : options(wanted), intake(wanted.queue_max), routes(options, target, models, intake) {}
  ~Impl() {
    if (loop != nullptr) loop->stop();
    // What is still in the stream uses memory that is freed now.
    if (models.cuda != nullptr) (void)models.cuda->synchronize();
  }

  const EngineOptions options;
  const uint64_t started_ns = now_ns();
  Target target;
  Models models;
  RequestMetrics request_metrics;
  Intake intake;
  RouteControl routes;
  // Null until load() is through.
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<Batch> batch;
  std::unique_ptr<Loop> loop;

  Status load(const ProgressFn& progress);
  Status check(const Request& request) const;
  Result<Ticket> admit(const Request& request, Sink sink);
};

}  // namespace specd
