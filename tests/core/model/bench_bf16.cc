// Times a forward with numerics bf16 against strict, same random weights in the shape of a 1B
// Llama, in turns, medians.
//
//   bench_bf16 [threads=2] [repeats=7] [layers=4]
//
// Exit status 1 when bf16 is slower than strict by more than the noise (5 %) at some number of
// rows.
#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>

#include "core/kv/block_table.h"
#include "core/model/transformer.h"
#include "tests/kernels/ceilings.h"

namespace {

using namespace specd;  // one file, one main
namespace bench = specd::kernels::bench;

constexpr int32_t kRowsMax = 512;

struct Side {
  std::unique_ptr<CpuDevice> device;
  std::unique_ptr<Transformer> model;
  std::optional<KvStore> kv;
  std::map<int32_t, std::vector<double>> seconds;

  Side(const ModelConfig& config, int threads, bool bf16) {
    device = CpuDevice::create("", threads, bf16).value();
    model = Transformer::random(*device, config, kRowsMax, 16, 1).value();
    kv = KvStore::create(*device, config, kernels::KvDType::kBF16, pages_for(kRowsMax)).value();
  }
  void run(int32_t n) {
    ForwardRows rows;
    rows.pages.resize(static_cast<size_t>(pages_for(kRowsMax)));
    std::iota(rows.pages.begin(), rows.pages.end(), 0);
    for (int32_t i = 0; i < n; ++i) {
      rows.token.push_back(1000 + i);
      rows.position.push_back(i);
      rows.slot.push_back(i);
      rows.span.push_back(i + 1);
      rows.table.push_back(0);
      rows.tail_begin.push_back(0);
    }
    rows.logits_rows = {n - 1};
    const double start = bench::seconds();
    model->forward(rows.in_place(), *kv);
    seconds[n].push_back(bench::seconds() - start);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback) {
    return bench::argument(argc, argv, index, fallback,
                           "bench_bf16 [threads=2] [repeats=7] [layers=4]");
  };
  const int threads = argument(1, 2), repeats = argument(2, 7);
  if (!kernels::bf16_available()) {
    std::printf("this processor has no AVX-512 BF16\n");
    return 0;
  }
  const ModelConfig config = read_model_config({{"architectures", {"LlamaForCausalLM"}},
                                                {"hidden_size", 2048},
                                                {"intermediate_size", 8192},
                                                {"num_hidden_layers", argument(3, 4)},
                                                {"num_attention_heads", 32},
                                                {"num_key_value_heads", 8},
                                                {"vocab_size", 32000},
                                                {"max_position_embeddings", 4096}},
                                               "shape")
                                 .value();
  Side strict(config, threads, false), bf16(config, threads, true);
  const int32_t rows[] = {1, 2, 4, 8, 16, 64, 512};
  for (int repeat = -1; repeat < repeats; ++repeat) {
    if (repeat == 0) strict.seconds.clear(), bf16.seconds.clear();  // the first one warms up
    for (const int32_t n : rows) strict.run(n), bf16.run(n);
  }
  std::printf("%s and %s, %d threads, %d layers, medians of %d\n", strict.device->ops().name,
              bf16.device->ops().name, threads, config.n_layers, repeats);
  std::printf("%5s %11s %9s %7s\n", "rows", "strict ms", "bf16 ms", "ratio");
  bool slower = false;
  for (const int32_t n : rows) {
    const double a = bench::median(strict.seconds[n]), b = bench::median(bf16.seconds[n]);
    std::printf("%5d %11.2f %9.2f %7.2f\n", n, a * 1e3, b * 1e3, a / b);
    slower = slower || a / b < 0.95;
  }
  return slower ? 1 : 0;
}
