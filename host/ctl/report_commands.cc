// specctl plugins, routes, models, status and memory: the daemon's reports as tables or JSON.
#include <sstream>
#include <string>

#include "host/base/memory_table.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/ctl/command.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

// "1.0.0 (3fa4c01b)": version and the first digits of the library's hash.
std::string version_text(const std::string& version, const std::string& sha256) {
  constexpr size_t kDigits = 8;
  return sha256.empty() ? version : version + " (" + sha256.substr(0, kDigits) + ")";
}

// "27.0 MiB W4A16 g128, 4.13 bits a weight"
std::string weights_text(const v1::Model& model) {
  const std::string bytes = bytes_text(model.weight_bytes()) + " ";
  if (model.weight_format().empty()) return bytes + model.dtype();
  return bytes + model.weight_format() + ", " + fixed(model.weight_bits(), 2) + " bits a weight";
}

// The model's defaults for what a request leaves out.
std::string defaults_text(const v1::Model& model) {
  const v1::Sampling& sampling = model.default_sampling();
  std::ostringstream text;
  text << "\nDefaults for requests: ";
  if (sampling.temperature() == 0) {
    text << "greedy";
  } else {
    text << "temperature " << sampling.temperature();
  }
  if (sampling.top_p() < 1) text << ", top-p " << sampling.top_p();
  if (sampling.top_k() > 0) text << ", top-k " << sampling.top_k();
  if (sampling.min_p() > 0) text << ", min-p " << sampling.min_p();
  if (sampling.typical_p() < 1) text << ", typical-p " << sampling.typical_p();
  text << ", repetition penalty " << sampling.repetition_penalty() << '\n';
  text << (model.eos_tokens().empty() ? "No end tokens: a text ends only at its length"
                                      : "A text ends at token");
  for (const int32_t token : model.eos_tokens()) text << ' ' << token;
  for (const std::string& each : model.generation_config_ignored())
    text << "\ngeneration_config.json, not applied: " << each;
  text << '\n';
  return text.str();
}

}  // namespace

int run_plugins(Client& client, Format format) {
  const auto response = client.plugins();
  if (!response.ok()) return ctl_fail(response.status());
  Table table({"plugin", "version", "state", "factories", "reason"});
  for (const v1::Plugin& plugin : response.value().plugins()) {
    if (format != Format::kTable) write_output(object_text(report_to_json(plugin), format));
    std::string factories;
    for (const v1::PluginFactory& factory : plugin.factories())
      factories +=
          (factories.empty() ? "" : ", ") + factory.id() + " (" + enum_word(factory.kind()) + ")";
    table.add(
        {plugin.id(), plugin.version(), enum_word(plugin.state()), factories, plugin.reason()});
  }
  if (format == Format::kTable) write_output(printable(table.text()));
  return kCtlOk;
}

int run_routes(Client& client, Format format) {
  const auto response = client.routes();
  if (!response.ok()) return ctl_fail(response.status());
  Table table({"route", "generation", "drafter", "version", "verifier", "version", "guarantee",
               "state", "in use", "requests", "drafted", "accepted", "cut", "lost", "propose",
               "reason or last problem"});
  for (const v1::Route& route : response.value().routes()) {
    if (format != Format::kTable) write_output(object_text(report_to_json(route), format));
    const double propose_us = route.propose_calls() > 0
                                  ? static_cast<double>(route.propose_ns()) /
                                        static_cast<double>(route.propose_calls()) / 1000
                                  : 0;
    table.add({route.name() + (route.is_default() ? " (default)" : ""),
               std::to_string(route.generation()), route.drafter(),
               version_text(route.drafter_version(), route.drafter_sha256()), route.verifier(),
               version_text(route.verifier_version(), route.verifier_sha256()),
               enum_word(route.guarantee()),
               enum_word(route.state()) +
                   (route.share_percent() > 0 ? " (" + std::to_string(route.share_percent()) + " %)"
                                              : ""),
               std::to_string(route.in_use()), std::to_string(route.requests()),
               std::to_string(route.drafted()), std::to_string(route.accepted()),
               std::to_string(route.cut()), std::to_string(route.lost()),
               fixed(propose_us, 1) + " us",
               route.reason().empty() ? route.last_problem() : route.reason()});
  }
  if (format == Format::kTable) write_output(printable(table.text()));
  return kCtlOk;
}

int run_models(Client& client, Format format) {
  const auto response = client.models();
  if (!response.ok()) return ctl_fail(response.status());
  Table table({"model", "role", "architecture", "parameters", "weights", "KV", "KV pages",
               "positions", "chat template", "reason"});
  for (const v1::Model& model : response.value().models()) {
    const bool is_draft = model.role() == v1::MODEL_ROLE_DRAFT;
    if (format != Format::kTable) write_output(object_text(report_to_json(model), format));
    table.add(
        {model.name(), enum_word(model.role()), model.architecture(),
         std::to_string(model.parameters()), weights_text(model),
         (model.kv_bytes() == 0 ? "in the target's pages " : bytes_text(model.kv_bytes()) + " ") +
             model.kv_dtype(),
         is_draft ? std::to_string(model.kv_pages_held()) + " held"
                  : std::to_string(model.kv_pages_free()) + " of " +
                        std::to_string(model.kv_pages_total()) + " free, " +
                        std::to_string(model.kv_pages_cached()) + " cached",
         std::to_string(model.max_positions()), model.chat_template(), model.reason()});
  }
  if (format != Format::kTable) return kCtlOk;
  write_output(printable(table.text()));
  for (const v1::Model& model : response.value().models()) {
    if (model.role() == v1::MODEL_ROLE_TARGET) write_output(printable(defaults_text(model)));
  }
  return kCtlOk;
}

int run_status(Client& client, Format format) {
  const auto response = client.status();
  if (!response.ok()) return ctl_fail(response.status());
  const v1::GetStatusResponse& status = response.value();
  if (format != Format::kTable) {
    write_output(object_text(report_to_json(status), format));
    return kCtlOk;
  }
  Table table({"specd " + status.version(), enum_word(status.state())});
  const auto add = [&](const std::string& what, uint64_t value) {
    table.add({what, std::to_string(value)});
  };
  table.add({"process", std::to_string(status.pid())});
  table.add({"up", fixed(status.uptime_s(), 1) + " s"});
  table.add({"device", status.device()});
  table.add({"threads", std::to_string(status.threads()) + " (" + status.isa() + ")"});
  table.add({"running", std::to_string(status.running())});
  table.add({"waiting", std::to_string(status.waiting())});
  add("admitted", status.admitted());
  add("completed", status.completed());
  add("failed", status.failed());
  add("cancelled", status.cancelled());
  add("deadline misses", status.deadline_misses());
  add("preemptions", status.preemptions());
  add("refused", status.refused());
  add("steps", status.steps());
  add("rows", status.rows());
  add("tokens", status.tokens());
  add("KV moves", status.kv_moves());
  for (const v1::MemoryLine& line : status.memory())
    table.add({"memory: " + line.what(), bytes_text(line.bytes())});
  for (const v1::ThreadStatus& each : status.busy_threads()) {
    const std::string who = each.thread() + (each.work().empty() ? "" : " (" + each.work() + ")");
    table.add({"busy: " + who, fixed(each.busy_s(), 1) + (each.is_stuck() ? " s, stuck" : " s")});
  }
  write_output(printable(table.text()));
  return kCtlOk;
}

int run_memory(Client& client, Format format) {
  const auto response = client.memory();
  if (!response.ok()) return ctl_fail(response.status());
  const v1::GetMemoryResponse& memory = response.value();
  if (format != Format::kTable) {
    write_output(object_text(report_to_json(memory), format));
    return kCtlOk;
  }
  MemoryTable held;
  for (const v1::GetMemoryResponse::Line& line : memory.lines()) {
    held.add(line.what(), line.detail(), {line.held_bytes().begin(), line.held_bytes().end()},
             {line.planned_bytes().begin(), line.planned_bytes().end()});
  }
  write_output(printable(held.text()));
  return kCtlOk;
}

}  // namespace specd::host
