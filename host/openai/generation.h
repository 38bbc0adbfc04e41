// One call of /v1/completions or /v1/chat/completions: a session for each prompt, one answer with all texts.
//
//   sessions ──outputs──> texts of the prompts ──GenerationReply──> HttpReply
//                          [thread of Sessions]                     whole, or an event for each output
//
// When a prompt is refused or fails, so does the call, and the others are cancelled. So they are when the client goes.
// A stream begins when all prompts are accepted: until then a refusal is a status, later it is an event.
#pragma once

#include <memory>
#include <string>

#include "core/engine.h"
#include "host/http/http_message.h"
#include "host/openai/generation_request.h"
#include "host/serve/sessions.h"

namespace specd::host {

struct GenerationCall {
  GenerationRequest request;
  std::string id;      // of the request; those of its prompts begin with it
  std::string model;   // as it is served
  HttpFields headers;  // of the answer
};

// [server threads] Answers `reply` now or later. `engine` and `sessions` outlive the answer.
void start_generation(Engine& engine, Sessions& sessions, GenerationCall call,
                      std::shared_ptr<HttpReply> reply);

}  // namespace specd::host
