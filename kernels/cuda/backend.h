// Shared by the files of the CUDA backend: the stream with its scratch memory, and one launcher
// per op.
#pragma once

#include <cuda_runtime.h>

#include "specd/kernels/cuda.h"

namespace specd::kernels::cuda {

struct FastMatmul;  // cuBLASLt; matmul_fast.cu

class CudaStream final : public Stream {
 public:
  int32_t device = 0;
  cudaStream_t handle = nullptr;
  int32_t multiprocessors = 0;
  size_t shared_bytes_max = 0;  // of a block that asks for it
  bool starts_early = false;    // compute capability 9.0 and later: see launch_early()
  // Used by one op at a time, in stream order.
  char* scratch = nullptr;
  uint64_t scratch_bytes = 0;
  int32_t positions_max = 0;
  bool capturing = false;
  FastMatmul* fast = nullptr;  // null = strict

  // Keeps the first failure until synchronize() reports it; the runtime would forget it.
  void note(cudaError_t error) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    if (failed == cudaSuccess) failed = error;
  }
  cudaError_t failed = cudaSuccess;
};

// Returns the stream of an op and makes its device current for this thread.
inline CudaStream& of(Stream& any) {
  auto& stream = static_cast<CudaStream&>(any);
  stream.note(cudaSetDevice(stream.device));
  return stream;
}

// Launches a kernel that may start while the one before it in the stream still runs (CUDA programming
// guide, "Programmatic Dependent Launch"), as ptx.cuh says at let_next_start(). A launch costs a
// microsecond or more between two kernels; this way the next one is there when it may go on, and
// matmuls read weights meanwhile.
template <typename... Params, typename... Args>
void launch_early(CudaStream& stream, dim3 grid, dim3 block, size_t shared_bytes,
                  void (*kernel)(Params...), Args... args) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  config.attrs = &early, config.numAttrs = stream.starts_early ? 1 : 0;
  stream.note(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}

inline unsigned blocks_for(int64_t n, int64_t per_block) {
  return static_cast<unsigned>((n + per_block - 1) / per_block);
}
// The bytes of shared memory that a block of an early launch asks for, at the least. Early launches fill
// multiprocessors while the kernel before them still runs: those that it leaves first would get the most blocks
// and finish last. With an even share of the shared memory no multiprocessor takes more blocks than an even
// distribution of `blocks` gives it.
size_t even_share(const CudaStream& stream, unsigned blocks);

// Copies from host memory in stream order. Unpinned memory is read before this returns, and is
// refused in a capture, which would read it again at every launch.
void copy_in(CudaStream& stream, void* device, const void* host, uint64_t bytes);
void copy_out(CudaStream& stream, void* host, const void* device, uint64_t bytes);
// Copies the rows of a matrix to be packed: n rows of row_bytes, which begin stride_bytes apart.
void copy_rows_in(CudaStream& stream, void* device, const void* host, uint64_t row_bytes,
                  uint64_t stride_bytes, int32_t n);
// Bytes from one row of the source to the next.
inline uint64_t source_stride_bytes(const PackArgs& a) {
  const int64_t elements = a.source_stride == 0 ? a.packed.n_in : a.source_stride;
  return static_cast<uint64_t>(elements) * dtype_bytes(a.packed.dtype);
}

// ranks.cu. NCCL is loaded by the first call; null or false and the reason when that fails.
bool make_group(CudaGroupId* id, CudaProblem& problem);
CudaRank* join_group(CudaStream& stream, const CudaGroupId& id, int32_t rank, int32_t n_ranks,
                     CudaWait& wait, CudaProblem& problem);

// For the current device of this thread: lets attention use that much shared memory.
cudaError_t open_attention(int32_t shared_bytes_max);
// The same for matmuls.
cudaError_t open_matmul(int32_t shared_bytes_max);
// Matrices of codes, which pack() and matmul() pass on: codes.cu. Before them, for the current device:
// open_codes() and open_codes_fast().
cudaError_t open_codes(int32_t shared_bytes_max);
cudaError_t open_codes_fast(int32_t shared_bytes_max);
size_t packed_code_bytes(const CodeOrder& order, int32_t n_out);
void pack_codes(CudaStream& stream, const PackArgs& args);
void matmul_codes(CudaStream& stream, const MatmulArgs& args);
// For the current device of this thread. Returns null and the reason on failure.
FastMatmul* open_fast_matmul(char* why, size_t why_bytes);
void close_fast_matmul(FastMatmul* fast);
SplitRule split_rule_fast(DType type);
size_t packed_bytes_fast(DType type, int32_t n_out, int32_t n_in);
void pack_fast(Stream& stream, const PackArgs& args);
void matmul_fast(Stream& stream, const MatmulArgs& args);

SplitRule split_rule(DType type);
size_t packed_bytes(DType type, int32_t n_out, int32_t n_in);
void pack(Stream& stream, const PackArgs& args);
void embed(Stream& stream, const EmbedArgs& args);
void rmsnorm(Stream& stream, const RmsNormArgs& args);
void head_norm(Stream& stream, const HeadNormArgs& args);
void matmul(Stream& stream, const MatmulArgs& args);
void add_segments(Stream& stream, const AddSegmentsArgs& args);
void rope_table(Stream& stream, const RopeTableArgs& args);
void rope_append(Stream& stream, const RopeAppendArgs& args);
void attention(Stream& stream, const AttentionArgs& args);
void map(Stream& stream, const MapArgs& args);
void copy_rows(Stream& stream, const CopyRowsArgs& args);
void kv_move(Stream& stream, const KvMoveArgs& args);
void penalize(Stream& stream, const PenalizeArgs& args);
void draw(Stream& stream, const DrawArgs& args);
void draw_noise(Stream& stream, const DrawNoiseArgs& args);
void uniform(Stream& stream, const UniformArgs& args);
void top_k(Stream& stream, const TopKArgs& args);
void log_prob(Stream& stream, const LogProbArgs& args);
void pick_tokens(Stream& stream, const PickTokensArgs& args);
void clamp_nodes(Stream& stream, const ClampNodesArgs& args);
void walk_tree(Stream& stream, const WalkTreeArgs& args);

}  // namespace specd::kernels::cuda
