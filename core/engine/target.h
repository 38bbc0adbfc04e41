// The target model as clients and plugins know it: everything but its weights.
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

struct Target {
  ModelOptions options;
  ModelConfig config;
  SamplingParams sampling_defaults;                    // hold where a request does not say
  std::vector<std::string> generation_config_ignored;  // keys that are not applied
  ModelFacts facts;                                    // what plugins are told
  std::shared_ptr<const Tokenizer> tokenizer;
  ChatTemplate chat_template;  // its status says why chats are refused

  // Reads the folder's files but the weights. Errors are about the field model.path.
  Status load(const ModelOptions& wanted);
  // What the model reads of a text or a chat.
  Result<RenderedPrompt> make_prompt(const Request& request) const;

 private:
  Status load_sampling_defaults();
};

}  // namespace specd
