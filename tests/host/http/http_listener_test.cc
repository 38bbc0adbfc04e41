// The listener against clients that do not behave, with bytes on raw sockets.
#include "host/http/http_listener.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/host/http/raw_http.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;

size_t descriptors() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

class HttpListenerTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = descriptors(); }
  void TearDown() override {
    // Whatever the clients did, a good one is served at once, and nothing is left behind.
    if (listener_ != nullptr) {
      expect_served();
      listener_.reset();
    }
    EXPECT_EQ(descriptors(), descriptors_);
  }
  void start(const HttpLimits& limits = {}) {
    auto started = HttpListener::start(
        "127.0.0.1", 0,
        [this](const std::string& path) -> HttpAnswer {
          ++calls_;
          if (path == "/big") return {200, "text/plain", std::string(8 << 20, 'x')};
          if (path == "/here") return {200, "text/plain; charset=utf-8", "here\n"};
          return {404, "text/plain", "expected /here\n"};
        },
        limits);
    ASSERT_TRUE(started.ok()) << started.status().text();
    listener_ = std::move(started).value();
  }
  std::string endpoint() const { return listener_->endpoint(); }
  // Once the connections before have ended.
  void expect_served() {
    std::string answer;
    for (int i = 0; i < 500 && http_body(answer) != "here\n"; ++i) {
      if (i > 0) std::this_thread::sleep_for(milliseconds(10));
      answer = http_get(endpoint(), "/here");
    }
    EXPECT_EQ(http_body(answer), "here\n") << answer;
  }
  // The status line's number of what comes back for `bytes`, and that the connection then closes.
  std::string refused(const std::string& bytes) {
    RawClient client(endpoint());
    EXPECT_TRUE(client.send(bytes));
    const std::string answer = client.read_all();
    EXPECT_TRUE(client.ended()) << answer;
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    return answer.substr(0, 12);
  }

  std::unique_ptr<HttpListener> listener_;
  std::atomic<int> calls_{0};

 private:
  size_t descriptors_ = 0;
};

TEST_F(HttpListenerTest, get_and_head_are_answered_on_one_connection) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("GET /here?x=1 HTTP/1.1\r\nHost: a\r\n\r\n"));
  std::string answer = client.read_answer();
  EXPECT_EQ(answer.substr(0, 15), "HTTP/1.1 200 OK") << answer;
  EXPECT_NE(answer.find("Content-Type: text/plain; charset=utf-8\r\n"), std::string::npos);
  EXPECT_NE(answer.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_EQ(http_body(answer), "here\n");
  ASSERT_TRUE(client.send("HEAD /here HTTP/1.1\r\nHost: a\r\n\r\n"));
  answer = client.read_answer(true);
  EXPECT_NE(answer.find("Content-Length: 5\r\n"), std::string::npos);
  EXPECT_EQ(http_body(answer), "");
  // Two at once, and another path.
  ASSERT_TRUE(
      client.send("GET /here HTTP/1.1\r\nHost: a\r\n\r\nGET /nowhere HTTP/1.1\r\nHost: a\r\n"
                  "Connection: close\r\n\r\n"));
  answer = client.read_all();
  EXPECT_TRUE(client.ended());
  EXPECT_NE(answer.find("HTTP/1.1 200 OK"), std::string::npos) << answer;
  EXPECT_NE(answer.find("HTTP/1.1 404 Not Found"), std::string::npos) << answer;
  EXPECT_NE(http_get(endpoint(), "/").find("404"), std::string::npos);
  // The old version closes by itself.
  RawClient old(endpoint());
  ASSERT_TRUE(old.send("GET /here HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(http_body(old.read_all()), "here\n");
  EXPECT_TRUE(old.ended());
}

TEST_F(HttpListenerTest, what_is_not_taken_gets_a_defined_answer) {
  start();
  EXPECT_EQ(refused("POST /here HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 405");
  EXPECT_EQ(refused("DELETE /here HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 405");
  EXPECT_EQ(refused("GET /here HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), "HTTP/1.1 413");
  EXPECT_EQ(refused("GET /here HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n"), "HTTP/1.1 413");
  EXPECT_EQ(refused("GET /here HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
            "HTTP/1.1 413");
  EXPECT_EQ(refused("GET /" + std::string(9000, 'a') + " HTTP/1.1\r\n\r\n"), "HTTP/1.1 431");
  EXPECT_EQ(refused("GET /here HTTP/1.1\r\nA: " + std::string(9000, 'a') + "\r\n\r\n"),
            "HTTP/1.1 431");
  std::string many = "GET /here HTTP/1.1\r\n";
  for (int i = 0; i < 2000; ++i) many += "A: b\r\n";
  EXPECT_EQ(refused(many + "\r\n"), "HTTP/1.1 431");
  for (const std::string& garbage :
       {std::string("\r\n\r\n\r\n"), std::string("GET\r\n\r\n"), std::string("hello there\r\n\r\n"),
        std::string("GET /here HTTP/9.9\r\n\r\n"), std::string("GET /here HTTP/1.1\r\n: x\r\n\r\n"),
        std::string("GET /here HTTP/1.1\r\nContent-Length: -1\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(64, '\xee'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string(1, '\0') + "\r\n\r\n"}) {
    EXPECT_EQ(refused(garbage), "HTTP/1.1 400") << garbage;
  }
  EXPECT_EQ(calls_, 0) << "nothing of that is for the handler";
}

TEST_F(HttpListenerTest, random_bytes_never_reach_the_handler) {
  start({.connections_max = 64, .time_limit = milliseconds(300)});
  std::mt19937 random(7);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(1 + random() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    RawClient client(endpoint());
    client.send(bytes);  // may be closed in the middle
    if (i % 3 == 0) client.read_all(milliseconds(20));
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpListenerTest, who_does_not_finish_a_request_is_cut_at_the_limit) {
  start({.connections_max = 64, .time_limit = milliseconds(400)});
  const auto begin = std::chrono::steady_clock::now();
  std::vector<RawClient> half;
  for (const char* bytes : {"", "G", "GET /here HTTP/1.1\r\nHost: a\r\n", "GET /here HTTP/1.1"}) {
    half.emplace_back(endpoint());
    ASSERT_TRUE(half.back().send(bytes));
  }
  // One byte at a time does not win more time.
  RawClient loris(endpoint());
  const std::string slow = "GET /here HTTP/1.1\r\nX: " + std::string(200, 'a');
  for (size_t i = 0; i < slow.size() && loris.send(slow.substr(i, 1)); ++i) {
    std::this_thread::sleep_for(milliseconds(20));
    if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(8)) break;
  }
  for (RawClient& client : half) {
    EXPECT_EQ(client.read_all(), "");
    EXPECT_TRUE(client.ended());
  }
  loris.read_all();
  EXPECT_TRUE(loris.ended());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
  EXPECT_EQ(calls_, 0);
  // Half a request and a client that leaves.
  for (int i = 0; i < 50; ++i) RawClient(endpoint()).send("GET /here HT");
}

TEST_F(HttpListenerTest, who_does_not_read_the_answer_is_cut_and_holds_nobody_up) {
  start({.connections_max = 8, .time_limit = milliseconds(500)});
  std::vector<RawClient> lazy;
  for (int i = 0; i < 7; ++i) {
    lazy.emplace_back(endpoint());
    ASSERT_TRUE(lazy.back().send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  EXPECT_EQ(http_body(http_get(endpoint(), "/here")), "here\n");
  std::this_thread::sleep_for(milliseconds(1000));
  for (RawClient& client : lazy) {
    EXPECT_LT(client.read_all().size(), size_t{8} << 20);
    EXPECT_TRUE(client.ended());
  }
}

TEST_F(HttpListenerTest, a_thousand_connections_are_served_or_turned_away) {
  start({.connections_max = 32, .time_limit = milliseconds(3000)});
  // Those before hold every place, then others come in crowds.
  std::vector<RawClient> idle;
  for (int i = 0; i < 32; ++i) idle.emplace_back(endpoint());
  std::atomic<int> served{0}, turned{0}, other{0};
  std::vector<std::thread> crowds;
  for (int crowd = 0; crowd < 4; ++crowd) {
    crowds.emplace_back([&] {
      for (int i = 0; i < 250; ++i) {
        RawClient client(endpoint());
        client.send("GET /here HTTP/1.1\r\nConnection: close\r\n\r\n");
        const std::string answer = client.read_all();
        const std::string status = answer.substr(0, 12);
        // A reset may take the answer of one that is turned away with it.
        ++(http_body(answer) == "here\n"                                    ? served
           : status == "HTTP/1.1 503" || (answer.empty() && client.ended()) ? turned
                                                                            : other);
      }
    });
  }
  for (std::thread& crowd : crowds) crowd.join();
  EXPECT_EQ(other, 0);
  EXPECT_EQ(served + turned, 1000);
  EXPECT_GT(turned, 0) << "the places were not taken";
  for (RawClient& client : idle) EXPECT_EQ(client.read_all(), "");  // cut at the limit
}

TEST_F(HttpListenerTest, a_port_that_is_taken_is_named) {
  start();
  const std::string port = endpoint().substr(endpoint().rfind(':') + 1);
  const auto second = HttpListener::start("127.0.0.1", static_cast<uint16_t>(std::stoi(port)),
                                          [](const std::string&) -> HttpAnswer { return {}; });
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().text().find("127.0.0.1 port " + port + ": Address already in use"),
            std::string::npos)
      << second.status().text();
  // Connections that are open do not keep it from going, and the place is free at once.
  RawClient open(endpoint());
  ASSERT_TRUE(open.send("GET /here HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(http_body(open.read_answer()), "here\n");
  const std::string before = endpoint();
  listener_.reset();
  EXPECT_EQ(open.read_all(), "");
  auto third = HttpListener::start("127.0.0.1", static_cast<uint16_t>(std::stoi(port)),
                                   [](const std::string&) -> HttpAnswer {
                                     return {200, "text/plain", "here\n"};
                                   });
  ASSERT_TRUE(third.ok()) << third.status().text();
  EXPECT_EQ(third.value()->endpoint(), before);
}

}  // namespace
}  // namespace specd::host
