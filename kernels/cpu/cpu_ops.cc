// Selects the instruction set and spreads the parts of each op over the stream's pool.
#include "specd/kernels/cpu.h"

#include <atomic>
#include <new>

#include "kernels/cpu/isa.h"

#if SPECD_KERNELS_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace specd::kernels {
namespace {

#if SPECD_KERNELS_X86
// Clang 14's __builtin_cpu_supports does not know this name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

#define SPECD_ISA_TABLE(isa)                                                               \
  {                                                                                        \
    isa::pack, isa::embed, isa::rmsnorm, isa::head_norm, isa::matmul, isa::rope_append,    \
        isa::attention, isa::map, isa::draw, isa::draw_noise, isa::lanes, isa::pack_codes, \
        isa::round_rows, isa::multiply_integers, isa::multiply_float8                      \
  }
constexpr IsaOps kScalarOps = SPECD_ISA_TABLE(scalar);
#if SPECD_KERNELS_X86
constexpr IsaOps kAvx2Ops = SPECD_ISA_TABLE(avx2);
constexpr IsaOps kAvx512Ops = SPECD_ISA_TABLE(avx512);
#endif
#undef SPECD_ISA_TABLE

// Runs the parts of f. `units` is the number of pieces a call can be split into; one unit needs
// no team.
template <typename Args>
void spread(Stream& stream, const Args& args, void (*f)(const Args&, int, int), int64_t units) {
  WorkerPool& pool = static_cast<CpuStream&>(stream).pool();
  if (units <= 0) return;
  if (units == 1 || pool.n_threads() == 1) return f(args, 0, 1);
  struct Call {
    const Args& args;
    void (*f)(const Args&, int, int);
    std::atomic<bool> has_memory{true};
  } call{args, f};
  pool.run(
      [](void* ctx, int part, int parts) noexcept {
        Call& c = *static_cast<Call*>(ctx);
        // Thrown by the caller, once no thread uses `call` any more.
        try {
          c.f(c.args, part, parts);
        } catch (const std::bad_alloc&) {
          c.has_memory = false;
        }
      },
      &call);
  if (!call.has_memory) throw std::bad_alloc();
}

// The units of an op over single values. Below a few thousand of them, waking the team costs more
// than it saves.
constexpr int64_t units_of(int32_t n_rows, int32_t n) {
  const int64_t values = int64_t{n_rows} * n;
  return values < 2048 ? (values > 0 ? 1 : 0) : values;
}

size_t packed_bytes(DType type, int32_t n_out, int32_t n_in) {
  const size_t columns =
      (static_cast<size_t>(n_out) + kPaddedColumns - 1) / kPaddedColumns * kPaddedColumns;
  // Round up to pairs, for layouts that store inputs in pairs.
  const size_t inputs = (static_cast<size_t>(n_in) + 1) / 2 * 2;
  const size_t bytes = columns * inputs * dtype_bytes(type);
  return (bytes + 63) / 64 * 64;
}

size_t packed_code_bytes(const CodeOrder& order, int32_t n_out) {
  const size_t columns =
      (static_cast<size_t>(n_out) + kPaddedColumns - 1) / kPaddedColumns * kPaddedColumns;
  const size_t codes = static_cast<size_t>(order.depth) * static_cast<size_t>(order.bits) / 8,
               scales = static_cast<size_t>(order.n_groups) * (order.has_zeros ? 5 : 4);
  return (columns * (codes + scales) + 63) / 64 * 64;
}

template <const IsaOps& kIsa>
void pack(Stream& s, const PackArgs& a) {
  spread(s, a, a.packed.order == nullptr ? kIsa.pack : kIsa.pack_codes, a.n_rows);
}

template <const IsaOps& kIsa>
void matmul(Stream& s, const MatmulArgs& a) {
  const int64_t units = int64_t{a.n_rows} * a.weights.n_out;
  const CodeOrder* const order = a.weights.order;
  if (order == nullptr) return spread(s, a, kIsa.matmul, units);
#if SPECD_KERNELS_X86
  if (kIsa.multiply_integers == avx512::multiply_integers && amx_available() &&
      avx512_amx::takes(*order, a.n_rows)) {
    spread(s, a, order->x_bits == 16 ? avx512::round_rows_to_bytes : kIsa.round_rows, a.n_rows);
    return spread(s, a, avx512_amx::multiply_integers, units);
  }
#endif
  spread(s, a, kIsa.round_rows, a.n_rows);
  if (order->x_bits == 32) return spread(s, a, kIsa.multiply_float8, units);
#if SPECD_KERNELS_X86
  if (kIsa.multiply_integers == avx512::multiply_integers && vnni_available())
    return spread(s, a, avx512_vnni::multiply_integers, units);
#endif
  spread(s, a, kIsa.multiply_integers, units);
}

template <const IsaOps& kIsa>
constexpr Ops table(const char* name) {
  return Ops{
      name,
      [](DType) { return SplitRule(); },
      packed_bytes,
      pack<kIsa>,
      [](Stream& s, const EmbedArgs& a) { spread(s, a, kIsa.embed, a.n_rows); },
      [](Stream& s, const RmsNormArgs& a) { spread(s, a, kIsa.rmsnorm, a.n_rows); },
      [](Stream& s, const HeadNormArgs& a) {
        spread(s, a, kIsa.head_norm, int64_t{a.n_rows} * (a.n_heads + a.n_kv_heads));
      },
      matmul<kIsa>,
      [](Stream& s, const AddSegmentsArgs& a) {
        spread(s, a, add_segments_part, units_of(a.n_rows, a.n));
      },
      [](Stream& s, const RopeTableArgs& a) { spread(s, a, rope_table_part, a.n_rows); },
      [](Stream& s, const RopeAppendArgs& a) { spread(s, a, kIsa.rope_append, a.n_rows); },
      [](Stream& s, const AttentionArgs& a) {
        spread(s, a, kIsa.attention, int64_t{a.n_rows} * a.kv.n_kv_heads);
      },
      [](Stream& s, const MapArgs& a) { spread(s, a, kIsa.map, units_of(a.n_rows, a.n)); },
      [](Stream& s, const CopyRowsArgs& a) { spread(s, a, copy_rows_part, a.n_rows); },
      [](Stream& s, const KvMoveArgs& a) {
        spread(s, a, kv_move_part, a.n > 0 ? a.kv.n_kv_heads : 0);
      },
      [](Stream& s, const PenalizeArgs& a) { spread(s, a, penalize_part, a.n_rows); },
      [](Stream& s, const DrawArgs& a) { spread(s, a, kIsa.draw, a.n_rows); },
      [](Stream& s, const DrawNoiseArgs& a) {
        spread(s, a, kIsa.draw_noise, int64_t{a.n_rows} * a.vocab);
      },
      [](Stream& s, const UniformArgs& a) { spread(s, a, uniform_part, a.n_rows); },
      [](Stream& s, const TopKArgs& a) { spread(s, a, top_k_part, a.n_rows); },
      [](Stream& s, const LogProbArgs& a) { spread(s, a, log_prob_part, a.n_rows); },
      [](Stream& s, const PickTokensArgs& a) { spread(s, a, pick_tokens_part, a.n > 0 ? 1 : 0); },
      [](Stream& s, const ClampNodesArgs& a) { spread(s, a, clamp_nodes_part, a.n > 0 ? 1 : 0); },
      [](Stream& s, const WalkTreeArgs& a) { spread(s, a, walk_tree_part, a.n > 0 ? 1 : 0); },
      packed_code_bytes,
  };
}

constexpr Ops kScalarTable = table<kScalarOps>("cpu-scalar");
#if SPECD_KERNELS_X86
constexpr Ops kAvx2Table = table<kAvx2Ops>("cpu-avx2");
constexpr Ops kAvx512Table = table<kAvx512Ops>("cpu-avx512");

constexpr Ops bf16_table() {
  Ops ops = kAvx512Table;
  ops.name = "cpu-avx512-bf16";
  ops.split_rule = [](DType type) { return SplitRule{.grain = type == DType::kBF16 ? 2 : 1}; };
  ops.pack = [](Stream& s, const PackArgs& a) {
    if (a.packed.order != nullptr || a.packed.dtype != DType::kBF16) return pack<kAvx512Ops>(s, a);
    spread(s, a, avx512_bf16::pack, a.n_rows);
  };
  ops.matmul = [](Stream& s, const MatmulArgs& a) {
    if (a.weights.order != nullptr || a.weights.dtype != DType::kBF16)
      return matmul<kAvx512Ops>(s, a);
    spread(s, a, avx512_bf16::matmul, int64_t{a.n_rows} * a.weights.n_out);
  };
  return ops;
}
constexpr Ops kBf16Table = bf16_table();
#endif

}  // namespace

bool isa_available(Isa isa) {
#if SPECD_KERNELS_X86
  // Also checks that the operating system saves the wider registers.
  __builtin_cpu_init();
  switch (isa) {
    case Isa::kScalar:
      return true;
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    case Isa::kAvx512:
      return isa_available(Isa::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512dq");
  }
  return false;
#else
  return isa == Isa::kScalar;
#endif
}

Isa best_isa() {
  if (isa_available(Isa::kAvx512)) return Isa::kAvx512;
  if (isa_available(Isa::kAvx2)) return Isa::kAvx2;
  return Isa::kScalar;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "unknown";
}

const Ops& cpu_ops(Isa isa) {
#if SPECD_KERNELS_X86
  if (isa == Isa::kAvx512) return kAvx512Table;
  if (isa == Isa::kAvx2) return kAvx2Table;
#endif
  static_cast<void>(isa);
  return kScalarTable;
}

bool vnni_available() {
#if SPECD_KERNELS_X86
  static const bool is = isa_available(Isa::kAvx512) && __builtin_cpu_supports("avx512vnni");
  return is;
#else
  return false;
#endif
}

bool amx_available() {
#if SPECD_KERNELS_X86
  static const bool is = [] {
    constexpr unsigned kTile = 1u << 24, kInt8 = 1u << 25;  // of edx
    constexpr long kRequestPermission = 0x1023, kTileData = 18;
    unsigned a = 0, b = 0, c = 0, d = 0;
    return vnni_available() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTile) != 0 &&
           (d & kInt8) != 0 && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return is;
#else
  return false;
#endif
}

bool bf16_available() {
#if SPECD_KERNELS_X86
  unsigned a = 0, b = 0, c = 0, d = 0;
  return isa_available(Isa::kAvx512) && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 &&
         (a & (1u << 5)) != 0;  // AVX512_BF16
#else
  return false;
#endif
}

const Ops& cpu_bf16_ops() {
#if SPECD_KERNELS_X86
  return kBf16Table;
#else
  return kScalarTable;
#endif
}

const IsaOps& isa_ops(Isa isa) {
#if SPECD_KERNELS_X86
  if (isa == Isa::kAvx512) return kAvx512Ops;
  if (isa == Isa::kAvx2) return kAvx2Ops;
#endif
  static_cast<void>(isa);
  return kScalarOps;
}

}  // namespace specd::kernels
