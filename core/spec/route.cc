#include "core/spec/route.h"

#include <climits>

#include "core/base/quote.h"

namespace specd {
namespace {

constexpr char kWhere[] = "the definition of a route";

Json use_to_json(const PluginUse& use) {
  Json json = json_object({{"plugin", use.plugin}, {"config", use.config}});
  if (!use.factory.empty()) json["factory"] = use.factory;
  return json;
}

Status unknown_key(const std::string& key) {
  return Status(Code::kDataLoss, std::string(kWhere) + " has the unknown key " + quote(key));
}

Result<PluginUse> use_from_json(const Json& json, const char* name) {
  PluginUse use;
  const std::string where = std::string(kWhere) + ", " + name;
  if (!json.is_object()) return Status(Code::kDataLoss, where + ": expected an object");
  for (const auto& [key, value] : json.items()) {
    if (key == "config") {
      use.config = value;
    } else if (key != "plugin" && key != "factory") {
      return unknown_key(key);
    }
  }
  SPECD_TRY(use.plugin, json_string(json, "plugin", where));
  SPECD_TRY(use.factory, json_string_or(json, "factory", "", where));
  return use;
}

// The value whose name the key has.
template <typename T>
Result<T> one_of(const Json& json, const char* key, std::initializer_list<T> all,
                 const char* (*name)(T)) {
  SPECD_TRY(const std::string word, json_string(json, key, kWhere));
  std::string names;
  for (const T& each : all) {
    if (word == name(each)) return each;
    const bool is_last = &each == all.end() - 1;
    names += (names.empty() ? "" : is_last ? " or " : ", ") + std::string(name(each));
  }
  return Status(Code::kDataLoss, std::string(kWhere) + ", " + key + ": expected " + names +
                                     ", found " + quote(word));
}

}  // namespace

const char* guarantee_name(Guarantee guarantee) {
  switch (guarantee) {
    case Guarantee::kNone:
      return "none";
    case Guarantee::kLaw:
      return "law";
    case Guarantee::kIdentical:
      return "identical";
  }
  return "unknown";
}

const char* isolation_name(Isolation isolation) {
  switch (isolation) {
    case Isolation::kNone:
      return "none";
    case Isolation::kGuarded:
      return "guarded";
    case Isolation::kProcess:
      return "process";
  }
  return "unknown";
}

const char* replace_name(Replace replace) {
  return replace == Replace::kOverlap ? "overlap" : "stop_first";
}

Json route_to_json(const RouteOptions& route) {
  Json json = json_object({{"name", route.name},
                           {"guarantee", guarantee_name(route.guarantee)},
                           {"draft_nodes_max", route.draft_nodes_max},
                           {"disable_by_batch_size", route.disable_by_batch_size},
                           {"suspend_when_slower", route.suspend_when_slower},
                           {"call_ms_max", route.call_ms_max},
                           {"isolation", isolation_name(route.isolation)},
                           {"step_budget_us", route.step_budget_us},
                           {"replace", replace_name(route.replace)},
                           {"probation_seconds", route.probation_seconds},
                           {"drafter", use_to_json(route.drafter)},
                           {"verifier", use_to_json(route.verifier)}});
  if (!route.model.empty()) json["model"] = route.model;
  return json;
}

Result<RouteOptions> route_from_json(const Json& json) {
  RouteOptions route;
  SPECD_TRY(route.name, json_string(json, "name", kWhere));
  for (const auto& [key, value] : json.items()) {
    const auto number = [&, name = key.c_str()](int32_t& to) -> Status {
      SPECD_TRY(const int64_t read, json_int(json, name, INT32_MIN, INT32_MAX, kWhere));
      to = static_cast<int32_t>(read);
      return Status();
    };
    if (key == "model") {
      SPECD_TRY(route.model, json_string(json, "model", kWhere));
    } else if (key == "guarantee") {
      SPECD_TRY(route.guarantee,
                one_of(json, "guarantee",
                       {Guarantee::kNone, Guarantee::kLaw, Guarantee::kIdentical}, guarantee_name));
    } else if (key == "draft_nodes_max") {
      SPECD_OK_OR_RETURN(number(route.draft_nodes_max));
    } else if (key == "disable_by_batch_size") {
      SPECD_OK_OR_RETURN(number(route.disable_by_batch_size));
    } else if (key == "suspend_when_slower") {
      SPECD_TRY(route.suspend_when_slower,
                json_bool_or(json, "suspend_when_slower", false, kWhere));
    } else if (key == "call_ms_max") {
      SPECD_OK_OR_RETURN(number(route.call_ms_max));
    } else if (key == "isolation") {
      SPECD_TRY(
          route.isolation,
          one_of(json, "isolation", {Isolation::kNone, Isolation::kGuarded, Isolation::kProcess},
                 isolation_name));
    } else if (key == "step_budget_us") {
      SPECD_OK_OR_RETURN(number(route.step_budget_us));
    } else if (key == "replace") {
      SPECD_TRY(route.replace,
                one_of(json, "replace", {Replace::kOverlap, Replace::kStopFirst}, replace_name));
    } else if (key == "probation_seconds") {
      SPECD_OK_OR_RETURN(number(route.probation_seconds));
    } else if (key == "drafter") {
      SPECD_TRY(route.drafter, use_from_json(value, "drafter"));
    } else if (key == "verifier") {
      SPECD_TRY(route.verifier, use_from_json(value, "verifier"));
    } else if (key != "name") {
      return unknown_key(key);
    }
  }
  return route;
}

}  // namespace specd
