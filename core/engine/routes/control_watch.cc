// Changes that nobody asks for: the end of a probation, the way back of a version that was suspended or condemned.
#include "core/engine/routes/control.h"

#include <new>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/log.h"

namespace specd {

namespace {

constexpr std::chrono::milliseconds kWatchPause{20};

bool must_quarantine(const RouteEntry& entry) {
  return (is_condemned(entry.live) && entry.live->state == RouteState::kLive) ||
         is_condemned(entry.candidate) || is_condemned(entry.previous);
}

}  // namespace

RouteControl::~RouteControl() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  watcher_.join();
}

void RouteControl::watch() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    bool has_more = true;
    try {
      const std::vector<std::string> names = board_.watched();
      has_more = !names.empty();
      for (const std::string& name : names) look_at(name);
    } catch (const std::bad_alloc&) {  // the next look sees the same
    }
    if (has_more) {
      changed_.wait_until(lock, CondVar::Clock::now() + kWatchPause);
    } else {
      changed_.wait(lock);
    }
  }
}

void RouteControl::look_at(const std::string& name) {
  const std::shared_ptr<const RouteTable> now = board_.read();
  const auto found = now->find(name);
  if (found == now->end()) return;
  const RouteEntry& seen = found->second;
  if (must_quarantine(seen)) return quarantine(*now, name);  // the rest at the next look
  const auto has_tripped = [](const RouteVersion& version) {
    return version.route->has_been_suspended();
  };
  const bool aborts = seen.candidate.has_value() && has_tripped(*seen.candidate);
  const bool goes_back = seen.previous.has_value() && has_tripped(*seen.live);
  const bool passes = seen.previous.has_value() && now_ns() >= seen.probation_end_ns;
  if (!aborts && !goes_back && !passes) return;
  const auto why = [](const RouteVersion& version) {
    return ", because its drafter was suspended: " + version.route->last_problem.get();
  };
  // One of them now, the others at the next look.
  RouteTable table = *now;
  RouteEntry& entry = table[name];
  if (goes_back) {
    (void)roll_back(std::move(table), entry, RouteEvent::kTripOnProbation, why(*seen.live), {});
  } else if (aborts) {
    (void)abort(std::move(table), entry, RouteEvent::kTrip, why(*seen.candidate), {});
  } else {
    entry.previous.reset();
    Plan plan = plan_for(EventKind::kPassed, *seen.live, "has passed its probation");
    plan.is_way_back = true;
    plan.table = std::move(table);
    (void)commit(std::move(plan), {});
  }
}

void RouteControl::quarantine(RouteTable table, const std::string& name) {
  RouteEntry& entry = table[name];
  const bool is_live = is_condemned(entry.live) && entry.live->state == RouteState::kLive;
  const bool may_go_back = entry.previous.has_value() && !is_condemned(entry.previous);
  const RouteVersion version = is_live                         ? *entry.live
                               : is_condemned(entry.candidate) ? *entry.candidate
                                                               : *entry.previous;
  const BundleInfo& bundle = version.route->drafter_bundle;
  const std::string why = version.route->last_problem.get();
  const std::string because = ", because it is quarantined: " + why;
  Plan plan = plan_for(EventKind::kQuarantined, version, "is quarantined: " + why);
  const EngineEvent event = plan.event;
  bool is_told = false;
  Status done;
  if (is_live && may_go_back) {
    done = as_status(roll_back(std::move(table), entry, RouteEvent::kCondemn, because, {}));
  } else if (!is_live && is_condemned(entry.candidate)) {
    done = as_status(abort(std::move(table), entry, RouteEvent::kCondemn, because, {}));
  } else {
    // A live version without a way back stays, and its requests are decoded plainly.
    if (is_live)
      entry.live->state = route_step(entry.live->state, RouteEvent::kCondemn).value().next;
    if (is_condemned(entry.previous)) entry.previous.reset();
    plan.is_way_back = true;
    plan.table = std::move(table);
    done = as_status(commit(std::move(plan), {}));
    is_told = true;
  }
  if (!done.ok()) return;  // the next look tries again
  if (!is_told) events_.add(event);
  // What has a process of its own has left nothing here that hangs.
  if (version.options.isolation == Isolation::kProcess) return;
  (void)maker_.set_aside(exact_name(bundle.id, bundle.version),
                         Status(Code::kDeadlineExceeded, "drafter of route " + name + ": " + why));
}

Status RouteControl::condemn_draining(const std::string& route, uint64_t generation,
                                      const std::string& plugin_id, const Status& late) {
  const auto step = route_step(RouteState::kDraining, RouteEvent::kCondemn);
  SPECD_CHECK(step.ok(), "a version that drains can be condemned");
  events_.add({.kind = EventKind::kQuarantined,
               .route = route,
               .generation = generation,
               .text = version_name(route, generation) + " is quarantined: " + late.message()});
  return (step.value().actions & kSetAside) != 0 ? maker_.is_late(plugin_id, late) : late;
}

}  // namespace specd
