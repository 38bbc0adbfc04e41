#include "core/engine/routes/maker.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "core/base/run_within.h"
#include "core/engine/options.h"

namespace specd {

Status RouteMaker::open() {
  services_ = std::make_unique<Services>(*models_.cpu, *models_.device, target_.config.vocab_size);
  services_->plan_target(target_.config);
  SPECD_TRY(registry_, PluginRegistry::open(registry_options(options_), make_host(services_.get()))
                           .in_field("plugins"));
  return Status();
}

Result<DrafterLimit> RouteMaker::limit(const RouteOptions& wanted) {
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
  if (done.code() == Code::kDeadlineExceeded) return is_late(late_plugin, done);
  SPECD_OK_OR_RETURN(done);
  return *limit;
}

std::vector<DrafterLimit> RouteMaker::limits(const std::vector<RouteOptions>& routes) {
  std::vector<DrafterLimit> all;
  for (const RouteOptions& wanted : routes) {
    const Result<DrafterLimit> its = limit(wanted);
    all.push_back(its.ok() ? its.value() : DrafterLimit{.route = wanted.name});
  }
  return all;
}

void RouteMaker::give_models() {
  services_->set_models(models_.drafts.get());
  services_->set_target(models_.target.get(), models_.lead());
}

Result<RouteMaker::Made> RouteMaker::make(const RouteOptions& wanted, uint64_t generation,
                                          const std::vector<Transformer::Tap>& pending) {
  const auto making = std::make_shared<Making>();
  making->wanted = wanted;
  making->tap_points = tap_points_;
  for (const Transformer::Tap& tap : pending) making->tap_points.push_back(tap.point);
  making->made.route = std::make_unique<LiveRoute>();
  making->made.route->generation = generation;
  making->made.route->tell = [this, name = wanted.name, generation](EventKind kind,
                                                                    const std::string& text) {
    events_.add({.kind = kind, .route = name, .generation = generation, .text = text});
  };
  std::string late_plugin;
  const Status done = run_within(
      std::chrono::seconds(options_.plugin_control_seconds),
      [this, making](const std::atomic<bool>& is_late) {
        try {
          making->status = make_within(*making, is_late);
        } catch (const std::bad_alloc&) {
          making->status = Status(Code::kExhausted, "no memory left");
        }
        if (!making->status.ok()) destroy_route(*making->made.route, is_late);
      },
      late_plugin);
  if (done.code() == Code::kDeadlineExceeded) return is_late(late_plugin, done);
  SPECD_OK_OR_RETURN(done);
  SPECD_OK_OR_RETURN(making->status);
  return std::move(making->made);
}

Status RouteMaker::make_within(Making& making, const std::atomic<bool>& is_late) {
  const RouteTerms terms = route_terms(options_);
  LiveRoute& route = *making.made.route;
  SPECD_OK_OR_RETURN(
      create_route(route, *registry_, making.wanted, terms, target_.facts.info, is_late));
  SPECD_OK_OR_RETURN(activate_route(route, terms, target_.facts.info, *models_.device, is_late));
  if (route.isolation != Isolation::kNone) SPECD_OK_OR_RETURN(set_beside(route, false));
  std::vector<uint32_t>& points = making.tap_points;
  const specd_drafter_caps& caps = route.drafter->caps();
  for (uint32_t i = 0; i < caps.n_taps; ++i) {
    const auto found = std::find(points.begin(), points.end(), caps.taps[i]);
    route.tap_index.push_back(static_cast<size_t>(found - points.begin()));
    if (found != points.end()) continue;
    SPECD_TRY(Transformer::Tap tap, models_.target->make_tap(caps.taps[i]));
    making.made.taps.push_back(std::move(tap));
    points.push_back(caps.taps[i]);
  }
  return check_in_time(is_late);
}

Status RouteMaker::set_beside(LiveRoute& route, bool is_shadow) {
  return start_beside(route, target_.facts.info, *models_.cpu, is_shadow);
}

Status RouteMaker::end_beside(LiveRoute& route) {
  if (route.beside == nullptr) return Status();
  std::chrono::milliseconds limit =
      route.control_limit(std::chrono::seconds(options_.plugin_control_seconds));
  // What takes longer hangs; no step looks at it any more.
  if (route.call_ns_max > 0)
    limit = std::min(limit, std::chrono::milliseconds(route.call_ns_max / 1'000'000 + 1));
  if (!route.beside->stop(limit)) {
    return Status(Code::kDeadlineExceeded,
                  "a call has not returned within " + std::to_string(limit.count()) + " ms");
  }
  route.beside.reset();
  return Status();
}

void RouteMaker::add_taps(std::vector<Transformer::Tap> taps) {
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

Status RouteMaker::rescan() {
  // Reads every file of every bundle, which may lie on a file system that does not answer.
  const auto scanned = std::make_shared<Status>();
  std::string unused;
  SPECD_OK_OR_RETURN(run_within(
      std::chrono::seconds(options_.plugin_control_seconds),
      [this, scanned](const std::atomic<bool>&) { *scanned = registry_->rescan(); }, unused));
  return *scanned;
}

Status RouteMaker::load_plugin(const std::string& plugin_id) {
  const auto loaded = std::make_shared<Status>();
  std::string late_plugin;
  const Status done = run_within(
      std::chrono::seconds(options_.plugin_control_seconds),
      [this, loaded, plugin_id](const std::atomic<bool>& is_late) {
        *loaded = registry_->load(plugin_id, is_late);
      },
      late_plugin);
  if (done.code() == Code::kDeadlineExceeded) return is_late(late_plugin, done);
  return done.ok() ? *loaded : done;
}

Status RouteMaker::is_late(const std::string& plugin_id, const Status& late) {
  if (plugin_id.empty()) return late;
  return set_aside(plugin_id, Status(late.code(), late.message() + " (plugins.control_seconds)"));
}

Status RouteMaker::set_aside(const std::string& plugin_id, const Status& because) {
  Status why(because.code(), because.message() +
                                 "; it is not loaded again until the daemon restarts or its files "
                                 "change");
  registry_->set_aside(plugin_id, why);
  events_.add({.kind = EventKind::kSetAside, .text = "plugin " + plugin_id + ": " + why.message()});
  return why;
}

bool RouteMaker::is_current(const LiveRoute& route) const {
  const auto is_there = [&](const BundleInfo& made_of) {
    const std::optional<BundleInfo> now = registry_->find(made_of.asked);
    return now.has_value() && now->state != PluginState::kRefused &&
           now->content_sha256 == made_of.content_sha256;
  };
  return is_there(route.drafter_bundle) && is_there(route.verifier_bundle) &&
         std::all_of(route.part_bundles.begin(), route.part_bundles.end(), is_there);
}

}  // namespace specd
