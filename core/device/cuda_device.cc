#include "core/device/cuda_device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace specd {
namespace {

constexpr char kLibraryName[] = "libspecd_cuda.so";

std::vector<std::string> places() {
  if (const char* given = std::getenv("SPECD_CUDA_LIBRARY"); given != nullptr && *given != '\0') {
    return {given};
  }
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  const std::string executable(path, n > 0 ? static_cast<size_t>(n) : 0);
  const std::string folder = executable.substr(0, executable.rfind('/') + 1);
  return {folder + kLibraryName, folder + "../lib/" + kLibraryName};
}

Result<const kernels::CudaLibrary*> load_library() {
  std::string tried;
  for (const std::string& place : places()) {
    tried += (tried.empty() ? "" : ", ") + place;
    if (access(place.c_str(), F_OK) != 0) continue;
    void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      return Status(Code::kUnsupported, place + " cannot be loaded: " + (why ? why : "no reason"));
    }
    const auto entry =
        reinterpret_cast<kernels::CudaLibraryFn>(dlsym(handle, kernels::kCudaSymbol));
    if (entry == nullptr) {
      return Status(Code::kUnsupported, place + " exports no " + kernels::kCudaSymbol);
    }
    const kernels::CudaLibrary* library = entry();
    const std::string build(library->build, strnlen(library->build, 64));
    if (build != kernels::kCudaBuild || library->ops_bytes != sizeof(kernels::Ops)) {
      return Status(Code::kUnsupported, place + " has build '" + build + "', expected '" +
                                            kernels::kCudaBuild +
                                            "'; install the library that came with this program");
    }
    return library;
  }
  return Status(Code::kUnsupported,
                "this installation has no CUDA library (looked for " + tried +
                    "); build with -DSPECD_CUDA=ON, or set SPECD_CUDA_LIBRARY to its path");
}

// Loads the library once per process. A failure is remembered too: the driver does not
// appear later.
const Result<const kernels::CudaLibrary*>& library() {
  static const auto& loaded = *new Result<const kernels::CudaLibrary*>(load_library());
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
