// Replaces a version that must end before the next is made (Replace::kStopFirst).
#include "core/engine/routes/control.h"

#include <new>
#include <utility>

#include "core/base/log.h"

namespace specd {

namespace {

constexpr std::chrono::milliseconds kStopPause{1};

}  // namespace

Status RouteControl::stop(RouteTable table, const std::string& name, RouteChange& done) {
  const RouteSwap swap{.route = name, .running = RunningRequests::kDrop};
  if (!intake_.between_steps([&] {
        board_.publish(std::move(table));
        requests_.swap(swap, done);
      })) {
    return no_boundary();
  }
  // A request that was just being admitted comes with the version that it found.
  const auto end = std::chrono::steady_clock::now() + Intake::kBoundaryWait;
  board_.retire_released();
  while (board_.is_draining(name)) {
    if (std::chrono::steady_clock::now() >= end) {
      return Status(Code::kDeadlineExceeded,
                    "a request that is being admitted holds the version before; try again");
    }
    std::this_thread::sleep_for(kStopPause);
    if (!intake_.between_steps([&] { requests_.swap(swap, done); }))
      return Status(Code::kUnavailable, "the step that runs does not end");
    board_.retire_released();
  }
  return Status();
}

Result<RouteChange> RouteControl::stop_and_make(const RouteCommand& command,
                                                const DrafterLimit& limit) {
  const std::string& name = command.route.name;
  RouteChange done{.generation = generation_ + 1};
  if (command.how.dry_run) {
    const RouteSwap swap{name, nullptr, RunningRequests::kDrop, true};
    if (!intake_.between_steps([&] { requests_.swap(swap, done); })) return no_boundary();
    done.memory_bytes_max = limit.bytes;
    return done;
  }
  // A want of memory up to here changes nothing.
  RouteTable table = *board_.read();
  RouteEntry& entry = table[name];
  EngineEvent event =
      plan_for(EventKind::kStopped, *entry.live, "ends to make room for the next").event;
  event.request_id = command.how.request_id;
  const std::weak_ptr<LiveRoute> old = entry.live->route;
  entry.live->route = nullptr;
  entry.live->state = RouteState::kStopped;
  const RouteVersion before = *entry.live;
  entry = {.live = before, .refused = Status(Code::kUnavailable, event.text)};
  const auto is_stopped = [&] {
    return board_.read()->at(name).live->state == RouteState::kStopped;
  };
  Status failed;
  try {
    failed = stop(std::move(table), name, done);
    if (!is_stopped()) return failed;
    log(LogLevel::kInfo, event.text);
    events_.add(std::move(event));
    // Once more: the version before stays if its plugin does not return.
    if (failed.ok())
      failed =
          as_status(room_for(maker_.memories(), board_.held(), limit, Replace::kStopFirst, false));
    if (failed.ok()) {
      Result<RouteChange> made = make(*board_.read(), command);
      if (made.ok()) {
        made.value().n_dropped += done.n_dropped;
        return made;
      }
      failed = made.status();
    }
  } catch (const std::bad_alloc&) {
    if (!is_stopped()) throw;
    failed = Status(Code::kExhausted, "no memory left");
  }
  return bring_back(before, old, failed);
}

Status RouteControl::bring_back(const RouteVersion& before, const std::weak_ptr<LiveRoute>& old,
                                const Status& because) {
  const std::string& name = before.options.name;
  const auto told = [&](const std::string& what) {
    return Status(because.code(), because.field(), because.message() + what);
  };
  try {
    Plan plan{.table = *board_.read(), .event = {}, .at_boundary = true, .is_way_back = true};
    RouteEntry& entry = plan.table[name];
    RouteVersion again{.options = before.options, .route = old.lock()};
    Status failed;
    if (again.route == nullptr) {
      const auto make_again = [&]() SPECD_REQUIRES(mutex_) -> Result<RouteMaker::Made> {
        board_.retire_released();
        SPECD_TRY(const DrafterLimit limit, maker_.limit(before.options));
        SPECD_OK_OR_RETURN(as_status(
            room_for(maker_.memories(), board_.held(), limit, Replace::kStopFirst, false)));
        return maker_.make(before.options, generation_ + 1);
      };
      Result<RouteMaker::Made> made = make_again();
      failed = made.status();
      if (made.ok()) {
        again.route = board_.share(std::move(made.value().route));
        plan.taps = std::move(made.value().taps);
      }
    }
    if (failed.ok()) {
      const Plan event = plan_for(EventKind::kRolledBack, again,
                                  "is what the route was before, which is live again: the new "
                                  "version failed: " +
                                      because.text());
      plan.event = event.event;
      plan.version = plan.to = again.route;
      entry = {.live = std::move(again)};
      const std::string generation = std::to_string(plan.event.generation);
      failed = as_status(commit(std::move(plan), {}));
      if (failed.ok())
        return told("; the version before is live again, as generation " + generation);
    }
    const std::string text =
        "; and the version before could not be made again, so the route goes on without drafts: " +
        failed.text();
    const EngineEvent event{.kind = EventKind::kStopped,
                            .route = name,
                            .text = "route " + name + ": " + because.text() + text};
    RouteTable table = *board_.read();
    table[name].refused = told(text);
    board_.publish(std::move(table));
    log(LogLevel::kError, event.text);
    events_.add(event);
    return told(text);
  } catch (const std::bad_alloc&) {
    return told(
        "; there is no memory to make the version before again, so the route goes on without "
        "drafts");
  }
}

}  // namespace specd
