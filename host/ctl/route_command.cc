// specctl route.
#include <string>

#include "core/base/check.h"
#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/config/yaml_reader.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

// What the options say about any change.
template <typename Request>
void set_change_options(Request& request, const Values& values) {
  request.set_request_id(values["request-id"].as<std::string>());
  request.set_dry_run(values["dry-run"].as<bool>());
  if constexpr (requires { request.set_generation(0); }) {
    if (values.count("generation") != 0)
      request.set_generation(values["generation"].as<uint64_t>());
  }
  if constexpr (requires { request.set_running(v1::RUNNING_REQUESTS_KEEP); })
    request.set_running(enum_value<v1::RunningRequests>(values["running"].as<std::string>()));
}

template <typename Response>
void print_route_change(const std::string& name, const Response& done, const char* change,
                        const Values& values, Format format) {
  if constexpr (requires { done.unchanged(); }) {
    if (done.unchanged()) change = "unchanged";
  }
  const bool is_dry = values["dry-run"].as<bool>();
  const std::string told = (is_dry ? "would be " : "") + std::string(change);
  const v1::RouteEffect& effect = done.effect();
  const bool has_effect = is_dry || values["running"].as<std::string>() != "keep";
  if (format != Format::kTable) {
    Json object{{"route", name}, {"generation", done.generation()}, {"change", told}};
    if (has_effect)
      object.update({{"memory_bytes_max", effect.memory_bytes_max()},
                     {"memory_peak_bytes", effect.memory_peak_bytes()},
                     {"memory_limit_bytes", effect.memory_limit_bytes()},
                     {"attached", effect.attached()},
                     {"dropped", effect.dropped()},
                     {"kept", effect.kept()}});
    write_output(object_text(object.dump(), format));
    return;
  }
  std::vector<std::string> head{"route", "generation", "change"};
  std::vector<std::string> row{name, std::to_string(done.generation()), told};
  if (has_effect) {
    head.insert(head.end(), {"memory limit", "peak", "of", "attached", "dropped", "kept"});
    row.push_back(bytes_text(effect.memory_bytes_max()));
    row.push_back(bytes_text(effect.memory_peak_bytes()));
    row.push_back(bytes_text(effect.memory_limit_bytes()));
    for (const int32_t n : {effect.attached(), effect.dropped(), effect.kept()})
      row.push_back(std::to_string(n));
  }
  Table table(head);
  table.add(row);
  write_output(printable(table.text()));
}

}  // namespace

int run_route_add(Client& client, const Values& values, bool is_staged, Format format) {
  const std::string path = values["file"].as<std::string>();
  const Result<std::string> text = read_text_file(path, kYamlBytesMax);
  if (!text.ok()) return ctl_fail(text.status());
  const auto add = [&](auto request, auto call, const char* change) {
    request.set_definition(text.value());
    request.set_source(escaped(path));  // for errors only
    set_change_options(request, values);
    const auto done = (client.*call)(request);
    if (!done.ok()) return ctl_fail(done.status());
    print_route_change(done.value().name(), done.value(), change, values, format);
    return kCtlOk;
  };
  return is_staged ? add(v1::StageRouteRequest(), &Client::stage_route, "staged")
                   : add(v1::ApplyRouteRequest(), &Client::apply_route, "applied");
}

int run_route_change(Client& client, const Values& values, const std::string& action,
                     const std::string& name, Format format) {
  const auto change = [&](auto request, auto call, const char* what) {
    request.set_name(name);
    set_change_options(request, values);
    const auto done = (client.*call)(request);
    if (!done.ok()) return ctl_fail(done.status());
    print_route_change(name, done.value(), what, values, format);
    return kCtlOk;
  };
  if (action == "delete") return change(v1::DeleteRouteRequest(), &Client::delete_route, "deleted");
  if (action == "promote")
    return change(v1::PromoteRouteRequest(), &Client::promote_route, "promoted");
  if (action == "abort") return change(v1::AbortRouteRequest(), &Client::abort_route, "aborted");
  if (action == "rollback")
    return change(v1::RollbackRouteRequest(), &Client::roll_back_route, "rolled back");
  SPECD_CHECK(action == "traffic", action);
  v1::SetTrafficRequest request;
  request.set_shadow(values["shadow"].as<bool>());
  if (values.count("percent") != 0) request.set_share_percent(values["percent"].as<int32_t>());
  return change(request, &Client::set_traffic, "traffic set");
}

int run_route_get(Client& client, const std::string& name, Format format) {
  const auto found = client.get_route(name);
  if (!found.ok()) return ctl_fail(found.status());
  if (format != Format::kTable) {
    write_output(object_text(found.value().definition(), format));
    return kCtlOk;
  }
  const auto definition = parse_json(found.value().definition(), "definition");
  if (!definition.ok()) return ctl_fail(definition.status());
  const v1::Route& route = found.value().route();
  Table table({"route", route.name()});
  table.add({"state", enum_word(route.state())});
  if (!route.reason().empty()) table.add({"reason", route.reason()});
  table.add({"generation", std::to_string(route.generation())});
  for (const auto& [key, value] : definition.value().items()) {
    if (key == "name") continue;
    if (!value.is_object()) {
      table.add({key, value.is_string() ? value.get<std::string>() : value.dump()});
      continue;
    }
    for (const auto& [part, inner] : value.items())
      table.add({key + "." + part, inner.is_string() ? inner.get<std::string>() : inner.dump()});
  }
  write_output(printable(table.text()));
  return kCtlOk;
}

}  // namespace specd::host
