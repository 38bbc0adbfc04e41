#include "host/http/http_status.h"

#include <string_view>

#include "core/base/utf8.h"

namespace specd::host {
namespace {

constexpr char kRetrySeconds[] = "1";
constexpr size_t kTextBytesMax = 2048;

}  // namespace

unsigned http_status(const Status& status) {
  switch (status.code()) {
    case Code::kOk:
      return 200;
    case Code::kInvalidArgument:
    case Code::kFailedPrecondition:
    case Code::kUnsupported:
    case Code::kDataLoss:
      return 400;
    case Code::kPermissionDenied:
      return 401;
    case Code::kNotFound:
      // Of other fields than the model it is a wrong value, and 404 would say that the path is.
      return status.field().empty() || status.field() == "model" ? 404 : 400;
    case Code::kExhausted:
      return 429;
    case Code::kCancelled:
      return 409;
    case Code::kDeadlineExceeded:
      return 504;
    case Code::kUnavailable:
      return 503;
    case Code::kInternal:
      return 500;
  }
  return 500;
}

std::string error_text(const std::string& text) {
  if (text.size() <= kTextBytesMax) return text;
  std::string kept;
  utf8_append_lossy(std::string_view(text).substr(0, kTextBytesMax), false, kept);
  return kept + "...";
}

void add_status_headers(HttpAnswer& answer) {
  if (answer.status == 429 || answer.status == 503)
    answer.headers.emplace_back("Retry-After", kRetrySeconds);
  // An operator has ended it.
  if (answer.status == 409) answer.headers.emplace_back("x-should-retry", "false");
  if (answer.status == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
}

}  // namespace specd::host
