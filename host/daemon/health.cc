#include "host/daemon/health.h"

#include <utility>

#include "core/base/heartbeat.h"
#include "host/daemon/metrics_text.h"
#include "host/version.h"
#include "host/daemon/vllm_names.h"
#include "host/triton/statistics.h"

namespace specd::host {
namespace {

HttpAnswer text(unsigned status, std::string body) {
  HttpAnswer answer;
  answer.status = status;
  answer.body = std::move(body) + "\n";
  return answer;
}

}  // namespace

std::vector<HttpRoute> Health::routes() const {
  const auto get = [this](const char* path, HttpAnswer (Health::*make)() const) {
    return HttpRoute{"GET", path, [this, make](const HttpRequest&, const auto& reply) {
                       reply->answer((this->*make)());
                     }};
  };
  return {get("/metrics", &Health::metrics), get("/health/live", &Health::live),
          get("/health/ready", &Health::ready), get("/health", &Health::ready),
          get("/ping", &Health::ready)};
}

HttpRoute Health::triton_metrics(const TritonModel& model) const {
  return {"GET", "/metrics", [this, model](const HttpRequest&, const auto& reply) {
            const Engine* const engine = engine_;
            if (engine == nullptr) return reply->answer(text(503, "loading"));
            const InferStatistics statistics = infer_statistics(engine->metrics());
            reply->answer({.status = 200,
                           .content_type = kMetricsContentType,
                           .body = metrics_text(triton_names(statistics, model))});
          }};
}

HttpAnswer Health::live() const {
  const Engine* engine = engine_;
  if (engine == nullptr) return text(200, "loading");
  const uint64_t age_s = engine->status().step_age_ns / 1'000'000'000;
  if (age_s < stall_seconds_) {
    // The others cost no request, so nobody is to start the daemon anew for them.
    std::string body = "live";
    for (const ThreadReport& each : thread_reports()) {
      if (each.is_stuck()) body += "\nstuck: " + busy_text(each);
    }
    return text(200, std::move(body));
  }
  return text(503, "the present step has run for " + std::to_string(age_s) +
                       " s (http.stall_seconds is " + std::to_string(stall_seconds_) + ")");
}

HttpAnswer Health::ready() const {
  const Engine* engine = engine_;
  if (engine == nullptr) return text(503, "loading");
  if (draining_ || engine->status().state != EngineState::kReady) return text(503, "draining");
  const Status door = server_.load()->door();
  return door.ok() ? text(200, "ready") : text(503, door.message());
}

HttpAnswer Health::metrics() const {
  const Engine* engine = engine_;
  if (engine == nullptr) return text(503, "loading");
  std::vector<MetricFamily> families = engine->metrics();
  families.push_back({.name = "specd_build_info",
                      .help = "1, with what was built.",
                      .type = MetricFamily::Type::kGauge,
                      .bounds = {},
                      .series = {{.labels = {{"version", kVersion}, {"isa", engine->status().isa}},
                                  .value = 1,
                                  .counts = {},
                                  .sum = 0}}});
  add_vllm_names(families);
  return {.status = 200, .content_type = kMetricsContentType, .body = metrics_text(families)};
}

}  // namespace specd::host
