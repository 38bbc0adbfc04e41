// Sees a client that opens calls and drops them at once, from the HTTP/2 frames of its connection.
//
// A call that was reset no longer counts as one of the connection's streams, but gRPC keeps its
// memory until it gets round to it. 150,000 calls opened and reset in one go held 2.4 GiB, which no
// option of grpc 1.51 limits (CVE-2023-44487). Frames: RFC 9113, sections 3.4, 4.1 and 6.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace specd::host {

// Calls that were opened and not answered. They are forgiven with time: by then gRPC has cleared
// them away, or they run.
class UnansweredCalls {
 public:
  using Clock = std::chrono::steady_clock;

  explicit UnansweredCalls(double forgiven_per_second)
      : forgiven_per_second_(forgiven_per_second) {}
  void opened(int n) { n_ += n; }
  void answered(int n) { n_ = std::max(0.0, n_ - n); }
  double count(Clock::time_point now);

 private:
  double forgiven_per_second_;
  double n_ = 0;
  Clock::time_point forgiven_at_ = Clock::now();
};

class CallMeter {
 public:
  // What passes in each direction, in order and in pieces of any size. Returns how many calls the
  // client has opened with it, and how many the server has answered.
  int from_client(std::string_view bytes);
  int from_server(std::string_view bytes);
  double n_unanswered(UnansweredCalls::Clock::time_point now) { return calls_.count(now); }

 private:
  struct Frame {
    uint8_t type, flags;
    uint32_t stream;
  };
  // Cuts a direction into frames.
  class Frames {
   public:
    explicit Frames(size_t preface_bytes) : skip_(preface_bytes) {}
    // Takes bytes off the front of `bytes`; true when they complete the header of a frame.
    bool next(std::string_view& bytes, Frame& frame);

   private:
    static constexpr size_t kHeaderBytes = 9;
    size_t skip_;  // bytes of the preface or of a payload, still to come
    std::array<uint8_t, kHeaderBytes> header_{};
    size_t n_header_ = 0;
  };

  UnansweredCalls calls_{250};
  Frames client_{24}, server_{0};
  uint32_t last_stream_ = 0;  // stream ids of a client only grow
};

}  // namespace specd::host
