// libcublasLt for the emulator: D = A^T B with bfloat16 A and B and float32 D, by columns, each element
// summed in float64. Everything else is refused.
#include <bit>
#include <cstring>

#include "tests/device/emulated/include/cublasLt.h"

struct EmulatedLt {};
struct EmulatedOperation {
  bool transposed = false;
};
struct EmulatedLayout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t stride;
};
struct EmulatedPreference {
  uint64_t workspace_bytes = 0;
};

namespace {

float widen(uint16_t x) { return std::bit_cast<float>(uint32_t{x} << 16); }

bool supported(const EmulatedOperation& operation, const EmulatedLayout& a, const EmulatedLayout& b,
               const EmulatedLayout& d) {
  // 16-byte rows, as the tensor cores want them.
  return operation.transposed && a.type == CUDA_R_16BF && b.type == CUDA_R_16BF &&
         d.type == CUDA_R_32F && a.rows == b.rows && d.rows == a.columns &&
         d.columns == b.columns && a.stride % 8 == 0 && b.stride % 8 == 0;
}

}  // namespace

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new EmulatedLt();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation,
                                        cublasComputeType_t compute, cudaDataType scale) {
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *operation = new EmulatedOperation();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t, const void* value,
                                              size_t bytes) {
  cublasOperation_t asked = CUBLAS_OP_N;
  if (bytes != sizeof(asked)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&asked, value, bytes);
  operation->transposed = asked == CUBLAS_OP_T;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  delete operation;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t stride) {
  *layout = new EmulatedLayout{type, rows, columns, stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new EmulatedPreference();
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void* value, size_t bytes) {
  if (bytes != sizeof(preference->workspace_bytes)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&preference->workspace_bytes, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t, int requested,
                                              cublasLtMatmulHeuristicResult_t* found,
                                              int* n_found) {
  *n_found = requested > 0 && supported(*operation, *a, *b, *d) ? 1 : 0;
  if (*n_found == 1) *found = {};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void*,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void* workspace, size_t workspace_bytes,
                              cudaStream_t stream) {
  const bool plain =
      *static_cast<const float*>(alpha) == 1 && *static_cast<const float*>(beta) == 0;
  if (!plain || !supported(*operation, *a_layout, *b_layout, *d_layout)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const EmulatedLayout la = *a_layout, lb = *b_layout, ld = *d_layout;
  specd::emulated::enqueue(stream, [=]() -> int {
    const auto used = [](const void* data, const EmulatedLayout& layout, size_t element,
                         bool write) {
      return specd::emulated::use(
          "cublasLtMatmul", data,
          (static_cast<uint64_t>(layout.stride) * (layout.columns - 1) + layout.rows) * element,
          write);
    };
    if (!used(a, la, 2, false) || !used(b, lb, 2, false) || !used(d, ld, 4, true) ||
        !specd::emulated::use("cublasLtMatmul", workspace, workspace_bytes, true)) {
      return cudaErrorIllegalAddress;
    }
    std::memset(workspace, 0xff, workspace_bytes);  // it may write all of it
    for (uint64_t column = 0; column < ld.columns; ++column) {
      for (uint64_t row = 0; row < ld.rows; ++row) {
        const auto* x = static_cast<const uint16_t*>(a) + static_cast<int64_t>(row) * la.stride;
        const auto* y = static_cast<const uint16_t*>(b) + static_cast<int64_t>(column) * lb.stride;
        double sum = 0;
        for (uint64_t k = 0; k < la.rows; ++k) sum += double{widen(x[k])} * widen(y[k]);
        auto* out = static_cast<float*>(d) + static_cast<int64_t>(column) * ld.stride + row;
        *out = static_cast<float>(sum);
      }
    }
    return cudaSuccess;
  });
  return CUBLAS_STATUS_SUCCESS;
}
