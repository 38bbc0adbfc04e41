// specd-bench run: engines, backends and prompts put together.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "core/base/quote.h"
#include "core/base/sha256.h"
#include "host/bench/command.h"
#include "host/bench/engine_backend.h"
#include "host/bench/engine_config.h"
#include "host/bench/report.h"
#include "host/bench/server_backend.h"
#include "host/bench/verify_cost.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/version.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;
namespace po = boost::program_options;

constexpr char kReplay[] = "specd.drafter.replay";
constexpr char kMatch[] = "specd.verifier.match";

Status wrong(const std::string& text) { return Status(Code::kInvalidArgument, text); }

// A temporary folder; the destructor removes it.
class TemporaryFolder {
 public:
  static Result<std::unique_ptr<TemporaryFolder>> create() {
    std::error_code failure;
    const fs::path base = fs::temp_directory_path(failure);
    std::string path = (failure ? fs::path("/tmp") : base) / "specd-bench-XXXXXX";
    if (mkdtemp(path.data()) == nullptr)
      return Status(Code::kFailedPrecondition, "cannot create a folder " + path);
    return std::unique_ptr<TemporaryFolder>(new TemporaryFolder(path));
  }
  ~TemporaryFolder() {
    std::error_code failure;
    fs::remove_all(path_, failure);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

po::options_description run_options() {
  po::options_description options(
      "specd-bench run: routes side by side on the same prompts, `off` the base\n"
      "  specd-bench run --config FILE --routes a,b --prompts PATH   an engine in this process\n"
      "  specd-bench run --socket PATH --routes a,b --prompts PATH   a running daemon");
  add_engine_options(options);
  auto add = options.add_options();
  add("help,h", "this text");
  add("socket", po::value<std::string>(), "the socket of a daemon");
  add("prompts", po::value<std::vector<std::string>>()->composing(),
      "file, folder, or *.jsonl with prompt, text or turns a line; may be repeated");
  add("without-first-line", po::bool_switch(), "drop an instruction line in front of each prompt");
  add("limit", po::value<size_t>()->default_value(0), "only the first N prompts; 0 = all");
  add("synthetic", po::value<int32_t>(), "instead of --prompts: N prompts of random ids");
  add("input-mean", po::value<double>()->default_value(128), "synthetic: tokens of a prompt");
  add("input-stdev", po::value<double>()->default_value(0));
  add("output-mean", po::value<double>()->default_value(128), "synthetic: tokens of an answer");
  add("output-stdev", po::value<double>()->default_value(0));
  add("routes", po::value<std::string>()->default_value(""), "list; `off` always comes first");
  add("concurrency", po::value<std::string>()->default_value("1"), "list: requests at a time");
  add("temperature", po::value<std::string>()->default_value("0"), "list; 0 = greedy");
  add("top-p", po::value<float>()->default_value(1));
  add("top-k", po::value<int32_t>()->default_value(0));
  add("seed", po::value<uint64_t>()->default_value(0), "of the first temperature; the next adds 1");
  add("max-tokens", po::value<int32_t>()->default_value(128));
  add("ignore-eos", po::bool_switch());
  add("repeat", po::value<int>()->default_value(3), "rounds");
  add("no-control", po::bool_switch(), "do not measure `off` a second time for the noise");
  add("synthetic-acceptance", po::value<double>(),
      "with --config: adds replay routes that guess right with this chance, 0 to 1");
  add("draft-tokens", po::value<std::string>()->default_value("8"),
      "list: K of the replay routes, one route each");
  add("verify-cost", po::value<std::string>(),
      "with --config: list of N; on the CPU, also measures V(N), the time of a forward of N rows / "
      "that of one row");
  add("json", po::value<std::string>(), "also write the result to this file");
  return options;
}

// One line that a shell reads as these arguments.
std::string command_text(const std::vector<std::string>& arguments) {
  std::string text = "specd-bench run";
  for (const std::string& argument : arguments) {
    text += ' ';
    const bool plain =
        !argument.empty() && std::all_of(argument.begin(), argument.end(), [](char c) {
          return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
                 std::string_view("_-./:=,@%+").find(c) != std::string_view::npos;
        });
    if (plain) {
      text += argument;
      continue;
    }
    text += '\'';
    for (const char c : argument) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return text;
}

// Of this program's file; empty when it cannot be read.
std::string program_sha256() {
  std::ifstream file("/proc/self/exe", std::ios::binary);
  Sha256 hash;
  std::vector<char> block(1 << 16);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())) || file.gcount() > 0)
    hash.update(std::as_bytes(std::span(block).first(static_cast<size_t>(file.gcount()))));
  return file.eof() ? to_hex(hash.finish()) : "";
}

// "Intel(R) Xeon(R) Processor"; empty where the system does not name it.
std::string processor_name() {
  constexpr std::string_view kKey = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with(kKey) && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "";
}

struct RunPlan {
  MeasureOptions measure;
  std::vector<int> replay_tokens;  // K of each replay route
  double acceptance = 0;
  std::vector<int> verify_rows;
  std::optional<SyntheticOptions> synthetic;
};

// Each number once: it names a row of the result.
template <typename T>
Result<std::vector<T>> list_of(const std::string& option, const std::string& text, T min, T max) {
  SPECD_TRY(const std::vector<double> numbers,
            parse_list(option, text, min, max, std::is_integral_v<T>));
  std::vector<T> values;
  for (const double number : numbers) {
    const T value = static_cast<T>(number);
    if (std::find(values.begin(), values.end(), value) != values.end())
      return wrong(option + ": expected each number once, found " + quote(text, 60));
    values.push_back(value);
  }
  return values;
}

Result<RunPlan> read_plan(const po::variables_map& values) {
  RunPlan plan;
  MeasureOptions& measure = plan.measure;
  const bool offline = values.count("config") != 0;
  if (offline == (values.count("socket") != 0))
    return wrong("expected --config FILE or --socket PATH");
  for (const char* option : {"set", "model", "threads", "synthetic-acceptance", "verify-cost"})
    if (!offline && values.count(option) != 0)
      return wrong(std::string("--") + option +
                   ": expected with --config only: a daemon's engine stays as it is");
  if ((values.count("prompts") != 0) == (values.count("synthetic") != 0))
    return wrong("expected --prompts PATH or --synthetic N");

  measure.routes = {"off"};
  std::istringstream routes(values["routes"].as<std::string>());
  for (std::string route; std::getline(routes, route, ',');)
    if (std::find(measure.routes.begin(), measure.routes.end(), route) == measure.routes.end())
      measure.routes.push_back(route);
  measure.with_control = !values["no-control"].as<bool>();
  SPECD_TRY(measure.concurrencies,
            list_of<int>("--concurrency", values["concurrency"].as<std::string>(), 1,
                         EngineLimits::kSequences));
  SPECD_TRY(measure.temperatures,
            list_of<float>("--temperature", values["temperature"].as<std::string>(), 0, 100));
  measure.top_p = values["top-p"].as<float>();
  measure.top_k = values["top-k"].as<int32_t>();
  measure.seed = values["seed"].as<uint64_t>();
  measure.max_tokens = values["max-tokens"].as<int32_t>();
  if (measure.max_tokens < 1)
    return wrong("--max-tokens: expected at least 1, found " + std::to_string(measure.max_tokens));
  measure.ignore_eos = values["ignore-eos"].as<bool>() || values.count("synthetic") != 0;
  measure.repeat = values["repeat"].as<int>();
  if (measure.repeat < 1 || measure.repeat > 1000)
    return wrong("--repeat: expected 1 to 1000, found " + std::to_string(measure.repeat));

  if (values.count("synthetic") != 0) {
    plan.synthetic = SyntheticOptions{.count = values["synthetic"].as<int32_t>(),
                                      .input_mean = values["input-mean"].as<double>(),
                                      .input_stdev = values["input-stdev"].as<double>(),
                                      .output_mean = values["output-mean"].as<double>(),
                                      .output_stdev = values["output-stdev"].as<double>(),
                                      .seed = measure.seed};
    if (plan.synthetic->count < 1 || plan.synthetic->count > 100'000)
      return wrong("--synthetic: expected 1 to 100000 prompts, found " +
                   std::to_string(plan.synthetic->count));
    for (const char* option : {"input-mean", "input-stdev", "output-mean", "output-stdev"}) {
      const double value = values[option].as<double>();
      if (!(value >= 0 && value <= 1e6))
        return wrong(std::string("--") + option + ": expected 0 to 1000000 tokens, found " +
                     fixed(value, 1));
    }
  }
  if (values.count("synthetic-acceptance") != 0) {
    plan.acceptance = values["synthetic-acceptance"].as<double>();
    if (!(plan.acceptance >= 0 && plan.acceptance <= 1))
      return wrong("--synthetic-acceptance: expected 0 to 1, found " + fixed(plan.acceptance, 3));
    SPECD_TRY(plan.replay_tokens,
              list_of<int>("--draft-tokens", values["draft-tokens"].as<std::string>(), 1, 64));
  }
  if (values.count("verify-cost") != 0) {
    SPECD_TRY(plan.verify_rows,
              list_of<int>("--verify-cost", values["verify-cost"].as<std::string>(), 2, 256));
  }
  return plan;
}

// Reads the prompts, or draws them, for which the vocabulary must be known.
Result<std::vector<Prompt>> make_prompts(const po::variables_map& values, const RunPlan& plan,
                                         const ModelReport& model) {
  if (plan.synthetic.has_value())
    return synthetic_prompts(*plan.synthetic, model.vocab_size, model.max_positions);
  SPECD_TRY(std::vector<Prompt> prompts,
            read_prompts(values["prompts"].as<std::vector<std::string>>(),
                         values["without-first-line"].as<bool>()));
  const size_t limit = values["limit"].as<size_t>();
  if (limit > 0 && prompts.size() > limit) prompts.resize(limit);
  return prompts;
}

// An engine in this process, and the recording that its replay routes read.
struct Offline {
  PluginsEnd plugins_end;  // outlives the engine
  std::unique_ptr<TemporaryFolder> folder;
  std::unique_ptr<Engine> engine;
};

Status add_replay_routes(const po::variables_map& values, const RunPlan& plan, Config& config,
                         Offline& offline, RunFacts& facts, std::vector<std::string>& routes) {
  {
    Config plain = config;
    plain.engine.routes.clear();
    plain.engine.default_route = "off";
    SPECD_TRY(const std::unique_ptr<Engine> engine, start_engine(plain));
    SPECD_TRY(const std::vector<Prompt> prompts, make_prompts(values, plan, engine->model()));
    EngineBackend backend(*engine);
    SPECD_TRY(const std::string text, record(backend, prompts, plan.measure, bench_stop));
    SPECD_TRY(offline.folder, TemporaryFolder::create());
    std::ofstream file(offline.folder->path() + "/replay.json", std::ios::binary);
    file << text;
    file.close();
    if (!file)
      return Status(Code::kFailedPrecondition,
                    "cannot write " + offline.folder->path() + "/replay.json");
  }
  for (const int k : plan.replay_tokens) {
    RouteOptions route;
    route.name =
        "replay-" + std::to_string(std::lround(plan.acceptance * 100)) + "-k" + std::to_string(k);
    route.model = config.engine.model.name;
    route.drafter = {.plugin = kReplay,
                     .factory = {},
                     .config = {{"file", offline.folder->path() + "/replay.json"},
                                {"acceptance", plan.acceptance},
                                {"draft_tokens", k}}};
    route.verifier = {.plugin = kMatch, .factory = {}, .config = Json::object()};
    route.draft_nodes_max = k;
    facts.draft_tokens[route.name] = k;
    routes.push_back(route.name);
    config.engine.routes.push_back(std::move(route));
  }
  return Status();
}

Status check_routes(const Config& config, const Engine& engine,
                    const std::vector<std::string>& wanted) {
  for (const std::string& name : wanted) {
    std::string known;
    bool live = false;
    for (const RouteReport& route : engine.routes()) {
      known += (known.empty() ? "" : ", ") + route.name();
      if (route.name() != name) continue;
      if (route.state != RouteState::kLive)
        return wrong("--routes: '" + name + "' cannot be served: " +
                     with_place(config, route.refused.in_field("routes." + name)).text());
      live = true;
    }
    if (!live)
      return wrong("--routes: expected routes of " + config.file + " (" + known + "), found '" +
                   name + "'");
  }
  return Status();
}

struct Outcome {
  RunFacts facts;
  Measurement measurement;
};

Result<Outcome> measure_offline(const po::variables_map& values, RunPlan& plan) {
  Outcome out;
  SPECD_TRY(Config config, read_engine_config(values));
  EngineOptions& engine = config.engine;
  engine.default_route = "off";  // requests name their route; a default route cannot be renewed
  const int most =
      *std::max_element(plan.measure.concurrencies.begin(), plan.measure.concurrencies.end());
  engine.max_sequences = std::max(engine.max_sequences, most);
  engine.step_tokens_max = std::max(engine.step_tokens_max, engine.max_sequences);
  Offline offline;
  if (!plan.replay_tokens.empty())
    SPECD_OK_OR_RETURN(
        add_replay_routes(values, plan, config, offline, out.facts, plan.measure.routes));
  SPECD_TRY(offline.engine, start_engine(config));
  SPECD_OK_OR_RETURN(check_routes(config, *offline.engine, plan.measure.routes));
  for (const RouteReport& route : offline.engine->routes())
    if (route.state == RouteState::kLive)
      out.facts.drafters[route.name()] = {route.options.drafter, route.draft_nodes_max};
  const ModelReport model = offline.engine->model();
  const EngineReport status = offline.engine->status();
  SPECD_TRY(const std::vector<Prompt> prompts, make_prompts(values, plan, model));
  out.facts.model = model.path + ", " + model.architecture;
  out.facts.weight_bytes = model.weight_bytes;
  out.facts.version = kVersion;
  out.facts.program_sha256 = program_sha256();
  out.facts.device = status.device;
  out.facts.processor = processor_name();
  out.facts.threads = status.threads;
  out.facts.isa = status.isa;
  out.facts.prompts = prompts.size();
  std::unique_ptr<VerifyCost> cost;
  if (!plan.verify_rows.empty()) {
    SPECD_TRY(cost, VerifyCost::create(engine, status.device, plan.verify_rows));
  }
  EngineBackend backend(*offline.engine);
  out.measurement = measure(backend, prompts, plan.measure, bench_stop, [&] {
    if (cost != nullptr) cost->measure();
  });
  if (cost != nullptr) out.facts.verify_cost = cost->result();
  return out;
}

Result<Outcome> measure_server(const po::variables_map& values, const RunPlan& plan) {
  Outcome out;
  SPECD_TRY(Client client, Client::connect(values["socket"].as<std::string>()));
  ServerBackend backend(client);
  SPECD_TRY(const ModelReport model, backend.model());
  SPECD_TRY(const v1::GetStatusResponse status, client.status());
  SPECD_TRY(const std::vector<Prompt> prompts, make_prompts(values, plan, model));
  out.facts.model = model.path + ", " + model.architecture;
  out.facts.weight_bytes = model.weight_bytes;
  out.facts.version = status.version();
  out.facts.device = status.device();
  out.facts.threads = status.threads();
  out.facts.isa = status.isa();
  out.facts.prompts = prompts.size();
  out.measurement = measure(backend, prompts, plan.measure, bench_stop, {});
  return out;
}

// Tables, findings and JSON; the exit code.
int tell(const Outcome& outcome, const RunPlan& plan, const std::string& command,
         std::ofstream& json, const std::string& json_path) {
  RunFacts facts = outcome.facts;
  facts.command = command;
  facts.repeat = plan.measure.repeat;
  facts.top_p = plan.measure.top_p;
  facts.top_k = plan.measure.top_k;
  facts.fresh_drafters = outcome.measurement.fresh_drafters;
  const std::vector<Row> rows = summarize(outcome.measurement, false);
  int64_t loops = 0;
  bool identical = true;
  for (const Row& row : rows) {
    loops += row.loops;
    identical = identical && (row.identical || !row.promises_text);
  }
  const std::vector<Row> kept = loops > 0 ? summarize(outcome.measurement, true) : rows;
  std::string text = facts.model + ", " + bytes_text(facts.weight_bytes) + " of weights, " +
                     std::to_string(facts.threads) + " threads (" + facts.isa + "), " +
                     std::to_string(facts.prompts) + " prompts, " + std::to_string(facts.repeat) +
                     " rounds\n" + rows_table(rows);
  if (loops > 0)
    text +=
        "\nwithout prompts whose text of `off` ends in a loop (last 64 tokens, period <= 16):\n" +
        rows_table(kept);
  text += "\n" + findings(facts, rows);
  write_output(printable(text));
  if (!json_path.empty()) {
    Json object = facts_json(facts);
    object["rows"] = rows_json(rows);
    object["rows_without_loops"] = rows_json(kept);
    object["complete"] = outcome.measurement.status.ok();
    // The command may hold bytes that are no text.
    json << object.dump(2, ' ', false, Json::error_handler_t::replace) << "\n";
    json.close();
    if (!json) return bench_fail(Status(Code::kFailedPrecondition, "cannot write " + json_path));
  }
  if (!outcome.measurement.status.ok()) return bench_fail(outcome.measurement.status);
  return identical ? kBenchOk : kBenchFailed;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
  const po::options_description options = run_options();
  const auto parsed = read_command_line(options, {}, arguments);
  if (!parsed.ok()) return bench_usage("run", parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    print_options(options);
    return kBenchOk;
  }
  auto plan = read_plan(values);
  if (!plan.ok()) return bench_usage("run", plan.status().message());
  std::ofstream json;
  const std::string json_path = values.count("json") != 0 ? values["json"].as<std::string>() : "";
  if (!json_path.empty()) {
    json.open(json_path, std::ios::binary | std::ios::trunc);
    if (!json) return bench_fail(Status(Code::kFailedPrecondition, "cannot write " + json_path));
  }
  const auto outcome = values.count("config") != 0 ? measure_offline(values, plan.value())
                                                   : measure_server(values, plan.value());
  if (!outcome.ok()) return bench_fail(outcome.status());
  return tell(outcome.value(), plan.value(), command_text(arguments), json, json_path);
}

}  // namespace specd::host
