// The files behind the service weights/1, given by a test. See fake_host.h.
//
//   host.weights("weights")                          // the key of the plugin's configuration
//       .config(FakeConfig().set("num_layers", 1))   // config.json; optional
//       .add_bf16("fc.weight", {64, 128}, values)
//       .add_ints<int64_t>("d2t", {100}, ids);
//   FakeDrafter drafter(host, factory, FakeConfig().set("weights", "any path"));
#ifndef SPECD_SDK_FAKE_WEIGHTS_H
#define SPECD_SDK_FAKE_WEIGHTS_H

#include <specd/plugin_api/services/weights.h>
#include <specd/sdk/fake_config.h>
#include <specd/sdk/fake_tensor.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace specd::sdk {

class FakeWeights {
 public:
  using Shape = std::vector<int64_t>;

  FakeWeights() = default;
  FakeWeights(const FakeWeights&) = delete;
  FakeWeights& operator=(const FakeWeights&) = delete;

  FakeWeights& config(FakeConfig config) {
    config_ = std::make_unique<FakeConfig>(std::move(config));
    view_ = config_->view();
    return *this;
  }
  FakeWeights& add_f32(const std::string& name, const Shape& shape,
                       const std::vector<float>& values) {
    return add(name, shape, SPECD_DT_FLOAT, 32, values);
  }
  FakeWeights& add_f64(const std::string& name, const Shape& shape,
                       const std::vector<double>& values) {
    return add(name, shape, SPECD_DT_FLOAT, 64, values);
  }
  // Values are rounded.
  FakeWeights& add_f16(const std::string& name, const Shape& shape,
                       const std::vector<float>& values) {
    return add(name, shape, SPECD_DT_FLOAT, 16, shortened(values, fake_to_f16));
  }
  FakeWeights& add_bf16(const std::string& name, const Shape& shape,
                        const std::vector<float>& values) {
    return add(name, shape, SPECD_DT_BFLOAT, 16, shortened(values, fake_to_bf16));
  }
  template <class T>
  FakeWeights& add_ints(const std::string& name, const Shape& shape, const std::vector<T>& values) {
    static_assert(std::is_integral<T>::value && !std::is_same<T, bool>::value, "see add_bools()");
    return add(name, shape, std::is_signed<T>::value ? SPECD_DT_INT : SPECD_DT_UINT, 8 * sizeof(T),
               values);
  }
  FakeWeights& add_bools(const std::string& name, const Shape& shape,
                         const std::vector<bool>& values) {
    return add(name, shape, SPECD_DT_BOOL, 8, std::vector<uint8_t>(values.begin(), values.end()));
  }
  // A matrix that the host has quantized: only matrix() reads it, with these values.
  FakeWeights& add_quantized(const std::string& name, const Shape& shape,
                             const std::vector<float>& values) {
    add(name, shape, SPECD_DT_FLOAT, 32, values);
    tensors_[name].is_quantized = true;
    return *this;
  }
  // Elements of any type, as they are stored.
  template <class T>
  FakeWeights& add(const std::string& name, const Shape& shape, uint8_t code, std::size_t bits,
                   const std::vector<T>& stored) {
    Tensor t{shape, code, static_cast<uint8_t>(bits), {}, false};
    t.bytes.resize(1 + stored.size() * sizeof(T));
    if (t.elements() * static_cast<int64_t>(bits / 8) + 1 != static_cast<int64_t>(t.bytes.size())) {
      throw std::invalid_argument(name + ": the shape has another number of elements");
    }
    if (!stored.empty()) std::memcpy(t.bytes.data() + 1, stored.data(), t.bytes.size() - 1);
    tensors_[name] = std::move(t);
    return *this;
  }

  // ---- the functions of specd_weights_api, without their owners and quotas

  const specd_config* config() const { return config_ == nullptr ? nullptr : &view_; }

  FakeResult find(const char* name, uint32_t number, const char** out_name, specd_tensor* out) {
    auto found = tensors_.end();
    if (name != nullptr) {
      found = tensors_.find(name);
    } else if (number < tensors_.size()) {
      found = std::next(tensors_.begin(), number);
    }
    if (found == tensors_.end()) return SPECD_E_PRECONDITION;
    if (out_name != nullptr) *out_name = found->first.c_str();
    Tensor& t = found->second;
    if (t.shape.size() > SPECD_MAX_RANK) {
      return {SPECD_E_UNSUPPORTED, found->first + " has more than 4 axes"};
    }
    *out = view(t.data(), t.code, t.bits, t.shape);
    if (t.is_quantized) {
      out->data = nullptr;
      out->dtype_code = SPECD_DT_OPAQUE;
      out->dtype_bits = 8;
    }
    return SPECD_OK;
  }

  // Bytes of the copy, in *bytes.
  FakeResult matrix(const std::vector<std::string>& names, int64_t n_out, int64_t n_in,
                    FakeMatrix* out, uint64_t* bytes) const {
    *out = {0, n_in, {}};
    *bytes = 0;
    uint8_t code = 0, bits = 0;
    bool is_quantized = false;
    for (const std::string& name : names) {
      const auto found = tensors_.find(name);
      if (found == tensors_.end()) return {SPECD_E_DATA, name + " is missing"};
      const Tensor& t = found->second;
      if (t.shape.size() != 2 || t.shape[1] != n_in || !fake_is_short_or_float32(t.code, t.bits)) {
        return {SPECD_E_DATA, name + " is not a matrix of float32, float16 or bfloat16 with " +
                                  std::to_string(n_in) + " columns"};
      }
      if (bits != 0 && (t.code != code || t.bits != bits || t.is_quantized != is_quantized)) {
        return {SPECD_E_DATA, name + " has another type than the parts before it"};
      }
      code = t.code;
      bits = t.bits;
      is_quantized = t.is_quantized;
      for (int64_t i = 0; i < t.elements(); ++i) {
        out->value.push_back(fake_float_at(t.data(), code, bits, i));
      }
      out->n_out += t.shape[0];
      *bytes += t.bytes.size() - 1;
    }
    if (out->n_out == n_out) return SPECD_OK;
    return {SPECD_E_DATA, names.back() + ": " + std::to_string(out->n_out) +
                              " rows in all, expected " + std::to_string(n_out)};
  }

  FakeResult tensor(const std::string& name, const Shape& shape, uint8_t code, uint8_t bits,
                    std::vector<char>* out) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) return {SPECD_E_DATA, name + " is missing"};
    const Tensor& t = found->second;
    if (t.shape != shape) return {SPECD_E_DATA, name + " has another shape"};
    if (t.is_quantized) return {SPECD_E_DATA, name + " is quantized"};
    const bool is_float = t.code == SPECD_DT_FLOAT || t.code == SPECD_DT_BFLOAT;
    const bool as_stored = code == t.code && bits == t.bits;
    if (!as_stored && (bits != 32 || code != (is_float ? SPECD_DT_FLOAT : SPECD_DT_INT))) {
      return {SPECD_E_DATA, name + " cannot be had as the type that was asked for"};
    }
    out->assign(t.bytes.begin() + 1, t.bytes.end());
    if (as_stored) return SPECD_OK;
    out->resize(static_cast<std::size_t>(t.elements()) * 4);
    for (int64_t i = 0; i < t.elements(); ++i) {
      const float real = is_float ? t.real_at(i) : 0;
      const int64_t integer = is_float ? 0 : t.integer_at(i);
      const auto narrow = static_cast<int32_t>(integer);
      if (narrow != integer) return {SPECD_E_DATA, name + ": an element does not fit into 32 bits"};
      std::memcpy(out->data() + i * 4, is_float ? static_cast<const void*>(&real) : &narrow, 4);
    }
    return SPECD_OK;
  }

  static specd_tensor view(void* data, uint8_t code, uint8_t bits, const Shape& shape) {
    specd_tensor t{};
    t.struct_size = sizeof t;
    t.dtype_code = code;
    t.dtype_bits = bits;
    t.dtype_lanes = 1;
    t.device_type = SPECD_DEV_CPU;
    t.rank = static_cast<uint32_t>(shape.size());
    t.data = data;
    int64_t elements = 1;
    for (std::size_t axis = shape.size(); axis-- > 0; elements *= shape[axis]) {
      t.shape[axis] = shape[axis];
      t.stride[axis] = elements;
    }
    t.byte_capacity = static_cast<uint64_t>(elements) * (bits / 8);
    return t;
  }

 private:
  struct Tensor {
    Shape shape;
    uint8_t code, bits;
    std::vector<char> bytes;  // from the second on, so that no type is aligned
    bool is_quantized = false;

    char* data() { return bytes.data() + 1; }
    const char* data() const { return bytes.data() + 1; }
    int64_t elements() const {
      return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
    }
    float real_at(int64_t i) const {
      if (bits != 64) return fake_float_at(data(), code, bits, i);
      double value;
      std::memcpy(&value, data() + i * 8, 8);
      return static_cast<float>(value);
    }
    // An unsigned number beyond int64 becomes one that does not fit into 32 bits either.
    int64_t integer_at(int64_t i) const {
      uint64_t raw = 0;  // little-endian
      std::memcpy(&raw, data() + i * (bits / 8), bits / 8);
      if (code != SPECD_DT_INT) return raw > INT64_MAX ? INT64_MIN : static_cast<int64_t>(raw);
      return static_cast<int64_t>(raw << (64 - bits)) >> (64 - bits);
    }
  };

  static std::vector<uint16_t> shortened(const std::vector<float>& values,
                                         uint16_t (*as_short)(float)) {
    std::vector<uint16_t> all(values.size());
    std::transform(values.begin(), values.end(), all.begin(), as_short);
    return all;
  }

  std::map<std::string, Tensor> tensors_;
  std::unique_ptr<FakeConfig> config_;
  specd_config view_{};  // of config_
};

}  // namespace specd::sdk

#endif
