#include "core/model/quantization_rules.h"

#include <charconv>
#include <utility>

#include "core/base/quote.h"

namespace specd {

const Json& at_or_null(const Json& object, const char* key) {
  static const Json kNull;
  const auto found = object.find(key);
  return found == object.end() ? kNull : *found;
}

Result<std::string> word_or(const Json& block, const char* key, const std::string& fallback,
                            const std::string& where) {
  SPECD_TRY(std::string word, json_string_or(block, key, fallback, where));
  for (char& c : word) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return word;
}

std::string key_place(const std::string& where, std::string_view key) {
  return where + ": key " + quote(key);
}

Status unsupported_value(const std::string& where, std::string_view key, const Json& found,
                         const std::string& supported) {
  return Status(Code::kUnsupported, key_place(where, key) + ": found " +
                                        quote(found.dump(-1, ' ', true)) +
                                        ", supported: " + supported);
}

Result<std::vector<std::string>> read_module_names(const QuantizationSource& from,
                                                   const Json& object, const char* key,
                                                   const std::string& where) {
  std::vector<std::string> names;
  const Json& list = at_or_null(object, key);
  if (list.is_null()) return names;
  const std::string place = key_place(where, key);
  if (!list.is_array()) {
    return Status(Code::kDataLoss,
                  place + ": expected a list of modules, found " + quote(list.dump(-1, ' ', true)));
  }
  static constexpr std::string_view kLayers = "model.layers.";
  for (const Json& each : list) {
    if (!each.is_string() || each.get_ref<const std::string&>().empty()) {
      return Status(Code::kDataLoss, place + ": expected names of modules, found " +
                                         quote(each.dump(-1, ' ', true)));
    }
    const auto& name = each.get_ref<const std::string&>();
    names.push_back(name);
    if (!name.starts_with(kLayers)) continue;
    int64_t layer = 0;
    const char* end = name.data() + name.size();
    const auto [rest, error] = std::from_chars(name.data() + kLayers.size(), end, layer);
    const bool is_number = error != std::errc::invalid_argument && (rest == end || *rest == '.');
    if (is_number && (error != std::errc() || layer < 0 || layer >= from.n_layers)) {
      return Status(Code::kDataLoss, place + ": found " + quote(name) + ", expected layers below " +
                                         std::to_string(from.n_layers) +
                                         " (num_hidden_layers of config.json)");
    }
  }
  return names;
}

}  // namespace specd
