#include "host/page/state.h"

#include <algorithm>
#include <utility>

#include "core/base/json.h"
#include "host/base/token_text.h"
#include "host/version.h"

namespace specd::host {
namespace {

Json request_json(const WatchedRequest& request) {
  return json_object({{"number", request.number},
                      {"id", request.id},
                      {"index", request.index},
                      {"route", request.route},
                      {"generation", request.generation},
                      {"prompt", request.prompt_tokens},
                      {"output", request.output_tokens},
                      {"max", request.max_tokens},
                      {"drafted", request.drafted},
                      {"accepted", request.accepted}});
}

Json route_json(const RouteReport& route) {
  const RouteCounts& counts = route.counts;
  const auto plugin = [](const PluginUse& use, const PluginVersion& version) {
    return version.version.empty() ? use.plugin : use.plugin + " " + version.version;
  };
  return json_object({{"name", route.name()},
                      {"state", route_state_name(route.state)},
                      {"generation", route.generation},
                      {"is_default", route.is_default},
                      {"drafter", plugin(route.options.drafter, route.drafter)},
                      {"verifier", plugin(route.options.verifier, route.verifier)},
                      {"guarantee", guarantee_name(route.options.guarantee)},
                      {"suspended", route.suspended},
                      {"in_use", route.in_use},
                      {"requests", counts.requests},
                      {"steps", counts.steps},
                      {"drafts", counts.drafts},
                      {"drafted", counts.drafted},
                      {"accepted", counts.accepted},
                      {"rejected", counts.rejected},
                      {"discarded", counts.discarded},
                      {"accepted_at", counts.accepted_at},
                      {"lost", counts.lost},
                      {"cut", counts.cut},
                      {"problem", route.refused.ok() ? route.last_problem : route.refused.text()}});
}

Json tree_json(const Engine& engine, const WatchedStep& step) {
  const auto token = [&](int32_t id) -> Json {
    if (id < 0) return nullptr;
    Json pair = Json::array();
    pair.push_back(id);
    pair.push_back(token_text(engine.token_bytes(id)));
    return pair;
  };
  Json nodes = Json::array();
  for (size_t i = 0; i < step.token.size(); ++i) {
    Json node = Json::array();
    node.push_back(step.parent[i]);
    node.push_back(token(step.token[i]));
    node.push_back(static_cast<bool>(step.is_probe[i]));
    nodes.push_back(std::move(node));
  }
  return json_object({{"step", step.number},
                      {"at", step.n_output},
                      {"root", token(step.root)},
                      {"nodes", std::move(nodes)},
                      {"accepted", step.accepted},
                      {"next", token(step.next_token)}});
}

}  // namespace

std::string page_state(const Engine& engine, const PageLimits& limits) {
  const EngineReport status = engine.status();
  const ModelReport model = engine.model();
  const WatchedDrafts watched = engine.watch_drafts();
  Json routes = Json::array(), requests = Json::array(), trees = Json::array();
  for (const RouteReport& route : engine.routes()) routes.push_back(route_json(route));
  for (const WatchedRequest& request : watched.running) requests.push_back(request_json(request));
  for (const auto& step : watched.steps) trees.push_back(tree_json(engine, *step));
  const Json state = json_object(
      {{"version", kVersion},
       {"model", model.name},
       {"device", status.device},
       {"state", engine_state_name(status.state)},
       {"uptime_ns", status.uptime_ns},
       {"step_age_ns", status.step_age_ns},
       {"running", status.running},
       {"sequences_max", limits.sequences_max},
       {"waiting", status.waiting},
       {"queue_max", limits.queue_max},
       {"steps", status.steps},
       {"rows", status.rows},
       {"tokens", status.tokens},
       {"kv", json_object({{"pages", model.kv_pages_total},
                           {"free", model.kv_pages_free},
                           {"cached", model.kv_pages_cached},
                           {"page_tokens", model.page_tokens},
                           {"queries", model.prefix_query_tokens},
                           {"hits", model.prefix_hit_tokens}})},
       {"routes", std::move(routes)},
       {"requests", std::move(requests)},
       {"followed", watched.followed.number == 0 ? Json() : request_json(watched.followed)},
       {"is_picked", watched.is_picked},
       {"trees", std::move(trees)}});
  // Names and problems of plugins may be anything.
  return state.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace specd::host
