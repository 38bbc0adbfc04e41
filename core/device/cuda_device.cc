#include "core/device/cuda_device.h"

#include <cstring>

#include "core/base/library_file.h"

namespace specd {
namespace {

Result<const kernels::CudaLibrary*> load_cuda() {
  SPECD_TRY(const LoadedLibrary loaded, load_library({.what = "CUDA library",
                                                      .name = "libspecd_cuda.so",
                                                      .variable = "SPECD_CUDA_LIBRARY",
                                                      .symbol = kernels::kCudaSymbol,
                                                      .option = "-DSPECD_CUDA=ON"}));
  const kernels::CudaLibrary* library = reinterpret_cast<kernels::CudaLibraryFn>(loaded.symbol)();
  const std::string build(library->build, strnlen(library->build, 64));
  if (build != kernels::kCudaBuild || library->ops_bytes != sizeof(kernels::Ops)) {
    return Status(Code::kUnsupported, loaded.path + " has build '" + build + "', expected '" +
                                          kernels::kCudaBuild +
                                          "'; install the library that came with this program");
  }
  return library;
}

// Loads the library once per process. A failure is remembered too: the driver does not
// appear later.
const Result<const kernels::CudaLibrary*>& library() {
  static const auto& loaded = *new Result<const kernels::CudaLibrary*>(load_cuda());
  return loaded;
}

class OpenCudaDevice final : public Device {
 public:
  OpenCudaDevice(std::unique_ptr<kernels::CudaDevice> device, bool is_fast)
      : device_(std::move(device)), is_fast_(is_fast) {}

  std::string name() const override { return "cuda:" + std::to_string(index()); }
  std::string description() const override { return device_->info().name; }
  bool is_host() const override { return false; }
  int32_t index() const override { return device_->info().index; }
  uint64_t total_bytes() const override { return device_->info().total_bytes; }

  Result<Buffer> allocate(uint64_t bytes, const std::string& what) override {
    kernels::CudaProblem problem;
    void* data = device_->allocate(bytes, problem);
    if (data == nullptr) return Status(Code::kExhausted, what + ": " + problem.text);
    return Buffer(data, bytes, [this](void* held, uint64_t) { device_->release(held); });
  }
  Result<Buffer> allocate_pinned(uint64_t bytes, const std::string& what) override {
    kernels::CudaProblem problem;
    void* data = device_->allocate_pinned(bytes, problem);
    if (data == nullptr) return Status(Code::kExhausted, what + ": " + problem.text);
    std::memset(data, 0, bytes);
    return Buffer(data, bytes, [this](void* held, uint64_t) { device_->release_pinned(held); });
  }
  Result<std::unique_ptr<Device>> open_beside() override {
    // For loading: scratch for pack() is enough.
    return open_cuda_device(index(), {.rows_max = 1,
                                      .width_max = 16,
                                      .positions_max = 16,
                                      .scratch_bytes = uint64_t{32} << 20,
                                      .fast = is_fast_});
  }
  const kernels::Ops& ops() const override { return device_->ops(); }
  kernels::Stream& stream() override { return device_->stream(); }
  void* native_stream() override { return device_->native_stream(); }
  void copy_in(void* device, const void* host, uint64_t bytes) override {
    if (bytes > 0) device_->copy_in(device, host, bytes);
  }
  void copy_out(void* host, const void* device, uint64_t bytes) override {
    if (bytes > 0) device_->copy_out(host, device, bytes);
  }
  Status synchronize() override {
    kernels::CudaProblem problem;
    if (!device_->synchronize(problem)) fail(problem);
    return failed_;
  }
  Status begin_capture() override {
    kernels::CudaProblem problem;
    if (!device_->begin_capture(problem)) fail(problem);
    return failed_;
  }
  Result<int32_t> end_capture() override {
    kernels::CudaProblem problem;
    const int32_t graph = device_->end_capture(problem);
    if (graph < 0) return Status(Code::kInternal, problem.text);
    return graph;
  }
  void launch(int32_t graph) override { device_->launch(graph); }
  void release_graph(int32_t graph) override { device_->release_graph(graph); }

 private:
  // Records a failure permanently: a lost device stays lost for every later caller.
  void fail(const kernels::CudaProblem& problem) {
    if (failed_.ok()) failed_ = Status(Code::kInternal, problem.text);
  }

  std::unique_ptr<kernels::CudaDevice> device_;
  const bool is_fast_;  // matrices have the layout of its ops
  Status failed_;
};

}  // namespace

int32_t cuda_index(const std::string& name) {
  constexpr char kPrefix[] = "cuda:";
  constexpr size_t kPrefixBytes = sizeof(kPrefix) - 1;
  if (name.compare(0, kPrefixBytes, kPrefix) != 0) return -1;
  const std::string digits = name.substr(kPrefixBytes);
  if (digits.empty() || digits.size() > 4) return -1;
  if (digits.find_first_not_of("0123456789") != std::string::npos) return -1;
  return std::stoi(digits);
}

Result<std::unique_ptr<Device>> open_cuda_device(int32_t index, const kernels::CudaLimits& limits) {
  const std::string where = "cuda:" + std::to_string(index);
  if (!library().ok()) return library().status().with_context(where);
  const kernels::CudaLibrary& cuda = *library().value();
  kernels::CudaProblem problem;
  if (cuda.count(problem) < 0) return Status(Code::kUnsupported, where + ": " + problem.text);
  std::unique_ptr<kernels::CudaDevice> device(cuda.open(index, limits, problem));
  if (device == nullptr) return Status(Code::kUnsupported, problem.text);
  return std::unique_ptr<Device>(std::make_unique<OpenCudaDevice>(std::move(device), limits.fast));
}

}  // namespace specd
