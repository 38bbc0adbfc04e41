// Status and Result: every fallible call returns one; no exception leaves a room.
//
//   Result<Model> load(const std::string& path);
//   SPECD_TRY(const Model model, load(path));     // returns the error to the caller
//
// Code that decides looks at code() and field(); message() is for people.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/check.h"

namespace specd {

enum class Code {
  kOk,
  kInvalidArgument,  // the caller's value is wrong; retrying cannot help
  kNotFound,
  kFailedPrecondition,  // not in this state
  kPermissionDenied,    // the caller lacks the right
  kExhausted,           // pages, queue or memory; may work later
  kUnsupported,         // never works with this build, model or device
  kDataLoss,            // a file is damaged or lies about itself
  kCancelled,
  kDeadlineExceeded,
  kUnavailable,  // draining or not started
  kInternal,
};
const char* code_name(Code code);

class [[nodiscard]] Status {
 public:
  Status() = default;  // ok
  // The message says what, where, expected, found and how to fix it.
  Status(Code code, std::string message) : Status(code, "", std::move(message)) {}
  // `field` is the path of the refused value below what the function was given: "max_tokens",
  // "stop[3]". Callers that hold the value in a larger one prefix it with in_field().
  Status(Code code, std::string field, std::string message)
      : code_(code), field_(std::move(field)), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& field() const { return field_; }      // empty when it concerns no single field
  const std::string& message() const { return message_; }  // does not repeat the field
  std::string text() const;                                // "field: message", for people
  std::string to_string() const;                           // "INVALID_ARGUMENT: field: message"

  // The same error with `context` in front of the message: "model 'x': ...".
  Status with_context(const std::string& context) const {
    return ok() ? Status() : Status(code_, field_, context + ": " + message_);
  }
  // The same error about a field of `parent`: "n" becomes "parent.n", "[0]" becomes "parent[0]",
  // and no field becomes "parent".
  Status in_field(std::string_view parent) const;

  bool operator==(const Status&) const = default;

 private:
  Code code_ = Code::kOk;
  std::string field_;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(runtime/explicit)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(runtime/explicit)
    SPECD_CHECK(!status_.ok(), "a Result without a value needs an error");
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // Status::in_field() of the error, if there is one.
  Result in_field(std::string_view parent) && {
    if (!ok()) status_ = status_.in_field(parent);
    return std::move(*this);
  }
  // REQUIRES ok()
  T& value() & {
    SPECD_CHECK(ok(), status_.to_string());
    return *value_;
  }
  const T& value() const& {
    SPECD_CHECK(ok(), status_.to_string());
    return *value_;
  }
  T&& value() && {
    SPECD_CHECK(ok(), status_.to_string());
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  Status status_;
};

inline const Status& as_status(const Status& status) { return status; }
template <typename T>
const Status& as_status(const Result<T>& result) {
  return result.status();
}

#define SPECD_CONCAT_INNER(a, b) a##b
#define SPECD_CONCAT(a, b) SPECD_CONCAT_INNER(a, b)
// SPECD_TRY(declaration, expression): declares from the value or returns the error.
#define SPECD_TRY(declaration, ...)                                   \
  auto SPECD_CONCAT(specd_result_, __LINE__) = (__VA_ARGS__);         \
  if (!SPECD_CONCAT(specd_result_, __LINE__).ok())                    \
    return ::specd::as_status(SPECD_CONCAT(specd_result_, __LINE__)); \
  declaration = std::move(SPECD_CONCAT(specd_result_, __LINE__)).value()
// SPECD_OK_OR_RETURN(expression): a Status.
#define SPECD_OK_OR_RETURN(...)                                                                   \
  do {                                                                                            \
    if (::specd::Status specd_status_ = (__VA_ARGS__); !specd_status_.ok()) return specd_status_; \
  } while (false)

}  // namespace specd
