// The real daemon on the small model, used through its socket as a client would.
#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "core/base/json.h"
#include "host/bench/measure.h"
#include "host/bench/server_backend.h"
#include "host/client.h"
#include "host/unix_socket.h"
#include "tests/host/daemon_rig.h"
#include "tests/host/prometheus_text.h"
#include "tests/host/raw_http.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// grpc.health.v1 by hand: its messages are one string and one enum.
std::string health(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  std::string body;
  if (!service.empty()) body = std::string("\x0a") + static_cast<char>(service.size()) + service;
  const grpc::Slice slice(body);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  const auto call =
      stub.PrepareUnaryCall(&context, "/grpc.health.v1.Health/Check", request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return "error " + std::to_string(status.error_code());
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return "no body";
  std::string bytes;
  for (const grpc::Slice& part : slices)
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes == "\x08\x01" ? "SERVING" : bytes == "\x08\x02" ? "NOT_SERVING" : "other";
}

TEST_F(DaemonTest, text_and_its_ids_give_the_same_continuation) {
  Client client = daemon_->client();
  v1::GenerateRequest request = make_request("off", 24);
  request.set_request_id("my-id");
  request.set_return_prompt_token_ids(true);
  std::vector<std::string> kinds;
  const auto by_text = client.generate(request, [&](const v1::GenerateResponse& message) {
    kinds.emplace_back(message.has_started() ? "started"
                       : message.has_chunk() ? "chunk"
                                             : "finished");
  });
  ASSERT_TRUE(by_text.ok()) << by_text.status().message();
  const Generation& first = by_text.value();
  ASSERT_GE(kinds.size(), 3U);
  EXPECT_EQ(kinds.front(), "started");
  EXPECT_EQ(kinds.back(), "finished");
  EXPECT_EQ(first.started.request_id(), "my-id");
  EXPECT_EQ(first.finished.request_id(), "my-id");
  EXPECT_EQ(first.started.route(), "off");
  EXPECT_EQ(first.token_ids.size(), 24U);
  EXPECT_FALSE(first.text.empty());
  EXPECT_EQ(first.finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(first.finished.usage().completion_tokens(), 24);
  EXPECT_EQ(first.finished.usage().prompt_tokens(), first.started.prompt_token_ids_size());
  EXPECT_EQ(first.finished.speculation().total_draft_tokens(), 0);
  EXPECT_GT(first.finished.times().decode_ms(), 0);

  request.clear_text();
  request.clear_request_id();
  *request.mutable_token_ids()->mutable_ids() = first.started.prompt_token_ids();
  const auto by_ids = client.generate(request, {});
  ASSERT_TRUE(by_ids.ok()) << by_ids.status().message();
  EXPECT_EQ(by_ids.value().token_ids, first.token_ids);
  EXPECT_EQ(by_ids.value().text, first.text);
  EXPECT_FALSE(by_ids.value().started.request_id().empty());
}

TEST_F(DaemonTest, routes_give_identical_ids_greedy_and_sampled) {
  Client client = daemon_->client();
  for (const float temperature : {0.0F, 0.8F}) {
    const auto plain = client.generate(make_request("off", 48, temperature), {});
    const auto drafted = client.generate(make_request("", 48, temperature), {});
    ASSERT_TRUE(plain.ok() && drafted.ok());
    EXPECT_EQ(drafted.value().started.route(), "lookup");
    EXPECT_EQ(plain.value().token_ids, drafted.value().token_ids);
    const v1::Speculation& s = drafted.value().finished.speculation();
    EXPECT_EQ(s.total_draft_tokens(), s.total_accepted_draft_tokens() +
                                          s.total_rejected_draft_tokens() +
                                          s.total_discarded_draft_tokens());
    if (s.total_draft_tokens() > 0) {
      EXPECT_DOUBLE_EQ(s.acceptance_rate(), static_cast<double>(s.total_accepted_draft_tokens()) /
                                                static_cast<double>(s.total_draft_tokens()));
    }
  }
  const auto greedy = client.generate(make_request("lookup", 48), {});
  ASSERT_TRUE(greedy.ok());
  EXPECT_GT(greedy.value().finished.speculation().total_accepted_draft_tokens(), 0);
}

TEST_F(DaemonTest, client_that_hangs_up_cancels_its_request) {
  Client client = daemon_->client();
  const uint64_t before = client.status().value().cancelled();
  {
    const auto stub = v1::Inference::NewStub(daemon_->channel());
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, make_request("lookup", 1500, 0.9F));
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    ASSERT_TRUE(reader->Read(&message));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_TRUE(eventually([&] { return client.status().value().cancelled() == before + 1; }));
}

TEST_F(DaemonTest, cancel_ends_a_request_by_its_id) {
  Client client = daemon_->client();
  EXPECT_FALSE(client.cancel("nobody").value().found());
  v1::GenerateRequest request = make_request("off", 1500);
  request.set_request_id("to-be-cancelled");
  const auto generation = client.generate(request, [&](const v1::GenerateResponse& message) {
    if (message.has_started()) {
      EXPECT_TRUE(client.cancel("to-be-cancelled").value().found());
    }
  });
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.status().code(), Code::kCancelled);
}

TEST_F(DaemonTest, deadlines_end_a_request_whoever_sets_them) {
  Client client = daemon_->client();
  const uint64_t before = client.status().value().deadline_misses();
  v1::GenerateRequest request = make_request("off", 1500);
  request.set_deadline_ms(50);
  const auto generation = client.generate(request, {});
  ASSERT_FALSE(generation.ok());
  EXPECT_EQ(generation.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(generation.status().message().find("deadline_ms"), std::string::npos);
  EXPECT_EQ(client.status().value().deadline_misses(), before + 1);
  // The call's own: the engine heeds it, or gRPC's hanging up cancels.
  request.clear_deadline_ms();
  auto inference = v1::Inference::NewStub(daemon_->channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  const auto stream = inference->Generate(&context, request);
  for (v1::GenerateResponse message; stream->Read(&message);) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
}

TEST_F(DaemonTest, usage_tells_what_the_prefix_cache_had_and_salts_keep_apart) {
  Client client = daemon_->client();
  v1::GenerateRequest request = make_request("off", 8);
  for (int i = 0; i < 40; ++i) request.mutable_token_ids()->add_ids(300 + i * 3);
  request.set_cache_salt("one");
  const auto first = client.generate(request, {});
  const auto second = client.generate(request, {});
  request.set_cache_salt("two");
  const auto other = client.generate(request, {});
  ASSERT_TRUE(first.ok() && second.ok() && other.ok());
  EXPECT_EQ(first.value().finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(second.value().finished.usage().cached_prompt_tokens(), 32);
  EXPECT_EQ(other.value().finished.usage().cached_prompt_tokens(), 0);
  EXPECT_EQ(second.value().token_ids, first.value().token_ids);
  EXPECT_GE(client.models().value().models(0).prefix_hit_tokens(), 32U);
}

TEST_F(DaemonTest, many_streams_at_once_all_complete_with_the_same_text) {
  constexpr int kStreams = 72;
  const auto expected = daemon_->client().generate(make_request("off", 8), {});
  ASSERT_TRUE(expected.ok());
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kStreams; ++i)
    threads.emplace_back([&, i] {
      Client client = daemon_->client();
      const auto got = client.generate(make_request(i % 2 == 0 ? "off" : "lookup", 8), {});
      if (got.ok() && got.value().token_ids == expected.value().token_ids) ++same;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(same, kStreams);
}

TEST_F(DaemonTest, stop_strings_and_ids_end_the_text) {
  Client client = daemon_->client();
  const auto plain = client.generate(make_request("off", 40), {});
  ASSERT_TRUE(plain.ok());
  const std::vector<int32_t>& ids = plain.value().token_ids;
  v1::GenerateRequest by_id = make_request("lookup", 40);
  by_id.add_stop_token_ids(ids[5]);
  const auto stopped = client.generate(by_id, {});
  ASSERT_TRUE(stopped.ok());
  EXPECT_EQ(stopped.value().finished.finish_reason(), v1::FINISH_REASON_STOP);
  const auto first = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[5]) - ids.begin());
  EXPECT_EQ(
      stopped.value().token_ids,
      std::vector<int32_t>(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(first) + 1));

  const std::string& text = plain.value().text;
  ASSERT_GT(text.size(), 12U);
  const std::string stop = text.substr(8, 3);
  v1::GenerateRequest by_text = make_request("lookup", 40);
  by_text.add_stop(stop);
  const auto cut = client.generate(by_text, {});
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut.value().finished.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(cut.value().text, text.substr(0, text.find(stop)));
}

TEST_F(DaemonTest, control_calls_report_what_is_there) {
  Client client = daemon_->client();
  const auto plugins = client.plugins();
  ASSERT_TRUE(plugins.ok());
  int loaded = 0;
  for (const v1::Plugin& plugin : plugins.value().plugins())
    if (plugin.id() == "specd.drafter.prompt_lookup" || plugin.id() == "specd.verifier.match") {
      EXPECT_EQ(plugin.state(), "loaded") << plugin.reason();
      EXPECT_EQ(plugin.sha256().size(), 64U);
      EXPECT_EQ(plugin.factories_size(), 1);
      ++loaded;
    }
  EXPECT_EQ(loaded, 2);
  const auto routes = client.routes();
  ASSERT_TRUE(routes.ok());
  bool has_off = false, has_lookup = false;
  for (const v1::Route& route : routes.value().routes()) {
    has_off = has_off || route.name() == "off";
    if (route.name() != "lookup") continue;
    has_lookup = true;
    EXPECT_TRUE(route.is_default());
    EXPECT_EQ(route.guarantee(), "identical");
  }
  EXPECT_TRUE(has_off && has_lookup);
  const auto models = client.models();
  ASSERT_TRUE(models.ok());
  ASSERT_EQ(models.value().models_size(), 1);
  EXPECT_EQ(models.value().models(0).name(), "pico");
  EXPECT_EQ(models.value().models(0).vocab_size(), 4096);
  EXPECT_EQ(models.value().models(0).parameters(), 14162304U);
  EXPECT_EQ(models.value().models(0).eos_tokens_size(), 1);
  EXPECT_EQ(models.value().models(0).default_sampling().temperature(), 0);
  const auto status = client.status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(status.value().state(), "ready");
  EXPECT_EQ(status.value().pid(), daemon_->pid());
  EXPECT_EQ(status.value().threads(), 2);
  EXPECT_GT(status.value().memory_size(), 0);
}

TEST_F(DaemonTest, a_route_tells_what_its_drafter_holds) {
  Client client = daemon_->client();
  const auto lookup = [&] {
    const auto routes = client.routes();
    for (const v1::Route& route : routes.value().routes()) {
      if (route.name() == "lookup") return route;
    }
    return v1::Route();
  };
  const auto stub = v1::Inference::NewStub(daemon_->channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("lookup", 1500, 0.9F));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_TRUE(reader->Read(&message));
  v1::Route route;
  EXPECT_TRUE(eventually([&] { return (route = lookup()).memory_bytes() > 0; }));
  EXPECT_LE(route.memory_bytes(), route.memory_bytes_max());
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(eventually([&] { return lookup().memory_bytes() == 0; }));
}

TEST_F(DaemonTest, health_says_serving) {
  EXPECT_EQ(health(daemon_->channel(), ""), "SERVING");
  EXPECT_EQ(health(daemon_->channel(), "specd.v1.Inference"), "SERVING");
  EXPECT_EQ(health(daemon_->channel(), "nothing"),
            "error " + std::to_string(grpc::StatusCode::NOT_FOUND));
}

TEST_F(DaemonTest, socket_belongs_to_its_owner_alone) {
  struct stat info {};
  ASSERT_EQ(stat(daemon_->socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(DaemonTest, second_instance_is_refused_naming_the_first) {
  const pid_t other = fork();
  if (other == 0) {
    const int log = open((daemon_->folder() / "second").c_str(), O_WRONLY | O_CREAT, 0600);
    dup2(log, STDERR_FILENO);
    execl(SPECD_BINARY, "specd", "serve", "--config", (daemon_->folder() / "c.yaml").c_str(),
          nullptr);
    _exit(127);
  }
  int status = 0;
  waitpid(other, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  EXPECT_NE(
      read_file(daemon_->folder() / "second").find("process " + std::to_string(daemon_->pid())),
      std::string::npos);
  EXPECT_TRUE(daemon_->client().status().ok());
}

TEST_F(DaemonTest, compare_and_record_tell_the_routes_apart) {
  Client client = daemon_->client();
  ServerBackend backend(client);
  const std::atomic<bool> go = false;
  MeasureOptions options;
  options.routes = {"off", "lookup"};
  options.temperatures = {0, 0.8F};
  options.max_tokens = 16;
  const std::vector<Prompt> prompts = {{"a", kPrompt, std::nullopt, 0},
                                       {"b", "import os\n", std::nullopt, 0}};
  const Measurement measured = measure(backend, prompts, options, go, {});
  ASSERT_TRUE(measured.status.ok()) << measured.status.message();
  const std::vector<Row> rows = summarize(measured, false);
  ASSERT_EQ(rows.size(), 4U);
  for (const Row& row : rows) {
    EXPECT_TRUE(row.identical) << row.first_difference;
    EXPECT_EQ(row.requests, 2);
    EXPECT_GT(row.decode_tokens_per_s, 0);
    EXPECT_GT(row.ttft_ms.p50, 0);
    EXPECT_GE(row.tau, 1);
    if (row.route == "off" || row.accepted == 0) continue;
    double places = 0;  // the sum over places is what a draft gains
    for (const double share : row.accepted_at) places += share;
    EXPECT_GT(places, 0);
    EXPECT_LE(places, static_cast<double>(row.accepted));
  }
  const auto text = record(backend, {prompts[0]}, options, go);
  ASSERT_TRUE(text.ok()) << text.status().message();
  const auto json = parse_json(text.value(), "record");
  ASSERT_TRUE(json.ok());
  ASSERT_EQ(json.value()["sequences"].size(), 2U);
  EXPECT_EQ(json.value()["sequences"][1]["seed"], 1);
  EXPECT_EQ(json.value()["sequences"][0]["output"].size(), 16U);
  EXPECT_GT(json.value()["sequences"][0]["prompt"].size(), 16U);

  const std::atomic<bool> stop = true;
  Request long_one;
  long_one.prompt = kPrompt;
  long_one.max_tokens = 1500;
  long_one.ignore_eos = true;
  const auto stopped = backend.run(long_one, false, stop);
  ASSERT_FALSE(stopped.ok());
  EXPECT_EQ(stopped.status().code(), Code::kCancelled) << stopped.status().to_string();
}

// ---- tests with a daemon of their own ----------------------------------------------------------

TEST(DaemonLife, socket_left_by_a_killed_daemon_is_taken_over) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  daemon.stop(SIGKILL);
  ASSERT_TRUE(fs::exists(daemon.socket()));
  fs::remove(daemon.folder() / "log");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_FALSE(fs::exists(daemon.socket()));
}

TEST(DaemonLife, sigterm_lets_a_running_stream_finish) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "drain_seconds: 600\n");  // slow under a sanitizer
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto channel = daemon.channel();
  const auto stub = v1::Inference::NewStub(channel);
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 900, 0.9F));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return health(channel, "") == "NOT_SERVING"; }));
  {
    grpc::ClientContext late;
    const auto refused = stub->Generate(&late, make_request("off", 4));
    v1::GenerateResponse nothing;
    EXPECT_FALSE(refused->Read(&nothing));
    EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  bool has_end = false;
  while (reader->Read(&message)) has_end = has_end || message.has_finished();
  EXPECT_TRUE(has_end);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(daemon.wait(), 0) << daemon.output();
  EXPECT_FALSE(fs::exists(daemon.socket()));
}

TEST(DaemonLife, drain_limit_cuts_with_a_reason) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "drain_seconds: 0\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 1900, 0.9F));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_NE(status.error_message().find("drain limit"), std::string::npos);
  EXPECT_EQ(daemon.wait(), 4) << daemon.output();
}

TEST(DaemonLife, second_signal_stops_at_once) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 1900, 0.9F));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  ASSERT_TRUE(eventually([&] { return daemon.output().find("draining") != std::string::npos; }));
  ASSERT_EQ(kill(daemon.pid(), SIGINT), 0);
  while (reader->Read(&message)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(daemon.wait(), 4) << daemon.output();
}

TEST(DaemonLife, plugin_that_hangs_does_not_keep_the_daemon) {
  Daemon daemon;
  daemon.write_config(
      "  hang:\n    drafter: {plugin: specd.test.drafter_hang}\n"
      "    verifier: {plugin: specd.verifier.match}\n",
      std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS, "drain_seconds: 0\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("hang", 16));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message)) << reader->Finish().error_message();
  ASSERT_TRUE(reader->Read(&message));  // prefill's token; the next step proposes
  ASSERT_TRUE(eventually([&] {
    return daemon.output().find("from here on it hangs") != std::string::npos;
  })) << daemon.output();
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  EXPECT_NE(daemon.output().find("does a plugin hang?"), std::string::npos) << daemon.output();
  EXPECT_FALSE(fs::exists(daemon.socket()));
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

// "127.0.0.1:PORT" that the daemon chose, as it logs it.
std::string metrics_endpoint(const Daemon& daemon) {
  const std::string front = "metrics on http://";
  const std::string output = daemon.output();
  const size_t begin = output.find(front);
  if (begin == std::string::npos) return "";
  const size_t end = output.find("/metrics", begin + front.size());
  return output.substr(begin + front.size(), end - begin - front.size());
}

TEST(DaemonLife, plugin_that_hangs_outside_of_steps_does_not_keep_the_daemon) {
  const auto apply = [](const std::shared_ptr<grpc::Channel>& channel, const std::string& call) {
    v1::ApplyRouteRequest request;
    request.set_definition("{name: hang, drafter: {plugin: specd.test.drafter_hang, config: {in: " +
                           call + "}}, verifier: {plugin: specd.verifier.match}}");
    grpc::ClientContext context;
    v1::ApplyRouteResponse response;
    return v1::Control::NewStub(channel)->ApplyRoute(&context, request, &response).ok();
  };
  std::vector<std::jthread> operators;  // joined when the daemons are gone
  // All at once: each takes the whole limit, but the one that is told to hurry.
  std::map<std::string, Daemon> daemons;
  for (const char* call : {"create", "activate", "deactivate", "destroy", "exit"}) {
    daemons[call].write_config("", std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS,
                               "drain_seconds: 0\n");
    daemons[call].spawn();
  }
  for (auto& [call, daemon] : daemons) {
    ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
    if (call != "create" && call != "activate") {
      EXPECT_TRUE(apply(daemon.channel(), call)) << call;
      continue;
    }
    operators.emplace_back([apply, channel = daemon.channel(), call = call] {
      EXPECT_FALSE(apply(channel, call)) << call;
    });
    ASSERT_TRUE(eventually([&] {
      return daemon.output().find("from here on it hangs") != std::string::npos;
    })) << call
        << daemon.output();
    // Requests on other routes do not notice.
    const auto reply = daemon.client().generate(make_request("lookup", 8), {});
    EXPECT_TRUE(reply.ok()) << call << reply.status().to_string();
  }
  const auto start = std::chrono::steady_clock::now();
  for (auto& [call, daemon] : daemons) kill(daemon.pid(), SIGTERM);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(milliseconds(500));
    kill(daemons["activate"].pid(), SIGTERM);
  }
  EXPECT_EQ(daemons["activate"].wait(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
  for (auto& [call, daemon] : daemons) {
    EXPECT_TRUE(eventually([&] { return !fs::exists(daemon.socket()); })) << call;
    if (call == "activate") continue;
    EXPECT_EQ(daemon.wait(), 4) << call << daemon.output();
    EXPECT_NE(daemon.output().find("does a plugin hang?"), std::string::npos) << call;
  }
}

TEST(DaemonLife, metrics_equal_what_the_streams_reported) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: 127.0.0.1:0}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = metrics_endpoint(daemon);
  ASSERT_NE(endpoint, "") << daemon.output();
  EXPECT_EQ(http_get(endpoint, "/health/live").substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n");
  EXPECT_EQ(http_get(endpoint, "/").substr(0, 12), "HTTP/1.1 404");

  Client client = daemon.client();
  double prompt_tokens = 0, tokens = 0, drafted = 0, accepted = 0;
  for (const char* route : {"lookup", "off", "lookup"}) {
    const auto finished = client.generate(make_request(route, 32), {});
    ASSERT_TRUE(finished.ok()) << finished.status().message();
    const v1::Finished& end = finished.value().finished;
    prompt_tokens += end.usage().prompt_tokens();
    tokens += end.usage().completion_tokens();
    drafted += static_cast<double>(end.speculation().total_draft_tokens());
    accepted += static_cast<double>(end.speculation().total_accepted_draft_tokens());
  }
  ASSERT_TRUE(eventually([&] {
    const auto status = client.status();
    return status.ok() && status.value().running() == 0;
  }));
  const std::string answer = http_get(endpoint, "/metrics");
  EXPECT_NE(answer.find("Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
            std::string::npos)
      << answer;
  const PrometheusText metrics(http_body(answer));
  ASSERT_EQ(metrics.error(), "") << answer;
  EXPECT_EQ(metrics.value("specd_requests_total", {{"model", "pico"}, {"outcome", "length"}}), 3);
  EXPECT_EQ(metrics.sum("specd_requests_total"), 3);
  EXPECT_EQ(metrics.sum("specd_prompt_tokens_total"), prompt_tokens);
  EXPECT_EQ(metrics.sum("specd_generation_tokens_total"), tokens);
  EXPECT_EQ(tokens, 96);
  EXPECT_GT(accepted, 0);
  const PrometheusText::Labels route{
      {"model", "pico"}, {"route", "lookup"}, {"plugin", "specd.drafter.prompt_lookup"}};
  EXPECT_EQ(metrics.value("specd_spec_decode_num_draft_tokens_total", route), drafted);
  EXPECT_EQ(metrics.value("specd_spec_decode_num_accepted_tokens_total", route), accepted);
  EXPECT_EQ(metrics.sum("specd_spec_decode_num_accepted_tokens_per_pos_total"), accepted);
  EXPECT_EQ(metrics.sum("specd_time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(metrics.sum("specd_inter_token_latency_seconds_count"), tokens - 3);
  // The names that benchmarks made for vLLM read.
  EXPECT_EQ(metrics.sum("vllm:spec_decode_num_accepted_tokens_total", {{"model_name", "pico"}}),
            accepted);
  EXPECT_EQ(metrics.sum("vllm:spec_decode_num_accepted_tokens_per_pos_total"), accepted);
  EXPECT_EQ(metrics.sum("vllm:generation_tokens_total"), tokens);
  EXPECT_EQ(metrics.sum("vllm:time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(metrics.sum("specd_drain_state"), 0);
  EXPECT_EQ(metrics.sum("specd_build_info"), 1);
  const auto status = client.status();
  ASSERT_TRUE(status.ok());
  EXPECT_EQ(metrics.sum("specd_steps_total"), static_cast<double>(status.value().steps()));
  EXPECT_EQ(metrics.sum("specd_step_seconds_count"), static_cast<double>(status.value().steps()));

  // Open connections, idle and halfway, do not keep the daemon.
  RawClient idle(endpoint), half(endpoint);
  ASSERT_TRUE(half.send("GET /metrics HTTP/1.1\r\n"));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  EXPECT_FALSE(RawClient(endpoint).connected());
}

TEST(DaemonLife, readiness_ends_before_the_listener_does) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "drain_seconds: 300\nhttp: {listen: 127.0.0.1:0}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = metrics_endpoint(daemon);
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 1900));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_TRUE(reader->Read(&message));  // its first token: it runs
  EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n");
  ASSERT_EQ(kill(daemon.pid(), SIGTERM), 0);
  ASSERT_TRUE(eventually([&] { return daemon.output().find("draining") != std::string::npos; }));
  std::string answer;
  EXPECT_TRUE(eventually([&] {
    answer = http_get(endpoint, "/health/ready");
    return answer.substr(0, 12) == "HTTP/1.1 503";
  })) << answer;
  EXPECT_EQ(http_body(answer), "draining\n");
  EXPECT_EQ(http_get(endpoint, "/health/live").substr(0, 12), "HTTP/1.1 200");
  const PrometheusText metrics(http_body(http_get(endpoint, "/metrics")));
  EXPECT_EQ(metrics.error(), "");
  EXPECT_EQ(metrics.sum("specd_drain_state"), 1);
  EXPECT_EQ(metrics.sum("specd_requests_running"), 1);
  context.TryCancel();
  while (reader->Read(&message)) {
  }
  (void)reader->Finish();
  EXPECT_EQ(daemon.wait(), 0) << daemon.output();
}

TEST(DaemonLife, a_step_that_hangs_fails_liveness_and_nothing_else) {
  Daemon daemon;
  daemon.write_config(
      "  hang:\n    drafter: {plugin: specd.test.drafter_hang}\n"
      "    verifier: {plugin: specd.verifier.match}\n",
      std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS,
      "drain_seconds: 0\nhttp: {listen: 127.0.0.1:0, stall_seconds: 1}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = metrics_endpoint(daemon);
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("hang", 16));
  v1::GenerateResponse message;
  ASSERT_TRUE(reader->Read(&message)) << reader->Finish().error_message();
  std::string answer;
  EXPECT_TRUE(eventually([&] {
    answer = http_get(endpoint, "/health/live");
    return answer.substr(0, 12) == "HTTP/1.1 503";
  })) << answer;
  EXPECT_NE(answer.find("http.stall_seconds is 1"), std::string::npos) << answer;
  EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n");
  const PrometheusText metrics(http_body(http_get(endpoint, "/metrics")));
  EXPECT_EQ(metrics.error(), "");
  EXPECT_GE(metrics.sum("specd_step_age_seconds"), 1);
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(DaemonLife, a_metrics_port_that_is_taken_is_told_with_its_place_before_loading) {
  Daemon first, second;
  first.write_config("", SPECD_PLUGINS, "http: {listen: 127.0.0.1:0}\n");
  ASSERT_TRUE(first.start()) << first.output();
  second.write_config("", SPECD_PLUGINS, "http: {listen: '" + metrics_endpoint(first) + "'}\n");
  second.spawn();
  EXPECT_EQ(second.wait(), 1);
  EXPECT_NE(second.output().find("c.yaml:2:8: http.listen: cannot listen on 127.0.0.1 port"),
            std::string::npos)
      << second.output();
  EXPECT_EQ(second.output().find("loading"), std::string::npos) << second.output();
  EXPECT_EQ(first.stop(), 0);
}

TEST(DaemonLife, broken_plugins_are_listed_with_the_reason_and_the_daemon_goes_on) {
  Daemon daemon;
  const fs::path broken = daemon.folder() / "more";
  fs::create_directories(broken / "no_json");
  std::ofstream(broken / "no_json" / "plugin.json") << "{ not json";
  // A good bundle whose library was changed after it was hashed.
  fs::copy(fs::path(SPECD_PLUGINS) / "drafter_replay", broken / "changed");
  std::string manifest = read_file(broken / "changed" / "plugin.json");
  const std::string id = "specd.drafter.replay";
  manifest.replace(manifest.find(id), id.size(), "org.example.changed_");
  std::ofstream(broken / "changed" / "plugin.json") << manifest;
  std::ofstream(broken / "changed" / "drafter_replay.so", std::ios::app) << "x";
  daemon.write_config(
      "  changed:\n    drafter: {plugin: org.example.changed_, config: {file: x}}\n"
      "    verifier: {plugin: specd.verifier.match}\n"
      "  absent:\n    drafter: {plugin: org.example.absent}\n"
      "    verifier: {plugin: specd.verifier.match}\n",
      std::string(SPECD_PLUGINS) + ", more");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto plugins = client.plugins();
  ASSERT_TRUE(plugins.ok());
  int refused = 0;
  for (const v1::Plugin& plugin : plugins.value().plugins()) {
    if (plugin.directory().find("/more/") == std::string::npos) continue;
    EXPECT_EQ(plugin.state(), "refused") << plugin.id();
    EXPECT_FALSE(plugin.reason().empty()) << plugin.id();
    ++refused;
  }
  EXPECT_EQ(refused, 2);
  for (const char* route : {"changed", "absent"}) {
    const auto result = client.generate(make_request(route, 4), {});
    ASSERT_FALSE(result.ok()) << route;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_NE(result.status().message().find(route), std::string::npos);
    EXPECT_EQ(result.status().message().find('/'), std::string::npos) << result.status().message();
  }
  EXPECT_TRUE(client.generate(make_request("lookup", 4), {}).ok());
  EXPECT_EQ(daemon.stop(), 0);
}

// Runs a program; the exit code and what it printed.
std::pair<int, std::string> run_command(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  for (char buffer[512]; std::fgets(buffer, sizeof(buffer), pipe) != nullptr;) text += buffer;
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, text};
}

std::pair<int, std::string> run_specd(const std::string& arguments) {
  return run_command(std::string(SPECD_BINARY) + " " + arguments);
}
std::pair<int, std::string> run_specctl(const Daemon& daemon, const std::string& arguments) {
  return run_command((fs::path(SPECD_BINARY).parent_path() / "specctl").string() + " --socket " +
                     daemon.socket() + " " + arguments);
}

// ---- routes that change while the daemon runs --------------------------------------------------

v1::ApplyRouteRequest lookup_route(const std::string& name, int tokens,
                                   const std::string& request_id = "") {
  v1::ApplyRouteRequest request;
  request.set_definition("name: " + name +
                         "\ndrafter:\n  plugin: specd.drafter.prompt_lookup\n"
                         "  config: {num_speculative_tokens: " +
                         std::to_string(tokens) + "}\nverifier: {plugin: specd.verifier.match}\n");
  request.set_source("x.yaml");
  request.set_request_id(request_id);
  return request;
}

std::vector<v1::Route> routes_named(Client& client, const std::string& name) {
  std::vector<v1::Route> found;
  const auto routes = client.routes();
  EXPECT_TRUE(routes.ok());
  for (const v1::Route& route : routes.value().routes())
    if (route.name() == name) found.push_back(route);
  return found;
}

TEST(LiveRoutes, are_applied_replaced_and_deleted_under_a_running_stream) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto plain = client.generate(make_request("off", 1500, 0.8F), {});
  ASSERT_TRUE(plain.ok());
  const auto first = client.apply_route(lookup_route("live", 3));
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first.value().name(), "live");
  EXPECT_EQ(first.value().generation(), 2U);
  EXPECT_FALSE(first.value().unchanged());

  std::atomic<bool> begun{false};
  Result<Generation> running = Status(Code::kInternal, "not run");
  std::thread stream([&] {
    Client own = daemon.client();
    running = own.generate(make_request("live", 1500, 0.8F),
                           [&](const v1::GenerateResponse&) { begun = true; });
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const auto second = client.apply_route(lookup_route("live", 5));
  ASSERT_TRUE(second.ok()) << second.status().message();
  EXPECT_EQ(second.value().generation(), 3U);
  const auto generations = routes_named(client, "live");
  ASSERT_EQ(generations.size(), 2U);
  EXPECT_EQ(generations[0].state(), "live");
  EXPECT_EQ(generations[0].generation(), 3U);
  EXPECT_EQ(generations[0].drafter_sha256().size(), 64U);
  EXPECT_EQ(generations[1].state(), "draining");
  EXPECT_EQ(generations[1].in_use(), 1);
  const auto fresh = client.generate(make_request("live", 64, 0.8F), {});
  ASSERT_TRUE(fresh.ok()) << fresh.status().message();
  EXPECT_TRUE(std::equal(fresh.value().token_ids.begin(), fresh.value().token_ids.end(),
                         plain.value().token_ids.begin()));
  v1::DeleteRouteRequest remove;
  remove.set_name("live");
  ASSERT_TRUE(client.delete_route(remove).ok());
  EXPECT_EQ(client.generate(make_request("live", 4), {}).status().code(), Code::kInvalidArgument);
  stream.join();
  ASSERT_TRUE(running.ok()) << running.status().message();
  EXPECT_EQ(running.value().token_ids, plain.value().token_ids);
  EXPECT_TRUE(eventually([&] { return routes_named(client, "live").empty(); }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST_F(DaemonTest, a_change_of_routes_that_is_wrong_is_refused_in_words_and_changes_nothing) {
  Client client = daemon_->client();
  const auto before = client.routes();
  ASSERT_TRUE(before.ok());
  const auto refused = [&](const std::string& definition, Code code, const std::string& starts) {
    v1::ApplyRouteRequest request;
    request.set_definition(definition);
    request.set_source("a.yaml");
    const auto applied = client.apply_route(request);
    ASSERT_FALSE(applied.ok()) << definition;
    EXPECT_EQ(applied.status().code(), code) << applied.status().message();
    EXPECT_EQ(applied.status().message().substr(0, starts.size()), starts);
  };
  const std::string verifier = "verifier: {plugin: specd.verifier.match}\n";
  refused("", Code::kInvalidArgument, "a.yaml:1:1: ");
  refused("\xff\xfe{", Code::kInvalidArgument, "a.yaml:1:1: ");
  refused(std::string(3 << 20, '['), Code::kInvalidArgument, "a.yaml:1:1: ");
  refused("name: off\n", Code::kInvalidArgument, "a.yaml:1:7: name: 'off' is reserved");
  refused("name: x\ndrafter: {plugin: specd.drafter.prompt_lokup}\n" + verifier, Code::kNotFound,
          "a.yaml:2:11: drafter.plugin: plugin 'specd.drafter.prompt_lokup' is not there; did you "
          "mean 'specd.drafter.prompt_lookup'?");
  refused("name: x\ndrafter:\n  plugin: specd.drafter.prompt_lookup\n  config: {max_ngam: 1}\n" +
              verifier,
          Code::kInvalidArgument, "a.yaml:4:12: drafter.config.max_ngam: ");
  v1::ApplyRouteRequest request = lookup_route("x", 3, "with space");
  EXPECT_EQ(client.apply_route(request).status().code(), Code::kInvalidArgument);
  request = lookup_route("x", 3);
  request.set_source(std::string(401, 's'));
  EXPECT_EQ(client.apply_route(request).status().code(), Code::kInvalidArgument);
  for (const auto& [name, code] : {std::pair{"off", Code::kFailedPrecondition},
                                   {"lookup", Code::kFailedPrecondition},
                                   {"nobody", Code::kNotFound},
                                   {"", Code::kNotFound},
                                   {"a b", Code::kInvalidArgument}}) {
    v1::DeleteRouteRequest remove;
    remove.set_name(name);
    const auto removed = client.delete_route(remove);
    ASSERT_FALSE(removed.ok()) << name;
    EXPECT_EQ(removed.status().code(), code) << removed.status().message();
  }
  EXPECT_EQ(client.get_route("nobody").status().code(), Code::kNotFound);
  const auto after = client.routes();
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after.value().routes_size(), before.value().routes_size());
  for (int i = 0; i < after.value().routes_size(); ++i) {
    EXPECT_EQ(after.value().routes(i).name(), before.value().routes(i).name());
    EXPECT_EQ(after.value().routes(i).generation(), before.value().routes(i).generation());
  }
}

TEST(LiveRoutes, a_repeated_request_gets_the_first_reply_and_what_get_says_changes_nothing) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto first = client.apply_route(lookup_route("live", 3, "id-1"));
  ASSERT_TRUE(first.ok()) << first.status().message();
  const auto again = client.apply_route(lookup_route("live", 3, "id-1"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again.value().generation(), first.value().generation());
  EXPECT_EQ(client.apply_route(lookup_route("live", 4, "id-1")).status().code(),
            Code::kInvalidArgument);
  const auto got = client.get_route("live");
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got.value().route().state(), "live");
  v1::ApplyRouteRequest same;
  same.set_definition(got.value().definition());
  const auto unchanged = client.apply_route(same);
  ASSERT_TRUE(unchanged.ok()) << unchanged.status().message() << got.value().definition();
  EXPECT_TRUE(unchanged.value().unchanged());
  EXPECT_EQ(unchanged.value().generation(), first.value().generation());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, many_operators_at_once_all_get_an_answer_and_streams_go_on) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto plain = client.generate(make_request("off", 48), {});
  ASSERT_TRUE(plain.ok());
  ASSERT_TRUE(client.apply_route(lookup_route("live", 1)).ok());
  std::atomic<int> applied{0}, failed{0}, wrong{0}, generated{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Client own = daemon.client();
      for (int i = 0; i < 10; ++i)
        ++(own.apply_route(lookup_route("live", 1 + (t * 10 + i) % 16)).ok() ? applied : failed);
    });
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Client own = daemon.client();
      do {
        const auto drafted = own.generate(make_request("live", 48), {});
        wrong += drafted.ok() && drafted.value().token_ids == plain.value().token_ids ? 0 : 1;
        ++generated;
      } while (!done);
    });
  for (int t = 0; t < 3; ++t) threads[static_cast<size_t>(t)].join();
  done = true;
  for (size_t t = 3; t < threads.size(); ++t) threads[t].join();
  EXPECT_EQ(applied, 30);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(generated, 4);
  EXPECT_TRUE(eventually([&] { return routes_named(client, "live").size() == 1; }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, specctl_applies_shows_and_deletes_a_route_of_a_plugin_that_came_later) {
  Daemon daemon;
  const fs::path more = daemon.folder() / "more";
  fs::create_directories(more);
  daemon.write_config("", std::string(SPECD_PLUGINS) + ", more");
  // A plugin directory that the daemon knows, and a bundle that is not there yet.
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const fs::path file = daemon.folder() / "r.yaml";
  std::ofstream(file) << "name: late\ndrafter:\n  plugin: specd.test.drafter_hang\n"
                         "verifier: {plugin: specd.verifier.match}\n";
  auto [code, text] = run_specctl(daemon, "route apply -f " + file.string());
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("r.yaml:3:3: drafter.plugin: plugin 'specd.test.drafter_hang' is not there"),
            std::string::npos)
      << text;
  fs::copy(fs::path(SPECD_HANG_PLUGINS) / "drafter_hang", more / "late",
           fs::copy_options::recursive);
  std::tie(code, text) = run_specctl(daemon, "route apply -f " + file.string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("applied"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "route apply -o json -f " + file.string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(text, "{\"change\":\"unchanged\",\"generation\":2,\"route\":\"late\"}\n");
  std::tie(code, text) = run_specctl(daemon, "route get late");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("specd.test.drafter_hang"), std::string::npos) << text;
  std::tie(code, text) =
      run_specctl(daemon, "route get late -o json > " + (daemon.folder() / "got.json").string());
  EXPECT_EQ(code, 0) << text;
  std::tie(code, text) =
      run_specctl(daemon, "route apply -f " + (daemon.folder() / "got.json").string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("unchanged"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "plugins");
  EXPECT_NE(text.find("specd.test.drafter_hang"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "route delete late");
  EXPECT_EQ(code, 0) << text;
  std::tie(code, text) = run_specctl(daemon, "route delete late");
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("NOT_FOUND"), std::string::npos) << text;
  EXPECT_EQ(run_specctl(daemon, "route apply -f /nonexistent").first, 1);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(CommandLine, check_accepts_what_serve_would_load) {
  Daemon daemon;
  daemon.write_config();
  const auto [code, text] = run_specd("check --config " + (daemon.folder() / "c.yaml").string());
  EXPECT_EQ(code, 0) << text;
}

TEST(CommandLine, check_refuses_a_wrong_file_with_its_place) {
  Daemon daemon;
  daemon.write_config("  bad:\n    drafter: {plugin: specd.drafter.prompt_lookup}\n");
  const auto [code, text] = run_specd("check --config " + (daemon.folder() / "c.yaml").string());
  EXPECT_EQ(code, 3);
  EXPECT_NE(text.find("c.yaml:11:5: routes.bad.verifier: missing"), std::string::npos) << text;
}

TEST(CommandLine, check_tells_the_place_of_what_only_a_plugin_knows) {
  const std::pair<std::string, const char*> table[] = {
      {"    drafter: {plugin: specd.drafter.prompt_lokup}\n    verifier: {plugin: specd.verifier.match}\n",
       "c.yaml:11:15: routes.bad.drafter.plugin: plugin 'specd.drafter.prompt_lokup' is not there; did "
       "you mean 'specd.drafter.prompt_lookup'?"},
      {"    drafter:\n      plugin: specd.drafter.prompt_lookup\n      config:\n        max_ngam: 3\n"
       "    verifier: {plugin: specd.verifier.match}\n",
       "c.yaml:14:9: routes.bad.drafter.config.max_ngam: "},
  };
  for (const auto& [lines, expected] : table) {
    Daemon daemon;
    daemon.write_config("  bad:\n" + lines);
    const auto [code, text] = run_specd("check --config " + (daemon.folder() / "c.yaml").string());
    EXPECT_EQ(code, 3) << text;
    EXPECT_NE(text.find(expected), std::string::npos) << text;
  }
}

TEST(CommandLine, check_refuses_a_damaged_model) {
  Daemon daemon;
  daemon.write_config();
  const fs::path model = daemon.folder() / "model";
  fs::copy(fs::path(SPECD_SOURCE_DIR) / "sdk/zoo/pico-target", model);
  fs::resize_file(model / "model.safetensors", 1000);
  std::string config = read_file(daemon.folder() / "c.yaml");
  const std::string zoo = std::string(SPECD_SOURCE_DIR) + "/sdk/zoo/pico-target";
  config.replace(config.find(zoo), zoo.size(), "model");
  std::ofstream(daemon.folder() / "c.yaml") << config;
  const auto [code, text] = run_specd("check --config " + (daemon.folder() / "c.yaml").string());
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("c.yaml:3:21: model.path: "), std::string::npos) << text;
  EXPECT_NE(text.find("model.safetensors"), std::string::npos) << text;
}

TEST(CommandLine, option_of_another_command_is_refused) {
  const std::string specctl = (fs::path(SPECD_BINARY).parent_path() / "specctl").string();
  for (const char* wrong : {"compare --route off", "status --prompt x", "generate --repeat 2",
                            "status -f x", "status more", "route", "route apply", "route apply x",
                            "route get", "route get a b", "route delete -f x", "route remove x"}) {
    const int status = std::system((specctl + " " + wrong + " 2>/dev/null").c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 2) << wrong;
  }
}

TEST(CommandLine, wrong_use_and_information) {
  EXPECT_EQ(run_specd("").first, 2);
  EXPECT_EQ(run_specd("serve").first, 2);
  EXPECT_EQ(run_specd("sevre --config x").first, 2);
  EXPECT_EQ(run_specd("serve --confg x").first, 2);
  EXPECT_EQ(run_specd("check --config /nonexistent.yaml").first, 3);
  EXPECT_EQ(run_specd("--help").first, 0);
  EXPECT_EQ(run_specd("--version").second.rfind("specd ", 0), 0U);
}

}  // namespace
}  // namespace specd::host
