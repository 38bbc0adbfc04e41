#include "host/openai/error_answer.h"

#include "core/base/json.h"
#include "host/http/http_status.h"

namespace specd::host {
namespace {

constexpr char kJsonType[] = "application/json";

struct Words {
  const char* type;
  const char* code;  // null = none
};

Words words_of(unsigned status) {
  switch (status) {
    case 401:
      return {"authentication_error", "invalid_api_key"};
    case 403:
      return {"permission_error", nullptr};
    case 404:
      return {"not_found_error", nullptr};
    case 429:
      return {"rate_limit_error", "rate_limit_exceeded"};
    default:
      return {status >= 500 ? "server_error" : "invalid_request_error", nullptr};
  }
}

std::string object_of(unsigned status, const std::string& message, const std::string& field) {
  const Words words = words_of(status);
  nlohmann::ordered_json error;
  error["message"] = error_text(message);
  error["type"] = words.type;
  error["param"] =
      field.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(error_text(field));
  error["code"] =
      words.code == nullptr ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(words.code);
  if (status == 404 && field == "model") error["code"] = "model_not_found";
  nlohmann::ordered_json out;
  out["error"] = std::move(error);
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

HttpAnswer answer_of(unsigned status, std::string body) {
  HttpAnswer answer{.status = status, .content_type = kJsonType, .body = std::move(body)};
  add_status_headers(answer);
  return answer;
}

}  // namespace

std::string error_json(const Status& status) {
  return object_of(http_status(status), status.text(), status.field());
}

HttpAnswer error_answer(const Status& status) {
  return answer_of(http_status(status), error_json(status));
}

HttpAnswer refusal_answer(const HttpRefusal& why) {
  return answer_of(why.status, object_of(why.status, why.text, ""));
}

}  // namespace specd::host
