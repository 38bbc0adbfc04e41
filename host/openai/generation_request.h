// What clients of /v1/completions and /v1/chat/completions ask for. The fields are those of OpenAI's API
// (github.com/openai/openai-openapi, openapi.json of 2026-08) and of vLLM's server
// (vllm/entrypoints/openai/*/protocol.py), with `speculative` and `metrics` of our own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/engine.h"

namespace specd::host {

class Fields;

enum class GenerationKind { kCompletion, kChat };
enum class RequestMetrics { kNone, kSummary, kDetailed };

struct GenerationRequest {
  GenerationKind kind = GenerationKind::kCompletion;
  std::vector<Request> requests;  // one for each prompt; the ids are not set
  std::string model;              // empty = not named
  std::string request_id;         // wished for in the body
  bool is_stream = false, includes_usage = false, has_continuous_usage = false;
  bool echo = false;            // a text begins with its prompt
  bool is_prompt_only = false;  // max_tokens 0 with echo; the engine makes one token all the same
  bool returns_token_ids = false;          // of prompts and texts
  bool names_tokens_by_id = false;         // "token_id:17" in place of the token's text
  std::optional<int32_t> logprobs;         // most likely tokens beside each one
  std::optional<int32_t> prompt_logprobs;  // the same for the prompt
  RequestMetrics metrics = RequestMetrics::kNone;
  std::vector<std::string> unknown_fields;
};

// What fields that are absent mean.
struct GenerationDefaults {
  float temperature = 1;
  uint64_t seed = 0;
  int64_t choices_max = 256;  // of all prompts together
};

// kInvalidArgument with the field, in the words of the body. Values are checked by type, and by range where
// the engine does not.
Result<GenerationRequest> read_generation(const Json& body, GenerationKind kind,
                                          const GenerationDefaults& defaults);

// The chat of a body, from `messages` and the fields that say how to render them.
ChatPrompt read_chat(Fields& fields);

// The field of an error by the engine, in the words of the body.
Status in_words_of_body(const Status& status, const GenerationRequest& request);

}  // namespace specd::host
