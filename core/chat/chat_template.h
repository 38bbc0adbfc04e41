// The chat template of a model folder: from messages to the text that the model was trained on.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/chat/chat_prompt.h"
#include "core/text/text_range.h"

namespace specd {

namespace jinja {
class Template;
}

struct RenderedChat {
  std::string text;
  // What of the text came from the request; sorted, disjoint. The rest is the template's.
  std::vector<TextRange> from_request;
};

// Immutable; thread-safe.
class ChatTemplate {
 public:
  // From `file` when it is not empty, else from folder/chat_template.jinja, else from the key
  // chat_template of folder/tokenizer_config.json. A template that is not there or cannot be used
  // is no error here: render() refuses with the reason.
  static ChatTemplate load(const std::string& folder, const std::string& file);

  // Ok when chats can be rendered.
  const Status& status() const { return status_; }
  // The file that it came from, without its folder.
  const std::string& source() const { return source_; }

  // `now`: what a template that asks for the date gets. kFailedPrecondition when there
  // is no template to use; kInvalidArgument naming the field ("chat.messages[3].content") or the
  // place in the template; kUnsupported with the place where the result would not be exact.
  Result<RenderedChat> render(const ChatPrompt& chat, const std::tm& now) const;

 private:
  Status find(const std::string& folder, const std::string& file);
  Status add(const std::string& name, const std::string& text, const std::string& where);
  void add_for_tools(const std::string& folder);

  Status status_;
  Status tools_status_;  // of the file that is for requests with tools alone
  std::string source_;
  // "default" and "tool_use", which is taken when there are tools.
  std::vector<std::pair<std::string, std::shared_ptr<const jinja::Template>>> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;  // "bos_token" and its text
};

}  // namespace specd
