#include "core/device/cuda_device.h"

#include <cstring>

#include "core/base/library_file.h"
#include "core/device/open_cuda_device.h"

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
  return std::unique_ptr<Device>(
      std::make_unique<OpenCudaDevice>(cuda, std::move(device), limits.fast));
}

}  // namespace specd
