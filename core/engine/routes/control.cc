#include "core/engine/routes/control.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/base/log.h"
#include "core/base/run_within.h"
#include "core/base/sha256.h"
#include "core/engine/options.h"

namespace specd {

namespace {

constexpr size_t kRepliesMax = 256;
// A forward of a long prefill chunk may take seconds; a plugin that hangs takes forever.
constexpr std::chrono::seconds kBoundaryWait{60};

std::string names_of(const RouteTable& table) {
  std::string names = "off";
  for (const auto& [name, entry] : table) names += ", " + name;
  return names;
}

Status no_route(const RouteTable& table, const std::string& name) {
  return Status(Code::kNotFound, "no route is called '" + name + "'; there are " + names_of(table));
}

// Of everything that the definition says; a configuration may have megabytes.
Sha256Digest fingerprint(const RouteOptions& route) {
  const auto use = [](const PluginUse& each) {
    return Json::array({each.plugin, each.factory, each.config});
  };
  const Json all = Json::array({route.name, route.model, use(route.drafter), use(route.verifier),
                                static_cast<int>(route.guarantee), route.draft_nodes_max,
                                route.disable_by_batch_size, route.call_ms_max});
  return sha256(all.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace

Result<RouteControl::Staged> RouteControl::stage(const RouteOptions& wanted) {
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

Result<RouteChange> RouteControl::apply(const RouteOptions& wanted) {
  SPECD_OK_OR_RETURN(check_route(wanted, options_));
  const std::string where = route_field(wanted.name);
  const std::shared_ptr<const RouteTable> table = board_.read();
  const auto found = table->find(wanted.name);
  if (found == table->end() && table->size() >= EngineLimits::kRoutes) {
    return Status(
        Code::kExhausted, where,
        "there are " + std::to_string(table->size()) + " routes already; delete one first");
  }
  SPECD_OK_OR_RETURN(rescan().in_field("plugins"));
  if (found != table->end() && found->second.live != nullptr && found->second.options == wanted &&
      is_current(*found->second.live)) {
    return RouteChange{.generation = found->second.live->generation, .unchanged = true};
  }
  auto staged = stage(wanted);
  if (!staged.ok()) return staged.status().in_field(where);
  Staged& fresh = staged.value();
  fresh.route->generation = generation_ + 1;
  RouteTable next = *table;
  next[wanted.name] = {
      .options = wanted, .live = board_.share(std::move(fresh.route)), .refused = {}};
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
  log(LogLevel::kInfo,
      "route " + wanted.name + ": generation " + std::to_string(generation_ + 1) + " is live");
  return RouteChange{.generation = ++generation_, .unchanged = false};
}

Result<RouteChange> RouteControl::remove(const std::string& name) {
  if (name == "off") {
    return Status(Code::kFailedPrecondition, "'off' is plain decoding and always there");
  }
  if (name == options_.default_route) {
    return Status(Code::kFailedPrecondition,
                  "route '" + name + "' is the default route; requests that name none need it");
  }
  const std::shared_ptr<const RouteTable> table = board_.read();
  if (!table->contains(name)) return no_route(*table, name);
  RouteTable next = *table;
  next.erase(name);
  board_.publish(std::move(next));
  log(LogLevel::kInfo, "route " + name + ": deleted");
  return RouteChange{.generation = ++generation_, .unchanged = false};
}

Result<RouteChange> RouteControl::change(const std::string& request_id, const RouteOptions& wanted,
                                         bool is_delete) {
  SPECD_OK_OR_RETURN(check_name("request_id", request_id));
  const MutexLock lock(mutex_);
  if (!request_id.empty()) {
    const auto known = std::find_if(replies_.begin(), replies_.end(), [&](const Reply& reply) {
      return reply.request_id == request_id;
    });
    if (known != replies_.end()) {
      if (known->is_delete == is_delete && known->wanted == fingerprint(wanted))
        return known->reply;
      return Status(Code::kInvalidArgument, "request_id",
                    "'" + request_id + "' was used for another change of routes; take a new one");
    }
  }
  SPECD_OK_OR_RETURN(intake_.is_open());
  Result<RouteChange> reply = is_delete ? remove(wanted.name) : apply(wanted);
  if (!request_id.empty()) {
    replies_.push_back({request_id, fingerprint(wanted), is_delete, reply});
    if (replies_.size() > kRepliesMax) replies_.pop_front();
  }
  return reply;
}

bool RouteControl::between_steps(std::function<void()> task) {
  const MutexLock lock(mutex_);
  return intake_.between_steps(std::move(task), kBoundaryWait);
}

Result<RouteLease> RouteControl::lease(const std::string& name) const {
  const std::string& wanted = name.empty() ? options_.default_route : name;
  if (wanted == "off") return RouteLease();
  const std::shared_ptr<const RouteTable> table = board_.read();
  const auto found = table->find(wanted);
  if (found == table->end()) {
    return Status(Code::kInvalidArgument, "route", no_route(*table, wanted).message());
  }
  if (found->second.live == nullptr) {
    return Status(Code::kInvalidArgument, "route",
                  "'" + wanted + "' cannot be served; the list of routes and the log say why");
  }
  return RouteLease(found->second.live);
}

Result<RouteOptions> RouteControl::definition(const std::string& name) const {
  const std::shared_ptr<const RouteTable> table = board_.read();
  const auto found = table->find(name);
  if (found != table->end()) return found->second.options;
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
    entry.options = wanted;
    Result<Staged> staged = stage(wanted);
    if (staged.ok()) {
      staged.value().route->generation = generation_;
      add_taps(std::move(staged.value().taps));
      entry.live = board_.share(std::move(staged.value().route));
      continue;
    }
    const Status& status = staged.status();
    if (wanted.name == options_.default_route) {
      return status.with_context("the default route cannot be served")
          .in_field(route_field(wanted.name));
    }
    log(LogLevel::kError, "route " + wanted.name + " cannot be served: " + status.to_string());
    entry.refused = status;
  }
  board_.publish(std::move(table));
  return Status();
}

}  // namespace specd
