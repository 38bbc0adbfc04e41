#include "core/plugin/process/protocol.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string_view>
#include <utility>

#include "core/base/mutex.h"
#include "core/plugin/beside/messages.h"
#include "core/plugin/beside/ring.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/memory.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/parts.h"
#include "specd/plugin_api/services/pool.h"
#include "specd/plugin_api/services/rng.h"
#include "specd/plugin_api/services/target.h"
#include "specd/plugin_api/services/weights.h"

namespace specd {
namespace {

constexpr char kWhere[] = "message of a drafter's process";
constexpr size_t kListMax = 64;
constexpr size_t kTextMax = 4096;

// specd_drafter_caps points at texts that live as long as the program.
constexpr const char* kServiceIds[] = {
    SPECD_SERVICE_KV,     SPECD_SERVICE_MEMORY, SPECD_SERVICE_METRICS, SPECD_SERVICE_MODEL,
    SPECD_SERVICE_OPS,    SPECD_SERVICE_PARTS,  SPECD_SERVICE_POOL,    SPECD_SERVICE_RNG,
    SPECD_SERVICE_TARGET, SPECD_SERVICE_WEIGHTS};

Status read_u32(const Json& json, const char* key, uint32_t& to) {
  SPECD_TRY(const int64_t value, json_int(json, key, 0, UINT32_MAX, kWhere));
  to = static_cast<uint32_t>(value);
  return Status();
}
Status read_i32(const Json& json, const char* key, int32_t& to) {
  SPECD_TRY(const int64_t value, json_int(json, key, INT32_MIN, INT32_MAX, kWhere));
  to = static_cast<int32_t>(value);
  return Status();
}
// JSON readers here take signed numbers; no size is larger.
Status read_bytes(const Json& json, const char* key, uint64_t& to) {
  SPECD_TRY(const int64_t value, json_int(json, key, 0, INT64_MAX, kWhere));
  to = static_cast<uint64_t>(value);
  return Status();
}
int64_t bytes_value(uint64_t bytes) {
  return static_cast<int64_t>(std::min<uint64_t>(bytes, INT64_MAX));
}

Result<std::vector<std::string>> texts(const Json& json, const char* key) {
  const auto found = json.find(key);
  std::vector<std::string> all;
  const bool is_list = found != json.end() && found->is_array() && found->size() <= kListMax;
  for (size_t i = 0; is_list && i < found->size(); ++i) {
    const Json& each = (*found)[i];
    if (each.is_string() && each.get_ref<const std::string&>().size() <= kTextMax)
      all.push_back(each.get<std::string>());
  }
  if (is_list && all.size() == found->size()) return all;
  return Status(Code::kDataLoss, std::string(kWhere) + ": expected at most " +
                                     std::to_string(kListMax) + " texts in " + key);
}

// The same in all programs whose rings and messages have this layout.
std::string build() {
  std::string text = SPECD_VERSION;
  for (const size_t bytes : {sizeof(RingHeader), sizeof(MessageHead), sizeof(MessageSequence),
                             sizeof(ReplyHead), sizeof(ReplySequence), kReplyTextMax})
    text += "/" + std::to_string(bytes);
  return text;
}

// At most kTextMax bytes, and UTF-8 if it was.
std::string cut(std::string text) {
  if (text.size() <= kTextMax) return text;
  size_t end = kTextMax;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text;
}

Json caps_to_json(const specd_drafter_caps& caps) {
  Json json{{"tree_mode", caps.tree_mode},
            {"needs", caps.needs},
            {"draft_rule", caps.draft_rule},
            {"attach_modes", caps.attach_modes},
            {"device_types", caps.device_types},
            {"max_nodes", caps.max_nodes},
            {"max_depth", caps.max_depth},
            {"max_batch", caps.max_batch},
            {"rows_max", caps.rows_max},
            {"top_k", caps.top_k},
            {"features", caps.features},
            {"bytes_fixed", bytes_value(caps.bytes_fixed)},
            {"bytes_per_seq", bytes_value(caps.bytes_per_seq)}};
  json["taps"] = std::vector<uint32_t>(caps.taps, caps.taps + caps.n_taps);
  json["services"] = std::vector<std::string>(caps.services, caps.services + caps.n_services);
  return json;
}

}  // namespace

void DrafterOrder::set_target(const specd_target_info& info) {
  target = info;
  model_id = info.model_id == nullptr ? "" : info.model_id;
  architecture = info.architecture == nullptr ? "" : info.architecture;
  if (info.tokenizer_sha256 != nullptr)
    std::copy_n(info.tokenizer_sha256, tokenizer_sha256.size(), tokenizer_sha256.begin());
}

specd_target_info DrafterOrder::target_info() const {
  specd_target_info info = target;
  info.struct_size = sizeof(info);
  info.model_id = model_id.c_str();
  info.architecture = architecture.c_str();
  info.tokenizer_sha256 = tokenizer_sha256.data();
  return info;
}

Json order_to_json(const DrafterOrder& order) {
  Json registry{{"directories", order.registry.directories},
                {"cache_directory", order.registry.cache_directory},
                {"config_directory", order.registry.config_directory}};
  if (const auto& approved = order.registry.approved; approved.has_value())
    registry["approved"] = {{"sha256", approved->sha256}, {"keys", approved->keys}};
  const specd_target_info& info = order.target;
  const Json target{{"vocab_size", info.vocab_size},
                    {"hidden_size", info.hidden_size},
                    {"n_layers", info.n_layers},
                    {"n_heads", info.n_heads},
                    {"n_kv_heads", info.n_kv_heads},
                    {"head_dim", info.head_dim},
                    {"max_positions", info.max_positions},
                    {"bos_token", info.bos_token},
                    {"eos_token", info.eos_token},
                    {"norm_eps", info.norm_eps},
                    {"model_id", order.model_id},
                    {"architecture", order.architecture},
                    {"tokenizer_sha256", order.tokenizer_sha256}};
  return {{"do", "create"},
          {"registry", registry},
          {"isa", order.isa},
          {"bf16", order.bf16},
          {"log_level", static_cast<int>(order.log_level)},
          {"plugin", order.plugin},
          {"factory", order.factory},
          {"config", order.config},
          {"instance_name", order.instance_name},
          {"target", target},
          {"describes_only", order.describes_only},
          {"contents", order.contents},
          {"build", build()}};
}

Result<DrafterOrder> order_from_json(const Json& json) {
  DrafterOrder order;
  if (json.value("build", "") != build())
    return Status(Code::kFailedPrecondition,
                  "specd-runner is of another build than the daemon; restart the daemon");
  const Json &registry = json["registry"], &target = json["target"];
  order.registry.directories = registry["directories"].get<std::vector<std::string>>();
  SPECD_TRY(order.registry.cache_directory, json_string(registry, "cache_directory", kWhere));
  SPECD_TRY(order.registry.config_directory, json_string(registry, "config_directory", kWhere));
  if (const auto approved = registry.find("approved"); approved != registry.end()) {
    order.registry.approved = {.sha256 = (*approved)["sha256"].get<std::vector<std::string>>(),
                               .keys = (*approved)["keys"].get<std::vector<std::string>>()};
  }
  SPECD_TRY(order.isa, json_string(json, "isa", kWhere));
  SPECD_TRY(order.bf16, json_bool_or(json, "bf16", false, kWhere));
  SPECD_TRY(const int64_t level,
            json_int(json, "log_level", 0, static_cast<int64_t>(LogLevel::kOff), kWhere));
  order.log_level = static_cast<LogLevel>(level);
  SPECD_TRY(order.plugin, json_string(json, "plugin", kWhere));
  SPECD_TRY(order.factory, json_string(json, "factory", kWhere));
  order.config = json["config"];
  SPECD_TRY(order.instance_name, json_string(json, "instance_name", kWhere));
  SPECD_TRY(order.describes_only, json_bool_or(json, "describes_only", false, kWhere));
  specd_target_info& info = order.target;
  for (const auto& [key, to] : {std::pair("vocab_size", &info.vocab_size),
                                {"hidden_size", &info.hidden_size},
                                {"n_layers", &info.n_layers},
                                {"n_heads", &info.n_heads},
                                {"n_kv_heads", &info.n_kv_heads},
                                {"head_dim", &info.head_dim},
                                {"max_positions", &info.max_positions}}) {
    SPECD_OK_OR_RETURN(read_u32(target, key, *to));
  }
  SPECD_OK_OR_RETURN(read_i32(target, "bos_token", info.bos_token));
  SPECD_OK_OR_RETURN(read_i32(target, "eos_token", info.eos_token));
  SPECD_TRY(const double eps, json_double_or(target, "norm_eps", 0, kWhere));
  info.norm_eps = static_cast<float>(eps);
  SPECD_TRY(order.model_id, json_string(target, "model_id", kWhere));
  SPECD_TRY(order.architecture, json_string(target, "architecture", kWhere));
  order.contents = json["contents"].get<std::map<std::string, std::string>>();
  order.tokenizer_sha256 = target["tokenizer_sha256"].get<std::array<uint8_t, 32>>();
  return order;
}

Json created_to_json(const CreatedDrafter& created) {
  return {{"caps", caps_to_json(created.caps)},
          {"has_update", created.has_update},
          {"parts", created.parts},
          {"contents", created.contents}};
}

Result<CreatedDrafter> created_from_json(const Json& json) {
  CreatedDrafter created;
  const auto found = json.find("caps");
  if (found == json.end() || !found->is_object())
    return Status(Code::kDataLoss, std::string(kWhere) + ": expected caps");
  specd_drafter_caps& caps = created.caps;
  caps.struct_size = sizeof(caps);
  for (const auto& [key, to] : {std::pair("tree_mode", &caps.tree_mode),
                                {"needs", &caps.needs},
                                {"draft_rule", &caps.draft_rule},
                                {"attach_modes", &caps.attach_modes},
                                {"device_types", &caps.device_types},
                                {"max_nodes", &caps.max_nodes},
                                {"max_depth", &caps.max_depth},
                                {"max_batch", &caps.max_batch},
                                {"rows_max", &caps.rows_max},
                                {"top_k", &caps.top_k},
                                {"features", &caps.features}}) {
    SPECD_OK_OR_RETURN(read_u32(*found, key, *to));
  }
  SPECD_OK_OR_RETURN(read_bytes(*found, "bytes_fixed", caps.bytes_fixed));
  SPECD_OK_OR_RETURN(read_bytes(*found, "bytes_per_seq", caps.bytes_per_seq));
  const Json taps = found->value("taps", Json());
  if (!taps.is_array() || taps.size() > SPECD_MAX_TAPS)
    return Status(Code::kDataLoss, std::string(kWhere) + ": expected at most " +
                                       std::to_string(SPECD_MAX_TAPS) + " taps");
  for (const Json& tap : taps) {
    const bool is_tap = tap.is_number_unsigned() && tap.get<uint64_t>() <= UINT32_MAX;
    caps.taps[caps.n_taps++] = is_tap ? tap.get<uint32_t>() : UINT32_MAX;
  }
  SPECD_TRY(const std::vector<std::string> services, texts(*found, "services"));
  for (const std::string& service : services) {
    const auto known = std::find_if(std::begin(kServiceIds), std::end(kServiceIds),
                                    [&](std::string_view id) { return id == service; });
    if (known == std::end(kServiceIds))
      return Status(Code::kUnsupported, std::string(kWhere) + ": it needs an unknown service");
    created.services.push_back(*known);
  }
  caps.services = created.services.data();
  caps.n_services = static_cast<uint32_t>(created.services.size());
  SPECD_TRY(created.has_update, json_bool_or(json, "has_update", false, kWhere));
  SPECD_TRY(created.parts, texts(json, "parts"));
  const Json contents = json.value("contents", Json::object());
  for (const auto& [plugin, content] : contents.items())
    if (content.is_string() && created.contents.size() < kListMax)
      created.contents[plugin] = cut(content.get<std::string>());
  return created;
}

Json grant_to_json(const specd_drafter_grant& grant) {
  return {{"device_type", grant.device_type},
          {"device_index", grant.device_index},
          {"max_nodes", grant.max_nodes},
          {"max_depth", grant.max_depth},
          {"max_batch", grant.max_batch},
          {"max_rows", grant.max_rows},
          {"needs", grant.needs},
          {"features", grant.features},
          {"memory_bytes_max", bytes_value(grant.memory_bytes_max)}};
}

Result<specd_drafter_grant> grant_from_json(const Json& json) {
  specd_drafter_grant grant{};
  grant.struct_size = sizeof(grant);
  SPECD_OK_OR_RETURN(read_i32(json, "device_type", grant.device_type));
  SPECD_OK_OR_RETURN(read_i32(json, "device_index", grant.device_index));
  for (const auto& [key, to] : {std::pair("max_nodes", &grant.max_nodes),
                                {"max_depth", &grant.max_depth},
                                {"max_batch", &grant.max_batch},
                                {"max_rows", &grant.max_rows},
                                {"needs", &grant.needs},
                                {"features", &grant.features}}) {
    SPECD_OK_OR_RETURN(read_u32(json, key, *to));
  }
  SPECD_OK_OR_RETURN(read_bytes(json, "memory_bytes_max", grant.memory_bytes_max));
  return grant;
}

Json figures_to_json(const specd_owner& owner) {
  Json metrics = Json::array();
  const MutexLock lock(owner.mutex);
  for (const auto& [name, metric] : owner.metrics) {
    metrics.push_back({{"name", name},
                       {"help", metric->help},
                       {"counter", metric->counter},
                       {"value", metric->value.load(std::memory_order_relaxed)}});
  }
  return {{"memory_bytes", bytes_value(owner.used_bytes)}, {"metrics", metrics}};
}

void take_figures(const Json& json, const Counted& counted, specd_owner& owner) {
  if (!json.is_object()) return;
  const MutexLock lock(owner.mutex);
  const auto bytes = json_int(json, "memory_bytes", 0, INT64_MAX, kWhere);
  if (bytes.ok()) owner.used_bytes = static_cast<uint64_t>(bytes.value());
  const Json metrics = json.value("metrics", Json::array());
  for (const Json& each : metrics) {
    const auto name = json_string(each, "name", kWhere), help = json_string(each, "help", kWhere);
    if (!name.ok() || !help.ok() || name.value().find('\0') != std::string::npos ||
        !is_metric_name(name.value().c_str()))
      continue;
    std::unique_ptr<specd_metric>& metric = owner.metrics[name.value()];
    if (metric == nullptr) {
      if (owner.metrics.size() > kMetricsMax) {
        owner.metrics.erase(name.value());
        return;
      }
      metric = std::make_unique<specd_metric>();
      metric->name = name.value();
      metric->help = help.value().substr(0, kMetricHelpBytesMax);
      const auto counter = json_bool_or(each, "counter", false, kWhere);
      metric->counter = counter.ok() && counter.value();
    }
    const Json value = each.value("value", Json());
    if (!value.is_number()) continue;  // JSON has no word for what is not finite
    const auto before = counted.find(name.value());
    const double now = value.get<double>() + (before == counted.end() ? 0 : before->second);
    if (!metric->counter || now >= metric->value) metric->value = now;
  }
}

void end_figures(Counted& counted, specd_owner& owner) {
  const MutexLock lock(owner.mutex);
  owner.used_bytes = 0;
  for (auto each = owner.metrics.begin(); each != owner.metrics.end();) {
    if (each->second->counter) {
      counted[each->first] = each->second->value;
      ++each;
    } else {
      each = owner.metrics.erase(each);
    }
  }
}

Json status_to_json(const Status& status) {
  return {{"code", static_cast<uint32_t>(status.code())},
          {"field", status.field()},
          {"message", status.message()}};
}

Status status_from_json(const Json& answer) {
  const Json status = answer.value("status", Json());
  const auto code = json_int(status, "code", 0, static_cast<int64_t>(Code::kInternal), kWhere);
  const auto field = json_string(status, "field", kWhere);
  const auto message = json_string(status, "message", kWhere);
  for (const Status& each : {code.status(), field.status(), message.status()})
    SPECD_OK_OR_RETURN(each);
  if (code.value() == 0) return Status();
  return Status(static_cast<Code>(code.value()), cut(field.value()), cut(message.value()));
}

}  // namespace specd
