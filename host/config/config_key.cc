#include "host/config/config_key.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "core/base/quote.h"
#include "core/base/words.h"

namespace specd::host {

namespace fs = std::filesystem;
using Kind = YamlNode::Kind;
using Type = Key::Type;

namespace {

constexpr size_t kNameMax = 64;
constexpr size_t kPathComponentMax = 255;  // Linux's NAME_MAX
constexpr char kNameRule[] = "a name of at most 64 letters, digits, '_', '-' or '.'";

// What a request or a log line can carry.
bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameMax &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string_view::npos;
}

Result<std::string> read_path(const Value& value) {
  SPECD_TRY(const std::string text, read_text(value));
  SPECD_TRY(std::string path, resolve_path(value, text));
  if (path.size() > kPathMax)
    return value.error("expected a path of at most " + std::to_string(kPathMax) + " bytes, found " +
                       std::to_string(path.size()));
  for (const fs::path& part : fs::path(path))
    if (part.native().size() > kPathComponentMax)
      return value.error("expected names of at most " + std::to_string(kPathComponentMax) +
                         " bytes in a path, found one of " + std::to_string(part.native().size()) +
                         ": " + quote(part.native(), 60));
  return path;
}

// A folder that exists; `what` says what should be in it.
Result<std::string> read_folder(const Value& value, const std::string& what) {
  if (value.node.kind != Kind::kScalar) return value.not_expected("a folder");
  SPECD_TRY(std::string path, read_path(value));
  std::error_code failure;
  if (fs::is_directory(path, failure)) return path;
  const bool is_there = fs::exists(path, failure);
  return value.error("expected " + what + ", found " +
                     (is_there ? "something that is not a folder" : "nothing") + " at " + path);
}

Result<std::string> read_choice(const Key& key, const Value& value) {
  const bool is_scalar = value.node.kind == Kind::kScalar;
  const std::string& word = value.node.value;
  if (is_scalar && std::find(key.choices.begin(), key.choices.end(), word) != key.choices.end())
    return word;
  return value.error("expected one of " + joined(key.choices) + "; found " + value.found() +
                     (is_scalar ? did_you_mean(word, key.choices) : ""));
}

// A number or boolean: a plain scalar to which YAML gives that type.
Result<Json> read_plain(const Value& value, const std::string& expected, auto is_good) {
  if (value.node.kind != Kind::kScalar || !value.node.plain) return value.not_expected(expected);
  SPECD_TRY(Json json, yaml_to_json(value));
  if (!is_good(json)) return value.not_expected(expected);
  return json;
}

Result<Json> read_bytes(const Key& key, const Value& value) {
  const std::string expected = "a size such as 512MiB (KiB, MiB, GiB, or plain bytes)";
  if (value.node.kind != Kind::kScalar) return value.not_expected(expected);
  const std::string& text = value.node.value;
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view units[] = {"", "KiB", "MiB", "GiB"};
  const auto* unit = std::find(std::begin(units), std::end(units),
                               std::string_view(end, text.data() + text.size()));
  if (bad == std::errc::invalid_argument || unit == std::end(units) ||
      (text.size() > 1 && text[0] == '0'))
    return value.not_expected(expected);
  const auto shift = 10 * (unit - std::begin(units));
  if (bad == std::errc::result_out_of_range || number == 0 ||
      number > static_cast<uint64_t>(key.max) >> shift)
    return value.not_expected("a size from 1 byte to 1024 TiB");
  return Json(number << shift);
}

Result<Json> read_free(const Value& value) {
  if (value.node.kind == Kind::kNull) return Json::object();
  if (value.node.kind != Kind::kMap) return value.not_expected("a mapping");
  return yaml_to_json(value);
}

Result<Json> as_json(Result<std::string> text) {
  if (!text.ok()) return text.status();
  return Json(std::move(text).value());
}

// What key.set() takes.
Result<Json> read_member(const Key& key, const Value& value) {
  if (key.read != nullptr) return as_json(key.read(value));
  switch (key.type) {
    case Type::kText:
      return as_json(read_text(value));
    case Type::kName:
      return as_json(read_name(value));
    case Type::kPath:
      return as_json(key.expected.empty() ? read_path(value) : read_folder(value, key.expected));
    case Type::kChoice:
      return as_json(read_choice(key, value));
    case Type::kInteger:
      return read_plain(
          value,
          "a whole number in [" + std::to_string(key.min) + ", " + std::to_string(key.max) + "]",
          [&](const Json& json) {
            // As double: it does not wrap, and is exact in the range of a key.
            return json.is_number_integer() && json.get<double>() >= double(key.min) &&
                   json.get<double>() <= double(key.max);
          });
    case Type::kShare:
      return read_plain(value, "a number of more than 0 and at most 1", [](const Json& json) {
        return json.is_number() && json.get<double>() > 0 && json.get<double>() <= 1;
      });
    case Type::kBoolean:
      return read_plain(value, "true or false", [](const Json& json) { return json.is_boolean(); });
    case Type::kBytes:
      return read_bytes(key, value);
    case Type::kFree:
      return read_free(value);
    case Type::kSection:
    case Type::kList:
    case Type::kNamed:
      break;
  }
  return Status(Code::kInternal, "a key without a value of its own");
}

// Nothing unknown, nothing missing.
Status read_section(const Key& section, const Value& value) {
  const YamlNode& node = value.node;
  if (node.kind != Kind::kMap) return value.not_expected("a mapping");
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    if (section.find(item.key) != nullptr) continue;
    std::vector<std::string> known;
    for (const Key& key : section.keys) known.push_back(key.name);
    return value.item(i).error_at(item.key_place, "unknown key" + known_words(item.key, known));
  }
  for (const Key& key : section.keys) {
    if (node.find(key.name) != nullptr)
      SPECD_OK_OR_RETURN(read_value(key, value.at(key.name)));
    else if (key.is_required)
      return value.at(key.name).error("missing; it is required");
  }
  std::string first;
  for (const std::string& name : section.exclusive) {
    if (node.find(name) == nullptr) continue;
    if (!first.empty())
      return value.at(name).error("expected only one of " + joined_or(section.exclusive) + "; " +
                                  first + " is given already");
    first = name;
  }
  if (section.store) section.store(0, "");
  return Status();
}

Status read_list(const Key& list, const Value& value) {
  const std::string expected = list.expected.empty() ? "a list" : list.expected;
  if (value.node.kind != Kind::kSequence) return value.not_expected(expected);
  const size_t n = value.node.items.size();
  const auto count = static_cast<int64_t>(n);
  if (list.max > 0 && (count < list.min || count > list.max))
    return value.error("expected " + expected + ", found a list of " + std::to_string(n));
  for (size_t i = 0; i < n; ++i) {
    SPECD_OK_OR_RETURN(read_value(list.keys[0], value.item(i)));
    list.store(i, "");
  }
  return Status();
}

Status read_named(const Key& named, const Value& value) {
  const YamlNode& node = value.node;
  if (node.kind == Kind::kNull) return Status();
  if (node.kind != Kind::kMap) return value.not_expected("a mapping");
  if (node.items.size() > static_cast<size_t>(named.max))
    return value.error("expected at most " + std::to_string(named.max) + ", found " +
                       std::to_string(node.items.size()));
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    if (!is_name(item.key))
      return value.error_at(item.key_place, std::string("expected ") + kNameRule +
                                                " as the name of " + named.expected + ", found " +
                                                quote(item.key));
    SPECD_OK_OR_RETURN(read_value(named.keys[0], value.item(i)));
    named.store(i, item.key);
  }
  return Status();
}

}  // namespace

const Key* Key::find(std::string_view key_name) const {
  for (const Key& key : keys)
    if (key.name == key_name) return &key;
  return nullptr;
}

Status read_value(const Key& key, const Value& value) {
  if (key.type == Type::kSection) return read_section(key, value);
  if (key.type == Type::kList) return read_list(key, value);
  if (key.type == Type::kNamed) return read_named(key, value);
  SPECD_TRY(const Json json, read_member(key, value));
  key.set(json);
  return Status();
}

Json save(const Key& key) {
  if (key.get) {
    Json json = key.get();
    // An empty text and a zero outside the key's range mean "not given".
    const bool takes_zero = key.type == Type::kInteger && key.min == 0;
    if (json.is_number() && json == 0 && !takes_zero) return nullptr;
    if (json.is_string() && json.get_ref<const std::string&>().empty()) return nullptr;
    return json;
  }
  if (key.type == Type::kSection) {
    if (key.show && !key.show(0)) return nullptr;
    Json object = Json::object();
    for (const Key& one : key.keys)
      if (Json json = save(one); !json.is_null()) object[one.name] = std::move(json);
    return object;
  }
  Json items = Json::array();
  for (size_t i = 0; const auto name = key.show(i); ++i) {
    Json item = save(key.keys[0]);
    if (key.type == Type::kNamed) {
      // Not an initializer list: GCC 12 destroys a part of it twice when a later part throws.
      Json pair = Json::array();
      pair.push_back(*name);
      pair.push_back(std::move(item));
      item = std::move(pair);
    }
    items.push_back(std::move(item));
  }
  return items;
}

Result<std::string> read_name(const Value& value) {
  SPECD_TRY(std::string name, read_text(value));
  if (!is_name(name)) return value.not_expected(kNameRule);
  return name;
}

Result<std::string> read_plugin_name(const Value& value) {
  SPECD_TRY(std::string name, read_text(value));
  const size_t at = name.find('@');
  if (at == std::string::npos) return read_name(value);
  std::string version = name.substr(at + 1);
  std::replace(version.begin(), version.end(), '+', '.');  // semver.org allows it
  if (!is_name(std::string_view(name).substr(0, at)) || !is_name(version))
    return value.not_expected("ID@VERSION, each of at most 64 letters, digits, '_', '-' or '.'");
  return name;
}

Result<std::string> read_text(const Value& value) {
  const YamlNode& node = value.node;
  if (node.kind != Kind::kScalar || node.value.empty()) return value.not_expected("text");
  if (std::any_of(node.value.begin(), node.value.end(), is_control))
    return value.not_expected("text without control characters");
  if (node.plain) {
    SPECD_TRY(const Json json, yaml_to_json(value));
    if (!json.is_string()) return value.not_expected("text; quotes make text of it");
  }
  return node.value;
}

Result<std::string> resolve_path(const Value& value, const std::string& path) {
  std::error_code failure;
  const fs::path whole = fs::absolute(fs::path(value.file).parent_path() / path, failure);
  if (failure) return value.error("cannot find the working directory: " + failure.message());
  std::string text = whole.lexically_normal().string();
  // What is printed of it must be readable again.
  if (utf8_error_offset(text) != std::string::npos ||
      std::any_of(text.begin(), text.end(), is_control))
    return value.error("expected a path in UTF-8 without control characters, found " + quote(text) +
                       " (relative paths begin at the file's folder)");
  return text;
}

}  // namespace specd::host
