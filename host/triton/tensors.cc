#include "host/triton/tensors.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "core/base/quote.h"
#include "core/base/to_size.h"
#include "core/base/utf8.h"

namespace specd::host {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr int64_t kElementsMax = 1024;
constexpr size_t kLengthBytes = 4;

std::string input(const std::string& name) { return "inference input " + quote(name); }

std::string shape_text(const std::vector<int64_t>& shape) {
  constexpr size_t kShownMax = 8;
  std::string text;
  for (size_t i = 0; i < shape.size() && i < kShownMax; ++i)
    text += (i == 0 ? "" : ",") + std::to_string(shape[i]);
  return "[" + text + (shape.size() > kShownMax ? ",..." : "") + "]";
}

Status wrong(const std::string& name, const std::string& text) {
  return {Code::kInvalidArgument, input(name) + ": " + text};
}

size_t element_bytes(Datatype type) {
  switch (type) {
    case Datatype::kBool:
      return 1;
    case Datatype::kInt32:
    case Datatype::kFp32:
      return 4;
    case Datatype::kUint64:
      return 8;
    case Datatype::kBytes:
      return 0;
  }
  return 0;
}

template <typename T>
T read(std::string_view bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(value));
  return value;
}

Result<Json> texts_of_raw(const TensorSpec& spec, size_t count, std::string_view raw) {
  Json values = Json::array();
  size_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (raw.size() - at < kLengthBytes)
      return wrong(spec.name, "expected the length of element " + std::to_string(i) + " in " +
                                  std::to_string(kLengthBytes) + " bytes at byte " +
                                  std::to_string(at) + ", found " +
                                  std::to_string(raw.size() - at) + " bytes");
    const size_t bytes = read<uint32_t>(raw.substr(at));
    at += kLengthBytes;
    if (raw.size() - at < bytes)
      return wrong(spec.name, "expected the " + std::to_string(bytes) + " bytes of element " +
                                  std::to_string(i) + " at byte " + std::to_string(at) +
                                  ", found " + std::to_string(raw.size() - at));
    const std::string_view text = raw.substr(at, bytes);
    if (const size_t bad = utf8_error_offset(text); bad != std::string_view::npos)
      return wrong(spec.name,
                   "expected UTF-8, found another byte at byte " + std::to_string(at + bad));
    values.push_back(std::string(text));
    at += bytes;
  }
  if (at != raw.size())
    return wrong(spec.name, "expected " + std::to_string(at) + " bytes for " +
                                std::to_string(count) + " elements, found " +
                                std::to_string(raw.size()));
  return values;
}

}  // namespace

Result<const TensorSpec*> check_tensor(const TensorHead& head, const TritonModel& model,
                                       size_t& count) {
  const TensorSpec* const spec = find_input(head.name);
  if (spec == nullptr)
    return Status(Code::kInvalidArgument,
                  "unexpected " + input(head.name) + " for model " + quote(model.name));
  if (head.datatype != datatype_name(spec->type))
    return wrong(head.name, "expected data-type " + std::string(datatype_name(spec->type)) +
                                ", found " + quote(head.datatype));
  const bool fits = head.shape.size() == 1 && head.shape[0] >= 0 && head.shape[0] <= kElementsMax &&
                    (spec->is_list || head.shape[0] == 1);
  if (!fits)
    return wrong(head.name, "expected shape " +
                                (spec->is_list ? "[n] with at most " + std::to_string(kElementsMax)
                                               : std::string("[1]")) +
                                ", found " + shape_text(head.shape));
  count = to_size(head.shape[0]);
  return spec;
}

Result<Json> values_of_raw(const TensorSpec& spec, size_t count, std::string_view raw) {
  if (spec.type == Datatype::kBytes) return texts_of_raw(spec, count, raw);
  const size_t bytes = element_bytes(spec.type);
  if (raw.size() != count * bytes)
    return wrong(spec.name, "expected " + std::to_string(count * bytes) + " bytes for shape [" +
                                std::to_string(count) + "] of " + datatype_name(spec.type) +
                                ", found " + std::to_string(raw.size()));
  Json values = Json::array();
  for (size_t i = 0; i < count; ++i) {
    const std::string_view element = raw.substr(i * bytes, bytes);
    switch (spec.type) {
      case Datatype::kBool:
        values.push_back(element[0] != 0);
        break;
      case Datatype::kInt32:
        values.push_back(read<int32_t>(element));
        break;
      case Datatype::kUint64:
        values.push_back(read<uint64_t>(element));
        break;
      case Datatype::kFp32:
        if (!std::isfinite(read<float>(element)))
          return wrong(spec.name, "expected a finite number at byte " + std::to_string(i * bytes));
        values.push_back(read<float>(element));
        break;
      case Datatype::kBytes:
        break;
    }
  }
  return values;
}

std::string raw_of_text(std::string_view text) {
  const auto length = static_cast<uint32_t>(text.size());
  std::string raw(kLengthBytes, '\0');
  std::memcpy(raw.data(), &length, kLengthBytes);
  return raw.append(text);
}

}  // namespace specd::host
