// Devices, memory, copies, graphs; the exports of libspecd_cuda.
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/cuda/backend.h"

namespace specd::kernels::cuda {
namespace {

constexpr int32_t kMajorMin = 8;

__attribute__((format(printf, 2, 3))) void say(CudaProblem& problem, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(problem.text, sizeof(problem.text), format, arguments);
  va_end(arguments);
}

constexpr Ops kOps = {"cuda",       &split_rule,  &packed_bytes, &pack,         &embed,
                      &rmsnorm,     &head_norm,   &matmul,       &add_segments, &rope_table,
                      &rope_append, &attention,   &map,          &copy_rows,    &kv_move,
                      &penalize,    &draw,        &draw_noise,   &uniform,      &top_k,
                      &log_prob,    &pick_tokens, &clamp_nodes,  &walk_tree,    &packed_code_bytes};

constexpr Ops fast_ops() {
  Ops ops = kOps;
  ops.name = "cuda-fast";
  ops.split_rule = &split_rule_fast;
  ops.packed_bytes = &packed_bytes_fast;
  ops.pack = &pack_fast;
  ops.matmul = &matmul_fast;
  return ops;
}
constexpr Ops kFastOps = fast_ops();

class Device final : public CudaDevice {
 public:
  // Call once. Returns false and the reason on failure.
  bool open(int32_t index, const CudaLimits& limits, CudaProblem& problem) {
    info_.index = index;
    cudaDeviceProp properties{};
    cudaError_t error = cudaSetDevice(index);
    if (error == cudaSuccess) error = cudaGetDeviceProperties(&properties, index);
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      say(problem, "cuda:%d: %s", index, cudaGetErrorString(error));
      return false;
    }
    std::snprintf(info_.name, sizeof(info_.name), "%s", properties.name);
    info_.major = properties.major;
    info_.minor = properties.minor;
    info_.multiprocessors = properties.multiProcessorCount;
    if (info_.major < kMajorMin) {
      say(problem, "cuda:%d: %s has compute capability %d.%d, needed is %d.0 or later", index,
          info_.name, info_.major, info_.minor, kMajorMin);
      return false;
    }
    // Checks that the driver can run the compiled code, rather than failing at the first launch.
    cudaFuncAttributes attributes{};
    error = cudaFuncGetAttributes(&attributes, probe_);
    size_t free_bytes = 0, total_bytes = 0;
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking);
    }
    if (error == cudaSuccess) {
      error = cudaStreamCreateWithFlags(&memory_stream_, cudaStreamNonBlocking);
    }
    for (cudaEvent_t& mark : marks_) {
      if (error == cudaSuccess) error = cudaEventCreate(&mark);
    }
    stream_.shared_bytes_max = properties.sharedMemPerBlockOptin;
    stream_.starts_early = properties.major >= 9;
    if (error == cudaSuccess)
      error = open_attention(static_cast<int32_t>(stream_.shared_bytes_max));
    if (error == cudaSuccess) error = open_matmul(static_cast<int32_t>(stream_.shared_bytes_max));
    if (error == cudaSuccess) error = open_codes(static_cast<int32_t>(stream_.shared_bytes_max));
    if (error == cudaSuccess)
      error = open_codes_fast(static_cast<int32_t>(stream_.shared_bytes_max));
    if (error != cudaSuccess) {
      (void)cudaGetLastError();
      say(problem, "cuda:%d: %s cannot run this library: %s", index, info_.name,
          cudaGetErrorString(error));
      return false;
    }
    // x of a matmul, 4 bytes an element in tiles of 64 rows; parts of attention for a few rows.
    const uint64_t x_bytes = static_cast<uint64_t>((limits.rows_max + 63) / 64) * 64 *
                             static_cast<uint64_t>((limits.width_max + 15) / 16) * 16 * 4;
    stream_.scratch_bytes = x_bytes > limits.scratch_bytes ? x_bytes : limits.scratch_bytes;
    info_.scratch_bytes = stream_.scratch_bytes;
    stream_.multiprocessors = info_.multiprocessors;
    stream_.positions_max = limits.positions_max;
    stream_.device = index;
    stream_.scratch = static_cast<char*>(allocate(stream_.scratch_bytes, problem));
    if (stream_.scratch == nullptr) return false;
    if (limits.fast) {
      CudaProblem why;
      stream_.fast = open_fast_matmul(why.text, sizeof(why.text));
      if (stream_.fast == nullptr) {
        say(problem, "cuda:%d: %s", index, why.text);
        return false;
      }
    }
    stream_.note(cudaMemGetInfo(&free_bytes, &total_bytes));
    info_.total_bytes = total_bytes;
    info_.free_bytes = free_bytes;
    return synchronize(problem);
  }

  ~Device() override {
    (void)cudaSetDevice(info_.index);
    if (stream_.handle != nullptr) cudaStreamSynchronize(stream_.handle);
    for (cudaGraphExec_t graph : graphs_) {
      if (graph != nullptr) cudaGraphExecDestroy(graph);
    }
    if (stream_.fast != nullptr) close_fast_matmul(stream_.fast);
    if (stream_.scratch != nullptr) cudaFree(stream_.scratch);
    for (cudaEvent_t mark : marks_) {
      if (mark != nullptr) cudaEventDestroy(mark);
    }
    if (memory_stream_ != nullptr) cudaStreamDestroy(memory_stream_);
    if (stream_.handle != nullptr) cudaStreamDestroy(stream_.handle);
  }

  const CudaDeviceInfo& info() const override { return info_; }
  const Ops& ops() const override { return stream_.fast == nullptr ? kOps : kFastOps; }
  Stream& stream() override { return stream_; }
  void* native_stream() override { return stream_.handle; }

  void* allocate(uint64_t bytes, CudaProblem& problem) override {
    // Not in the ops' stream: other threads allocate memory while steps run or are captured.
    void* data = nullptr;
    cudaError_t error = cudaSetDevice(info_.index);
    if (error == cudaSuccess) error = cudaMalloc(&data, bytes == 0 ? 1 : bytes);
    if (error == cudaSuccess) {
      error = cudaMemsetAsync(data, 0, bytes, memory_stream_);
      if (error == cudaSuccess) error = cudaStreamSynchronize(memory_stream_);
      if (error == cudaSuccess) return data;
      cudaFree(data);
    }
    (void)cudaGetLastError();  // an allocation failure is not a failure of the stream
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    say(problem, "cuda:%d needs %llu bytes, has %llu free of %llu: %s", info_.index,
        static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(free_bytes),
        static_cast<unsigned long long>(total_bytes), cudaGetErrorString(error));
    return nullptr;
  }
  // A failed device reports it in synchronize(), not here.
  void release(void* data) override {
    (void)cudaSetDevice(info_.index);
    (void)cudaFree(data);
  }

  void* allocate_pinned(uint64_t bytes, CudaProblem& problem) override {
    void* data = nullptr;
    cudaError_t error = cudaSetDevice(info_.index);
    if (error == cudaSuccess) error = cudaMallocHost(&data, bytes == 0 ? 1 : bytes);
    if (error == cudaSuccess) return data;
    (void)cudaGetLastError();
    say(problem, "cuda:%d: %llu bytes of pinned host memory: %s", info_.index,
        static_cast<unsigned long long>(bytes), cudaGetErrorString(error));
    return nullptr;
  }
  void release_pinned(void* data) override { (void)cudaFreeHost(data); }

  void copy_in(void* device, const void* host, uint64_t bytes) override {
    cuda::copy_in(of(stream_), device, host, bytes);
  }
  void copy_out(void* host, const void* device, uint64_t bytes) override {
    cuda::copy_out(of(stream_), host, device, bytes);
  }

  bool begin_capture(CudaProblem& problem) override {
    if (!synchronize(problem)) return false;
    const cudaError_t error =
        cudaStreamBeginCapture(of(stream_).handle, cudaStreamCaptureModeRelaxed);
    stream_.capturing = error == cudaSuccess;
    if (stream_.capturing) return true;
    (void)cudaGetLastError();
    say(problem, "cuda:%d: capture: %s", info_.index, cudaGetErrorString(error));
    return false;
  }
  int32_t end_capture(CudaProblem& problem) override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    stream_.capturing = false;
    stream_.note(cudaStreamEndCapture(of(stream_).handle, &graph));
    // A failed op has left no node; a graph would skip it at every launch.
    if (stream_.failed == cudaSuccess) stream_.note(cudaGraphInstantiate(&ready, graph, 0));
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (stream_.failed != cudaSuccess) {
      say(problem, "cuda:%d: capture: %s", info_.index, cudaGetErrorString(stream_.failed));
      stream_.failed = cudaSuccess;
      return -1;
    }
    if (free_graphs_.empty()) {
      graphs_.push_back(ready);
      return static_cast<int32_t>(graphs_.size()) - 1;
    }
    const int32_t place = free_graphs_.back();
    free_graphs_.pop_back();
    graphs_[static_cast<size_t>(place)] = ready;
    return place;
  }
  void launch(int32_t graph) override {
    of(stream_).note(cudaGraphLaunch(graphs_[static_cast<size_t>(graph)], stream_.handle));
  }
  void release_graph(int32_t graph) override {
    cudaGraphExec_t& ready = graphs_[static_cast<size_t>(graph)];
    of(stream_).note(cudaGraphExecDestroy(ready));
    ready = nullptr;
    free_graphs_.push_back(graph);
  }

  bool is_done() override {
    const cudaError_t error = cudaStreamQuery(of(stream_).handle);
    if (error == cudaErrorNotReady) {
      (void)cudaGetLastError();
      return false;
    }
    stream_.note(error);
    return true;
  }
  CudaRank* join(const CudaGroupId& id, int32_t rank, int32_t n_ranks, CudaWait& wait,
                 CudaProblem& problem) override {
    return join_group(of(stream_), id, rank, n_ranks, wait, problem);
  }
  bool synchronize(CudaProblem& problem) override {
    stream_.note(cudaStreamSynchronize(of(stream_).handle));
    const cudaError_t error = stream_.failed;
    stream_.failed = cudaSuccess;
    if (error == cudaSuccess) return true;
    say(problem, "cuda:%d (%s): %s (%s)", info_.index, info_.name, cudaGetErrorString(error),
        cudaGetErrorName(error));
    return false;
  }
  void mark(int32_t which) override {
    of(stream_).note(cudaEventRecord(marks_[which], stream_.handle));
  }
  uint64_t elapsed_ns() override {
    float ms = 0;
    stream_.note(cudaEventSynchronize(marks_[1]));
    stream_.note(cudaEventElapsedTime(&ms, marks_[0], marks_[1]));
    return static_cast<uint64_t>(static_cast<double>(ms) * 1e6);
  }

 private:
  static const void* const probe_;
  CudaDeviceInfo info_;
  CudaStream stream_;
  cudaStream_t memory_stream_ = nullptr;
  cudaEvent_t marks_[2] = {};
  std::vector<cudaGraphExec_t> graphs_;  // null: released
  std::vector<int32_t> free_graphs_;
};

__global__ void probe() {}
const void* const Device::probe_ = reinterpret_cast<const void*>(&probe);

int32_t count(CudaProblem& problem) {
  int n = 0;
  int driver = 0, runtime = 0;
  const cudaError_t error = cudaGetDeviceCount(&n);
  if (error == cudaSuccess) return n;
  (void)cudaGetLastError();
  if (error == cudaErrorNoDevice) return 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  if (driver == 0) {
    say(problem, "no CUDA driver is installed (%s)", cudaGetErrorString(error));
  } else {
    say(problem, "the CUDA driver is for CUDA %d.%d, this library is built with %d.%d: %s",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
        cudaGetErrorString(error));
  }
  return -1;
}

CudaDevice* open(int32_t index, const CudaLimits& limits, CudaProblem& problem) {
  const int32_t n = count(problem);
  if (n < 0) return nullptr;
  if (index < 0 || index >= n) {
    say(problem, "cuda:%d: this machine has %d CUDA device%s", index, n, n == 1 ? "" : "s");
    return nullptr;
  }
  auto* device = new Device();
  if (device->open(index, limits, problem)) return device;
  delete device;
  return nullptr;
}

constexpr CudaLibrary kLibrary = {kCudaBuild, sizeof(Ops), &count, &open, &make_group};

void copy(CudaStream& stream, void* to, const void* from, const void* host, uint64_t bytes,
          cudaMemcpyKind kind) {
  cudaPointerAttributes attributes{};
  const cudaError_t known = cudaPointerGetAttributes(&attributes, host);
  const bool pinned = known == cudaSuccess && attributes.type == cudaMemoryTypeHost;
  if (known != cudaSuccess) (void)cudaGetLastError();
  if (stream.capturing && !pinned) {
    stream.note(cudaErrorStreamCaptureUnsupported);
    return;
  }
  stream.note(cudaMemcpyAsync(to, from, bytes, kind, stream.handle));
  if (!pinned) stream.note(cudaStreamSynchronize(stream.handle));
}

}  // namespace

void copy_in(CudaStream& stream, void* device, const void* host, uint64_t bytes) {
  copy(stream, device, host, host, bytes, cudaMemcpyHostToDevice);
}
void copy_out(CudaStream& stream, void* host, const void* device, uint64_t bytes) {
  copy(stream, host, device, host, bytes, cudaMemcpyDeviceToHost);
}
void copy_rows_in(CudaStream& stream, void* device, const void* host, uint64_t row_bytes,
                  uint64_t stride_bytes, int32_t n) {
  if (row_bytes == stride_bytes) {
    copy_in(stream, device, host, row_bytes * static_cast<uint64_t>(n));
    return;
  }
  if (stream.capturing) return stream.note(cudaErrorStreamCaptureUnsupported);
  stream.note(cudaMemcpy2DAsync(device, row_bytes, host, stride_bytes, row_bytes,
                                static_cast<size_t>(n), cudaMemcpyHostToDevice, stream.handle));
  stream.note(cudaStreamSynchronize(stream.handle));
}

}  // namespace specd::kernels::cuda

extern "C" __attribute__((visibility("default"))) const specd::kernels::CudaLibrary*
specd_cuda_library() {
  return &specd::kernels::cuda::kLibrary;
}
