// The HTTP API of a real daemon, with the bytes that its clients send.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/base/json.h"
#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/daemon/prometheus_text.h"
#include "tests/host/http/raw_http.h"

namespace specd::host {
namespace {

constexpr char kHttp[] = "http: {listen: '127.0.0.1:0'}\n";

std::string post(const std::string& endpoint, const std::string& path, const std::string& body,
                 const std::string& headers = "") {
  RawClient client(endpoint);
  client.send("POST " + path + " HTTP/1.1\r\nHost: " + endpoint +
              "\r\nContent-Type: application/json\r\n" + headers +
              "Connection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
              body);
  return client.read_all(std::chrono::seconds(60));
}

// The bytes of a file of http_golden: lines of the head end with CRLF, and "@" is the length of the body.
std::string request_bytes(const std::string& file) {
  const size_t end = file.find("\n\n");
  std::string head = file.substr(0, end), bytes;
  const std::string body = file.substr(end + 2);
  if (const size_t at = head.find("Content-Length: @"); at != std::string::npos)
    head.replace(at + 16, 1, std::to_string(body.size()));
  for (const char c : head + "\n\n") bytes += c == '\n' ? std::string("\r\n") : std::string(1, c);
  return bytes + body;
}

// Ids and times are of one run, chunks of one network, and the last digits of a logarithm of one processor.
std::string normalized(std::string text) {
  text =
      std::regex_replace(text, std::regex("\r\n[0-9a-f]+\r\n(data: |: ping)"), "\r\n<chunk>\r\n$1");
  text = std::regex_replace(text, std::regex("\"created\":[0-9]+"), "\"created\":<time>");
  text = std::regex_replace(text, std::regex("[0-9a-f]{32}"), "<id>");
  text = std::regex_replace(text, std::regex("x-specd-seed: [0-9]+"), "x-specd-seed: <seed>");
  text = std::regex_replace(text, std::regex("specd-[0-9][0-9.]*"), "specd-<version>");
  text = std::regex_replace(text, std::regex("\nContent-Length: [0-9]+"), "\nContent-Length: <n>");
  text = std::regex_replace(text, std::regex("_time_ns\":\"[0-9]+"), "_time_ns\":\"<time>");
  text = std::regex_replace(text, std::regex("(-?[0-9]+\\.[0-9]{4})[0-9]+"), "$1");
  text.erase(std::remove(text.begin(), text.end(), '\r'), text.end());
  return text;
}

TEST(HttpApi, clients_get_the_bytes_that_were_recorded) {
  Daemon daemon;
  daemon.write_config_text(
      std::string(kHttp) +
      "model: {name: pico, path: ZOO/pico-target, chat_template: " + SPECD_SOURCE_DIR +
      "/tests/reference/chat_templates/chatml.jinja}\n"
      "plugins: {directories: [PLUGINS], cache_directory: cache}\n"
      "default_route: lookup\n"
      "routes: {lookup: {drafter: {plugin: specd.drafter.prompt_lookup}, verifier: {plugin: specd.verifier.match}}}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const fs::path folder = fs::path(SPECD_SOURCE_DIR) / "tests/host/http_golden";
  const bool writes = std::getenv("SPECD_WRITE_GOLDEN") != nullptr;
  std::vector<fs::path>
      requests;  // in order, since what one leaves in the prefix cache is told to the next
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".request") requests.push_back(entry.path());
  }
  std::sort(requests.begin(), requests.end());
  EXPECT_GE(requests.size(), 27u);
  for (const fs::path& request : requests) {
    RawClient client(daemon.http_endpoint());
    std::string bytes = request_bytes(read_file(request));
    // The client waits for the answer's end, not for that of the connection.
    bytes.insert(bytes.find("\r\n") + 2, "Connection: close\r\n");
    if (const size_t keeps = bytes.find("Connection: keep-alive\r\n"); keeps != std::string::npos)
      bytes.erase(keeps, 24);
    ASSERT_TRUE(client.send(bytes));
    const std::string answer = normalized(client.read_all(std::chrono::seconds(60)));
    const fs::path reply = fs::path(request).replace_extension(".reply");
    if (writes) std::ofstream(reply) << answer;
    EXPECT_EQ(answer, read_file(reply)) << request.filename();
  }
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(HttpApi, texts_are_those_of_grpc) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  for (const char* route : {"off", "lookup"}) {
    for (const float temperature : {0.f, 0.9f}) {
      const v1::GenerateRequest request = make_request(route, 32, temperature);
      std::string text;
      std::vector<int32_t> ids;
      ASSERT_TRUE(client
                      .generate(request,
                                [&](const v1::GenerateResponse& response) {
                                  text += response.chunk().text();
                                  ids.insert(ids.end(), response.chunk().token_ids().begin(),
                                             response.chunk().token_ids().end());
                                })
                      .ok());
      const Json body{{"prompt", kPrompt},
                      {"max_tokens", 32},
                      {"seed", 7},
                      {"temperature", temperature},
                      {"ignore_eos", true},
                      {"return_token_ids", true},
                      {"speculative", {{"route", route}}}};
      const auto answer = parse_json(
          http_body(post(daemon.http_endpoint(), "/v1/completions", body.dump())), "answer");
      ASSERT_TRUE(answer.ok()) << answer.status().text();
      EXPECT_EQ(answer.value()["choices"][0]["text"], text);
      EXPECT_EQ(answer.value()["choices"][0]["token_ids"], Json(ids));
    }
  }
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(HttpApi, keys_of_the_file_open_the_api_and_nothing_else_does) {
  Daemon daemon;
  std::ofstream(daemon.folder() / "keys") << "the-key-of-a-client\n";
  ASSERT_EQ(chmod((daemon.folder() / "keys").c_str(), 0600), 0);
  daemon.write_config(
      "", SPECD_PLUGINS,
      "http: {listen: '127.0.0.1:0', api_keys_file: keys, unknown_fields: reject}\n");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  const std::string body = R"({"prompt": "import os", "max_tokens": 2})";
  const std::string without = post(endpoint, "/v1/completions", body);
  EXPECT_EQ(without.substr(0, 12), "HTTP/1.1 401") << without;
  EXPECT_NE(without.find("\"code\":\"invalid_api_key\""), std::string::npos) << without;
  const std::string key = "Authorization: Bearer the-key-of-a-client\r\n";
  EXPECT_EQ(post(endpoint, "/v1/completions", body, key).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(
      post(endpoint, "/v1/completions", body, "Authorization: Bearer the-key-of-a-stranger\r\n")
          .substr(0, 12),
      "HTTP/1.1 401");
  EXPECT_EQ(http_get(endpoint, "/v1/models").substr(0, 12), "HTTP/1.1 401");
  EXPECT_EQ(http_get(endpoint, "/health").substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(http_get(endpoint, "/metrics").substr(0, 12), "HTTP/1.1 200");
  const std::string unknown =
      post(endpoint, "/v1/completions", R"({"prompt": "a", "max_toks": 2})", key);
  EXPECT_NE(unknown.find("\"param\":\"max_toks\""), std::string::npos) << unknown;
  EXPECT_EQ(daemon.output().find("the-key-of-a"), std::string::npos) << "a key in the log";
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(HttpApi, the_page_is_there_when_it_is_asked_for_and_what_it_shows_needs_the_key) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  for (const char* path : {"/", "/page/state"})
    EXPECT_EQ(http_get(daemon.http_endpoint(), path).substr(0, 12), "HTTP/1.1 404") << path;
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();

  Daemon with_page;
  std::ofstream(with_page.folder() / "keys") << "the-key-of-a-viewer\n";
  ASSERT_EQ(chmod((with_page.folder() / "keys").c_str(), 0600), 0);
  with_page.write_config("", SPECD_PLUGINS,
                         "http: {listen: '127.0.0.1:0', api_keys_file: keys, page: true}\n");
  ASSERT_TRUE(with_page.start()) << with_page.output();
  const std::string endpoint = with_page.http_endpoint();
  const std::string page = http_get(endpoint, "/");
  EXPECT_EQ(page.substr(0, 12), "HTTP/1.1 200");
  EXPECT_NE(page.find("content-security-policy: default-src 'none'"), std::string::npos);
  EXPECT_NE(page.find("<body data-key=\"yes\">"), std::string::npos);
  EXPECT_EQ(http_get(endpoint, "/page/state").substr(0, 12), "HTTP/1.1 401");
  EXPECT_EQ(post(endpoint, "/page/follow/0", "").substr(0, 12), "HTTP/1.1 401");
  const std::string key = "Authorization: Bearer the-key-of-a-viewer\r\n";
  EXPECT_EQ(post(endpoint, "/page/follow/0", "", key).substr(0, 12), "HTTP/1.1 204");
  const auto ask = [&] {
    RawClient client(endpoint);
    client.send("GET /page/state HTTP/1.1\r\nHost: " + endpoint + "\r\n" + key +
                "Connection: close\r\n\r\n");
    return client.read_all();
  };
  const auto state = parse_json(http_body(ask()), "state");
  ASSERT_TRUE(state.ok()) << state.status().text();
  EXPECT_EQ(state.value()["state"], "ready");
  EXPECT_EQ(with_page.stop(), 0) << with_page.output();
}

TEST(HttpApi, a_keys_file_that_others_can_read_ends_the_start_with_its_place) {
  Daemon daemon;
  std::ofstream(daemon.folder() / "keys") << "the-key-of-a-client\n";
  ASSERT_EQ(chmod((daemon.folder() / "keys").c_str(), 0644), 0);
  daemon.write_config("", SPECD_PLUGINS, "http: {listen: '127.0.0.1:0', api_keys_file: keys}\n");
  daemon.spawn_words({SPECD_BINARY, "check", "--config", (daemon.folder() / "c.yaml").string()});
  EXPECT_EQ(daemon.wait(), 3) << daemon.output();
  daemon.spawn();
  EXPECT_EQ(daemon.wait(), 1);
  EXPECT_NE(daemon.output().find("c.yaml:2:"), std::string::npos) << daemon.output();
  EXPECT_NE(daemon.output().find("http.api_keys_file: "), std::string::npos) << daemon.output();
  EXPECT_NE(daemon.output().find("others may read or change it"), std::string::npos);
}

TEST(HttpApi, a_stream_that_runs_when_the_daemon_stops_ends_with_its_text) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  RawClient client(daemon.http_endpoint());
  const std::string body =
      R"({"prompt": "import os", "max_tokens": 200, "temperature": 0, "ignore_eos": true, "stream": true})";
  ASSERT_TRUE(client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
                          std::to_string(body.size()) + "\r\n\r\n" + body));
  std::string text = client.read_until("\n\n\r\n");  // the head and an event at least
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  text += client.read_all();
  EXPECT_NE(text.find("\"finish_reason\":\"length\""), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n")) << text.substr(text.size() - 100);
}

TEST(HttpApi, clients_that_connect_and_leave_hold_nothing) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  const std::string body =
      R"({"prompt": "import os", "max_tokens": 1000, "ignore_eos": true, "stream": true})";
  const std::string request =
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n" + body;
  const auto entries = [&](const char* what) {
    return std::distance(
        fs::directory_iterator("/proc/" + std::to_string(daemon.pid()) + "/" + what),
        fs::directory_iterator());
  };
  const auto run = [&](int n) {
    for (int i = 0; i < n; ++i) {
      RawClient client(endpoint);
      // Cut anywhere: nothing, a part, or all of a request.
      client.send(request.substr(0, static_cast<size_t>(i) * 7 % (request.size() + 40)));
    }
    EXPECT_TRUE(eventually([&] {
      const std::string metrics = http_get(endpoint, "/metrics");
      return metrics.find("specd_requests_running{model=\"pico\"} 0") != std::string::npos &&
             metrics.find("specd_requests_waiting{model=\"pico\"} 0") != std::string::npos;
    }));
  };
  run(50);
  const auto threads = entries("task");
  const auto descriptors = entries("fd");
  run(std::getenv("SPECD_NIGHTLY") == nullptr ? 500 : 10'000);
  EXPECT_TRUE(eventually([&] { return entries("fd") <= descriptors; }));
  EXPECT_LE(entries("task"), threads);
  const std::string answer =
      post(endpoint, "/v1/completions", R"({"prompt": "import os", "max_tokens": 2})");
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 200") << answer;
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(HttpApi, dashboards_of_vllm_find_their_series) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string body = R"({"prompt": "import os", "max_tokens": 20, "ignore_eos": true})";
  EXPECT_EQ(post(daemon.http_endpoint(), "/v1/completions", body).substr(0, 12), "HTTP/1.1 200");
  const PrometheusText metrics(http_body(http_get(daemon.http_endpoint(), "/metrics")));
  EXPECT_EQ(metrics.error(), "");
  std::ifstream file(fs::path(SPECD_SOURCE_DIR) / "tests/host/daemon/vllm_dashboards.txt");
  ASSERT_TRUE(file.is_open());
  int n = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream words(line);
    std::string series;
    words >> series;
    const std::set<std::string> labels{std::istream_iterator<std::string>(words), {}};
    EXPECT_TRUE(metrics.has(series, labels)) << line;
    ++n;
  }
  EXPECT_GE(n, 50);
  EXPECT_EQ(metrics.value("vllm:request_success_total",
                          {{"model_name", "pico"}, {"engine", "0"}, {"finished_reason", "length"}}),
            1);
  EXPECT_EQ(metrics.sum("vllm:request_generation_tokens_sum"), 20);
  EXPECT_EQ(metrics.sum("vllm:request_max_num_generation_tokens_sum"), 20);
  EXPECT_EQ(metrics.sum("vllm:iteration_tokens_total_sum"),
            metrics.sum("vllm:prompt_tokens_total") + metrics.sum("vllm:generation_tokens_total"));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

// ---- figures: SPECD_NIGHTLY=1, on an idle machine ------------------------------------------------

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One stream of so many tokens: seconds to its first event with a token, and to its end.
struct Timing {
  double first = 0, all = 0;
};
Timing time_http(const std::string& endpoint, int max_tokens) {
  const Json body{{"prompt", kPrompt},  {"max_tokens", max_tokens},          {"temperature", 0},
                  {"ignore_eos", true}, {"speculative", {{"route", "off"}}}, {"stream", true}};
  const std::string text = body.dump();
  RawClient client(endpoint);
  Timing timing;
  const auto begin = Clock::now();
  client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(text.size()) + "\r\n\r\n" + text);
  std::string answer = client.read_until("\n\n\r\n");
  timing.first = seconds_since(begin);
  while (!answer.ends_with("0\r\n\r\n")) {
    const std::string more = client.read_until("\r\n");
    if (more.empty()) break;
    answer = more;
  }
  timing.all = seconds_since(begin);
  return timing;
}
Timing time_grpc(Client& client, int max_tokens) {
  Timing timing;
  const auto begin = Clock::now();
  EXPECT_TRUE(client
                  .generate(make_request("off", max_tokens),
                            [&](const v1::GenerateResponse& response) {
                              if (response.has_chunk() && timing.first == 0)
                                timing.first = seconds_since(begin);
                            })
                  .ok());
  timing.all = seconds_since(begin);
  return timing;
}

TEST(HttpApi, streams_are_as_quick_as_those_of_grpc) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "a figure of an idle machine";
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  Client client = daemon.client();
  std::vector<double> later, ratios;
  for (int i = 0; i < 40; ++i) {
    const double grpc = time_grpc(client, 4).first, http = time_http(endpoint, 4).first;
    later.push_back((http - grpc) * 1e3);
  }
  constexpr int kStreams = 8, kTokens = 300;
  const auto rate = [&](bool is_http) {
    const auto begin = Clock::now();
    std::vector<std::thread> streams;
    for (int i = 0; i < kStreams; ++i)
      streams.emplace_back([&] {
        if (is_http) {
          time_http(endpoint, kTokens);
        } else {
          Client own = daemon.client();
          time_grpc(own, kTokens);
        }
      });
    for (std::thread& each : streams) each.join();
    return kStreams * kTokens / seconds_since(begin);
  };
  for (int i = 0; i < 5; ++i) {
    const double grpc = rate(false), http = rate(true);
    ratios.push_back(http / grpc);
    std::printf("tokens/s of 8 streams: gRPC %.0f, HTTP %.0f\n", grpc, http);
  }
  std::printf("first token over HTTP %.2f ms later, tokens/s %.3f of gRPC's (medians)\n",
              median(later), median(ratios));
  EXPECT_LE(median(later), 1);
  EXPECT_GE(median(ratios), 0.97);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(HttpApi, slow_connections_by_the_hundred_cost_others_little) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "a figure of an idle machine";
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, kHttp);
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const std::string endpoint = daemon.http_endpoint();
  const auto p99 = [&] {
    std::vector<double> all;
    for (int i = 0; i < 200; ++i) all.push_back(time_http(endpoint, 4).all);
    std::sort(all.begin(), all.end());
    return all[197];
  };
  std::vector<double> ratios;
  uint64_t most = 0;
  (void)p99();
  const uint64_t before = resident_bytes(daemon.pid());
  for (int pair = 0; pair < 3; ++pair) {
    const double quiet = p99();
    std::atomic<bool> ends{false};
    std::thread slow([&] {
      std::vector<RawClient> crowd;
      for (int i = 0; i < 500; ++i) {
        crowd.emplace_back(endpoint);
        crowd.back().send(
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
      }
      for (size_t i = 0; !ends; ++i) {  // a byte of each every few seconds
        crowd[i % crowd.size()].send("x");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    });
    std::this_thread::sleep_for(std::chrono::seconds(1));
    ratios.push_back(p99() / quiet);
    most = std::max(most, resident_bytes(daemon.pid()));
    ends = true;
    slow.join();
  }
  std::printf(
      "p99 beside 500 slow connections %.2f of that without (median of three), %.1f MiB more\n",
      median(ratios), (static_cast<double>(most) - static_cast<double>(before)) / (1 << 20));
  EXPECT_LE(median(ratios), 1.1);
  EXPECT_LT(most, before + (uint64_t{32} << 20));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
