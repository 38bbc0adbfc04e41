// Bodies of /v1/completions and /v1/chat/completions: what they mean, and what is said of those that are wrong.
#include "host/openai/generation_request.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace specd::host {
namespace {

Result<GenerationRequest> read(const std::string& body, GenerationKind kind) {
  SPECD_TRY(const Json json, parse_json(body, "body"));
  return read_generation(json, kind, {.temperature = 0.7f, .seed = 99, .choices_max = 256});
}
Result<GenerationRequest> completion(const std::string& body) {
  return read(body, GenerationKind::kCompletion);
}
Result<GenerationRequest> chat(const std::string& body) {
  return read(body, GenerationKind::kChat);
}

GenerationRequest good(Result<GenerationRequest> request) {
  EXPECT_TRUE(request.ok()) << request.status().text();
  GenerationRequest none;
  none.requests.emplace_back();
  return request.ok() ? std::move(request).value() : none;
}

TEST(GenerationRequest, absent_and_null_fields_are_what_clients_expect) {
  for (const char* body :
       {R"({"prompt": "a"})",
        R"({"prompt": "a", "max_tokens": null, "temperature": null, "n": null, "stop": null,
            "logprobs": null, "seed": null, "stream": null, "stream_options": null, "logit_bias": null, "echo": null,
            "user": null, "metrics": null, "speculative": null, "suffix": null, "best_of": null})"}) {
    const GenerationRequest request = good(completion(body));
    ASSERT_EQ(request.requests.size(), 1u);
    const Request& one = request.requests.front();
    EXPECT_EQ(one.prompt, "a");
    EXPECT_EQ(one.max_tokens, 16);
    EXPECT_FALSE(one.fills_context);
    EXPECT_EQ(one.n_choices(), 1);
    EXPECT_EQ(one.sampling.temperature, 0.7f);
    EXPECT_EQ(one.sampling.seed, 99u);
    EXPECT_FALSE(one.sampling.top_p.has_value());
    EXPECT_FALSE(one.logprobs.has_value());
    EXPECT_TRUE(one.add_bos);
    EXPECT_FALSE(request.is_stream);
    EXPECT_TRUE(request.unknown_fields.empty());
  }
  const GenerationRequest talk = good(chat(R"({"messages": [{"role": "user", "content": "hi"}]})"));
  EXPECT_TRUE(talk.requests.front().fills_context) << "the rest of the context";
}

TEST(GenerationRequest, all_four_shapes_of_a_prompt_are_read) {
  const auto prompts = [](const std::string& shape) {
    return good(completion("{\"prompt\": " + shape + "}")).requests;
  };
  EXPECT_EQ(prompts("\"a\"").at(0).prompt, "a");
  const auto texts = prompts("[\"a\", \"b\"]");
  ASSERT_EQ(texts.size(), 2u);
  EXPECT_EQ(texts[1].prompt, "b");
  const auto ids = prompts("[1, 2, 3.0]");
  ASSERT_EQ(ids.size(), 1u);
  EXPECT_EQ(ids[0].prompt_tokens, (std::vector<int32_t>{1, 2, 3}));
  const auto lists = prompts("[[1, 2], [3]]");
  ASSERT_EQ(lists.size(), 2u);
  EXPECT_EQ(lists[1].prompt_tokens, std::vector<int32_t>{3});
  const auto mixed = prompts("[\"a\", [3]]");
  EXPECT_EQ(mixed[0].prompt, "a");
  EXPECT_EQ(mixed[1].prompt_tokens, std::vector<int32_t>{3});
}

TEST(GenerationRequest, every_field_reaches_the_request) {
  const GenerationRequest request = good(completion(R"({
    "model": "m", "prompt": ["a", "b"], "max_tokens": 5, "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 7,
    "min_p": 0.1, "typical_p": 0.8, "repetition_penalty": 1.1, "frequency_penalty": -1, "presence_penalty": 1.5,
    "seed": -3, "n": 2, "best_of": 3, "stop": ["x", "y"], "stop_token_ids": [4, 5], "ignore_eos": true,
    "logit_bias": {"17": -100, "3": 2.5}, "logprobs": 2, "echo": true, "stream": true, "priority": -4,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "cache_salt": "s", "request_id": "r",
    "add_special_tokens": false, "metrics": "detailed", "speculative": {"route": "off", "draft_nodes_max": 3},
    "return_token_ids": true, "return_tokens_as_token_ids": true, "user": "u", "whatever": 1})"));
  EXPECT_EQ(request.model, "m");
  EXPECT_EQ(request.request_id, "r");
  EXPECT_TRUE(request.is_stream && request.includes_usage && request.has_continuous_usage);
  EXPECT_TRUE(request.echo && request.returns_token_ids && request.names_tokens_by_id);
  EXPECT_EQ(request.metrics, RequestMetrics::kDetailed);
  EXPECT_EQ(request.unknown_fields, std::vector<std::string>{"whatever"});
  ASSERT_EQ(request.requests.size(), 2u);
  const Request& one = request.requests[1];
  EXPECT_EQ(one.prompt, "b");
  EXPECT_EQ(one.max_tokens, 5);
  EXPECT_EQ(one.min_tokens, 2);
  EXPECT_EQ(one.sampling.temperature, 0.5f);
  EXPECT_EQ(one.sampling.top_p, 0.9f);
  EXPECT_EQ(one.sampling.top_k, 7);
  EXPECT_EQ(one.sampling.min_p, 0.1f);
  EXPECT_EQ(one.sampling.typical_p, 0.8f);
  EXPECT_EQ(one.sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(one.sampling.frequency_penalty, -1.f);
  EXPECT_EQ(one.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(one.sampling.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(one.n, 2);
  EXPECT_EQ(one.best_of, 3);
  EXPECT_EQ(one.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(one.stop_tokens, (std::vector<int32_t>{4, 5}));
  EXPECT_TRUE(one.ignore_eos);
  ASSERT_EQ(one.logit_bias.size(), 2u);
  EXPECT_EQ(one.logprobs, 2);
  EXPECT_EQ(one.prompt_logprobs, 2) << "echo shows the prompt's, too";
  EXPECT_TRUE(one.echo);
  EXPECT_EQ(one.priority, -4);
  EXPECT_EQ(one.cache_salt, "s");
  EXPECT_FALSE(one.add_bos);
  EXPECT_EQ(one.route, "off");
  EXPECT_EQ(one.draft_nodes_max, 3);
  EXPECT_TRUE(one.records_drafts);
}

TEST(GenerationRequest, values_that_other_servers_take_mean_the_same) {
  const auto sampling = [](const std::string& field) {
    return good(completion("{\"prompt\": \"a\", " + field + "}")).requests.front().sampling;
  };
  EXPECT_EQ(sampling("\"top_k\": -1").top_k, 0) << "off";
  EXPECT_EQ(sampling("\"temperature\": 1e-6").temperature, 0) << "greedy";
  EXPECT_EQ(sampling("\"temperature\": 0.001").temperature, 0.01f);
  EXPECT_EQ(sampling("\"seed\": 18446744073709551615").seed, UINT64_MAX);
  const GenerationRequest prompt_only =
      good(completion(R"({"prompt": "a", "echo": true, "max_tokens": 0})"));
  EXPECT_TRUE(prompt_only.is_prompt_only);
  EXPECT_EQ(prompt_only.requests.front().max_tokens, 1);
  EXPECT_EQ(good(completion(R"({"prompt": "a", "stop": "x"})")).requests.front().stop,
            std::vector<std::string>{"x"});
  const GenerationRequest talk = good(chat(
      R"({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "max_completion_tokens": 5, "logprobs": true,
          "top_logprobs": 2, "response_format": {"type": "text"}, "tools": [], "tool_choice": "none"})"));
  EXPECT_EQ(talk.requests.front().max_tokens, 5);
  EXPECT_EQ(talk.logprobs, 2);
  EXPECT_TRUE(talk.unknown_fields.empty());
}

TEST(GenerationRequest, messages_keep_their_fields_and_parts_become_lines) {
  const GenerationRequest talk = good(chat(R"({"messages": [
      {"role": "system", "content": "be brief", "name": "n"},
      {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
      {"role": "assistant", "content": null, "tool_calls": []}],
      "chat_template_kwargs": {"enable_thinking": false}, "add_generation_prompt": false,
      "continue_final_message": true})"));
  const ChatPrompt& prompt = *talk.requests.front().chat;
  ASSERT_EQ(prompt.messages.size(), 3u);
  EXPECT_EQ(prompt.messages[0].content, "be brief");
  EXPECT_EQ(prompt.messages[0].extra_json, R"({"name":"n"})");
  EXPECT_EQ(prompt.messages[1].content, "one\ntwo");
  EXPECT_EQ(prompt.messages[1].extra_json, "");
  EXPECT_EQ(prompt.messages[2].content, "");
  EXPECT_EQ(prompt.messages[2].extra_json, R"({"content":null,"tool_calls":[]})");
  EXPECT_EQ(prompt.template_arguments_json, R"({"enable_thinking":false})");
  EXPECT_FALSE(prompt.add_generation_prompt);
  EXPECT_TRUE(prompt.continue_final_message);
  EXPECT_FALSE(prompt.parse_special_tokens_in_messages) << "messages come from strangers";
}

// Lines of request_errors.txt: "completion|chat BODY", then what is said of it, indented.
TEST(GenerationRequest, what_is_wrong_is_said_as_recorded) {
  std::ifstream file(std::string(SPECD_SOURCE_DIR) + "/tests/host/openai/request_errors.txt");
  ASSERT_TRUE(file.is_open());
  int cases = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    const size_t space = line.find(' ');
    std::string expected;
    ASSERT_TRUE(std::getline(file, expected) && expected.starts_with("    ")) << line;
    const auto request =
        read(line.substr(space + 1),
             line.starts_with("chat") ? GenerationKind::kChat : GenerationKind::kCompletion);
    EXPECT_EQ(request.ok() ? "no error" : request.status().text(), expected.substr(4)) << line;
    ++cases;
  }
  EXPECT_GE(cases, 60);
}

TEST(GenerationRequest, bodies_that_are_no_json_or_nest_too_deep_are_refused_with_their_place) {
  for (const auto& [body, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "body:1:1"},
           {"{", "body:1:"},
           {R"({"prompt": "a", "prompt": "b"})", "prompt"},
           {R"({"prompt": "\ud800"})", "body:1:"},
           {"{\"prompt\": \"\xff\"}", "body:1:"},
           {R"({"prompt": 1e400})", "body:1:"},
           {std::string("{\"prompt\": \"a\0\"}", 16), "body:1:"},
           {"{\"prompt\": " + std::string(65, '[') + std::string(65, ']') + "}",
            "deeper than 64"}}) {
    const auto request = completion(body);
    ASSERT_FALSE(request.ok()) << body;
    EXPECT_NE(request.status().text().find(words), std::string::npos) << request.status().text();
  }
  EXPECT_TRUE(completion(R"({"prompt": "a\u0000b"})").ok()) << "a text may have one";
}

TEST(GenerationRequest, errors_of_the_engine_name_the_fields_of_the_body) {
  const GenerationRequest request;
  const auto named = [&](const char* field) {
    return in_words_of_body(Status(Code::kInvalidArgument, field, "x"), request).field();
  };
  EXPECT_EQ(named("sampling.top_p"), "top_p");
  EXPECT_EQ(named("prompt_tokens[3]"), "prompt[3]");
  EXPECT_EQ(named("stop_tokens[1]"), "stop_token_ids[1]");
  EXPECT_EQ(named("chat"), "messages");
  EXPECT_EQ(named("chat.messages[2].content"), "messages[2].content");
  EXPECT_EQ(named("chat.template_arguments_json"), "chat_template_kwargs");
  EXPECT_EQ(named("route"), "speculative.route");
  EXPECT_EQ(named("draft_nodes_max"), "speculative.draft_nodes_max");
  EXPECT_EQ(named("prompt_logprobs"), "logprobs") << "those of echo";
  EXPECT_EQ(named("max_tokens"), "max_tokens");
}

}  // namespace
}  // namespace specd::host
