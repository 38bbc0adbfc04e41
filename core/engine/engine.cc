// The functions of engine.h; the parts listed in impl.h do the work.
#include <algorithm>
#include <utility>

#include "core/base/failpoint.h"
#include "core/base/run_within.h"
#include "core/engine/impl.h"
#include "core/engine/options.h"

namespace specd {

namespace {
// Of one step, besides one per sequence: 64 MiB of a vocabulary of 128k.
constexpr int32_t kCopiedRowsMax = 128;
}  // namespace

Engine::Engine() = default;
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::create(const EngineOptions& options,
                                               const ProgressFn& progress) {
  SPECD_OK_OR_RETURN(set_failpoints_of_environment());
  SPECD_OK_OR_RETURN(check_limits(options));
  std::unique_ptr<Engine> engine(new Engine());
  engine->impl_ = std::make_unique<Impl>(options);
  if (const Status loaded = engine->impl_->load(progress); !loaded.ok()) {
    if (n_late_works() > 0) (void)engine->impl_.release();  // a plugin's late call uses it
    return loaded;
  }
  engine->impl_->loop->start();
  return engine;
}

Status Engine::Impl::load(const ProgressFn& progress) {
  const auto say = [&](const char* what, double fraction) {
    if (progress) progress(what, fraction);
  };
  SPECD_OK_OR_RETURN(target.load(options.model));
  SPECD_OK_OR_RETURN(models.open(options, target));
  SPECD_OK_OR_RETURN(routes.open());
  SPECD_OK_OR_RETURN(models.load(options, target, routes.limits(), progress));
  say("plugins", 0);
  SPECD_OK_OR_RETURN(routes.load());
  SPECD_TRY(runner,
            StepRunner::create(*models.worker, *models.drafts, *models.cpu, options.max_sequences));
  models.column_bytes.front() += runner->column_bytes();
  const SchedulerLimits limits{.step_tokens_max = options.step_tokens_max,
                               .logits_rows_max = models.logits_rows_max,
                               .max_sequences = options.max_sequences,
                               .copied_rows_max = kCopiedRowsMax};
  batch = std::make_unique<Batch>(limits, *models.pages, models.cache.get(), *models.drafts,
                                  *models.worker, *runner, [this](Sequence& sequence) {
                                    intake.end(sequence, static_cast<int32_t>(batch->n_waiting()));
                                  });
  loop = std::make_unique<Loop>(intake, *batch, *runner, *models.device);
  say("ready", 1);
  return Status();
}

Status Engine::check(const Request& request) const { return impl_->check(request); }

Result<Ticket> Engine::submit(const Request& request, Sink sink) {
  Result<Ticket> ticket = impl_->admit(request, std::move(sink));
  if (!ticket.ok()) count_refused();
  return ticket;
}
void Engine::count_refused() { ++impl_->intake.counters.refused; }
bool Engine::cancel(uint64_t number) { return impl_->intake.cancel(number); }
bool Engine::cancel(const std::string& request_id) { return impl_->intake.cancel(request_id); }
void Engine::start_drain() { impl_->intake.start_drain(); }
Status Engine::failure() const {
  const Status failed = impl_->intake.failure();
  // A rank may be lost while nothing is computed.
  return failed.ok() && impl_->models.ranks != nullptr ? impl_->models.lead()->status() : failed;
}
bool Engine::wait_idle(uint64_t timeout_ms) {
  return impl_->intake.wait_idle(std::chrono::milliseconds(timeout_ms));
}

Result<std::vector<int32_t>> Engine::encode(const std::string& prompt) const {
  Request request;
  request.prompt = prompt;
  SPECD_TRY(RenderedPrompt made, impl_->target.make_prompt(request));
  return std::move(made.tokens);
}

std::string Engine::decode(std::span<const int32_t> tokens) const {
  return impl_->target.tokenizer->decode(tokens, /*skip_special=*/false);
}

std::string_view Engine::token_bytes(int32_t token) const {
  return impl_->target.tokenizer->token_bytes(token);
}

Result<RenderedPrompt> Engine::render(const Request& request) const {
  if (request.prompt_tokens.has_value()) {
    return Status(Code::kInvalidArgument, "prompt_tokens", "expected text or a chat, found ids");
  }
  return impl_->target.make_prompt(request);
}

bool Engine::clear_prefix_cache() {
  return impl_->intake.between_steps([impl = impl_.get()] {
    if (impl->models.cache != nullptr) impl->models.cache->clear();
    impl->batch->count_pages();
  });
}

Result<RouteChange> Engine::apply_route(const RouteOptions& route, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kApply, route, how);
}
Result<RouteChange> Engine::stage_route(const RouteOptions& route, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kStage, route, how);
}
Result<RouteChange> Engine::set_traffic(const std::string& name, const Traffic& traffic,
                                        const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kTraffic, name, how, traffic);
}
Result<RouteChange> Engine::promote_route(const std::string& name, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kPromote, name, how);
}
Result<RouteChange> Engine::abort_route(const std::string& name, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kAbort, name, how);
}
Result<RouteChange> Engine::roll_back_route(const std::string& name, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kRollBack, name, how);
}
Result<RouteChange> Engine::delete_route(const std::string& name, const ChangeOptions& how) {
  return impl_->change(RouteCommand::Kind::kDelete, name, how);
}

Result<ConfiguredRoutes> Engine::configure_routes(const std::vector<RouteOptions>& routes,
                                                  const ChangeOptions& how) {
  return impl_->routes.configure(routes, how);
}
Status Engine::retire_plugin(const std::string& plugin_id, const std::string& request_id) {
  return impl_->routes.retire_plugin(plugin_id, request_id);
}

std::vector<EngineEvent> Engine::events(uint64_t after, size_t n_max) const {
  return impl_->routes.events().read(after, n_max);
}
uint64_t Engine::wait_event(uint64_t after, uint64_t timeout_ms) const {
  constexpr uint64_t kLongMs = uint64_t{1} << 40;  // some 30 years, which the clock can hold
  return impl_->routes.events().wait(after,
                                     std::chrono::milliseconds(std::min(timeout_ms, kLongMs)));
}

Result<RouteChange> Engine::Impl::change(RouteCommand::Kind kind, const RouteOptions& route,
                                         const ChangeOptions& how) {
  RouteCommand command{.kind = kind, .route = route, .how = how};
  if (command.route.model.empty()) command.route.model = options.model.name;
  return routes.change(command);
}

Result<RouteChange> Engine::Impl::change(RouteCommand::Kind kind, const std::string& name,
                                         const ChangeOptions& how, const Traffic& traffic) {
  SPECD_OK_OR_RETURN(check_name("name", name));
  RouteCommand command{.kind = kind, .traffic = traffic, .how = how};
  command.route.name = name;
  return routes.change(command);
}

Result<RouteOptions> Engine::route(const std::string& name) const {
  SPECD_OK_OR_RETURN(check_name("name", name));
  return impl_->routes.definition(name);
}

}  // namespace specd
