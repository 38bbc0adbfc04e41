// The OpenAI front on a real engine, without sockets: its texts are the engine's own, whole or in parts, whatever drafts.
#include "host/openai/front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "tests/host/http/front_rig.h"

namespace specd::host {
namespace {

class OpenAiFrontTest : public FrontTest {
 protected:
  void SetUp() override {
    FrontTest::SetUp();
    const EngineOptions o = front_options();
    serve(o);
    open({.model = "pico", .model_folder = o.model.path, .choices_max = o.queue_max});
  }
  void open(OpenAiFront::Options options) {
    front_.emplace(std::move(options));
    front_->loaded(*engine_, *sessions_);
  }

  std::shared_ptr<KeptReply> ask(const std::string& method, const std::string& path,
                                 const std::string& body = "", HttpFields headers = {}) {
    return FrontTest::ask(front_->routes(), method, path, body, std::move(headers));
  }
  // The JSON of an answer of this status.
  Json answer(const std::string& path, const Json& body, unsigned status = 200) {
    const HttpAnswer answer = ask("POST", path, body.dump())->answered();
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.content_type, "application/json");
    return json_of(answer.body);
  }
  // The events of a stream, each one write, without the last, which is [DONE].
  std::vector<Json> stream(const std::string& path, Json body) {
    body["stream"] = true;
    const auto reply = ask("POST", path, body.dump());
    EXPECT_EQ(reply->answered().content_type, "text/event-stream; charset=utf-8")
        << reply->answered().body;
    std::vector<Json> events;
    std::vector<std::string> parts = reply->parts();
    EXPECT_FALSE(parts.empty());
    if (parts.empty()) return events;
    EXPECT_EQ(parts.back(), "data: [DONE]\n\n");
    parts.pop_back();
    for (const std::string& part : parts) {
      EXPECT_TRUE(part.starts_with("data: {") && part.ends_with("}\n\n")) << part;
      EXPECT_EQ(part.find("\n\n"), part.size() - 2) << "one event one write: " << part;
      events.push_back(json_of(part.substr(6)));
    }
    return events;
  }
  // What the choices of the events of a stream say, put together by their index.
  static std::vector<std::string> texts_of(const std::vector<Json>& events, size_t n) {
    std::vector<std::string> texts(n);
    for (const Json& event : events) {
      for (const Json& choice : event.at("choices")) {
        const auto index = choice.at("index").get<size_t>();
        EXPECT_LT(index, n);
        if (index >= n) continue;
        texts[index] += choice.contains("delta") ? choice["delta"].value("content", "")
                                                 : choice.at("text").get<std::string>();
      }
    }
    return texts;
  }

  std::optional<OpenAiFront> front_;
};

Json body_of(const std::string& prompt, int max_tokens) {
  return {{"prompt", prompt}, {"max_tokens", max_tokens}, {"temperature", 0}, {"ignore_eos", true}};
}

TEST_F(OpenAiFrontTest, texts_and_ids_are_the_engines_whole_or_in_parts_on_every_route) {
  // Greedy, and sampled with so many seeds: 200 requests a night.
  const uint64_t n_seeds = std::getenv("SPECD_NIGHTLY") == nullptr ? 1 : 24;
  size_t n = 0;
  for (const std::string& prompt : prompts()) {
    for (uint64_t seed = 0; seed <= n_seeds; ++seed) {
      const float temperature = seed == 0 ? 0.f : 0.9f;
      const Outcome plain = run(request(prompt, "off", 24, temperature, seed));
      ++n;
      for (const char* route : {"off", "lookup"}) {
        Json body = body_of(prompt, 24);
        body["temperature"] = temperature;
        body["seed"] = seed;
        body["return_token_ids"] = true;
        body["speculative"] = {{"route", route}};
        const Json whole = answer("/v1/completions", body);
        EXPECT_EQ(whole["object"], "text_completion");
        EXPECT_EQ(whole["model"], "pico");
        const Json& choice = whole["choices"].at(0);
        EXPECT_EQ(choice["text"], plain.text) << route;
        EXPECT_EQ(choice["token_ids"], Json(plain.tokens)) << route;
        EXPECT_EQ(choice["finish_reason"], "length");
        EXPECT_EQ(choice["prompt_token_ids"], Json(engine_->encode(prompt).value()));
        EXPECT_EQ(whole["usage"]["completion_tokens"], 24);
        const std::vector<Json> events = stream("/v1/completions", body);
        EXPECT_EQ(texts_of(events, 1).front(), plain.text) << route;
        Json ids = Json::array();
        for (const Json& event : events) {
          EXPECT_EQ(event["id"], events.front()["id"]);
          for (const Json& id : event["choices"].at(0)["token_ids"]) ids.push_back(id);
        }
        EXPECT_EQ(ids, Json(plain.tokens)) << route;
        EXPECT_EQ(events.back()["choices"].at(0)["finish_reason"], "length");
      }
    }
  }
  EXPECT_EQ(n, 8 * (1 + n_seeds));
}

TEST_F(OpenAiFrontTest, a_batch_and_n_number_their_choices_prompt_by_prompt) {
  Json body = body_of("", 12);
  body["prompt"] = {prompts()[0], prompts()[1], prompts()[2]};
  body["temperature"] = 0.8;
  body["seed"] = 11;
  body["n"] = 2;
  const Json whole = answer("/v1/completions", body);
  ASSERT_EQ(whole["choices"].size(), 6u);
  const std::vector<std::string> streamed = texts_of(stream("/v1/completions", body), 6);
  for (size_t i = 0; i < 6; ++i) {
    const Outcome alone = run(request(prompts()[i / 2], "off", 12, 0.8f, 11 + i % 2));
    EXPECT_EQ(whole["choices"][i]["index"], i);
    EXPECT_EQ(whole["choices"][i]["text"], alone.text) << i;
    EXPECT_EQ(streamed[i], alone.text) << i;
  }
  int64_t n_prompt = 0;
  for (int i = 0; i < 3; ++i)
    n_prompt +=
        static_cast<int64_t>(engine_->encode(prompts()[static_cast<size_t>(i)]).value().size());
  EXPECT_EQ(whole["usage"]["prompt_tokens"], n_prompt);
  EXPECT_EQ(whole["usage"]["completion_tokens"], 72);
}

TEST_F(OpenAiFrontTest, log_probabilities_are_the_engines_and_drafts_do_not_change_them) {
  Request asked = request(prompts()[4], "off", 16);
  asked.logprobs = 3;
  const Outcome direct = run(asked);
  for (const char* route : {"off", "lookup"}) {
    Json body = body_of(prompts()[4], 16);
    body["logprobs"] = 3;
    body["speculative"]["route"] = route;
    for (const bool is_stream : {false, true}) {
      Json names = Json::array(), values = Json::array(), tops = Json::array(),
           offsets = Json::array();
      const std::vector<Json> bodies = is_stream
                                           ? stream("/v1/completions", body)
                                           : std::vector<Json>{answer("/v1/completions", body)};
      std::string text;
      for (const Json& each : bodies) {
        const Json& choice = each["choices"].at(0);
        text += choice["text"].get<std::string>();
        for (const auto& [list, name] : {std::pair<Json*, const char*>{&names, "tokens"},
                                         {&values, "token_logprobs"},
                                         {&tops, "top_logprobs"},
                                         {&offsets, "text_offset"}})
          for (const Json& entry : choice["logprobs"][name]) list->push_back(entry);
      }
      ASSERT_EQ(values.size(), direct.tokens.size());
      size_t offset = 0;
      for (size_t i = 0; i < direct.tokens.size(); ++i) {
        EXPECT_NEAR(values[i].get<double>(), direct.logprobs.token[i], 1e-6) << route;
        EXPECT_EQ(names[i], std::string(engine_->token_bytes(direct.tokens[i])));
        EXPECT_EQ(offsets[i], offset);
        offset += names[i].get<std::string>().size();
        double most = -1e9;
        for (const auto& [name, value] : tops[i].items())
          most = std::max(most, value.get<double>());
        EXPECT_EQ(values[i].get<double>(), most) << "greedy: the token is the most likely one";
        EXPECT_GE(tops[i].size(), 3u);
      }
      EXPECT_EQ(offset, text.size()) << "the texts of the tokens are the text";
    }
  }
}

TEST_F(OpenAiFrontTest, echo_scores_the_prompt_as_loglikelihood_tasks_need_it) {
  const std::vector<int32_t> ids = engine_->encode(prompts()[3]).value();
  Request asked = request("", "off", 1);
  asked.prompt_tokens = ids;
  asked.logprobs = asked.prompt_logprobs = 1;
  const Outcome direct = run(asked);
  // As lm-evaluation-harness asks.
  Json body{{"model", "pico"},  {"prompt", Json::array({ids, ids})},
            {"temperature", 0}, {"max_tokens", 1},
            {"logprobs", 1},    {"seed", 1234},
            {"echo", true}};
  for (const bool is_stream : {false, true}) {
    std::vector<Json> choices(2);
    if (is_stream) {
      for (const Json& event : stream("/v1/completions", body))
        if (const auto index = event["choices"].at(0)["index"].get<size_t>();
            choices.at(index).is_null())
          choices[index] = event["choices"][0];
    } else {
      const Json whole = answer("/v1/completions", body);
      for (size_t i = 0; i < 2; ++i) choices[i] = whole["choices"].at(i);
    }
    for (const Json& choice : choices) {
      const Json& values = choice["logprobs"]["token_logprobs"];
      ASSERT_EQ(values.size(), ids.size() + 1);
      EXPECT_TRUE(values[0].is_null());
      EXPECT_TRUE(choice["logprobs"]["top_logprobs"][0].is_null());
      for (size_t i = 1; i < ids.size(); ++i)
        EXPECT_NEAR(values[i].get<double>(), direct.prompt_logprobs.token[i - 1], 1e-6);
      EXPECT_NEAR(values[ids.size()].get<double>(), direct.logprobs.token[0], 1e-6);
      EXPECT_EQ(choice["text"], engine_->decode(ids) + direct.text);
    }
  }
  body["max_tokens"] = 0;
  const Json prompt_only = answer("/v1/completions", body);
  EXPECT_EQ(prompt_only["choices"][0]["text"], engine_->decode(ids));
  EXPECT_EQ(prompt_only["choices"][0]["logprobs"]["tokens"].size(), ids.size());
  EXPECT_EQ(prompt_only["usage"]["completion_tokens"], 0);
}

TEST_F(OpenAiFrontTest, a_chat_is_the_models_rendering_of_it) {
  const Json messages = {{{"role", "user"}, {"content", "def add(a, b):"}}};
  const Json refused = answer("/v1/chat/completions", {{"messages", messages}}, 400);
  EXPECT_EQ(refused["error"]["param"], "messages") << "this model has no template";

  EngineOptions o = options("pico-target");
  o.model.chat_template =
      std::string(SPECD_SOURCE_DIR) + "/tests/reference/chat_templates/chatml.jinja";
  front_.reset();
  serve(o);
  open({.model = "pico", .model_folder = o.model.path, .choices_max = 256});
  Request direct = request("", "off", 8);
  direct.chat.emplace();
  direct.chat->messages = {{"user", "def add(a, b):", ""}};
  const auto rendered = engine_->render(direct);
  ASSERT_TRUE(rendered.ok()) << rendered.status().text();
  const Outcome plain = run(direct);
  Json body{{"messages", messages}, {"max_tokens", 8},  {"temperature", 0},
            {"ignore_eos", true},   {"logprobs", true}, {"top_logprobs", 2}};
  const Json whole = answer("/v1/chat/completions", body);
  EXPECT_EQ(whole["object"], "chat.completion");
  EXPECT_EQ(whole["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(whole["choices"][0]["message"]["content"], plain.text);
  const Json& content = whole["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), plain.tokens.size());
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2u);
  EXPECT_EQ(content[0]["token"], content[0]["top_logprobs"][0]["token"]);
  const std::vector<Json> events = stream("/v1/chat/completions", body);
  EXPECT_EQ(events.front()["object"], "chat.completion.chunk");
  EXPECT_EQ(events.front()["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(texts_of(events, 1).front(), plain.text);
  for (size_t i = 1; i < events.size(); ++i)
    EXPECT_FALSE(events[i]["choices"][0]["delta"].contains("role"));
  // /tokenize says what the model reads.
  const Json tokens = answer("/tokenize", {{"messages", messages}});
  EXPECT_EQ(tokens["tokens"], Json(rendered.value().tokens));
}

TEST_F(OpenAiFrontTest, a_stop_is_named_and_not_part_of_the_text) {
  const Outcome plain = run(request(prompts()[0], "off", 40));
  const std::string stop = plain.text.substr(plain.text.size() / 2, 3);
  Json body = body_of(prompts()[0], 40);
  body["stop"] = {"never there", stop};
  Json choice = answer("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], stop);
  EXPECT_EQ(choice["text"], plain.text.substr(0, plain.text.find(stop)));
  const std::vector<Json> events = stream("/v1/completions", body);
  EXPECT_EQ(events.back()["choices"][0]["stop_reason"], stop);
  body["stop"] = Json::array();
  body["stop_token_ids"] = {plain.tokens[7]};
  choice = answer("/v1/completions", body)["choices"][0];
  EXPECT_EQ(choice["stop_reason"], plain.tokens[7]);
}

TEST_F(OpenAiFrontTest, usage_and_metrics_come_in_an_event_of_their_own) {
  Json body = body_of(prompts()[1], 30);
  body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
  body["metrics"] = "detailed";
  const std::vector<Json> events = stream("/v1/completions", body);
  ASSERT_GE(events.size(), 2u);
  int last = 0;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const int n = events[i]["usage"]["completion_tokens"].get<int>();
    EXPECT_GT(n, last);
    last = n;
  }
  const Json& end = events.back();
  EXPECT_TRUE(end["choices"].empty());
  EXPECT_EQ(end["usage"]["completion_tokens"], 30);
  EXPECT_EQ(end["usage"]["total_tokens"], end["usage"]["prompt_tokens"].get<int>() + 30);
  const RouteCounts counts = report("lookup").counts;
  const Json& drafts = end["metrics"]["speculative_decoding"];
  EXPECT_GT(counts.drafts, 0u);
  EXPECT_EQ(drafts["num_spec_steps"], counts.drafts);
  EXPECT_EQ(drafts["num_draft_tokens"], counts.drafted);
  EXPECT_EQ(drafts["num_accepted_draft_tokens"], counts.accepted);
  EXPECT_EQ(drafts["num_spec_tokens"], 5);
  EXPECT_EQ(drafts["acceptance_histogram"].size(), 6u);
  std::vector<uint64_t> at_least(6);
  int64_t n_steps = 0;
  for (size_t j = 0; j < 6; ++j) {
    const auto n = drafts["acceptance_histogram"][j].get<int64_t>();
    n_steps += n;
    for (size_t i = 0; i < j; ++i) at_least[i] += static_cast<uint64_t>(n);
  }
  EXPECT_EQ(n_steps, drafts["num_spec_steps"]);
  for (size_t i = 0; i < counts.accepted_at.size() && i < 5; ++i)
    EXPECT_EQ(at_least[i], counts.accepted_at[i]);
  EXPECT_EQ(drafts["per_step_accepted"].size(), static_cast<size_t>(n_steps));
  EXPECT_NEAR(drafts["mean_acceptance_length"].get<double>(),
              1 + static_cast<double>(counts.accepted) / static_cast<double>(counts.drafts), 1e-9);
  // Without drafts, without being asked, and for several texts there are none.
  body["metrics"] = "summary";
  body["speculative"]["route"] = "off";
  EXPECT_TRUE(stream("/v1/completions", body).back()["metrics"]["speculative_decoding"].is_null());
  body["n"] = 2;
  EXPECT_TRUE(stream("/v1/completions", body).back()["metrics"].is_null());
  EXPECT_TRUE(answer("/v1/completions", body_of(prompts()[1], 2))["metrics"].is_null());
}

TEST_F(OpenAiFrontTest, a_seed_is_drawn_and_told_so_that_the_text_can_be_had_again) {
  Json body = body_of(prompts()[2], 20);
  body["temperature"] = 1.2;
  const auto header = [](const HttpAnswer& answer, const std::string& name) {
    for (const auto& [each, value] : answer.headers)
      if (each == name) return value;
    return std::string();
  };
  const HttpAnswer first =
      ask("POST", "/v1/completions", body.dump(), {{"x-request-id", "mine"}})->answered();
  EXPECT_EQ(header(first, "x-request-id"), "mine");
  EXPECT_EQ(parse_json(first.body, "a").value()["id"], "cmpl-mine");
  const std::string seed = header(first, "x-specd-seed");
  ASSERT_FALSE(seed.empty());
  const HttpAnswer other = ask("POST", "/v1/completions", body.dump())->answered();
  EXPECT_NE(header(other, "x-specd-seed"), seed);
  body["seed"] = std::stoull(seed);
  body["nobody_knows"] = 1;
  body["bad\r\nname"] = 2;
  const HttpAnswer again = ask("POST", "/v1/completions", body.dump())->answered();
  EXPECT_EQ(parse_json(again.body, "a").value()["choices"],
            parse_json(first.body, "a").value()["choices"]);
  EXPECT_EQ(header(again, "x-specd-ignored-fields"), "bad??name, nobody_knows");
}

TEST_F(OpenAiFrontTest, a_caller_s_mistake_is_a_400_or_404_that_names_the_field) {
  const auto param = [&](Json body, unsigned status = 400) {
    return answer("/v1/completions", body, status)["error"]["param"];
  };
  Json body = body_of(prompts()[0], 4);
  const uint64_t refused = engine_->status().refused;
  body["model"] = "other";
  EXPECT_EQ(answer("/v1/completions", body, 404)["error"]["code"], "model_not_found");
  body["model"] = "pico";
  for (const auto& [field, value, name] : std::vector<std::tuple<const char*, Json, const char*>>{
           {"top_p", 0, "top_p"},
           {"temperature", 1000, "temperature"},
           {"max_tokens", 0, "max_tokens"},
           {"max_tokens", 1 << 30, "max_tokens"},
           {"stop", Json::array({""}), "stop[0]"},
           {"prompt", Json::array({1 << 30}), "prompt[0]"},
           {"stop_token_ids", Json::array({1 << 30}), "stop_token_ids[0]"},
           {"logit_bias", Json{{"99999999", 1}}, "logit_bias[99999999]"},
           {"speculative", Json{{"route", "nowhere"}}, "speculative.route"},
           {"request_id", "with space", "request_id"}}) {
    Json wrong = body;
    wrong[field] = value;
    EXPECT_EQ(param(wrong), name) << field;
  }
  EXPECT_EQ(engine_->status().refused, refused + 11);
  const HttpAnswer garbage = ask("POST", "/v1/completions", "{")->answered();
  EXPECT_EQ(garbage.status, 400u);
}

TEST_F(OpenAiFrontTest, one_refused_prompt_of_a_batch_refuses_all_and_leaves_nothing_behind) {
  for (const bool is_stream : {false, true}) {
    Json body = body_of("", 1500);
    body["prompt"] = {"a", std::string(300'000, ' '), "b"};
    body["stream"] = is_stream;
    const auto reply = ask("POST", "/v1/completions", body.dump());
    const HttpAnswer answer = reply->answered();
    EXPECT_EQ(answer.status, 400u) << answer.body;
    EXPECT_FALSE(reply->is_stream()) << "a status can still be sent";
  }
  EXPECT_TRUE(engine_->wait_idle(60'000));
}

TEST_F(OpenAiFrontTest, a_client_that_goes_is_cancelled_and_the_others_are_not) {
  Json body = body_of(prompts()[0], 1500);
  for (const bool is_stream : {false, true}) {
    body["stream"] = is_stream;
    const uint64_t cancelled = engine_->status().cancelled;
    const auto leaving = ask("POST", "/v1/completions", body.dump(), {{"x-request-id", "leaving"}});
    Json other = body_of(prompts()[1], 60);
    const auto staying = ask("POST", "/v1/completions", other.dump());
    const auto runs = [&] {
      const auto list = engine_->requests(10);
      return list.ok() && std::any_of(list.value().requests.begin(), list.value().requests.end(),
                                      [](const RequestReport& each) {
                                        return each.id == "leaving" && each.is_running;
                                      });
    };
    for (int i = 0; i < 6000 && !runs(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    leaving->go();
    EXPECT_EQ(staying->answered().status, 200u);
    EXPECT_TRUE(engine_->wait_idle(60'000));
    EXPECT_EQ(engine_->status().cancelled, cancelled + 1);
  }
}

TEST_F(OpenAiFrontTest, a_request_that_an_operator_cancels_ends_with_its_reason) {
  Json body = body_of(prompts()[0], 1500);
  for (const bool is_stream : {false, true}) {
    body["stream"] = is_stream;
    const auto reply = ask("POST", "/v1/completions", body.dump(), {{"x-request-id", "victim"}});
    for (int i = 0; i < 6000 && engine_->status().running == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_TRUE(sessions_->cancel("victim"));
    const HttpAnswer answer = reply->answered();
    if (reply->is_stream()) {
      const std::vector<std::string> parts = reply->parts();
      ASSERT_GE(parts.size(), 2u);
      EXPECT_NE(parts[parts.size() - 2].find("data: {\"error\":{\"message\""), std::string::npos);
      EXPECT_EQ(parts.back(), "data: [DONE]\n\n");
    } else {
      EXPECT_EQ(answer.status, 409u) << answer.body;
    }
  }
}

TEST_F(OpenAiFrontTest, the_model_is_listed_and_texts_are_tokens_and_back) {
  const Json list = parse_json(ask("GET", "/v1/models")->answered().body, "a").value();
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "pico");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_GT(list["data"][0]["max_model_len"], 0);
  EXPECT_EQ(parse_json(ask("GET", "/v1/models/pico")->answered().body, "a").value(),
            list["data"][0]);
  EXPECT_EQ(ask("GET", "/v1/models/other")->answered().status, 404u);
  EXPECT_TRUE(
      parse_json(ask("GET", "/version")->answered().body, "a").value()["version"].is_string());
  const Json info = parse_json(ask("GET", "/tokenizer_info")->answered().body, "a").value();
  EXPECT_TRUE(info["eos_token"].is_string()) << info;
  for (const std::string& prompt : prompts()) {
    const Json tokens = answer("/tokenize", {{"prompt", prompt}, {"return_token_strs", true}});
    EXPECT_EQ(tokens["tokens"], Json(engine_->encode(prompt).value()));
    EXPECT_EQ(tokens["count"], tokens["tokens"].size());
    EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
    EXPECT_EQ(answer("/detokenize", {{"tokens", tokens["tokens"]}})["prompt"],
              engine_->decode(engine_->encode(prompt).value()));
  }
  EXPECT_EQ(answer("/tokenize", Json::object(), 400)["error"]["param"], "prompt");
  EXPECT_EQ(answer("/detokenize", {{"tokens", {1, -1}}}, 400)["error"]["param"], "tokens[1]");
}

TEST_F(OpenAiFrontTest,
       while_the_model_loads_and_while_the_daemon_drains_clients_are_told_to_come_again) {
  OpenAiFront loading({.model = "pico", .model_folder = "", .choices_max = 1});
  for (const HttpRoute& each : loading.routes()) {
    if (each.path == "/version") continue;
    const auto reply = std::make_shared<KeptReply>();
    each.handler({}, reply);
    EXPECT_EQ(reply->answered().status, 503u) << each.path;
    EXPECT_EQ(reply->answered().headers.at(0),
              (std::pair<std::string, std::string>("Retry-After", "1")));
  }
  sessions_->start_drain();
  EXPECT_EQ(ask("POST", "/v1/completions", body_of("a", 1).dump())->answered().status, 503u);
  EXPECT_EQ(ask("POST", "/tokenize", R"({"prompt": "a"})")->answered().status, 503u);
}

}  // namespace
}  // namespace specd::host
