#include "core/chat/chat_template.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/chat/jinja/template.h"

namespace specd {
namespace {

using jinja::DictObject;
using jinja::Kind;
using jinja::MarkedText;
using jinja::Value;

constexpr char kConfigName[] = "tokenizer_config.json";
constexpr uint64_t kConfigBytesMax = uint64_t{16} << 20;
constexpr char kHowToFix[] = "; name one as model.chat_template, or send text";
// Appended to a message that is to be continued, to find where to cut the rendered text.
constexpr std::string_view kContinueTag = "CONTINUE_FINAL_MESSAGE_TAG ";

Status wrong(const std::string& field, const std::string& what) {
  return Status(Code::kInvalidArgument, field, what);
}

Status check_utf8(const std::string& field, const std::string& text) {
  const size_t bad = utf8_error_offset(text);
  if (bad == std::string_view::npos) return Status();
  return wrong(field,
               "expected UTF-8, found an ill-formed character at byte " + std::to_string(bad));
}

// Reads "text" or {"content": "text"}; empty when the key is missing.
Result<std::string> special_token(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::string();
  if (found->is_object())
    return json_string(*found, "content", std::string(kConfigName) + ": " + key);
  return json_string(config, key, kConfigName);
}

// Converts a request to values, within limits on their number and size.
class Reader {
 public:
  Result<Value> json(const std::string& text, const std::string& field, Kind kind,
                     const char* expected) {
    SPECD_OK_OR_RETURN(check_utf8(field, text));
    SPECD_TRY(Value value, jinja::value_from_json(text, field, json_budget_));
    if (!value.is(kind)) {
      return wrong(field, std::string("expected ") + expected + ", found a JSON " +
                              (value.is(Kind::kDict)     ? "object"
                               : value.is(Kind::kList)   ? "array"
                               : value.is(Kind::kString) ? "string"
                               : value.is(Kind::kNone)   ? "null"
                               : value.is(Kind::kBool)   ? "boolean"
                                                         : "number"));
    }
    return value;
  }

  Result<Value> message(const ChatMessage& message, const std::string& field) {
    SPECD_OK_OR_RETURN(check_utf8(field + ".role", message.role));
    SPECD_OK_OR_RETURN(check_utf8(field + ".content", message.content));
    if (message.role.empty()) return wrong(field + ".role", "expected a role, found an empty one");
    auto dict = std::make_shared<DictObject>();
    SPECD_OK_OR_RETURN(set(*dict, "role", role(message.role)));
    SPECD_OK_OR_RETURN(set(*dict, "content", text(message.content)));
    if (!message.extra_json.empty()) {
      const std::string extra_field = field + ".extra_json";
      SPECD_TRY(const Value extra, json(message.extra_json, extra_field, Kind::kDict, "an object"));
      for (const auto& [key, value] : extra.dict().entries()) {
        if (key.bytes() == "role")
          return wrong(extra_field, "expected no \"role\" here; set the field role");
        if (key.bytes() == "content" && !message.content.empty()) {
          return wrong(extra_field, "the content is given twice");
        }
        SPECD_OK_OR_RETURN(dict->set(key, value, budget_));
      }
    }
    return finished(std::move(dict));
  }

  // Some templates write '<|' + role + '|>' and mean a control token. So the usual roles count as
  // the template's text; a role that a client makes up does not.
  static Value role(const std::string& bytes) {
    constexpr std::string_view kKnown[] = {"system", "developer", "user", "assistant", "tool"};
    if (std::find(std::begin(kKnown), std::end(kKnown), bytes) == std::end(kKnown)) {
      return text(bytes);
    }
    return Value::string(bytes);
  }
  static Value text(const std::string& bytes) {
    return Value::string(MarkedText(bytes, true)).with_origin(true);
  }
  Status set(DictObject& dict, std::string_view key, Value value) {
    return dict.set(Value::string(MarkedText(key, true)), std::move(value), budget_);
  }
  Result<Value> finished(std::shared_ptr<DictObject> dict) {
    SPECD_TRY(const Value made, jinja::make_dict(std::move(dict), budget_));
    return made.with_origin(true);
  }
  Result<Value> list(std::vector<Value> items) {
    SPECD_TRY(const Value made, jinja::make_sequence(Kind::kList, std::move(items), budget_));
    return made.with_origin(true);
  }

 private:
  jinja::Budget json_budget_ = jinja::json_budget();
  jinja::Budget budget_{jinja::Limits{}};  // never spent: check_chat() has bounded the request
};

// The message with the tag after its text. Sets `text` to its original text.
Result<Value> with_tag(const Value& message, const std::string& field, MarkedText& text,
                       Reader& reader) {
  const auto nothing = [&] {
    return wrong(field + ".content", "continue_final_message needs text to continue, found none");
  };
  const Value& content = *message.dict().find("content");
  const auto tagged = [&](const Value& value) {
    text = value.text();
    MarkedText longer = text;
    longer.append(kContinueTag, true);
    return Value::string(std::move(longer)).with_origin(true);
  };
  Value changed;
  if (content.is_string()) {
    changed = tagged(content);
  } else {
    if (!content.is(Kind::kList)) return nothing();
    std::vector<Value> parts = content.items();
    auto part = std::find_if(parts.rbegin(), parts.rend(), [](const Value& each) {
      const Value* const found = each.is(Kind::kDict) ? each.dict().find("text") : nullptr;
      return found != nullptr && found->is_string();
    });
    if (part == parts.rend()) return nothing();
    auto dict = std::make_shared<DictObject>(part->dict());
    SPECD_OK_OR_RETURN(reader.set(*dict, "text", tagged(*part->dict().find("text"))));
    SPECD_TRY(*part, reader.finished(std::move(dict)));
    SPECD_TRY(changed, reader.list(std::move(parts)));
  }
  auto dict = std::make_shared<DictObject>(message.dict());
  SPECD_OK_OR_RETURN(reader.set(*dict, "content", std::move(changed)));
  return reader.finished(std::move(dict));
}

// The text before the tag, cut as transformers cuts it.
Result<MarkedText> cut_at_tag(const MarkedText& rendered, const MarkedText& final_text) {
  const std::string_view tag = kContinueTag.substr(0, kContinueTag.size() - 1);
  size_t place = std::string::npos;
  for (size_t at = rendered.find(tag); at != std::string::npos; at = rendered.find(tag, at + 1)) {
    place = at;
  }
  if (place == std::string::npos ||
      rendered.find(final_text.stripped(true, true).bytes()) == std::string::npos) {
    return wrong("chat.continue_final_message",
                 "the template does not print the final message unchanged, so it cannot be "
                 "continued");
  }
  const MarkedText kept = rendered.part(0, place);
  // A tag without its final space means that the template trims messages.
  const bool is_trimmed =
      !std::string_view(rendered.bytes()).substr(place).starts_with(kContinueTag);
  return is_trimmed ? kept.stripped(false, true) : kept;
}

}  // namespace

Status check_chat(const ChatPrompt& chat) {
  if (chat.messages.empty()) return wrong("chat.messages", "expected at least one, found none");
  if (chat.messages.size() > ChatPrompt::kMessagesMax) {
    return wrong("chat.messages", "expected at most " + std::to_string(ChatPrompt::kMessagesMax) +
                                      ", found " + std::to_string(chat.messages.size()));
  }
  if (const size_t bytes = chat.bytes(); bytes > ChatPrompt::kBytesMax) {
    return wrong("chat", "expected at most " + std::to_string(ChatPrompt::kBytesMax) +
                             " bytes, found " + std::to_string(bytes));
  }
  if (chat.continue_final_message && chat.add_generation_prompt) {
    return wrong("chat.continue_final_message",
                 "not together with add_generation_prompt: one continues the last message, the "
                 "other starts a new one");
  }
  return Status();
}

Status ChatTemplate::add(const std::string& name, const std::string& text,
                         const std::string& where) {
  SPECD_TRY(auto made, jinja::Template::parse(text, where));
  templates_.emplace_back(name, std::move(made));
  return Status();
}

void ChatTemplate::add_for_tools(const std::string& folder) {
  const std::string name = "additional_chat_templates/tool_use.jinja";
  if (!path_exists(folder + "/" + name)) return;
  const auto text = read_text_file(folder + "/" + name, jinja::Limits::kTemplateBytes, name);
  tools_status_ = text.ok() ? add("tool_use", text.value(), name) : text.status();
}

ChatTemplate ChatTemplate::load(const std::string& folder, const std::string& file) {
  ChatTemplate result;
  result.status_ = result.find(folder, file);
  return result;
}

Status ChatTemplate::find(const std::string& folder, const std::string& file) {
  const std::string config_path = folder + "/" + kConfigName;
  Json config = Json::object();
  if (path_exists(config_path)) {
    source_ = kConfigName;
    SPECD_TRY(const std::string text, read_text_file(config_path, kConfigBytesMax, source_));
    SPECD_TRY(config, parse_json(text, kConfigName));
    if (!config.is_object()) {
      return Status(Code::kDataLoss, source_ + ": expected an object, found " + config.type_name());
    }
    for (const char* const key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                                  "cls_token", "mask_token"}) {
      SPECD_TRY(std::string token, special_token(config, key));
      if (!token.empty()) special_tokens_.emplace_back(key, std::move(token));
    }
  }
  const std::string own_file = folder + "/chat_template.jinja";
  if (!file.empty() || path_exists(own_file)) {
    const std::string path = file.empty() ? own_file : file;
    source_ = std::filesystem::path(path).filename().string();
    SPECD_TRY(const std::string text, read_text_file(path, jinja::Limits::kTemplateBytes, source_));
    SPECD_OK_OR_RETURN(add("default", text, source_));
    if (file.empty()) add_for_tools(folder);
    return Status();
  }
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) {
    source_.clear();
    return Status(Code::kFailedPrecondition,
                  std::string("the model has no chat template, neither as chat_template.jinja nor "
                              "in tokenizer_config.json") +
                      kHowToFix);
  }
  source_ = kConfigName;
  const std::string where = source_ + ": chat_template";  // lines count within its text
  if (found->is_string()) {
    SPECD_OK_OR_RETURN(add("default", found->get<std::string>(), where));
    add_for_tools(folder);
    return Status();
  }
  if (!found->is_array()) {
    return Status(Code::kDataLoss,
                  where + ": expected a string or an array, found " + found->type_name());
  }
  for (const Json& each : *found) {
    SPECD_TRY(const std::string name, json_string(each, "name", where));
    SPECD_TRY(const std::string text, json_string(each, "template", where));
    if (name == "default" || name == "tool_use")
      SPECD_OK_OR_RETURN(add(name, text, where + " " + quote(name)));
  }
  if (!templates_.empty()) return Status();
  return Status(Code::kDataLoss, where + ": expected one with the name 'default', found none");
}

Result<RenderedChat> ChatTemplate::render(const ChatPrompt& chat, const std::tm& now) const {
  SPECD_OK_OR_RETURN(check_chat(chat));
  if (!status_.ok()) {
    return Status(Code::kFailedPrecondition, "chat",
                  status_.message() + (source_.empty() ? "" : kHowToFix));
  }
  Reader reader;
  std::vector<Value> messages;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    SPECD_TRY(Value message,
              reader.message(chat.messages[i], "chat.messages[" + std::to_string(i) + "]"));
    messages.push_back(std::move(message));
  }
  MarkedText final_text;
  if (chat.continue_final_message) {
    SPECD_TRY(
        messages.back(),
        with_tag(messages.back(), "chat.messages[" + std::to_string(messages.size() - 1) + "]",
                 final_text, reader));
  }
  Value tools;
  if (!chat.tools_json.empty()) {
    SPECD_TRY(tools, reader.json(chat.tools_json, "chat.tools_json", Kind::kList, "an array"));
  }
  const bool has_tools = tools.is(Kind::kList);
  if (has_tools && !tools_status_.ok()) {
    return Status(Code::kFailedPrecondition, "chat.tools_json",
                  tools_status_.message() + kHowToFix);
  }
  const auto named = [&](const char* name) {
    return std::find_if(templates_.begin(), templates_.end(),
                        [&](const auto& each) { return each.first == name; });
  };
  auto chosen = has_tools ? named("tool_use") : templates_.end();
  if (chosen == templates_.end()) chosen = named("default");
  if (chosen == templates_.end()) {
    return Status(Code::kFailedPrecondition, "chat",
                  "the model has a chat template for requests with tools only");
  }

  jinja::Variables variables;
  for (const auto& [name, token] : special_tokens_) {
    variables.emplace_back(name, Value::string(token));
  }
  SPECD_TRY(Value list, reader.list(std::move(messages)));
  variables.emplace_back("documents", Value::none());
  if (!chat.template_arguments_json.empty()) {
    const std::string field = "chat.template_arguments_json";
    SPECD_TRY(const Value arguments,
              reader.json(chat.template_arguments_json, field, Kind::kDict, "an object"));
    for (const auto& [key, value] : arguments.dict().entries()) {
      const std::string& name = key.bytes();
      if (name == "messages" || name == "tools" || name == "add_generation_prompt") {
        return wrong(field, quote(name) + " has a field of its own");
      }
      variables.emplace_back(name, value);
    }
  }
  variables.emplace_back("messages", std::move(list));
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("add_generation_prompt", Value::boolean(chat.add_generation_prompt));

  auto rendered = chosen->second->render(variables, {.now = now, .limits = {}});
  if (!rendered.ok()) return rendered.status().in_field("chat");
  MarkedText text = std::move(rendered).value();
  if (chat.continue_final_message) {
    SPECD_TRY(text, cut_at_tag(text, final_text));
  }
  return RenderedChat{text.bytes(), text.marks()};
}

}  // namespace specd
