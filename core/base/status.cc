#include "core/base/status.h"

#include <cstdio>
#include <cstdlib>

namespace specd {

const char* code_name(Code code) {
  switch (code) {
    case Code::kOk:
      return "OK";
    case Code::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case Code::kNotFound:
      return "NOT_FOUND";
    case Code::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case Code::kPermissionDenied:
      return "PERMISSION_DENIED";
    case Code::kExhausted:
      return "RESOURCE_EXHAUSTED";
    case Code::kUnsupported:
      return "UNSUPPORTED";
    case Code::kDataLoss:
      return "DATA_LOSS";
    case Code::kCancelled:
      return "CANCELLED";
    case Code::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case Code::kUnavailable:
      return "UNAVAILABLE";
    case Code::kInternal:
      return "INTERNAL";
  }
  return "UNKNOWN";
}

std::string Status::text() const { return field_.empty() ? message_ : field_ + ": " + message_; }

std::string Status::to_string() const {
  return ok() ? "OK" : std::string(code_name(code_)) + ": " + text();
}

Status Status::in_field(std::string_view parent) const {
  if (ok()) return Status();
  std::string path(parent);
  if (!path.empty() && !field_.empty() && field_[0] != '[') path += '.';
  return Status(code_, path + field_, message_);
}

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "specd: %s:%d: check failed: %s: %s\n", file, line, condition,
               message.c_str());
  std::abort();
}

}  // namespace specd
