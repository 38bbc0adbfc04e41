#include "host/ctl/chat_options.h"

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/quote.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;
using OrderedJson = nlohmann::ordered_json;  // a template may print fields in their order

constexpr uint64_t kFileBytesMax = uint64_t{4} << 20;

Status wrong(const std::string& what) { return Status(Code::kInvalidArgument, what); }

// [{"role": "user", "content": "hi", ...}, ...], as OpenAI's clients send it.
Status read_messages(const std::string& path, v1::ChatPrompt& chat) {
  SPECD_TRY(const std::string text, read_text_file(path, kFileBytesMax));
  SPECD_OK_OR_RETURN(as_status(parse_json(text, path)));  // with the place of the error
  const OrderedJson list = OrderedJson::parse(text);
  if (!list.is_array()) return wrong(path + ": expected an array of messages");
  for (size_t i = 0; i < list.size(); ++i) {
    const std::string where = path + ": message " + std::to_string(i);
    if (!list[i].is_object()) return wrong(where + ": expected an object");
    v1::ChatMessage& message = *chat.add_messages();
    OrderedJson extra = OrderedJson::object();
    for (const auto& [key, value] : list[i].items()) {
      if (key == "role") {
        if (!value.is_string()) return wrong(where + ": role: expected a string");
        message.set_role(value.get<std::string>());
      } else if (key == "content" && value.is_string()) {
        message.set_content(value.get<std::string>());
      } else {
        extra[key] = value;
      }
    }
    if (!extra.empty()) message.set_extra_json(extra.dump());
  }
  return Status();
}

}  // namespace

void add_chat_options(po::options_description& options) {
  auto add = options.add_options();
  add("message", po::value<std::vector<std::string>>()->composing(),
      "generate, render: ROLE=TEXT, a message of a conversation; may be repeated");
  add("messages", po::value<std::string>()->value_name("FILE"),
      "generate, render: a JSON file with a list of {role, content, ...}");
  add("tools", po::value<std::string>()->value_name("FILE"),
      "generate, render: a JSON file with a list of tools");
  add("template-arguments", po::value<std::string>(),
      "generate, render: JSON, {\"enable_thinking\": false}");
  add("continue-final-message", po::bool_switch(),
      "generate, render: continue the last message instead of starting a new one");
}

bool has_chat_options(const po::variables_map& values) {
  for (const char* option : {"message", "messages", "tools", "template-arguments"})
    if (values.count(option) != 0) return true;
  return values["continue-final-message"].as<bool>();
}

Result<v1::ChatPrompt> read_chat_options(const po::variables_map& values) {
  v1::ChatPrompt chat;
  for (const char* option : {"prompt", "prompt-file", "prompt-tokens"})
    if (values.count(option) != 0)
      return wrong(std::string("--") + option + " or messages, not both");
  if (values.count("messages") != 0) {
    try {
      SPECD_OK_OR_RETURN(read_messages(values["messages"].as<std::string>(), chat));
    } catch (const std::exception& error) {
      return wrong(std::string("--messages: ") + error.what());
    }
  }
  if (values.count("message") != 0) {
    for (const std::string& each : values["message"].as<std::vector<std::string>>()) {
      const size_t equals = each.find('=');
      if (equals == std::string::npos || equals == 0)
        return wrong("--message: expected ROLE=TEXT, found " + quote(each, 60));
      v1::ChatMessage& message = *chat.add_messages();
      message.set_role(each.substr(0, equals));
      message.set_content(each.substr(equals + 1));
    }
  }
  if (chat.messages().empty()) return wrong("expected --message or --messages");
  if (values.count("tools") != 0) {
    SPECD_TRY(*chat.mutable_tools_json(),
              read_text_file(values["tools"].as<std::string>(), kFileBytesMax));
  }
  if (values.count("template-arguments") != 0)
    chat.set_template_arguments_json(values["template-arguments"].as<std::string>());
  chat.set_continue_final_message(values["continue-final-message"].as<bool>());
  return chat;
}

}  // namespace specd::host
