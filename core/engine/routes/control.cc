#include "core/engine/routes/control.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/base/failpoint.h"
#include "core/base/log.h"
#include "core/base/to_size.h"
#include "core/base/words.h"
#include "core/engine/options.h"

namespace specd {

namespace {

constexpr size_t kRepliesMax = 256;
constexpr uint64_t kSecondNs = 1'000'000'000;

std::string names_of(const RouteTable& table) {
  std::string names = "off";
  for (const auto& [name, entry] : table) names += ", " + name;
  return names;
}

Status no_route(const RouteTable& table, const std::string& name) {
  return Status(Code::kNotFound, "no route is called '" + name + "'; there are " + names_of(table));
}

// Of everything that the command says; a configuration may have megabytes.
Sha256Digest fingerprint(const RouteCommand& command) {
  const ChangeOptions& how = command.how;
  const Json all = json_object({{"route", route_to_json(command.route)},
                                {"kind", static_cast<int>(command.kind)},
                                {"share", command.traffic.share_percent},
                                {"shadow", command.traffic.is_shadow},
                                {"generation", how.generation},
                                {"running", static_cast<int>(how.running)},
                                {"dry_run", how.dry_run}});
  return sha256(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Moves a version on, and returns the actions that this needs.
Result<uint32_t> move(RouteVersion& version, RouteEvent event) {
  SPECD_TRY(const RouteStep step, route_step(version.state, event));
  version.state = step.next;
  return step.actions;
}

Status may_be_shadow(const LiveRoute& route) {
  const std::string why = why_not_beside(route, true);
  if (why.empty()) return Status();
  return Status(Code::kFailedPrecondition, "shadow",
                "the candidate cannot be a shadow: " + why + "; give it a share instead");
}

Status is_quarantined(const LiveRoute& route) {
  return Status(Code::kFailedPrecondition,
                "the candidate is quarantined: " + route.last_problem.get());
}

Status runs_with_requests() {
  return Status(Code::kFailedPrecondition, "shadow",
                "requests run with the candidate; it may become a shadow when they have ended");
}

Status no_candidate() {
  return Status(Code::kFailedPrecondition, "the route has no candidate; stage one first");
}

// The version that the caller means is the one that is there.
Status check_generation(const ChangeOptions& how, const RouteVersion& version, const char* what) {
  const uint64_t found = version.route->generation;
  if (how.generation == 0 || how.generation == found) return Status();
  return Status(Code::kFailedPrecondition, "generation",
                std::string("the ") + what + " version is " + std::to_string(found) +
                    ", expected was " + std::to_string(how.generation) +
                    "; somebody else has changed the route");
}

// What the next start is to take of a route: a definition, or null. Nothing while it is not decided.
std::optional<Json> definition_to_keep(const RouteTable& table, const std::string& name) {
  const auto found = table.find(name);
  if (found == table.end()) return Json();
  const RouteEntry& entry = found->second;
  if (!has_route(entry.live) || entry.previous.has_value()) return std::nullopt;
  return route_to_json(entry.live->options);
}

// What is wrong with the options of a change, of which only some fit each command.
Status check_how(const RouteCommand& command) {
  using Kind = RouteCommand::Kind;
  const ChangeOptions& how = command.how;
  const Kind kind = command.kind;
  SPECD_OK_OR_RETURN(check_name("request_id", how.request_id));
  if (how.generation != 0 &&
      (kind == Kind::kApply || kind == Kind::kStage || kind == Kind::kDelete)) {
    return Status(Code::kInvalidArgument, "generation",
                  "expected 0: this change is not about one version");
  }
  if ((kind == Kind::kStage || kind == Kind::kTraffic) && how.running != RunningRequests::kKeep) {
    return Status(Code::kInvalidArgument, "running",
                  "expected keep: requests that run are not changed by this");
  }
  if (kind == Kind::kDelete && how.running == RunningRequests::kAttach) {
    return Status(Code::kInvalidArgument, "running",
                  "expected keep or drop: a route that is deleted has no version to attach to");
  }
  return Status();
}

// What cannot be when the version before stops first.
Status check_stop(const RouteCommand& command) {
  if (command.kind == RouteCommand::Kind::kStage) {
    return Status(Code::kInvalidArgument, "replace",
                  "expected overlap: a staged version is one beside another, and stop_first has no "
                  "two at once; stage it with overlap, or apply it");
  }
  if (command.how.running != RunningRequests::kAttach) return Status();
  return Status(Code::kInvalidArgument, "replace",
                "expected overlap with running: attach: with stop_first requests lose the version "
                "that they have before there is one to attach to");
}

RouteChange unchanged(const RouteVersion& version) {
  return {.generation = version.route->generation,
          .unchanged = true,
          .memory_bytes_max = version.route->drafter->grant().memory_bytes_max};
}

// Spreads numbers that follow each other: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
bool is_in_share(uint64_t number, int32_t percent) {
  uint64_t x = number + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int32_t>((x ^ (x >> 31)) % 100) < percent;
}

}  // namespace

Status RouteControl::no_boundary() const {
  SPECD_OK_OR_RETURN(intake_.is_open());
  return Status(Code::kDeadlineExceeded, "no step ended within " +
                                             std::to_string(Intake::kBoundaryWait.count()) +
                                             " s (does a plugin hang?); nothing was changed");
}

std::string RouteControl::version_name(const std::string& route, uint64_t generation) {
  return "route " + route + ": generation " + std::to_string(generation);
}

RouteControl::Plan RouteControl::plan_for(EventKind kind, const RouteVersion& version,
                                          const std::string& what) {
  const std::string& name = version.options.name;
  const uint64_t generation = version.route->generation;
  return {.table = {},
          .event = {.kind = kind,
                    .route = name,
                    .generation = generation,
                    .text = version_name(name, generation) + " " + what},
          .version = version.route};
}

Result<RouteChange> RouteControl::add(const RouteCommand& command) {
  const RouteOptions& wanted = command.route;
  SPECD_OK_OR_RETURN(check_route(wanted, options_));
  const std::string where = route_field(wanted.name);
  if (wanted.replace == Replace::kStopFirst)
    SPECD_OK_OR_RETURN(check_stop(command).in_field(where));
  RouteTable next = *board_.read();
  const auto found = next.find(wanted.name);
  if (found == next.end() && next.size() >= EngineLimits::kRoutes) {
    return Status(Code::kExhausted, where,
                  "there are " + std::to_string(next.size()) + " routes already; delete one first");
  }
  SPECD_OK_OR_RETURN(maker_.rescan().in_field("plugins"));
  RouteEntry& entry = next[wanted.name];
  const bool is_staged = command.kind == RouteCommand::Kind::kStage;
  const std::optional<RouteVersion>& there =
      is_staged && entry.candidate.has_value() ? entry.candidate : entry.live;
  if (has_route(there) && there->options == wanted && maker_.is_current(*there->route) &&
      !there->route->is_condemned()) {
    RouteChange done = unchanged(*there);
    if (command.how.running == RunningRequests::kKeep) return done;
    // Those that an earlier change has left with another version.
    const RouteSwap swap{wanted.name, there->route, command.how.running, command.how.dry_run};
    if (!intake_.between_steps([&] { requests_.swap(swap, done); }))
      return no_boundary().in_field(where);
    return done;
  }
  if (entry.candidate.has_value()) {
    return Status(Code::kFailedPrecondition, where,
                  "the route has a candidate, generation " +
                      std::to_string(entry.candidate->route->generation) +
                      "; promote or abort that first");
  }
  const Result<DrafterLimit> limit = maker_.limit(wanted);
  if (!limit.ok()) return limit.status().in_field(where);
  const bool stops = wanted.replace == Replace::kStopFirst && has_route(entry.live);
  if (stops && !board_.may_stop(wanted.name)) {
    return Status(Code::kUnavailable, where,
                  "a plugin of the version before has not returned from a call, so that version "
                  "cannot end first; try again when it has, or with replace: overlap");
  }
  board_.retire_released();  // what nobody holds any more takes no room
  const auto peak = room_for(maker_.memories(), board_.held(), limit.value(),
                             stops ? Replace::kStopFirst : Replace::kOverlap);
  if (!peak.ok()) return peak.status().in_field(where);
  if (stops) next.clear();  // it has the version that is to end
  auto done = stops ? stop_and_make(command, limit.value()) : make(std::move(next), command);
  if (!done.ok()) return done.status().in_field(where);
  done.value().memory_peak_bytes = peak.value().bytes;
  done.value().memory_limit_bytes = peak.value().limit;
  return done;
}

Result<RouteChange> RouteControl::make(RouteTable next, const RouteCommand& command) {
  const RouteOptions& wanted = command.route;
  const bool is_staged = command.kind == RouteCommand::Kind::kStage;
  RouteEntry& entry = next[wanted.name];
  SPECD_TRY(RouteMaker::Made made, maker_.make(wanted, generation_ + 1));
  RouteVersion version{.options = wanted,
                       .route = board_.share(std::move(made.route)),
                       .state = RouteState::kStaged};
  if (!is_staged) SPECD_OK_OR_RETURN(as_status(move(version, RouteEvent::kPromote)));
  Plan plan{.table = {},
            .event = {.kind = is_staged ? EventKind::kStaged : EventKind::kApplied,
                      .route = wanted.name,
                      .generation = generation_ + 1,
                      .text = version_name(wanted.name, generation_ + 1) + " is " +
                              route_state_name(version.state)},
            .version = version.route,
            .to = is_staged ? nullptr : version.route,
            .taps = std::move(made.taps),
            .at_boundary = true};
  if (is_staged) {
    entry.candidate = std::move(version);
    entry.share_percent = 0;
  } else {
    entry = {.live = std::move(version)};
  }
  plan.table = std::move(next);
  return commit(std::move(plan), command.how);
}

Result<RouteChange> RouteControl::remove(const RouteCommand& command) {
  const std::string& name = command.route.name;
  if (name == "off") {
    return Status(Code::kFailedPrecondition, "'off' is plain decoding and always there");
  }
  if (name == options_.default_route) {
    return Status(Code::kFailedPrecondition,
                  "route '" + name + "' is the default route; requests that name none need it");
  }
  RouteTable next = *board_.read();
  const auto found = next.find(name);
  if (found == next.end()) return no_route(next, name);
  if (!command.how.dry_run) SPECD_OK_OR_RETURN(stop_shadow(next, found->second));
  next.erase(found);
  return commit({.table = std::move(next),
                 .event = {.kind = EventKind::kDeleted,
                           .route = name,
                           .generation = generation_ + 1,
                           .text = "route " + name + ": deleted"}},
                command.how);
}

Result<RouteChange> RouteControl::set_traffic(RouteTable table, RouteEntry& entry,
                                              const Traffic& traffic, const ChangeOptions& how) {
  const int32_t percent = traffic.share_percent;
  if (percent < 0 || percent > 100) {
    return out_of_range("share_percent", "0 to 100", std::to_string(percent));
  }
  if (traffic.is_shadow && percent > 0) {
    return Status(Code::kInvalidArgument, "shadow",
                  "a shadow decides nothing, so it has no share; ask for one of the two");
  }
  if (!entry.candidate.has_value()) return no_candidate();
  SPECD_OK_OR_RETURN(check_generation(how, *entry.candidate, "candidate"));
  if (!has_route(entry.live)) {
    return Status(Code::kFailedPrecondition, traffic.is_shadow ? "shadow" : "share_percent",
                  "no live version would get the other requests; promote the candidate");
  }
  const RouteEvent event = traffic.is_shadow ? RouteEvent::kShadow
                           : percent > 0     ? RouteEvent::kShare
                                             : RouteEvent::kNoTraffic;
  RouteVersion after = *entry.candidate;
  SPECD_TRY(const uint32_t actions, move(after, event));
  if (after.state == entry.candidate->state && entry.share_percent == percent) {
    return unchanged(*entry.candidate);
  }
  MemoryPeak peak;
  if ((actions & kStartShadow) != 0) {
    SPECD_OK_OR_RETURN(may_be_shadow(*after.route));
    if (after.route->n_leases > 0) return runs_with_requests();
    const bool has_rings = after.route->isolation != Isolation::kNone;
    const DrafterLimit rings{.route = after.options.name,
                             .ring_bytes = has_rings ? 0 : after.route->beside_bytes};
    SPECD_TRY(peak, room_for(maker_.memories(), board_.held(), rings, Replace::kOverlap, false)
                        .in_field("shadow"));
  }
  if (!how.dry_run) SPECD_OK_OR_RETURN(stop_shadow(table, entry));
  if (after.route->is_condemned()) return is_quarantined(*after.route);
  entry.candidate = std::move(after);
  entry.share_percent = percent;
  Plan plan =
      plan_for(EventKind::kTraffic, *entry.candidate,
               traffic.is_shadow ? std::string("is a shadow")
                                 : "gets " + std::to_string(percent) + " % of the new requests");
  plan.table = table;
  SPECD_TRY(RouteChange done, commit(std::move(plan), how));
  done.memory_peak_bytes = peak.bytes;
  done.memory_limit_bytes = peak.limit;
  if ((actions & kStartShadow) == 0 || how.dry_run) return done;
  Status started;
  try {
    started = start_shadow(entry);
  } catch (const std::bad_alloc&) {
    apply_isolation(*entry.candidate->route);
    started = Status(Code::kExhausted, "there is no memory for a shadow");
  }
  if (started.ok()) return done;
  SPECD_OK_OR_RETURN(as_status(move(*entry.candidate, RouteEvent::kNoTraffic)));
  Plan undo = plan_for(EventKind::kTraffic, *entry.candidate,
                       "could not become a shadow: " + started.message());
  undo.is_way_back = true;
  undo.table = std::move(table);
  (void)commit(std::move(undo), {});
  return started;
}

Status RouteControl::start_shadow(const RouteEntry& entry) {
  const std::shared_ptr<LiveRoute>& shadow = entry.candidate->route;
  // No request gets it any more, so that nobody calls it from here on.
  bool is_used = false;
  if (!intake_.between_steps([&] { is_used = shadow->n_leases > 0; })) return no_boundary();
  if (is_used) return runs_with_requests();
  std::vector<DrafterSession> sessions(to_size(options_.max_sequences));
  Status started = maker_.end_beside(*shadow);  // of a guarded one
  if (started.ok()) started = maker_.set_beside(*shadow, true);
  const auto show = [&] {
    shadow->shadow_sessions.swap(sessions);
    requests_.set_shadow(*entry.live->route, shadow);
  };
  if (started.ok() && !intake_.between_steps(show)) started = no_boundary();
  if (!started.ok()) apply_isolation(*shadow);
  return started;
}

Status RouteControl::stop_shadow(const RouteTable& table, RouteEntry& entry) {
  if (!entry.candidate.has_value() || entry.candidate->state != RouteState::kShadow)
    return Status();
  const std::shared_ptr<LiveRoute> shadow = entry.candidate->route;
  EngineEvent event =
      plan_for(EventKind::kTraffic, *entry.candidate, "is no shadow any more").event;
  const RouteVersion before = *entry.candidate;
  SPECD_OK_OR_RETURN(as_status(move(*entry.candidate, RouteEvent::kNoTraffic)));
  RouteTable next = table;
  const auto hide = [&] {
    board_.publish(std::move(next));
    requests_.set_shadow(*entry.live->route, nullptr);
    shadow->shadow_sessions.clear();
  };
  if (!intake_.between_steps(hide)) {
    entry.candidate = before;
    return no_boundary();
  }
  apply_isolation(*shadow);
  shadow->counters.clear();  // of what decided nothing
  events_.add(std::move(event));
  return Status();
}

void RouteControl::apply_isolation(LiveRoute& version) {
  Status status = maker_.end_beside(version);
  if (status.ok() && version.isolation != Isolation::kNone)
    status = maker_.set_beside(version, false);
  if (!status.ok()) version.condemn(status.message());
}

Result<RouteChange> RouteControl::promote(RouteTable table, RouteEntry& entry,
                                          const ChangeOptions& how) {
  if (!entry.candidate.has_value()) return no_candidate();
  SPECD_OK_OR_RETURN(check_generation(how, *entry.candidate, "candidate"));
  if (!how.dry_run) SPECD_OK_OR_RETURN(stop_shadow(table, entry));
  if (is_condemned(entry.candidate)) return is_quarantined(*entry.candidate->route);
  RouteEntry next;
  next.live = entry.candidate;
  SPECD_OK_OR_RETURN(as_status(move(*next.live, RouteEvent::kPromote)));
  const RouteOptions& options = next.live->options;
  std::string what = "is live";
  const bool may_go_back = has_route(entry.live) && entry.live->state == RouteState::kLive;
  if (may_go_back && options.probation_seconds > 0) {
    next.previous = entry.live;
    SPECD_OK_OR_RETURN(as_status(move(*next.previous, RouteEvent::kReplace)));
    next.probation_end_ns = now_ns() + static_cast<uint64_t>(options.probation_seconds) * kSecondNs;
    what += ", on probation for " + std::to_string(options.probation_seconds) +
            " s; the way back is " + std::to_string(next.previous->route->generation);
  }
  Plan plan = plan_for(EventKind::kPromoted, *next.live, what);
  plan.to = plan.version;
  entry = std::move(next);
  plan.table = std::move(table);
  return commit(std::move(plan), how);
}

Result<RouteChange> RouteControl::abort(RouteTable table, RouteEntry& entry, RouteEvent event,
                                        const std::string& why, const ChangeOptions& how) {
  if (!entry.candidate.has_value()) return no_candidate();
  SPECD_OK_OR_RETURN(check_generation(how, *entry.candidate, "candidate"));
  if (!how.dry_run) SPECD_OK_OR_RETURN(stop_shadow(table, entry));
  Plan plan = plan_for(EventKind::kAborted, *entry.candidate, "was aborted" + why);
  plan.is_way_back = true;
  SPECD_OK_OR_RETURN(as_status(move(*entry.candidate, event)));
  entry.candidate.reset();
  entry.share_percent = 0;
  if (has_route(entry.live)) plan.to = entry.live->route;
  if (!entry.live.has_value()) table.erase(plan.event.route);  // `entry` is gone
  plan.table = std::move(table);
  return commit(std::move(plan), how);
}

Result<RouteChange> RouteControl::roll_back(RouteTable table, RouteEntry& entry, RouteEvent event,
                                            const std::string& why, const ChangeOptions& how) {
  if (!entry.previous.has_value()) {
    return Status(Code::kFailedPrecondition,
                  "the route keeps no previous version; a promotion keeps the one that it "
                  "replaces for probation_seconds");
  }
  SPECD_OK_OR_RETURN(check_generation(how, *entry.live, "live"));
  if (!how.dry_run) SPECD_OK_OR_RETURN(stop_shadow(table, entry));
  const uint64_t left = entry.live->route->generation;
  SPECD_OK_OR_RETURN(as_status(move(*entry.live, event)));
  SPECD_OK_OR_RETURN(as_status(move(*entry.previous, RouteEvent::kRollBack)));
  Plan plan = plan_for(EventKind::kRolledBack, *entry.previous,
                       "is live again, instead of " + std::to_string(left) + why);
  plan.is_way_back = true;
  plan.to = plan.version;
  entry.live = entry.previous;
  entry.previous.reset();
  plan.table = std::move(table);
  return commit(std::move(plan), how);
}

Result<RouteChange> RouteControl::commit(Plan plan, const ChangeOptions& how) {
  EngineEvent& event = plan.event;
  RouteChange done{.generation = event.generation};
  if (plan.version != nullptr) {
    done.memory_bytes_max = plan.version->drafter->grant().memory_bytes_max;
  }
  if (how.dry_run) {
    const RouteSwap swap{event.route, plan.to, how.running, true};
    if (!intake_.between_steps([&] { requests_.swap(swap, done); })) return no_boundary();
    return done;
  }
  event.request_id = how.request_id;
  // On disk first: a process that dies between the two has made the change at its next start. What takes the
  // line back is made before, since memory may be what is short then.
  RouteJournal::Entry undo;
  Status recorded;
  if (journal_ != nullptr) {
    std::optional<Json> kept = definition_to_keep(plan.table, event.route);
    std::optional<Json> before = journal_->kept(event.route);
    if (kept == before) kept.reset();
    if (!kept.has_value()) before.reset();
    EngineEvent undone = event;
    undone.text += ": was not done after all";
    undo = journal_->entry(undone, before);
    recorded = journal_->write(journal_->entry(event, kept));
    if (!recorded.ok() && !plan.is_way_back) {
      return recorded.with_context("the change cannot be recorded, so nothing was changed");
    }
  }
  const auto take_back = [&]() SPECD_REQUIRES(mutex_) {
    if (journal_ == nullptr || !recorded.ok()) return;
    const Status status = journal_->write(std::move(undo));
    if (!status.ok()) not_recorded(event, status);
  };
  try {
    const Status flipped = flip(plan, how, done);
    if (!flipped.ok()) {
      take_back();
      return flipped;
    }
  } catch (const std::bad_alloc&) {
    take_back();
    throw;
  }
  SPECD_FAILPOINT(kRouteFlipped);
  generation_ = std::max(generation_, event.generation);
  changed_.notify_all();
  log(LogLevel::kInfo, event.text);
  if (!recorded.ok()) not_recorded(event, recorded);
  events_.add(std::move(event));
  return done;
}

Status RouteControl::flip(Plan& plan, const ChangeOptions& how, RouteChange& done) {
  if (SPECD_FAILS(kRouteFlip, ETIMEDOUT)) return no_boundary();
  if (!plan.at_boundary && how.running == RunningRequests::kKeep) {
    board_.publish(std::move(plan.table));
    return Status();
  }
  const RouteSwap swap{plan.event.route, plan.to, how.running};
  // Runs on the step thread, while this thread waits and holds mutex_.
  const auto task = [&] {
    maker_.add_taps(std::move(plan.taps));
    board_.publish(std::move(plan.table));
    requests_.swap(swap, done);  // needs no memory, so all three are done
  };
  return intake_.between_steps(task) ? Status() : no_boundary();
}

void RouteControl::not_recorded(const EngineEvent& event, const Status& why) {
  const std::string text =
      event.kind == EventKind::kConfigured
          ? "the journal does not know that the configuration was read again; the next start may "
            "take changes that were made before it: " +
                why.text()
          : "route " + event.route +
                ": the change is not recorded, so the next start takes the route as it was "
                "recorded last: " +
                why.text();
  log(LogLevel::kError, text);
  events_.add({.kind = EventKind::kNotRecorded,
               .route = event.route,
               .generation = event.generation,
               .text = text});
}

Result<RouteChange> RouteControl::run(const RouteCommand& command) {
  const MemoryPeak now = peak_of(maker_.memories(), board_.held());
  Result<RouteChange> done = run_one(command);
  if (done.ok() && done.value().memory_limit_bytes == 0) {  // nothing was made
    done.value().memory_peak_bytes = now.bytes;
    done.value().memory_limit_bytes = now.limit;
  }
  return done;
}

Result<RouteChange> RouteControl::run_one(const RouteCommand& command) {
  using Kind = RouteCommand::Kind;
  const std::string& name = command.route.name;
  if (command.kind == Kind::kApply || command.kind == Kind::kStage) return add(command);
  if (command.kind == Kind::kDelete) return remove(command);
  if (name == "off") {
    return Status(Code::kFailedPrecondition,
                  "'off' is plain decoding and always there; it has no versions");
  }
  RouteTable table = *board_.read();
  const auto found = table.find(name);
  if (found == table.end()) return no_route(table, name);
  // A table that is moved keeps its entries where they are.
  RouteEntry& entry = found->second;
  switch (command.kind) {
    case Kind::kTraffic:
      return set_traffic(std::move(table), entry, command.traffic, command.how);
    case Kind::kPromote:
      return promote(std::move(table), entry, command.how);
    case Kind::kAbort:
      return abort(std::move(table), entry, RouteEvent::kAbort, "", command.how);
    default:
      return roll_back(std::move(table), entry, RouteEvent::kReplace, "", command.how);
  }
}

Result<RouteChange> RouteControl::change(const RouteCommand& command) {
  SPECD_OK_OR_RETURN(check_how(command));
  const std::string& request_id = command.how.request_id;
  const MutexLock lock(mutex_);
  const Sha256Digest digest = fingerprint(command);
  if (!request_id.empty()) {
    const auto known = std::find_if(replies_.begin(), replies_.end(), [&](const Reply& reply) {
      return reply.request_id == request_id;
    });
    if (known != replies_.end()) {
      if (known->command == digest) return known->reply;
      return Status(Code::kInvalidArgument, "request_id",
                    "'" + request_id + "' was used for another change of routes; take a new one");
    }
  }
  SPECD_OK_OR_RETURN(intake_.is_open());
  if (request_id.empty()) return run(command);
  // There is room for the reply before anything is done.
  replies_.push_back({request_id, digest, Status(Code::kExhausted, "no memory left")});
  if (replies_.size() > kRepliesMax) replies_.pop_front();
  replies_.back().reply = run(command);
  return replies_.back().reply;
}

Result<BundleInfo> RouteControl::load_plugin(const std::string& plugin_id,
                                             const std::string& request_id) {
  SPECD_OK_OR_RETURN(check_name("request_id", request_id));
  const MutexLock lock(mutex_);
  SPECD_OK_OR_RETURN(intake_.is_open());
  SPECD_OK_OR_RETURN(maker_.rescan().in_field("plugins"));
  SPECD_OK_OR_RETURN(maker_.load_plugin(plugin_id));
  const std::optional<BundleInfo> loaded = registry().find(plugin_id);
  SPECD_CHECK(loaded.has_value(), "it was loaded just now");
  events_.add({.kind = EventKind::kPluginLoaded,
               .text = "plugin " + loaded->id + " " + loaded->version + " was loaded",
               .request_id = request_id});
  return *loaded;
}

Status RouteControl::retire_plugin(const std::string& plugin_id, const std::string& request_id) {
  SPECD_OK_OR_RETURN(check_name("request_id", request_id));
  const MutexLock lock(mutex_);
  SPECD_OK_OR_RETURN(intake_.is_open());
  std::vector<std::string> users;
  const std::optional<BundleInfo> found = registry().find(plugin_id);
  const std::shared_ptr<const RouteTable> table = board_.read();
  for (const auto& [name, entry] : *table) {
    const auto uses = [&](const std::optional<RouteVersion>& version) {
      if (!has_route(version)) return false;
      const LiveRoute& route = *version->route;
      const auto is_it = [&](const BundleInfo& bundle) {
        return found.has_value() && bundle.id == found->id && bundle.version == found->version;
      };
      return is_it(route.drafter_bundle) || is_it(route.verifier_bundle) ||
             std::any_of(route.part_bundles.begin(), route.part_bundles.end(), is_it);
    };
    if (uses(entry.live) || uses(entry.candidate) || uses(entry.previous)) users.push_back(name);
  }
  if (!users.empty()) {
    return Status(Code::kFailedPrecondition, "plugin",
                  "it is used by " + joined(users) + "; change or delete these routes first");
  }
  SPECD_TRY(const bool is_new, maker_.retire_plugin(plugin_id));
  if (!is_new) return Status();
  const std::string text = "plugin " + plugin_id + " was retired";
  log(LogLevel::kInfo, text);
  events_.add({.kind = EventKind::kPluginRetired, .text = text, .request_id = request_id});
  return Status();
}

Result<RouteLease> RouteControl::lease(const std::string& name, uint64_t number) const {
  const std::string& wanted = name.empty() ? options_.default_route : name;
  if (wanted == "off") return RouteLease();
  const std::shared_ptr<const RouteTable> table = board_.read();
  const auto found = table->find(wanted);
  if (found == table->end()) {
    return Status(Code::kInvalidArgument, "route", no_route(*table, wanted).message());
  }
  const RouteEntry& entry = found->second;
  if (!entry.live.has_value()) {
    return Status(Code::kInvalidArgument, "route",
                  "'" + wanted + "' cannot be served: its first version is not promoted yet");
  }
  if (entry.live->state == RouteState::kStopped) return RouteLease();
  if (entry.live->route == nullptr) {
    return Status(Code::kInvalidArgument, "route",
                  "'" + wanted + "' cannot be served; the list of routes and the log say why");
  }
  const bool is_canary = entry.share_percent > 0 && is_in_share(number, entry.share_percent);
  RouteLease lease((is_canary ? entry.candidate : entry.live)->route);
  if (!is_canary || board_.read() == table) return lease;
  // A version that gets no share any more must not get a request: it may become a shadow.
  lease.reset();
  return this->lease(name, number);
}

Result<RouteOptions> RouteControl::definition(const std::string& name) const {
  const std::shared_ptr<const RouteTable> table = board_.read();
  const auto found = table->find(name);
  if (found != table->end()) {
    const RouteEntry& entry = found->second;
    return (entry.live.has_value() ? entry.live : entry.candidate)->options;
  }
  if (name != "off") return no_route(*table, name);
  return Status(Code::kFailedPrecondition,
                "'off' is plain decoding and always there; it has no definition");
}

}  // namespace specd
