// A safetensors file, mapped read-only.
//
// Format: u64 little-endian N; N bytes of JSON (name -> dtype, shape, data_offsets, plus an
// optional __metadata__ of strings), with trailing spaces allowed; then the values,
// little-endian, row-major.
//
// open() trusts nothing. It refuses a header longer than the file or 100 MB, duplicate names,
// unknown dtypes, products that overflow, offsets outside the file or inconsistent with the shape,
// overlaps, holes and trailing bytes. Errors are kDataLoss (bad content), kNotFound,
// kInvalidArgument (not a regular file) or kFailedPrecondition (unreadable). They name the path,
// the tensor or byte offset, what was expected and what was found.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "specd/kernels/types.h"

namespace specd {

enum class TensorType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kF8E5M2,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};
const char* tensor_type_name(TensorType type);           // as in the file: "BF16"
std::string shape_text(std::span<const int64_t> shape);  // "[2, 3]"
uint64_t tensor_type_bytes(TensorType type);

struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;  // may be empty (a scalar) or contain zeros
  const void* data = nullptr;  // in the mapping, owned by the file; may be unaligned
  uint64_t bytes = 0;          // product of shape times tensor_type_bytes
  uint64_t file_offset = 0;    // of data
};

// The corresponding type of the kernels; kUnsupported when there is none.
Result<kernels::DType> kernel_dtype(TensorType type);

// Owns the mapping: views are valid while it exists. Reading is thread-safe. The file must not be
// truncated while mapped (the system would deliver SIGBUS): replace model files by renaming, never
// in place.
class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&& other) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&& other) noexcept;
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const TensorView* find(std::string_view name) const;  // nullptr when absent
  // Returns the tensor if it has exactly this shape and a type that the kernels support; otherwise
  // an error with the difference.
  Result<const TensorView*> require(std::string_view name, std::span<const int64_t> shape) const;

  const std::map<std::string, TensorView, std::less<>>& tensors() const { return tensors_; }
  const std::string& path() const { return path_; }
  uint64_t file_bytes() const { return mapping_bytes_; }

 private:
  SafetensorsFile() = default;

  std::string path_;
  void* mapping_ = nullptr;
  uint64_t mapping_bytes_ = 0;
  std::map<std::string, TensorView, std::less<>> tensors_;
};

}  // namespace specd
