// The shipped engine on a CUDA device: texts of the small models against plain decoding on the
// device and against the CPU, forwards of random 1B and 8B shapes, and drafters on a heavy target.
//
//   engine_check --device cuda:0 --zoo DIR --plugins DIR --work DIR [--json FILE] [--shapes 1b,8b]
//                [--ballast-bytes N] [--fast 0] [--texts 0]
//
// Exits with 1 when a text differs on one device. Figures are printed next to their goals without
// affecting the exit status. Environment: SPECD_CUDA_LIBRARY.
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/device/cuda_device.h"
#include "core/device/staging.h"
#include "core/engine.h"
#include "core/kv/block_table.h"
#include "core/model/transformer.h"
#include "host/bench/ballast.h"
#include "tests/core/model/choice_gap.h"

namespace specd {
namespace {

struct Options {
  std::string device = "cuda:0", zoo, plugins, work, json, shapes = "1b,8b";
  uint64_t ballast_bytes = uint64_t{8} << 30;
  bool fast = true, texts = true;
};

Json g_results = Json::object();
int g_failures = 0;

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "engine_check: %s\n", what.c_str());
  std::exit(1);
}
template <typename T>
T need(Result<T> result, const char* what) {
  if (!result.ok()) die(std::string(what) + ": " + result.status().to_string());
  return std::move(result).value();
}
void need(const Status& status, const char* what) {
  if (!status.ok()) die(std::string(what) + ": " + status.to_string());
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}
void figure(const std::string& name, double value, const std::string& unit,
            const std::string& goal = "") {
  std::printf("  %-44s %12.4g %-8s %s\n", name.c_str(), value, unit.c_str(), goal.c_str());
  g_results[name] = value;
}

// ---- texts -----------------------------------------------------------------------------------

const std::vector<std::string>& prompts() {
  static const std::vector<std::string> all = {
      "def fibonacci(n):\n    if n < 2:\n        return n\n",
      "import os\nimport sys\n\n\nclass Reader:\n    def __init__(self, path):\n",
      "for i in range(10):\n    print(i)\n",
      "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
      "class Stack(object):\n    def push(self, item):\n        self.items.append(item)\n",
      "x = [1, 2, 3]\ny = {\"a\": 1, \"b\": 2}\nassert len(x) == 3\n"};
  return all;
}

RouteOptions route(const std::string& name, const std::string& drafter, Json config, int32_t k) {
  return {.name = name,
          .model = {},
          .drafter = {.plugin = drafter, .factory = {}, .config = std::move(config)},
          .verifier = {.plugin = "specd.verifier.match", .factory = {}, .config = Json::object()},
          .guarantee = Guarantee::kIdentical,
          .draft_nodes_max = k};
}

EngineOptions engine_options(const Options& options, const std::string& device,
                             const std::string& model) {
  EngineOptions o;
  o.devices = {device};
  o.model.name = "target";
  o.model.path = model;
  o.plugin_directories = {options.plugins};
  o.plugin_cache_directory = options.work + "/cache";
  return o;
}

constexpr uint64_t kSeed = 7;

// Generates for all prompts at once and returns their tokens.
std::vector<std::vector<int32_t>> texts(Engine& engine, const std::string& route_name,
                                        int32_t max_tokens, float temperature,
                                        size_t n_prompts = 6) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<int32_t>> tokens(n_prompts);
  size_t done = 0;
  for (size_t i = 0; i < n_prompts; ++i) {
    Request request;
    request.prompt = prompts()[i];
    request.route = route_name;
    request.max_tokens = max_tokens;
    request.sampling.temperature = temperature;
    request.sampling.seed = kSeed;
    request.ignore_eos = true;
    request.cache_salt = route_name + std::to_string(now_ns());
    const auto ticket = engine.submit(request, [&, i](const Event& event) {
      const std::lock_guard lock(mutex);
      tokens[i].insert(tokens[i].end(), event.tokens.begin(), event.tokens.end());
      if (!event.done) return;
      if (event.finish == FinishReason::kError) {
        std::printf("  FAILED: %s\n", event.error.to_string().c_str());
        ++g_failures;
      }
      ++done;
      changed.notify_all();
    });
    if (!ticket.ok()) die(ticket.status().to_string());
  }
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done == n_prompts; });
  return tokens;
}

std::string record(Engine& engine, const std::string& path,
                   const std::vector<std::vector<int32_t>>& outputs) {
  Json sequences = Json::array();
  for (size_t i = 0; i < outputs.size(); ++i) {
    sequences.push_back(
        {{"prompt", need(engine.encode(prompts()[i]), "encode")}, {"output", outputs[i]}});
  }
  std::ofstream(path) << Json{{"sequences", sequences}}.dump();
  return path;
}

void check_texts(const Options& options) {
  std::printf("\ntexts of %s/pico-target\n", options.zoo.c_str());
  const std::string target = options.zoo + "/pico-target";
  const auto cpu = need(Engine::create(engine_options(options, "cpu", target), {}), "cpu engine");
  EngineOptions o = engine_options(options, options.device, target);
  o.draft_models = {{.name = "draft", .path = options.zoo + "/pico-draft"}};
  o.routes = {
      route("lookup", "specd.drafter.prompt_lookup", Json::object(), 8),
      route("draft", "specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 4}}, 4),
      route("careful", "specd.drafter.draft_target",
            {{"model", "draft"}, {"draft_tokens", 6}, {"p_min", 0.4}}, 6)};
  const auto device = need(Engine::create(o, {}), "device engine");
  std::printf("  %s\n", device->status().device.c_str());
  constexpr int32_t kTokens = 128;
  for (const float temperature : {0.0f, 0.8f}) {
    const auto plain = texts(*device, "off", kTokens, temperature);
    for (const std::string name : {"off", "lookup", "draft", "careful"}) {
      const auto found = texts(*device, name, kTokens, temperature);
      const bool same = found == plain;
      std::printf("  %-8s at %.1f: %s\n", name.c_str(), static_cast<double>(temperature),
                  same ? "identical to plain decoding" : "DIFFERS from plain decoding");
      g_failures += same ? 0 : 1;
    }
    // Bits differ, so other tokens are not a failure: report how close the choice was.
    const auto reference = texts(*cpu, "off", kTokens, temperature);
    for (size_t i = 0; i < plain.size(); ++i) {
      const auto [ours, theirs] =
          std::mismatch(plain[i].begin(), plain[i].end(), reference[i].begin());
      if (ours == plain[i].end()) continue;
      std::vector<int32_t> text = need(cpu->encode(prompts()[i]), "encode");
      text.insert(text.end(), plain[i].begin(), ours);
      const float gap = need(
          choice_gap(target, kernels::KvDType::kBF16, text, temperature, kSeed, *theirs, *ours),
          "the CPU's choice");
      std::printf("  prompt %zu at %.1f: token %td is %d, the CPU's %d; gap there %.3g\n", i,
                  static_cast<double>(temperature), ours - plain[i].begin(), *ours, *theirs,
                  static_cast<double>(gap));
    }
  }
  for (const RouteReport& each : device->routes()) {
    if (each.counts.drafted == 0) continue;
    figure("zoo " + each.name() + " acceptance",
           static_cast<double>(each.counts.accepted) / static_cast<double>(each.counts.drafted),
           "");
    if (each.counts.cut > 0) {
      std::printf("  FAILED: %s\n", each.last_problem.c_str());
      ++g_failures;
    }
  }
}

// ---- shapes ----------------------------------------------------------------------------------

ModelConfig shape(const std::string& name) {
  const bool large = name == "8b";
  return read_model_config({{"architectures", {"LlamaForCausalLM"}},
                            {"hidden_size", large ? 4096 : 2048},
                            {"intermediate_size", large ? 14336 : 8192},
                            {"num_hidden_layers", large ? 32 : 16},
                            {"num_attention_heads", 32},
                            {"num_key_value_heads", 8},
                            {"vocab_size", 128256},
                            {"max_position_embeddings", 8192},
                            {"rms_norm_eps", 1e-5},
                            {"rope_theta", 500000}},
                           name)
      .value();
}

// Median milliseconds of a forward of n rows of one sequence after `context` tokens, as a graph.
class Forwards {
 public:
  Forwards(const Options& options, const std::string& name, bool fast)
      : config_(shape(name)),
        device_(need(
            open_cuda_device(cuda_index(options.device), {.rows_max = kRowsMax,
                                                          .width_max = config_.intermediate_size,
                                                          .positions_max = config_.max_positions,
                                                          .fast = fast}),
            "device")),
        model_(need(Transformer::random(*device_, config_, kRowsMax, kRowsMax, 1), "weights")),
        kv_(need(KvStore::create(*device_, config_, kernels::KvDType::kBF16, kPages), "KV cache")),
        staging_(need(Staging::create(*device_, uint64_t{1} << 20, "columns"), "columns")) {}

  uint64_t weight_bytes() const {
    uint64_t bytes = 0;
    for (const Weights::Piece& each : model_->weights().streamed) bytes += each.bytes;
    return bytes;
  }
  double ms(int32_t n, bool graph = true) {
    constexpr int32_t kContext = 1024;
    constexpr int kTimes = 10, kRounds = 7;
    ForwardRows rows;
    for (int32_t page = 0; page < kPages; ++page) rows.pages.push_back(page);
    for (int32_t i = 0; i < n; ++i) {
      rows.token.push_back(100 + i);
      rows.position.push_back(kContext + i);
      rows.slot.push_back(kContext + i);
      rows.span.push_back(kContext + i + 1);
      rows.table.push_back(0);
      rows.tail_begin.push_back(0);
      rows.logits_rows.push_back(i);
    }
    staging_.clear();
    const ForwardColumns columns = rows.stage(staging_);
    const auto submit = [&] {
      staging_.upload_all();
      model_->forward(columns, kv_);
    };
    submit();
    need(device_->synchronize(), "forward");
    int32_t id = -1;
    if (graph) {
      need(device_->begin_capture(), "capture");
      submit();
      id = need(device_->end_capture(), "capture");
    }
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      const uint64_t start = now_ns();
      for (int i = 0; i < kTimes; ++i) graph ? device_->launch(id) : submit();
      need(device_->synchronize(), "forward");
      times.push_back(static_cast<double>(now_ns() - start) / 1e6 / kTimes);
    }
    if (graph) device_->release_graph(id);
    return median(times);
  }

 private:
  static constexpr int32_t kRowsMax = 512, kPages = 112;
  ModelConfig config_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  KvStore kv_;
  Staging staging_;
};

void measure_shape(const Options& options, const std::string& name) {
  std::printf("\nforwards of a random %s shape, bfloat16, context 1024\n", name.c_str());
  std::map<int32_t, double> strict;
  {
    Forwards forwards(options, name, false);
    for (const int32_t n : {1, 2, 4, 8, 16, 32, 512}) strict[n] = forwards.ms(n);
    const double bytes = static_cast<double>(forwards.weight_bytes());
    figure(name + " decode", strict[1], "ms");
    figure(name + " decode reads", bytes / strict[1] / 1e6, "GB/s",
           "goal: 0.85 of what ceilings reads");
    figure(name + " decode, piece by piece", forwards.ms(1, false), "ms");
    for (const int32_t n : {2, 4, 8, 16, 32}) {
      figure(name + " V(" + std::to_string(n) + ")", strict[n] / strict[1], "",
             n == 8 && name == "8b" ? "goal: at most 1.05" : "");
    }
    figure(name + " 512 rows", strict[512], "ms");
  }
  if (!options.fast) return;
  Forwards forwards(options, name, true);
  for (const int32_t n : {1, 8, 512}) {
    figure(name + " strict by fast, " + std::to_string(n) + " rows", strict[n] / forwards.ms(n), "",
           "goal: at most 1.05");
  }
}

// ---- drafters --------------------------------------------------------------------------------

void measure_drafters(const Options& options) {
  const std::string heavy = options.work + "/heavy";
  std::printf("\ndrafters on a ballast target of %.1f GB\n",
              static_cast<double>(options.ballast_bytes) / 1e9);
  (void)need(
      host::write_ballast(
          {.model = options.zoo + "/pico-target", .out = heavy, .bytes = options.ballast_bytes}),
      "ballast");
  constexpr int32_t kTokens = 256;
  std::string file;
  {
    const auto engine =
        need(Engine::create(engine_options(options, options.device, heavy), {}), "engine");
    file = record(*engine, options.work + "/record.json", texts(*engine, "off", kTokens, 0));
  }
  EngineOptions o = engine_options(options, options.device, heavy);
  o.draft_models = {{.name = "draft", .path = options.zoo + "/pico-draft"}};
  o.routes = {
      route("replay7", "specd.drafter.replay", {{"file", file}, {"draft_tokens", 7}}, 7),
      route("draft4", "specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", 4}}, 4)};
  const auto engine = need(Engine::create(o, {}), "engine");
  const auto forward_ns = [&] {
    for (const MetricFamily& family : engine->metrics()) {
      if (family.name == "specd_step_forward_seconds_total") return family.series[0].value * 1e9;
    }
    die("no metric of forwards");
  };
  std::map<std::string, std::vector<double>> seconds, idle_us;
  std::map<std::string, uint64_t> steps;
  for (int round = 0; round < 6; ++round) {
    for (const std::string name : {"off", "replay7", "draft4"}) {
      const uint64_t steps_before = engine->status().steps, start = now_ns();
      const double forward_before = forward_ns();
      texts(*engine, name, kTokens, 0, 1);
      if (round == 0) continue;  // the first round captures the graphs
      const double wall = static_cast<double>(now_ns() - start);
      const auto n = static_cast<double>(engine->status().steps - steps_before);
      seconds[name].push_back(wall / 1e9);
      idle_us[name].push_back((wall - (forward_ns() - forward_before)) / n / 1e3);
    }
  }
  const double plain = median(seconds["off"]);
  figure("ballast off", kTokens / plain, "tokens/s");
  figure("ballast off, host time between forwards", median(idle_us["off"]), "us",
         "goal: at most 20");
  figure("ballast replay K = 7, S", plain / median(seconds["replay7"]), "");
  figure("ballast replay K = 7, eta", plain / median(seconds["replay7"]) / 8, "",
         "goal: at least 0.90");
  figure("ballast draft_target K = 4, S", plain / median(seconds["draft4"]), "");
  figure("ballast draft_target, host time between", median(idle_us["draft4"]), "us",
         "goal: at most 20");
}

int run(const Options& options) {
  if (options.texts) check_texts(options);
  if (options.shapes.find("1b") != std::string::npos) measure_shape(options, "1b");
  if (options.shapes.find("8b") != std::string::npos) measure_shape(options, "8b");
  if (options.ballast_bytes > 0) measure_drafters(options);
  shut_down_plugins();
  if (!options.json.empty()) std::ofstream(options.json) << g_results.dump(1) << "\n";
  std::printf("\nengine_check: %s\n", g_failures == 0 ? "texts hold" : "FAILED");
  return g_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace specd

int main(int argc, char** argv) {
  specd::Options options;
  const std::map<std::string, std::string*> words = {
      {"--device", &options.device}, {"--zoo", &options.zoo},   {"--plugins", &options.plugins},
      {"--work", &options.work},     {"--json", &options.json}, {"--shapes", &options.shapes}};
  for (int i = 1; i + 1 < argc; i += 2) {
    const auto found = words.find(argv[i]);
    if (found != words.end()) {
      *found->second = argv[i + 1];
    } else if (std::string(argv[i]) == "--fast") {
      options.fast = std::string(argv[i + 1]) != "0";
    } else if (std::string(argv[i]) == "--texts") {
      options.texts = std::string(argv[i + 1]) != "0";
    } else if (std::string(argv[i]) == "--ballast-bytes") {
      options.ballast_bytes = std::strtoull(argv[i + 1], nullptr, 10);
    } else {
      specd::die(std::string("unknown option ") + argv[i]);
    }
  }
  if (options.zoo.empty() || options.plugins.empty() || options.work.empty()) {
    specd::die("--zoo, --plugins and --work are needed");
  }
  return specd::run(options);
}
