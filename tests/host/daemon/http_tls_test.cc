// The HTTP API over TLS: the same bytes, for clients of other machines, with keys that a reload renews.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/base/json.h"
#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/http/raw_http.h"
#include "tests/host/rpc/tls_rig.h"

namespace specd::host {
namespace {

constexpr char kKey[] = "the-key-of-a-client";

class HttpTlsTest : public testing::Test {
 protected:
  void SetUp() override {
    write_key(kKey);
    write_identity();
    daemon_.write_config("", SPECD_PLUGINS,
                         "http: {listen: '127.0.0.1:0', api_keys_file: keys, tls: {certificate: "
                         "own.pem, key: own.key}}\n");
    ASSERT_TRUE(daemon_.start()) << daemon_.output();
    const std::string front = "HTTP on https://", text = daemon_.output();
    const size_t begin = text.find(front);
    ASSERT_NE(begin, std::string::npos) << text;
    endpoint_ = text.substr(begin + front.size(), text.find('\n', begin) - begin - front.size());
  }
  void write_key(const std::string& key) {
    const fs::path path = daemon_.folder() / "keys";
    std::ofstream(path) << key << "\n";
    ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  }
  void write_identity() {
    Identity({.common_name = "specd", .usage = "serverAuth"}).write(daemon_.folder() / "own");
  }
  std::string request(const std::string& body, const std::string& key = kKey,
                      const std::string& connection = "close") const {
    return "POST /v1/completions HTTP/1.1\r\nHost: llm.example\r\nConnection: " + connection +
           "\r\nAuthorization: Bearer " + key +
           "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  }
  static std::string body_of(int max_tokens, bool is_stream) {
    return Json{{"prompt", kPrompt},
                {"max_tokens", max_tokens},
                {"temperature", 0},
                {"ignore_eos", true},
                {"stream", is_stream}}
        .dump();
  }
  std::string ask(const std::string& bytes) const {
    TlsClient client(endpoint_, nullptr);
    if (!client.is_connected()) return "no connection";
    EXPECT_EQ(client.send(bytes), bytes.size());
    std::string all = client.read_all();
    EXPECT_TRUE(client.has_ended()) << "nothing says that this is all";
    return all;
  }
  // The text of the events, or of the answer.
  static std::string text_of(const std::string& answer) {
    std::string text;
    for (size_t at = answer.find("{\"id\""); at != std::string::npos;
         at = answer.find("{\"id\"", at + 1)) {
      const size_t end = answer.find('\n', at);
      std::string line = answer.substr(at, end - at);
      if (line.ends_with('\r')) line.pop_back();
      const auto json = parse_json(line, "event");
      EXPECT_TRUE(json.ok()) << line;
      if (json.ok()) text += json.value()["choices"][0]["text"].get<std::string>();
    }
    return text;
  }

  Daemon daemon_;
  std::string endpoint_;
};

TEST_F(HttpTlsTest, answers_and_streams_are_the_same_and_their_end_is_told) {
  std::string text;
  ASSERT_TRUE(
      daemon_.client()
          .generate(make_request("off", 40),
                    [&](const v1::GenerateResponse& response) { text += response.chunk().text(); })
          .ok());
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&, i] {
      const std::string answer = ask(request(body_of(40, i % 2 == 0)));
      EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 200") << answer;
      EXPECT_EQ(text_of(answer), text);
    });
  }
  for (std::thread& client : clients) client.join();
  // A large body, in several records, and the next request on the same connection.
  auto client = std::make_unique<TlsClient>(endpoint_, nullptr);
  ASSERT_TRUE(client->is_connected());
  const std::string large =
      Json{{"prompt", "a"}, {"max_tokens", 1}, {"user", std::string(1 << 20, 'u')}}.dump();
  for (const bool is_last : {false, true}) {
    const std::string bytes = request(large, kKey, is_last ? "close" : "keep-alive");
    EXPECT_EQ(client->send(bytes), bytes.size());
    const std::string answer = is_last ? client->read_all() : client->read_some();
    EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 200") << answer;
  }
  client.reset();
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(HttpTlsTest, a_stream_without_chunks_ends_with_the_connection) {
  std::string bytes = request(body_of(40, true));
  bytes.replace(bytes.find("HTTP/1.1"), 8, "HTTP/1.0");
  const std::string answer = ask(bytes);
  EXPECT_EQ(answer.find("Transfer-Encoding"), std::string::npos) << answer;
  EXPECT_TRUE(answer.ends_with("data: [DONE]\n\n")) << answer;
  EXPECT_EQ(text_of(answer), text_of(ask(request(body_of(40, true)))));
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(HttpTlsTest, a_refusal_arrives_while_the_body_is_still_being_sent) {
  for (int i = 0; i < 20; ++i) {
    TlsClient client(endpoint_, nullptr);
    ASSERT_TRUE(client.is_connected());
    const std::string body(600'000, 'x');
    client.send(request(body, "not-a-key-of-this-server"));
    EXPECT_EQ(client.read_all().substr(0, 12), "HTTP/1.1 401");
    EXPECT_TRUE(client.has_ended());
  }
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(HttpTlsTest, a_reload_takes_over_new_keys_and_certificates) {
  constexpr char kNew[] = "another-key-of-a-client";
  const std::string body = body_of(1, false);
  EXPECT_EQ(ask(request(body, kNew)).substr(0, 12), "HTTP/1.1 401");
  auto before = std::make_unique<TlsClient>(endpoint_, nullptr);
  ASSERT_TRUE(before->is_connected());
  write_key(kNew);
  write_identity();
  kill(daemon_.pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] {
    return daemon_.output().find("the configuration was read again") != std::string::npos;
  })) << daemon_.output();
  EXPECT_NE(daemon_.output().find("http.tls: a certificate that expires"), std::string::npos);
  EXPECT_NE(daemon_.output().find("http.api_keys_file: other keys"), std::string::npos);
  EXPECT_EQ(ask(request(body, kNew)).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(ask(request(body, kKey)).substr(0, 12), "HTTP/1.1 401");
  const std::string bytes = request(body, kNew);
  EXPECT_EQ(before->send(bytes), bytes.size());
  EXPECT_EQ(before->read_all().substr(0, 12), "HTTP/1.1 200")
      << "a connection goes on with its own";
  before.reset();
  // Keys that cannot be read change nothing.
  write_key("short");
  kill(daemon_.pid(), SIGHUP);
  ASSERT_TRUE(eventually([&] {
    return daemon_.output().find("was not taken over: ") != std::string::npos;
  })) << daemon_.output();
  EXPECT_EQ(ask(request(body, kNew)).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(HttpTlsTest, clients_without_tls_get_nothing_and_those_that_say_nothing_keep_nobody_out) {
  RawClient plain(endpoint_);
  plain.send(request(body_of(1, false)));
  const std::string answer = plain.read_all();
  EXPECT_EQ(answer.find("HTTP"), std::string::npos) << answer;
  std::vector<RawClient> silent;
  for (int i = 0; i < 600; ++i) silent.emplace_back(endpoint_);
  EXPECT_EQ(ask(request(body_of(1, false))).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

TEST_F(HttpTlsTest, a_client_that_leaves_is_cancelled) {
  const auto running = [this] {
    v1::GetStatusResponse response;
    grpc::ClientContext context;
    v1::Control::NewStub(daemon_.channel())->GetStatus(&context, {}, &response);
    return response.running() + response.waiting();
  };
  {
    TlsClient client(endpoint_, nullptr);
    ASSERT_TRUE(client.is_connected());
    const std::string bytes = request(body_of(1500, true));
    EXPECT_EQ(client.send(bytes), bytes.size());
    EXPECT_EQ(client.read_some().substr(0, 12), "HTTP/1.1 200");
    EXPECT_GT(running(), 0u);
  }
  EXPECT_TRUE(eventually([&] { return running() == 0; }));
  EXPECT_EQ(daemon_.stop(), 0) << daemon_.output();
}

}  // namespace
}  // namespace specd::host
