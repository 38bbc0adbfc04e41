// specctl route apply, delete and get.
#include <string>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/config/yaml_reader.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

void print_route_change(const std::string& name, uint64_t generation, const char* change,
                        bool json) {
  if (json) {
    const Json object{{"route", name}, {"generation", generation}, {"change", change}};
    write_output(object.dump() + "\n");
    return;
  }
  Table table({"route", "generation", "change"});
  table.add({name, std::to_string(generation), change});
  write_output(printable(table.text()));
}

}  // namespace

int run_route_apply(Client& client, const Values& values, bool json) {
  const std::string path = values["file"].as<std::string>();
  const Result<std::string> text = read_text_file(path, kYamlBytesMax);
  if (!text.ok()) return ctl_fail(text.status());
  v1::ApplyRouteRequest request;
  request.set_definition(text.value());
  request.set_source(escaped(path));  // for errors only
  request.set_request_id(values["request-id"].as<std::string>());
  const auto done = client.apply_route(request);
  if (!done.ok()) return ctl_fail(done.status());
  print_route_change(done.value().name(), done.value().generation(),
                     done.value().unchanged() ? "unchanged" : "applied", json);
  return kCtlOk;
}

int run_route_delete(Client& client, const Values& values, const std::string& name, bool json) {
  v1::DeleteRouteRequest request;
  request.set_name(name);
  request.set_request_id(values["request-id"].as<std::string>());
  const auto done = client.delete_route(request);
  if (!done.ok()) return ctl_fail(done.status());
  print_route_change(name, done.value().generation(), "deleted", json);
  return kCtlOk;
}

int run_route_get(Client& client, const std::string& name, bool json) {
  const auto found = client.get_route(name);
  if (!found.ok()) return ctl_fail(found.status());
  if (json) {
    write_output(found.value().definition() + "\n");
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
