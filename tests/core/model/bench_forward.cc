// Times the whole forward of a random-weight Llama of about 1B bf16 parameters, made in place,
// against what the machine can do in the same run: a loop that only reads the same weights, and the
// peak of fused multiply-adds on registers. Interleaved, repeated, medians.
//
//   bench_forward [threads=2] [repeats=9] [context=64] [layers=16]
//
// Goals: one row reads the weights at >= 0.80 of the read-only loop; V(8), the time of 8 rows by
// that of one, is <= 1.2 * max(1, T_fma / T_read): T_fma the 8 rows' multiply-adds at the peak,
// T_read the weights' bytes at the loop's bandwidth. Exit status 1 when one is missed.
#include <cstdio>
#include <map>
#include <numeric>

#include "core/kv/block_table.h"
#include "core/model/transformer.h"
#include "tests/kernels/ceilings.h"

namespace {

using namespace specd;  // one file, one main
namespace bench = specd::kernels::bench;

struct ReadCall {
  const char* data;
  uint64_t bytes;
  int streams;
};
void read_part(void* ctx, int part, int parts) {
  const ReadCall& call = *static_cast<const ReadCall*>(ctx);
  const uint64_t share = call.bytes / static_cast<uint64_t>(parts) / 256 * 256;
  bench::read_bytes(call.data + share * static_cast<uint64_t>(part), share, call.streams);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int index, int fallback) {
    return bench::argument(argc, argv, index, fallback,
                           "bench_forward [threads=2] [repeats=9] [context=64] [layers=16]");
  };
  const int threads = argument(1, 2), repeats = argument(2, 9), context = argument(3, 64);
  const ModelConfig config = read_model_config({{"architectures", {"LlamaForCausalLM"}},
                                                {"hidden_size", 2048},
                                                {"intermediate_size", 8192},
                                                {"num_hidden_layers", argument(4, 16)},
                                                {"num_attention_heads", 32},
                                                {"num_key_value_heads", 8},
                                                {"vocab_size", 128256},
                                                {"max_position_embeddings", 4096},
                                                {"rms_norm_eps", 1e-5},
                                                {"rope_theta", 500000}},
                                               "shape")
                                 .value();

  const auto device = CpuDevice::create("", threads).value();
  const int rows_max = std::max(context, 16);
  const auto model = Transformer::random(*device, config, rows_max, 16, 1).value();
  const int32_t n_pages = pages_for(context + 16);
  KvStore kv = KvStore::create(*device, config, kernels::KvDType::kBF16, n_pages).value();
  BlockTable table;
  table.pages.resize(static_cast<size_t>(n_pages));
  std::iota(table.pages.begin(), table.pages.end(), 0);

  const auto forward = [&](int32_t position, int32_t n_rows, bool logits) {
    ForwardRows rows;
    rows.pages = table.pages;
    for (int32_t i = 0; i < n_rows; ++i) {
      if (logits) rows.logits_rows.push_back(i);
      rows.token.push_back(1000 + i);
      rows.position.push_back(position + i);
      rows.slot.push_back(table.physical(position + i));
      rows.span.push_back(position + i + 1);
      rows.table.push_back(0);
      rows.tail_begin.push_back(0);
    }
    const double start = bench::seconds();
    model->forward(rows.in_place(), kv);
    return bench::seconds() - start;
  };
  forward(0, context, false);

  uint64_t bytes = 0;
  for (const Weights::Piece& each : model->weights().streamed) bytes += each.bytes;
  kernels::WorkerPool& pool = device->stream().pool();
  const auto read = [&](int streams) {
    const double start = bench::seconds();
    for (const Weights::Piece& each : model->weights().streamed) {
      ReadCall call{static_cast<const char*>(each.data), each.bytes, streams};
      pool.run(read_part, &call);
    }
    return bench::seconds() - start;
  };

  const int n_streams[] = {1, 2, 4, 8};
  std::map<int, std::vector<double>> read_s, step_s;
  std::vector<double> peak;
  const kernels::Isa isa = kernels::best_isa();
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first one warms up
    for (const int streams : n_streams) {
      const double t = read(streams);
      if (repeat >= 0) read_s[streams].push_back(t);
    }
    for (int i = 0; i < 8; ++i) {
      const double p = bench::fma_peak(pool, isa);
      if (repeat >= 0) peak.push_back(p);
    }
    for (const int n : {1, 2, 4, 8, 16}) {
      const double t = forward(context, n, true);
      if (repeat >= 0) step_s[n].push_back(t);
    }
  }

  // The reader that does best here.
  double t_read = 1e30;
  for (const auto& [streams, times] : read_s) t_read = std::min(t_read, bench::median(times));
  const double macs = static_cast<double>(bytes) / 2;  // per row: a bf16 weight is used once
  const double rate = bench::median(peak);
  std::printf("%s, %d threads, %.2f G parameters in matrices, %.2f GB, context %d, medians of %d\n",
              device->ops().name, threads, macs * 1e-9, static_cast<double>(bytes) * 1e-9, context,
              repeats);
  std::printf("read-only loop %.1f ms = %.2f GB/s; peak %.1f G multiply-adds/s\n", t_read * 1e3,
              static_cast<double>(bytes) * 1e-9 / t_read, rate * 1e-9);
  std::printf("%5s %9s %8s %11s %9s %9s\n", "rows", "ms", "V(n)", "of reading", "T_fma ms",
              "of peak");
  const double one = bench::median(step_s[1]);
  for (const auto& [n, times] : step_s) {
    const double t = bench::median(times);
    std::printf("%5d %9.1f %8.3f %11.3f %9.1f %9.3f\n", n, t * 1e3, t / one, t_read / t,
                macs * n / rate * 1e3, macs * n / rate / t);
  }
  const double of_reading = t_read / one;
  const double v8 = bench::median(step_s[8]) / one;
  const double t_fma = macs * 8 / rate;
  const double v8_max = 1.2 * std::max(1.0, t_fma / t_read);
  const bool good_read = of_reading >= 0.80, good_v8 = v8 <= v8_max;
  std::printf("decode reads at %.3f of the loop, goal >= 0.80: %s\n", of_reading,
              good_read ? "pass" : "FAIL");
  std::printf("V(8) = %.3f, goal <= 1.2 * max(1, %.1f / %.1f ms) = %.3f: %s\n", v8, t_fma * 1e3,
              t_read * 1e3, v8_max, good_v8 ? "pass" : "FAIL");
  return good_read && good_v8 ? 0 : 1;
}
