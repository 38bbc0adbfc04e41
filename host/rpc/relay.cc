#include "host/rpc/relay.h"

#include <array>
#include <cerrno>
#include <utility>

namespace specd::host {
namespace {

constexpr size_t kBlockBytes = size_t{64} << 10;
constexpr int kBlocksPerTurn = 8;
// Calls without an answer; see call_meter.h for what each costs. More than kOwnMax are not those of
// a client with honest cancellations. While all connections together have more than kAllMax, those
// with more than kNeverHeldMax wait.
constexpr double kOwnMax = 1000, kAllMax = 4000, kNeverHeldMax = 16;

}  // namespace

Relay::Relay(std::unique_ptr<Stream> client, FileDescriptor server, Peer peer,
             UnansweredCalls& calls)
    : client_(std::move(client)),
      server_(std::move(server)),
      peer_(std::move(peer)),
      calls_(calls) {}

Relay::State Relay::pump() {
  const auto pass_answer = [this](std::string_view bytes) {
    calls_.answered(meter_.from_server(bytes));
    return true;
  };
  const bool more_answers = carry(answers_, server_, *client_, pass_answer);
  // When the client closes first, gRPC is told and closes too.
  if (answers_.is_closed) return close();
  const auto now = UnansweredCalls::Clock::now();
  if (calls_.count(now) > kAllMax && meter_.n_unanswered(now) > kNeverHeldMax) return State::kHeld;
  const auto pass_request = [this, now](std::string_view bytes) {
    const int n_opened = meter_.from_client(bytes);
    if (meter_.n_unanswered(now) > kOwnMax) return false;
    calls_.opened(n_opened);
    return true;
  };
  const bool more_requests = carry(requests_, *client_, server_, pass_request);
  if (meter_.n_unanswered(now) > kOwnMax) return State::kAbusive;
  return more_requests || more_answers ? State::kBusy : State::kWaiting;
}

Relay::State Relay::close() {
  const ssize_t n = client_->linger();
  if (n > 0) return State::kBusy;
  return n < 0 && errno == EAGAIN ? State::kClosing : State::kEnded;
}

// Returns true when the turn ended before the direction was full or empty.
template <typename MayPass>
bool Relay::carry(Direction& direction, Stream& from, Stream& to, MayPass may_pass) {
  if (direction.is_closed) return false;
  if (!direction.unsent.empty()) {
    const std::string unsent = std::exchange(direction.unsent, {});
    if (!send_some(direction, to, unsent)) return false;
  }
  std::array<char, kBlockBytes> block;
  for (int i = 0; i < kBlocksPerTurn; ++i) {
    const ssize_t n = from.receive(block.data(), block.size());
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) {
      direction.is_closed = true;
      to.finish();
      return false;
    }
    const std::string_view bytes(block.data(), static_cast<size_t>(n));
    if (!may_pass(bytes)) return false;
    if (!send_some(direction, to, bytes)) return false;
  }
  return true;
}

// Returns false when `to` does not take all of them now. What is left waits in the direction.
bool Relay::send_some(Direction& direction, Stream& to, std::string_view bytes) {
  const ssize_t n = to.send(bytes.data(), bytes.size());
  // A side that left misses nothing. What it sent before still has to reach the other.
  if (n < 0 && (errno == EPIPE || errno == ECONNRESET)) return true;
  if (n < 0 && errno != EAGAIN) {
    direction.is_closed = true;
    return false;
  }
  bytes.remove_prefix(n < 0 ? 0 : static_cast<size_t>(n));
  direction.unsent.assign(bytes);
  return bytes.empty();
}

}  // namespace specd::host
