// The routes of the configuration and of the journal, at the start and when the configuration is read again.
#include "core/engine/routes/control.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/log.h"
#include "core/base/words.h"
#include "core/engine/options.h"

namespace specd {

namespace {

const RouteOptions* find_route(const std::vector<RouteOptions>& routes, const std::string& name) {
  const auto found = std::find_if(routes.begin(), routes.end(),
                                  [&](const RouteOptions& each) { return each.name == name; });
  return found == routes.end() ? nullptr : &*found;
}

// "", or the names behind the words.
std::string listed(const char* words, const std::vector<std::string>& names) {
  return names.empty() ? "" : words + joined(names);
}

}  // namespace

std::vector<RouteOptions> RouteControl::with_model(std::vector<RouteOptions> routes) const {
  for (RouteOptions& route : routes) route.model = options_.model.name;
  return routes;
}

Status RouteControl::open() {
  configured_ = with_model(options_.routes);
  start_ = configured_;
  if (!options_.state_directory.empty()) SPECD_OK_OR_RETURN(take_from_journal());
  return maker_.open();
}

Status RouteControl::take_from_journal() {
  SPECD_TRY(journal_,
            RouteJournal::open(options_.state_directory, configured_).in_field("state_directory"));
  start_.clear();
  for (const RouteOptions& route : journal_->routes()) {
    const RouteOptions* const its = find_route(configured_, route.name);
    if (its != nullptr && *its == route) {
      start_.push_back(route);
      continue;
    }
    Status fits = check_route(route, options_);
    if (fits.ok() && start_.size() >= EngineLimits::kRoutes) {
      fits = Status(Code::kExhausted, "there are too many routes");
    }
    if (fits.ok()) {
      log(LogLevel::kInfo, "route " + route.name + ": as it was changed while specd ran");
      start_.push_back(route);
    } else {
      log(LogLevel::kError,
          "route " + route.name + ": what the journal has cannot be served: " + fits.text());
      if (its != nullptr) start_.push_back(*its);
    }
  }
  // A deleted route may be the default one in the configuration since.
  const RouteOptions* const wanted = find_route(configured_, options_.default_route);
  if (wanted != nullptr && find_route(start_, wanted->name) == nullptr) start_.push_back(*wanted);
  return Status();
}

Status RouteControl::load() {
  maker_.give_models();
  RouteTable table;
  const MutexLock lock(mutex_);
  if (journal_ != nullptr) generation_ = journal_->generation();
  ++generation_;
  for (const RouteOptions& wanted : start_) {
    RouteVersion version{.options = wanted};
    Result<RouteMaker::Made> made = maker_.make(wanted, generation_);
    const RouteOptions* const its = find_route(configured_, wanted.name);
    if (!made.ok() && its != nullptr && *its != wanted) {
      log(LogLevel::kError, "route " + wanted.name +
                                ": what it was changed to while specd ran cannot be served, so it "
                                "is as configured: " +
                                made.status().to_string());
      version.options = *its;
      made = maker_.make(*its, generation_);
    }
    RouteEntry& entry = table[wanted.name];
    if (made.ok()) {
      maker_.add_taps(std::move(made.value().taps));
      version.route = board_.share(std::move(made.value().route));
    } else {
      const Status& status = made.status();
      if (wanted.name == options_.default_route) {
        return status.with_context("the default route cannot be served")
            .in_field(route_field(wanted.name));
      }
      log(LogLevel::kError, "route " + wanted.name + " cannot be served: " + status.to_string());
      version.state = RouteState::kRefused;
      entry.refused = status;
    }
    entry.live = std::move(version);
  }
  board_.publish(std::move(table));
  changed_.notify_all();
  return Status();
}

Result<ConfiguredRoutes> RouteControl::configure(const std::vector<RouteOptions>& routes,
                                                 const ChangeOptions& how) {
  SPECD_OK_OR_RETURN(check_name("request_id", how.request_id));
  const MutexLock lock(mutex_);
  SPECD_OK_OR_RETURN(intake_.is_open());
  std::vector<RouteOptions> wanted = with_model(routes);
  ConfiguredRoutes done;
  Plan plan{
      .table = *board_.read(), .event = {.kind = EventKind::kConfigured}, .at_boundary = true};
  for (const RouteOptions& old : configured_) {
    if (find_route(wanted, old.name) != nullptr) continue;
    if (old.name == options_.default_route) {
      return Status(Code::kFailedPrecondition, route_field(old.name),
                    "it is the default route; requests that name none need it");
    }
    const auto gone = plan.table.find(old.name);
    if (gone == plan.table.end()) continue;
    plan.table.erase(gone);
    done.removed.push_back(old.name);
  }
  SPECD_OK_OR_RETURN(maker_.rescan().in_field("plugins"));
  struct Making {
    const RouteOptions* route;
    bool is_new;
  };
  std::vector<Making> making;
  std::vector<VersionMemory> held = board_.held();
  for (const RouteOptions& route : wanted) {
    const RouteOptions* const old = find_route(configured_, route.name);
    if (old != nullptr && *old == route) continue;
    const std::string where = route_field(route.name);
    SPECD_OK_OR_RETURN(check_route(route, options_));
    const bool is_new = !plan.table.contains(route.name);
    if (is_new && plan.table.size() >= EngineLimits::kRoutes) {
      return Status(
          Code::kExhausted, where,
          "there would be more than " + std::to_string(EngineLimits::kRoutes) + " routes");
    }
    RouteEntry& entry = plan.table[route.name];
    if (entry.candidate.has_value()) {
      return Status(Code::kFailedPrecondition, where,
                    "the route has a candidate; promote or abort that first");
    }
    if (has_route(entry.live) && entry.live->options == route &&
        maker_.is_current(*entry.live->route) && !entry.live->route->is_condemned()) {
      continue;  // it was changed to this before
    }
    // All of them or none, so each overlaps with what is there.
    const Result<DrafterLimit> limit = maker_.limit(route);
    if (!limit.ok()) return limit.status().in_field(where);
    SPECD_OK_OR_RETURN(
        as_status(room_for(maker_.memories(), held, limit.value(), Replace::kOverlap))
            .in_field(where));
    held.push_back({.limit = limit.value(), .what = "route " + route.name + " (to be made)"});
    making.push_back({&route, is_new});
  }
  for (const auto& [route, is_new] : making) {
    auto made = maker_.make(*route, generation_ + 1, plan.taps);
    if (!made.ok()) return made.status().in_field(route_field(route->name));
    plan.table[route->name] = {
        .live =
            RouteVersion{.options = *route, .route = board_.share(std::move(made.value().route))}};
    for (Transformer::Tap& tap : made.value().taps) plan.taps.push_back(std::move(tap));
    (is_new ? done.added : done.changed).push_back(route->name);
  }
  if (how.dry_run) return done;
  EngineEvent event{.kind = EventKind::kConfigured,
                    .generation = generation_ + 1,
                    .text = "the configuration was read again" + listed("; added ", done.added) +
                            listed("; changed ", done.changed) + listed("; removed ", done.removed),
                    .request_id = how.request_id};
  // Everything that needs memory comes before the flip.
  RouteJournal::Configuration next;
  if (journal_ != nullptr) next = journal_->configuration(wanted);
  for (const std::string& name : done.removed) {
    RouteTable now = *board_.read();
    SPECD_OK_OR_RETURN(stop_shadow(now, now[name]));
  }
  RouteChange unused;
  SPECD_OK_OR_RETURN(flip(plan, {}, unused));
  ++generation_;
  configured_.swap(wanted);
  log(LogLevel::kInfo, event.text);
  if (journal_ != nullptr) {
    // The file that was read again is what the next start reads.
    Status status;
    try {
      status = journal_->configure(std::move(next));
    } catch (const std::bad_alloc&) {
      status = Status(Code::kExhausted, "no memory");
    }
    if (!status.ok()) not_recorded(event, status);
  }
  events_.add(std::move(event));
  return done;
}

}  // namespace specd
