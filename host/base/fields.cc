#include "host/base/fields.h"

#include <cmath>
#include <utility>

#include "core/base/quote.h"

namespace specd::host {
namespace {

constexpr size_t kShownBytesMax = 64;

bool asks_for_nothing(const Json& value) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  return (value.is_array() || value.is_object()) && value.empty();
}

}  // namespace

std::string shown(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  return text.size() > kShownBytesMax ? "a text of " + std::to_string(text.size()) + " bytes"
                                      : "the text " + quote(text);
}

Result<int64_t> integer_of(const Json& value, int64_t min, int64_t max) {
  const auto wrong = [&] {
    return Status(Code::kInvalidArgument, "expected an integer from " + std::to_string(min) +
                                              " to " + std::to_string(max) + ", found " +
                                              shown(value));
  };
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(INT64_MAX)) return wrong();
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    constexpr double kExact = 9007199254740992;  // 2^53: integers up to it are doubles
    if (std::trunc(number) != number || std::abs(number) > kExact) return wrong();
    const auto integer = static_cast<int64_t>(number);
    return integer < min || integer > max ? Result<int64_t>(wrong()) : integer;
  } else if (!value.is_number_integer()) {
    return wrong();
  }
  const auto integer = value.get<int64_t>();
  if (integer < min || integer > max) return wrong();
  return integer;
}

Fields::Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

std::string Fields::path_of(const std::string& name) const {
  return path_.empty() ? name : path_ + "." + name;
}

void Fields::fail(const std::string& name, const std::string& text) {
  if (status_.ok()) status_ = Status(Code::kInvalidArgument, path_of(name), text);
}

const Json* Fields::value(const char* name) {
  known_.insert(name);
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> Fields::boolean(const char* name) {
  const Json* const found = value(name);
  if (found == nullptr) return std::nullopt;
  if (found->is_boolean()) return found->get<bool>();
  fail(name, "expected true or false, found " + shown(*found));
  return std::nullopt;
}

std::optional<int64_t> Fields::integer(const char* name, int64_t min, int64_t max) {
  const Json* const found = value(name);
  if (found == nullptr) return std::nullopt;
  const Result<int64_t> number = integer_of(*found, min, max);
  if (number.ok()) return number.value();
  fail(name, number.status().message());
  return std::nullopt;
}

std::optional<double> Fields::number(const char* name) {
  const Json* const found = value(name);
  if (found == nullptr) return std::nullopt;
  if (found->is_number()) return found->get<double>();
  fail(name, "expected a number, found " + shown(*found));
  return std::nullopt;
}

std::optional<std::string> Fields::text(const char* name) {
  const Json* const found = value(name);
  if (found == nullptr) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  fail(name, "expected a text, found " + shown(*found));
  return std::nullopt;
}

void Fields::ignore(std::initializer_list<const char*> names) {
  for (const char* const name : names) known_.insert(name);
}

void Fields::refuse(std::initializer_list<const char*> names, const char* why) {
  for (const char* const name : names) {
    if (const Json* const found = value(name); found != nullptr && !asks_for_nothing(*found))
      fail(name, why);
  }
}

std::vector<std::string> Fields::unknown() const {
  std::vector<std::string> all;
  for (const auto& [name, value] : object_.items()) {
    if (!known_.contains(name)) all.push_back(path_of(name));
  }
  return all;
}

}  // namespace specd::host
