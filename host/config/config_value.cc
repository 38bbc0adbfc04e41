#include "host/config/config_value.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/base/words.h"

namespace specd::host {

namespace fs = std::filesystem;
using Kind = YamlNode::Kind;

namespace {

constexpr size_t kShownMax = 60;

bool is_plain_scalar(const Value& value) {
  return value.node().kind == Kind::kScalar && value.node().plain;
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

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= kNameMax &&
         text.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.") ==
             std::string_view::npos;
}

std::string name_rule() { return "a name of at most 64 letters, digits, '_', '-' or '.'"; }

Result<std::string> read_name(const Value& value) {
  SPECD_TRY(std::string name, read_text(value));
  if (!is_name(name)) return value.not_expected(name_rule());
  return name;
}

Result<size_t> read_choice(const Value& value, const std::vector<std::string>& choices) {
  const YamlNode& node = value.node();
  const bool is_scalar = node.kind == Kind::kScalar;
  const auto at = std::find(choices.begin(), choices.end(), node.value);
  if (is_scalar && at != choices.end()) return static_cast<size_t>(at - choices.begin());
  return value.error("expected one of " + joined(choices) + "; found " + value.found() +
                     (is_scalar ? did_you_mean(node.value, choices) : ""));
}

Result<int64_t> read_integer(const Value& value, int64_t min, int64_t max) {
  const std::string expected =
      "a whole number in [" + std::to_string(min) + ", " + std::to_string(max) + "]";
  if (!is_plain_scalar(value)) return value.not_expected(expected);
  SPECD_TRY(const Json json, yaml_to_json(value.node(), value.file(), value.path()));
  if (!json.is_number_integer() ||
      (json.is_number_unsigned() && json.get<uint64_t>() > static_cast<uint64_t>(max)))
    return value.not_expected(expected);
  const int64_t number = json.get<int64_t>();
  if (number < min || number > max) return value.not_expected(expected);
  return number;
}

Result<double> read_share(const Value& value) {
  const std::string expected = "a number of more than 0 and at most 1";
  if (!is_plain_scalar(value)) return value.not_expected(expected);
  SPECD_TRY(const Json json, yaml_to_json(value.node(), value.file(), value.path()));
  if (!json.is_number()) return value.not_expected(expected);
  const double share = json.get<double>();
  if (!(share > 0 && share <= 1)) return value.not_expected(expected);
  return share;
}

Result<bool> read_boolean(const Value& value) {
  if (is_plain_scalar(value)) {
    const auto json = yaml_to_json(value.node(), value.file(), value.path());
    if (json.ok() && json.value().is_boolean()) return json.value().get<bool>();
  }
  return value.not_expected("true or false");
}

Result<uint64_t> read_bytes(const Value& value) {
  const std::string expected = "a size such as 512MiB (KiB, MiB, GiB, or plain bytes)";
  if (value.node().kind != Kind::kScalar) return value.not_expected(expected);
  const std::string& text = value.node().value;
  uint64_t number = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  const bool is_too_large = bad == std::errc::result_out_of_range;
  if ((bad != std::errc() && !is_too_large) || (text.size() > 1 && text[0] == '0'))
    return value.not_expected(expected);
  int shift = -1;
  if (unit.empty()) shift = 0;
  if (unit == "KiB") shift = 10;
  if (unit == "MiB") shift = 20;
  if (unit == "GiB") shift = 30;
  if (shift < 0) return value.not_expected(expected);
  if (is_too_large || number == 0 || number > kBytesValueMax >> shift)
    return value.not_expected("a size from 1 byte to 1024 TiB");
  return number << shift;
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

Result<std::string> read_folder(const Value& value, const std::string& what) {
  if (value.node().kind != Kind::kScalar) return value.not_expected("a folder");
  SPECD_TRY(std::string path, read_path(value));
  std::error_code failure;
  if (fs::is_directory(path, failure)) return path;
  const bool is_there = fs::exists(path, failure);
  return value.error("expected " + what + ", found " +
                     (is_there ? "something that is not a folder" : "nothing") + " at " + path);
}

}  // namespace specd::host
