#include "core/spec/route_builder.h"

#include <algorithm>
#include <chrono>
#include <string_view>

#include "core/base/log.h"
#include "core/base/run_within.h"
#include "core/base/to_size.h"
#include "core/device/host_memory.h"
#include "core/plugin/beside/call_shape.h"
#include "core/plugin/beside/drafter_thread.h"
#include "core/plugin/instance/caps.h"
#include "core/plugin/process/process_drafter.h"
#include "core/spec/shadow_counts.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/target.h"

namespace specd {

namespace {

// The most rows that one update() passes to a drafter whose drafts are max_depth deep: those of a
// step in which every draft is accepted, or more if the drafter can use them; a step has no more.
uint32_t update_rows_max(const specd_drafter_caps& caps, uint32_t max_depth,
                         const RouteTerms& terms) {
  const uint64_t decoded = static_cast<uint64_t>(terms.max_sequences) * (uint64_t{max_depth} + 1);
  return static_cast<uint32_t>(std::min<uint64_t>(std::max<uint64_t>(caps.rows_max, decoded),
                                                  static_cast<uint64_t>(terms.step_rows_max)));
}

// The guarantee of a usable pair. Without strict numerics the result of a row depends on the others.
Guarantee guarantee_of(uint32_t reached, bool is_strict) {
  switch (reached) {
    case SPECD_GUARANTEE_IDENTICAL:
      return is_strict ? Guarantee::kIdentical : Guarantee::kLaw;
    case SPECD_GUARANTEE_LAW:
      return Guarantee::kLaw;
    default:
      return Guarantee::kNone;
  }
}

// Without version and hash when its folder was removed just now.
BundleInfo bundle_of(const PluginRegistry& registry, const std::string& plugin_id) {
  BundleInfo none;
  none.id = none.asked = plugin_id;
  return registry.find(plugin_id).value_or(none);
}

// The verifiers that in their default configuration reach the guarantee with the drafter: their ids,
// or "". Loads and describes them.
std::string verifiers_for(PluginRegistry& registry, const specd_drafter_caps& drafter,
                          Guarantee guarantee, bool is_strict, const specd_target_info& target,
                          const std::atomic<bool>& is_late) {
  std::string found;
  for (const BundleInfo& bundle : registry.list()) {
    const std::optional<BundleInfo> meant = registry.find(bundle.id);
    if (!meant.has_value() || meant->directory != bundle.directory) continue;  // an older version
    const bool reaches =
        std::any_of(bundle.factories.begin(), bundle.factories.end(), [&](const auto& factory) {
          if (factory.kind != "verifier" || is_late) return false;
          const auto caps =
              registry.verifier_caps(bundle.id, factory.id, Json::object(), target, is_late);
          if (!caps.ok()) return false;
          const uint32_t pair = pair_guarantee(drafter, caps.value(), nullptr);
          return pair != SPECD_GUARANTEE_UNUSABLE && guarantee_of(pair, is_strict) >= guarantee;
        });
    if (reaches) found += (found.empty() ? "" : ", ") + bundle.id;
  }
  return found;
}

// Whether the two reach what the route asks for, and serve as many sequences as the engine.
Status check_pair(PluginRegistry& registry, const RouteOptions& wanted, const RouteTerms& terms,
                  const specd_target_info& target, const specd_drafter_caps& drafter,
                  const specd_verifier_caps& verifier, const std::atomic<bool>& is_late) {
  std::string why;
  const uint32_t pair = pair_guarantee(drafter, verifier, &why);
  const bool unusable = pair == SPECD_GUARANTEE_UNUSABLE;
  const Guarantee reached = guarantee_of(pair, terms.is_strict);
  if (!terms.is_strict && pair == SPECD_GUARANTEE_IDENTICAL) {
    why = "with engine.numerics fast, the result of a row depends on the other rows";
  }
  if (unusable || reached < wanted.guarantee) {
    const std::string others =
        verifiers_for(registry, drafter, wanted.guarantee, terms.is_strict, target, is_late);
    return Status(Code::kFailedPrecondition, "guarantee",
                  "drafter " + wanted.drafter.plugin + " with verifier " + wanted.verifier.plugin +
                      " reaches guarantee '" + (unusable ? "unusable" : guarantee_name(reached)) +
                      "', the route asks for '" + guarantee_name(wanted.guarantee) + "'" +
                      (why.empty() ? "" : ": " + why) +
                      (others.empty() ? "; in its default configuration no verifier here does"
                                      : "; with this drafter these do: " + others));
  }
  if (drafter.max_batch != 0 && drafter.max_batch < static_cast<uint32_t>(terms.max_sequences)) {
    return Status(Code::kFailedPrecondition, "drafter",
                  "drafter " + wanted.drafter.plugin + " serves at most " +
                      std::to_string(drafter.max_batch) + " sequences, engine.max_sequences is " +
                      std::to_string(terms.max_sequences));
  }
  return Status();
}

uint32_t granted_nodes(const RouteOptions& wanted, const specd_drafter_caps& drafter,
                       const specd_verifier_caps& verifier) {
  const uint32_t nodes = std::min(drafter.max_nodes, static_cast<uint32_t>(wanted.draft_nodes_max));
  return verifier.max_nodes == 0 ? nodes : std::min(nodes, verifier.max_nodes);
}

// In host memory.
specd_drafter_grant grant_of(uint32_t nodes, const RouteTerms& terms,
                             const specd_drafter_caps& drafter,
                             const specd_verifier_caps& verifier) {
  specd_drafter_grant grant{};
  grant.struct_size = sizeof(grant);
  grant.device_type = SPECD_DEV_CPU;
  grant.max_nodes = nodes;
  grant.max_depth = std::min(drafter.max_depth, nodes);
  grant.max_batch = static_cast<uint32_t>(terms.max_sequences);
  grant.max_rows = update_rows_max(drafter, grant.max_depth, terms);
  grant.needs = drafter.needs;
  if (needs_q(drafter, verifier)) grant.features = SPECD_FEATURE_Q;
  grant.memory_bytes_max = quota_of(drafter, grant.max_batch);
  return grant;
}

uint64_t beside_bytes(const specd_drafter_caps& caps, const specd_drafter_grant& grant,
                      const specd_target_info& target) {
  const CallShape shape = shape_of(caps, grant, target.vocab_size, target.hidden_size);
  return rings_bytes(shape, rows_max_of(grant, shape), target.max_positions);
}

// For the process of a drafter.
ProcessKeeper::Terms keeper_terms(const RouteOptions& wanted, const RouteTerms& terms,
                                  const specd_target_info& target) {
  ProcessKeeper::Terms made{.program = terms.process.program,
                            .order = {.registry = terms.process.registry,
                                      .isa = terms.process.isa,
                                      .bf16 = terms.process.bf16,
                                      .plugin = wanted.drafter.plugin,
                                      .factory = wanted.drafter.factory,
                                      .config = wanted.drafter.config,
                                      .instance_name = wanted.name + ".drafter"},
                            .limit = terms.process.limit};
  made.order.log_level = log_level();
  made.order.set_target(target);
  return made;
}

// The plugin that the registry knows, made in a process of its own.
Result<std::unique_ptr<Drafter>> make_in_process(const PluginRegistry& registry,
                                                 const RouteOptions& wanted,
                                                 const RouteTerms& terms,
                                                 const specd_target_info& target) {
  SPECD_OK_OR_RETURN(registry.check(wanted.drafter.plugin));
  ProcessKeeper::Terms keeper = keeper_terms(wanted, terms, target);
  const std::string& id = wanted.drafter.plugin;
  keeper.order.contents = {{id, bundle_of(registry, id).content_sha256}};
  SPECD_TRY(std::unique_ptr<ProcessDrafter> made,
            ProcessDrafter::make(std::move(keeper), registry.host()));
  for (const auto& [plugin, content] : made->contents()) {
    if (bundle_of(registry, plugin).content_sha256 == content) continue;
    return Status(Code::kUnavailable, "plugin",
                  "the files of plugin " + plugin + " changed while it was loaded; try again");
  }
  return std::unique_ptr<Drafter>(std::move(made));
}

bool drafts_on_device(const specd_drafter_caps& drafter, const specd_verifier_caps& verifier,
                      Isolation isolation, bool device_is_host) {
  return !device_is_host && isolation == Isolation::kNone && !needs_q(drafter, verifier) &&
         (drafter.device_types & (1u << SPECD_DEV_CUDA)) != 0 &&
         (drafter.needs & SPECD_NEED_PROBES) == 0;
}

Status check_beside(const LiveRoute& route) {
  const std::string why = route.isolation == Isolation::kNone ? "" : why_not_beside(route, false);
  if (why.empty()) return Status();
  return Status(Code::kFailedPrecondition, "isolation",
                "drafter " + route.drafter_bundle.id + " cannot work beside the step: " + why +
                    "; with isolation: none it can be served");
}

}  // namespace

Result<DrafterLimit> drafter_limit(PluginRegistry& registry, const RouteOptions& wanted,
                                   const RouteTerms& terms, const specd_target_info& target,
                                   bool device_is_host, uint64_t device_bytes,
                                   const std::atomic<bool>& is_late) {
  const PluginUse &drafter = wanted.drafter, &verifier = wanted.verifier;
  const auto caps_of = [&]() -> Result<specd_drafter_caps> {
    if (wanted.isolation != Isolation::kProcess)
      return registry.drafter_caps(drafter.plugin, drafter.factory, drafter.config, target,
                                   is_late);
    SPECD_OK_OR_RETURN(registry.check(drafter.plugin));
    return ProcessDrafter::describe(keeper_terms(wanted, terms, target), registry.host());
  };
  SPECD_TRY(const specd_drafter_caps caps, caps_of().in_field("drafter"));
  SPECD_TRY(
      const specd_verifier_caps judges,
      registry.verifier_caps(verifier.plugin, verifier.factory, verifier.config, target, is_late)
          .in_field("verifier"));
  SPECD_OK_OR_RETURN(check_pair(registry, wanted, terms, target, caps, judges, is_late));
  const specd_drafter_grant grant =
      grant_of(granted_nodes(wanted, caps, judges), terms, caps, judges);
  const DrafterLimit limit{
      .route = wanted.name,
      .bytes = grant.memory_bytes_max,
      .is_with_models =
          device_is_host || drafts_on_device(caps, judges, wanted.isolation, device_is_host),
      .ring_bytes = wanted.isolation == Isolation::kNone ? 0 : beside_bytes(caps, grant, target)};
  SPECD_OK_OR_RETURN(check_quota(caps, to_size(terms.max_sequences),
                                 limit.is_with_models ? device_bytes : host_memory().bytes,
                                 "plugin " + drafter.plugin)
                         .in_field("drafter"));
  return limit;
}

Status create_route(LiveRoute& route, PluginRegistry& registry, const RouteOptions& wanted,
                    const RouteTerms& terms, const specd_target_info& target,
                    const std::atomic<bool>& is_late) {
  route.name = wanted.name;
  const PluginUse& use = wanted.drafter;
  SPECD_TRY(route.drafter, (wanted.isolation == Isolation::kProcess
                                ? make_in_process(registry, wanted, terms, target)
                                : registry.make_drafter(use.plugin, use.factory, use.config, target,
                                                        wanted.name + ".drafter", is_late))
                               .in_field("drafter"));
  SPECD_TRY(route.verifier,
            registry
                .make_verifier(wanted.verifier.plugin, wanted.verifier.factory,
                               wanted.verifier.config, target, wanted.name + ".verifier", is_late)
                .in_field("verifier"));
  route.drafter_bundle = bundle_of(registry, wanted.drafter.plugin);
  route.verifier_bundle = bundle_of(registry, wanted.verifier.plugin);
  for (const UsedPlugin& part : route.drafter->parts()) {
    route.part_bundles.push_back(bundle_of(registry, part.id));
  }
  const specd_drafter_caps& caps = route.drafter->caps();

  SPECD_OK_OR_RETURN(
      check_pair(registry, wanted, terms, target, caps, route.verifier->caps(), is_late));
  const uint32_t nodes = granted_nodes(wanted, caps, route.verifier->caps());
  if (nodes < caps.max_nodes) {
    log(LogLevel::kInfo, "route " + wanted.name + ": the drafter may propose " +
                             std::to_string(caps.max_nodes) + " nodes, draft_nodes_max allows " +
                             std::to_string(nodes));
  }
  route.isolation = wanted.isolation;
  route.step_budget_ns = static_cast<uint64_t>(wanted.step_budget_us) * 1000;
  SPECD_OK_OR_RETURN(check_beside(route));
  route.guarantee = wanted.guarantee;
  route.draft_nodes_max = static_cast<int32_t>(nodes);
  route.disable_by_batch_size = wanted.disable_by_batch_size;
  route.suspend_when_slower = wanted.suspend_when_slower;
  route.call_ns_max = static_cast<uint64_t>(wanted.call_ms_max) * 1'000'000;
  return check_in_time(is_late);
}

Result<Placement> place(const LiveRoute& route, bool device_is_host,
                        const std::string& device_name) {
  const specd_drafter_caps& caps = route.drafter->caps();
  const uint32_t verifier_devices = route.verifier->caps().device_types;
  const auto lacks = [&](const char* who, const std::string& plugin) {
    const char* more = device_is_host ? "" : ", or device memory for drafters without probes and q";
    return Status(Code::kFailedPrecondition, who,
                  std::string(who) + " " + plugin +
                      " cannot work in the memory that it would be given; with devices: [" +
                      device_name + "] that is host memory" + more);
  };
  Placement placed;
  placed.drafts_on_device =
      drafts_on_device(caps, route.verifier->caps(), route.isolation, device_is_host);
  if (!placed.drafts_on_device && (caps.device_types & (1u << SPECD_DEV_CPU)) == 0) {
    return lacks("drafter", route.drafter_bundle.id);
  }
  // The verifier works where the proposals are.
  placed.verifies_on_device = placed.drafts_on_device && caps.tree_mode != SPECD_TREE_VARIABLE &&
                              (verifier_devices & (1u << SPECD_DEV_CUDA)) != 0;
  if (!placed.verifies_on_device && (verifier_devices & (1u << SPECD_DEV_CPU)) == 0) {
    return lacks("verifier", route.verifier_bundle.id);
  }
  return placed;
}

Status activate_route(LiveRoute& route, const RouteTerms& terms, const specd_target_info& target,
                      Device& device, const std::atomic<bool>& is_late) {
  const specd_drafter_caps& caps = route.drafter->caps();
  SPECD_TRY(const Placement placed, place(route, device.is_host(), device.name()));
  const bool on_device = placed.drafts_on_device;
  route.verifies_on_device = placed.verifies_on_device;
  specd_drafter_grant grant =
      grant_of(static_cast<uint32_t>(route.draft_nodes_max), terms, caps, route.verifier->caps());
  if (on_device) {
    grant.device_type = SPECD_DEV_CUDA;
    grant.device_index = device.index();
    grant.stream = device.native_stream();
  }
  SPECD_OK_OR_RETURN(check_quota(caps, grant.max_batch,
                                 on_device ? device.total_bytes() : host_memory().bytes,
                                 "plugin " + route.drafter_bundle.id)
                         .in_field("drafter"));
  route.beside_bytes = beside_bytes(caps, grant, target);
  route.counters.accepted_at = std::vector<std::atomic<uint64_t>>(grant.max_depth);
  SPECD_OK_OR_RETURN(check_in_time(is_late));
  SPECD_OK_OR_RETURN(route.drafter->activate(grant, is_late).in_field("drafter"));
  SPECD_OK_OR_RETURN(check_beside(route));  // a part of it may have opened a model
  specd_verifier_grant verifier{};
  verifier.struct_size = sizeof(verifier);
  verifier.device_type = route.verifies_on_device ? SPECD_DEV_CUDA : SPECD_DEV_CPU;
  if (route.verifies_on_device) {
    verifier.device_index = device.index();
    verifier.stream = device.native_stream();
  }
  verifier.max_nodes = grant.max_nodes;
  verifier.max_depth = grant.max_depth;
  verifier.max_batch = grant.max_batch;
  verifier.tree_mode = caps.tree_mode;
  verifier.draft_rule = caps.draft_rule;
  SPECD_OK_OR_RETURN(check_in_time(is_late));
  SPECD_OK_OR_RETURN(route.verifier->activate(verifier).in_field("verifier"));
  return check_in_time(is_late);
}

std::string why_not_beside(const LiveRoute& route, bool is_shadow) {
  const specd_drafter_caps& caps = route.drafter->caps();
  const specd_owner& owner = route.drafter->owner();
  const auto needs = [&](const char* service) { return requires_service(caps, service); };
  const MutexLock lock(owner.mutex);
  if (route.isolation == Isolation::kProcess && needs(SPECD_SERVICE_TARGET))
    return "it uses the service target/1, which has the model's tensors in this process";
  const bool has_model = needs(SPECD_SERVICE_MODEL) || !owner.models.empty();
  if (has_model || needs(SPECD_SERVICE_KV) || !owner.kvs.empty()) {
    return std::string("it uses the service ") + (has_model ? "model/1" : "kv/1") +
           ", which works in the step only";
  }
  if (is_shadow && (caps.needs & SPECD_NEED_PROBES) != 0)
    return "it proposes probes, which the step computes only for the version that decides";
  const specd_drafter_grant& grant = route.drafter->grant();
  if (grant.device_type == SPECD_DEV_CUDA) return "it works in device memory";
  if (route.isolation != Isolation::kNone && needs_q(caps, route.verifier->caps()))
    return "the verifier needs what it draws from (SPECD_FEATURE_Q), which stays in the step";
  return std::string();
}

namespace {

// What becomes of the drafter's process, for those who watch the route.
ProcessKeeper::Hooks hooks_of(LiveRoute& route) {
  const auto say = [&route](EventKind kind, LogLevel level, const std::string& what) {
    const std::string text = "route " + route.name + ": the drafter's process " + what;
    log(level, text);
    if (route.tell) route.tell(kind, text);
  };
  return {
      .on_death =
          [&route, say](const std::string& how, bool is_started_again) {
            ++route.counters.process_ends;
            route.last_problem.set("its process has ended: " + how);
            say(EventKind::kProcessEnded, LogLevel::kWarn,
                (is_started_again ? "has ended and is started again: " : "has ended: ") + how);
          },
      .on_restart = [say] { say(EventKind::kProcessRestarted, LogLevel::kInfo, "works again"); },
      .on_lost = [&route](const std::string& why) { route.set_condemned(why); }};
}

}  // namespace

Status start_beside(LiveRoute& route, const specd_target_info& target, CpuDevice& cpu,
                    bool is_shadow) {
  const BesideTerms terms{
      .vocab_size = target.vocab_size,
      .hidden_size = target.hidden_size,
      .max_positions = target.max_positions,
      .limits = {.wait_ns = is_shadow ? 0 : route.step_budget_ns,
                 .hang_ns = route.call_ns_max == 0 ? UINT64_MAX : route.call_ns_max},
      .on_called = [&route](
                       CallKind kind, const Status& status,
                       uint64_t took_ns) { route.called(drafter_call(kind), status, took_ns); },
      .hidden_bytes = &route.counters.hidden_bytes,
      .ring_bytes = &route.ring_bytes};
  route.observer = is_shadow ? std::make_unique<ShadowCounts>(route) : nullptr;
  if (route.isolation == Isolation::kProcess) {
    SPECD_TRY(route.beside, static_cast<ProcessDrafter&>(*route.drafter)
                                .serve(terms, route.observer.get(), hooks_of(route)));
    return Status();
  }
  SPECD_TRY(route.beside, DrafterThread::start(*route.drafter, terms, cpu.open_for_thread(),
                                               route.observer.get()));
  return Status();
}

void destroy_route(LiveRoute& route, const std::atomic<bool>& is_late) {
  // A process need not stay, as a thread must that is in a plugin's code.
  const auto kill_late = [&] {
    if (is_late && route.isolation == Isolation::kProcess && route.drafter != nullptr)
      static_cast<ProcessDrafter&>(*route.drafter).abandon();
  };
  kill_late();
  if (route.beside != nullptr) {
    // For who waits: it is this plugin that does not return.
    const specd_owner& owner = route.drafter->owner();
    const PluginScope scope(
        owner.label, nullptr,
        {owner.plugin.c_str(), owner.build.c_str(), "begin, update or propose"});
    while (!route.beside->stop(std::chrono::milliseconds(100))) {
      if (is_late) route.beside->abandon();
    }
  }
  if (!is_late) route.beside.reset();
  if (route.verifier != nullptr && !is_late) route.verifier->deactivate();
  if (!is_late) route.verifier.reset();
  if (route.drafter != nullptr && !is_late) route.drafter->deactivate();
  if (!is_late) route.drafter.reset();
}

}  // namespace specd
