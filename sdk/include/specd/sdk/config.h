// Typed access to the plugin's configuration, with defaults and ranges.
#ifndef SPECD_SDK_CONFIG_H
#define SPECD_SDK_CONFIG_H

#include <specd/plugin_api/config.h>
#include <specd/sdk/error.h>

#include <cstdint>
#include <string>

namespace specd::sdk {

// A view; the specd_config must outlive it. Every getter returns the default for an absent key, and
// throws Error(SPECD_E_CONFIG) for a wrong type or range, naming the key and what was expected.
class Config {
 public:
  explicit Config(const specd_config* config) : config_(config) {
    expect(config != nullptr && config->json != nullptr && config->get_i64 != nullptr &&
               config->get_f64 != nullptr && config->get_bool != nullptr &&
               config->get_str != nullptr,
           "the host passed no configuration");
  }

  int64_t i64(const char* path, int64_t otherwise, int64_t min, int64_t max) const {
    int64_t value = otherwise;
    if (!found(path, "an integer", config_->get_i64(config_, path, &value))) return otherwise;
    if (value < min || value > max) {
      throw Error(SPECD_E_CONFIG, std::string(path) + ": expected an integer from " +
                                      std::to_string(min) + " to " + std::to_string(max) +
                                      ", found " + std::to_string(value));
    }
    return value;
  }

  double f64(const char* path, double otherwise, double min, double max) const {
    double value = otherwise;
    if (!found(path, "a number", config_->get_f64(config_, path, &value))) return otherwise;
    if (!(value >= min && value <= max)) {  // also refuses NaN
      throw Error(SPECD_E_CONFIG, std::string(path) + ": expected a number from " +
                                      std::to_string(min) + " to " + std::to_string(max) +
                                      ", found " + std::to_string(value));
    }
    return value;
  }

  bool boolean(const char* path, bool otherwise) const {
    uint32_t value = 0;
    if (!found(path, "true or false", config_->get_bool(config_, path, &value))) return otherwise;
    return value != 0;
  }

  std::string string(const char* path, const std::string& otherwise) const {
    const char* text = nullptr;
    uint64_t len = 0;
    if (!found(path, "a string", config_->get_str(config_, path, &text, &len))) return otherwise;
    return std::string(text, len);
  }

  // Like string(), but throws when the key is absent.
  std::string required_string(const char* path) const {
    const char* text = nullptr;
    uint64_t len = 0;
    if (!found(path, "a string", config_->get_str(config_, path, &text, &len))) {
      throw Error(SPECD_E_CONFIG, std::string(path) + ": this key is required (a string)");
    }
    return std::string(text, len);
  }

  // Returns whether the key exists, of any type: a getter of the wrong type returns CONFIG,
  // not PRECONDITION.
  bool has(const char* path) const {
    int64_t ignored = 0;
    return config_->get_i64(config_, path, &ignored) != SPECD_E_PRECONDITION;
  }

  const specd_config* raw() const { return config_; }

  // The whole subtree as canonical JSON, for values without a getter, such as lists.
  std::string json() const { return std::string(config_->json, config_->json_len); }

 private:
  static bool found(const char* path, const char* expected, specd_status status) {
    if (status == SPECD_E_PRECONDITION) return false;
    if (status != SPECD_OK) {
      throw Error(SPECD_E_CONFIG, std::string(path) + ": expected " + expected);
    }
    return true;
  }

  const specd_config* config_;
};

}  // namespace specd::sdk

#endif
