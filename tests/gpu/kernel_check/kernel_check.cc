// Every op of the CUDA backend on a real device: fresh random inputs, outputs poisoned with NaN.
//
//   kernel_check LIBRARY [--seed N] [--json FILE] [--only GROUP] [--rates 0] [--fast 1] [--small 1]
//     fast: also the ops of `numerics: fast`. small: fewer and smaller shapes, with the same edges, for what is slow.
//     GROUP: elementwise, norms, matmul, codes, cache, attention, draw, penalties, logits, tree, graph or ranks.
//
// Ops that promise the CPU's bits are compared by bits with the scalar CPU ops. The others are
// compared with float64, and by bits with themselves for other numbers of rows, another page order
// and a replayed graph. Then come rates of the matmuls. The exit status is 1 when something fails.
// Does not use GoogleTest, because a machine with a GPU may have little else.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>

#include "tests/gpu/kernel_check/rig.h"

namespace specd::kernels {
namespace {

// Scratch memory so small that the shapes of check_matmul() need several pieces.
CudaLimits small_limits() {
  return {.rows_max = 64, .width_max = 1040, .positions_max = 2048, .scratch_bytes = 0};
}

}  // namespace
}  // namespace specd::kernels

int main(int argc, char** argv) {
  using namespace specd::kernels;
  const std::pair<const char*, std::function<void(Rig&)>> groups[] = {
      {"elementwise", check_elementwise},
      {"norms", check_norms},
      {"matmul", [](Rig& rig) { check_matmul(rig, false); }},
      {"codes", [](Rig& rig) { check_codes(rig, false); }},
      {"cache", check_cache},
      {"attention", check_attention},
      {"draw", check_draw},
      {"penalties", check_penalties},
      {"logits", check_logits},
      {"tree", check_tree},
      {"graph", check_graph},
      {"ranks", check_ranks}};
  if (argc < 2) {
    stop(
        "usage: kernel_check LIBRARY [--seed N] [--json FILE] [--only GROUP] [--rates 0] [--fast 1] "
        "[--small 1]");
  }
  uint32_t seed = std::random_device()();
  std::string json_path, only;
  bool with_rates = true, with_fast = false, small = false;
  for (int i = 2; i + 1 < argc; i += 2) {
    if (std::strcmp(argv[i], "--seed") == 0)
      seed = static_cast<uint32_t>(std::strtoul(argv[i + 1], nullptr, 10));
    if (std::strcmp(argv[i], "--json") == 0) json_path = argv[i + 1];
    if (std::strcmp(argv[i], "--only") == 0) only = argv[i + 1];
    if (std::strcmp(argv[i], "--fast") == 0) with_fast = std::strcmp(argv[i + 1], "0") != 0;
    if (std::strcmp(argv[i], "--small") == 0) small = std::strcmp(argv[i + 1], "0") != 0;
    if (std::strcmp(argv[i], "--rates") == 0) with_rates = std::strcmp(argv[i + 1], "0") != 0;
  }
  g_random.seed(seed);
  CudaLimits limits = small ? small_limits() : CudaLimits();
  Gpu gpu(argv[1], limits);
  const CudaDeviceInfo& info = gpu.device->info();
  std::printf("%s, compute capability %d.%d, %d multiprocessors, %.1f GiB; seed %u\n\n", info.name,
              info.major, info.minor, info.multiprocessors,
              static_cast<double>(info.total_bytes) / (1 << 30), seed);
  WorkerPool pool(8);
  CpuStream cpu_stream(pool);
  Report report;
  Rig rig{gpu, cpu_ops(Isa::kScalar), cpu_stream, report, small};
  bool ran = false;
  for (const auto& [name, check] : groups) {
    if (!only.empty() && only != name) continue;
    check(rig);
    ran = true;
  }
  if (!ran && only != "rates") stop("--only " + only + ": no such group");
  if (with_fast) {
    limits.fast = true;
    Gpu fast(argv[1], limits);
    Rig fast_rig{fast, cpu_ops(Isa::kScalar), cpu_stream, report, small};
    if (only.empty() || only == "matmul") check_matmul(fast_rig, true);
    if (only.empty() || only == "codes") check_codes(fast_rig, true);
    if (with_rates) std::printf("\nfast:"), (void)rates(fast_rig);
  }
  const std::string speed = report.failures == 0 && with_rates ? rates(rig) : "null";
  std::printf("\n%d failed\n", report.failures);
  if (!json_path.empty()) {
    std::FILE* file = std::fopen(json_path.c_str(), "w");
    if (file == nullptr) stop("cannot write " + json_path);
    std::fprintf(file, "%s], \"device\": \"%s\", \"seed\": %u, \"matmul\": %s}\n",
                 report.json.c_str(), info.name, seed, speed.c_str());
    std::fclose(file);
  }
  return report.failures == 0 ? 0 : 1;
}
