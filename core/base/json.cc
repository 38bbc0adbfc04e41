#include "core/base/json.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <exception>
#include <iterator>
#include <limits>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/json_events.h"
#include "core/base/quote.h"

namespace specd {
namespace {

constexpr size_t kDepthMax = 64;
// A value takes up to 160 bytes plus its text, so the 7 bytes of `"a":{},` grow about 20 times.
constexpr size_t kValuesMax = 4'000'000;

// "where:line:column" of a byte offset; columns count bytes from 1.
std::string place(std::string_view text, size_t offset, const std::string& where) {
  if (offset > text.size()) offset = text.size();
  size_t line = 1;
  size_t column = 1;
  for (size_t i = 0; i < offset; ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else {
      ++column;
    }
  }
  return where + ":" + std::to_string(line) + ":" + std::to_string(column);
}

// Reports how far the parser has read, so that our own refusals have a place too.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  const char& operator*() const { return *at_; }
  CountingIterator& operator++() {
    *reached_ = at_++;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  friend bool operator==(const CountingIterator& a, const CountingIterator& b) {
    return a.at_ == b.at_;
  }
  friend bool operator!=(const CountingIterator& a, const CountingIterator& b) { return !(a == b); }

 private:
  const char* at_;
  const char** reached_;  // the last character read
};

// Builds a Json from parse events; stops at the first thing that it refuses.
class Builder final : public JsonEvents {  // NOLINT(bugprone-exception-escape): of nlohmann's
 public:
  Json take_root() { return std::move(root_); }

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Json(value)); }
  bool string(string_t& value) override { return add(Json(std::move(value))); }

  bool key(string_t& name) override {
    Json& object = *stack_.back();
    if (object.contains(name)) {
      return refuse("malformed JSON: the key " + quote(name) + " occurs twice");
    }
    slot_ = &object[std::move(name)];
    return true;
  }

 private:
  bool open_object() override { return open(Json::object()); }
  bool open_array() override { return open(Json::array()); }
  bool close() override {
    stack_.pop_back();
    return true;
  }

  // Returns null after refusing the value.
  Json* put(Json value) {
    if (++n_values_ > kValuesMax) {
      refuse("malformed JSON: more than " + std::to_string(kValuesMax) + " values");
      return nullptr;
    }
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }
  bool add(Json value) { return put(std::move(value)) != nullptr; }
  bool open(Json value) {
    stack_.push_back(put(std::move(value)));
    return stack_.back() != nullptr;
  }

  Json root_;
  // Open arrays and objects. The pointers stay valid: a parent does not grow while a child is open.
  std::vector<Json*> stack_;
  Json* slot_ = nullptr;  // where the value of the last key goes
  size_t n_values_ = 0;
};

Status file_error(const std::string& shown, const char* what, int error) {
  const Code code =
      error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kFailedPrecondition;
  return Status(code, shown + ": cannot " + what + ": " + std::strerror(error));
}

const char* file_kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  return "a device";
}

// The value of a key; a null pointer when it is absent or null.
Result<const Json*> lookup(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) {
    return Status(Code::kDataLoss, where + ": expected an object with the key '" + key +
                                       "', found " + object.type_name());
  }
  const auto found = object.find(key);
  const Json* value = found == object.end() || found->is_null() ? nullptr : &*found;
  return value;
}

std::string shown(const Json& value) {
  return value.is_structured()
             ? std::string("an ") + value.type_name()
             : std::string(value.type_name()) + " " + quote(value.dump(-1, ' ', true));
}

Status mismatch(const std::string& where, const char* key, const std::string& expected,
                const Json& value) {
  return Status(Code::kDataLoss,
                where + ": key '" + key + "': expected " + expected + ", found " + shown(value));
}

Status missing(const std::string& where, const char* key) {
  return Status(Code::kDataLoss, where + ": the key '" + std::string(key) + "' is missing");
}

Result<int64_t> checked_int(const Json& value, const char* key, int64_t min, int64_t max,
                            const std::string& where) {
  const std::string expected =
      "an integer from " + std::to_string(min) + " to " + std::to_string(max);
  if (!value.is_number_integer()) return mismatch(where, key, expected, value);
  if (value.is_number_unsigned() &&
      value.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return mismatch(where, key, expected, value);
  }
  const auto number = value.get<int64_t>();
  if (number < min || number > max) return mismatch(where, key, expected, value);
  return number;
}

}  // namespace

bool JsonEvents::enter() {
  if (depth_ == kDepthMax) {
    return refuse("malformed JSON: nested deeper than " + std::to_string(kDepthMax) + " levels");
  }
  ++depth_;
  return true;
}

bool JsonEvents::refuse(std::string what) {
  const size_t offset = reached_ == nullptr ? 0 : static_cast<size_t>(reached_ - begin_);
  fault_ = JsonFault{.offset = offset, .what = std::move(what)};
  return false;
}

bool JsonEvents::parse_error(size_t position, const std::string&,
                             const nlohmann::detail::exception& error) {
  // Keep what nlohmann found unexpected; drop its error number and its own wording of the place.
  std::string what = error.what();
  if (const size_t at = what.find("syntax error"); at != std::string::npos) {
    what.erase(0, at);
  } else if (const size_t bracket = what.find("] "); bracket != std::string::npos) {
    what.erase(0, bracket + 2);
  }
  what = what.size() > 200 ? quote(what, 200) : escaped(what);  // it quotes a piece of the text
  fault_ = JsonFault{.offset = position > 0 ? position - 1 : 0, .what = "malformed JSON: " + what};
  return false;
}

std::optional<JsonFault> read_json(std::string_view text, JsonEvents& events) {
  // nlohmann would take it for the end of the text.
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return JsonFault{.offset = zero, .what = "malformed JSON: a zero byte"};
  }
  events.begin_ = text.data();
  const auto stopped = [&](Code code, const std::string& what) {
    events.refuse(what);
    events.fault_->code = code;
  };
  try {
    const CountingIterator begin(text.data(), &events.reached_);
    const CountingIterator end(text.data() + text.size(), &events.reached_);
    if (Json::sax_parse(begin, end, &events)) return std::nullopt;
    if (!events.fault_.has_value()) events.refuse("malformed JSON");
  } catch (const std::bad_alloc&) {
    stopped(Code::kExhausted, "out of memory while parsing JSON");
  } catch (const std::exception& error) {
    stopped(Code::kInternal, std::string("parsing JSON: ") + error.what());
  }
  return std::move(events.fault_);
}

Json json_object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json object(Json::value_t::object);
  for (const auto& [key, value] : members) object[key] = value;
  return object;
}

Result<Json> parse_json(std::string_view text, const std::string& where) {
  Builder builder;
  const std::optional<JsonFault> fault = read_json(text, builder);
  if (!fault.has_value()) return builder.take_root();
  return Status(fault->code, place(text, fault->offset, where) + ": " + fault->what);
}

bool path_exists(const std::string& path) {
  struct stat info {};
  return lstat(path.c_str(), &info) == 0;
}

Result<std::string> read_text_file(const std::string& path, uint64_t bytes_max,
                                   const std::string& name) {
  const std::string shown = name.empty() ? quote(path, 400) : name;
  // O_NONBLOCK: opening a FIFO must not hang.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return file_error(shown, "open", errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return file_error(shown, "stat", errno);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kInvalidArgument,
                  shown + ": expected a regular file, found " + file_kind(info.st_mode));
  }
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > bytes_max) {
    return Status(Code::kDataLoss, shown + ": " + std::to_string(size) +
                                       " bytes, expected at most " + std::to_string(bytes_max));
  }
  std::string text;
  try {
    text.resize(size);
  } catch (const std::exception&) {
    return Status(Code::kExhausted,
                  shown + ": out of memory for " + std::to_string(size) + " bytes");
  }
  size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t got = read(file.get(), text.data() + filled, text.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return file_error(shown, "read", errno);
    if (got == 0) {
      return Status(Code::kDataLoss, shown + ": shrank from " + std::to_string(size) + " to " +
                                         std::to_string(filled) + " bytes while read");
    }
    filled += static_cast<size_t>(got);
  }
  return text;
}

Result<Json> parse_json_file(const std::string& path, uint64_t bytes_max) {
  SPECD_TRY(const std::string text, read_text_file(path, bytes_max));
  if (is_lfs_pointer(text)) return Status(Code::kDataLoss, quote(path, 400) + kIsLfsPointer);
  return parse_json(text, path);
}

Result<int64_t> json_int(const Json& object, const char* key, int64_t min, int64_t max,
                         const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return missing(where, key);
  return checked_int(*value, key, min, max, where);
}

Result<int64_t> json_int_or(const Json& object, const char* key, int64_t fallback, int64_t min,
                            int64_t max, const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return fallback;
  return checked_int(*value, key, min, max, where);
}

Result<double> json_double_or(const Json& object, const char* key, double fallback,
                              const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return fallback;
  if (!value->is_number() || !std::isfinite(value->get<double>())) {
    return mismatch(where, key, "a number", *value);
  }
  return value->get<double>();
}

Result<double> json_double_or(const Json& object, const char* key, double fallback, double min,
                              double max, const std::string& where) {
  SPECD_TRY(const double number, json_double_or(object, key, fallback, where));
  if (number >= min && number <= max) return number;
  return Status(Code::kDataLoss, where + ": key " + quote(key) + ": expected from " +
                                     Json(min).dump() + " to " + Json(max).dump() + ", found " +
                                     Json(number).dump());
}

Result<bool> json_bool_or(const Json& object, const char* key, bool fallback,
                          const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return mismatch(where, key, "true or false", *value);
  return value->get<bool>();
}

Result<std::string> json_string(const Json& object, const char* key, const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return missing(where, key);
  if (!value->is_string()) return mismatch(where, key, "a string", *value);
  return value->get<std::string>();
}

Result<std::string> json_string_or(const Json& object, const char* key, const std::string& fallback,
                                   const std::string& where) {
  SPECD_TRY(const Json* value, lookup(object, key, where));
  if (value == nullptr) return fallback;
  if (!value->is_string()) return mismatch(where, key, "a string", *value);
  return value->get<std::string>();
}

}  // namespace specd
