// Daemons of their own: how one starts, reports, drains and ends.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/daemon/notify_socket.h"
#include "tests/host/daemon/prometheus_text.h"
#include "tests/host/http/raw_http.h"

namespace specd::host {
namespace {

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

TEST(DaemonLife, signals_without_a_meaning_do_nothing) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::vector<std::pair<int, std::string>> signals = {
      {SIGUSR1, "SIGUSR1"}, {SIGUSR2, "SIGUSR2"}, {SIGALRM, "SIGALRM"}, {SIGVTALRM, "SIGVTALRM"},
      {SIGPROF, "SIGPROF"}, {SIGPWR, "SIGPWR"},   {SIGPOLL, "SIGPOLL"}, {SIGSTKFLT, "SIGSTKFLT"},
      {SIGRTMIN, "signal"}, {SIGRTMAX, "signal"}};
  for (int round = 0; round < 2; ++round) {
    for (const auto& [number, name] : signals) {
      ASSERT_EQ(kill(daemon.pid(), number), 0);
      EXPECT_TRUE(eventually([&, number = number, name = name] {
        return daemon.output().find(name + " was received") != std::string::npos ||
               daemon.output().find(name + " " + std::to_string(number) + " was") !=
                   std::string::npos;
      })) << name;
    }
  }
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(SIGINT), 0) << daemon.output();
  const std::string output = daemon.output();
  EXPECT_NE(output.find("specd: draining"), std::string::npos) << output;
  EXPECT_EQ(output.find("SIGUSR1 was"), output.rfind("SIGUSR1 was")) << "logged once";
}

TEST(DaemonLife, standard_error_that_nobody_reads_holds_up_neither_requests_nor_the_end) {
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK), 0);
  const std::string page(4096, '.');
  while (write(pipe_ends[1], page.data(), page.size()) > 0) {
  }
  ASSERT_EQ(fcntl(pipe_ends[1], F_SETFL, 0), 0);  // full, and blocks
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([&] { dup2(pipe_ends[1], STDERR_FILENO); });
  ASSERT_TRUE(eventually([&] { return Client::connect(daemon.socket()).ok(); }));
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (const int end : pipe_ends) close(end);
}

TEST(DaemonLife, sighup_that_nohup_ignores_stays_ignored) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] { signal(SIGHUP, SIG_IGN); });
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  ASSERT_EQ(kill(daemon.pid(), SIGHUP), 0);
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  EXPECT_EQ(daemon.output().find("read again"), std::string::npos) << daemon.output();
}

TEST(DaemonLife, closed_standard_descriptors_are_not_given_to_files_of_the_daemon) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn([] {
    for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) close(standard);
  });
  ASSERT_TRUE(eventually([&] { return Client::connect(daemon.socket()).ok(); }));
  EXPECT_TRUE(daemon.client().generate(make_request("off", 2), {}).ok());
  const fs::path descriptors = fs::path("/proc") / std::to_string(daemon.pid()) / "fd";
  for (const char* standard : {"0", "1", "2"})
    EXPECT_EQ(fs::read_symlink(descriptors / standard), "/dev/null") << standard;
  EXPECT_EQ(read_file(daemon.socket() + ".lock"), std::to_string(daemon.pid()) + "\n");
  EXPECT_EQ(daemon.stop(), 0);
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

TEST(DaemonLife, of_a_hundred_streams_each_ends_or_is_told_why_by_the_limit) {
  constexpr size_t kStreams = 100;
  for (const int seconds : {600, 1}) {
    const bool is_cut = seconds == 1;
    Daemon daemon;
    daemon.write_config("", SPECD_PLUGINS, "drain_seconds: " + std::to_string(seconds) + "\n");
    ASSERT_TRUE(daemon.start()) << daemon.output();
    const auto plain = daemon.client().generate(make_request("off", 24), {});
    ASSERT_TRUE(plain.ok());
    std::atomic<size_t> n_begun{0}, n_complete{0};
    std::vector<std::jthread> streams;
    for (size_t i = 0; i < kStreams; ++i) {
      streams.emplace_back([&, i] {
        const bool is_long = is_cut && i % 2 == 0;
        bool has_begun = false;
        const auto ended = daemon.client().generate(
            make_request(i % 4 < 2 ? "off" : "lookup", is_long ? 1900 : 24),
            [&](const v1::GenerateResponse&) {
              n_begun += std::exchange(has_begun, true) ? 0 : 1;
            });
        if (ended.ok()) {
          EXPECT_TRUE(is_long || ended.value().token_ids == plain.value().token_ids);
          ++n_complete;
        } else {
          EXPECT_TRUE(is_cut) << ended.status().text();
          EXPECT_EQ(ended.status().code(), Code::kUnavailable);
          EXPECT_NE(ended.status().text().find("the drain limit of 1 s"), std::string::npos)
              << ended.status().text();
        }
      });
    }
    ASSERT_TRUE(eventually([&] { return n_begun == kStreams; }));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(daemon.stop(), is_cut ? 4 : 0) << daemon.output();
    const auto took = std::chrono::steady_clock::now() - start;
    streams.clear();
    if (is_cut) {
      EXPECT_LT(n_complete, kStreams);
      // The limit, what cut requests have to end, and what plugins have (host/README.md).
      EXPECT_LT(took, std::chrono::seconds(1 + 5 + 15));
    } else {
      EXPECT_EQ(n_complete, kStreams);
    }
  }
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
    ASSERT_TRUE(eventually([&, &daemon = daemon] {
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
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    kill(daemons["activate"].pid(), SIGTERM);
  }
  EXPECT_EQ(daemons["activate"].wait(), 4);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(12));
  for (auto& [call, daemon] : daemons) {
    EXPECT_TRUE(eventually([&, &daemon = daemon] { return !fs::exists(daemon.socket()); })) << call;
    if (call == "activate") continue;
    EXPECT_EQ(daemon.wait(), 4) << call << daemon.output();
    EXPECT_NE(daemon.output().find("does a plugin hang?"), std::string::npos) << call;
  }
}

TEST(DaemonLife, metrics_equal_what_the_streams_reported) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: 127.0.0.1:0}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  ASSERT_NE(endpoint, "") << daemon.output();
  EXPECT_EQ(http_get(endpoint, "/health/live").substr(0, 15), "HTTP/1.1 200 OK");
  EXPECT_EQ(http_body(http_get(endpoint, "/health/ready")), "ready\n");
  EXPECT_EQ(http_get(endpoint, "/").substr(0, 12), "HTTP/1.1 404");

  Client client = daemon.client();
  double prompt_tokens = 0, tokens = 0, drafted = 0, accepted = 0;
  for (const char* route : {"lookup", "off", "lookup"}) {
    const auto finished = client.generate(make_request(route, 32), {});
    ASSERT_TRUE(finished.ok()) << finished.status().text();
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
  const std::string endpoint = daemon.http_endpoint();
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

TEST(DaemonLife, a_step_that_hangs_fails_liveness_ends_the_beat_and_nothing_else) {
  Daemon daemon;
  daemon.write_config(
      "  hang:\n    drafter: {plugin: specd.test.drafter_hang}\n"
      "    verifier: {plugin: specd.verifier.match}\n",
      std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS,
      "drain_seconds: 0\nhttp: {listen: 127.0.0.1:0, stall_seconds: 1}\n");
  NotifySocket manager("@specd-test-" + std::to_string(getpid()));
  manager.start(daemon, "2000000");
  EXPECT_TRUE(eventually([&] { return manager.count("WATCHDOG=1") >= 3; }));
  const std::string endpoint = daemon.http_endpoint();
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
  EXPECT_TRUE(eventually([&] {
    const size_t before = manager.count("WATCHDOG=1");
    std::this_thread::sleep_for(std::chrono::seconds(2));
    return manager.count("WATCHDOG=1") == before;
  }));
  EXPECT_EQ(daemon.stop(), 4) << daemon.output();
  while (reader->Read(&message)) {
  }
  EXPECT_FALSE(reader->Finish().ok());
}

TEST(DaemonLife, a_guarded_drafter_that_hangs_is_shown_and_does_not_make_the_daemon_unhealthy) {
  Daemon daemon;
  daemon.write_config(
      "  hang:\n    drafter: {plugin: specd.test.drafter_hang, config: {does: return late}}\n"
      "    verifier: {plugin: specd.verifier.match}\n    isolation: guarded\n",
      std::string(SPECD_PLUGINS) + ", " + SPECD_HANG_PLUGINS,
      "http: {listen: 127.0.0.1:0, stall_seconds: 1}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("hang", 16));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok()) << daemon.output();
  const auto control = v1::Control::NewStub(daemon.channel());
  v1::ThreadStatus seen;
  // The call takes 4 s.
  EXPECT_TRUE(eventually([&] {
    grpc::ClientContext once;
    v1::GetStatusResponse status;
    EXPECT_TRUE(control->GetStatus(&once, {}, &status).ok());
    for (const v1::ThreadStatus& each : status.busy_threads()) {
      if (each.thread() == "specd-drafter") seen = each;
    }
    return seen.busy_s() > 1.5;
  }));
  EXPECT_EQ(seen.work(), "specd.test.drafter_hang (hang.drafter)");
  EXPECT_FALSE(seen.is_stuck());
  EXPECT_EQ(http_body(http_get(endpoint, "/health/live")), "live\n");
  const PrometheusText metrics(http_body(http_get(endpoint, "/metrics")));
  EXPECT_EQ(metrics.error(), "");
  EXPECT_EQ(metrics.sum("specd_thread_stuck"), 0);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(DaemonLife, a_metrics_port_that_is_taken_is_told_with_its_place_before_loading) {
  Daemon first, second;
  first.write_config("", SPECD_PLUGINS, "http: {listen: 127.0.0.1:0}\n");
  ASSERT_TRUE(first.start()) << first.output();
  second.write_config("", SPECD_PLUGINS, "http: {listen: '" + first.http_endpoint() + "'}\n");
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
    EXPECT_EQ(plugin.state(), v1::PLUGIN_STATE_REFUSED) << plugin.id();
    EXPECT_FALSE(plugin.reason().empty()) << plugin.id();
    ++refused;
  }
  EXPECT_EQ(refused, 2);
  for (const char* route : {"changed", "absent"}) {
    const auto result = client.generate(make_request(route, 4), {});
    ASSERT_FALSE(result.ok()) << route;
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
    EXPECT_NE(result.status().text().find(route), std::string::npos);
    EXPECT_EQ(result.status().text().find('/'), std::string::npos) << result.status().text();
  }
  EXPECT_TRUE(client.generate(make_request("lookup", 4), {}).ok());
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace specd::host
