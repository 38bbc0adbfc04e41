// specctl: talks to a running specd.
#include <google/protobuf/util/json_util.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <boost/program_options.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/json.h"
#include "host/bench/measure.h"
#include "host/bench/server_backend.h"
#include "host/ctl/chat_options.h"
#include "host/rpc/client.h"
#include "host/rpc/proto_text.h"
#include "host/base/command_line.h"
#include "host/base/completion.h"
#include "host/base/table.h"
#include "host/version.h"
#include "host/config/yaml_reader.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;
using OrderedJson = nlohmann::ordered_json;  // in the order of the .proto

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kDifferent = 3;
constexpr char kDefaultSocket[] = "/run/specd/specd.sock";

constexpr char kAbout[] = "specctl: talks to a running specd\n";
constexpr char kExits[] =
    "\nExit codes: 0 fine, 1 the daemon refused or is not there, 2 wrong command line, 3 compare\n"
    "            found a route whose text differs\n";

int fail(const Status& status) {
  std::fprintf(stderr, "specctl: %s: %s\n", code_name(status.code()),
               printable(status.text()).c_str());
  return kFailed;
}
int usage(const std::string& problem) {
  std::fprintf(stderr, "specctl: %s\nTry: specctl --help\n", printable(problem).c_str());
  return kUsage;
}

std::string to_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

// States and kinds as the tables have them: "live" instead of "ROUTE_STATE_LIVE".
void name_enums(const google::protobuf::Descriptor& type, OrderedJson& json) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const auto found = json.find(field.name());
    if (found == json.end()) continue;
    if (field.message_type() != nullptr) {
      if (!field.is_repeated()) name_enums(*field.message_type(), *found);
      if (field.is_repeated())
        for (OrderedJson& each : *found) name_enums(*field.message_type(), each);
    } else if (field.enum_type() != nullptr) {
      const auto* value = field.enum_type()->FindValueByName(found->get<std::string>());
      if (value != nullptr) *found = enum_word(*value);
    }
  }
}

// Of a report.
std::string report_to_json(const google::protobuf::Message& message) {
  OrderedJson json = OrderedJson::parse(to_json(message));
  name_enums(*message.GetDescriptor(), json);
  return json.dump();
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  if (list.ends_with(',')) parts.emplace_back();
  return parts;
}

template <typename T>
bool parse_numbers(const std::string& list, std::vector<T>& out) {
  for (const std::string& part : split(list)) {
    std::istringstream stream(part);
    T value{};
    if (!(stream >> value) || !stream.eof()) return false;
    out.push_back(value);
  }
  return !out.empty();
}

po::options_description make_options() {
  po::options_description options("Options");
  auto add = options.add_options();
  add("help,h", "this text");
  add("version", "the version");
  add("socket", po::value<std::string>()->value_name("PATH"),
      "the daemon's socket (default: $SPECD_SOCKET, else /run/specd/specd.sock)");
  add("output,o", po::value<std::string>()->default_value("table")->value_name("table|json"),
      "table or json (one object a line); for record: the file to write");
  add("prompt", po::value<std::string>(),
      "generate, render: the prompt; else --prompt-file, else input");
  add("prompt-file", po::value<std::string>()->value_name("FILE"),
      "generate, render: a file or a pipe with the prompt");
  add("prompt-tokens", po::value<std::string>(), "generate: the prompt as ids, 0,17,4");
  add_chat_options(options);
  add("temperature", po::value<std::string>()->default_value("0"),
      "0 = greedy; compare and record take a list; generate: sampling options that are not given "
      "come from generation_config.json");
  add("top-p", po::value<float>()->default_value(1));
  add("top-k", po::value<int32_t>()->default_value(0));
  add("seed", po::value<uint64_t>()->default_value(0));
  add("min-p", po::value<float>(), "generate: 0 = off");
  add("repetition-penalty", po::value<float>(), "generate: over prompt and output, 1 = off");
  add("frequency-penalty", po::value<float>(), "generate: over the output, 0 = off");
  add("presence-penalty", po::value<float>(), "generate: over the output, 0 = off");
  add("max-tokens", po::value<int32_t>()->default_value(128));
  add("stop", po::value<std::vector<std::string>>()->composing(), "generate: may be repeated");
  add("stop-token", po::value<std::vector<int32_t>>()->composing(), "generate: may be repeated");
  add("ignore-eos", po::bool_switch());
  add("request-id", po::value<std::string>()->default_value(""));
  add("priority", po::value<int32_t>()->default_value(0),
      "generate: -1000 to 1000, smaller = sooner");
  add("deadline-ms", po::value<int64_t>()->default_value(0), "generate: 0 = none");
  add("cache-salt", po::value<std::string>()->default_value(""),
      "generate: shares cached prefixes with the same salt only");
  add("draft-nodes-max", po::value<int32_t>(), "generate: less than the route's; 0 = no drafts");
  add("route", po::value<std::string>()->default_value(""), "generate and record");
  add("routes", po::value<std::string>()->default_value("off"),
      "compare: list, the first is the base");
  add("prompts", po::value<std::vector<std::string>>()->composing()->value_name("PATH"),
      "compare and record: file or folder, may be repeated");
  add("repeat", po::value<int>()->default_value(1), "compare: rounds");
  add("file,f", po::value<std::string>()->value_name("FILE"),
      "route apply: YAML or JSON of one route");
  return options;
}

// Of a file, a pipe or a terminal, whose size is not known beforehand. `what` names it in errors.
Result<std::string> read_to_end(int descriptor, const std::string& what) {
  std::string text;
  for (char buffer[4096];;) {
    const ssize_t got = read(descriptor, buffer, sizeof(buffer));
    if (got == 0) return text;
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return Status(Code::kInvalidArgument, what + ": cannot read: " + std::strerror(errno));
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > kPromptBytesMax)
      return Status(Code::kInvalidArgument, what + ": expected a prompt of at most " +
                                                std::to_string(kPromptBytesMax) +
                                                " bytes, found more");
  }
}

Result<std::string> read_prompt(const po::variables_map& values) {
  if (values.count("prompt") != 0) return values["prompt"].as<std::string>();
  if (values.count("prompt-file") == 0) return read_to_end(STDIN_FILENO, "standard input");
  const std::string what = "--prompt-file " + values["prompt-file"].as<std::string>();
  const FileDescriptor file(
      open(values["prompt-file"].as<std::string>().c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0)
    return Status(Code::kNotFound, what + ": cannot open: " + std::strerror(errno));
  return read_to_end(file.get(), what);
}

// The text or the messages of a prompt.
Status read_prompt(const po::variables_map& values, v1::GenerateRequest& request) {
  if (has_chat_options(values)) {
    SPECD_TRY(*request.mutable_chat(), read_chat_options(values));
    return Status();
  }
  SPECD_TRY(const std::string text, read_prompt(values));
  request.set_text(text);
  return Status();
}

int run_render(Client& client, const po::variables_map& values, bool json) {
  v1::GenerateRequest request;
  if (const Status status = read_prompt(values, request); !status.ok()) return fail(status);
  const auto rendered = client.render(request);
  if (!rendered.ok()) return fail(rendered.status());
  if (json) {
    std::printf("%s\n", to_json(rendered.value()).c_str());
    return kOk;
  }
  const std::string& text = rendered.value().text();
  const std::string shown = isatty(STDOUT_FILENO) == 1 ? printable(text) : text;
  std::printf("%s\n", shown.c_str());
  for (const int32_t id : rendered.value().token_ids()) std::printf("%d ", id);
  std::printf("\n");
  return kOk;
}

// Sets only what was given; the model's defaults apply to the rest.
void set_sampling(const po::variables_map& values, float temperature, v1::Sampling& to) {
  const auto given = [&](const char* option) {
    return values.count(option) != 0 && !values[option].defaulted();
  };
  if (given("temperature")) to.set_temperature(temperature);
  if (given("top-p")) to.set_top_p(values["top-p"].as<float>());
  if (given("top-k")) to.set_top_k(values["top-k"].as<int32_t>());
  if (given("seed")) to.set_seed(values["seed"].as<uint64_t>());
  if (given("min-p")) to.set_min_p(values["min-p"].as<float>());
  if (given("repetition-penalty"))
    to.set_repetition_penalty(values["repetition-penalty"].as<float>());
  if (given("frequency-penalty")) to.set_frequency_penalty(values["frequency-penalty"].as<float>());
  if (given("presence-penalty")) to.set_presence_penalty(values["presence-penalty"].as<float>());
}

int run_generate(Client& client, const po::variables_map& values, bool json) {
  v1::GenerateRequest request;
  if (values.count("prompt-tokens") != 0) {
    std::vector<int32_t> ids;
    if (!parse_numbers(values["prompt-tokens"].as<std::string>(), ids))
      return usage("--prompt-tokens: expected ids, 0,17,4");
    if (has_chat_options(values)) return usage("--prompt-tokens or messages, not both");
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
  } else if (const Status status = read_prompt(values, request); !status.ok()) {
    return fail(status);
  }
  std::vector<float> temperature;
  if (!parse_numbers(values["temperature"].as<std::string>(), temperature) ||
      temperature.size() != 1)
    return usage("--temperature: expected one number");
  set_sampling(values, temperature[0], *request.mutable_sampling());
  request.set_max_tokens(values["max-tokens"].as<int32_t>());
  if (values.count("stop") != 0)
    for (const std::string& stop : values["stop"].as<std::vector<std::string>>())
      request.add_stop(stop);
  if (values.count("stop-token") != 0)
    for (const int32_t id : values["stop-token"].as<std::vector<int32_t>>())
      request.add_stop_token_ids(id);
  request.set_ignore_eos(values["ignore-eos"].as<bool>());
  request.set_route(values["route"].as<std::string>());
  request.set_request_id(values["request-id"].as<std::string>());
  request.set_priority(values["priority"].as<int32_t>());
  request.set_deadline_ms(values["deadline-ms"].as<int64_t>());
  request.set_cache_salt(values["cache-salt"].as<std::string>());
  if (values.count("draft-nodes-max") != 0)
    request.set_draft_nodes_max(values["draft-nodes-max"].as<int32_t>());

  const bool is_terminal = isatty(STDOUT_FILENO) == 1;
  const auto generation = client.generate(request, [&](const v1::GenerateResponse& message) {
    if (json) {
      std::printf("%s\n", to_json(message).c_str());
    } else if (message.has_chunk()) {
      const std::string& text = message.chunk().text();
      const std::string shown = is_terminal ? printable(text) : text;
      std::fwrite(shown.data(), 1, shown.size(), stdout);
    }
    std::fflush(stdout);
  });
  if (!json) std::fputc('\n', stdout);
  std::fflush(stdout);
  if (!generation.ok()) return fail(generation.status());
  const v1::Finished& end = generation.value().finished;
  const v1::Speculation& speculation = end.speculation();
  std::fprintf(
      stderr,
      "[%s on route %s: %d prompt (%d cached) + %d new tokens, %s; queue %.1f, prefill %.1f, decode "
      "%.1f ms; drafts %lld, accepted %lld (%s), %.2f accepted a step]\n",
      printable(end.request_id()).c_str(), printable(generation.value().started.route()).c_str(),
      end.usage().prompt_tokens(), end.usage().cached_prompt_tokens(),
      end.usage().completion_tokens(),
      end.finish_reason() == v1::FINISH_REASON_STOP ? "stop" : "length", end.times().queue_ms(),
      end.times().prefill_ms(), end.times().decode_ms(),
      static_cast<long long>(speculation.total_draft_tokens()),
      static_cast<long long>(speculation.total_accepted_draft_tokens()),
      percent(speculation.acceptance_rate()).c_str(), speculation.mean_accepted_length());
  return kOk;
}

Result<MeasureOptions> read_measure_options(const po::variables_map& values,
                                            std::vector<std::string> routes) {
  MeasureOptions options;
  options.routes = std::move(routes);
  options.temperatures.clear();
  if (!parse_numbers(values["temperature"].as<std::string>(), options.temperatures))
    return Status(Code::kInvalidArgument, "--temperature: expected numbers, 0,0.8");
  options.top_p = values["top-p"].as<float>();
  options.top_k = values["top-k"].as<int32_t>();
  options.seed = values["seed"].as<uint64_t>();
  options.max_tokens = values["max-tokens"].as<int32_t>();
  options.repeat = values["repeat"].as<int>();
  if (options.repeat < 1 || options.repeat > 1000)
    return Status(Code::kInvalidArgument, "--repeat: expected 1 to 1000");
  if (values.count("prompts") == 0)
    return Status(Code::kInvalidArgument, "--prompts: expected a file or a folder");
  return options;
}

// Nobody stops these commands but a signal, which ends the process.
const std::atomic<bool> kNoStop = false;

int run_compare(Client& client, const po::variables_map& values, bool json) {
  const std::vector<std::string> routes = split(values["routes"].as<std::string>());
  const auto options = read_measure_options(values, routes);
  if (!options.ok()) return usage(options.status().message());
  const auto prompts = read_prompts(values["prompts"].as<std::vector<std::string>>());
  if (!prompts.ok()) return fail(prompts.status());
  ServerBackend backend(client);
  const Measurement measured =
      measure(backend, prompts.value(), options.value(), kNoStop, /*between_rounds=*/{});
  if (!measured.status.ok()) return fail(measured.status);

  bool all_identical = true;
  Table table(
      {"sampling", "route", "tokens/s", "speedup", "accepted/step", "acceptance", "identical"});
  for (const Row& row : summarize(measured, /*skip_loops=*/false)) {
    all_identical = all_identical && row.identical;
    const double acceptance =
        row.drafted > 0 ? static_cast<double>(row.accepted) / static_cast<double>(row.drafted) : 0;
    const double length = row.tau > 1 ? row.tau - 1 : 0;
    if (json) {
      const Json object{{"route", row.route},
                        {"temperature", row.temperature},
                        {"requests", row.requests},
                        {"tokens", row.tokens},
                        {"tokens_per_s", row.decode_tokens_per_s},
                        {"speedup", row.speedup},
                        {"mean_accepted_length", length},
                        {"acceptance_rate", acceptance},
                        {"identical", row.identical},
                        {"first_difference", row.first_difference}};
      std::printf("%s\n", object.dump().c_str());
      continue;
    }
    table.add({row.temperature == 0 ? "greedy" : "temperature " + fixed(row.temperature, 1),
               row.route, fixed(row.decode_tokens_per_s, 1), fixed(row.speedup, 2) + "x",
               fixed(length, 2), row.drafted > 0 ? percent(acceptance) : "-",
               row.identical ? "identical: yes" : "identical: no (" + row.first_difference + ")"});
  }
  if (!json) std::fputs(printable(table.text()).c_str(), stdout);
  if (!json && !measured.fresh_drafters)
    std::fputs(
        "drafters: those of the daemon, which keep what earlier requests taught them; for fresh "
        "ones in every round use specd-bench run --config\n",
        stdout);
  return all_identical ? kOk : kDifferent;
}

int run_record(Client& client, const po::variables_map& values) {
  const std::string route = values["route"].as<std::string>();
  const auto options = read_measure_options(values, {route.empty() ? "off" : route});
  if (!options.ok()) return usage(options.status().message());
  const auto prompts = read_prompts(values["prompts"].as<std::vector<std::string>>());
  if (!prompts.ok()) return fail(prompts.status());
  ServerBackend backend(client);
  const auto text = record(backend, prompts.value(), options.value(), kNoStop);
  if (!text.ok()) return fail(text.status());
  const std::string path = values["output"].as<std::string>();
  if (path == "table" || path == "json" || path == "-") {
    std::fputs(text.value().c_str(), stdout);
    return kOk;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text.value();
  file.close();
  if (!file) return fail(Status(Code::kFailedPrecondition, "cannot write " + path));
  return kOk;
}

int run_cancel(Client& client, const po::variables_map& values) {
  const std::string id = values["request-id"].as<std::string>();
  if (id.empty()) return usage("--request-id: expected the id of a request");
  const auto response = client.cancel(id);
  if (!response.ok()) return fail(response.status());
  if (!response.value().found())
    return fail(Status(Code::kNotFound, "no request '" + id + "' runs or waits"));
  return kOk;
}

int run_plugins(Client& client, bool json) {
  const auto response = client.plugins();
  if (!response.ok()) return fail(response.status());
  Table table({"plugin", "version", "state", "factories", "reason"});
  for (const v1::Plugin& plugin : response.value().plugins()) {
    if (json) std::printf("%s\n", report_to_json(plugin).c_str());
    std::string factories;
    for (const v1::PluginFactory& factory : plugin.factories())
      factories +=
          (factories.empty() ? "" : ", ") + factory.id() + " (" + enum_word(factory.kind()) + ")";
    table.add(
        {plugin.id(), plugin.version(), enum_word(plugin.state()), factories, plugin.reason()});
  }
  if (!json) std::fputs(printable(table.text()).c_str(), stdout);
  return kOk;
}

// "1.0.0 (3fa4c01b)": version and the first digits of the library's hash.
std::string version_text(const std::string& version, const std::string& sha256) {
  constexpr size_t kDigits = 8;
  return sha256.empty() ? version : version + " (" + sha256.substr(0, kDigits) + ")";
}

int run_routes(Client& client, bool json) {
  const auto response = client.routes();
  if (!response.ok()) return fail(response.status());
  Table table({"route", "generation", "drafter", "version", "verifier", "version", "guarantee",
               "state", "in use", "requests", "drafted", "accepted", "cut", "lost", "propose",
               "reason or last problem"});
  for (const v1::Route& route : response.value().routes()) {
    if (json) std::printf("%s\n", report_to_json(route).c_str());
    const double propose_us = route.propose_calls() > 0
                                  ? static_cast<double>(route.propose_ns()) /
                                        static_cast<double>(route.propose_calls()) / 1000
                                  : 0;
    table.add({route.name() + (route.is_default() ? " (default)" : ""),
               std::to_string(route.generation()), route.drafter(),
               version_text(route.drafter_version(), route.drafter_sha256()), route.verifier(),
               version_text(route.verifier_version(), route.verifier_sha256()),
               enum_word(route.guarantee()), enum_word(route.state()),
               std::to_string(route.in_use()), std::to_string(route.requests()),
               std::to_string(route.drafted()), std::to_string(route.accepted()),
               std::to_string(route.cut()), std::to_string(route.lost()),
               fixed(propose_us, 1) + " us",
               route.reason().empty() ? route.last_problem() : route.reason()});
  }
  if (!json) std::fputs(printable(table.text()).c_str(), stdout);
  return kOk;
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
  text << ", repetition penalty " << sampling.repetition_penalty() << '\n';
  text << (model.eos_tokens().empty() ? "No end tokens: a text ends only at its length"
                                      : "A text ends at token");
  for (const int32_t token : model.eos_tokens()) text << ' ' << token;
  for (const std::string& each : model.generation_config_ignored())
    text << "\ngeneration_config.json, not applied: " << each;
  text << '\n';
  return text.str();
}

int run_models(Client& client, bool json) {
  const auto response = client.models();
  if (!response.ok()) return fail(response.status());
  Table table({"model", "role", "architecture", "parameters", "weights", "KV", "KV pages",
               "positions", "chat template", "reason"});
  for (const v1::Model& model : response.value().models()) {
    const bool is_draft = model.role() == v1::MODEL_ROLE_DRAFT;
    if (json) std::printf("%s\n", report_to_json(model).c_str());
    table.add({model.name(), enum_word(model.role()), model.architecture(),
               std::to_string(model.parameters()),
               bytes_text(model.weight_bytes()) + " " + model.dtype(),
               (is_draft ? "in the target's pages " : bytes_text(model.kv_bytes()) + " ") +
                   model.kv_dtype(),
               is_draft ? std::to_string(model.kv_pages_held()) + " held"
                        : std::to_string(model.kv_pages_free()) + " of " +
                              std::to_string(model.kv_pages_total()) + " free, " +
                              std::to_string(model.kv_pages_cached()) + " cached",
               std::to_string(model.max_positions()), model.chat_template(), model.reason()});
  }
  if (json) return kOk;
  std::fputs(printable(table.text()).c_str(), stdout);
  for (const v1::Model& model : response.value().models()) {
    if (model.role() == v1::MODEL_ROLE_TARGET)
      std::fputs(printable(defaults_text(model)).c_str(), stdout);
  }
  return kOk;
}

int run_status(Client& client, bool json) {
  const auto response = client.status();
  if (!response.ok()) return fail(response.status());
  const v1::GetStatusResponse& status = response.value();
  if (json) {
    std::printf("%s\n", report_to_json(status).c_str());
    return kOk;
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
  std::fputs(printable(table.text()).c_str(), stdout);
  return kOk;
}

void print_route_change(const std::string& name, uint64_t generation, const char* change,
                        bool json) {
  if (json) {
    const Json object{{"route", name}, {"generation", generation}, {"change", change}};
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  Table table({"route", "generation", "change"});
  table.add({name, std::to_string(generation), change});
  std::fputs(printable(table.text()).c_str(), stdout);
}

int run_route_apply(Client& client, const po::variables_map& values, bool json) {
  const std::string path = values["file"].as<std::string>();
  const Result<std::string> text = read_text_file(path, kYamlBytesMax);
  if (!text.ok()) return fail(text.status());
  v1::ApplyRouteRequest request;
  request.set_definition(text.value());
  request.set_source(path);
  request.set_request_id(values["request-id"].as<std::string>());
  const auto done = client.apply_route(request);
  if (!done.ok()) return fail(done.status());
  print_route_change(done.value().name(), done.value().generation(),
                     done.value().unchanged() ? "unchanged" : "applied", json);
  return kOk;
}

int run_route_delete(Client& client, const po::variables_map& values, const std::string& name,
                     bool json) {
  v1::DeleteRouteRequest request;
  request.set_name(name);
  request.set_request_id(values["request-id"].as<std::string>());
  const auto done = client.delete_route(request);
  if (!done.ok()) return fail(done.status());
  print_route_change(name, done.value().generation(), "deleted", json);
  return kOk;
}

int run_route_get(Client& client, const std::string& name, bool json) {
  const auto found = client.get_route(name);
  if (!found.ok()) return fail(found.status());
  if (json) {
    std::printf("%s\n", found.value().definition().c_str());
    return kOk;
  }
  const auto definition = parse_json(found.value().definition(), "definition");
  if (!definition.ok()) return fail(definition.status());
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
  std::fputs(printable(table.text()).c_str(), stdout);
  return kOk;
}

// What is wrong with the words after `route`, or "".
std::string route_usage_problem(const po::variables_map& values,
                                const std::vector<std::string>& arguments) {
  const std::string action = arguments.empty() ? "" : arguments[0];
  const bool has_file = values.count("file") != 0;
  if (action == "apply")
    return arguments.size() == 1 && has_file ? "" : "route apply: expected -f FILE";
  if (action == "delete" || action == "get")
    return arguments.size() == 2 && !has_file ? "" : "route " + action + ": expected NAME";
  return "route: expected apply, delete or get, found '" + action + "'";
}

// What is wrong with the command line apart from its options, or "".
std::string usage_problem(const Program& program, const po::variables_map& values,
                          const std::string& command, const std::vector<std::string>& arguments) {
  const Command* known = program.find(command);
  if (known == nullptr) return "unknown command '" + command + "'";
  if (const std::string option = option_of_another_command(program, values, command);
      !option.empty())
    return command + " takes no --" + option;
  if (known->words.empty() && !arguments.empty())
    return command + " takes no '" + arguments[0] + "'";
  const std::string output = values["output"].as<std::string>();
  if (command != "record" && output != "table" && output != "json")
    return "-o: expected table or json, found '" + output + "'";
  const std::vector<std::string> routes = split(values["routes"].as<std::string>());
  if (routes.empty() || std::find(routes.begin(), routes.end(), "") != routes.end())
    return "--routes: expected names, off,prompt_lookup";
  std::string prompt;
  for (const char* option : {"prompt", "prompt-file", "prompt-tokens"}) {
    if (values.count(option) == 0) continue;
    if (!prompt.empty()) return "--" + prompt + " or --" + option + ", not both";
    prompt = option;
  }
  if (command == "route") return route_usage_problem(values, arguments);
  if (command == "completion" && arguments.size() > 1) return "completion: expected one shell";
  return "";
}

Program make_program() {
  return {
      .name = "specctl",
      .commands =
          {
              {"generate", "", "continue a prompt, or answer messages, and stream the text"},
              {"render", "",
               "what the model would read: the text and the ids of a prompt\nor of messages"},
              {"compare", "",
               "the same prompts on several routes: speed, acceptance,\nidentical or not"},
              {"record", "", "prompts and their continuations as a file for the\nreplay drafter"},
              {"cancel", "--request-id ID", "end a running request"},
              {"plugins", "", "the daemon's plugins"},
              {"routes", "", "its routes and what they count"},
              {"models", "", "its models"},
              {"status", "", "its state, what it counts, its memory"},
              {"route",
               "apply -f FILE | delete NAME | get NAME",
               "put a route into service or replace it, while requests run;\n"
               "delete a route (its running requests finish); show its\n"
               "definition (-o json prints what apply reads)",
               {"apply", "delete", "get"}},
              {"completion", "SHELL", "print completion for bash, zsh or fish",
               completion_shells()},
          },
      .options = make_options(),
      .taken_by =
          {
              {"prompt", "generate render"},
              {"prompt-file", "generate render"},
              {"message", "generate render"},
              {"messages", "generate render"},
              {"tools", "generate render"},
              {"template-arguments", "generate render"},
              {"continue-final-message", "generate render"},
              {"prompt-tokens", "generate"},
              {"stop", "generate"},
              {"stop-token", "generate"},
              {"ignore-eos", "generate"},
              {"request-id", "generate cancel route"},
              {"priority", "generate"},
              {"deadline-ms", "generate"},
              {"cache-salt", "generate"},
              {"draft-nodes-max", "generate"},
              {"temperature", "generate compare record"},
              {"top-p", "generate compare record"},
              {"top-k", "generate compare record"},
              {"seed", "generate compare record"},
              {"min-p", "generate"},
              {"repetition-penalty", "generate"},
              {"frequency-penalty", "generate"},
              {"presence-penalty", "generate"},
              {"max-tokens", "generate compare record"},
              {"route", "generate record"},
              {"routes", "compare"},
              {"prompts", "compare record"},
              {"repeat", "compare"},
              {"file", "route"},
          },
  };
}

int run(int argc, char** argv) {
  const Program program = make_program();
  po::options_description all;
  all.add(program.options)
      .add_options()("command", po::value<std::string>())("arguments",
                                                          po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("command", 1).add("arguments", -1);
  const auto parsed = read_command_line(all, positional, {argv + 1, argv + argc});
  if (!parsed.ok()) return usage(parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    const std::string text =
        kAbout + ("\n" + commands_help(program)) + "\n" + options_text(program) + kExits;
    std::fputs(text.c_str(), stdout);
    return kOk;
  }
  if (values.count("version") != 0) {
    std::printf("specctl %s\n", kVersion);
    return kOk;
  }
  const std::string command =
      values.count("command") != 0 ? values["command"].as<std::string>() : "";
  const auto arguments = values.count("arguments") != 0
                             ? values["arguments"].as<std::vector<std::string>>()
                             : std::vector<std::string>();
  if (const std::string problem = usage_problem(program, values, command, arguments);
      !problem.empty())
    return usage(problem);
  if (command == "completion") {
    const auto script = completion_script(program, arguments.empty() ? "" : arguments[0]);
    if (!script.ok()) return usage(script.status().message());
    std::fputs(script.value().c_str(), stdout);
    return kOk;
  }
  const bool json = values["output"].as<std::string>() == "json";

  const char* from_environment = std::getenv("SPECD_SOCKET");
  const std::string socket = values.count("socket") != 0   ? values["socket"].as<std::string>()
                             : from_environment != nullptr ? from_environment
                                                           : kDefaultSocket;
  Result<Client> client = Client::connect(socket);
  if (!client.ok()) return fail(client.status());
  if (command == "generate") return run_generate(client.value(), values, json);
  if (command == "render") return run_render(client.value(), values, json);
  if (command == "compare") return run_compare(client.value(), values, json);
  if (command == "record") return run_record(client.value(), values);
  if (command == "cancel") return run_cancel(client.value(), values);
  if (command == "plugins") return run_plugins(client.value(), json);
  if (command == "routes") return run_routes(client.value(), json);
  if (command == "models") return run_models(client.value(), json);
  if (command == "status") return run_status(client.value(), json);
  SPECD_CHECK(command == "route", command);
  if (arguments[0] == "apply") return run_route_apply(client.value(), values, json);
  if (arguments[0] == "delete") return run_route_delete(client.value(), values, arguments[1], json);
  return run_route_get(client.value(), arguments[1], json);
}

}  // namespace
}  // namespace specd::host

int main(int argc, char** argv) {
  try {
    return specd::host::run(argc, argv);
  } catch (const std::exception& error) {  // memory at most
    std::fprintf(stderr, "specctl: %s\n", error.what());
    return 1;
  }
}
