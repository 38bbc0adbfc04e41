// The bodies and events of answers to /v1/completions and /v1/chat/completions, as vLLM's server writes them
// (vllm/entrypoints/openai/completion/serving.py, chat_completion/serving.py). Pure: no thread, no socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/engine.h"
#include "host/openai/generation_request.h"
#include "host/serve/session.h"

namespace specd::host {

// What has come of one text.
struct ChoiceText {
  std::string text;
  std::vector<int32_t> tokens;
  Logprobs logprobs;
  FinishReason finish = FinishReason::kNone;
  int32_t stop = -1;        // index in Request::stop of the string that ended it; -1 = none did
  int32_t n_tokens = 0;     // those that were sent included
  bool has_begun = false;   // an event was sent
  size_t n_characters = 0;  // of the tokens that were sent, with echo the prompt's too
};

// What has come of one prompt.
struct PromptTexts {
  SessionStart start;
  Logprobs prompt_logprobs;  // from the second token on
  std::vector<ChoiceText> choices;
  Usage usage;
};

class GenerationReply {
 public:
  // `engine` and `request` outlive it. `id`: of the answer, "cmpl-17".
  GenerationReply(const Engine& engine, const GenerationRequest& request, std::string id,
                  std::string model);

  // The body of an answer in one piece. drafts_max: nodes that the route may draft in a step.
  std::string body(const std::vector<PromptTexts>& prompts, int32_t drafts_max) const;
  // The event with what `choice` of a prompt has now; index: of the choice among those of all prompts.
  std::string event(const PromptTexts& prompt, const ChoiceText& choice, int32_t index) const;
  // Call after event(): clears the text, ids and log-probabilities that it has sent.
  void sent(const PromptTexts& prompt, ChoiceText& choice) const;
  // Whether a stream has a last event before [DONE]: the usage of all choices, and metrics.
  bool has_last_event() const;
  std::string last_event(const std::vector<PromptTexts>& prompts, int32_t drafts_max) const;

 private:
  const Engine& engine_;
  const GenerationRequest& request_;
  const std::string id_, model_;
  const int64_t created_;  // seconds since 1970
};

}  // namespace specd::host
