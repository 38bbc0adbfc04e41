// `numerics: fast`: matmuls over bfloat16 with cuBLASLt, x rounded to bfloat16. The kernel, and so
// the bits, depend on the number of rows: not strict.
//
// cuBLASLt is loaded on demand, so that it is not required otherwise. Weights are row-major as in
// the checkpoint; other types keep the strict layout and the strict op, and codes have ops of their own (codes.cu).
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <tuple>

#include "kernels/cuda/backend.h"

namespace specd::kernels::cuda {

#define SPECD_STRING_INNER(x) #x
#define SPECD_STRING(x) SPECD_STRING_INNER(x)
constexpr char kLibrary[] = "libcublasLt.so." SPECD_STRING(CUBLAS_VER_MAJOR);

struct FastMatmul {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulDescCreate) make_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) free_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) make_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) free_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) make_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) free_preference = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) choose = nullptr;

  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  // The algorithm chosen for a shape: rows, n_out, n_in.
  struct Plan {
    cublasLtMatrixLayout_t weights = nullptr, x = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    bool found = false;
  };
  std::map<std::tuple<int32_t, int32_t, int32_t>, Plan> plans;

  ~FastMatmul() {
    for (auto& [shape, plan] : plans) {
      for (cublasLtMatrixLayout_t each : {plan.weights, plan.x, plan.out}) {
        if (each != nullptr) free_layout(each);
      }
    }
    if (operation != nullptr) free_operation(operation);
    if (handle != nullptr) destroy(handle);
  }
  const Plan& plan(int32_t n_rows, int32_t n_out, int32_t n_in, uint64_t workspace_bytes);
};

namespace {

__global__ void to_bfloat16(const float* x, __nv_bfloat16* out, int64_t n) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) out[i] = __float2bfloat16_rn(x[i]);
}

template <typename Fn>
bool find(void* library, const char* name, Fn& out) {
  out = reinterpret_cast<Fn>(dlsym(library, name));
  return out != nullptr;
}

}  // namespace

// cuBLASLt is column-major: out^T [n_out, rows] = W^T' [n_out, n_in] x^T [n_in, rows].
const FastMatmul::Plan& FastMatmul::plan(int32_t n_rows, int32_t n_out, int32_t n_in,
                                         uint64_t workspace_bytes) {
  const auto [at, is_new] = plans.try_emplace({n_rows, n_out, n_in});
  Plan& made = at->second;
  if (!is_new) return made;
  const auto k = static_cast<uint64_t>(n_in), m = static_cast<uint64_t>(n_out),
             n = static_cast<uint64_t>(n_rows);
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulHeuristicResult_t best{};
  int n_found = 0;
  made.found = make_layout(&made.weights, CUDA_R_16BF, k, m, n_in) == CUBLAS_STATUS_SUCCESS &&
               make_layout(&made.x, CUDA_R_16BF, k, n, n_in) == CUBLAS_STATUS_SUCCESS &&
               make_layout(&made.out, CUDA_R_32F, m, n, n_out) == CUBLAS_STATUS_SUCCESS &&
               make_preference(&preference) == CUBLAS_STATUS_SUCCESS &&
               set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                              &workspace_bytes, sizeof(workspace_bytes)) == CUBLAS_STATUS_SUCCESS &&
               choose(handle, operation, made.weights, made.x, made.out, made.out, preference, 1,
                      &best, &n_found) == CUBLAS_STATUS_SUCCESS &&
               n_found == 1;
  made.algorithm = best.algo;
  if (preference != nullptr) free_preference(preference);
  return made;
}

FastMatmul* open_fast_matmul(char* why, size_t why_bytes) {
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::snprintf(why, why_bytes, "numerics: fast needs %s: %s", kLibrary, dlerror());
    return nullptr;
  }
  auto* fast = new FastMatmul();
  const cublasOperation_t transposed = CUBLAS_OP_T;
  const bool ready = find(library, "cublasLtCreate", fast->create) &&
                     find(library, "cublasLtDestroy", fast->destroy) &&
                     find(library, "cublasLtMatmul", fast->matmul) &&
                     find(library, "cublasLtMatmulDescCreate", fast->make_operation) &&
                     find(library, "cublasLtMatmulDescSetAttribute", fast->set_operation) &&
                     find(library, "cublasLtMatmulDescDestroy", fast->free_operation) &&
                     find(library, "cublasLtMatrixLayoutCreate", fast->make_layout) &&
                     find(library, "cublasLtMatrixLayoutDestroy", fast->free_layout) &&
                     find(library, "cublasLtMatmulPreferenceCreate", fast->make_preference) &&
                     find(library, "cublasLtMatmulPreferenceSetAttribute", fast->set_preference) &&
                     find(library, "cublasLtMatmulPreferenceDestroy", fast->free_preference) &&
                     find(library, "cublasLtMatmulAlgoGetHeuristic", fast->choose) &&
                     fast->create(&fast->handle) == CUBLAS_STATUS_SUCCESS &&
                     fast->make_operation(&fast->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
                         CUBLAS_STATUS_SUCCESS &&
                     fast->set_operation(fast->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof(transposed)) == CUBLAS_STATUS_SUCCESS;
  if (ready) return fast;
  std::snprintf(why, why_bytes, "numerics: fast: %s does not work on this device", kLibrary);
  delete fast;
  return nullptr;
}

void close_fast_matmul(FastMatmul* fast) { delete fast; }

// Rows that cuBLASLt reads begin at 16 bytes.
SplitRule split_rule_fast(DType type) {
  return type == DType::kBF16 ? SplitRule{.grain = 8, .segments = 0} : split_rule(type);
}

size_t packed_bytes_fast(DType type, int32_t n_out, int32_t n_in) {
  if (type != DType::kBF16) return packed_bytes(type, n_out, n_in);
  return static_cast<size_t>(n_out) * static_cast<size_t>(n_in) * 2;
}

void pack_fast(Stream& any, const PackArgs& a) {
  if (a.packed.order != nullptr || a.packed.dtype != DType::kBF16) return pack(any, a);
  const size_t row = static_cast<size_t>(a.packed.n_in) * 2;
  copy_rows_in(of(any),
               static_cast<char*>(a.packed.data) + static_cast<size_t>(a.column_begin) * row,
               a.source, row, source_stride_bytes(a), a.n_rows);
}

void matmul_fast(Stream& any, const MatmulArgs& a) {
  if (a.weights.order != nullptr || a.weights.dtype != DType::kBF16) return matmul(any, a);
  CudaStream& stream = of(any);
  if (a.apart && a.k_segments != 1) return stream.note(cudaErrorInvalidValue);  // split_rule_fast()
  FastMatmul& fast = *stream.fast;
  // x as bfloat16, followed by cuBLASLt's workspace: as many rows at once as leave room for it.
  constexpr uint64_t kWorkspaceMax = uint64_t{32} << 20;
  const uint64_t row_bytes = static_cast<uint64_t>(a.weights.n_in) * 2;
  const uint64_t for_x =
      stream.scratch_bytes -
      (stream.scratch_bytes > 2 * kWorkspaceMax ? kWorkspaceMax : stream.scratch_bytes / 2);
  const auto rows_at_once = static_cast<int32_t>(for_x / row_bytes);
  if (rows_at_once == 0) return stream.note(cudaErrorInvalidValue);
  auto* x = reinterpret_cast<__nv_bfloat16*>(stream.scratch);
  for (int32_t first = 0; first < a.n_rows; first += rows_at_once) {
    const int32_t rows = a.n_rows - first < rows_at_once ? a.n_rows - first : rows_at_once;
    const int64_t n = int64_t{rows} * a.weights.n_in;
    const uint64_t x_bytes = (static_cast<uint64_t>(n) * 2 + 255) / 256 * 256;
    const float* from = a.x + int64_t{first} * a.weights.n_in;
    to_bfloat16<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream.handle>>>(from, x, n);
    stream.note(cudaGetLastError());
    const uint64_t left = stream.scratch_bytes - x_bytes;
    const uint64_t workspace_bytes = left < kWorkspaceMax ? left : kWorkspaceMax;
    const FastMatmul::Plan& plan =
        fast.plan(rows, a.weights.n_out, a.weights.n_in, workspace_bytes);
    float* out = a.out + int64_t{first} * a.weights.n_out;
    const float one = 1, zero = 0;
    const bool done =
        plan.found &&
        fast.matmul(fast.handle, fast.operation, &one, a.weights.data, plan.weights, x, plan.x,
                    &zero, out, plan.out, out, plan.out, &plan.algorithm, stream.scratch + x_bytes,
                    workspace_bytes, stream.handle) == CUBLAS_STATUS_SUCCESS;
    if (!done) return stream.note(cudaErrorNotSupported);
  }
}

}  // namespace specd::kernels::cuda
