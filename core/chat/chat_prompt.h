// A conversation as a client sends it. Plain data; core/chat/chat_template.h makes text of it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace specd {

struct ChatMessage {
  std::string role;  // UTF-8, as all text here
  std::string content;
  // Further fields of the message as a JSON object, {"tool_calls": [...], "name": "f"}; may be
  // empty. "content" may stand there instead, when it is no string.
  std::string extra_json;
};

struct ChatPrompt {
  static constexpr size_t kMessagesMax = 4096;
  static constexpr size_t kBytesMax = size_t{4} << 20;  // of all texts together

  std::vector<ChatMessage> messages;
  std::string tools_json;               // a JSON array, or empty
  std::string template_arguments_json;  // a JSON object, {"enable_thinking": false}, or empty
  // Ends the text where an answer begins.
  bool add_generation_prompt = true;
  // Ends the text inside the last message, which the model goes on with. Not with the above.
  bool continue_final_message = false;
  // Special tokens spelled in messages, tools and arguments become tokens. Whoever passes on what
  // strangers wrote leaves it off: "<|im_end|>" in a message would end it.
  bool parse_special_tokens_in_messages = false;
};

}  // namespace specd
