// The parts of the engine. Only for files that implement Engine.
//
//   options   the meaning of the options, and checks that need no weights
//   target    the target model as clients and plugins see it; turns prompts into ids
//   models    devices, weights, KV pages, draft models; shared_models: what all ranks know of them,
//             rank_process: the ranks that mpirun has started, memory_plan: what they will hold
//   intake    connects client threads with the step thread; accounts for requests
//   routes/   the table of routes (board) and its changes (control)
//   event_log what has happened to routes
//   batch     the waiting and the running sequences, with their pages
//   loop      the step thread
//   admit     checks and queues requests
//   reports   snapshots
//   metrics   the same as named numbers
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
      : options(wanted),
        intake(wanted.queue_max),
        routes(options, target, models, intake,
               {.swap = [this](const RouteSwap& swap,
                               RouteChange& done) { batch->swap_routes(swap, done); },
                .set_shadow =
                    [this](LiveRoute& live, std::shared_ptr<LiveRoute> shadow) {
                      batch->set_shadow(live, std::move(shadow));
                    }}) {}
  ~Impl() {
    if (loop != nullptr) loop->stop();
    // Work that is still in the stream uses memory that is about to be freed.
    if (models.cuda != nullptr) (void)models.cuda->synchronize();
  }

  const EngineOptions options;
  const uint64_t started_ns = now_ns();
  Target target;
  Models models;
  RequestMetrics request_metrics;
  Intake intake;
  RouteControl routes;
  // Made by load().
  std::unique_ptr<StepRunner> runner;
  std::unique_ptr<Batch> batch;
  std::unique_ptr<Loop> loop;

  Status load(const ProgressFn& progress);
  Status check(const Request& request) const;
  Result<Ticket> admit(const Request& request, Sink sink);
  // kApply or kStage.
  Result<RouteChange> change(RouteCommand::Kind kind, const RouteOptions& route,
                             const ChangeOptions& how);
  // The others, by the route's name.
  Result<RouteChange> change(RouteCommand::Kind kind, const std::string& name,
                             const ChangeOptions& how, const Traffic& traffic = {});
};

}  // namespace specd
