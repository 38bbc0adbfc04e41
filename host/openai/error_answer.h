// Errors as OpenAI's clients read them: {"error": {"message", "type", "param", "code"}}. Clients raise an exception by
// the status, and repeat a request after 408, 409, 429 and every 5xx unless `x-should-retry` is false
// (openai-python, _base_client.py). So a caller's mistake is never one of these.
#pragma once

#include <string>

#include "core/base/status.h"
#include "host/http/http_message.h"

namespace specd::host {

// The object, for a body or an event.
std::string error_json(const Status& status);

// The answer; 429 and 503 say when to come again.
HttpAnswer error_answer(const Status& status);

// The same for a request that no handler gets (HttpPolicy::refuse).
HttpAnswer refusal_answer(const HttpRefusal& why);

}  // namespace specd::host
