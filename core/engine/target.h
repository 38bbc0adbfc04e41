// The target model as clients and plugins see it: everything but its weights.
// [any] Immutable after load().
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/chat/chat_template.h"
#include "core/engine.h"
#include "core/model/model_config.h"
#include "core/model/model_facts.h"
#include "core/text/tokenizer.h"

namespace specd {

// Refuses more than one of text, a chat and token ids, in the field "prompt". Of none, the prompt is
// BOS alone.
Status check_one_prompt(const Request& request);

struct Target {
  ModelOptions options;
  ModelConfig config;
  SamplingParams sampling_defaults;                    // for what a request does not set
  std::vector<std::string> generation_config_ignored;  // keys that are not applied
  ModelFacts facts;                                    // for plugins
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;  // its status says why chats are refused

  // Reads all files of the folder except the weights. Errors have the field model.path.
  Status load(const ModelOptions& wanted);
  // kInvalidArgument when no text of so many bytes fits into the context.
  Status check_fits(size_t bytes) const;
  // Turns the text or the chat of a request into a prompt.
  Result<RenderedPrompt> make_prompt(const Request& request) const;

 private:
  Status load_sampling_defaults();
};

}  // namespace specd
