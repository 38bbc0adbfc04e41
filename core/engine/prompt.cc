// A request's prompt as text and ids: what the model will read.
#include <ctime>

#include "core/engine/impl.h"

namespace specd {

namespace {
std::tm local_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return parts;
}
}  // namespace

// The template writes the first token itself: none is put before its text.
Result<std::vector<int32_t>> Engine::Impl::encode_chat(const RenderedChat& chat,
                                                       bool parse_special_tokens) const {
  EncodeOptions how{.add_special_tokens = false, .plain_hides_all = true};
  if (!parse_special_tokens) how.plain = chat.from_request;
  return tokenizer->encode(chat.text, how);
}

Result<RenderedPrompt> Engine::Impl::make_prompt(const Request& request) const {
  RenderedPrompt prompt;
  if (request.chat.has_value()) {
    if (!request.prompt.empty()) {
      return Status(Code::kInvalidArgument, "prompt", "give text or a chat, not both");
    }
    SPECD_TRY(RenderedChat chat, chat_template.render(*request.chat, local_now()));
    auto encoded = encode_chat(chat, request.chat->parse_special_tokens_in_messages);
    if (!encoded.ok()) return encoded.status().in_field("chat");
    prompt.tokens = std::move(encoded).value();
    prompt.text = std::move(chat.text);
    return prompt;
  }
  auto encoded =
      tokenizer->encode(request.prompt, {.add_special_tokens = request.add_bos,
                                         .parse_special_tokens = request.parse_special_tokens});
  if (!encoded.ok()) return encoded.status().in_field("prompt");
  prompt.tokens = std::move(encoded).value();
  prompt.text = request.prompt;
  return prompt;
}

Result<std::vector<int32_t>> Engine::encode(const std::string& prompt) const {
  Request request;
  request.prompt = prompt;
  SPECD_TRY(RenderedPrompt made, impl_->make_prompt(request));
  return std::move(made.tokens);
}

Result<RenderedPrompt> Engine::render(const Request& request) const {
  if (request.prompt_tokens.has_value()) {
    return Status(Code::kInvalidArgument, "prompt_tokens", "expected text or a chat, found ids");
  }
  return impl_->make_prompt(request);
}

}  // namespace specd
