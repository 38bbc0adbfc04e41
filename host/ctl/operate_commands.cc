// specctl requests, plugin, reload and drain.
#include <string>

#include "host/base/output.h"
#include "host/base/table.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {

int run_requests(Client& client, const Values& values, Format format) {
  const auto response = client.requests(values["max"].as<int32_t>());
  if (!response.ok()) return ctl_fail(response.status());
  const v1::ListRequestsResponse& list = response.value();
  if (format != Format::kTable) {  // whole, since it says how many there are
    write_output(object_text(report_to_json(list), format));
    return kCtlOk;
  }
  Table table({"request", "state", "route", "tokens", "prompt", "pages", "drafts accepted", "age"});
  for (const v1::RequestInfo& one : list.requests()) {
    const std::string route =
        one.route() + (one.generation() > 0 ? " (" + std::to_string(one.generation()) + ")" : "");
    table.add(
        {one.request_id() + (one.index() > 0 ? "[" + std::to_string(one.index()) + "]" : ""),
         std::string(one.running() ? "runs" : "waits") +
             (one.running() && one.generation() > 0 && !one.drafting() ? ", no drafts" : ""),
         route, std::to_string(one.completion_tokens()) + " of " + std::to_string(one.max_tokens()),
         std::to_string(one.prompt_tokens()), std::to_string(one.kv_pages()),
         std::to_string(one.accepted_draft_tokens()) + " of " + std::to_string(one.draft_tokens()),
         fixed(one.age_s(), 1) + " s"});
  }
  const int32_t n_more = list.running() + list.waiting() - list.requests_size();
  write_output(printable(table.text()) + std::to_string(list.running()) + " run, " +
               std::to_string(list.waiting()) + " wait" +
               (n_more > 0 ? "; " + std::to_string(n_more) + " are not shown\n" : "\n"));
  return kCtlOk;
}

int run_plugin(Client& client, const Values& values, const std::string& action,
               const std::string& id, Format format) {
  const std::string request_id = values["request-id"].as<std::string>();
  if (action == "retire") {
    v1::RetirePluginRequest request;
    request.set_plugin(id);
    request.set_request_id(request_id);
    const auto done = client.retire_plugin(request);
    return done.ok() ? kCtlOk : ctl_fail(done.status());
  }
  v1::LoadPluginRequest request;
  request.set_plugin(id);
  request.set_request_id(request_id);
  const auto done = client.load_plugin(request);
  if (!done.ok()) return ctl_fail(done.status());
  const v1::Plugin& plugin = done.value().plugin();
  if (format != Format::kTable) {
    write_output(object_text(report_to_json(plugin), format));
  } else {
    write_output(printable(plugin.id() + " " + plugin.version() + " sha256:" + plugin.sha256() +
                           " is loaded\n"));
  }
  return kCtlOk;
}

int run_reload(Client& client, const Values& values, Format format) {
  v1::ReloadConfigRequest request;
  request.set_request_id(values["request-id"].as<std::string>());
  request.set_dry_run(values["dry-run"].as<bool>());
  const auto done = client.reload(request);
  if (!done.ok()) return ctl_fail(done.status());
  if (format != Format::kTable) {
    write_output(object_text(report_to_json(done.value()), format));
    return kCtlOk;
  }
  Table table({"route", "change"});
  const std::string front = request.dry_run() ? "would be " : "";
  for (const std::string& name : done.value().added()) table.add({name, front + "added"});
  for (const std::string& name : done.value().changed()) table.add({name, front + "changed"});
  for (const std::string& name : done.value().removed()) table.add({name, front + "removed"});
  std::string text = table.text();
  for (const std::string& setting : done.value().settings())
    text += setting + (request.dry_run() ? ", would be set\n" : "\n");
  write_output(text.empty() ? "nothing has changed\n" : printable(text));
  return kCtlOk;
}

int run_drain(Client& client) {
  const auto done = client.drain();
  return done.ok() ? kCtlOk : ctl_fail(done.status());
}

}  // namespace specd::host
