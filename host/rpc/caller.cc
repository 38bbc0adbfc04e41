#include "host/rpc/caller.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/clock.h"
#include "core/base/quote.h"

namespace specd::host {
namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::string name_of(const UserOptions& options) {
  if (!options.certificate.empty()) return "client " + quote(options.certificate);
  if (!options.id.has_value()) return options.name;
  const std::string id = std::to_string(*options.id);
  return "user " + options.name + (options.name == id ? "" : " (" + id + ")");
}

}  // namespace

Caller::Caller(UserOptions options)
    : options_(std::move(options)), name_(name_of(options_)), number_(next_number()) {}

bool Caller::may(Right right) const {
  const auto has = [this](Right each) {
    return std::ranges::find(options_.rights, each) != options_.rights.end();
  };
  return has(right) || (right == Right::kRead && has(Right::kOperate));
}

uint64_t Caller::refuse() {
  const MutexLock lock(mutex_);
  ++n_refused_;
  const uint64_t now = now_ns();
  if (now < next_line_ns_) return 0;
  next_line_ns_ = now + kSecondNs;
  return std::exchange(n_refused_, 0);
}

Result<Caller::Place> Caller::take_place(uint64_t bytes) {
  const auto refused = [this](const std::string& has, const std::string& key) {
    return Status(Code::kExhausted, name_ + " has " + has + ", which is its limit (" + key +
                                        " in `users`); wait until one ends");
  };
  const MutexLock lock(mutex_);
  if (options_.requests_max > 0 && n_calls_ >= options_.requests_max)
    return refused(std::to_string(n_calls_) + " requests", "requests_max");
  if (options_.waiting_max > 0 && n_waiting_ >= options_.waiting_max)
    return refused(std::to_string(n_waiting_) + " requests that wait for their first output",
                   "waiting_max");
  if (options_.bytes_max > 0 && (bytes > options_.bytes_max || bytes_ > options_.bytes_max - bytes))
    return refused(
        std::to_string(bytes_) + " bytes of requests, and this one has " + std::to_string(bytes),
        "bytes_max");
  ++n_calls_;
  ++n_waiting_;
  bytes_ += bytes;
  return Place(*this, bytes);
}

void Caller::Place::stop_waiting() {
  if (!std::exchange(is_waiting_, false)) return;
  const MutexLock lock(caller_->mutex_);
  --caller_->n_waiting_;
}

Caller::Place::~Place() {
  if (caller_ == nullptr) return;
  const MutexLock lock(caller_->mutex_);
  --caller_->n_calls_;
  if (is_waiting_) --caller_->n_waiting_;
  caller_->bytes_ -= bytes_;
}

}  // namespace specd::host
