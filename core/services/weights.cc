#include "core/services/weights.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/check.h"
#include "core/base/quote.h"
#include "core/base/to_size.h"
#include "core/plugin/instance/tensor.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {
namespace {

constexpr uint32_t kNamesMax = 64;
constexpr int64_t kColumnsMax = QuantizedMatrix::kInputsMax;
constexpr size_t kTensorNameBytesMax = 1024;

struct Dtype {
  uint8_t code, bits;
  bool operator==(const Dtype&) const = default;
};
constexpr Dtype kFloat32{SPECD_DT_FLOAT, 32}, kInt32{SPECD_DT_INT, 32};

std::optional<Dtype> dtype_of(TensorType type) {
  switch (type) {
    case TensorType::kF64:
      return Dtype{SPECD_DT_FLOAT, 64};
    case TensorType::kF32:
      return kFloat32;
    case TensorType::kF16:
      return Dtype{SPECD_DT_FLOAT, 16};
    case TensorType::kBF16:
      return Dtype{SPECD_DT_BFLOAT, 16};
    case TensorType::kI64:
      return Dtype{SPECD_DT_INT, 64};
    case TensorType::kI32:
      return kInt32;
    case TensorType::kI16:
      return Dtype{SPECD_DT_INT, 16};
    case TensorType::kI8:
      return Dtype{SPECD_DT_INT, 8};
    case TensorType::kU64:
      return Dtype{SPECD_DT_UINT, 64};
    case TensorType::kU32:
      return Dtype{SPECD_DT_UINT, 32};
    case TensorType::kU16:
      return Dtype{SPECD_DT_UINT, 16};
    case TensorType::kU8:
      return Dtype{SPECD_DT_UINT, 8};
    case TensorType::kBool:
      return Dtype{SPECD_DT_BOOL, 8};
    case TensorType::kF8E4M3:
    case TensorType::kF8E5M2:
      return std::nullopt;
  }
  return std::nullopt;
}

std::string text_of(Dtype dtype) {
  const char* kinds[] = {"int", "uint", "float", "opaque", "bfloat", "", "bool"};
  return (dtype.code < 7 ? kinds[dtype.code] : "?") + std::to_string(dtype.bits);
}

// A view of memory that nobody writes to; tensors have no const.
specd_tensor view_of(const void* data, Dtype dtype, std::span<const int64_t> shape, bool on_device,
                     int32_t device_index) {
  const specd_tensor tensor = host_tensor(const_cast<void*>(data), dtype.code, dtype.bits, shape);
  return on_device ? in_device_memory(tensor, device_index) : tensor;
}

std::string where_of(const specd_weights& weights, const std::string& name) {
  const Checkpoint& files = weights.file->checkpoint();
  return quote(files.tensors().contains(name) ? files.path_of(name) : weights.file->path(), 400) +
         ", tensor " + quote(name);
}

constexpr int64_t kAnySize = -1;

// The tensor with this shape.
Result<const TensorView*> require(const specd_weights& weights, const std::string& name,
                                  std::span<const int64_t> shape) {
  const Checkpoint& checkpoint = weights.file->checkpoint();
  const auto found = checkpoint.tensors().find(name);
  if (weights.file->coded().contains(name))
    return Status(Code::kDataLoss, where_of(weights, name) +
                                       ": is quantized, expected float32, float16 or bfloat16");
  if (found == checkpoint.tensors().end()) {
    return Status(Code::kDataLoss,
                  quote(weights.file->path(), 400) + ": tensor " + quote(name) + " is missing");
  }
  const TensorView& view = *found->second.view;
  const bool fits =
      std::equal(shape.begin(), shape.end(), view.shape.begin(), view.shape.end(),
                 [](int64_t wanted, int64_t has) { return wanted == has || wanted == kAnySize; });
  if (!fits) {
    std::string wanted = shape_text(shape);
    if (const size_t at = wanted.find("-1"); at != std::string::npos) wanted.replace(at, 2, "any");
    return Status(Code::kDataLoss, where_of(weights, name) + ": shape " + shape_text(view.shape) +
                                       ", expected " + wanted);
  }
  return &view;
}

specd_status status_of(const Status& status) {
  switch (status.code()) {
    case Code::kExhausted:
      return SPECD_E_EXHAUSTED;
    case Code::kUnsupported:
      return SPECD_E_UNSUPPORTED;
    case Code::kInternal:
      return SPECD_E_DEVICE;
    default:
      return SPECD_E_DATA;
  }
}

template <typename T>
T element_at(const void* data, size_t i) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

// Integers and booleans as int32. Empty when one does not fit, whose place is `bad`.
template <typename T>
std::vector<int32_t> narrowed(const TensorView& view, size_t& bad) {
  std::vector<int32_t> values(view.bytes / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = element_at<T>(view.data, i);
    if (!std::in_range<int32_t>(value)) {
      bad = i;
      return {};
    }
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): numbers, not characters.
    values[i] = static_cast<int32_t>(value);
  }
  return values;
}

Result<std::vector<int32_t>> as_int32(const TensorView& view, const std::string& where) {
  size_t bad = std::numeric_limits<size_t>::max();
  std::vector<int32_t> values;
  switch (view.type) {
    case TensorType::kI64:
      values = narrowed<int64_t>(view, bad);
      break;
    case TensorType::kI32:
      values = narrowed<int32_t>(view, bad);
      break;
    case TensorType::kI16:
      values = narrowed<int16_t>(view, bad);
      break;
    case TensorType::kI8:
      values = narrowed<int8_t>(view, bad);
      break;
    case TensorType::kU64:
      values = narrowed<uint64_t>(view, bad);
      break;
    case TensorType::kU32:
      values = narrowed<uint32_t>(view, bad);
      break;
    case TensorType::kU16:
      values = narrowed<uint16_t>(view, bad);
      break;
    case TensorType::kU8:
    case TensorType::kBool:
      values = narrowed<uint8_t>(view, bad);
      break;
    default:
      return Status(Code::kDataLoss, where + ": is " + tensor_type_name(view.type) +
                                         ", expected integers or booleans");
  }
  if (bad == std::numeric_limits<size_t>::max()) return values;
  return Status(Code::kDataLoss,
                where + ": element " + std::to_string(bad) + " does not fit into 32 bits");
}

Result<std::vector<float>> as_float32(CpuDevice& cpu, const TensorView& view) {
  const size_t n = view.bytes / tensor_type_bytes(view.type);
  std::vector<float> values(n);
  if (view.type == TensorType::kF64) {
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(element_at<double>(view.data, i));
    return values;
  }
  SPECD_TRY(const kernels::DType dtype, kernel_dtype(view.type));
  // Widened by the op that reads tables, in rows short enough for its counts.
  constexpr size_t kWidth = size_t{1} << 20;
  kernels::WorkerPool alone(1);
  kernels::CpuStream stream(alone);
  const int32_t token = 0;
  for (size_t done = 0; done < n; done += kWidth) {
    cpu.ops().embed(
        stream, {.table = static_cast<const char*>(view.data) + done * kernels::dtype_bytes(dtype),
                 .dtype = dtype,
                 .token = &token,
                 .out = values.data() + done,
                 .n_rows = 1,
                 .n = static_cast<int32_t>(std::min(kWidth, n - done)),
                 .vocab = 1});
  }
  return values;
}

bool is_of(const specd_owner& owner, const specd_weights* weights) SPECD_REQUIRES(owner.mutex) {
  return std::any_of(owner.weights.begin(), owner.weights.end(),
                     [&](const auto& each) { return each.get() == weights; });
}

}  // namespace

void WeightService::set_target(Transformer* target, Lead* lead) {
  if (target == nullptr) {
    target_ = nullptr;
    head_.reset();
    return;
  }
  shared_head_ = {.target = target, .lead = lead};
  specd_matrix head;
  const std::vector<Linear::Part>& parts = target->weights().lm_head.parts;
  if (!parts.empty()) head.packed = parts.front().matrix;  // the last stage has it
  head.on_device = !device_.is_host();
  if (target->split().n_ranks > 1) {
    head.packed.n_out = target->config().vocab_size;
    head.packed.data = nullptr;
    head.shared = &shared_head_;
  }
  head_ = std::make_shared<const specd_matrix>(std::move(head));
  target_ = target;
}

void WeightService::plan_target(const ModelConfig& config) {
  planned_ = &config;
  specd_matrix planned;
  planned.packed.n_out = config.vocab_size;
  planned.packed.n_in = config.hidden_size;
  planned_head_ = std::make_shared<const specd_matrix>(std::move(planned));
}

Result<std::shared_ptr<const WeightFile>> WeightService::file_at(const std::string& path) {
  return files_.get(
      path, [](const WeightFile& known) { return known.is_current(); },
      [&] { return WeightFile::open(path); });
}

specd_status WeightService::open(specd_owner* owner, const specd_config* config, const char* key,
                                 specd_weights** out) {
  if (out == nullptr || config == nullptr || key == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID, "weights.open: an argument is null");
  }
  *out = nullptr;
  PluginConfig* whole = PluginConfig::of(config);
  if (whole == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "weights.open: the configuration was not made by this host");
  }
  if (whole->find(key) == nullptr) return SPECD_E_PRECONDITION;
  const auto open_it = [&]() -> Result<std::shared_ptr<specd_weights>> {
    SPECD_TRY(const std::string path, whole->path(key));
    auto made = std::make_shared<specd_weights>();
    SPECD_TRY(made->file, file_at(path).in_field(key));
    if (const std::optional<Json>& json = made->file->config(); json.has_value()) {
      SPECD_TRY(made->config, PluginConfig::make(*json, nullptr).in_field(key));
    }
    return made;
  };
  Result<std::shared_ptr<specd_weights>> opened = open_it();
  if (!opened.ok()) return refuse(nullptr, SPECD_E_CONFIG, opened.status().text());
  *out = opened.value().get();
  if (owner == nullptr) {
    whole->keep(std::move(opened).value());
  } else {
    const MutexLock lock(owner->mutex);
    owner->weights.insert(std::move(opened).value());
  }
  return SPECD_OK;
}

// ---- copies ----------------------------------------------------------------------------------

namespace {

Status wrong_sum(const specd_weights& weights, std::span<const std::string> names, int64_t rows,
                 int64_t expected) {
  return Status(Code::kDataLoss, where_of(weights, names.back()) + ": it and the " +
                                     std::to_string(names.size() - 1) + " before it have " +
                                     std::to_string(rows) + " rows together, expected " +
                                     std::to_string(expected));
}

// A stream of the device for one copy, whose failure concerns no other.
Result<std::unique_ptr<Device>> open_loader(Device& of) {
  Result<std::unique_ptr<Device>> loader = of.open_beside();
  if (loader.ok()) return loader;
  return Status(Code::kExhausted, "a stream to load weights: " + loader.status().message());
}

}  // namespace

uint64_t WeightService::code_bytes(const WeightFile::Coded& coded) const {
  const int32_t n_out = coded.matrix.n_out();
  return std::max(cpu_.ops().packed_code_bytes(coded.counts, n_out),
                  device_.ops().packed_code_bytes(coded.counts, n_out)) +
         PlacedOrder::bytes(coded.counts);
}

uint64_t WeightService::charge_of(const specd_weights& weights, std::span<const std::string> names,
                                  int64_t n_out, int64_t n_in) const {
  const Checkpoint::Tensors& all = weights.file->checkpoint().tensors();
  if (!weights.file->coded().contains(names.front())) {
    const auto first = all.find(names.front());
    return first == all.end()
               ? 0
               : to_size(n_out) * to_size(n_in) * tensor_type_bytes(first->second.view->type);
  }
  uint64_t bytes = 0;
  for (const std::string& name : names) {
    const auto found = weights.file->coded().find(name);
    if (found != weights.file->coded().end()) bytes += code_bytes(found->second);
  }
  return bytes;
}

Result<std::shared_ptr<specd_matrix>> WeightService::make_matrix(const specd_weights& weights,
                                                                 std::span<const std::string> names,
                                                                 int64_t n_out, int64_t n_in,
                                                                 bool on_device) {
  if (weights.file->coded().contains(names.front()))
    return make_coded_matrix(weights, names, n_out, n_in, on_device);
  std::vector<const TensorView*> parts;
  int64_t rows = 0;
  for (const std::string& name : names) {
    const int64_t shape[] = {names.size() == 1 ? n_out : kAnySize, n_in};
    SPECD_TRY(const TensorView* view, require(weights, name, shape));
    if (const auto dtype = kernel_dtype(view->type); !dtype.ok())
      return Status(Code::kDataLoss, where_of(weights, name) + ": " + dtype.status().message());
    if (!parts.empty() && view->type != parts.front()->type) {
      return Status(Code::kDataLoss,
                    where_of(weights, name) + ": is " + tensor_type_name(view->type) + ", " +
                        quote(names.front()) + " is " + tensor_type_name(parts.front()->type) +
                        "; expected one type for all parts of a matrix");
    }
    rows += view->shape[0];
    parts.push_back(view);
  }
  if (rows != n_out) return wrong_sum(weights, names, rows, n_out);
  Device& where = place(on_device);
  SPECD_TRY(const std::unique_ptr<Device> by, open_loader(where));
  const kernels::DType dtype = kernel_dtype(parts.front()->type).value();
  auto made = std::make_shared<specd_matrix>();
  made->packed = {.dtype = dtype,
                  .n_out = static_cast<int32_t>(n_out),
                  .n_in = static_cast<int32_t>(n_in),
                  .data = nullptr};
  SPECD_TRY(made->memory,
            where.allocate(by->ops().packed_bytes(dtype, made->packed.n_out, made->packed.n_in),
                           "weights of a plugin"));
  made->packed.data = made->memory.data();
  made->on_device = on_device;
  int32_t column = 0;
  for (const TensorView* part : parts) {
    const auto n_rows = static_cast<int32_t>(part->shape[0]);
    by->ops().pack(
        by->stream(),
        {.packed = made->packed, .source = part->data, .n_rows = n_rows, .column_begin = column});
    column += n_rows;
  }
  SPECD_OK_OR_RETURN(by->synchronize());
  return made;
}

Result<std::shared_ptr<specd_matrix>> WeightService::make_coded_matrix(
    const specd_weights& weights, std::span<const std::string> names, int64_t n_out, int64_t n_in,
    bool on_device) {
  std::vector<const QuantizedMatrix*> parts;
  int64_t rows = 0;
  const auto wrong = [&](const std::string& name, const std::string& why) {
    return Status(Code::kDataLoss, where_of(weights, name) + ": " + why);
  };
  for (const std::string& name : names) {
    const auto found = weights.file->coded().find(name);
    if (found == weights.file->coded().end()) {
      const bool is_there = weights.file->checkpoint().tensors().contains(name);
      return wrong(name, is_there ? "is not quantized, " + quote(names.front()) +
                                        " is; expected one type for all parts of a matrix"
                                  : std::string("is missing"));
    }
    const QuantizedMatrix& part = found->second.matrix;
    if (part.n_in() != n_in || (names.size() == 1 && part.n_out() != n_out)) {
      const int64_t found_shape[] = {part.n_out(), part.n_in()}, wanted[] = {n_out, n_in};
      return wrong(name, "shape " + shape_text(found_shape) + ", expected " + shape_text(wanted));
    }
    if (!parts.empty() && part.kind() != parts.front()->kind())
      return wrong(name, "is quantized in another way than " + quote(names.front()) +
                             "; expected one type for all parts of a matrix");
    rows += part.n_out();
    parts.push_back(&part);
  }
  if (rows != n_out) return wrong_sum(weights, names, rows, n_out);
  Device& where = place(on_device);
  SPECD_TRY(const std::unique_ptr<Device> by, open_loader(where));
  auto made = std::make_shared<specd_matrix>();
  made->order = std::make_shared<PlacedOrder>(parts.front()->kind());
  SPECD_OK_OR_RETURN(made->order->place_on(where, *by));
  made->packed = {.n_out = static_cast<int32_t>(n_out), .n_in = static_cast<int32_t>(n_in)};
  made->packed.order = &made->order->order();
  SPECD_TRY(made->memory,
            where.allocate(by->ops().packed_code_bytes(made->order->order(), made->packed.n_out),
                           "weights of a plugin"));
  made->packed.data = made->memory.data();
  made->on_device = on_device;
  int32_t column = 0;
  for (const QuantizedMatrix* part : parts) {
    SPECD_OK_OR_RETURN(part->pack(*by, 0, part->n_out(), 0, made->packed, column));
    column += part->n_out();
  }
  SPECD_OK_OR_RETURN(by->synchronize());
  return made;
}

specd_status WeightService::matrix(specd_owner* owner, const specd_weights* weights,
                                   const char* const* names, uint32_t n, int64_t n_out,
                                   int64_t n_in, specd_matrix** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "weights.matrix: out is null");
  *out = nullptr;
  if (const specd_status status = check_active(owner, "weights.matrix"); status != SPECD_OK)
    return status;
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  if (names == nullptr || n < 1 || n > kNamesMax || n_out < 1 || n_out > kInt32Max || n_in < 1 ||
      n_in > kColumnsMax) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "weights.matrix: " + std::to_string(n) + " names for [" + std::to_string(n_out) +
                      ", " + std::to_string(n_in) + "], expected 1..64 names, 1.." +
                      std::to_string(kInt32Max) + " rows and 1.." + std::to_string(kColumnsMax) +
                      " columns");
  }
  const bool on_device = owner->device_type == SPECD_DEV_CUDA;
  std::vector<std::string> own_names;
  std::string id = on_device ? "device" : "host";
  {
    const MutexLock lock(owner->mutex);
    if (!is_of(*owner, weights)) {
      return refuse(nullptr, SPECD_E_INVALID,
                    "weights.matrix: not weights that this instance has open");
    }
  }
  id += ":" + std::to_string(weights->file->number()) + ":" + std::to_string(n_out) + ":" +
        std::to_string(n_in);
  for (uint32_t i = 0; i < n; ++i) {
    if (names[i] == nullptr)
      return refuse(nullptr, SPECD_E_INVALID, "weights.matrix: a name is null");
    own_names.emplace_back(names[i], strnlen(names[i], kTensorNameBytesMax));
    id += '\0' + own_names.back();  // which a name cannot contain
  }
  // One that the instance has is paid.
  if (const std::shared_ptr<specd_matrix> known = matrices_.find(id); known != nullptr) {
    const MutexLock lock(owner->mutex);
    if (owner->matrices.contains(known.get())) {
      *out = known.get();
      return SPECD_OK;
    }
  }
  Charge charge(*owner, charge_of(*weights, own_names, n_out, n_in), "weights.matrix");
  if (!charge.is_paid()) return refuse(nullptr, SPECD_E_EXHAUSTED, charge.why());
  const Result<std::shared_ptr<specd_matrix>> made = matrices_.get(
      id, [](const specd_matrix&) { return true; },
      [&] { return make_matrix(*weights, own_names, n_out, n_in, on_device); });
  if (!made.ok()) return refuse(nullptr, status_of(made.status()), made.status().message());
  const MutexLock lock(owner->mutex);
  if (owner->matrices.emplace(made.value().get(), made.value()).second) charge.keep();
  *out = made.value().get();
  return SPECD_OK;
}

Result<std::shared_ptr<Buffer>> WeightService::make_tensor(const specd_weights& weights,
                                                           const std::string& name, uint8_t code,
                                                           uint8_t bits, bool on_device) {
  const TensorView& view = weights.file->checkpoint().at(name);
  std::vector<float> floats;
  std::vector<int32_t> ints;
  const void* source = view.data;
  uint64_t bytes = view.bytes;
  const Dtype wanted{code, bits};
  if (dtype_of(view.type) != wanted) {
    if (wanted == kFloat32) {
      SPECD_TRY(floats, as_float32(cpu_, view));
      source = floats.data();
      bytes = floats.size() * sizeof(float);
    } else {
      SPECD_TRY(ints, as_int32(view, where_of(weights, name)));
      source = ints.data();
      bytes = ints.size() * sizeof(int32_t);
    }
  }
  return copy_of(source, bytes, place(on_device));
}

Result<std::shared_ptr<Buffer>> WeightService::copy_of(const void* source, uint64_t bytes,
                                                       Device& where) {
  SPECD_TRY(const std::unique_ptr<Device> by, open_loader(where));
  SPECD_TRY(Buffer memory, where.allocate(std::max<uint64_t>(bytes, 1), "weights of a plugin"));
  by->copy_in(memory.data(), source, bytes);
  SPECD_OK_OR_RETURN(by->synchronize());
  return std::make_shared<Buffer>(std::move(memory));
}

specd_status WeightService::tensor(specd_owner* owner, const specd_weights* weights,
                                   const char* name, std::span<const int64_t> shape,
                                   uint8_t dtype_code, uint8_t dtype_bits, specd_tensor* out) {
  if (out == nullptr || name == nullptr)
    return refuse(nullptr, SPECD_E_INVALID, "weights.tensor: an argument is null");
  *out = {};
  if (const specd_status status = check_active(owner, "weights.tensor"); status != SPECD_OK)
    return status;
  {
    const MutexLock lock(owner->mutex);
    if (!is_of(*owner, weights)) {
      return refuse(nullptr, SPECD_E_INVALID,
                    "weights.tensor: not weights that this instance has open");
    }
  }
  const std::string own_name(name, strnlen(name, kTensorNameBytesMax));
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; }))
    return refuse(nullptr, SPECD_E_INVALID, "weights.tensor: a negative size");
  const Result<const TensorView*> view = require(*weights, own_name, shape);
  if (!view.ok()) return refuse(nullptr, SPECD_E_DATA, view.status().message());
  const Dtype wanted{dtype_code, dtype_bits};
  const std::optional<Dtype> stored = dtype_of(view.value()->type);
  const bool is_float =
      stored.has_value() && (stored->code == SPECD_DT_FLOAT || stored->code == SPECD_DT_BFLOAT);
  if (!stored.has_value() || (wanted != *stored && wanted != (is_float ? kFloat32 : kInt32))) {
    return refuse(nullptr, SPECD_E_DATA,
                  where_of(*weights, own_name) + ": is " + tensor_type_name(view.value()->type) +
                      ", which cannot be had as " + text_of(wanted));
  }
  const bool on_device = owner->device_type == SPECD_DEV_CUDA;
  const std::string id = (on_device ? "device:" : "host:") +
                         std::to_string(weights->file->number()) + ":" + text_of(wanted) + "\n" +
                         own_name;
  // One that the instance has is paid.
  if (const std::shared_ptr<Buffer> known = tensors_.find(id); known != nullptr) {
    const MutexLock lock(owner->mutex);
    if (owner->weights.contains(known)) {
      *out = view_of(known->data(), wanted, shape, on_device, device_.index());
      return SPECD_OK;
    }
  }
  const uint64_t elements = view.value()->bytes / tensor_type_bytes(view.value()->type);
  Charge charge(*owner, elements * (wanted.bits / 8), "weights.tensor");
  if (!charge.is_paid()) return refuse(nullptr, SPECD_E_EXHAUSTED, charge.why());
  const Result<std::shared_ptr<Buffer>> made = tensors_.get(
      id, [](const Buffer&) { return true; },
      [&] { return make_tensor(*weights, own_name, dtype_code, dtype_bits, on_device); });
  if (!made.ok()) return refuse(nullptr, status_of(made.status()), made.status().message());
  const MutexLock lock(owner->mutex);
  if (owner->weights.insert(made.value()).second) charge.keep();
  *out = view_of(made.value()->data(), wanted, shape, on_device, device_.index());
  return SPECD_OK;
}

// ---- the target ------------------------------------------------------------------------------

specd_status WeightService::embedding(specd_owner* owner, specd_tensor* out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "target.embedding: out is null");
  *out = {};
  const Transformer* const target = target_;
  const specd_status status =
      check_target(owner, target != nullptr || planned_ != nullptr, device_, "target.embedding");
  if (status != SPECD_OK) return status;
  if (target == nullptr) {
    SPECD_CHECK(planned_ != nullptr, "check_target()");
    const int64_t planned[] = {planned_->vocab_size, planned_->hidden_size};
    *out = view_of(nullptr, kFloat32, planned, false, 0);
    return SPECD_OK;
  }
  const Weights& weights = target->weights();
  Dtype dtype = kFloat32;
  if (weights.dtype == kernels::DType::kF16) dtype = {SPECD_DT_FLOAT, 16};
  if (weights.dtype == kernels::DType::kBF16) dtype = {SPECD_DT_BFLOAT, 16};
  const int64_t shape[] = {target->config().vocab_size, target->config().hidden_size};
  const void* table = weights.embedding;
  if (weights.embedding_columns != target->config().hidden_size) {
    // Of the ranks' devices none has it whole; drafters share a copy, as part of the target.
    const TensorView& whole = weights.embedding_in_file();
    const Result<std::shared_ptr<Buffer>> made = tensors_.get(
        "target.embedding", [](const Buffer&) { return true; },
        [&] { return copy_of(whole.data, whole.bytes, device_); });
    if (!made.ok()) return refuse(nullptr, status_of(made.status()), made.status().message());
    const MutexLock lock(owner->mutex);
    owner->weights.insert(made.value());
    table = made.value()->data();
  }
  *out = view_of(table, dtype, shape, !device_.is_host(), device_.index());
  return SPECD_OK;
}

specd_status WeightService::head(specd_owner* owner, specd_matrix** out) const {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "target.head: out is null");
  *out = nullptr;
  const auto& head = target_ == nullptr ? planned_head_ : head_;
  const specd_status status = check_target(owner, head != nullptr, device_, "target.head");
  if (status != SPECD_OK) return status;
  const MutexLock lock(owner->mutex);
  owner->matrices.emplace(head.get(), head);
  *out = const_cast<specd_matrix*>(head.get());
  return SPECD_OK;
}

// ---- the tables ------------------------------------------------------------------------------

namespace {

WeightService* weights_of(const specd_host* host) {
  ServiceState* state = ServiceState::of(host);
  return state == nullptr ? nullptr : &state->weights;
}

specd_status no_host(const char* function) {
  return refuse(nullptr, SPECD_E_PRECONDITION, std::string(function) + ": unknown host");
}

specd_status weights_open(const specd_host* host, specd_owner* owner, const specd_config* config,
                          const char* key, specd_weights** out) {
  WeightService* service = weights_of(host);
  return service == nullptr ? no_host("weights.open") : service->open(owner, config, key, out);
}

const specd_config* weights_config(const specd_host*, specd_weights* weights) noexcept {
  return weights == nullptr || weights->config == nullptr ? nullptr : weights->config->get();
}

specd_status weights_find(const specd_host* host, specd_weights* weights, const char* name,
                          uint32_t number, const char** out_name, specd_tensor* out) {
  const WeightService* const service = weights_of(host);
  if (service == nullptr) return no_host("weights.find");
  if (weights == nullptr || out == nullptr)
    return refuse(nullptr, SPECD_E_INVALID, "weights.find: an argument is null");
  const std::vector<std::string>& names = weights->file->names();
  auto found = names.end();
  if (name != nullptr) {
    const std::string_view wanted(name, strnlen(name, kTensorNameBytesMax));
    found = std::ranges::lower_bound(names, wanted);
    if (found != names.end() && *found != wanted) found = names.end();
  } else if (number < names.size()) {
    found = names.begin() + number;
  }
  if (found == names.end()) return SPECD_E_PRECONDITION;
  if (out_name != nullptr) *out_name = found->c_str();
  if (const auto coded = weights->file->coded().find(*found);
      coded != weights->file->coded().end()) {
    const QuantizedMatrix& matrix = coded->second.matrix;
    const int64_t shape[] = {matrix.n_out(), matrix.n_in()};
    const Dtype dtype{SPECD_DT_OPAQUE, static_cast<uint8_t>(matrix.kind().bits)};
    *out = view_of(nullptr, dtype, shape, false, 0);
    out->byte_capacity = service->code_bytes(coded->second);
    return SPECD_OK;
  }
  const TensorView& view = weights->file->checkpoint().at(*found);
  const std::optional<Dtype> dtype = dtype_of(view.type);
  if (!dtype.has_value() || view.shape.size() > SPECD_MAX_RANK) {
    return refuse(nullptr, SPECD_E_UNSUPPORTED,
                  where_of(*weights, *found) + ": " + tensor_type_name(view.type) + " " +
                      shape_text(view.shape) +
                      " has no form at the plugin boundary; expected F32, F16 or BF16, or a "
                      "config.json that says how it is quantized");
  }
  *out = view_of(view.data, *dtype, view.shape, false, 0);
  return SPECD_OK;
}

specd_status weights_matrix(const specd_host* host, specd_owner* owner, specd_weights* weights,
                            const char* const* names, uint32_t n, int64_t n_out, int64_t n_in,
                            specd_matrix** out) {
  WeightService* service = weights_of(host);
  return service == nullptr ? no_host("weights.matrix")
                            : service->matrix(owner, weights, names, n, n_out, n_in, out);
}

specd_status weights_tensor(const specd_host* host, specd_owner* owner, specd_weights* weights,
                            const char* name, uint32_t rank, const int64_t* shape,
                            uint8_t dtype_code, uint8_t dtype_bits, specd_tensor* out) {
  WeightService* service = weights_of(host);
  if (service == nullptr) return no_host("weights.tensor");
  if (shape == nullptr || rank > SPECD_MAX_RANK)
    return refuse(nullptr, SPECD_E_INVALID, "weights.tensor: expected a shape of at most 4 axes");
  return service->tensor(owner, weights, name, {shape, rank}, dtype_code, dtype_bits, out);
}

specd_status target_embedding(const specd_host* host, specd_owner* owner, specd_tensor* out) {
  WeightService* service = weights_of(host);
  return service == nullptr ? no_host("target.embedding") : service->embedding(owner, out);
}

specd_status target_head(const specd_host* host, specd_owner* owner, specd_matrix** out) {
  WeightService* service = weights_of(host);
  return service == nullptr ? no_host("target.head") : service->head(owner, out);
}

}  // namespace

const specd_weights_api kWeightsService = {
    sizeof(specd_weights_api),   0,
    or_exhausted<weights_open>,  weights_config,
    or_exhausted<weights_find>,  or_exhausted<weights_matrix>,
    or_exhausted<weights_tensor>};
const specd_target_api kTargetService = {sizeof(specd_target_api), 0,
                                         or_exhausted<target_embedding>, or_exhausted<target_head>};

}  // namespace specd
