// What Triton's clients ask for: every name reaches the request, and what is wrong is told by the client's own name.
#include "host/triton/infer_request.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "host/triton/contract.h"

namespace specd::host {
namespace {

InferRequest good(const std::string& values, const std::string& id = "") {
  const auto json = parse_json(values, "test");
  EXPECT_TRUE(json.ok()) << values;
  auto made = read_infer(json.value(), id, 99);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.ok() ? std::move(made).value() : InferRequest();
}
std::string error(const std::string& values, const std::string& id = "") {
  const auto json = parse_json(values, "test");
  EXPECT_TRUE(json.ok()) << values;
  const auto made = read_infer(json.value(), id, 99);
  EXPECT_FALSE(made.ok()) << values;
  return made.ok() ? "" : made.status().text();
}

TEST(InferRequest, absent_values_are_those_of_the_llm_api_backend) {
  const InferRequest asked = good(R"({"text_input": "a"})");
  EXPECT_EQ(asked.text_input, "a");
  EXPECT_EQ(asked.request.prompt, "a");
  EXPECT_EQ(asked.request.max_tokens, 32);
  EXPECT_EQ(asked.request.sampling.temperature, 0.f) << "greedy when nothing says otherwise";
  EXPECT_EQ(asked.request.sampling.seed, 99u);
  EXPECT_FALSE(asked.is_stream.has_value());
  EXPECT_FALSE(asked.excludes_input);
  EXPECT_FALSE(asked.returns_metrics);
  EXPECT_FALSE(asked.request.logprobs.has_value());
  EXPECT_EQ(good(R"({"text_input": "a", "top_p": 0.5})").request.sampling.temperature, 1.f);
  EXPECT_EQ(good(R"({"text_input": "a", "top_k": 5})").request.sampling.temperature, 1.f);
}

TEST(InferRequest, every_name_reaches_the_request_with_or_without_its_prefix) {
  for (const std::string front : {"", "sampling_param_"}) {
    const InferRequest asked = good(
        R"({"text_input": ["a"], ")" + front + R"(max_tokens": [7], ")" + front +
            R"(temperature": 0.5, ")" + front + R"(top_p": 0.9, ")" + front + R"(top_k": 3, ")" +
            front + R"(min_p": 0.25, ")" + front + R"(seed": 18446744073709551615, ")" + front +
            R"(repetition_penalty": 1.5, ")" + front + R"(frequency_penalty": -1, ")" + front +
            R"(presence_penalty": 2, ")" + front + R"(min_tokens": 2, ")" + front +
            R"(ignore_eos": true, ")" + front + R"(best_of": 2, "sampling_param_stop": ["x", "y"],
        "return_finish_reason": true, "return_stop_reason": true, "return_cumulative_logprob": true,
        "sampling_param_return_perf_metrics": true, "exclude_input_in_output": true, "streaming": true,
        "route": "r", "draft_nodes_max": 3, "timeout": 1500, "priority": 1})",
        "id-1");
    const Request& one = asked.request;
    EXPECT_EQ(one.max_tokens, 7);
    EXPECT_EQ(one.min_tokens, 2);
    EXPECT_EQ(one.sampling.temperature, 0.5f);
    EXPECT_EQ(one.sampling.top_p, 0.9f);
    EXPECT_EQ(one.sampling.top_k, 3);
    EXPECT_EQ(one.sampling.min_p, 0.25f);
    EXPECT_EQ(one.sampling.seed, UINT64_MAX);
    EXPECT_EQ(one.sampling.repetition_penalty, 1.5f);
    EXPECT_EQ(one.sampling.frequency_penalty, -1.f);
    EXPECT_EQ(one.sampling.presence_penalty, 2.f);
    EXPECT_EQ(one.best_of, 2);
    EXPECT_TRUE(one.ignore_eos);
    EXPECT_EQ(one.stop, (std::vector<std::string>{"x", "y"}));
    EXPECT_EQ(one.route, "r");
    EXPECT_EQ(one.draft_nodes_max, 3);
    EXPECT_EQ(one.priority, 1);
    EXPECT_EQ(asked.id, "id-1");
    EXPECT_EQ(one.logprobs, 0);
    EXPECT_EQ(asked.time_left, std::chrono::milliseconds(2));
    EXPECT_TRUE(asked.returns_finish_reason && asked.returns_stop_reason && asked.returns_logprob);
    EXPECT_TRUE(asked.returns_metrics && asked.excludes_input);
    EXPECT_EQ(asked.is_stream, true);
    EXPECT_TRUE(asked.ignored.empty()) << asked.ignored.front();
  }
}

TEST(InferRequest, every_declared_input_means_something) {
  for (const TensorSpec& each : infer_inputs()) {
    Json values = Json::object();
    values[kTextInput] = "a";
    switch (each.type) {
      case Datatype::kBool:
        values[each.name] = false;
        break;
      case Datatype::kBytes:
        values[each.name] = Json::array({"a"});
        break;
      default:
        values[each.name] = 1;
    }
    const auto read = read_infer(values, "", 1);
    ASSERT_TRUE(read.ok()) << each.name << ": " << read.status().text();
    EXPECT_TRUE(read.value().ignored.empty()) << each.name;
  }
}

TEST(InferRequest, stop_ends_other_requests_or_is_where_the_text_ends) {
  EXPECT_TRUE(good(R"({"stop": true})", "17").cancels) << "no text is needed";
  EXPECT_FALSE(good(R"({"text_input": "a", "stop": false})").cancels);
  EXPECT_EQ(good(R"({"text_input": "a", "stop": "x"})").request.stop,
            std::vector<std::string>{"x"});
  EXPECT_EQ(good(R"({"text_input": "a", "stop": ["x", "y"]})").request.stop.size(), 2u);
  EXPECT_EQ(good(R"({"text_input": "a", "stop_words": "x"})").request.stop.size(), 1u);
  EXPECT_EQ(error(R"({"stop": true})"), "stop: needs the id of the requests to cancel");
}

TEST(InferRequest, names_that_mean_nothing_are_told_but_those_of_the_protocol_are_not) {
  const InferRequest asked = good(
      R"({"text_input": "a", "triton_enable_empty_final_response": true, "sequence_id": 1, "headers": "h",
          "binary_data_output": true, "foo": 1, "sampling_param_bar": [1, 2]})");
  EXPECT_EQ(asked.ignored, (std::vector<std::string>{"sampling_param_bar", "foo"}));
}

TEST(InferRequest, what_is_wrong_has_the_clients_name) {
  EXPECT_EQ(error("{}"), "text_input: expected a text, found none");
  EXPECT_EQ(error(R"({"text_input": 7})"), "text_input: expected a text, found 7");
  EXPECT_EQ(error(R"({"text_input": ""})"), "text_input: expected a prompt, found an empty one");
  EXPECT_EQ(error(R"({"text_input": ["a", "b"]})"),
            "text_input: expected one text, found a list of 2");
  EXPECT_EQ(error(R"({"text_input": []})"), "text_input: expected one text, found a list of 0");
  EXPECT_EQ(
      error(R"({"text_input": "a", "sampling_param_max_tokens": "7"})"),
      "sampling_param_max_tokens: expected an integer from 0 to 2147483647, found the text '7'");
  EXPECT_EQ(error(R"({"text_input": "a", "max_tokens": 2147483648})"),
            "max_tokens: expected an integer from 0 to 2147483647, found 2147483648");
  EXPECT_EQ(error(R"({"text_input": "a", "max_tokens": [1, 2]})"),
            "max_tokens: expected an integer from 0 to 2147483647, found an array");
  EXPECT_EQ(error(R"({"text_input": "a", "max_tokens": 1, "sampling_param_max_tokens": 1})"),
            "sampling_param_max_tokens: expected only one of 'max_tokens' and "
            "'sampling_param_max_tokens'");
  EXPECT_EQ(error(R"({"text_input": "a", "min_length": 1.5})"),
            "min_length: expected an integer from 0 to 2147483647, found 1.5");
  EXPECT_EQ(error(R"({"text_input": "a", "stop_words": [1]})"),
            "stop_words[0]: expected a text, found 1");
  EXPECT_EQ(error(R"({"text_input": "a", "streaming": 1})"),
            "streaming: expected true or false, found 1");
  EXPECT_EQ(error(R"({"text_input": "a", "lora_name": "x"})"),
            "lora_name: specd does not support this input; leave it out");
  EXPECT_EQ(error(R"({"text_input": "a", "draft_nodes_max": -1})"),
            "draft_nodes_max: expected an integer from 0 to 1024, found -1");
  EXPECT_EQ(error(R"({"text_input": "a", "timeout": -1})"),
            "timeout: expected an integer from 0 to 9007199254740992, found -1");
  EXPECT_EQ(error(R"({"text_input": "a"})", "a b"), "id: expected printable ASCII without spaces");
  EXPECT_EQ(error(R"({"text_input": "a"})", std::string(97, 'x')),
            "id: expected at most 96 bytes, found 97");
}

}  // namespace
}  // namespace specd::host
