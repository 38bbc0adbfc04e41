// A configuration for plugin unit tests.
#ifndef SPECD_SDK_FAKE_CONFIG_H
#define SPECD_SDK_FAKE_CONFIG_H

#include <specd/plugin_api/config.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <variant>

namespace specd::sdk {

// Values by path, plus the JSON text for plugins that read it.
class FakeConfig {
 public:
  explicit FakeConfig(std::string json = "{}") : json_(std::move(json)) {}

  FakeConfig& set(const std::string& path, int64_t value) { return put(path, value); }
  FakeConfig& set(const std::string& path, int value) { return put(path, int64_t{value}); }
  FakeConfig& set(const std::string& path, double value) { return put(path, value); }
  FakeConfig& set(const std::string& path, bool value) { return put(path, value); }
  FakeConfig& set(const std::string& path, std::string value) {
    return put(path, std::move(value));
  }
  FakeConfig& set(const std::string& path, const char* value) {
    return put(path, std::string(value));
  }
  // Adds a key whose value is not a scalar: a list or an object.
  FakeConfig& set_other(const std::string& path) { return put(path, std::monostate()); }

  // Valid while this object exists unchanged.
  specd_config view() const {
    specd_config config{};
    config.struct_size = sizeof config;
    config.json = json_.c_str();
    config.json_len = json_.size();
    config.ctx = const_cast<FakeConfig*>(this);
    config.get_i64 = [](const specd_config* c, const char* path, int64_t* out) noexcept {
      return self(c)->get<int64_t>(path, [&](int64_t v) { *out = v; });
    };
    config.get_f64 = [](const specd_config* c, const char* path, double* out) noexcept {
      const specd_status status = self(c)->get<double>(path, [&](double v) { *out = v; });
      if (status != SPECD_E_CONFIG) return status;
      return self(c)->get<int64_t>(path, [&](int64_t v) { *out = static_cast<double>(v); });
    };
    config.get_bool = [](const specd_config* c, const char* path, uint32_t* out) noexcept {
      return self(c)->get<bool>(path, [&](bool v) { *out = v ? 1 : 0; });
    };
    config.get_str = [](const specd_config* c, const char* path, const char** out,
                        uint64_t* len) noexcept {
      return self(c)->get<std::string>(path, [&](const std::string& v) {
        *out = v.c_str();
        if (len != nullptr) *len = v.size();
      });
    };
    return config;
  }

 private:
  using Value = std::variant<std::monostate, int64_t, double, bool, std::string>;

  static const FakeConfig* self(const specd_config* c) {
    return static_cast<const FakeConfig*>(c->ctx);
  }
  template <class T>
  FakeConfig& put(const std::string& path, T value) {
    values_[path] = Value(std::move(value));
    // "tree.nodes" makes "tree" an object.
    for (std::size_t dot = path.find('.'); dot != std::string::npos;
         dot = path.find('.', dot + 1)) {
      values_.emplace(path.substr(0, dot), Value());
    }
    return *this;
  }
  template <class T, class Take>
  specd_status get(const char* path, Take&& take) const {
    const auto it = values_.find(path);
    if (it == values_.end()) return SPECD_E_PRECONDITION;
    const T* value = std::get_if<T>(&it->second);
    if (value == nullptr) return SPECD_E_CONFIG;
    take(*value);
    return SPECD_OK;
  }

  std::string json_;
  std::map<std::string, Value> values_;
};

}  // namespace specd::sdk

#endif
