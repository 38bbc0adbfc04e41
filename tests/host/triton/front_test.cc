// Triton's protocol over HTTP on a real engine, without sockets: its texts are the engine's own.
#include "host/triton/front.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/host/http/front_rig.h"

namespace specd::host {
namespace {

constexpr char kModel[] = "/v2/models/pico";

class TritonFrontTest : public FrontTest {
 protected:
  void SetUp() override {
    FrontTest::SetUp();
    serve(front_options());
    front_.emplace(TritonFront::Options{.model = {.name = "pico", .version = "7"},
                                        .is_live = [] { return true; },
                                        .is_ready = [this] { return is_ready_; }});
    front_->loaded(*engine_, *sessions_);
  }

  std::shared_ptr<KeptReply> post(const std::string& path, const std::string& body,
                                  HttpFields headers = {}) {
    return ask(front_->routes(), "POST", path, body, std::move(headers));
  }
  HttpAnswer get(const std::string& path) { return ask(front_->routes(), "GET", path)->answered(); }
  Json generate(const Json& body, unsigned status = 200) {
    const HttpAnswer answer = post(std::string(kModel) + "/generate", body.dump())->answered();
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.content_type, "application/json");
    return json_of(answer.body);
  }
  std::vector<Json> stream(const Json& body) {
    const auto reply = post(std::string(kModel) + "/generate_stream", body.dump());
    EXPECT_EQ(reply->answered().content_type, "text/event-stream; charset=utf-8");
    std::vector<Json> events;
    for (const std::string& part : reply->parts()) {
      EXPECT_TRUE(part.starts_with("data: {") && part.ends_with("}\n\n")) << part;
      events.push_back(json_of(part.substr(6)));
    }
    return events;
  }

  bool is_ready_ = true;
  std::optional<TritonFront> front_;
};

TEST_F(TritonFrontTest, texts_are_the_engines_in_one_answer_in_events_and_in_tensors) {
  for (const std::string& prompt : prompts()) {
    const Outcome plain = run(request(prompt, "off", 24));
    for (const char* route : {"off", "lookup"}) {
      const Json body{{"text_input", prompt},
                      {"sampling_param_max_tokens", 24},
                      {"ignore_eos", true},
                      {"parameters", {{"route", route}}},
                      {"id", "42"}};
      const Json whole = generate(body);
      EXPECT_EQ(whole["text_output"], prompt + plain.text) << route;
      EXPECT_EQ(whole["model_name"], "pico");
      EXPECT_EQ(whole["model_version"], "7");
      EXPECT_EQ(whole["id"], "42");
      std::string text;
      for (const Json& event : stream(body)) text += event["text_output"].get<std::string>();
      EXPECT_EQ(text, prompt + plain.text) << route;
      Json tensors;
      tensors["inputs"] = {
          {{"name", "text_input"}, {"datatype", "BYTES"}, {"shape", {1}}, {"data", {prompt}}},
          {{"name", "max_tokens"}, {"datatype", "INT32"}, {"shape", {1}}, {"data", {24}}},
          {{"name", "ignore_eos"}, {"datatype", "BOOL"}, {"shape", {1}}, {"data", {true}}},
          {{"name", "exclude_input_in_output"},
           {"datatype", "BOOL"},
           {"shape", {1}},
           {"data", {true}}}};
      tensors["parameters"] = {{"route", route}};
      const HttpAnswer inferred = post(std::string(kModel) + "/infer", tensors.dump())->answered();
      EXPECT_EQ(inferred.status, 200u) << inferred.body;
      const Json outputs = json_of(inferred.body)["outputs"];
      ASSERT_EQ(outputs.size(), 1u);
      EXPECT_EQ(outputs[0]["name"], "text_output");
      EXPECT_EQ(outputs[0]["datatype"], "BYTES");
      EXPECT_EQ(outputs[0]["shape"], Json({1}));
      EXPECT_EQ(outputs[0]["data"], Json({plain.text})) << route;
    }
  }
}

TEST_F(TritonFrontTest, figures_of_a_request_are_texts_and_those_of_the_route) {
  const RouteCounts before = report("lookup").counts;
  const Json body{{"text_input", prompts()[1]},
                  {"max_tokens", 40},
                  {"ignore_eos", true},
                  {"sampling_param_return_perf_metrics", true},
                  {"return_finish_reason", true},
                  {"return_stop_reason", true},
                  {"return_cumulative_logprob", true}};
  const Json whole = generate(body);
  const RouteCounts after = report("lookup").counts;
  const auto drafted = after.drafted - before.drafted;
  const auto accepted = after.accepted - before.accepted;
  EXPECT_GT(drafted, 0u);
  EXPECT_EQ(whole["total_draft_tokens"], std::to_string(drafted));
  EXPECT_EQ(whole["total_accepted_draft_tokens"], std::to_string(accepted));
  EXPECT_DOUBLE_EQ(std::stod(whole["acceptance_rate"].get<std::string>()),
                   static_cast<double>(accepted) / static_cast<double>(drafted));
  EXPECT_EQ(whole["finish_reason"], "length");
  EXPECT_EQ(whole["stop_reason"], "None");
  Request asked = request(prompts()[1], "off", 40);
  asked.logprobs = 0;
  const Outcome plain = run(asked);
  double sum = 0;
  for (const float each : plain.logprobs.token) sum += each;
  EXPECT_NEAR(std::stod(whole["cumulative_logprob"].get<std::string>()), sum, 1e-6);
  const auto ns = [&whole](const char* name) {
    return std::stoull(whole[name].get<std::string>());
  };
  EXPECT_LE(ns("arrival_time_ns"), ns("first_scheduled_time_ns"));
  EXPECT_LT(ns("first_scheduled_time_ns"), ns("first_token_time_ns"));
  EXPECT_LT(ns("first_token_time_ns"), ns("last_token_time_ns"));
  // In events the figures are in the last one.
  const std::vector<Json> events = stream(body);
  ASSERT_GE(events.size(), 2u);
  EXPECT_FALSE(events.front().contains("total_draft_tokens"));
  EXPECT_EQ(events.back()["total_draft_tokens"], whole["total_draft_tokens"]);
  EXPECT_EQ(events.back()["cumulative_logprob"], whole["cumulative_logprob"]);
  // Without drafts there is no rate.
  Json off = body;
  off["route"] = "off";
  EXPECT_EQ(generate(off)["acceptance_rate"], "0.0");
}

TEST_F(TritonFrontTest, a_text_ends_at_a_stop_that_is_named) {
  const Outcome plain = run(request(prompts()[0], "off", 40));
  const std::string stop = plain.text.substr(plain.text.size() / 2, 3);
  const Json whole = generate({{"text_input", prompts()[0]},
                               {"max_tokens", 40},
                               {"ignore_eos", true},
                               {"sampling_param_stop", {"never there", stop}},
                               {"return_stop_reason", true},
                               {"return_finish_reason", true}});
  EXPECT_EQ(whole["text_output"], prompts()[0] + plain.text.substr(0, plain.text.find(stop)));
  EXPECT_EQ(whole["finish_reason"], "stop");
  EXPECT_EQ(whole["stop_reason"], stop);
}

TEST_F(TritonFrontTest, tensors_may_lie_in_bytes_behind_the_json_as_tritonclient_sends_them) {
  const std::string prompt = prompts()[2];
  const Outcome plain = run(request(prompt, "off", 5));
  std::string text(4, '\0'), count(4, '\0');
  const auto length = static_cast<uint32_t>(prompt.size());
  const int32_t tokens = 5;
  std::memcpy(text.data(), &length, 4);
  std::memcpy(count.data(), &tokens, 4);
  text += prompt;
  const auto json = [&](size_t text_bytes, size_t count_bytes) {
    return R"({"id":"1","inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":)" +
           std::to_string(text_bytes) +
           R"(}},{"name":"max_tokens","shape":[1],"datatype":"INT32","parameters":{"binary_data_size":)" +
           std::to_string(count_bytes) +
           R"(}}],"outputs":[{"name":"text_output","parameters":{"binary_data":true}}],"parameters":{"exclude_input_in_output":true,"ignore_eos":true,"route":"off"}})";
  };
  const auto infer = [&](const std::string& head, const std::string& tail,
                         const std::string& bytes) {
    return post(std::string(kModel) + "/infer", head + tail,
                {{"inference-header-content-length", bytes}})
        ->answered();
  };
  const std::string head = json(text.size(), count.size());
  const std::string bytes = std::to_string(head.size());
  const HttpAnswer answer = infer(head, text + count, bytes);
  ASSERT_EQ(answer.status, 200u) << answer.body;
  EXPECT_EQ(answer.content_type, "application/octet-stream");
  ASSERT_EQ(answer.headers.size(), 1u);
  EXPECT_EQ(answer.headers[0].first, "Inference-Header-Content-Length");
  const size_t at = std::stoul(answer.headers[0].second);
  const Json output = json_of(answer.body.substr(0, at))["outputs"][0];
  EXPECT_EQ(output["parameters"]["binary_data_size"], 4 + plain.text.size());
  EXPECT_EQ(answer.body.substr(at + 4), plain.text);
  uint32_t said = 0;
  std::memcpy(&said, answer.body.data() + at, 4);
  EXPECT_EQ(said, plain.text.size());

  const auto error = [&](const std::string& h, const std::string& t, const std::string& b) {
    const HttpAnswer wrong = infer(h, t, b);
    EXPECT_EQ(wrong.status, 400u) << wrong.body;
    return json_of(wrong.body)["error"].get<std::string>();
  };
  EXPECT_EQ(error(head, text + count + "x", bytes),
            "inputs: expected that the inputs take every byte behind the JSON, found 1 more");
  EXPECT_EQ(error(head, text, bytes),
            "inputs[1].binary_data_size: expected at most the 0 bytes that are left behind the "
            "JSON, found 4");
  EXPECT_EQ(error(json(text.size() - 1, 5), text + count,
                  std::to_string(json(text.size() - 1, 5).size())),
            "inputs[0]: inference input 'text_input': expected the " +
                std::to_string(prompt.size()) + " bytes of element 0 at byte 4, found " +
                std::to_string(prompt.size() - 1));
  for (const char* wrong : {"0", "-1", "1e2", "99999999", "x"})
    EXPECT_NE(error(head, text + count, wrong).find("Inference-Header-Content-Length: expected"),
              std::string::npos);
}

TEST_F(TritonFrontTest, wrong_requests_are_refused_and_counted_and_disturb_nobody) {
  const uint64_t before = engine_->status().refused;
  const auto error = [&](const std::string& verb, const std::string& body, unsigned status = 400) {
    const HttpAnswer answer = post(std::string(kModel) + verb, body)->answered();
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.content_type, "application/json");
    return json_of(answer.body)["error"].get<std::string>();
  };
  EXPECT_EQ(error("/generate", "{"),
            "body:1:2: malformed JSON: syntax error while parsing object key - unexpected end of "
            "input; expected string literal");
  EXPECT_EQ(error("/generate", "[]"), "expected a JSON object, found an array");
  EXPECT_EQ(error("/generate", R"({"text_input": "a", "id": 7})"), "id: expected a text, found 7");
  EXPECT_EQ(error("/generate", R"({"text_input": "a", "parameters": 7})"),
            "parameters: expected an object, found 7");
  EXPECT_EQ(
      error("/generate", R"({"text_input": "a", "parameters": {"text_input": "b"}})"),
      "parameters.text_input: expected it once; an input or another value has this name, too");
  EXPECT_EQ(error("/generate", R"({"text_input": "a", "stream": true})"),
            "stream: generate has one response; use generate_stream");
  EXPECT_EQ(error("/generate", R"({"text_input": "a", "route": "none"})"),
            "route: no route is called 'none'; there are off, lookup");
  EXPECT_EQ(error("/generate_stream", R"({"text_input": "a", "temperature": -1})"),
            "temperature: expected 0 (greedy) or 0.01 to 100, found -1")
      << "an error before the first event is a status";
  EXPECT_EQ(error("/versions/8/generate", R"({"text_input": "a"})", 404),
            "Request for unknown model: 'pico' version '8' is not found; this server has 'pico' "
            "version 7");
  EXPECT_EQ(error("/infer", R"({"inputs": 7})"), "inputs: expected a list of tensors");
  EXPECT_EQ(error("/infer", R"({"inputs": [7]})"), "inputs[0]: expected an object, found 7");
  const std::string text = R"({"name":"text_input","datatype":"BYTES","shape":[1],"data":["a"]})";
  EXPECT_EQ(error("/infer", R"({"inputs": [)" + text + "," + text + "]}"),
            "inputs[1].name: expected each input once, found 'text_input'");
  EXPECT_EQ(
      error("/infer", R"({"inputs": [{"name":"text_input","datatype":"BYTES","shape":[1]}]})"),
      "inputs[0].data: expected either `data` or the parameter `binary_data_size`");
  EXPECT_EQ(
      error(
          "/infer",
          R"({"inputs": [{"name":"text_input","datatype":"BYTES","shape":[1],"data":["a","b"]}]})"),
      "inputs[0].data: expected a list of 1 for shape [1], found 2");
  EXPECT_EQ(
      error("/infer",
            R"({"inputs": [{"name":"text_input","datatype":"BYTES","shape":[1.5],"data":["a"]}]})"),
      "inputs[0].shape: expected an integer from 0 to 9223372036854775807, found 1.5");
  EXPECT_EQ(error("/infer", R"({"inputs": [)" + text + R"(], "outputs": [{"name": "logits"}]})"),
            "outputs.name: expected an output of the model, found 'logits'");
  EXPECT_EQ(engine_->status().refused - before, 16u);
  EXPECT_EQ(generate({{"text_input", "a"}, {"max_tokens", 1}})["model_name"], "pico");
}

TEST_F(TritonFrontTest, a_request_is_cancelled_by_its_id_or_when_its_client_goes) {
  const Json slow{
      {"text_input", prompts()[0]}, {"max_tokens", 400}, {"ignore_eos", true}, {"id", "victim"}};
  // Ids need not differ.
  const auto first = post(std::string(kModel) + "/generate", slow.dump());
  const auto same = post(std::string(kModel) + "/generate", slow.dump());
  const Json cancelled = generate({{"id", "victim"}, {"stop", true}});
  EXPECT_EQ(cancelled["id"], "victim");
  EXPECT_FALSE(cancelled.contains("text_output"));
  EXPECT_EQ(first->answered().status, 409u) << first->answered().body;
  EXPECT_EQ(same->answered().status, 409u) << same->answered().body;
  const auto second = post(std::string(kModel) + "/generate_stream", slow.dump());
  second->go();
  EXPECT_TRUE(sessions_->wait_closed(std::chrono::minutes(1))) << "its session has ended";
}

TEST_F(TritonFrontTest, names_that_mean_nothing_are_in_a_header_or_refused) {
  const std::string body = R"({"text_input": "a", "max_tokens": 1, "foo": 1})";
  const HttpAnswer answer = post(std::string(kModel) + "/generate", body)->answered();
  ASSERT_EQ(answer.headers.size(), 1u);
  EXPECT_EQ(answer.headers[0],
            (std::pair<std::string, std::string>("x-specd-ignored-fields", "foo")));
  TritonFront strict({.model = {.name = "pico", .version = "7"},
                      .rejects_unknown_names = true,
                      .is_live = [] { return true; },
                      .is_ready = [] { return true; }});
  strict.loaded(*engine_, *sessions_);
  const HttpAnswer refused =
      ask(strict.routes(), "POST", std::string(kModel) + "/generate", body)->answered();
  EXPECT_EQ(refused.status, 400u);
  EXPECT_EQ(json_of(refused.body)["error"], "foo: specd does not know this name");
}

TEST_F(TritonFrontTest, probes_and_descriptions_are_tritons) {
  EXPECT_EQ(get("/v2/health/live").status, 200u);
  EXPECT_EQ(get("/v2/health/ready").status, 200u);
  EXPECT_EQ(get(std::string(kModel) + "/ready").status, 200u);
  EXPECT_EQ(get(std::string(kModel) + "/versions/7/ready").status, 200u);
  EXPECT_EQ(get(std::string(kModel) + "/versions/8/ready").status, 400u);
  EXPECT_EQ(json_of(get("/v2").body)["name"], "specd");
  const Json metadata = json_of(get(kModel).body),
             config = json_of(get(std::string(kModel) + "/config").body);
  EXPECT_EQ(metadata["versions"], Json({"7"}));
  ASSERT_EQ(metadata["inputs"].size(), config["input"].size());
  for (size_t i = 0; i < metadata["inputs"].size(); ++i) {
    EXPECT_EQ(metadata["inputs"][i]["name"], config["input"][i]["name"]);
    EXPECT_EQ(metadata["inputs"][i]["shape"], config["input"][i]["dims"]);
    EXPECT_EQ(config["input"][i]["optional"], config["input"][i]["name"] != "text_input");
  }
  EXPECT_EQ(config["max_batch_size"], 0);
  EXPECT_EQ(config["model_transaction_policy"]["decoupled"], false);
  EXPECT_EQ(get("/v2/models/none").status, 404u);
  const auto success = [this] {
    return json_of(get("/v2/models/stats")
                       .body)["model_stats"][0]["inference_stats"]["success"]["count"]
        .get<int>();
  };
  const int before = success();
  generate({{"text_input", "a"}, {"max_tokens", 1}});
  EXPECT_EQ(success(), before + 1);
  EXPECT_EQ(json_of(get(std::string(kModel) + "/stats").body)["model_stats"][0]["inference_count"],
            before + 1);
  const auto index = [this](const std::string& body) {
    return json_of(post("/v2/repository/index", body)->answered().body);
  };
  EXPECT_EQ(index("")[0]["state"], "READY");
  EXPECT_EQ(index(R"({"ready": 1})")["error"], "ready: expected true or false, found 1");
  is_ready_ = false;
  EXPECT_EQ(get("/v2/health/ready").status, 400u);
  EXPECT_TRUE(get("/v2/health/ready").body.empty());
  EXPECT_EQ(get(std::string(kModel) + "/ready").status, 400u);
  EXPECT_EQ(index("")[0]["state"], "UNAVAILABLE");
  EXPECT_EQ(index(R"({"ready": true})"), Json::array());
}

TEST_F(TritonFrontTest, while_the_model_is_loaded_it_is_not_ready) {
  TritonFront loading({.model = {.name = "pico", .version = "7"},
                       .is_live = [] { return true; },
                       .is_ready = [] { return false; }});
  EXPECT_EQ(ask(loading.routes(), "GET", "/v2/health/live")->answered().status, 200u);
  EXPECT_EQ(ask(loading.routes(), "GET", "/v2/health/ready")->answered().status, 400u);
  const HttpAnswer answer =
      ask(loading.routes(), "POST", std::string(kModel) + "/generate", R"({"text_input": "a"})")
          ->answered();
  EXPECT_EQ(answer.status, 503u);
  EXPECT_EQ(answer.headers[0].first, "Retry-After");
}

}  // namespace
}  // namespace specd::host
