#include "host/rpc/caller.h"

#include <algorithm>

namespace specd::host {
namespace {

uint64_t next_number() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::string name_of(const UserOptions& options) {
  const std::string id = std::to_string(options.id);
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

Result<Caller::Place> Caller::take_place(uint64_t bytes) {
  const int64_t n_before = n_calls_++;
  const uint64_t bytes_before = bytes_.fetch_add(bytes);
  Place place(*this, bytes);
  const auto refused = [&](const std::string& has, const std::string& key) {
    return Status(Code::kExhausted, name() + " has " + has + ", which is its limit (" + key +
                                        " in `users`); wait until one ends");
  };
  if (options_.requests_max > 0 && n_before >= options_.requests_max)
    return refused(std::to_string(n_before) + " requests", "requests_max");
  if (options_.bytes_max > 0 && bytes_before + bytes > options_.bytes_max)
    return refused(std::to_string(bytes_before) + " bytes of requests, and this one has " +
                       std::to_string(bytes),
                   "bytes_max");
  return place;
}

Caller::Place::~Place() {
  if (caller_ == nullptr) return;
  --caller_->n_calls_;
  caller_->bytes_ -= bytes_;
}

}  // namespace specd::host
