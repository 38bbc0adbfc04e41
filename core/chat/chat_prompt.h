// A conversation as a client sends it: plain data. core/chat/chat_template.h renders it.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace specd {

struct ChatMessage {
  std::string role;  // UTF-8, as all text here
  std::string content;
  // More fields of the message as a JSON object, {"tool_calls": [...], "name": "f"}, or empty. Put
  // "content" here when it is not a string.
  std::string extra_json;
};

struct ChatPrompt {
  static constexpr size_t kMessagesMax = 4096;
  static constexpr size_t kBytesMax = size_t{4} << 20;  // all texts together

  std::vector<ChatMessage> messages;
  std::string tools_json;               // a JSON array, or empty
  std::string template_arguments_json;  // a JSON object, {"enable_thinking": false}, or empty
  // End the text where the model's answer begins.
  bool add_generation_prompt = true;
  // End the text inside the last message, for the model to continue it. Excludes the flag above.
  bool continue_final_message = false;
  // Turn special tokens spelled out in messages, tools and arguments into tokens. Leave it off for
  // untrusted text: "<|im_end|>" in a message would end that message.
  bool parse_special_tokens_in_messages = false;

  size_t bytes() const {
    size_t sum = tools_json.size() + template_arguments_json.size();
    for (const ChatMessage& each : messages)
      sum += each.role.size() + each.content.size() + each.extra_json.size();
    return sum;
  }
};

}  // namespace specd
