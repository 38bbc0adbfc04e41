#include "core/engine/routes/control.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/run_within.h"
#include "core/base/sha256.h"
#include "core/engine/options.h"

namespace specd {

namespace {

constexpr size_t kRepliesMax = 256;
// A forward of a long prefill chunk may take seconds; a plugin that hangs takes forever.
constexpr std::chrono::seconds kBoundaryWait{60};
constexpr std::chrono::milliseconds kWatchPause{20};
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
  const RouteOptions& route = command.route;
  const auto use = [](const PluginUse& each) {
    return Json::array({each.plugin, each.factory, each.config});
  };
  const Json all =
      Json::array({route.name, route.model, use(route.drafter), use(route.verifier),
                   static_cast<int>(route.guarantee), route.draft_nodes_max,
                   route.disable_by_batch_size, route.call_ms_max, route.probation_seconds,
                   static_cast<int>(command.kind), command.share_percent});
  return sha256(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// Moves a version on, and returns the actions that this needs.
Result<uint32_t> move(RouteVersion& version, RouteEvent event) {
  SPECD_TRY(const RouteStep step, route_step(version.state, event));
  version.state = step.next;
  return step.actions;
}

bool has_route(const std::optional<RouteVersion>& version) {
  return version.has_value() && version->route != nullptr;
}

std::string version_name(const std::string& route, uint64_t generation) {
  return "route " + route + ": generation " + std::to_string(generation);
}

Status no_candidate() {
  return Status(Code::kFailedPrecondition, "the route has no candidate; stage one first");
}

// Spreads numbers that follow each other: the finalizer of splitmix64 (Steele, Lea, Flood 2014).
bool is_in_share(uint64_t number, int32_t percent) {
  uint64_t x = number + 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<int32_t>((x ^ (x >> 31)) % 100) < percent;
}

}  // namespace

Result<RouteControl::Staged> RouteControl::make_staged(const RouteOptions& wanted) {
  const auto staging = std::make_shared<Staging>();
  staging->wanted = wanted;
  staging->tap_points = tap_points_;
  staging->staged.route = std::make_unique<LiveRoute>();
  std::string late_plugin;
  const Status done = run_within(
      std::chrono::seconds(options_.plugin_control_seconds),
      [this, staging](const std::atomic<bool>& is_late) {
        try {
          staging->status = make(*staging, is_late);
        } catch (const std::bad_alloc&) {
          staging->status = Status(Code::kExhausted, "no memory left");
        }
        if (!staging->status.ok()) destroy_route(*staging->staged.route, is_late);
      },
      late_plugin);
  if (done.code() == Code::kDeadlineExceeded) return set_aside(late_plugin, done);
  SPECD_OK_OR_RETURN(done);
  SPECD_OK_OR_RETURN(staging->status);
  return std::move(staging->staged);
}

Status RouteControl::rescan() {
  // Reads every file of every bundle, which may lie on a file system that does not answer.
  const auto scanned = std::make_shared<Status>();
  std::string unused;
  SPECD_OK_OR_RETURN(run_within(
      std::chrono::seconds(options_.plugin_control_seconds),
      [this, scanned](const std::atomic<bool>&) { *scanned = registry_->rescan(); }, unused));
  return *scanned;
}

Status RouteControl::set_aside(const std::string& plugin_id, const Status& late) {
  if (plugin_id.empty()) return late;
  Status why(late.code(), late.message() +
                              " (plugins.control_seconds); it is not loaded again until the "
                              "daemon restarts or its files change");
  registry_->set_aside(plugin_id, why);
  return why;
}

Status RouteControl::make(Staging& staging, const std::atomic<bool>& is_late) {
  const RouteTerms terms = route_terms(options_);
  LiveRoute& route = *staging.staged.route;
  SPECD_OK_OR_RETURN(
      create_route(route, *registry_, staging.wanted, terms, target_.facts.info, is_late));
  SPECD_OK_OR_RETURN(activate_route(route, terms, *models_.device, is_late));
  std::vector<uint32_t>& points = staging.tap_points;
  const specd_drafter_caps& caps = route.drafter->caps();
  for (uint32_t i = 0; i < caps.n_taps; ++i) {
    const auto found = std::find(points.begin(), points.end(), caps.taps[i]);
    route.tap_index.push_back(static_cast<size_t>(found - points.begin()));
    if (found != points.end()) continue;
    SPECD_TRY(Transformer::Tap tap, models_.target->make_tap(caps.taps[i]));
    staging.staged.taps.push_back(std::move(tap));
    points.push_back(caps.taps[i]);
  }
  return Status();
}

void RouteControl::add_taps(std::vector<Transformer::Tap> taps) {
  // The points, the model's taps and those of the other ranks must stay alike when there is no memory
  // for more.
  tap_points_.reserve(tap_points_.size() + taps.size());
  models_.target->reserve_taps(taps.size());
  for (Transformer::Tap& tap : taps) {
    const uint32_t point = tap.point;
    if (models_.lead() != nullptr) models_.lead()->tap(point);
    models_.target->add_tap(std::move(tap));
    tap_points_.push_back(point);
  }
}

bool RouteControl::is_current(const LiveRoute& route) const {
  const auto is_there = [&](const BundleInfo& made_of) {
    const std::optional<BundleInfo> now = registry_->find(made_of.id);
    return now.has_value() && now->state == PluginState::kLoaded &&
           now->content_sha256 == made_of.content_sha256;
  };
  return is_there(route.drafter_bundle) && is_there(route.verifier_bundle) &&
         std::all_of(route.part_bundles.begin(), route.part_bundles.end(), is_there);
}

Result<RouteChange> RouteControl::add(const RouteCommand& command) {
  const RouteOptions& wanted = command.route;
  SPECD_OK_OR_RETURN(check_route(wanted, options_));
  const std::string where = route_field(wanted.name);
  RouteTable next = *board_.read();
  const auto found = next.find(wanted.name);
  if (found == next.end() && next.size() >= EngineLimits::kRoutes) {
    return Status(Code::kExhausted, where,
                  "there are " + std::to_string(next.size()) + " routes already; delete one first");
  }
  SPECD_OK_OR_RETURN(rescan().in_field("plugins"));
  RouteEntry& entry = next[wanted.name];
  const bool is_staged = command.kind == RouteCommand::Kind::kStage;
  const std::optional<RouteVersion>& there =
      is_staged && entry.candidate.has_value() ? entry.candidate : entry.live;
  if (has_route(there) && there->options == wanted && is_current(*there->route)) {
    return RouteChange{.generation = there->route->generation, .unchanged = true};
  }
  if (entry.candidate.has_value()) {
    return Status(Code::kFailedPrecondition, where,
                  "the route has a candidate, generation " +
                      std::to_string(entry.candidate->route->generation) +
                      "; promote or abort that first");
  }
  auto staged = make_staged(wanted);
  if (!staged.ok()) return staged.status().in_field(where);
  Staged& fresh = staged.value();
  fresh.route->generation = generation_ + 1;
  RouteVersion version{.options = wanted,
                       .route = board_.share(std::move(fresh.route)),
                       .state = RouteState::kStaged};
  if (!is_staged) SPECD_OK_OR_RETURN(as_status(move(version, RouteEvent::kPromote)));
  const std::string done =
      version_name(wanted.name, generation_ + 1) + " is " + route_state_name(version.state);
  if (is_staged) {
    entry.candidate = std::move(version);
    entry.share_percent = 0;
  } else {
    entry = {.live = std::move(version)};
  }
  // Runs on the step thread, while this thread waits and holds mutex_.
  const auto flip = [&]() SPECD_REQUIRES(mutex_) {
    add_taps(std::move(fresh.taps));
    board_.publish(std::move(next));
  };
  const bool flipped = intake_.between_steps(flip, kBoundaryWait);
  if (!flipped) {
    return Status(Code::kDeadlineExceeded, where,
                  "no step ended within " + std::to_string(kBoundaryWait.count()) +
                      " s (does a plugin hang?); nothing was changed");
  }
  ++generation_;
  log(LogLevel::kInfo, done);
  return RouteChange{.generation = generation_, .unchanged = false};
}

Result<RouteChange> RouteControl::remove(const std::string& name) {
  if (name == "off") {
    return Status(Code::kFailedPrecondition, "'off' is plain decoding and always there");
  }
  if (name == options_.default_route) {
    return Status(Code::kFailedPrecondition,
                  "route '" + name + "' is the default route; requests that name none need it");
  }
  RouteTable next = *board_.read();
  if (next.erase(name) == 0) return no_route(next, name);
  const std::string done = "route " + name + ": deleted";
  board_.publish(std::move(next));
  log(LogLevel::kInfo, done);
  return RouteChange{.generation = ++generation_, .unchanged = false};
}

Result<RouteChange> RouteControl::set_traffic(RouteTable table, RouteEntry& entry,
                                              int32_t percent) {
  if (percent < 0 || percent > 100) {
    return out_of_range("share_percent", "0 to 100", std::to_string(percent));
  }
  if (!entry.candidate.has_value()) return no_candidate();
  if (!has_route(entry.live)) {
    return Status(Code::kFailedPrecondition, "share_percent",
                  "no live version would get the other requests; promote the candidate");
  }
  SPECD_TRY(const uint32_t actions,
            move(*entry.candidate, percent > 0 ? RouteEvent::kShare : RouteEvent::kNoTraffic));
  if ((actions & kPublish) == 0 || entry.share_percent == percent) {
    return RouteChange{.generation = entry.candidate->route->generation, .unchanged = true};
  }
  entry.share_percent = percent;
  return publish(std::move(table), *entry.candidate,
                 "gets " + std::to_string(percent) + " % of the new requests");
}

Result<RouteChange> RouteControl::promote(RouteTable table, RouteEntry& entry) {
  if (!entry.candidate.has_value()) return no_candidate();
  RouteEntry next;
  next.live = entry.candidate;
  SPECD_OK_OR_RETURN(as_status(move(*next.live, RouteEvent::kPromote)));
  const RouteOptions& options = next.live->options;
  if (has_route(entry.live) && options.probation_seconds > 0) {
    next.previous = entry.live;
    SPECD_OK_OR_RETURN(as_status(move(*next.previous, RouteEvent::kReplace)));
    next.probation_end_ns = now_ns() + static_cast<uint64_t>(options.probation_seconds) * kSecondNs;
  }
  const RouteVersion promoted = *next.live;
  entry = std::move(next);
  return publish(std::move(table), promoted, "is live");
}

Result<RouteChange> RouteControl::abort(RouteTable table, RouteEntry& entry, RouteEvent why) {
  if (!entry.candidate.has_value()) return no_candidate();
  const RouteVersion aborted = *entry.candidate;
  SPECD_OK_OR_RETURN(as_status(move(*entry.candidate, why)));
  entry.candidate.reset();
  entry.share_percent = 0;
  if (!entry.live.has_value()) table.erase(aborted.options.name);  // `entry` is gone
  return publish(std::move(table), aborted, "was aborted");
}

Result<RouteChange> RouteControl::roll_back(RouteTable table, RouteEntry& entry, RouteEvent why) {
  if (!entry.previous.has_value()) {
    return Status(Code::kFailedPrecondition,
                  "the route keeps no previous version; a promotion keeps the one that it "
                  "replaces for probation_seconds");
  }
  const uint64_t left = entry.live->route->generation;
  SPECD_OK_OR_RETURN(as_status(move(*entry.live, why)));
  SPECD_OK_OR_RETURN(as_status(move(*entry.previous, RouteEvent::kRollBack)));
  const RouteVersion back = *entry.previous;
  entry.live = back;
  entry.previous.reset();
  return publish(std::move(table), back, "is live again, instead of " + std::to_string(left));
}

Result<RouteChange> RouteControl::publish(RouteTable table, const RouteVersion& about,
                                          const std::string& what) {
  const uint64_t generation = about.route->generation;
  const std::string text = version_name(about.options.name, generation) + " " + what;
  board_.publish(std::move(table));
  log(LogLevel::kInfo, text);
  return RouteChange{.generation = generation};
}

Result<RouteChange> RouteControl::run(const RouteCommand& command) {
  using Kind = RouteCommand::Kind;
  const std::string& name = command.route.name;
  if (command.kind == Kind::kApply || command.kind == Kind::kStage) return add(command);
  if (command.kind == Kind::kDelete) return remove(name);
  if (name == "off") {
    return Status(Code::kFailedPrecondition,
                  "'off' is plain decoding and always there; it has no versions");
  }
  RouteTable table = *board_.read();
  const auto found = table.find(name);
  if (found == table.end()) return no_route(table, name);
  RouteEntry& entry = found->second;
  // A table that is moved keeps its entries where they are.
  const auto changed = [&]() SPECD_REQUIRES(mutex_) -> Result<RouteChange> {
    switch (command.kind) {
      case Kind::kTraffic:
        return set_traffic(std::move(table), entry, command.share_percent);
      case Kind::kPromote:
        return promote(std::move(table), entry);
      case Kind::kAbort:
        return abort(std::move(table), entry, RouteEvent::kAbort);
      default:
        return roll_back(std::move(table), entry, RouteEvent::kReplace);
    }
  };
  Result<RouteChange> done = changed();
  if (done.ok()) changed_.notify_all();
  return done;
}

Result<RouteChange> RouteControl::change(const std::string& request_id,
                                         const RouteCommand& command) {
  SPECD_OK_OR_RETURN(check_name("request_id", request_id));
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
  const auto has_tripped = [](const RouteVersion& version) {
    return version.route->breaker.n_opened() > 0;
  };
  const bool aborts = seen.candidate.has_value() && has_tripped(*seen.candidate);
  const bool goes_back = seen.previous.has_value() && has_tripped(*seen.live);
  const bool passes = seen.previous.has_value() && now_ns() >= seen.probation_end_ns;
  if (!aborts && !goes_back && !passes) return;
  // One of them now, the others at the next look. The breaker has logged why it opened.
  RouteTable table = *now;
  RouteEntry& entry = table[name];
  if (goes_back) {
    (void)roll_back(std::move(table), entry, RouteEvent::kTripOnProbation);
  } else if (aborts) {
    (void)abort(std::move(table), entry, RouteEvent::kTrip);
  } else {
    entry.previous.reset();
    (void)publish(std::move(table), *seen.live, "has passed its probation");
  }
}

bool RouteControl::between_steps(std::function<void()> task) {
  const MutexLock lock(mutex_);
  return intake_.between_steps(std::move(task), kBoundaryWait);
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
  if (entry.live->route == nullptr) {
    return Status(Code::kInvalidArgument, "route",
                  "'" + wanted + "' cannot be served; the list of routes and the log say why");
  }
  const bool is_canary = entry.share_percent > 0 && is_in_share(number, entry.share_percent);
  return RouteLease((is_canary ? entry.candidate : entry.live)->route);
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

Status RouteControl::open() {
  services_ = std::make_unique<Services>(*models_.cpu, *models_.device, target_.config.vocab_size);
  services_->plan_target(target_.config);
  SPECD_TRY(registry_, PluginRegistry::open({.directories = options_.plugin_directories,
                                             .cache_directory = options_.plugin_cache_directory,
                                             .config_directory = options_.config_directory},
                                            make_host(services_.get()))
                           .in_field("plugins"));
  return Status();
}

std::vector<DrafterLimit> RouteControl::limits() {
  std::vector<DrafterLimit> all;
  for (const RouteOptions& wanted : options_.routes) {
    // Shared with a thread that may be late.
    const auto limit = std::make_shared<Result<DrafterLimit>>(DrafterLimit());
    std::string late_plugin;
    const Status done = run_within(
        std::chrono::seconds(options_.plugin_control_seconds),
        [this, limit, wanted](const std::atomic<bool>& is_late) {
          const Device& device = *models_.device;
          *limit = drafter_limit(*registry_, wanted, route_terms(options_), target_.facts.info,
                                 device.is_host(), device.total_bytes(), is_late);
        },
        late_plugin);
    if (done.code() == Code::kDeadlineExceeded) (void)set_aside(late_plugin, done);
    all.push_back(done.ok() && limit->ok() ? limit->value() : DrafterLimit());
  }
  return all;
}

Status RouteControl::load() {
  services_->set_models(models_.drafts.get());
  services_->set_target(models_.target.get(), models_.lead());
  RouteTable table;
  const MutexLock lock(mutex_);
  ++generation_;
  for (RouteOptions wanted : options_.routes) {
    wanted.model = options_.model.name;
    RouteEntry& entry = table[wanted.name];
    entry.live = {.options = wanted};
    Result<Staged> staged = make_staged(wanted);
    if (staged.ok()) {
      staged.value().route->generation = generation_;
      add_taps(std::move(staged.value().taps));
      entry.live->route = board_.share(std::move(staged.value().route));
      continue;
    }
    const Status& status = staged.status();
    if (wanted.name == options_.default_route) {
      return status.with_context("the default route cannot be served")
          .in_field(route_field(wanted.name));
    }
    log(LogLevel::kError, "route " + wanted.name + " cannot be served: " + status.to_string());
    entry.live->state = RouteState::kRefused;
    entry.refused = status;
  }
  board_.publish(std::move(table));
  return Status();
}

}  // namespace specd
