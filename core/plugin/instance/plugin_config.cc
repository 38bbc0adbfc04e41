#include "core/plugin/instance/plugin_config.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "core/base/quote.h"

namespace specd {
namespace {

constexpr int kDepthMax = 64;
constexpr size_t kPathBytesMax = 1024;

std::string fault_of(const Json& value, int depth) {
  if (depth > kDepthMax) return "nested deeper than 64";
  if (value.is_number_float() && !std::isfinite(value.get<double>())) {
    return "a number is not finite";
  }
  if (value.is_binary()) return "binary values have no JSON";
  if (value.is_structured()) {
    for (const Json& child : value) {
      std::string fault = fault_of(child, depth + 1);
      if (!fault.empty()) return fault;
    }
  }
  return std::string();
}

const Json* find(const specd_config* config, const char* path) {
  return static_cast<const PluginConfig*>(config->ctx)->find(path);
}

const Json* child_of(const Json& at, std::string_view key) {
  if (at.is_array()) {
    size_t index = 0;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), index);
    const bool good = error == std::errc() && end == key.data() + key.size();
    return good && index < at.size() ? &at[index] : nullptr;
  }
  if (!at.is_object()) return nullptr;
  const auto child = at.find(std::string(key));
  return child == at.end() ? nullptr : &*child;
}

// `take` reads the value at `path` into `out`; false when it is of another type.
specd_status read(const specd_config* config, const char* path, const void* out,
                  auto&& take) noexcept {
  if (config == nullptr || path == nullptr || out == nullptr) return SPECD_E_INVALID;
  try {
    const Json* value = find(config, path);
    if (value == nullptr) return SPECD_E_PRECONDITION;
    return take(*value) ? SPECD_OK : SPECD_E_CONFIG;
  } catch (...) {  // finding a key allocates
    return SPECD_E_EXHAUSTED;
  }
}

specd_status get_i64(const specd_config* config, const char* path, int64_t* out) noexcept {
  return read(config, path, out, [out](const Json& value) {
    if (value.is_number_unsigned()) {
      const auto number = value.get<uint64_t>();
      if (number > static_cast<uint64_t>(INT64_MAX)) return false;
      *out = static_cast<int64_t>(number);
    } else if (value.is_number_integer()) {
      *out = value.get<int64_t>();
    } else if (value.is_number_float()) {
      // 8.0 is an integer to the schema, so it is one here.
      const auto number = value.get<double>();
      if (number != std::trunc(number) || std::fabs(number) > 0x1p53) return false;
      *out = static_cast<int64_t>(number);
    } else {
      return false;
    }
    return true;
  });
}

specd_status get_f64(const specd_config* config, const char* path, double* out) noexcept {
  return read(config, path, out, [out](const Json& value) {
    if (!value.is_number()) return false;
    *out = value.get<double>();
    return true;
  });
}

specd_status get_bool(const specd_config* config, const char* path, uint32_t* out) noexcept {
  return read(config, path, out, [out](const Json& value) {
    if (!value.is_boolean()) return false;
    *out = value.get<bool>() ? 1 : 0;
    return true;
  });
}

specd_status get_str(const specd_config* config, const char* path, const char** out,
                     uint64_t* len) noexcept {
  return read(config, path, out, [out, len](const Json& value) {
    if (!value.is_string()) return false;
    const auto& text = value.get_ref<const std::string&>();
    *out = text.c_str();
    if (len != nullptr) *len = text.size();
    return true;
  });
}

}  // namespace

const Json* PluginConfig::find(const char* path) const {
  std::string_view rest(path, strnlen(path, kPathBytesMax));
  const Json* at = &config_;
  while (true) {
    const size_t dot = rest.find('.');
    at = child_of(*at, rest.substr(0, dot));
    if (at == nullptr || dot == std::string_view::npos) return at;
    rest.remove_prefix(dot + 1);
  }
}

PluginConfig* PluginConfig::of(const specd_config* config) {
  const bool ours = config->struct_size == sizeof(specd_config) && config->get_i64 == get_i64;
  return ours ? static_cast<PluginConfig*>(config->ctx) : nullptr;
}

Result<std::string> PluginConfig::path(const std::string& key) const {
  const Json* text = find(key.c_str());
  if (text == nullptr || !text->is_string() || text->get_ref<const std::string&>().empty()) {
    return Status(Code::kInvalidArgument, key, "expected the path of a file or folder");
  }
  const auto& given = text->get_ref<const std::string&>();
  if (given.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, key, "expected a path without a NUL byte");
  }
  if (given.front() == '/') return given;
  if (directory_.empty()) {
    return Status(Code::kInvalidArgument, key,
                  "expected an absolute path, found " + quote(given) +
                      ": there is no configuration file at whose folder it could start");
  }
  return directory_ + "/" + given;
}

Result<std::unique_ptr<PluginConfig>> PluginConfig::make(Json config, PartSource* parts,
                                                         const std::string& directory) {
  std::string fault = config.is_object() ? fault_of(config, 0) : "expected an object";
  if (!fault.empty()) return Status(Code::kInvalidArgument, fault);
  std::unique_ptr<PluginConfig> made(new PluginConfig(std::move(config), parts, directory));
  try {
    made->text_ = made->config_.dump();
  } catch (const Json::exception&) {
    return Status(Code::kInvalidArgument, "a string is not valid UTF-8");
  }
  made->view_.struct_size = sizeof(specd_config);
  made->view_.json = made->text_.c_str();
  made->view_.json_len = made->text_.size();
  made->view_.ctx = made.get();
  made->view_.get_i64 = get_i64;
  made->view_.get_f64 = get_f64;
  made->view_.get_bool = get_bool;
  made->view_.get_str = get_str;
  return made;
}

}  // namespace specd
