// What the border costs: validation of a whole batch, and one propose() of a loaded bundle.
//   bench_border [--benchmark_min_time=0.5]
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/base/log.h"
#include "core/services/directory.h"
#include "core/plugin/beside/drafter_thread.h"
#include "core/plugin/bundle/registry.h"
#include "core/plugin/instance/sanitizer.h"
#include "core/plugin/instance/tensor.h"
#include "core/plugin/process/process_drafter.h"

namespace specd {
namespace {

constexpr int32_t kVocab = 32000;

// 64 sequences x 64 nodes; chains, or random trees.
void check_tree_64x64(benchmark::State& state, bool chain) {
  constexpr size_t kSequences = 64, kNodes = 64;
  std::mt19937 random(1);
  std::vector<int32_t> token(kSequences * kNodes), parent(kSequences * kNodes), depth(kNodes);
  std::vector<int32_t> flags(kSequences * kNodes, 0);
  for (size_t i = 0; i < token.size(); ++i) {
    const auto node = static_cast<int32_t>(i % kNodes);
    token[i] = static_cast<int32_t>(random() % kVocab);
    parent[i] = chain ? node - 1 : static_cast<int32_t>(random() % (i % kNodes + 1)) - 1;
  }
  const TreeLimits limits{kVocab, kNodes, 64, state.range(0) != 0};
  for (auto _ : state) {
    for (size_t s = 0; s < kSequences; ++s) {
      const TreeCheck check = check_tree(kNodes, &token[s * kNodes], &parent[s * kNodes],
                                         &flags[s * kNodes], limits, depth.data());
      if (check.n_nodes != kNodes) state.SkipWithError("a good tree was cut");
      benchmark::DoNotOptimize(depth.data());
      benchmark::ClobberMemory();
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(kSequences * kNodes));
}
BENCHMARK_CAPTURE(check_tree_64x64, chain, true)->Arg(0)->Arg(1)->ArgName("probes");
BENCHMARK_CAPTURE(check_tree_64x64, tree, false)->Arg(0)->Arg(1)->ArgName("probes");

void check_verdict_8_of_64(benchmark::State& state) {
  std::vector<int32_t> parent(64), path(8);
  for (int32_t i = 0; i < 64; ++i) parent[static_cast<size_t>(i)] = i - 1;
  for (int32_t i = 0; i < 8; ++i) path[static_cast<size_t>(i)] = i;
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        check_verdict(8, path.data(), 8, 5, 64, parent.data(), nullptr, kVocab));
  }
}
BENCHMARK(check_verdict_8_of_64);

// Where the calls run.
enum class Where { kStep, kThread, kProcess };

// The bundle of prompt_lookup as it ships, loaded once.
struct Loaded {
  std::unique_ptr<CpuDevice> cpu = CpuDevice::create("scalar", 1).value();
  Services services{*cpu, *cpu, kVocab};
  std::string cache;
  std::unique_ptr<PluginRegistry> registry;
  std::unique_ptr<Drafter> drafter;
  std::string error;

  explicit Loaded(Where where) {
    char pattern[] = "/tmp/specd-bench-XXXXXX";
    cache = mkdtemp(pattern);
    auto opened = PluginRegistry::open({{SPECD_BENCH_PLUGINS}, cache}, make_host(&services));
    if (!opened.ok()) {
      error = opened.status().text();
      return;
    }
    registry = std::move(opened).value();
    specd_target_info target{};
    target.struct_size = sizeof(target);
    target.vocab_size = kVocab;
    target.n_layers = 1;
    target.max_positions = 4096;
    static const uint8_t tokenizer[32] = {};
    target.tokenizer_sha256 = tokenizer;
    target.model_id = target.architecture = "bench";
    const std::string id = "specd.drafter.prompt_lookup";
    const auto in_process = [&]() -> Result<std::unique_ptr<Drafter>> {
      ProcessKeeper::Terms terms{.program = SPECD_BENCH_RUNNER,
                                 .order = {.registry = {{SPECD_BENCH_PLUGINS}, cache},
                                           .isa = "scalar",
                                           .plugin = id,
                                           .instance_name = "bench"},
                                 .limit = std::chrono::seconds(10)};
      terms.order.set_target(target);
      SPECD_TRY(std::unique_ptr<ProcessDrafter> one,
                ProcessDrafter::make(std::move(terms), registry->host()));
      return std::unique_ptr<Drafter>(std::move(one));
    };
    auto made = where == Where::kProcess
                    ? in_process()
                    : registry->make_drafter(id, "", Json::object(), target, "bench");
    if (!made.ok()) {
      error = made.status().text();
      return;
    }
    drafter = std::move(made).value();
    specd_drafter_grant grant{};
    grant.struct_size = sizeof(grant);
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = drafter->caps().max_nodes;
    grant.max_depth = drafter->caps().max_depth;
    grant.max_batch = 8;
    grant.max_rows = grant.max_depth + 1;
    grant.needs = drafter->caps().needs;
    grant.memory_bytes_max = uint64_t{1} << 30;
    const Status status = drafter->activate(grant);
    if (!status.ok()) error = status.text();
  }
  ~Loaded() {
    drafter.reset();
    std::error_code ignored;
    std::filesystem::remove_all(cache, ignored);
  }
};

// Prompts of 256 tokens with a period of 32, so that every call finds something. In the step, or on a thread of
// the drafter, here or in its process: then with the way there and back.
void propose_prompt_lookup(benchmark::State& state, Where where) {
  // Each is made when it is measured, since a process must serve soon after it was started.
  static std::array<std::unique_ptr<Loaded>, 3> made;
  std::unique_ptr<Loaded>& here = made.at(static_cast<size_t>(where));
  if (here == nullptr) here = std::make_unique<Loaded>(where);
  Loaded& loaded = *here;
  if (!loaded.error.empty()) {
    state.SkipWithError(loaded.error.c_str());
    return;
  }
  const auto n = static_cast<uint32_t>(state.range(0));
  const size_t count = n;
  constexpr size_t kPrompt = 256;
  const specd_drafter_grant& grant = loaded.drafter->grant();
  const size_t nodes = grant.max_nodes;
  std::vector<int32_t> prompt(count * kPrompt), root(count), position(count), budget(count),
      found(count), slot_values(count), token(count * nodes), parent(count * nodes);
  std::vector<uint64_t> ids(count), offsets(count + 1);
  std::vector<void*> seq_state(count);
  std::vector<specd_status> status(count);
  std::vector<uint32_t> slot(count);
  specd_sampling greedy{};
  greedy.struct_size = sizeof(greedy);
  greedy.flags = SPECD_SAMPLE_GREEDY;
  greedy.top_p = 1;
  greedy.typical_p = 1;
  greedy.tokens_left = 1000;
  const std::vector<const specd_sampling*> sampling(count, &greedy);
  static uint64_t next_id = 1;
  for (size_t s = 0; s < count; ++s) {
    for (size_t i = 0; i < kPrompt; ++i) {
      prompt[s * kPrompt + i] = static_cast<int32_t>((s * 1000 + i % 32 * 7) % kVocab);
    }
    root[s] = prompt[s * kPrompt + kPrompt - 1];
    position[s] = kPrompt - 1;
    budget[s] = grant.max_nodes;
    ids[s] = next_id++;
    slot[s] = static_cast<uint32_t>(s);
    slot_values[s] = static_cast<int32_t>(s);
    offsets[s + 1] = offsets[s] + kPrompt;
  }
  for (size_t i = 0; i < parent.size(); ++i) parent[i] = static_cast<int32_t>(i % nodes) - 1;
  const int64_t rows = n, columns = static_cast<int64_t>(nodes);
  const specd_tensor slots = host_i32(slot_values.data(), {rows});
  const specd_tensor roots = host_i32(root.data(), {rows});
  const specd_tensor positions = host_i32(position.data(), {rows});
  const specd_tensor budgets = host_i32(budget.data(), {rows});
  const specd_tensor counts = host_i32(found.data(), {rows});
  const specd_tensor tokens = host_i32(token.data(), {rows, columns});
  const specd_tensor parents = host_i32(parent.data(), {rows, columns});
  specd_call call;
  specd_batch batch{};
  batch.struct_size = sizeof(batch);
  batch.n_seqs = n;
  batch.call = &call;
  batch.seq_id = ids.data();
  batch.seq_state = seq_state.data();
  batch.seq_status = status.data();
  batch.slot = slot.data();
  batch.slots = &slots;
  call.batch = &batch;
  call.sampling = sampling.data();

  specd_begin_args begin{};
  begin.struct_size = sizeof(begin);
  begin.attach_mode = SPECD_ATTACH_FRESH;
  begin.batch = &batch;
  begin.token_offsets = offsets.data();
  begin.tokens = prompt.data();
  begin.sampling = sampling.data();
  begin.seq_state = seq_state.data();
  const std::vector<uint64_t> tenants(n, 0);
  begin.tenant = tenants.data();
  std::unique_ptr<DrafterBeside> beside;
  constexpr uint64_t kSecondNs = 1'000'000'000;
  const BesideTerms terms{.vocab_size = kVocab,
                          .hidden_size = 1,
                          .max_positions = 4096,
                          .limits = {.wait_ns = kSecondNs, .hang_ns = kSecondNs},
                          .on_called = [](CallKind, const Status&, uint64_t) {}};
  if (where == Where::kThread) {
    beside = DrafterThread::start(*loaded.drafter, terms, CpuDevice::create("scalar", 1).value(),
                                  nullptr)
                 .value();
  } else if (where == Where::kProcess) {
    beside = static_cast<ProcessDrafter&>(*loaded.drafter).serve(terms, nullptr, {}).value();
  }
  DrafterCalls& calls = beside != nullptr ? beside->calls() : *loaded.drafter;
  (void)calls.take_answers();
  if (const Status began = calls.begin(begin, call); !began.ok()) {
    state.SkipWithError(began.text().c_str());
    return;
  }
  specd_proposal out{};
  out.struct_size = sizeof(out);
  out.node_capacity = grant.max_nodes;
  out.n_nodes = &counts;
  out.token = &tokens;
  out.parent = &parents;
  specd_propose_args args{};
  args.struct_size = sizeof(args);
  args.batch = &batch;
  args.root_token = &roots;
  args.root_position = &positions;
  args.node_budget = &budgets;
  args.host_root_token = root.data();
  args.host_root_position = position.data();
  args.host_node_budget = budget.data();
  args.sampling = sampling.data();
  args.out = &out;
  for (auto _ : state) {
    if (state.range(1) > 0) {  // as long as a step takes
      state.PauseTiming();
      std::this_thread::sleep_for(std::chrono::microseconds(state.range(1)));
      state.ResumeTiming();
    }
    if (!calls.propose(args, call).ok()) state.SkipWithError(call.text.c_str());
    benchmark::DoNotOptimize(token.data());
  }
  int64_t proposed = 0;
  for (const int32_t one : found) proposed += one;
  state.counters["nodes"] = static_cast<double>(proposed);
  specd_end_args end{};
  end.struct_size = sizeof(end);
  end.reason = SPECD_END_FINISHED;
  end.batch = &batch;
  calls.end(end, call);
}
BENCHMARK_CAPTURE(propose_prompt_lookup, in_step, Where::kStep)
    ->ArgsProduct({{1, 8}, {0}})
    ->ArgNames({"sequences", "pause_us"});
BENCHMARK_CAPTURE(propose_prompt_lookup, guarded, Where::kThread)
    ->ArgsProduct({{1, 8}, {0, 2000}})
    ->ArgNames({"sequences", "pause_us"})
    ->Iterations(2000)
    ->UseRealTime();
BENCHMARK_CAPTURE(propose_prompt_lookup, process, Where::kProcess)
    ->ArgsProduct({{1, 8}, {0, 2000}})
    ->ArgNames({"sequences", "pause_us"})
    ->Iterations(2000)
    ->UseRealTime();

}  // namespace
}  // namespace specd

int main(int argc, char** argv) {
  specd::set_log_level(specd::LogLevel::kError);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
