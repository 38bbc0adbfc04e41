#include "core/engine/target.h"

#include <ctime>
#include <utility>

#include "core/base/log.h"
#include "core/engine/options.h"
#include "core/model/checkpoint.h"
#include "core/model/generation_config.h"

namespace specd {
namespace {

std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}

}  // namespace

Status Target::load(const ModelOptions& wanted) {
  options = wanted;
  SPECD_TRY(config, load_model_config(wanted.path).in_field(kModelPath));
  SPECD_OK_OR_RETURN(load_sampling_defaults().in_field(kModelPath));
  SPECD_TRY(tokenizer, Tokenizer::load(wanted.path + "/tokenizer.json").in_field(kModelPath));
  SPECD_OK_OR_RETURN(check_vocabulary(wanted.path, config, *tokenizer).in_field(kModelPath));
  chat_template = ChatTemplate::load(wanted.path, wanted.chat_template);
  if (const Status& status = chat_template.status(); !status.ok()) {
    log(chat_template.source().empty() ? LogLevel::kInfo : LogLevel::kWarn,
        wanted.name + " serves no chats: " + status.text());
  }
  facts.fill(wanted.name, config, *tokenizer);
  return Status();
}

Status Target::load_sampling_defaults() {
  SPECD_OK_OR_RETURN(load_eos_tokens(options.path, config.vocab_size, config.eos_tokens));
  if (!options.generation_config) return Status();
  SPECD_TRY(const GenerationConfig wanted, load_generation_config(options.path));
  sampling_defaults.temperature = wanted.temperature;
  sampling_defaults.top_p = wanted.top_p;
  sampling_defaults.top_k = wanted.top_k;
  sampling_defaults.min_p = wanted.min_p;
  sampling_defaults.typical_p = wanted.typical_p;
  sampling_defaults.repetition_penalty = wanted.repetition_penalty;
  generation_config_ignored = wanted.ignored;
  for (const std::string& each : wanted.ignored) {
    log(LogLevel::kWarn, options.path + "/generation_config.json: " + each + ": not applied");
  }
  return Status();
}

Status check_one_prompt(const Request& request) {
  if (!request.prompt.empty() + request.chat.has_value() + request.prompt_tokens.has_value() <= 1)
    return Status();
  return Status(Code::kInvalidArgument, "prompt",
                "expected one of text, a chat and token ids, found several");
}

Status Target::check_fits(size_t bytes) const {
  const size_t most = tokenizer->bytes_per_token_max() * static_cast<size_t>(config.max_positions);
  if (most == 0 || bytes <= most) return Status();
  return Status(Code::kInvalidArgument, std::to_string(bytes) +
                                            " bytes cannot fit into the context of " +
                                            std::to_string(config.max_positions) +
                                            " tokens, which holds at most " + std::to_string(most));
}

Result<RenderedPrompt> Target::make_prompt(const Request& request) const {
  SPECD_OK_OR_RETURN(check_one_prompt(request));
  SPECD_OK_OR_RETURN(check_fits(request.prompt.size()).in_field("prompt"));
  RenderedPrompt prompt;
  if (!request.chat.has_value()) {
    SPECD_TRY(prompt.tokens,
              tokenizer
                  ->encode(request.prompt, {.add_special_tokens = request.add_bos,
                                            .parse_special_tokens = request.parse_special_tokens})
                  .in_field("prompt"));
    prompt.text = request.prompt;
    return prompt;
  }
  SPECD_TRY(RenderedChat chat, chat_template.render(*request.chat, local_now()));
  SPECD_OK_OR_RETURN(check_fits(chat.text.size()).in_field("chat"));
  // The template writes BOS itself, so none is prepended.
  EncodeOptions how{.add_special_tokens = false, .plain_hides_all = true};
  if (!request.chat->parse_special_tokens_in_messages) how.plain = chat.from_request;
  SPECD_TRY(prompt.tokens, tokenizer->encode(chat.text, how).in_field("chat"));
  prompt.text = std::move(chat.text);
  return prompt;
}

}  // namespace specd
