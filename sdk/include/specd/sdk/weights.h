// C++ wrapper of the services weights/1 and target/1: tensors of files that the configuration names.
// Name SPECD_SERVICE_WEIGHTS, and for Target SPECD_SERVICE_TARGET, in the caps.
//
//   Weights weights(context, "weights");               // describe() and the constructor
//   weights.expect("fc.weight", {hidden, 2 * hidden});  // shape and type, and it is accounted for
//   weights.expect_no_others();
//   caps.bytes_fixed = weights.bytes() + of the plugin's own buffers;
//   specd_matrix* fc = weights.matrix({"fc.weight"}, hidden, 2 * hidden);  // activated()
#ifndef SPECD_SDK_WEIGHTS_H
#define SPECD_SDK_WEIGHTS_H

#include <specd/plugin_api/services/target.h>
#include <specd/plugin_api/services/weights.h>
#include <specd/sdk/ops.h>

#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace specd::sdk {

inline std::string shape_text(const int64_t* shape, std::size_t rank) {
  std::string text = "[";
  for (std::size_t axis = 0; axis < rank; ++axis) {
    text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  }
  return text + "]";
}

// "type bfloat16", "type opaque4": of a quantized matrix.
inline std::string type_text(const specd_tensor& t) {
  const char* names[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const bool is_known = t.dtype_code < sizeof names / sizeof *names;
  return std::string("type ") + (is_known ? names[t.dtype_code] : "?") +
         std::to_string(t.dtype_bits);
}

class Weights {
 public:
  // Opens the files that `key` of the plugin's configuration names. Throws with the host's reason.
  Weights(const Context& context, const char* key)
      : host_(context.host),
        owner_(context.owner),
        key_(key),
        table_(require_service<specd_weights_api>(host_, SPECD_SERVICE_WEIGHTS)) {
    const specd_status status = table_->open(host_, owner_, context.config.raw(), key, &weights_);
    if (status == SPECD_E_PRECONDITION) fail("this key is required (a folder of safetensors)");
    // The host has reported why, with the key.
    if (status != SPECD_OK) throw Error(status, "");
  }

  // The error of a file that does not fit, at the key that names it.
  [[noreturn]] void fail(const std::string& text) const {
    throw Error(SPECD_E_CONFIG, key_ + ": " + text);
  }
  // The error of files without `what`, with the names of those tensors that are there.
  [[noreturn]] void fail_without(const std::string& what) const {
    const std::vector<std::string> all = names();
    std::string text = what + " is missing; found " + std::to_string(all.size()) + " tensors";
    for (std::size_t i = 0; i < all.size() && i < 4; ++i) {
      text += (i == 0 ? ": '" : ", '") + all[i] + "'";
    }
    fail(text + (all.size() > 4 ? ", .." : ""));
  }

  bool has_config() const { return table_->config(host_, weights_) != nullptr; }
  // What `read` makes of config.json beside the tensors. Its errors name that file, behind the key
  // of the weights.
  template <class Read>
  auto from_config(Read&& read) const {
    if (!has_config()) {
      fail("there is no config.json beside the tensors; copy the one that was published with them");
    }
    try {
      return read(Config(table_->config(host_, weights_)));
    } catch (const Error& error) {
      if (error.status() != SPECD_E_CONFIG) throw;
      fail(std::string("config.json: ") + error.what());
    }
  }

  bool has(const std::string& name) const {
    specd_tensor ignored{};
    return table_->find(host_, weights_, name.c_str(), 0, nullptr, &ignored) !=
           SPECD_E_PRECONDITION;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    const char* name = nullptr;
    specd_tensor ignored{};
    for (uint32_t i = 0;
         table_->find(host_, weights_, nullptr, i, &name, &ignored) != SPECD_E_PRECONDITION; ++i) {
      all.push_back(name);
    }
    return all;
  }
  // A tensor as stored: in host memory, perhaps unaligned.
  specd_tensor stored(const std::string& name) const {
    specd_tensor out{};
    const specd_status status = table_->find(host_, weights_, name.c_str(), 0, nullptr, &out);
    if (status == SPECD_E_PRECONDITION) fail_without("tensor '" + name + "'");
    if (status != SPECD_OK) throw Error(status, "");
    return out;
  }
  // The number of rows of a tensor.
  int64_t rows_of(const std::string& name) const {
    const specd_tensor t = stored(name);
    return t.rank == 0 ? 1 : t.shape[0];
  }

  // Checks a tensor that the head uses, and counts its copy. A matrix may be quantized: then matrix() takes it,
  // but copy() does not.
  void expect(const std::string& name, const std::vector<int64_t>& shape) {
    const specd_tensor t = stored(name);
    bool same = t.rank == shape.size();
    for (std::size_t axis = 0; same && axis < shape.size(); ++axis) {
      same = t.shape[axis] == shape[axis] && shape[axis] > 0;
    }
    if (!same) {
      fail("tensor '" + name + "' has shape " + shape_text(t.shape, t.rank) + ", expected " +
           shape_text(shape.data(), shape.size()));
    }
    const bool is_float = t.dtype_code == SPECD_DT_FLOAT || t.dtype_code == SPECD_DT_BFLOAT,
               is_quantized = t.dtype_code == SPECD_DT_OPAQUE && shape.size() == 2;
    if (!is_quantized && (!is_float || t.dtype_bits > 32)) {
      const bool may_be_codes = shape.size() == 2 && !is_float;
      fail("tensor '" + name + "' has " + type_text(t) + ", expected float32, float16 or bfloat16" +
           (may_be_codes ? ", or a config.json beside it that says how it is quantized" : ""));
    }
    if (!used_.insert(name).second) return;
    if (is_quantized) {
      bytes_ += t.byte_capacity;
      return;
    }
    uint64_t elements = 1;
    for (const int64_t size : shape) elements *= static_cast<uint64_t>(size);
    // Vectors are copied as float32, matrices as they are.
    bytes_ += elements * (shape.size() == 1 ? 4 : t.dtype_bits / 8);
  }
  // The same for a matrix of which the head takes a table(), so it may not be quantized.
  void expect_table(const std::string& name, int64_t rows, int64_t columns) {
    if (stored(name).dtype_code == SPECD_DT_OPAQUE) {
      fail("tensor '" + name +
           "' is quantized, expected float32, float16 or bfloat16; take it from the checkpoint "
           "that was quantized");
    }
    expect(name, {rows, columns});
  }
  // Checks that these, which are expected already, have one type. Of quantized ones matrix() also compares how
  // they are quantized, which find() does not tell.
  void expect_one_type(const std::vector<std::string>& names) const {
    const specd_tensor first = stored(names.front());
    for (const std::string& name : names) {
      const specd_tensor t = stored(name);
      if (t.dtype_code == first.dtype_code && t.dtype_bits == first.dtype_bits) continue;
      fail("tensor '" + name + "' has " + type_text(t) + ", '" + names.front() + "' has " +
           type_text(first) + "; expected one type, since they are one matrix");
    }
  }
  // Checks a column of n different token ids below `end`, and counts its copy. Returns them.
  std::vector<int32_t> expect_ids(const std::string& name, int64_t n, int64_t end) {
    const std::vector<int64_t> values = integers(name, n);
    std::set<int64_t> seen;
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] >= end || !seen.insert(values[i]).second) {
        fail("tensor '" + name + "'[" + std::to_string(i) + "] is " + std::to_string(values[i]) +
             ", expected different ids below " + std::to_string(end));
      }
    }
    bytes_ += 4 * static_cast<uint64_t>(n);
    return {values.begin(), values.end()};
  }
  // The values of a column of n integers or booleans. No copy of it is counted.
  std::vector<int64_t> integers(const std::string& name, int64_t n) {
    const specd_tensor t = stored(name);
    const bool is_int =
        t.dtype_code == SPECD_DT_BOOL || (t.dtype_code == SPECD_DT_INT && t.dtype_bits >= 16);
    const std::size_t bytes = t.dtype_bits / 8;
    if (t.rank != 1 || t.shape[0] != n || !is_int || bytes > 8) {
      fail("tensor '" + name + "' has shape " + shape_text(t.shape, t.rank) + " and " +
           type_text(t) + ", expected integers of [" + std::to_string(n) + "]");
    }
    std::vector<int64_t> values;
    for (int64_t i = 0; i < n; ++i) {
      const char* at = static_cast<const char*>(t.data) + static_cast<std::size_t>(i) * bytes;
      int64_t wide = 0;
      int32_t narrow = 0;
      int16_t half = 0;
      if (bytes == 8) std::memcpy(&wide, at, 8);
      if (bytes == 2) std::memcpy(&half, at, 2);
      if (bytes == 2) narrow = half;
      if (bytes == 4) std::memcpy(&narrow, at, 4);
      if (bytes == 1) narrow = static_cast<unsigned char>(*at);
      values.push_back(bytes == 8 ? wide : narrow);
    }
    used_.insert(name);
    return values;
  }
  // A tensor that is known but needs no copy.
  void ignore(const std::string& name) { used_.insert(name); }
  // Refuses tensors that nobody has asked for: the head would be another one than the file's.
  void expect_no_others() const {
    for (const std::string& name : names()) {
      if (used_.count(name) == 0) fail("tensor '" + name + "' is not part of such a head");
    }
  }
  // Bytes of the copies of all expected tensors.
  uint64_t bytes() const { return bytes_; }

  // [control & active] The tensors one below the other, for Ops::linear().
  specd_matrix* matrix(const std::vector<std::string>& tensors, int64_t n_out, int64_t n_in) const {
    std::vector<const char*> list;
    list.reserve(tensors.size());
    for (const std::string& name : tensors) list.push_back(name.c_str());
    specd_matrix* out = nullptr;
    check_service(table_->matrix(host_, owner_, weights_, list.data(),
                                 static_cast<uint32_t>(list.size()), n_out, n_in, &out),
                  "weights.matrix");
    return out;
  }
  // [control & active] A dense copy as stored, for Ops::embed().
  specd_tensor table(const std::string& name, int64_t rows, int64_t columns) const {
    const specd_tensor t = stored(name);
    const int64_t shape[] = {rows, columns};
    specd_tensor out{};
    check_service(table_->tensor(host_, owner_, weights_, name.c_str(), 2, shape, t.dtype_code,
                                 t.dtype_bits, &out),
                  "weights.tensor");
    return out;
  }
  // [control & active] A dense copy as float32 or as int32.
  template <class T>
  specd_tensor copy(const std::string& name, const std::vector<int64_t>& shape) const {
    specd_tensor out{};
    check_service(
        table_->tensor(host_, owner_, weights_, name.c_str(), static_cast<uint32_t>(shape.size()),
                       shape.data(), DtypeOf<T>::kCode, DtypeOf<T>::kBits, &out),
        "weights.tensor");
    return out;
  }

 private:
  const specd_host* host_;
  specd_owner* owner_;
  std::string key_;
  const specd_weights_api* table_;
  specd_weights* weights_ = nullptr;
  std::set<std::string> used_;
  uint64_t bytes_ = 0;
};

// [control & active] The target's own tables; nothing is copied.
class Target {
 public:
  explicit Target(const Instance& instance) {
    const auto* table = require_service<specd_target_api>(instance.host(), SPECD_SERVICE_TARGET);
    check_service(table->embedding(instance.host(), instance.owner(), &embedding),
                  "target.embedding");
    check_service(table->head(instance.host(), instance.owner(), &head), "target.head");
  }
  specd_tensor embedding{};  // [vocab_size, hidden_size]
  specd_matrix* head = nullptr;
};

}  // namespace specd::sdk

#endif
