// The chat template of a model folder: turns messages into the text that the model was trained on.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/base/text_range.h"
#include "core/chat/chat_prompt.h"

namespace specd {

namespace jinja {
class Template;
}

struct RenderedChat {
  std::string text;
  // The parts of the text that came from the request; sorted, disjoint. The rest is the template's.
  std::vector<TextRange> from_request;
};

// Whether the chat is within the limits of ChatPrompt and its flags agree. render() checks it first.
Status check_chat(const ChatPrompt& chat);

// Immutable; thread-safe.
class ChatTemplate {
 public:
  // Loads `file` if it is not empty, else folder/chat_template.jinja, else the key chat_template of
  // folder/tokenizer_config.json. Never fails: when the template is missing or unusable, render()
  // refuses with the reason.
  static ChatTemplate load(const std::string& folder, const std::string& file);

  // Ok, or why no chat can be rendered.
  const Status& status() const { return status_; }
  // The name of the template's file, without its folder.
  const std::string& source() const { return source_; }

  // `now`: the time for templates that ask for the date. kFailedPrecondition without a usable
  // template; kInvalidArgument with the field ("chat.messages[3].content") or the place in the
  // template; kUnsupported, with the place, where the result would not be exact.
  Result<RenderedChat> render(const ChatPrompt& chat, const std::tm& now) const;

 private:
  Status find(const std::string& folder, const std::string& file);
  Status add(const std::string& name, const std::string& text, const std::string& where);
  void add_for_tools(const std::string& folder);

  Status status_;
  Status tools_status_;  // of the file that is only for requests with tools
  std::string source_;
  // "default", and "tool_use" for requests with tools.
  std::vector<std::pair<std::string, std::shared_ptr<const jinja::Template>>> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // "bos_token" and its text
};

}  // namespace specd
