#include "host/rpc/call_meter.h"

namespace specd::host {
namespace {

constexpr uint8_t kHeaders = 1;
constexpr uint8_t kEndStream = 1;

}  // namespace

double UnansweredCalls::count(Clock::time_point now) {
  const std::chrono::duration<double> passed = now - forgiven_at_;
  n_ = std::max(0.0, n_ - passed.count() * forgiven_per_second_);
  forgiven_at_ = now;
  return n_;
}

int CallMeter::from_client(std::string_view bytes) {
  int n = 0;
  Frame frame;
  while (client_.next(bytes, frame)) {
    // Streams of a client are odd, and gRPC ignores others.
    if (frame.type != kHeaders || frame.stream % 2 == 0 || frame.stream <= last_stream_) continue;
    last_stream_ = frame.stream;
    ++n;
  }
  calls_.opened(n);
  return n;
}

int CallMeter::from_server(std::string_view bytes) {
  int n = 0;
  Frame frame;
  while (server_.next(bytes, frame)) {
    // The trailers: every call that gRPC answers ends with them.
    if (frame.type == kHeaders && (frame.flags & kEndStream) != 0) ++n;
  }
  calls_.answered(n);
  return n;
}

bool CallMeter::Frames::next(std::string_view& bytes, Frame& frame) {
  while (!bytes.empty()) {
    const size_t n_skipped = std::min(skip_, bytes.size());
    skip_ -= n_skipped;
    bytes.remove_prefix(n_skipped);
    while (n_header_ < kHeaderBytes && !bytes.empty()) {
      header_[n_header_++] = static_cast<uint8_t>(bytes.front());
      bytes.remove_prefix(1);
    }
    if (n_header_ < kHeaderBytes) return false;
    n_header_ = 0;
    skip_ = size_t{header_[0]} << 16 | size_t{header_[1]} << 8 | header_[2];
    frame.type = header_[3];
    frame.flags = header_[4];
    frame.stream = (uint32_t{header_[5]} << 24 | uint32_t{header_[6]} << 16 |
                    uint32_t{header_[7]} << 8 | header_[8]) &
                   0x7fffffff;
    return true;
  }
  return false;
}

}  // namespace specd::host
