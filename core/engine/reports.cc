#include "core/engine/impl.h"
#include "core/engine/memory_plan.h"
#include "core/engine/options.h"

namespace specd {

const char* plugin_state_name(PluginState state) {
  switch (state) {
    case PluginState::kDiscovered:
      return "discovered";
    case PluginState::kLoaded:
      return "loaded";
    case PluginState::kRefused:
      break;
  }
  return "refused";
}

const char* engine_state_name(EngineState state) {
  switch (state) {
    case EngineState::kReady:
      return "ready";
    case EngineState::kDraining:
      return "draining";
    case EngineState::kFailed:
      break;
  }
  return "failed";
}

namespace {

PluginReport report_of(const BundleInfo& bundle) {
  PluginReport report{.id = bundle.id,
                      .version = bundle.version,
                      .license = bundle.license,
                      .directory = bundle.directory,
                      .sha256 = bundle.sha256,
                      .state = bundle.state,
                      .reason = bundle.reason,
                      .factories = {}};
  for (const FactoryInfo& factory : bundle.factories) {
    report.factories.emplace_back(factory.id, factory.kind);
  }
  return report;
}

}  // namespace

std::vector<PluginReport> Engine::plugins() const {
  std::vector<PluginReport> reports;
  for (const BundleInfo& bundle : impl_->routes.registry().list()) {
    reports.push_back(report_of(bundle));
  }
  return reports;
}

Result<PluginReport> Engine::load_plugin(const std::string& plugin_id,
                                         const std::string& request_id) {
  SPECD_TRY(const BundleInfo loaded, impl_->routes.load_plugin(plugin_id, request_id));
  return report_of(loaded);
}

std::vector<RouteReport> Engine::routes() const {
  const EngineOptions& options = impl_->options;
  RouteReport off{.is_default = options.default_route == "off"};
  off.options.name = "off";
  off.options.model = options.model.name;
  off.counts.requests = impl_->intake.counters.off;
  std::vector<RouteReport> reports{std::move(off)};
  for (RouteReport& report : impl_->routes.board().report(impl_->batch->counters().running)) {
    report.options.model = options.model.name;
    report.is_default = report.name() == options.default_route && stands_for_route(report.state);
    reports.push_back(std::move(report));
  }
  return reports;
}

ModelReport Engine::model() const {
  const Impl& m = *impl_;
  ModelReport report;
  report.name = m.options.model.name;
  report.path = m.options.model.path;
  report.architecture =
      m.target.config.architecture + (m.target.config.is_ballast ? " (ballast)" : "");
  report.dtype = dtype_name(m.models.target->weights().dtype);
  report.kv_dtype = kv_dtype_name(m.options.model.kv_dtype);
  report.vocab_size = m.target.config.vocab_size;
  report.n_layers = m.target.config.n_layers;
  report.hidden_size = m.target.config.hidden_size;
  report.max_positions = m.target.config.max_positions;
  report.parameters = m.models.target->weights().parameters;
  report.weight_format = m.models.target->weights().summary.format;
  report.weight_bits = m.models.target->weights().summary.bits;
  for (const Transformer::Memory& rank : m.models.target->held()) {
    report.weight_bytes += rank.weights;
  }
  for (const uint64_t rank : m.models.kv_bytes) report.kv_bytes += rank;
  report.kv_pages_total = m.models.kv->n_pages();
  report.kv_pages_free = m.batch->counters().pages_free;
  report.kv_pages_cached = m.batch->counters().pages_idle;
  report.prefix_query_tokens = m.batch->counters().prefix_query_tokens;
  report.prefix_hit_tokens = m.batch->counters().prefix_hit_tokens;
  report.page_tokens = kernels::kPageTokens;
  report.sampling_defaults = m.target.sampling_defaults;
  report.generation_config_ignored = m.target.generation_config_ignored;
  report.eos_tokens = m.target.config.eos_tokens;
  const Status& chat = m.target.chat_template.status();
  report.chat_template = chat.ok() ? m.target.chat_template.source() : "refused: " + chat.message();
  return report;
}

std::vector<ModelReport> Engine::draft_models() const {
  std::vector<ModelReport> reports;
  for (const std::unique_ptr<DraftModel>& each : impl_->models.drafts->models()) {
    const DraftModel& model = *each;
    ModelReport report;
    report.is_draft = true;
    report.refused = model.status;
    report.name = model.name;
    report.path = model.path;
    report.architecture = model.config.architecture;
    report.kv_dtype = kv_dtype_name(model.kv_dtype);
    report.vocab_size = model.config.vocab_size;
    report.n_layers = model.config.n_layers;
    report.hidden_size = model.config.hidden_size;
    report.max_positions = model.config.max_positions;
    report.page_tokens = kernels::kPageTokens;
    if (model.transformer != nullptr) {
      report.dtype = dtype_name(model.transformer->weights().dtype);
      report.parameters = model.transformer->weights().parameters;
      report.weight_format = model.transformer->weights().summary.format;
      report.weight_bits = model.transformer->weights().summary.bits;
      for (const Transformer::Memory& rank : model.transformer->held()) {
        report.weight_bytes += rank.weights;
      }
      for (const uint64_t rank : model.own_page_bytes) report.kv_bytes += rank;
      if (model.has_own_pages) report.kv_pages_total = model.kv.store->n_pages();
      report.page_tokens *= model.kv.store->parts_per_page();
    }
    report.kv_pages_held = model.kv.pages_held;
    report.forwards = model.forwards;
    report.rows = model.rows;
    report.forward_ns = model.forward_ns;
    reports.push_back(std::move(report));
  }
  return reports;
}

EngineReport Engine::status() const {
  Impl& m = *impl_;
  EngineReport report;
  report.state = !m.intake.failure().ok() ? EngineState::kFailed
                 : m.intake.is_draining() ? EngineState::kDraining
                                          : EngineState::kReady;
  report.waiting = m.intake.n_queued();
  report.device = m.models.device->name() + " (" + m.models.device->description() + ")";
  report.isa = m.models.cpu->ops().name;
  report.threads = m.models.cpu->threads() * n_ranks_of(m.options);
  report.running = m.batch->counters().running;
  report.admitted = m.intake.counters.admitted;
  report.completed = m.intake.counters.completed;
  report.failed = m.intake.counters.failed;
  report.cancelled = m.intake.counters.cancelled;
  report.refused = m.intake.counters.refused;
  report.deadline_misses = m.intake.counters.deadline_misses;
  report.preemptions = m.batch->counters().preemptions;
  report.steps = m.loop->counters().steps;
  report.rows = m.loop->counters().rows;
  report.tokens = m.request_metrics.tokens;
  report.kv_moves = m.loop->counters().kv_moves;
  report.uptime_ns = now_ns() - m.started_ns;
  report.step_age_ns = m.loop->beat().busy_ns();
  return report;
}

std::vector<MemoryLine> Engine::memory() const {
  const Impl& m = *impl_;
  std::vector<MemoryLine> lines;
  const auto n_ranks = static_cast<size_t>(n_ranks_of(m.options));
  const auto add = [&](std::string what, std::vector<uint64_t> held) {
    held.resize(n_ranks);
    MemoryLine line{.what = std::move(what), .held = std::move(held), .planned = {}};
    for (const MemoryPlan::Line& planned : m.models.plan.lines) {
      if (planned.what != line.what) continue;
      line.planned = planned.bytes;
      line.detail = planned.detail;
    }
    lines.push_back(std::move(line));
  };
  const auto add_model = [&](const std::string& name, const std::string& activations_name,
                             const Transformer& model) {
    std::vector<uint64_t> weights, activations;
    for (const Transformer::Memory& rank : model.held()) {
      weights.push_back(rank.weights);
      activations.push_back(rank.activations);
    }
    add("weights of " + name, std::move(weights));
    add(activations_name, std::move(activations));
  };
  add_model(m.options.model.name, "activations", *m.models.target);
  add(kColumnsLine, m.models.column_bytes);
  add(kv_line("", m.models.kv->n_pages()), m.models.kv_bytes);
  if (const uint64_t scratch = m.models.device->scratch_bytes(); scratch > 0)
    add(scratch_line(""), std::vector<uint64_t>(n_ranks, scratch));
  for (const std::unique_ptr<DraftModel>& draft : m.models.drafts->models()) {
    if (draft->transformer == nullptr) continue;
    const std::string name = name_with_place(*draft);
    add_model(name, "activations of " + name, *draft->transformer);
    if (draft->has_own_pages) add(kv_line(name, draft->kv.store->n_pages()), draft->own_page_bytes);
  }
  for (const std::unique_ptr<Device>& device : m.models.draft_devices) {
    if (device->scratch_bytes() > 0) add(scratch_line(device->name()), {device->scratch_bytes()});
  }
  for (const RouteReport& route : m.routes.board().report(m.batch->counters().running)) {
    if (!has_pair(route.state)) continue;
    const bool is_elsewhere = !m.models.device->is_host() && !route.drafts_on_device;
    add(drafter_line(route.name(), route.state, is_elsewhere ? "cpu" : ""),
        {route.memory_bytes_max});
    if (route.ring_bytes > 0) {
      add(rings_line(route.name(), route.state, m.models.device->is_host() ? "" : "cpu"),
          {route.ring_bytes});
    }
  }
  return lines;
}

WatchedDrafts Engine::watch_drafts() const {
  WatchedDrafts watched = impl_->runner->watch().read(now_ns());
  if (impl_->batch->counters().running == 0) watched.running.clear();  // ended between two steps
  return watched;
}

void Engine::follow_drafts(uint64_t number) { impl_->runner->watch().follow(number); }

Result<RequestList> Engine::requests(size_t n_max) const {
  RequestList list;
  const Batch& batch = *impl_->batch;
  const auto n_there = static_cast<size_t>(batch.counters().running + impl_->intake.n_queued());
  list.requests.reserve(std::min(n_max, n_there));  // not while steps wait
  if (!impl_->intake.between_steps([&] { batch.list_requests(n_max, list); })) {
    return Status(Code::kDeadlineExceeded, "no step ended in time (does a plugin hang?)");
  }
  return list;
}

}  // namespace specd
