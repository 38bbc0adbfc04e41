// The server against clients that do not behave, with bytes on raw sockets.
#include "host/http/http_server.h"

#include <gtest/gtest.h>
#include <ifaddrs.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/host/http/raw_http.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;

HttpHandler at_once(std::function<HttpAnswer(const HttpRequest&)> make) {
  return [make = std::move(make)](const HttpRequest& request,
                                  const std::shared_ptr<HttpReply>& reply) {
    reply->answer(make(request));
  };
}

size_t descriptors() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

class HttpServerTest : public testing::Test {
 protected:
  void SetUp() override { descriptors_ = descriptors(); }
  void TearDown() override {
    // Whatever the clients did, a good one is served at once, and nothing is left behind.
    if (server_ != nullptr) {
      expect_served();
      server_.reset();
    }
    EXPECT_EQ(descriptors(), descriptors_);
  }
  void start(const HttpLimits& limits = {}, HttpPolicy policy = {}) {
    const auto text = [this](const std::string& body) {
      return at_once([this, body](const HttpRequest&) -> HttpAnswer {
        ++calls_;
        return {.body = body};
      });
    };
    auto started = HttpServer::start(
        "127.0.0.1", 0,
        {{"GET", "/here", text("here\n")},
         {"GET", "/big", text(std::string(8 << 20, 'x'))},
         {"GET", "/wait", at_once([this](const HttpRequest&) -> HttpAnswer {
            ++calls_;
            while (!open_) std::this_thread::sleep_for(milliseconds(1));
            return {.body = "waited\n"};
          })},
         {.method = "POST",
          .path = "/echo",
          .handler = at_once([this](const HttpRequest& request) -> HttpAnswer {
            ++calls_;
            return {.body = request.method + " " + request.path + " " + request.body};
          }),
          .body_bytes_max = kEchoBytesMax},
         {"GET", "/things/{thing}/of/{owner}",
          at_once([](const HttpRequest& request) -> HttpAnswer {
            return {.body = std::string(request.parameter("thing")) + " of " +
                            std::string(request.parameter("owner")) + ", " +
                            std::string(request.header("x-note")),
                    .headers = {{"x-answer", "yes"}}};
          })},
         {"GET", "/later",
          [this](const HttpRequest&, std::shared_ptr<HttpReply> reply) {
            reply->when_gone([this] { ++gone_; });
            const std::lock_guard lock(mutex_);
            replies_.push_back(std::move(reply));
            changed_.notify_all();
          }}},
        limits, std::move(policy));
    ASSERT_TRUE(started.ok()) << started.status().text();
    server_ = std::move(started).value();
  }
  std::string endpoint() const { return server_->endpoint(); }
  // The reply to the next request for /later.
  std::shared_ptr<HttpReply> next_reply() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(60), [this] { return !replies_.empty(); }));
    auto reply = std::move(replies_.front());
    replies_.pop_front();
    return reply;
  }
  // Writes a part and waits for what becomes of it.
  static bool write(HttpReply& reply, const std::string& part) {
    auto done = std::make_shared<std::promise<bool>>();
    auto is_sent = done->get_future();
    reply.write(part, [done](bool ok) { done->set_value(ok); });
    EXPECT_EQ(is_sent.wait_for(std::chrono::seconds(60)), std::future_status::ready);
    return is_sent.get();
  }
  bool eventually_gone(int n) {
    for (int i = 0; i < 6000 && gone_ < n; ++i) std::this_thread::sleep_for(milliseconds(10));
    return gone_ == n;
  }
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
  // Up to the end of the connection, which has to come.
  std::string send_and_read(const std::string& bytes) {
    RawClient client(endpoint());
    EXPECT_TRUE(client.send(bytes));
    const std::string answer = client.read_all();
    EXPECT_TRUE(client.ended()) << answer;
    return answer;
  }
  std::string refused(const std::string& bytes) {
    const std::string answer = send_and_read(bytes);
    EXPECT_NE(answer.find("Connection: close"), std::string::npos) << answer;
    return answer.substr(0, 12);
  }

  static constexpr size_t kEchoBytesMax = 100'000;
  std::unique_ptr<HttpServer> server_;
  std::atomic<int> calls_{0};
  std::atomic<bool> open_{false};  // lets /wait answer
  std::atomic<int> gone_{0};       // clients of /later that went before the end

 private:
  size_t descriptors_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<HttpReply>> replies_;
};

constexpr char kAskLater[] = "GET /later HTTP/1.1\r\nHost: a\r\n\r\n";

TEST_F(HttpServerTest, get_and_head_are_answered_on_one_connection) {
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
  // As a proxy sends it.
  EXPECT_EQ(http_body(http_get(endpoint(), "http://" + endpoint() + "/here?x=1")), "here\n");
  EXPECT_NE(http_get(endpoint(), "http://" + endpoint()).find("404"), std::string::npos);
  // The old version closes by itself.
  RawClient old(endpoint());
  ASSERT_TRUE(old.send("GET /here HTTP/1.0\r\n\r\n"));
  EXPECT_EQ(http_body(old.read_all()), "here\n");
  EXPECT_TRUE(old.ended());
}

TEST_F(HttpServerTest, what_is_not_taken_gets_a_defined_answer) {
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
        std::string("GET /here HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
        std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(64, '\xee'),
        std::string("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), std::string(1, '\0') + "\r\n\r\n"}) {
    EXPECT_EQ(refused(garbage), "HTTP/1.1 400") << garbage;
  }
  EXPECT_EQ(calls_, 0) << "nothing of that is for a handler";
}

TEST_F(HttpServerTest, a_body_whose_end_proxies_may_see_elsewhere_is_refused) {
  start();
  const std::string next = "\r\n\r\n0\r\n\r\nGET /here HTTP/1.1\r\n\r\n";
  for (const std::string headers :
       {"HTTP/1.1\r\nTransfer-Encoding: gzip", "HTTP/1.1\r\nTransfer-Encoding: chunked, gzip",
        "HTTP/1.1\r\nTransfer-Encoding: gzip, chunked", "HTTP/1.1\r\nTransfer-Encoding: xchunked",
        "HTTP/1.1\r\nTransfer-Encoding: identity\r\nContent-Length: 5",
        "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: gzip",
        "HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5",
        "HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6",
        "HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked"}) {
    for (const std::string request : {"POST /echo ", "GET /here "}) {
      const std::string answer = send_and_read(request + headers + next);
      EXPECT_EQ(answer.substr(9, 3), "400") << request << headers << "\n" << answer;
      EXPECT_EQ(answer.find("\nHTTP/1"), std::string::npos) << "the body was taken for a request";
    }
  }
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, what_is_malformed_is_named) {
  start();
  EXPECT_EQ(http_body(send_and_read("GET /here HTTP/1.1\r\nContent-Length: -1\r\n\r\n")),
            "malformed HTTP: bad Content-Length\n");
  EXPECT_EQ(http_body(send_and_read("GET /here HTTP/1.1\r\nA: " + std::string(9000, 'a'))),
            "expected headers of at most 8192 bytes\n");
  EXPECT_EQ(http_body(send_and_read("GET /here HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")),
            "expected one Host header, found 2\n");
}

TEST_F(HttpServerTest, the_path_of_an_absolute_target_ends_before_its_query) {
  start();
  for (const auto& [target, path] :
       std::vector<std::pair<std::string, std::string>>{{"http://a/here", "/here"},
                                                        {"http://a/here?x", "/here"},
                                                        {"http://a?x=/here", "/"},
                                                        {"http://a", "/"}}) {
    const std::string answer =
        send_and_read("GET " + target + " HTTP/1.1\r\nConnection: close\r\n\r\n");
    EXPECT_EQ(answer.substr(9, 3), path == "/here" ? "200" : "404") << target;
  }
}

TEST_F(HttpServerTest, random_bytes_never_reach_a_handler) {
  start({.time_limit = milliseconds(300)});
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

TEST_F(HttpServerTest, a_client_that_does_not_finish_a_request_is_cut_at_the_limit) {
  start({.time_limit = milliseconds(400)});
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

TEST_F(HttpServerTest, who_does_not_read_the_answer_is_cut_and_holds_nobody_up) {
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

TEST_F(HttpServerTest, connections_whose_answers_are_not_read_do_not_keep_others_out) {
  start({.connections_max = 8});
  std::vector<RawClient> lazy;
  for (int i = 0; i < 16; ++i) {  // twice as many as there are places
    lazy.emplace_back(endpoint());
    ASSERT_TRUE(lazy.back().send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n"));
    while (calls_ <= i) std::this_thread::sleep_for(milliseconds(1));
    if (i < 7) continue;
    EXPECT_EQ(http_body(http_get(endpoint(), "/here")), "here\n") << i;
    calls_ = i + 1;
  }
  // Those that waited longest made room.
  EXPECT_LT(lazy.front().read_all().size(), size_t{8} << 20);
  EXPECT_TRUE(lazy.front().ended());
  // One that has its place is answered as soon as it reads.
  EXPECT_GT(lazy.back().read_answer().size(), size_t{8} << 20);
}

TEST_F(HttpServerTest, a_thousand_connections_are_served_or_turned_away) {
  start({.connections_max = 32, .time_limit = milliseconds(3000)});
  // Idle connections hold every place, then others come in crowds.
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
  EXPECT_GT(served, 900) << "idle connections kept others out";
  for (RawClient& client : idle)
    EXPECT_EQ(client.read_all(), "");  // made room, or cut at the limit
}

TEST_F(HttpServerTest, connections_that_ask_for_nothing_do_not_keep_others_out) {
  start({.connections_max = 8});
  std::vector<RawClient> idle;
  for (int i = 0; i < 8; ++i) {
    idle.emplace_back(endpoint());
    ASSERT_TRUE(idle.back().send(i % 2 == 0 ? "GET /here HTTP/1.1\r\n" : ""));
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(http_body(http_get(endpoint(), "/here")), "here\n") << i;
  // Those that waited longest made room.
  EXPECT_EQ(idle.front().read_all(), "");
  EXPECT_TRUE(idle.front().ended());
  EXPECT_EQ(idle.back().read_all(milliseconds(0)), "");
  EXPECT_FALSE(idle.back().ended());
}

TEST_F(HttpServerTest, answered_connections_that_are_not_closed_do_not_keep_others_out) {
  start({.connections_max = 4});
  std::vector<RawClient> answered;
  for (int i = 0; i < 12; ++i) {
    answered.emplace_back(endpoint());
    ASSERT_TRUE(answered.back().send("GET /here HTTP/1.0\r\n\r\n"));
    EXPECT_EQ(http_body(answered.back().read_answer()), "here\n") << i;
  }
}

TEST_F(HttpServerTest, a_connection_that_is_being_answered_keeps_its_place) {
  start({.threads = 3, .connections_max = 2});
  std::vector<RawClient> busy;
  for (int i = 0; i < 2; ++i) {
    busy.emplace_back(endpoint());
    ASSERT_TRUE(busy.back().send("GET /wait HTTP/1.1\r\nConnection: close\r\n\r\n"));
  }
  while (calls_ < 2) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(http_get(endpoint(), "/here").substr(0, 12), "HTTP/1.1 503");
  open_ = true;
  for (RawClient& client : busy) EXPECT_EQ(http_body(client.read_all()), "waited\n");
}

TEST_F(HttpServerTest, a_port_that_is_taken_is_named) {
  start();
  const std::string port = endpoint().substr(endpoint().rfind(':') + 1);
  const auto second = HttpServer::start("127.0.0.1", static_cast<uint16_t>(std::stoi(port)), {});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().text().find("127.0.0.1 port " + port + ": Address already in use"),
            std::string::npos)
      << second.status().text();
  // Connections that are open do not keep it from going, and the place is free at once.
  RawClient open(endpoint());
  ASSERT_TRUE(open.send("GET /here HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(http_body(open.read_answer()), "here\n");
  const std::string before = endpoint();
  server_.reset();
  EXPECT_EQ(open.read_all(), "");
  auto third = HttpServer::start("127.0.0.1", static_cast<uint16_t>(std::stoi(port)), {});
  ASSERT_TRUE(third.ok()) << third.status().text();
  EXPECT_EQ(third.value()->endpoint(), before);
}

TEST_F(HttpServerTest, a_body_of_known_length_or_in_chunks_reaches_its_route) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("POST /echo?x=1 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo hello");
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                  "3\r\nhel\r\n2;name=value\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo hello");
  // In pieces, and larger than what is read at once.
  const std::string large(kEchoBytesMax, 'b');
  ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: " +
                          std::to_string(large.size()) + "\r\n\r\n" + large.substr(0, 10)));
  std::this_thread::sleep_for(milliseconds(50));
  ASSERT_TRUE(client.send(large.substr(10)));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo " + large);
  // None at all, on the same connection.
  ASSERT_TRUE(client.send("POST /echo HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo ");
}

TEST_F(HttpServerTest, a_client_that_waits_for_continue_is_told_to_send_its_body) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_answer(true), "HTTP/1.1 100 Continue\r\n\r\n");
  ASSERT_TRUE(client.send("hello"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo hello");
  // A body that is too large is refused before it is sent.
  EXPECT_EQ(refused("POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n"
                    "Expect: 100-continue\r\n\r\n"),
            "HTTP/1.1 413");
  // A client of HTTP/1.0 does not know that answer.
  EXPECT_EQ(http_body(send_and_read("POST /echo HTTP/1.0\r\nContent-Length: 5\r\n"
                                    "Expect: 100-continue\r\n\r\nhello")),
            "POST /echo hello");
}

TEST_F(HttpServerTest, a_body_beyond_the_limit_of_its_route_is_refused) {
  start();
  EXPECT_EQ(refused("POST /echo HTTP/1.1\r\nContent-Length: 100001\r\n\r\n"), "HTTP/1.1 413");
  EXPECT_EQ(refused("POST /echo HTTP/1.1\r\nContent-Length: 99999999999999999\r\n\r\n"),
            "HTTP/1.1 413");
  const std::string chunk = "c350\r\n" + std::string(50'000, 'c') + "\r\n";
  EXPECT_EQ(refused("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk + chunk +
                    "1\r\nc\r\n0\r\n\r\n"),
            "HTTP/1.1 413");
  for (const char* garbage : {"zz\r\nhello\r\n", "5\r\nhelloXX0\r\n\r\n", "-1\r\n"}) {
    EXPECT_EQ(
        refused("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + std::string(garbage)),
        "HTTP/1.1 400")
        << garbage;
  }
  EXPECT_EQ(refused("POST /nowhere HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello"), "HTTP/1.1 404");
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, what_can_be_asked_for_is_named) {
  start();
  EXPECT_EQ(http_body(http_get(endpoint(), "/nowhere")),
            "expected /here, /big, /wait, /echo, /things/{thing}/of/{owner} or /later\n");
  const std::string answer = http_get(endpoint(), "/echo");
  EXPECT_EQ(answer.substr(0, 12), "HTTP/1.1 405") << answer;
  EXPECT_NE(answer.find("Allow: POST\r\n"), std::string::npos) << answer;
  EXPECT_EQ(http_body(answer), "expected POST\n");
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("PUT /here HTTP/1.1\r\nHost: a\r\n\r\n"));
  const std::string other = client.read_all();
  EXPECT_NE(other.find("Allow: GET, HEAD\r\n"), std::string::npos) << other;
  EXPECT_EQ(http_body(other), "expected GET or HEAD\n");
}

TEST_F(HttpServerTest, a_body_that_does_not_come_is_cut_at_the_limit) {
  start({.time_limit = milliseconds(300)});
  RawClient half(endpoint());
  ASSERT_TRUE(half.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 50\r\n\r\nhel"));
  RawClient loris(endpoint());
  ASSERT_TRUE(loris.send("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 500\r\n\r\n"));
  bool taken = true;
  const auto begin = std::chrono::steady_clock::now();
  while (taken && std::chrono::steady_clock::now() - begin < std::chrono::seconds(8)) {
    std::this_thread::sleep_for(milliseconds(20));
    taken = loris.send("x");
  }
  EXPECT_FALSE(taken) << "one byte at a time wins more time";
  EXPECT_EQ(half.read_all(), "");
  EXPECT_TRUE(half.ended());
  EXPECT_EQ(calls_, 0);
}

TEST_F(HttpServerTest, as_many_handlers_run_at_once_as_there_are_threads) {
  start({.threads = 3});
  std::vector<RawClient> slow;
  for (int i = 0; i < 2; ++i) {
    slow.emplace_back(endpoint());
    ASSERT_TRUE(slow.back().send("GET /wait HTTP/1.1\r\nHost: a\r\n\r\n"));
    while (calls_ <= i) std::this_thread::sleep_for(milliseconds(1));
  }
  expect_served();  // by the third
  open_ = true;
  for (RawClient& client : slow) EXPECT_EQ(http_body(client.read_answer()), "waited\n");
}

TEST_F(HttpServerTest, many_clients_on_many_threads_get_the_answers_to_their_own_requests) {
  start({.threads = 4});
  std::atomic<int> wrong{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < 8; ++c) {
    clients.emplace_back([&, c] {
      RawClient client(endpoint());
      for (int i = 0; i < 50; ++i) {
        // Two requests in one write, the second with a body.
        const std::string body = std::to_string(c) + "-" + std::to_string(i);
        client.send(
            "GET /here HTTP/1.1\r\nHost: a\r\n\r\nPOST /echo HTTP/1.1\r\nHost: a\r\n"
            "Content-Length: " +
            std::to_string(body.size()) + "\r\n\r\n" + body);
        const std::string end = "POST /echo " + body;
        const std::string answers = client.read_until("\r\n\r\n" + end);
        if (answers.find("\r\n\r\nhere\nHTTP/1.1 200 OK") == std::string::npos ||
            !answers.ends_with(end))
          ++wrong;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(calls_, 8 * 50 * 2);
}

TEST_F(HttpServerTest, segments_of_a_path_and_headers_reach_the_handler_decoded) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(
      client.send("GET /things/a%20b%2fc/of/%4 HTTP/1.1\r\nHost: a\r\nX-NOTE: here\r\n\r\n"));
  const std::string answer = client.read_answer();
  EXPECT_EQ(http_body(answer), "a b/c of %4, here");
  EXPECT_NE(answer.find("x-answer: yes\r\n"), std::string::npos) << answer;
  for (const char* path : {"/things//of/x", "/things/a/of/", "/things/a/of", "/things/a/of/b/c"})
    EXPECT_NE(http_get(endpoint(), path).find("404"), std::string::npos) << path;
}

TEST_F(HttpServerTest, an_answer_in_parts_arrives_part_by_part_and_the_connection_serves_on) {
  start();
  RawClient client(endpoint());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(client.send(kAskLater));
    const auto reply = next_reply();
    reply->start({.content_type = "text/event-stream", .headers = {{"x-id", "7"}}}, "");
    const std::string head = client.read_until("\r\n\r\n");
    EXPECT_EQ(head.substr(0, 15), "HTTP/1.1 200 OK") << head;
    EXPECT_NE(head.find("Content-Type: text/event-stream\r\n"), std::string::npos) << head;
    EXPECT_NE(head.find("Transfer-Encoding: chunked\r\n"), std::string::npos) << head;
    EXPECT_NE(head.find("x-id: 7\r\n"), std::string::npos) << head;
    EXPECT_EQ(head.find("Content-Length"), std::string::npos) << head;
    EXPECT_TRUE(write(*reply, "data: one\n\n"));
    EXPECT_EQ(client.read_until("\n\n\r\n"), "b\r\ndata: one\n\n\r\n");
    EXPECT_TRUE(write(*reply, std::string(300, 'x')));
    EXPECT_EQ(client.read_until("x\r\n"), "12c\r\n" + std::string(300, 'x') + "\r\n");
    reply->finish();
    EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  }
  EXPECT_EQ(gone_, 0);
}

TEST_F(HttpServerTest, a_part_may_be_written_and_the_answer_finished_as_soon_as_one_is_on_its_way) {
  start();
  for (const std::string version : {"1.1", "1.0"}) {
    RawClient client(endpoint());
    ASSERT_TRUE(client.send("GET /later HTTP/" + version + "\r\nHost: x\r\n\r\n"));
    const auto reply = next_reply();
    reply->start({}, "");
    int n = 0;
    std::function<void(bool)> next = [&](bool is_sent) {
      EXPECT_TRUE(is_sent);
      // A copy: the server's thread may count on as soon as `write` was called.
      const int part = ++n;
      if (part == 4) return reply->finish();
      reply->write("part " + std::to_string(part) + "\n", next);
      if (part == 2) reply->write("extra\n", [](bool) {});
    };
    next(true);
    if (version == "1.0") {
      EXPECT_EQ(http_body(client.read_all()), "part 1\npart 2\nextra\npart 3\n");
      continue;
    }
    EXPECT_EQ(http_body(client.read_until("0\r\n\r\n")),
              "7\r\npart 1\n\r\n7\r\npart 2\n\r\n6\r\nextra\n\r\n7\r\npart 3\n\r\n0\r\n\r\n");
    ASSERT_TRUE(client.send("GET /here HTTP/1.1\r\nHost: x\r\n\r\n"));
    EXPECT_EQ(http_body(client.read_answer()), "here\n");
  }
}

TEST_F(HttpServerTest, an_answer_without_content_names_no_length) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("GET /later HTTP/1.1\r\nHost: x\r\n\r\n"));
  next_reply()->answer({.status = 204});
  const std::string answer = client.read_until("\r\n\r\n");
  EXPECT_EQ(answer.find("HTTP/1.1 204 No Content\r\n"), 0U) << answer;
  EXPECT_EQ(answer.find("Content-Length"), std::string::npos) << answer;
  ASSERT_TRUE(client.send("GET /here HTTP/1.1\r\nHost: x\r\n\r\n"));
  EXPECT_EQ(http_body(client.read_answer()), "here\n");
}

TEST_F(HttpServerTest, an_old_client_gets_the_parts_up_to_the_end_of_the_connection) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("GET /later HTTP/1.0\r\n\r\n"));
  const auto reply = next_reply();
  reply->start({}, "");
  EXPECT_TRUE(write(*reply, "one,"));
  EXPECT_TRUE(write(*reply, "two"));
  reply->finish();
  EXPECT_EQ(http_body(client.read_all()), "one,two");
  EXPECT_TRUE(client.ended());
}

TEST_F(HttpServerTest, an_answer_may_come_later_and_requests_behind_it_wait) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(std::string(kAskLater) + "GET /here HTTP/1.1\r\nHost: a\r\n\r\n"));
  const auto reply = next_reply();
  EXPECT_EQ(client.read_all(milliseconds(50)), "");
  reply->answer({.body = "late\n"});
  const std::string answers = client.read_until("here\n");
  EXPECT_NE(answers.find("late\nHTTP/1.1 200 OK"), std::string::npos) << answers;
  reply->answer({.body = "twice"});  // it is answered
  EXPECT_EQ(client.read_all(milliseconds(50)), "");
  EXPECT_EQ(gone_, 0);
}

TEST_F(HttpServerTest, a_handler_is_told_when_its_client_goes) {
  start();
  for (const bool has_begun : {false, true}) {
    gone_ = 0;
    auto client = std::make_unique<RawClient>(endpoint());
    ASSERT_TRUE(client->send(kAskLater));
    const auto reply = next_reply();
    if (has_begun) {
      reply->start({}, "");
      EXPECT_TRUE(write(*reply, "one"));
    }
    client.reset();
    EXPECT_TRUE(eventually_gone(1));
    EXPECT_FALSE(write(*reply, "two"));
    std::promise<void> late;
    reply->when_gone([&late] { late.set_value(); });
    EXPECT_EQ(late.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
    reply->finish();
    reply->answer({});
  }
}

TEST_F(HttpServerTest, a_client_that_closes_its_sending_side_is_gone) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(kAskLater));
  const auto reply = next_reply();
  client.finish();
  EXPECT_TRUE(eventually_gone(1));
  EXPECT_EQ(client.read_all(), "");
}

TEST_F(HttpServerTest, a_request_that_nobody_answers_ends_its_connection) {
  start();
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(kAskLater));
  next_reply().reset();
  EXPECT_EQ(client.read_all(), "");
  EXPECT_TRUE(client.ended());
}

TEST_F(HttpServerTest, a_stream_that_says_nothing_sends_its_idle_text) {
  start({.idle_text_after = milliseconds(100)});
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(kAskLater));
  const auto reply = next_reply();
  reply->start({}, ": ping\n\n");
  client.read_until("\r\n\r\n");
  EXPECT_EQ(client.read_until("8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n"),
            "8\r\n: ping\n\n\r\n8\r\n: ping\n\n\r\n");
  EXPECT_TRUE(write(*reply, "one"));
  reply->finish();
  const std::string rest = client.read_until("0\r\n\r\n");
  EXPECT_NE(rest.find("3\r\none\r\n"), std::string::npos) << rest;
  EXPECT_EQ(client.read_all(milliseconds(300)), "") << "after its end";
}

TEST_F(HttpServerTest, who_does_not_read_the_parts_is_cut_at_the_limit) {
  start({.time_limit = milliseconds(300)});
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(kAskLater));
  const auto reply = next_reply();
  reply->start({}, "");
  std::this_thread::sleep_for(milliseconds(500));  // the handler's own time has no limit
  int parts = 0;
  while (write(*reply, std::string(1 << 20, 'x')) && parts < 100) ++parts;
  EXPECT_LT(parts, 100);
  EXPECT_TRUE(eventually_gone(1));
}

TEST_F(HttpServerTest, parts_of_many_writers_stay_whole) {
  start({.threads = 3});
  RawClient client(endpoint());
  ASSERT_TRUE(client.send(kAskLater));
  const auto reply = next_reply();
  reply->start({}, "");
  std::vector<std::thread> writers;
  for (const char c : {'a', 'b', 'c', 'd'})
    writers.emplace_back([&reply, c] {
      for (int i = 0; i < 200; ++i) EXPECT_TRUE(write(*reply, std::string(16, c)));
    });
  for (std::thread& writer : writers) writer.join();
  reply->finish();
  const std::string body = http_body(client.read_until("0\r\n\r\n"));
  ASSERT_EQ(body.size(), 800 * 22u + 5);
  for (size_t i = 0; i + 5 < body.size(); i += 22)
    EXPECT_EQ(body.substr(i, 22), "10\r\n" + std::string(16, body[i + 4]) + "\r\n");
}

TEST_F(HttpServerTest, what_the_policy_does_not_admit_is_answered_before_its_body_is_sent) {
  start({}, {.admit = [](const HttpRequest& request) -> std::optional<HttpRefusal> {
               if (request.header("authorization") == "Bearer k" || request.path == "/here")
                 return std::nullopt;
               return HttpRefusal{401, "no " + request.path};
             },
             .refuse =
                 [](const std::string& path, const HttpRefusal& why) {
                   return HttpAnswer{.status = why.status,
                                     .body = "<" + path + ": " + why.text + ">"};
                 }});
  RawClient client(endpoint());
  ASSERT_TRUE(client.send("GET /big HTTP/1.1\r\nHost: a\r\n\r\n"));
  EXPECT_EQ(http_body(client.read_answer()), "</big: no /big>");
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n"
                  "Authorization: Bearer k\r\n\r\nhello"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo hello");
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n"
                  "Expect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.read_all().substr(0, 12), "HTTP/1.1 401");
  EXPECT_EQ(http_body(http_get(endpoint(), "/nowhere")).substr(0, 20), "</nowhere: expected ");
  EXPECT_EQ(calls_, 1);
}

TEST_F(HttpServerTest, a_compressed_body_is_refused) {
  start();
  EXPECT_EQ(refused("POST /echo HTTP/1.1\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\n"),
            "HTTP/1.1 415");
  RawClient client(endpoint());
  ASSERT_TRUE(
      client.send("POST /echo HTTP/1.1\r\nContent-Length: 2\r\n"
                  "Content-Encoding: identity\r\n\r\nhi"));
  EXPECT_EQ(http_body(client.read_answer()), "POST /echo hi");
}

TEST_F(HttpServerTest, a_server_that_stops_lets_its_clients_read_their_answers) {
  start();
  RawClient idle(endpoint()), waiting(endpoint()), late(endpoint());
  for (RawClient* each : {&waiting, &late}) ASSERT_TRUE(each->send(kAskLater));
  auto first = next_reply(), second = next_reply();
  std::thread stop([this] { server_->stop(milliseconds(700)); });
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_TRUE(idle.ended());
  first->answer({.body = "in time\n"});
  std::string answers = waiting.read_all(milliseconds(100)) + late.read_all(milliseconds(100));
  EXPECT_EQ(http_body(answers), "in time\n");
  stop.join();
  EXPECT_EQ(gone_, 0);
  // The other is gone when the server is.
  std::thread destroy([this] { server_.reset(); });
  EXPECT_TRUE(eventually_gone(1));
  first.reset();
  second.reset();
  destroy.join();
}

TEST_F(HttpServerTest, one_address_gets_its_share_of_the_connections) {
  ifaddrs* all = nullptr;
  ASSERT_EQ(getifaddrs(&all), 0);
  std::string address;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET) continue;
    const auto ip = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr;
    if ((ntohl(ip.s_addr) >> 24) != 127) address = inet_ntoa(ip);
  }
  freeifaddrs(all);
  if (address.empty()) GTEST_SKIP() << "this machine has loopback addresses only";
  auto started = HttpServer::start(
      address, 0,
      {{"GET", "/here", at_once([](const HttpRequest&) { return HttpAnswer{.body = "here\n"}; })}},
      {.connections_max = 8, .of_address_max = 3});
  ASSERT_TRUE(started.ok()) << started.status().text();
  const std::string at = started.value()->endpoint();
  std::vector<RawClient> crowd;
  for (int i = 0; i < 3; ++i) {
    crowd.emplace_back(at);
    ASSERT_TRUE(crowd.back().send("GET /here HTTP/1.1\r\nHost: a\r\n\r\n"));
    EXPECT_EQ(http_body(crowd.back().read_answer()), "here\n");
  }
  EXPECT_EQ(http_get(at, "/here").substr(0, 12), "HTTP/1.1 503");
  crowd.pop_back();
  std::string answer;
  for (int i = 0; i < 500 && http_body(answer) != "here\n"; ++i) answer = http_get(at, "/here");
  EXPECT_EQ(http_body(answer), "here\n");
}

TEST_F(HttpServerTest, a_server_of_both_protocols_tells_addresses_of_ipv4_apart) {
  auto started = HttpServer::start(
      "::", 0,
      {{"GET", "/here", at_once([](const HttpRequest&) { return HttpAnswer{.body = "here\n"}; })}},
      {.connections_max = 8, .of_address_max = 3});
  if (!started.ok()) GTEST_SKIP() << started.status().text();  // no IPv6
  const std::string& endpoint = started.value()->endpoint();
  const std::string at = "127.0.0.1" + endpoint.substr(endpoint.rfind(':'));
  std::vector<RawClient> crowd;  // more than one address may have, but that of loopback
  for (int i = 0; i < 5; ++i) {
    crowd.emplace_back(at);
    if (!crowd.back().connected()) GTEST_SKIP() << "the system's sockets of IPv6 take no IPv4";
    ASSERT_TRUE(crowd.back().send("GET /here HTTP/1.1\r\nHost: a\r\n\r\n"));
    EXPECT_EQ(http_body(crowd.back().read_answer()), "here\n");
  }
}

}  // namespace
}  // namespace specd::host
