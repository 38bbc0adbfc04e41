#include "core/chat/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/base/utf8.h"

namespace specd {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

const OrderedJson& goldens() {
  static const OrderedJson json = [] {
    std::ifstream file(std::string(SPECD_TEST_REFERENCE) + "/chat_goldens.json");
    return OrderedJson::parse(file);
  }();
  return json;
}

std::tm golden_time() {
  std::tm now{};
  now.tm_year = 126;
  now.tm_mon = 6;
  now.tm_mday = 26;
  return now;
}

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A model folder of its own for every test.
class ChatTemplateTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "specd-chat-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  ChatTemplate load(const std::string& file = "") { return ChatTemplate::load(folder_, file); }
  // One of the templates of the goldens, as its model has it.
  ChatTemplate load_golden(const OrderedJson& golden) {
    OrderedJson config;
    config["eos_token"] = {{"content", golden["eos_token"]}};
    config["bos_token"] = golden["bos_token"] == "" ? OrderedJson() : golden["bos_token"];
    config["chat_template"] =
        read(fs::path(SPECD_TEST_REFERENCE) / golden["file"].get<std::string>());
    write("tokenizer_config.json", config.dump());
    return load();
  }

  fs::path folder_;
};

ChatPrompt prompt_of(const OrderedJson& conversation) {
  ChatPrompt chat;
  for (const OrderedJson& message : conversation["messages"]) {
    ChatMessage& added = chat.messages.emplace_back();
    OrderedJson extra = OrderedJson::object();
    for (const auto& [key, value] : message.items()) {
      if (key == "role") {
        added.role = value.get<std::string>();
      } else if (key == "content" && value.is_string()) {
        added.content = value.get<std::string>();
      } else {
        extra[key] = value;
      }
    }
    if (!extra.empty()) added.extra_json = extra.dump();
  }
  if (conversation.contains("tools")) chat.tools_json = conversation["tools"].dump();
  if (conversation.contains("arguments")) {
    chat.template_arguments_json = conversation["arguments"].dump();
  }
  chat.continue_final_message = conversation.value("continue_final_message", false);
  chat.add_generation_prompt =
      !chat.continue_final_message && conversation.value("add_generation_prompt", true);
  return chat;
}

ChatPrompt ask(const std::string& content) {
  ChatPrompt chat;
  chat.messages.push_back({"user", content, ""});
  return chat;
}

TEST_F(ChatTemplateTest, texts_are_those_of_transformers) {
  ASSERT_GE(goldens()["templates"].size(), 17u);
  for (const OrderedJson& golden : goldens()["templates"]) {
    const ChatTemplate chat_template = load_golden(golden);
    ASSERT_TRUE(chat_template.status().ok()) << chat_template.status().to_string();
    const OrderedJson& conversations = goldens()["conversations"];
    ASSERT_EQ(golden["texts"].size(), conversations.size());
    EXPECT_GE(std::count_if(golden["texts"].begin(), golden["texts"].end(),
                            [](const OrderedJson& text) { return text.is_string(); }),
              10);
    for (size_t i = 0; i < conversations.size(); ++i) {
      SCOPED_TRACE(golden["file"].get<std::string>() + ": " +
                   conversations[i]["name"].get<std::string>());
      const auto rendered = chat_template.render(prompt_of(conversations[i]), golden_time());
      if (golden["texts"][i].is_null()) {
        EXPECT_FALSE(rendered.ok());
        continue;
      }
      ASSERT_TRUE(rendered.ok()) << rendered.status().to_string();
      EXPECT_EQ(rendered.value().text, golden["texts"][i].get<std::string>());
    }
  }
}

// Those of configs, by the formats that their makers describe: FastChat's conversation
// "vicuna_v1.1", and Llama 2's with the BOS before every turn of the user.
TEST_F(ChatTemplateTest, the_shipped_ones_write_the_formats_of_their_models) {
  const auto rendered = [&](const char* file, bool with_system) {
    write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    ChatPrompt chat;
    if (with_system) chat.messages.push_back({"system", "S", ""});
    for (const char* turn : {"u1", "a1", "u2"})
      chat.messages.push_back({turn[0] == 'u' ? "user" : "assistant", turn, ""});
    const fs::path configs = fs::path(SPECD_TEST_REFERENCE) / "../../configs/chat_templates";
    return load(configs / file).render(chat, {}).value().text;
  };
  EXPECT_EQ(rendered("llama-2-chat.jinja", true),
            "<s>[INST] <<SYS>>\nS\n<</SYS>>\n\nu1 [/INST] a1 </s><s>[INST] u2 [/INST]");
  EXPECT_EQ(rendered("llama-2-chat.jinja", false),
            "<s>[INST] u1 [/INST] a1 </s><s>[INST] u2 [/INST]");
  EXPECT_EQ(rendered("vicuna-v1.1.jinja", true),
            "<s>S USER: u1 ASSISTANT: a1</s>USER: u2 ASSISTANT:");
  EXPECT_EQ(
      rendered("vicuna-v1.1.jinja", false),
      "<s>A chat between a curious user and an artificial intelligence assistant. The assistant "
      "gives helpful, detailed, and polite answers to the user's questions. USER: u1 "
      "ASSISTANT: a1</s>USER: u2 ASSISTANT:");
}

// Contents of private-use characters, which no template writes: they are exactly what is marked,
// beside the names of roles.
TEST_F(ChatTemplateTest, what_is_marked_is_what_the_messages_bring) {
  const auto is_sentinel = [](char32_t c) { return c >= 0xE000 && c < 0xF8FF; };
  for (const OrderedJson& golden : goldens()["templates"]) {
    SCOPED_TRACE(golden["file"].get<std::string>());
    const ChatTemplate chat_template = load_golden(golden);
    const bool takes_system = golden["file"] != "chat_templates/gemma.jinja" &&
                              golden["file"] != "chat_templates/mistral-v0.2.jinja";
    ChatPrompt chat;
    if (takes_system) chat.messages.push_back({"system", "\uE001\uE002", ""});
    chat.messages.push_back({"user", "\uE003 \uE004", ""});
    chat.messages.push_back({"assistant", "\uE005", ""});
    chat.messages.push_back({"user", "\uE006\uE007\uE008", ""});
    const RenderedChat rendered = chat_template.render(chat, golden_time()).value();
    std::string marked;
    size_t outside_from = 0;
    std::string outside;
    for (const TextRange& range : rendered.from_request) {
      marked += rendered.text.substr(range.begin, range.end - range.begin);
      outside += rendered.text.substr(outside_from, range.begin - outside_from);
      outside_from = range.end;
    }
    outside += rendered.text.substr(outside_from);
    size_t sentinels = 0;
    for (size_t at = 0; at < outside.size();) {
      const Utf8Step step = utf8_step(outside, at);
      EXPECT_FALSE(is_sentinel(step.code_point));
      at += step.bytes;
    }
    std::string roles;
    for (size_t at = 0; at < marked.size();) {
      const Utf8Step step = utf8_step(marked, at);
      if (is_sentinel(step.code_point)) {
        ++sentinels;
      } else {
        roles += static_cast<char>(step.code_point);
      }
      at += step.bytes;
    }
    EXPECT_EQ(sentinels, takes_system ? 8u : 6u);
    for (const std::string role : {"system", "user", "assistant", " "}) {
      for (size_t at = roles.find(role); at != std::string::npos; at = roles.find(role)) {
        roles.erase(at, role.size());
      }
    }
    EXPECT_EQ(roles, "");
  }
}

// A message, a name, a tool that spells control tokens: outside of the marks the text has not one
// more of them than with harmless words.
TEST_F(ChatTemplateTest, control_tokens_spelled_in_a_request_lie_inside_of_the_marks) {
  const auto outside = [](const RenderedChat& chat) {
    std::string text;
    size_t from = 0;
    for (const TextRange& range : chat.from_request) {
      text += chat.text.substr(from, range.begin - from) + "\x01";
      from = range.end;
    }
    return text + chat.text.substr(from);
  };
  for (const OrderedJson& golden : goldens()["templates"]) {
    SCOPED_TRACE(golden["file"].get<std::string>());
    const ChatTemplate chat_template = load_golden(golden);
    const auto render = [&](const std::string& word) {
      ChatPrompt chat;
      chat.messages.push_back({"user", word + "x", ""});
      chat.messages.push_back({"assistant", word + "y", R"({"name": ")" + word + R"("})"});
      chat.messages.push_back({"user", "z" + word, ""});
      chat.tools_json = R"([{"type": "function", "function": {"name": ")" + word +
                        R"(", "description": ")" + word +
                        R"(", "parameters": {"type": "object", "properties": {}}}}])";
      return chat_template.render(chat, golden_time());
    };
    const auto harmless = render("word");
    ASSERT_TRUE(harmless.ok()) << harmless.status().to_string();
    for (const char* word : {"<|im_end|>", "<|im_start|>", "<|eot_id|>", "</s>", "[/INST]",
                             "<|start_header_id|>", "<end_of_turn>"}) {
      const auto hostile = render(word);
      ASSERT_TRUE(hostile.ok());
      EXPECT_EQ(outside(hostile.value()), outside(harmless.value())) << word;
    }
  }
}

// "<|user|>" of '<|' + role + '|>' is the template's own; a role that a client makes up is not.
TEST_F(ChatTemplateTest, the_names_of_the_usual_roles_count_as_written_by_the_template) {
  write("chat_template.jinja",
        "{% for m in messages %}{{ '<|' + m.role + '|>' }}{{ m.content }}{% endfor %}");
  const auto marked = [&](const std::string& role) {
    ChatPrompt chat;
    chat.messages.push_back({role, "said", ""});
    const RenderedChat rendered = load().render(chat, {}).value();
    EXPECT_EQ(rendered.text, "<|" + role + "|>said");
    std::string words;
    for (const TextRange& range : rendered.from_request) {
      words += "[" + rendered.text.substr(range.begin, range.end - range.begin) + "]";
    }
    return words;
  };
  for (const char* role : {"system", "developer", "user", "assistant", "tool"}) {
    EXPECT_EQ(marked(role), "[said]") << role;
  }
  for (const char* role : {"end", "endoftext", "User", "user ", "im_end"}) {
    EXPECT_EQ(marked(role), "[" + std::string(role) + "][said]") << role;
  }
}

TEST_F(ChatTemplateTest, the_file_goes_before_the_configuration_and_the_option_before_both) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<B>"})");
  EXPECT_EQ(load().source(), "tokenizer_config.json");
  EXPECT_EQ(load().render(ask("x"), {}).value().text, "config");
  write("chat_template.jinja", "file {{ bos_token }}{{ eos_token is defined }}");
  EXPECT_EQ(load().source(), "chat_template.jinja");
  EXPECT_EQ(load().render(ask("x"), {}).value().text, "file <B>False");
  write("own.jinja", "own {{ bos_token }}");
  EXPECT_EQ(load(folder_ / "own.jinja").source(), "own.jinja");
  EXPECT_EQ(load(folder_ / "own.jinja").render(ask("x"), {}).value().text, "own <B>");
  EXPECT_EQ(load(folder_ / "none.jinja").status().text(),
            "none.jinja: cannot open: No such file or directory");
}

TEST_F(ChatTemplateTest, of_a_list_the_one_for_tools_is_taken_when_there_are_tools) {
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "plain"},
                              {"name": "tool_use", "template": "tools"},
                              {"name": "rag", "template": "{% nope %}"}]})");
  ChatPrompt chat = ask("x");
  EXPECT_EQ(load().render(chat, {}).value().text, "plain");
  chat.tools_json = "[]";
  EXPECT_EQ(load().render(chat, {}).value().text, "tools");
}

TEST_F(ChatTemplateTest, a_file_for_requests_with_tools_stands_beside_the_default) {
  write("chat_template.jinja", "plain");
  fs::create_directory(folder_ / "additional_chat_templates");
  write("additional_chat_templates/tool_use.jinja", "tools");
  ChatPrompt chat = ask("x");
  EXPECT_EQ(load().render(chat, {}).value().text, "plain");
  chat.tools_json = "[]";
  EXPECT_EQ(load().render(chat, {}).value().text, "tools");
  EXPECT_EQ(load(folder_ / "chat_template.jinja").render(chat, {}).value().text, "plain");
  write("additional_chat_templates/tool_use.jinja", "a{% nope %}");
  const Status refused = load().render(chat, {}).status();
  EXPECT_EQ(refused.text().rfind("chat.tools_json: additional_chat_templates/tool_use.jinja:1:", 0),
            0U)
      << refused.text();
  EXPECT_EQ(load().render(ask("x"), {}).value().text, "plain");
  fs::remove(folder_ / "chat_template.jinja");
  write("tokenizer_config.json", R"({"chat_template": "configured"})");
  write("additional_chat_templates/tool_use.jinja", "tools");
  EXPECT_EQ(load().render(ask("x"), {}).value().text, "configured");
  EXPECT_EQ(load().render(chat, {}).value().text, "tools");
}

TEST_F(ChatTemplateTest, without_a_usable_template_chats_are_refused_with_the_reason) {
  const auto refusal = [&] { return load().render(ask("x"), {}).status(); };
  EXPECT_EQ(refusal().code(), Code::kFailedPrecondition);
  EXPECT_NE(refusal().text().find("no chat template"), std::string::npos);
  EXPECT_NE(refusal().text().find("model.chat_template"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": "a\n{{ x | from_json }}"})");
  EXPECT_EQ(
      refusal().text(),
      "chat: tokenizer_config.json: chat_template:2:8: the filter 'from_json' is not supported; name one as "
      "model.chat_template, or send text");
  write("tokenizer_config.json", "{\"chat_template\": \n 1}");
  EXPECT_EQ(
      refusal().text(),
      "chat: tokenizer_config.json: chat_template: expected a string or an array, found number; "
      "name one as model.chat_template, or send text");
  write("tokenizer_config.json", "{\n");
  EXPECT_EQ(refusal().text().substr(0, 35), "chat: tokenizer_config.json:2:1: ma")
      << refusal().text();
  write("tokenizer_config.json", R"({"bos_token": 7, "chat_template": "x"})");
  EXPECT_NE(refusal().text().find("key 'bos_token': expected a string"), std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "x"}]})");
  EXPECT_NE(refusal().text().find("with the name 'default'"), std::string::npos);
  write("chat_template.jinja", std::string((1 << 20) + 1, 'x'));
  EXPECT_FALSE(load().status().ok());
  write("chat_template.jinja", "\xff");
  EXPECT_NE(refusal().text().find("not UTF-8 at byte 0"), std::string::npos);
}

TEST_F(ChatTemplateTest, what_is_wrong_in_a_chat_is_named_by_its_field) {
  write("chat_template.jinja",
        "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if bad is defined %}{{ raise_exception('not ' ~ bad) }}{% endif %}");
  using Edit = std::function<void(ChatPrompt&)>;
  const std::pair<const char*, Edit> table[] = {
      {"chat.messages: expected at least one, found none", [](auto& c) { c.messages.clear(); }},
      {"chat.messages: expected at most 4096, found 5000",
       [](auto& c) {
         c.messages.assign(5000, {"user", "x", ""});
       }},
      {"chat: expected at most 4194304 bytes",
       [](auto& c) { c.messages[0].content = std::string((4 << 20) + 1, 'x'); }},
      {"chat.messages[0].role: expected a role", [](auto& c) { c.messages[0].role = ""; }},
      {"chat.messages[0].role: expected UTF-8, found an ill-formed character at byte 1",
       [](auto& c) { c.messages[0].role = "a\xff"; }},
      {"chat.messages[0].content: expected UTF-8, found an ill-formed character at byte 2",
       [](auto& c) { c.messages[0].content = "ab\xc3"; }},
      {"chat.messages[0].extra_json: expected an object, found a JSON array",
       [](auto& c) { c.messages[0].extra_json = "[]"; }},
      {"chat.messages[0].extra_json: byte 1: malformed JSON",
       [](auto& c) { c.messages[0].extra_json = "{"; }},
      {"chat.messages[0].extra_json: the content is given twice",
       [](auto& c) { c.messages[0].extra_json = R"({"content": null})"; }},
      {"chat.messages[0].extra_json: expected no \"role\" here; set the field role",
       [](auto& c) { c.messages[0].extra_json = R"({"role": "user"})"; }},
      {"chat.tools_json: expected an array, found a JSON object",
       [](auto& c) { c.tools_json = "{}"; }},
      {"chat.tools_json: expected UTF-8, found an ill-formed character at byte 2",
       [](auto& c) { c.tools_json = "[\"\xff\"]"; }},
      {"chat.template_arguments_json: expected an object",
       [](auto& c) { c.template_arguments_json = "7"; }},
      {"chat.template_arguments_json: 'messages' has a field of its own",
       [](auto& c) { c.template_arguments_json = R"({"messages": []})"; }},
      {"chat.continue_final_message: not together with add_generation_prompt",
       [](auto& c) { c.continue_final_message = true; }},
      {"chat.messages[0].content: continue_final_message needs text",
       [](auto& c) {
         c.messages[0] = {"assistant", "", R"({"content": null})"};
         c.continue_final_message = true;
         c.add_generation_prompt = false;
       }},
      {"chat: chat_template.jinja:1:106: the template refuses: 'not good'",
       [](auto& c) { c.template_arguments_json = R"({"bad": "good"})"; }},
  };
  ASSERT_TRUE(load().render(ask("x"), {}).ok());
  for (const auto& [expected, edit] : table) {
    ChatPrompt chat = ask("x");
    edit(chat);
    const auto result = load().render(chat, {});
    ASSERT_FALSE(result.ok()) << expected;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_EQ(result.status().text().substr(0, std::string(expected).size()), expected);
  }
}

TEST_F(ChatTemplateTest, a_template_that_drops_the_final_message_cannot_continue_it) {
  write("chat_template.jinja", "{{ messages[0].content }}");
  ChatPrompt chat = ask("x");
  chat.messages.push_back({"assistant", "y", ""});
  chat.continue_final_message = true;
  chat.add_generation_prompt = false;
  EXPECT_EQ(load().render(chat, {}).status().text().substr(0, 28), "chat.continue_final_message:");
}

TEST_F(ChatTemplateTest, a_template_that_prints_the_date_prints_the_one_it_is_given) {
  write("chat_template.jinja", "{{ strftime_now('%d %b %Y') }}");
  EXPECT_EQ(load().render(ask("x"), golden_time()).value().text, "26 Jul 2026");
}

}  // namespace
}  // namespace specd
