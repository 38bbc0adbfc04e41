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

constexpr size_t kShownMax = 60;
constexpr size_t kNameMax = 64;
constexpr size_t kPathComponentMax = 255;  // Linux's NAME_MAX
constexpr char kNameRule[] = "a name of at most 64 letters, digits, '_', '-' or '.'";

bool is_plain_scalar(const Value& value) {
  return value.node().kind == Kind::kScalar && value.node().plain;
}

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameMax &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string_view::npos;
}

// What a request or a log line can carry.
Result<std::string> read_name(const Value& value) {
  SPECD_TRY(std::string name, read_text(value));
  if (!is_name(name)) return value.not_expected(kNameRule);
  return name;
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
                         ": " + quote(part.native(), kShownMax));
  return path;
}

// A folder that exists; `what` says what it should hold.
Result<std::string> read_folder(const Value& value, const std::string& what) {
  if (value.node().kind != Kind::kScalar) return value.not_expected("a folder");
  SPECD_TRY(std::string path, read_path(value));
  std::error_code failure;
  if (fs::is_directory(path, failure)) return path;
  const bool is_there = fs::exists(path, failure);
  return value.error("expected " + what + ", found " +
                     (is_there ? "something that is not a folder" : "nothing") + " at " + path);
}

Result<std::string> read_choice(const Key& key, const Value& value) {
  const YamlNode& node = value.node();
  const bool is_scalar = node.kind == Kind::kScalar;
  const auto known = std::find(key.choices.begin(), key.choices.end(), node.value);
  if (is_scalar && known != key.choices.end()) return node.value;
  return value.error("expected one of " + joined(key.choices) + "; found " + value.found() +
                     (is_scalar ? did_you_mean(node.value, key.choices) : ""));
}

// Numbers and true or false: a plain scalar that YAML takes for that.
Result<Json> read_plain(const Value& value, const std::string& expected, auto is_good) {
  if (!is_plain_scalar(value)) return value.not_expected(expected);
  SPECD_TRY(Json json, yaml_to_json(value.node(), value.file(), value.path()));
  if (!is_good(json)) return value.not_expected(expected);
  return json;
}

Result<Json> read_integer(const Key& key, const Value& value) {
  return read_plain(
      value, "a whole number in [" + std::to_string(key.min) + ", " + std::to_string(key.max) + "]",
      [&](const Json& json) {
        if (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(key.max))
          return false;
        return json.is_number_integer() && json.get<int64_t>() >= key.min &&
               json.get<int64_t>() <= key.max;
      });
}

Result<Json> read_share(const Value& value) {
  return read_plain(value, "a number of more than 0 and at most 1", [](const Json& json) {
    return json.is_number() && json.get<double>() > 0 && json.get<double>() <= 1;
  });
}

Result<Json> read_bytes(const Key& key, const Value& value) {
  const std::string expected = "a size such as 512MiB (KiB, MiB, GiB, or plain bytes)";
  if (value.node().kind != Kind::kScalar) return value.not_expected(expected);
  const std::string& text = value.node().value;
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const bool is_too_large = bad == std::errc::result_out_of_range;
  if ((bad != std::errc() && !is_too_large) || (text.size() > 1 && text[0] == '0'))
    return value.not_expected(expected);
  const std::string_view units[] = {"", "KiB", "MiB", "GiB"};
  const auto* known = std::find(std::begin(units), std::end(units), unit);
  if (known == std::end(units)) return value.not_expected(expected);
  const auto shift = 10 * (known - std::begin(units));
  if (is_too_large || number == 0 || number > static_cast<uint64_t>(key.max) >> shift)
    return value.not_expected("a size from 1 byte to 1024 TiB");
  return Json(number << shift);
}

// Nothing unknown, nothing missing.
Result<Json> read_section(const Key& section, const Value& value) {
  const YamlNode& node = value.node();
  if (node.kind != Kind::kMap) return value.not_expected("a mapping");
  for (const YamlNode::Entry& entry : node.entries) {
    if (section.find(entry.key) != nullptr) continue;
    std::vector<std::string> known;
    for (const Key& key : section.keys) known.push_back(key.name);
    return value.error_at(entry.place, value.path_of(entry.key),
                          "unknown key" + known_words(entry.key, known));
  }
  Json values = Json::object();
  for (const Key& key : section.keys) {
    const Value one = value.at(key.name);
    if (node.find(key.name) != nullptr) {
      SPECD_TRY(values[key.name], read_value(key, one));
    } else if (key.is_required) {
      return one.error("missing; it is required");
    }
  }
  std::string first;
  for (const std::string& name : section.exclusive) {
    if (node.find(name) == nullptr) continue;
    if (!first.empty())
      return value.at(name).error("expected only one of " + joined_or(section.exclusive) + "; " +
                                  first + " is given already");
    first = name;
  }
  return values;
}

Result<Json> read_list(const Key& list, const Value& value) {
  const YamlNode& node = value.node();
  const std::string expected = list.expected.empty() ? "a list" : list.expected;
  if (node.kind != Kind::kSequence) return value.not_expected(expected);
  const auto n = static_cast<int64_t>(node.items.size());
  if (list.max > 0 && (n < list.min || n > list.max))
    return value.error("expected " + expected + ", found a list of " + std::to_string(n));
  Json values = Json::array();
  for (size_t i = 0; i < node.items.size(); ++i) {
    SPECD_TRY(Json one, read_value(list.keys[0], value.item(i)));
    values.push_back(std::move(one));
  }
  return values;
}

Result<Json> read_named(const Key& named, const Value& value) {
  const YamlNode& node = value.node();
  Json values = Json::array();
  if (node.kind == Kind::kNull) return values;
  if (node.kind != Kind::kMap) return value.not_expected("a mapping");
  if (node.entries.size() > static_cast<size_t>(named.max))
    return value.error("expected at most " + std::to_string(named.max) + ", found " +
                       std::to_string(node.entries.size()));
  for (const YamlNode::Entry& entry : node.entries) {
    if (!is_name(entry.key))
      return value.error_at(entry.place, value.path(),
                            std::string("expected ") + kNameRule + " as the name of " +
                                named.expected + ", found " + quote(entry.key));
    const Value one(entry.value, value.file(), value.path_of(entry.key));
    SPECD_TRY(Json read, read_value(named.keys[0], one));
    values.push_back(Json::array({entry.key, std::move(read)}));
  }
  return values;
}

Result<Json> read_free(const Value& value) {
  if (value.node().kind == Kind::kNull) return Json::object();
  if (value.node().kind != Kind::kMap) return value.not_expected("a mapping");
  return yaml_to_json(value.node(), value.file(), value.path());
}

Result<Json> as_json(Result<std::string> text) {
  if (!text.ok()) return text.status();
  return Json(std::move(text).value());
}

}  // namespace

std::string Value::path_of(std::string_view key) const {
  return path_.empty() ? std::string(key) : path_ + "." + std::string(key);
}

Value Value::at(std::string_view key) const {
  const YamlNode* node = node_->find(key);
  return {node != nullptr ? *node : *node_, *file_, path_of(key)};
}

Value Value::item(size_t index) const {
  return {node_->items[index], *file_, path_ + "[" + std::to_string(index) + "]"};
}

Status Value::error_at(const YamlPlace& place, const std::string& path,
                       const std::string& text) const {
  return Status(Code::kInvalidArgument, error_front(*file_, place, path) + text);
}

Status Value::not_expected(const std::string& expected) const {
  return error("expected " + expected + ", found " + found());
}

std::string Value::found() const {
  switch (node_->kind) {
    case Kind::kNull:
      return "nothing";
    case Kind::kScalar:
      return (node_->plain ? "" : "text ") + quote(node_->value, kShownMax);
    case Kind::kSequence:
      return "a list";
    case Kind::kMap:
      return "a mapping";
  }
  return "nothing";
}

const Key* Key::find(std::string_view key_name) const {
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [key_name](const Key& key) { return key.name == key_name; });
  return found == keys.end() ? nullptr : &*found;
}

Result<std::string> read_text(const Value& value) {
  const YamlNode& node = value.node();
  if (node.kind != Kind::kScalar || node.value.empty()) return value.not_expected("text");
  for (const char c : node.value)
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)
      return value.not_expected("text without control characters");
  if (node.plain) {
    SPECD_TRY(const Json json, yaml_to_json(node, value.file(), value.path()));
    if (!json.is_string()) return value.not_expected("text; quotes make text of it");
  }
  return node.value;
}

Result<std::string> resolve_path(const Value& value, const std::string& path) {
  std::error_code failure;
  const fs::path whole = fs::absolute(fs::path(value.file()).parent_path() / path, failure);
  if (failure) return value.error("cannot tell the working directory: " + failure.message());
  std::string text = whole.lexically_normal().string();
  // What is printed of it has to be read again.
  const bool is_plain =
      utf8_error_offset(text) == std::string::npos &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7f; });
  if (!is_plain)
    return value.error("expected a path in UTF-8 without control characters, found " + quote(text) +
                       " (relative paths begin at the file's folder)");
  return text;
}

Result<Json> read_value(const Key& key, const Value& value) {
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
      return read_integer(key, value);
    case Type::kShare:
      return read_share(value);
    case Type::kBoolean:
      return read_plain(value, "true or false", [](const Json& json) { return json.is_boolean(); });
    case Type::kBytes:
      return read_bytes(key, value);
    case Type::kSection:
      return read_section(key, value);
    case Type::kList:
      return read_list(key, value);
    case Type::kNamed:
      return read_named(key, value);
    case Type::kFree:
      return read_free(value);
  }
  return Status(Code::kInternal, "a key of an unknown type");
}

}  // namespace specd::host
