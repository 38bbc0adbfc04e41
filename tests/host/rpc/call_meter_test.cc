#include "host/rpc/call_meter.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/host/rpc/http2_frames.h"

namespace specd::host {
namespace {

using std::chrono::seconds;

// One client and its server, whose bytes reach the meter in pieces of random size.
class Connection {
 public:
  explicit Connection(unsigned seed = 1) : random_(seed) { client(kHttp2Preface); }

  void open() {
    stream_ += 2;
    client(http2_frame(kHeadersFrame, 4, stream_, "some headers"));
  }
  void reset() { client(http2_frame(kResetFrame, 0, stream_, std::string(4, '\0'))); }
  void answer() {
    server(http2_frame(kHeadersFrame, 4, stream_, "headers"));
    // A payload that would read as the header of a frame.
    server(http2_frame(kDataFrame, 0, stream_, http2_frame(kHeadersFrame, 5, stream_, "")));
    server(http2_frame(kHeadersFrame, 5, stream_, "trailers"));
  }
  void client(const std::string& bytes) {
    in_pieces(bytes, [this](std::string_view piece) { meter_.from_client(piece); });
  }
  void server(const std::string& bytes) {
    in_pieces(bytes, [this](std::string_view piece) { meter_.from_server(piece); });
  }
  bool is_excessive() { return meter_.n_unanswered(now) > 1000; }

 private:
  template <typename To>
  void in_pieces(std::string_view bytes, To to) {
    while (!bytes.empty()) {
      const size_t n = std::uniform_int_distribution<size_t>(1, bytes.size())(random_);
      to(bytes.substr(0, n));
      bytes.remove_prefix(n);
    }
  }

  std::mt19937 random_;
  CallMeter meter_;
  uint32_t stream_ = 1;

 public:
  UnansweredCalls::Clock::time_point now = UnansweredCalls::Clock::now();
};

TEST(CallMeter, calls_that_are_answered_may_be_as_many_as_they_like) {
  Connection connection;
  for (int i = 0; i < 20'000; ++i) {
    connection.open();
    connection.answer();
    ASSERT_FALSE(connection.is_excessive()) << i;
  }
}

TEST(CallMeter, calls_that_are_dropped_at_once_are_excessive_after_a_thousand) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    Connection connection(seed);
    for (int i = 0; i < 1000; ++i) {
      connection.open();
      connection.reset();
      ASSERT_FALSE(connection.is_excessive()) << i;
    }
    connection.open();
    EXPECT_TRUE(connection.is_excessive());
  }
}

TEST(CallMeter, cancelled_calls_are_forgiven_with_time) {
  Connection connection;
  // 200 a second for a minute, beside an answered call for each.
  for (int i = 0; i < 12'000; ++i) {
    connection.open();
    connection.reset();
    connection.open();
    connection.answer();
    connection.now += std::chrono::milliseconds(5);
    ASSERT_FALSE(connection.is_excessive()) << i;
  }
}

TEST(CallMeter, answers_are_no_credit_for_calls_to_come) {
  Connection connection;
  connection.open();
  for (int i = 0; i < 5000; ++i) connection.answer();
  for (int i = 0; i < 1001; ++i) connection.open();
  EXPECT_TRUE(connection.is_excessive());
}

TEST(CallMeter, frames_of_streams_that_no_client_has_do_not_hide_calls) {
  Connection connection;
  connection.client(http2_frame(kHeadersFrame, 4, 0x7ffffffe, "h"));
  for (int i = 0; i < 1001; ++i) connection.open();
  EXPECT_TRUE(connection.is_excessive());
}

TEST(CallMeter, frames_within_a_call_open_none) {
  Connection connection;
  connection.open();
  for (int i = 0; i < 5000; ++i) {
    connection.client(http2_frame(kHeadersFrame, 5, 3, "trailers"));
    connection.client(http2_frame(kDataFrame, 0, 3, http2_frame(kHeadersFrame, 4, 99, "")));
    connection.client(http2_frame(kSettingsFrame, 0, 0, ""));
  }
  EXPECT_FALSE(connection.is_excessive());
}

}  // namespace
}  // namespace specd::host
