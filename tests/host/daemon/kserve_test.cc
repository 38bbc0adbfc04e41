// Triton's gRPC protocol at a real daemon, as tritonclient and perf_analyzer speak it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/sanitizer.h"
#include "host/proto/kserve.grpc.pb.h"
#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/daemon/prometheus_text.h"
#include "tests/host/http/raw_http.h"

namespace specd::host {
namespace {

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr char kKserve[] =
    "kserve: {listen: '127.0.0.1:0', insecure: true, model_version: 7, metrics_listen: "
    "'127.0.0.1:0'}\n";

class Kserve : public testing::Test {
 protected:
  void start(const std::string& head = kKserve) {
    daemon_.write_config("", SPECD_PLUGINS, head);
    ASSERT_TRUE(daemon_.start()) << daemon_.output();
    const std::string front = " and ", text = daemon_.output();
    const size_t ready = text.find(" ready on unix:"), begin = text.find(front, ready);
    ASSERT_NE(begin, std::string::npos) << text;
    address_ = text.substr(begin + front.size(),
                           text.find(' ', begin + front.size()) - begin - front.size());
    stub_ = GRPCInferenceService::NewStub(channel());
  }
  std::shared_ptr<grpc::Channel> channel() const {
    return grpc::CreateChannel(address_, grpc::InsecureChannelCredentials());
  }

  static std::string raw_text(const std::string& text) {
    const auto length = static_cast<uint32_t>(text.size());
    std::string raw(4, '\0');
    std::memcpy(raw.data(), &length, 4);
    return raw + text;
  }
  static void add_raw(ModelInferRequest& request, const std::string& name, const std::string& type,
                      const std::string& raw) {
    auto& input = *request.add_inputs();
    input.set_name(name);
    input.set_datatype(type);
    input.add_shape(1);
    request.add_raw_input_contents(raw);
  }
  // As perf_analyzer sends it.
  static ModelInferRequest infer_request(int32_t max_tokens, const std::string& id) {
    ModelInferRequest request;
    request.set_model_name("pico");
    request.set_id(id);
    add_raw(request, "text_input", "BYTES", raw_text(kPrompt));
    std::string count(4, '\0');
    std::memcpy(count.data(), &max_tokens, 4);
    add_raw(request, "max_tokens", "INT32", count);
    add_raw(request, "exclude_input_in_output", "BOOL", std::string(1, '\1'));
    add_raw(request, "ignore_eos", "BOOL", std::string(1, '\1'));
    (*request.mutable_parameters())["triton_enable_empty_final_response"].set_bool_param(true);
    request.add_outputs()->set_name("text_output");
    request.add_outputs()->set_name("acceptance_rate");
    return request;
  }
  // The text of the one output, which is in bytes.
  static std::string text_of(const ModelInferResponse& response) {
    EXPECT_EQ(response.outputs_size(), response.raw_output_contents_size());
    if (response.outputs_size() == 0) return "";
    EXPECT_EQ(response.outputs(0).name(), "text_output");
    EXPECT_EQ(response.outputs(0).datatype(), "BYTES");
    EXPECT_FALSE(response.outputs(0).has_contents());
    const std::string& raw = response.raw_output_contents(0);
    EXPECT_GE(raw.size(), 4u);
    uint32_t length = 0;
    std::memcpy(&length, raw.data(), 4);
    EXPECT_EQ(raw.size(), 4 + length);
    return raw.substr(4);
  }
  std::string generated(int32_t max_tokens) {
    std::string text;
    const auto done = daemon_.client().generate(
        make_request("off", max_tokens),
        [&](const v1::GenerateResponse& response) { text += response.chunk().text(); });
    EXPECT_TRUE(done.ok()) << done.status().text();
    return text;
  }
  template <typename Call>
  grpc::Status call(Call&& one) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    return one(context);
  }
  grpc::Status infer(const ModelInferRequest& request, ModelInferResponse& response) {
    return call([&](auto& context) { return stub_->ModelInfer(&context, request, &response); });
  }
  int64_t running() {
    v1::GetStatusResponse response;
    grpc::ClientContext context;
    v1::Control::NewStub(daemon_.channel())->GetStatus(&context, {}, &response);
    return response.running() + response.waiting();
  }

  Daemon daemon_;
  std::string address_;
  std::unique_ptr<GRPCInferenceService::Stub> stub_;
};

TEST_F(Kserve, what_perf_analyzer_asks_for_before_it_begins_fits_together) {
  start();
  inference::ServerLiveResponse live;
  EXPECT_TRUE(call([&](auto& c) { return stub_->ServerLive(&c, {}, &live); }).ok());
  EXPECT_TRUE(live.live());
  inference::ServerReadyResponse ready;
  EXPECT_TRUE(call([&](auto& c) { return stub_->ServerReady(&c, {}, &ready); }).ok());
  EXPECT_TRUE(ready.ready());
  const auto model_ready = [&](const std::string& name, const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name(name);
    request.set_version(version);
    inference::ModelReadyResponse response;
    EXPECT_TRUE(call([&](auto& c) { return stub_->ModelReady(&c, request, &response); }).ok());
    return response.ready();
  };
  EXPECT_TRUE(model_ready("pico", "") && model_ready("pico", "7"));
  EXPECT_FALSE(model_ready("pico", "1") || model_ready("other", ""));

  inference::ModelMetadataRequest asked;
  asked.set_name("pico");
  inference::ModelMetadataResponse metadata;
  EXPECT_TRUE(call([&](auto& c) { return stub_->ModelMetadata(&c, asked, &metadata); }).ok());
  inference::ModelConfigRequest asked_config;
  asked_config.set_name("pico");
  inference::ModelConfigResponse config;
  EXPECT_TRUE(call([&](auto& c) { return stub_->ModelConfig(&c, asked_config, &config); }).ok());
  EXPECT_EQ(metadata.versions(0), "7");
  EXPECT_EQ(config.config().max_batch_size(), 0);
  EXPECT_TRUE(config.config().has_model_transaction_policy());
  ASSERT_EQ(metadata.inputs_size(), config.config().input_size());
  ASSERT_EQ(metadata.outputs_size(), config.config().output_size());
  std::map<std::string, bool> optional;
  for (int i = 0; i < metadata.inputs_size(); ++i) {
    const auto& input = config.config().input(i);
    EXPECT_EQ(metadata.inputs(i).name(), input.name());
    EXPECT_NE(input.data_type(), inference::TYPE_INVALID) << input.name();
    EXPECT_EQ(metadata.inputs(i).shape(0), input.dims(0)) << input.name();
    optional[input.name()] = input.optional();
  }
  // What genai-perf may send has to be declared.
  for (const char* name : {"max_tokens", "stream", "exclude_input_in_output", "min_length"})
    EXPECT_TRUE(optional.count(name) == 1 && optional[name]) << name;
  EXPECT_FALSE(optional.at("text_input"));

  inference::ServerMetadataResponse server;
  EXPECT_TRUE(call([&](auto& c) { return stub_->ServerMetadata(&c, {}, &server); }).ok());
  bool has_statistics = false;
  for (const std::string& each : server.extensions())
    has_statistics = has_statistics || each == "statistics";
  EXPECT_TRUE(has_statistics);
  inference::RepositoryIndexResponse index;
  EXPECT_TRUE(call([&](auto& c) { return stub_->RepositoryIndex(&c, {}, &index); }).ok());
  ASSERT_EQ(index.models_size(), 1);
  EXPECT_EQ(index.models(0).state(), "READY");

  const auto statistics = [&] {
    inference::ModelStatisticsRequest request;
    request.set_name("pico");
    inference::ModelStatisticsResponse response;
    EXPECT_TRUE(call([&](auto& c) { return stub_->ModelStatistics(&c, request, &response); }).ok());
    EXPECT_EQ(response.model_stats_size(), 1);
    return response.model_stats(0);
  };
  const auto before = statistics();
  ModelInferResponse response;
  EXPECT_TRUE(infer(infer_request(8, "1"), response).ok());
  EXPECT_TRUE(eventually([&] {
    const auto after = statistics();
    return after.inference_stats().success().count() ==
               before.inference_stats().success().count() + 1 &&
           after.inference_stats().queue().count() ==
               before.inference_stats().queue().count() + 1 &&
           after.inference_stats().compute_infer().ns() >
               before.inference_stats().compute_infer().ns() &&
           after.execution_count() > before.execution_count();
  }));
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, other_rpcs_are_not_implemented_and_control_is_not_there) {
  start();
  for (const char* method :
       {"/inference.GRPCInferenceService/RepositoryModelLoad",
        "/inference.GRPCInferenceService/RepositoryModelUnload",
        "/inference.GRPCInferenceService/SystemSharedMemoryRegister",
        "/inference.GRPCInferenceService/CudaSharedMemoryStatus",
        "/inference.GRPCInferenceService/TraceSetting",
        "/inference.GRPCInferenceService/LogSettings", "/specd.v1.Control/GetStatus",
        "/specd.v1.Control/Drain", "/specd.v1.Inference/Generate"}) {
    grpc::ByteBuffer unused;
    EXPECT_EQ(call_raw(channel(), method, "", unused).error_code(), grpc::StatusCode::UNIMPLEMENTED)
        << method;
  }
  grpc::ByteBuffer unused;
  EXPECT_EQ(call_raw(daemon_.channel(), "/inference.GRPCInferenceService/ServerLive", "", unused)
                .error_code(),
            grpc::StatusCode::UNIMPLEMENTED)
      << "nor is it on specd's own socket";
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, texts_are_those_of_generate_from_bytes_and_from_contents) {
  start("kserve: {listen: 'unix:k.sock'}\n");
  ASSERT_EQ(address_, "unix:" + (daemon_.folder() / "k.sock").string());
  const std::string text = generated(24);
  ModelInferResponse response;
  grpc::Status status = infer(infer_request(24, "a1"), response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text_of(response), text);
  EXPECT_EQ(response.id(), "a1");
  EXPECT_EQ(response.model_name(), "pico");
  EXPECT_EQ(response.model_version(), "1");
  EXPECT_EQ(response.outputs_size(), 1) << "what was asked for and is there";

  ModelInferRequest typed;
  typed.set_model_name("pico");
  const auto add = [&typed](const char* name, const char* type) {
    auto& input = *typed.add_inputs();
    input.set_name(name);
    input.set_datatype(type);
    input.add_shape(1);
    return input.mutable_contents();
  };
  add("text_input", "BYTES")->add_bytes_contents(kPrompt);
  add("max_tokens", "INT32")->add_int_contents(24);
  add("temperature", "FP32")->add_fp32_contents(0);
  add("seed", "UINT64")->add_uint64_contents(3);
  add("ignore_eos", "BOOL")->add_bool_contents(true);
  (*typed.mutable_parameters())["route"].set_string_param("off");
  (*typed.mutable_parameters())["sampling_param_return_perf_metrics"].set_bool_param(true);
  response.Clear();
  status = infer(typed, response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(text_of(response), kPrompt + text);
  std::map<std::string, std::string> outputs;
  for (int i = 0; i < response.outputs_size(); ++i)
    outputs[response.outputs(i).name()] = response.raw_output_contents(i).substr(4);
  EXPECT_EQ(outputs["total_draft_tokens"], "0");
  EXPECT_EQ(outputs["acceptance_rate"], "0.0");
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, requests_of_a_stream_run_at_once_and_one_that_fails_ends_no_other) {
  start();
  constexpr int kRequests = 12;
  std::map<std::string, std::string> expected, texts;
  std::map<std::string, int> finals, pieces;
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  for (int i = 0; i < kRequests; ++i) {
    const std::string id = std::to_string(i);
    expected[id] = generated(8 + i);
    ModelInferRequest request = infer_request(8 + i, id);
    if (i % 2 == 0) (*request.mutable_parameters())["stream"].set_bool_param(true);
    ASSERT_TRUE(stream->Write(request));
    ModelInferRequest wrong = infer_request(8, "wrong" + id);
    wrong.mutable_inputs(0)->set_datatype("INT32");
    ASSERT_TRUE(stream->Write(wrong));
  }
  stream->WritesDone();
  ModelStreamInferResponse response;
  int errors = 0;
  while (stream->Read(&response)) {
    const ModelInferResponse& one = response.infer_response();
    ASSERT_EQ(one.parameters().count("triton_final_response"), 1u);
    const bool is_final = one.parameters().at("triton_final_response").bool_param();
    EXPECT_EQ(finals[one.id()], 0) << "nothing comes after the last: " << one.id();
    finals[one.id()] += is_final ? 1 : 0;
    if (!response.error_message().empty()) {
      EXPECT_EQ(response.error_message(),
                "inference input 'text_input': expected data-type BYTES, found 'INT32'");
      EXPECT_TRUE(one.id().starts_with("wrong") && is_final);
      ++errors;
      continue;
    }
    texts[one.id()] += text_of(one);
    ++pieces[one.id()];
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(errors, kRequests);
  EXPECT_EQ(texts, expected);
  for (int i = 0; i < kRequests; ++i) {
    const std::string id = std::to_string(i);
    EXPECT_EQ(finals[id], 1);
    if (i % 2 == 0) {
      EXPECT_GT(pieces[id], 1);
    } else {
      EXPECT_EQ(pieces[id], 1);
    }
  }
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, tensors_that_contradict_themselves_are_refused_and_neighbours_go_on) {
  start();
  const std::string text = generated(16);
  std::vector<std::pair<std::string, ModelInferRequest>> wrong;
  const auto add = [&](const std::string& says, auto change) {
    ModelInferRequest request = infer_request(8, "x");
    change(request);
    wrong.emplace_back(says, std::move(request));
  };
  add("raw_input_contents: expected one for each of the 4 inputs, found 3",
      [](auto& r) { r.mutable_raw_input_contents()->RemoveLast(); });
  add("raw_input_contents: expected none beside contents, which input 'max_tokens' has",
      [](auto& r) { r.mutable_inputs(1)->mutable_contents()->add_int_contents(8); });
  add("inference input 'text_input': expected shape [1], found [2]",
      [](auto& r) { r.mutable_inputs(0)->set_shape(0, 2); });
  add("inference input 'text_input': expected shape [1], found [1,1]",
      [](auto& r) { r.mutable_inputs(0)->add_shape(1); });
  add("inference input 'text_input': expected shape [1], found [-9223372036854775808]",
      [](auto& r) { r.mutable_inputs(0)->set_shape(0, INT64_MIN); });
  add("inference input 'max_tokens': expected data-type INT32, found 'INT64'",
      [](auto& r) { r.mutable_inputs(1)->set_datatype("INT64"); });
  add("inference input 'max_tokens': expected 4 bytes for shape [1] of INT32, found 8",
      [](auto& r) { r.set_raw_input_contents(1, std::string(8, '\0')); });
  add("unexpected inference input 'tokens_max' for model 'pico'",
      [](auto& r) { r.mutable_inputs(1)->set_name("tokens_max"); });
  add("inputs: expected each input once, found 'max_tokens' again", [](auto& r) {
    r.mutable_inputs(2)->CopyFrom(r.inputs(1));
    r.set_raw_input_contents(2, r.raw_input_contents(1));
  });
  add("parameters: expected no value beside the input of the same name, found 'max_tokens'",
      [](auto& r) { (*r.mutable_parameters())["max_tokens"].set_int64_param(3); });
  add("inference input 'text_input': expected UTF-8, found another byte at byte 4",
      [](auto& r) { r.set_raw_input_contents(0, raw_text("\xff")); });
  add("inference input 'text_input': contents: expected 1 elements of BYTES, found 0",
      [](auto& r) { r.clear_raw_input_contents(); });
  add("unexpected inference output 'logits' for model 'pico'",
      [](auto& r) { r.add_outputs()->set_name("logits"); });
  add("stream: ModelInfer has one response; use ModelStreamInfer",
      [](auto& r) { (*r.mutable_parameters())["stream"].set_bool_param(true); });
  add("text_input: expected a text, found none", [](auto& r) {
    r.clear_inputs();
    r.clear_raw_input_contents();
  });
  add("id: expected printable ASCII without spaces", [](auto& r) { r.set_id("a b"); });
  std::thread neighbour([&] {
    for (int i = 0; i < 5; ++i) EXPECT_EQ(generated(16), text);
  });
  for (const auto& [says, request] : wrong) {
    ModelInferResponse response;
    const grpc::Status status = infer(request, response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << says;
    EXPECT_EQ(status.error_message(), says);
  }
  ModelInferRequest unknown = infer_request(8, "x");
  unknown.set_model_version("2");
  ModelInferResponse response;
  EXPECT_EQ(infer(unknown, response).error_code(), grpc::StatusCode::NOT_FOUND);
  neighbour.join();
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, a_client_that_leaves_or_reads_nothing_disturbs_nobody) {
  start();
  const std::string text = generated(16);
  // Reads nothing, and asks for more than its connection takes.
  grpc::ClientContext lazy;
  const auto stream = stub_->ModelStreamInfer(&lazy);
  for (int i = 0; i < 64; ++i) {
    ModelInferRequest request = infer_request(256, std::to_string(i));
    (*request.mutable_parameters())["stream"].set_bool_param(true);
    ASSERT_TRUE(stream->Write(request));
  }
  {
    grpc::ClientContext context;
    const auto leaving = stub_->ModelStreamInfer(&context);
    ModelInferRequest request = infer_request(1000, "leaving");
    (*request.mutable_parameters())["stream"].set_bool_param(true);
    ASSERT_TRUE(leaving->Write(request));
    ModelStreamInferResponse response;
    ASSERT_TRUE(leaving->Read(&response));
    context.TryCancel();
  }
  EXPECT_EQ(generated(16), text);
  lazy.TryCancel();
  EXPECT_TRUE(eventually([&] { return running() == 0; }));
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, messages_that_are_large_in_memory_are_refused_and_leave_nothing_there) {
  start();
  ModelInferResponse response;
  ASSERT_TRUE(infer(infer_request(4, "1"), response).ok());
  // 2 bytes each on the wire.
  ModelInferRequest many = infer_request(4, "many");
  for (int i = 0; i < 1'000'000; ++i) many.add_inputs();
  EXPECT_EQ(infer(many, response).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ModelInferRequest numbers;
  numbers.set_model_name("pico");
  auto& input = *numbers.add_inputs();
  input.set_name("max_tokens");
  input.set_datatype("INT32");
  input.add_shape(1);
  for (int i = 0; i < 1'000'000; ++i) input.mutable_contents()->add_int_contents(1);
  EXPECT_EQ(infer(numbers, response).error_message(),
            "inference input 'max_tokens': contents: expected 1 elements of INT32, found 1000000");
  // A stream that reads nothing, with ids that would be told again.
  const uint64_t before = resident_bytes(daemon_.pid());
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  for (int i = 0; i < 100; ++i) {
    ModelInferRequest request;
    request.set_model_name("pico");
    request.set_id(std::string(3 << 20, 'i'));
    ASSERT_TRUE(stream->Write(request));
  }
  ModelStreamInferResponse refused;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(stream->Read(&refused));
    EXPECT_EQ(refused.error_message(), "id: expected at most 96 bytes, found 3145728");
    EXPECT_EQ(refused.infer_response().id(), "");
  }
  if (!SPECD_HAS_SANITIZER) {  // it keeps freed memory
    EXPECT_LT(resident_bytes(daemon_.pid()), before + (uint64_t{64} << 20));
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, a_request_is_cancelled_by_its_id) {
  start();
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  ModelInferRequest request = infer_request(1000, "victim");
  (*request.mutable_parameters())["stream"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(request));
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  ModelInferRequest stop;
  stop.set_model_name("pico");
  stop.set_id("victim");
  add_raw(stop, "stop", "BOOL", std::string(1, '\1'));
  ASSERT_TRUE(stream->Write(stop));
  bool has_error = false, has_empty_end = false;
  for (int finals = 0; finals < 2 && stream->Read(&response);) {
    const ModelInferResponse& one = response.infer_response();
    if (one.parameters().at("triton_final_response").bool_param()) ++finals;
    has_error = has_error || !response.error_message().empty();
    has_empty_end = has_empty_end || (response.error_message().empty() && one.outputs_size() == 0);
  }
  EXPECT_TRUE(has_error && has_empty_end);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(Kserve, a_stop_lets_clients_read_the_end_of_their_texts) {
  start();
  const std::string text = generated(200);
  grpc::ClientContext context;
  const auto stream = stub_->ModelStreamInfer(&context);
  ModelInferRequest request = infer_request(200, "1");
  (*request.mutable_parameters())["stream"].set_bool_param(true);
  ASSERT_TRUE(stream->Write(request));
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream->Read(&response));
  std::string read = text_of(response.infer_response());
  kill(daemon_.pid(), SIGTERM);
  bool has_end = false;
  while (!has_end && stream->Read(&response)) {
    EXPECT_EQ(response.error_message(), "");
    read += text_of(response.infer_response());
    has_end = response.infer_response().parameters().at("triton_final_response").bool_param();
  }
  EXPECT_TRUE(has_end);
  EXPECT_EQ(read, text);
  EXPECT_EQ(daemon_.wait(), 0) << daemon_.output();
}

TEST_F(Kserve, metrics_have_tritons_names_and_values_without_blanks) {
  start();
  ModelInferResponse response;
  ASSERT_TRUE(infer(infer_request(8, "1"), response).ok());
  const std::string text = daemon_.output(), front = "Triton's metrics on http://";
  const size_t begin = text.find(front) + front.size();
  const std::string endpoint = text.substr(begin, text.find('/', begin) - begin);
  const auto page = [&] {
    RawClient client(endpoint);
    client.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    return http_body(client.read_all(std::chrono::seconds(10)));
  };
  EXPECT_TRUE(eventually([&] {
    return page().find("nv_inference_request_success{model=\"pico\",version=\"7\"} 1") !=
           std::string::npos;
  })) << page();
  std::istringstream lines(page());
  int n = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    ++n;
    // genai-perf splits every line at its blanks.
    EXPECT_EQ(std::count(line.begin(), line.end(), ' '), 1) << line;
  }
  EXPECT_GE(n, 12);
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

}  // namespace
}  // namespace specd::host
