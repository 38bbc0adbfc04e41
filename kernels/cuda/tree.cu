// Tokens that only the device knows: copying them into rows, cutting, and walking down a tree. One
// thread per number or sequence, because there are few. Same bits as on the CPU.
#include "kernels/cuda/backend.h"

namespace specd::kernels::cuda {
namespace {

constexpr int kThreads = 128;

unsigned blocks_of(int32_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

__global__ void pick_tokens_kernel(PickTokensArgs a) {
  const int32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= a.n) return;
  const int32_t token = a.source[a.from[i]];
  a.target[a.to[i]] = token >= 0 && token < a.vocab ? token : a.otherwise;
}

__global__ void clamp_nodes_kernel(ClampNodesArgs a) {
  const int64_t s = blockIdx.x * kThreads + threadIdx.x;
  if (s >= a.n) return;
  const int32_t* token = a.token + s * a.capacity;
  const int32_t most = min(a.n_nodes[s], a.capacity);
  int32_t n = 0;
  while (n < most && token[n] >= 0 && token[n] < a.vocab) ++n;
  a.n_nodes[s] = n;
}

__global__ void walk_tree_kernel(WalkTreeArgs a) {
  const int64_t s = blockIdx.x * kThreads + threadIdx.x;
  if (s >= a.n) return;
  const int64_t row = s * a.capacity;
  const int32_t* wanted = a.wanted + s * (a.capacity + 1);
  const int32_t n_nodes = min(a.n_nodes[s], a.capacity);
  int32_t n = 0, at = -1;
  for (int32_t node = 0; node < n_nodes && n < a.path_capacity; ++node) {
    const bool skipped = a.flags != nullptr && (a.flags[row + node] & a.skip_flags) != 0;
    if (skipped || a.parent[row + node] != at || a.token[row + node] != wanted[at + 1]) continue;
    a.path[s * a.path_capacity + n++] = node;
    at = node;
  }
  a.n_path[s] = n;
  a.last[s] = wanted[at + 1];
}

}  // namespace

void pick_tokens(Stream& any, const PickTokensArgs& a) {
  if (a.n == 0) return;
  CudaStream& stream = of(any);
  pick_tokens_kernel<<<blocks_of(a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void clamp_nodes(Stream& any, const ClampNodesArgs& a) {
  if (a.n == 0) return;
  CudaStream& stream = of(any);
  clamp_nodes_kernel<<<blocks_of(a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

void walk_tree(Stream& any, const WalkTreeArgs& a) {
  if (a.n == 0) return;
  CudaStream& stream = of(any);
  walk_tree_kernel<<<blocks_of(a.n), kThreads, 0, stream.handle>>>(a);
  stream.note(cudaGetLastError());
}

}  // namespace specd::kernels::cuda
