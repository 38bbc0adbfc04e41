// Routes are changed while requests run: staged beside the step, flipped at a step boundary.
#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/log.h"
#include "core/engine/impl.h"

namespace specd {

namespace {

constexpr size_t kRepliesMax = 256;
// A forward of a long prefill chunk may take seconds; a plugin that hangs takes for ever.
constexpr std::chrono::seconds kBoundaryWait{60};

std::string names_of(const RouteTable& table) {
  std::string names = "off";
  for (const auto& [name, entry] : table) names += ", " + name;
  return names;
}

}  // namespace

Status no_route(const RouteTable& table, const std::string& name) {
  return Status(Code::kNotFound, "no route is called '" + name + "'; there are " + names_of(table));
}

Result<Engine::Impl::StagedRoute> Engine::Impl::stage_route(const RouteOptions& wanted) {
  const RouteSpec spec = route_spec(wanted, options);
  StagedRoute staged;
  SPECD_TRY(staged.route, create_route(*registry, spec, target.info));
  SPECD_OK_OR_RETURN(activate_route(*staged.route, spec, *device));
  const specd_drafter_caps& caps = staged.route->drafter->caps();
  std::vector<uint32_t> points = tap_points;
  for (uint32_t i = 0; i < caps.n_taps; ++i) {
    const auto found = std::find(points.begin(), points.end(), caps.taps[i]);
    staged.route->tap_index.push_back(static_cast<size_t>(found - points.begin()));
    if (found != points.end()) continue;
    SPECD_TRY(Transformer::Tap tap, model->make_tap(caps.taps[i]));
    staged.taps.push_back(std::move(tap));
    points.push_back(caps.taps[i]);
  }
  return staged;
}

void Engine::Impl::add_taps(std::vector<Transformer::Tap> taps) {
  for (Transformer::Tap& tap : taps) {
    tap_points.push_back(tap.point);
    model->add_tap(std::move(tap));
  }
}

bool Engine::Impl::is_current(const LiveRoute& route) const {
  const auto is_there = [&](const BundleInfo& made_of) {
    const std::optional<BundleInfo> now = registry->find(made_of.id);
    return now.has_value() && now->state == BundleInfo::State::kLoaded &&
           now->content_sha256 == made_of.content_sha256;
  };
  return is_there(route.drafter_bundle) && is_there(route.verifier_bundle) &&
         std::all_of(route.part_bundles.begin(), route.part_bundles.end(), is_there);
}

Result<RouteChange> Engine::Impl::apply_route(const RouteOptions& wanted) {
  SPECD_OK_OR_RETURN(check_route(wanted, options));
  const std::string where = route_field(wanted.name);
  const std::shared_ptr<const RouteTable> table = board->read();
  const auto found = table->find(wanted.name);
  if (found == table->end() && table->size() >= EngineLimits::kRoutes) {
    return Status(
        Code::kExhausted, where,
        "there are " + std::to_string(table->size()) + " routes already; delete one first");
  }
  if (const Status status = registry->rescan(); !status.ok()) return status.in_field("plugins");
  if (found != table->end() && found->second.live != nullptr && found->second.options == wanted &&
      is_current(*found->second.live)) {
    return RouteChange{.generation = found->second.live->generation, .unchanged = true};
  }
  auto staged = stage_route(wanted);
  if (!staged.ok()) return staged.status().in_field(where);
  StagedRoute& fresh = staged.value();
  fresh.route->generation = generation + 1;
  RouteTable next = *table;
  next[wanted.name] = {
      .options = wanted, .live = board->share(std::move(fresh.route)), .refused = {}};
  const bool flipped = at_step_boundary([&] {
    add_taps(std::move(fresh.taps));
    board->publish(std::move(next));
  });
  if (!flipped) {
    return Status(Code::kDeadlineExceeded, where,
                  "no step ended within " + std::to_string(kBoundaryWait.count()) +
                      " s (does a plugin hang?); nothing was changed");
  }
  log(LogLevel::kInfo,
      "route " + wanted.name + ": generation " + std::to_string(generation + 1) + " is live");
  return RouteChange{.generation = ++generation, .unchanged = false};
}

Result<RouteChange> Engine::Impl::delete_route(const std::string& name) {
  if (name == "off") {
    return Status(Code::kFailedPrecondition, "'off' is plain decoding and always there");
  }
  if (name == options.default_route) {
    return Status(Code::kFailedPrecondition,
                  "route '" + name + "' is the default route; requests that name none need it");
  }
  const std::shared_ptr<const RouteTable> table = board->read();
  if (!table->contains(name)) return no_route(*table, name);
  RouteTable next = *table;
  next.erase(name);
  board->publish(std::move(next));
  log(LogLevel::kInfo, "route " + name + ": deleted");
  return RouteChange{.generation = ++generation, .unchanged = false};
}

Result<RouteChange> Engine::Impl::change_routes(const std::string& request_id,
                                                const RouteOptions& wanted, bool is_delete) {
  SPECD_OK_OR_RETURN(check_name("request_id", request_id));
  const std::lock_guard lock(control);
  if (!request_id.empty()) {
    const auto known = std::find_if(replies.begin(), replies.end(), [&](const Reply& reply) {
      return reply.request_id == request_id;
    });
    if (known != replies.end()) {
      if (known->is_delete == is_delete && known->wanted == wanted) return known->reply;
      return Status(Code::kInvalidArgument, "request_id",
                    "'" + request_id + "' was used for another change of routes; take a new one");
    }
  }
  {
    const std::lock_guard guard(mutex);
    if (!failure.ok()) return failure;
    if (draining) return Status(Code::kUnavailable, "the daemon is shutting down");
  }
  const Result<RouteChange> reply = is_delete ? delete_route(wanted.name) : apply_route(wanted);
  if (!request_id.empty()) {
    replies.push_back({request_id, wanted, is_delete, reply});
    if (replies.size() > kRepliesMax) replies.pop_front();
  }
  return reply;
}

bool Engine::Impl::at_step_boundary(std::function<void()> task) {
  std::unique_lock lock(mutex);
  boundary_passed = false;
  boundary_task = std::move(task);
  wake.notify_one();
  if (boundary.wait_for(lock, kBoundaryWait, [this] { return boundary_passed; })) return true;
  if (boundary_task != nullptr) {
    boundary_task = nullptr;
    return false;
  }
  boundary.wait(lock, [this] { return boundary_passed; });  // it is running
  return true;
}

void Engine::Impl::pass_boundary(const std::function<void()>& task) {
  task();
  {
    const std::lock_guard lock(mutex);
    boundary_passed = true;
  }
  boundary.notify_all();
}

Result<RouteChange> Engine::apply_route(const RouteOptions& route, const std::string& request_id) {
  RouteOptions wanted = route;
  if (wanted.model.empty()) wanted.model = impl_->options.model.name;
  return impl_->change_routes(request_id, wanted, false);
}

Result<RouteChange> Engine::delete_route(const std::string& name, const std::string& request_id) {
  SPECD_OK_OR_RETURN(check_name("name", name));
  RouteOptions wanted;
  wanted.name = name;
  return impl_->change_routes(request_id, wanted, true);
}

Result<RouteOptions> Engine::route(const std::string& name) const {
  SPECD_OK_OR_RETURN(check_name("name", name));
  const std::shared_ptr<const RouteTable> table = impl_->board->read();
  const auto found = table->find(name);
  if (found != table->end()) return found->second.options;
  if (name != "off") return no_route(*table, name);
  return Status(Code::kFailedPrecondition,
                "'off' is plain decoding and always there; it has no definition");
}

}  // namespace specd
