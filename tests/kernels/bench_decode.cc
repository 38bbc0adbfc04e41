// Times the matmuls of a decode step with the shape of a model and random weights, relative to
// the machine's limits in the same run: the bandwidth of a loop that only reads the weights, and
// the peak of fused multiply-adds on registers. All are interleaved and repeated; the goals apply
// to medians.
//
//   bench_decode [--threads N] [--layers N] [--hidden N] [--ffn N] [--heads N] [--kv-heads N]
//                [--head-dim N] [--vocab N] [--repeats N] [--isa NAME] [--rows N,N,..] [--context N]
//                [--dtype bf16|f16|f32|fp8|w8a8|w8a16|w4a16] [--group N]
//
// Goals: n = 1 reads at >= 0.80 of the read-only loop; 8 rows cost at most
// 1.2 * max(1, T_fma / T_read) of one. The exit status is 1 if one is missed. w8a16 and w4a16 are matrices of
// codes in groups of N k (--group, 128 if it is not given), fp8 and w8a8 have a scale per output; the second goal
// counts multiply-adds as if each were one of float32.
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "specd/kernels/cpu.h"
#include "tests/kernels/ceilings.h"

namespace {

using namespace specd::kernels;  // one file, one main
using namespace specd::kernels::bench;

struct Matrix {
  PackedMatrix packed;
  size_t bytes = 0;
  int32_t segments = 1;
};

// The packed order of a matrix, without padding: groups of `group` k, or one for all k with x_bits 8 and 32.
// REQUIRES groups of whole grains.
struct OrderOfGroups {
  std::vector<Run> runs;
  std::vector<int32_t> source;
  CodeOrder order;

  OrderOfGroups(int32_t n_in, int32_t bits, int32_t x_bits, int32_t group) {
    const bool one_group = x_bits != 16;
    const int32_t longest = one_group ? n_in : group;
    for (int32_t k = 0; k < n_in; ++k) source.push_back(k);
    for (int32_t k = 0; k < n_in; k += longest) {
      runs.push_back({k, std::min(longest, n_in - k), one_group ? 0 : k / longest});
    }
    order = {.runs = runs.data(),
             .source = source.data(),
             .n_runs = static_cast<int32_t>(runs.size()),
             .n_groups = one_group ? 1 : static_cast<int32_t>(runs.size()),
             .depth = n_in,
             .bits = bits,
             .x_bits = x_bits};
  }
};

struct ReadCall {
  const Matrix* matrix;
  int streams;  // streams into which a thread splits its share
};

// Each thread reads a contiguous share of a matrix, as in the matmul.
void read_part(void* ctx, int part, int parts) {
  const ReadCall& call = *static_cast<const ReadCall*>(ctx);
  const Matrix& m = *call.matrix;
  const size_t lines = m.bytes / 256;
  const size_t begin = lines * static_cast<size_t>(part) / static_cast<size_t>(parts) * 256;
  const size_t end = lines * static_cast<size_t>(part + 1) / static_cast<size_t>(parts) * 256;
  read_bytes(static_cast<const char*>(m.packed.data) + begin, end - begin, call.streams);
}

// --- The step -----------------------------------------------------------------------------------

struct Options {
  std::map<std::string, std::string> values;
  int number(const char* name, int fallback) const {
    const auto found = values.find(name);
    return found == values.end() ? fallback : std::atoi(found->second.c_str());
  }
  std::string text(const char* name, const char* fallback) const {
    const auto found = values.find(name);
    return found == values.end() ? fallback : found->second;
  }
};

// Random finite weights, in place: the layout does not matter for speed.
void fill_random(void* data, size_t bytes, DType type, uint64_t seed) {
  uint64_t s = seed * 0x9e3779b97f4a7c15u + 1;
  uint32_t* words = static_cast<uint32_t*>(data);
  for (size_t i = 0; i < bytes / 4; ++i) {
    s = s * 6364136223846793005u + 1442695040888963407u;
    const uint32_t r = static_cast<uint32_t>(s >> 32);
    // Random sign and mantissa, magnitude in [2^-6, 2^-5).
    if (type == DType::kF32) words[i] = (r & 0x807fffffu) | 0x3c800000u;
    if (type == DType::kF16) words[i] = (r & 0x83ff83ffu) | 0x24002400u;
    if (type == DType::kBF16) words[i] = (r & 0x807f807fu) | 0x3c803c80u;
  }
}

// Times of repeated steps, kept per matrix. The median step is the sum of each matrix's median, so
// an interruption spoils only one sample of one matrix.
class StepTimes {
 public:
  void add(size_t matrix, double t) {
    if (matrix >= times_.size()) times_.resize(matrix + 1);
    times_[matrix].push_back(t);
  }
  double typical() const {
    double sum = 0;
    for (const std::vector<double>& t : times_) sum += median(t);
    return sum;
  }
  double fastest() const {
    double sum = 0;
    for (const std::vector<double>& t : times_) sum += *std::min_element(t.begin(), t.end());
    return sum;
  }

 private:
  std::vector<std::vector<double>> times_;
};

}  // namespace

int main(int argc, char** argv) {
  Options o;
  for (int i = 1; i + 1 < argc; i += 2) o.values[argv[i]] = argv[i + 1];
  const int threads = o.number("--threads", static_cast<int>(std::thread::hardware_concurrency()));
  const int layers = o.number("--layers", 16);
  const int hidden = o.number("--hidden", 2048);
  const int ffn = o.number("--ffn", 8192);
  const int heads = o.number("--heads", 32);
  const int kv_heads = o.number("--kv-heads", 8);
  const int head_dim = o.number("--head-dim", 64);
  const int vocab = o.number("--vocab", 128256);
  const int repeats = o.number("--repeats", 9);
  const int context = o.number("--context", 0);
  const int group = o.number("--group", kRun16Max);
  if (group < kRunGrain || group > kRun16Max || group % kRunGrain != 0) {
    std::fprintf(stderr, "bench_decode: --group %d: expected a multiple of %d up to %d\n", group,
                 kRunGrain, kRun16Max);
    return 2;
  }
  const std::string dtype = o.text("--dtype", "bf16");
  const bool is_code = dtype.starts_with("w") || dtype == "fp8";
  const int32_t bits = dtype.starts_with("w4") ? 4 : 8, x_bits = dtype == "fp8"          ? 32
                                                                 : dtype.ends_with("a8") ? 8
                                                                                         : 16;
  const DType type = dtype == "f32" ? DType::kF32 : dtype == "f16" ? DType::kF16 : DType::kBF16;
  const std::string wanted = o.text("--isa", isa_name(best_isa()));
  Isa isa = best_isa();
  for (const Isa candidate : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (wanted == isa_name(candidate) && isa_available(candidate)) isa = candidate;
  }
  std::vector<int> rows;
  const std::string rows_text = o.text("--rows", "1,2,4,8,16");
  for (const char* p = rows_text.c_str(); *p != 0;
       p += std::strcspn(p, ",") + (std::strchr(p, ',') != nullptr ? 1 : 0)) {
    rows.push_back(std::atoi(p));
  }
  const int rows_max = *std::max_element(rows.begin(), rows.end());

  const Ops& ops = cpu_ops(isa);
  WorkerPool pool(threads);
  CpuStream stream(pool);

  std::vector<Matrix> matrices;
  std::deque<OrderOfGroups> orders;
  size_t total_bytes = 0;
  double macs = 0;  // per row
  const auto add = [&](int n_out, int n_in, int segments) {
    Matrix m;
    if (is_code) orders.emplace_back(n_in, bits, x_bits, group);
    m.bytes = is_code ? ops.packed_code_bytes(orders.back().order, n_out)
                      : ops.packed_bytes(type, n_out, n_in);
    m.segments = segments;
    const size_t room = (m.bytes + (size_t{2} << 20) - 1) >> 21 << 21;
    void* data = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      std::perror("bench_decode: weights");
      std::exit(2);
    }
    madvise(data, room, MADV_HUGEPAGE);
    fill_random(data, m.bytes, type, matrices.size() + 1);
    m.packed = {type, n_out, n_in, data, is_code ? &orders.back().order : nullptr};
    matrices.push_back(m);
    total_bytes += m.bytes;
    macs += static_cast<double>(n_out) * n_in;
  };
  for (int l = 0; l < layers; ++l) {
    add((heads + 2 * kv_heads) * head_dim, hidden, 1);
    add(hidden, heads * head_dim, 8);
    add(2 * ffn, hidden, 1);
    add(hidden, ffn, 8);
  }
  add(vocab, hidden, 1);

  const int wide_in = std::max({hidden, ffn, heads * head_dim});
  const int wide_out = std::max({vocab, 2 * ffn, (heads + 2 * kv_heads) * head_dim});
  std::vector<float> x(static_cast<size_t>(rows_max) * wide_in);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.25f + static_cast<float>(i % 37) / 64.0f;
  std::vector<float> out(static_cast<size_t>(rows_max) * wide_out);
  size_t scratch_bytes = 0;
  for (const Matrix& m : matrices)
    scratch_bytes = std::max(scratch_bytes, matmul_scratch_bytes(m.packed, rows_max));
  std::vector<float> scratch(scratch_bytes / sizeof(float) + 1);

  std::printf(
      "%s, %d threads, %s, %d layers, hidden %d, ffn %d, heads %d/%d of %d, vocab %d: %.3f GB\n",
      ops.name, threads, dtype.c_str(), layers, hidden, ffn, heads, kv_heads, head_dim, vocab,
      static_cast<double>(total_bytes) * 1e-9);

  // Warm up, then interleave, so that a slow moment of the machine affects all equally.
  const auto timed = [&](WorkerPool::Task task, void* ctx) {
    const double start = seconds();
    pool.run(task, ctx);
    return seconds() - start;
  };
  const auto read_all = [&](int streams, StepTimes* times) {
    for (size_t i = 0; i < matrices.size(); ++i) {
      ReadCall call{&matrices[i], streams};
      times->add(i, timed(read_part, &call));
    }
  };
  // The fastest reader here, of one, two, four and eight streams per thread.
  std::map<int, StepTimes> by_streams;
  for (int repeat = 0; repeat < 4; ++repeat) {
    for (const int streams : {1, 2, 4, 8}) read_all(streams, &by_streams[streams]);
  }
  int streams_best = 1;
  for (const auto& [streams, times] : by_streams) {
    std::printf("reading in %d streams a thread: %.2f GB/s\n", streams,
                static_cast<double>(total_bytes) * 1e-9 / times.typical());
    if (times.typical() < by_streams[streams_best].typical()) streams_best = streams;
  }
  StepTimes read_s;
  std::vector<double> fma_rate;
  std::map<int, StepTimes> step_s;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    read_all(streams_best, &read_s);
    for (int slice = 0; slice < 16; ++slice) {
      fma_rate.push_back(fma_peak(pool, isa));
    }
    for (const int n : rows) {
      for (size_t i = 0; i < matrices.size(); ++i) {
        const Matrix& m = matrices[i];
        const double start = seconds();
        ops.matmul(stream, {.x = x.data(),
                            .weights = m.packed,
                            .out = out.data(),
                            .n_rows = n,
                            .k_segments = m.segments,
                            .scratch = scratch.data(),
                            .next = i + 1 < matrices.size() ? &matrices[i + 1].packed : nullptr});
        step_s[n].add(i, seconds() - start);
      }
    }
  }

  const auto report = [&](const char* which, double t_read, double peak, auto time_of) {
    std::printf("%s: read-only loop %.1f ms, %.2f GB/s; fma peak %.1f G multiply-adds/s\n", which,
                t_read * 1e3, static_cast<double>(total_bytes) * 1e-9 / t_read, peak * 1e-9);
    std::printf("%6s %10s %10s %12s %12s %10s\n", "rows", "ms", "V(n)", "of reading", "T_fma ms",
                "of peak");
    const double one = step_s.count(1) != 0 ? time_of(step_s[1]) : 0;
    for (const int n : rows) {
      const double t = time_of(step_s[n]);
      const double t_fma = macs * n / peak;
      std::printf("%6d %10.1f %10.3f %12.3f %12.1f %10.3f\n", n, t * 1e3, one > 0 ? t / one : 0,
                  t_read / t, t_fma * 1e3, t_fma / t);
    }
    if (step_s.count(1) == 0 || step_s.count(8) == 0) return true;
    const double of_reading = t_read / one;
    const double v8 = time_of(step_s[8]) / one;
    const double t_fma8 = macs * 8 / peak;
    const double v8_max = 1.2 * std::max(1.0, t_fma8 / t_read);
    std::printf("goal 1: one row reads at %.3f of the read-only loop, >= 0.80: %s\n", of_reading,
                of_reading >= 0.80 ? "pass" : "FAIL");
    std::printf("goal 2: V(8) = %.3f <= 1.2 * max(1, %.1f ms / %.1f ms) = %.3f: %s\n", v8,
                t_fma8 * 1e3, t_read * 1e3, v8_max, v8 <= v8_max ? "pass" : "FAIL");
    return of_reading >= 0.80 && v8 <= v8_max;
  };
  const bool good = report("medians", read_s.typical(), median(fma_rate),
                           [](const StepTimes& t) { return t.typical(); });
  // The machine's speed when nothing else runs; the goals apply to the medians.
  report("fastest", read_s.fastest(), *std::max_element(fma_rate.begin(), fma_rate.end()),
         [](const StepTimes& t) { return t.fastest(); });

  if (context > 0) {
    // Attention of one layer over `context` positions, with a bfloat16 cache.
    const int pages = (context + kPageTokens - 1) / kPageTokens;
    const size_t elements = static_cast<size_t>(pages) * kv_heads * head_dim * kPageTokens;
    std::vector<uint32_t> k(elements / 2 + 1);
    std::vector<uint32_t> v(elements / 2 + 1);
    fill_random(k.data(), elements * 2, DType::kBF16, 1);
    fill_random(v.data(), elements * 2, DType::kBF16, 2);
    std::vector<int32_t> page_ids(static_cast<size_t>(pages));
    for (int i = 0; i < pages; ++i) page_ids[static_cast<size_t>(i)] = i;
    for (const int n : rows) {
      const std::vector<int32_t> position(static_cast<size_t>(n), context - 1);
      const std::vector<int32_t> span(static_cast<size_t>(n), context);
      const std::vector<int32_t> zero(static_cast<size_t>(n), 0);
      std::vector<float> qkv(static_cast<size_t>(n) * (heads + 2 * kv_heads) * head_dim, 0.5f);
      AttentionArgs a;
      a.qkv = qkv.data();
      a.out = out.data();
      a.kv = {.k = k.data(),
              .v = v.data(),
              .dtype = KvDType::kBF16,
              .n_kv_heads = kv_heads,
              .head_dim = head_dim,
              .page_stride = static_cast<size_t>(kv_heads * head_dim * kPageTokens)};
      a.position = position.data();
      a.span = span.data();
      a.table = zero.data();
      a.pages = page_ids.data();
      a.tail_begin = zero.data();
      a.tail = zero.data();
      a.n_rows = n;
      a.n_heads = heads;
      a.scale = 0.125f;
      std::vector<double> times;
      for (int repeat = 0; repeat < repeats; ++repeat) {
        const double t = seconds();
        ops.attention(stream, a);
        times.push_back(seconds() - t);
      }
      std::printf("attention, context %d, %d rows: %.3f ms a layer\n", context, n,
                  median(times) * 1e3);
    }
  }

  return good ? 0 : 1;
}
