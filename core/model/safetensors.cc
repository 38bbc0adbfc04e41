#include "core/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "core/base/file_descriptor.h"
#include "core/base/json.h"
#include "core/base/last_words.h"
#include "core/base/quote.h"

namespace specd {
namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the reference implementation's limit
constexpr uint64_t kLengthBytes = 8;
constexpr char kQuantizedHint[] =
    "; only linear layers can be quantized, in a layout that specd reads; use the "
    "checkpoint that this one was made from";

struct TypeInfo {
  const char* name;
  uint64_t bytes;
};
// In the order of TensorType.
constexpr std::array<TypeInfo, 15> kTensorTypes = {{{"F64", 8},
                                                    {"F32", 4},
                                                    {"F16", 2},
                                                    {"BF16", 2},
                                                    {"F8_E4M3", 1},
                                                    {"F8_E5M2", 1},
                                                    {"I64", 8},
                                                    {"I32", 4},
                                                    {"I16", 2},
                                                    {"I8", 1},
                                                    {"U64", 8},
                                                    {"U32", 4},
                                                    {"U16", 2},
                                                    {"U8", 1},
                                                    {"BOOL", 1}}};

std::optional<TensorType> type_of(std::string_view name) {
  for (size_t i = 0; i < kTensorTypes.size(); ++i) {
    if (name == kTensorTypes[i].name) return static_cast<TensorType>(i);
  }
  return std::nullopt;
}

Status lies(const std::string& where, const std::string& what) {
  return Status(Code::kDataLoss, where + ": " + what);
}

// Parses one entry of the header. data_bytes is the number of bytes after the header.
Result<TensorView> parse_tensor(const Json& entry, const std::string& where, uint64_t data_bytes) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  TensorView view;
  SPECD_TRY(const std::string dtype, json_string(entry, "dtype", where));
  const std::optional<TensorType> type = type_of(dtype);
  if (!type) {
    std::string known;
    for (const TypeInfo& each : kTensorTypes) known += std::string(" ") + each.name;
    const bool is_number = std::string_view("FIU").find(dtype.substr(0, 1)) != std::string::npos;
    return Status(Code::kUnsupported, where + ": dtype " + quote(dtype) + ", known are" + known +
                                          (is_number && !dtype.empty() ? kQuantizedHint : ""));
  }
  view.type = *type;
  for (const auto& [key, value] : entry.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return lies(where, "unknown key " + quote(key) + ", expected dtype, shape and data_offsets");
    }
  }

  const auto shape = entry.find("shape");
  if (shape == entry.end() || !shape->is_array()) {
    return lies(where, "'shape' must be a list of integers");
  }
  uint64_t expected = tensor_type_bytes(view.type);
  bool empty = false;
  for (const Json& dim : *shape) {
    SPECD_TRY(const int64_t n, json_int(Json{{"shape", dim}}, "shape", 0, kMax, where));
    view.shape.push_back(n);
    if (n == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(expected, static_cast<uint64_t>(n), &expected)) {
      return lies(where, "the product of the shape overflows");
    }
  }
  if (empty) expected = 0;

  const auto offsets = entry.find("data_offsets");
  if (offsets == entry.end() || !offsets->is_array() || offsets->size() != 2) {
    return lies(where, "'data_offsets' must be a list of two integers");
  }
  SPECD_TRY(const int64_t begin,
            json_int(Json{{"data_offsets", (*offsets)[0]}}, "data_offsets", 0, kMax, where));
  SPECD_TRY(const int64_t end,
            json_int(Json{{"data_offsets", (*offsets)[1]}}, "data_offsets", 0, kMax, where));
  const std::string found =
      "data_offsets [" + std::to_string(begin) + ", " + std::to_string(end) + "]";
  if (end < begin) return lies(where, found + " run backwards");
  if (static_cast<uint64_t>(end) > data_bytes) {
    return lies(where, found + " leave the file, which has " + std::to_string(data_bytes) +
                           " bytes of data; is it truncated?");
  }
  view.bytes = static_cast<uint64_t>(end - begin);
  if (view.bytes != expected) {
    return lies(where, found + " hold " + std::to_string(view.bytes) + " bytes, but " + dtype +
                           " " + shape_text(view.shape) + " needs " + std::to_string(expected));
  }
  // relative to the end of the header until open() adds it
  view.file_offset = static_cast<uint64_t>(begin);
  return view;
}

Status check_metadata(const Json& metadata, const std::string& path) {
  if (!metadata.is_object()) return lies(path, "'__metadata__' must be an object of strings");
  for (const auto& [key, value] : metadata.items()) {
    if (!value.is_string()) {
      return lies(path, "'__metadata__': the value of " + quote(key) + " must be a string");
    }
  }
  return Status();
}

// Checks that every byte of data belongs to exactly one tensor.
Status check_cover(const std::map<std::string, TensorView, std::less<>>& tensors,
                   uint64_t data_begin, uint64_t file_bytes, const std::string& path) {
  using Entry = std::pair<const std::string, TensorView>;
  std::vector<const Entry*> order;
  order.reserve(tensors.size());
  for (const Entry& entry : tensors) order.push_back(&entry);
  std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
    return std::pair(a->second.file_offset, a->second.bytes) <
           std::pair(b->second.file_offset, b->second.bytes);
  });
  uint64_t covered = data_begin;
  for (const Entry* entry : order) {
    const TensorView& view = entry->second;
    if (view.file_offset != covered) {
      return lies(path, "tensor " + quote(entry->first) + " begins at byte " +
                            std::to_string(view.file_offset) + ", expected byte " +
                            std::to_string(covered) +
                            (view.file_offset < covered ? ": tensors overlap" : ": a hole"));
    }
    covered += view.bytes;
  }
  if (covered != file_bytes) {
    return lies(path, "the tensors end at byte " + std::to_string(covered) + ", but the file has " +
                          std::to_string(file_bytes) + " bytes");
  }
  return Status();
}

}  // namespace

std::string shape_text(std::span<const int64_t> shape) {
  std::string out = "[";
  for (const int64_t n : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
  return out + "]";
}

const char* tensor_type_name(TensorType type) {
  return kTensorTypes[static_cast<size_t>(type)].name;
}
uint64_t tensor_type_bytes(TensorType type) {
  return kTensorTypes[static_cast<size_t>(type)].bytes;
}

Result<kernels::DType> kernel_dtype(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return kernels::DType::kF32;
    case TensorType::kF16:
      return kernels::DType::kF16;
    case TensorType::kBF16:
      return kernels::DType::kBF16;
    default:
      return Status(Code::kUnsupported, std::string("weights of type ") + tensor_type_name(type) +
                                            ", supported are F32, F16 and BF16" + kQuantizedHint);
  }
}

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path_text) {
  const std::string path = quote(path_text, 400);
  // With O_NONBLOCK, opening a FIFO cannot hang.
  const FileDescriptor fd(::open(path_text.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    return Status(error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kFailedPrecondition,
                  path + ": cannot open: " + std::strerror(error));
  }
  SafetensorsFile file;
  file.path_ = path_text;
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) {
    return Status(Code::kFailedPrecondition, path + ": cannot stat: " + std::strerror(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument,
                  path + ": expected a safetensors file, found " +
                      (S_ISDIR(info.st_mode) ? "a directory" : "something not a regular file"));
  }
  if (static_cast<uint64_t>(info.st_size) < kLengthBytes) {
    return lies(path, "byte 0: expected a header length of 8 bytes, the file has " +
                          std::to_string(info.st_size));
  }
  file.mapping_bytes_ = static_cast<uint64_t>(info.st_size);
  void* mapping = mmap(nullptr, file.mapping_bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (mapping == MAP_FAILED) {
    return Status(Code::kExhausted, path + ": cannot map " + std::to_string(info.st_size) +
                                        " bytes: " + std::strerror(errno));
  }
  file.mapping_ = mapping;
  name_memory(reinterpret_cast<uintptr_t>(mapping), file.mapping_bytes_, path);

  const auto* bytes = static_cast<const unsigned char*>(file.mapping_);
  const std::string_view all(reinterpret_cast<const char*>(bytes), file.mapping_bytes_);
  if (is_lfs_pointer(all)) return Status(Code::kDataLoss, path + kIsLfsPointer);
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | bytes[i];
  const uint64_t rest = file.mapping_bytes_ - kLengthBytes;
  if (header_bytes > kHeaderBytesMax || header_bytes > rest) {
    return lies(path, "byte 0: header length " + std::to_string(header_bytes) +
                          ", expected at most " + std::to_string(std::min(kHeaderBytesMax, rest)) +
                          "; not a safetensors file, or truncated");
  }
  const std::string_view header = all.substr(kLengthBytes, header_bytes);
  if (header.empty() || header.front() != '{') {
    return lies(path, "byte 8: expected a header that starts with '{', found " +
                          quote(header.substr(0, 1)));
  }
  SPECD_TRY(const Json root, parse_json(header, path + ", header from byte 8"));

  const uint64_t data_begin = kLengthBytes + header_bytes;
  for (const auto& [name, entry] : root.items()) {
    if (name == "__metadata__") {
      SPECD_OK_OR_RETURN(check_metadata(entry, path));
      continue;
    }
    SPECD_TRY(TensorView view,
              parse_tensor(entry, path + ", tensor " + quote(name), rest - header_bytes));
    view.file_offset += data_begin;
    view.data = bytes + view.file_offset;
    file.tensors_.emplace(name, std::move(view));
  }
  SPECD_OK_OR_RETURN(check_cover(file.tensors_, data_begin, file.mapping_bytes_, path));
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ == nullptr) return;
  forget_memory(reinterpret_cast<uintptr_t>(mapping_));
  munmap(mapping_, mapping_bytes_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      tensors_(std::move(other.tensors_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(tensors_, other.tensors_);
  return *this;
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

Result<const TensorView*> SafetensorsFile::require(std::string_view name,
                                                   std::span<const int64_t> shape) const {
  const std::string where = quote(path_, 400) + ", tensor " + quote(name);
  const TensorView* view = find(name);
  if (view == nullptr) return lies(where, "missing; expected with shape " + shape_text(shape));
  if (!std::equal(shape.begin(), shape.end(), view->shape.begin(), view->shape.end())) {
    return lies(where, "shape " + shape_text(view->shape) + ", expected " + shape_text(shape) +
                           " by config.json");
  }
  if (const Result<kernels::DType> dtype = kernel_dtype(view->type); !dtype.ok()) {
    return dtype.status().with_context(where);
  }
  return view;
}

}  // namespace specd
