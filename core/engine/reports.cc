#include "core/engine/impl.h"

namespace specd {

std::vector<PluginReport> Engine::plugins() const {
  std::vector<PluginReport> reports;
  for (const BundleInfo& bundle : impl_->registry->list()) {
    PluginReport report{.id = bundle.id,
                        .version = bundle.version,
                        .license = bundle.license,
                        .directory = bundle.directory,
                        .sha256 = bundle.sha256,
                        .state = {},
                        .reason = bundle.reason,
                        .factories = {}};
    switch (bundle.state) {
      case BundleInfo::State::kDiscovered:
        report.state = "discovered";
        break;
      case BundleInfo::State::kLoaded:
        report.state = "loaded";
        break;
      case BundleInfo::State::kRefused:
        report.state = "refused";
        break;
    }
    for (const FactoryInfo& factory : bundle.factories) {
      report.factories.emplace_back(factory.id, factory.kind);
    }
    reports.push_back(std::move(report));
  }
  return reports;
}

std::vector<RouteReport> Engine::routes() const {
  std::vector<RouteReport> reports;
  RouteReport off;
  off.name = "off";
  off.model = impl_->options.model.name;
  off.guarantee = "identical";
  off.state = "live";
  off.requests = impl_->n_off_requests;
  off.is_default = impl_->options.default_route == "off";
  reports.push_back(off);
  for (RouteReport& report : impl_->board->report()) {
    report.is_default = report.name == impl_->options.default_route && report.state != "draining";
    report.model = impl_->options.model.name;
    report.suspended = report.disable_by_batch_size > 0 &&
                       impl_->batch->counters().running > report.disable_by_batch_size;
    reports.push_back(std::move(report));
  }
  return reports;
}

ModelReport Engine::model() const {
  const Impl& m = *impl_;
  ModelReport report;
  report.role = "target";
  report.state = "loaded";
  report.name = m.options.model.name;
  report.path = m.options.model.path;
  report.architecture = m.config.architecture + (m.config.is_ballast ? " (ballast)" : "");
  report.dtype = dtype_name(m.model->weights().dtype);
  report.kv_dtype = dtype_name(kernel_dtype(m.options.model.kv_dtype));
  report.vocab_size = m.config.vocab_size;
  report.n_layers = m.config.n_layers;
  report.hidden_size = m.config.hidden_size;
  report.max_positions = m.config.max_positions;
  report.parameters = m.model->weights().parameters;
  report.weight_bytes = m.model->weights().held_bytes;
  report.kv_bytes = m.kv->bytes();
  report.kv_pages_total = m.kv->n_pages();
  report.kv_pages_free = m.batch->counters().pages_free;
  report.kv_pages_cached = m.batch->counters().pages_idle;
  report.prefix_query_tokens = m.batch->counters().prefix_query_tokens;
  report.prefix_hit_tokens = m.batch->counters().prefix_hit_tokens;
  report.page_tokens = kernels::kPageTokens;
  report.sampling_defaults = m.sampling_defaults;
  report.generation_config_ignored = m.generation_config_ignored;
  report.eos_tokens = m.config.eos_tokens;
  const Status& chat = m.chat_template.status();
  report.chat_template = chat.ok() ? m.chat_template.source() : "refused: " + chat.message();
  return report;
}

std::vector<ModelReport> Engine::draft_models() const {
  std::vector<ModelReport> reports;
  for (const std::unique_ptr<DraftModel>& each : impl_->draft_models->models()) {
    const DraftModel& model = *each;
    ModelReport report;
    report.role = "draft";
    report.state = model.status.ok() ? "loaded" : "refused";
    report.reason = model.status.ok() ? "" : model.status.to_string();
    report.name = model.name;
    report.path = model.path;
    report.architecture = model.config.architecture;
    report.kv_dtype = dtype_name(model.kv_dtype);
    report.vocab_size = model.config.vocab_size;
    report.n_layers = model.config.n_layers;
    report.hidden_size = model.config.hidden_size;
    report.max_positions = model.config.max_positions;
    report.page_tokens = kernels::kPageTokens;
    if (model.transformer != nullptr) {
      report.dtype = dtype_name(model.transformer->weights().dtype);
      report.parameters = model.transformer->weights().parameters;
      report.weight_bytes = model.transformer->weights().held_bytes;
      report.page_tokens *= model.kv->parts_per_page();
    }
    report.kv_pages_held = model.pages_held;
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
  {
    const std::lock_guard lock(m.mutex);
    report.state = !m.failure.ok() ? "failed" : m.draining ? "draining" : "ready";
    report.waiting = m.n_queued;
  }
  report.device = m.device->name() + " (" + m.device->description() + ")";
  report.isa = m.cpu->ops().name;
  report.threads = m.cpu->threads();
  report.running = m.batch->counters().running;
  report.admitted = m.n_admitted;
  report.completed = m.n_completed;
  report.failed = m.n_failed;
  report.cancelled = m.n_cancelled;
  report.refused = m.n_refused;
  report.deadline_misses = m.n_deadline_misses;
  report.preemptions = m.batch->counters().preemptions;
  report.steps = m.n_steps;
  report.rows = m.n_rows;
  report.tokens = m.n_tokens;
  report.kv_moves = m.n_kv_moves;
  report.uptime_ns = now_ns() - m.started_ns;
  if (const uint64_t since = m.step_since_ns; since != 0) {
    report.step_age_ns = now_ns() - since;
  }
  return report;
}

std::vector<MemoryLine> Engine::memory() const {
  const Impl& m = *impl_;
  std::vector<MemoryLine> lines{
      {"weights of " + m.options.model.name, m.model->weights().held_bytes},
      {"KV cache, " + std::to_string(m.kv->n_pages()) + " pages of " +
           std::to_string(kernels::kPageTokens) + " tokens",
       m.kv->bytes()},
      {"activations", m.model->activation_bytes()},
  };
  for (const std::unique_ptr<DraftModel>& draft : m.draft_models->models()) {
    if (draft->transformer == nullptr) continue;
    lines.push_back({"weights of " + draft->name, draft->transformer->weights().held_bytes});
    lines.push_back({"activations of " + draft->name, draft->transformer->activation_bytes()});
  }
  for (const RouteReport& route : m.board->report()) {
    if (route.state == "refused") continue;
    lines.push_back({"drafter of route " + route.name + " (limit" +
                         (route.state == "draining" ? ", draining)" : ")"),
                     route.memory_bytes_max});
  }
  return lines;
}

}  // namespace specd
