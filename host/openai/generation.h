// One call of /v1/completions or /v1/chat/completions: a session for each prompt, one answer with all texts.
//
//   sessions ──outputs──> texts of the prompts ──GenerationReply──> HttpReply
//                          [thread of Sessions]                     whole, or an event for each output
//
// If one prompt is refused or fails, the call fails and the others are cancelled; so they are when the client disconnects.
// A stream's head is sent when all prompts are accepted: an error before that is a status, later an event.
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

// [server threads] Answers `reply` now or later. Throws std::bad_alloc only while no session is open. `engine` and
// `sessions` must outlive the reply.
void start_generation(Engine& engine, Sessions& sessions, GenerationCall call,
                      std::shared_ptr<HttpReply> reply);

}  // namespace specd::host
