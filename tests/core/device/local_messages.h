// Messages between ranks of one process, for tests: as MPI's, but a rank can be stopped, and pieces are small.
#pragma once

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/messages.h"

namespace specd {

class LocalWorld {
 public:
  explicit LocalWorld(int32_t n_ranks)
      : n_ranks_(n_ranks),
        queues_(to_size(n_ranks * n_ranks * kChannels)),
        ends_(to_size(n_ranks)) {}

  int32_t n_ranks() const { return n_ranks_; }
  std::unique_ptr<Messages> end(int32_t rank) { return std::make_unique<End>(*this, rank); }
  // As by SIGSTOP: what it sends and receives from now on stays where it is.
  void stop(int32_t rank) {
    const std::lock_guard lock(mutex_);
    stopped_.insert(rank);
  }
  // The same once it has begun so many messages that are no notices.
  void stop_after(int32_t rank, int32_t n_messages) {
    const std::lock_guard lock(mutex_);
    stops_after_[rank] = n_messages;
  }
  // How many it has begun.
  int32_t n_messages(int32_t rank) {
    const std::lock_guard lock(mutex_);
    return n_messages_[rank];
  }
  // From now on every end says that messages no longer work.
  void break_down() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
  }
  // Transfers that were begun and not asked for until they were done.
  size_t n_open() {
    const std::lock_guard lock(mutex_);
    size_t n = 0;
    for (const auto& transfers : ends_) n += transfers.size();
    return n;
  }

 private:
  static constexpr int32_t kChannels = 3;
  static constexpr uint64_t kEager = 64;  // longer ones are done when they are received

  struct Message {
    int32_t tag = 0;
    std::vector<char> bytes;
    std::shared_ptr<bool> is_received;
  };
  struct Transfer {
    std::shared_ptr<bool> is_done;
    void* to = nullptr;  // of a message that is received
    Message message;
    int32_t n_asked_before = 0;  // is_done() is false so often
  };
  class End final : public Messages {
   public:
    End(LocalWorld& world, int32_t rank) : world_(world), rank_(rank) {}
    int32_t rank() const override { return rank_; }
    int32_t n_ranks() const override { return world_.n_ranks_; }
    int32_t n_here() const override { return world_.n_ranks_; }
    uint64_t bytes_max() const override { return 1500; }

    int32_t send(const void* data, uint64_t bytes, int32_t to, Channel channel,
                 int32_t tag) override {
      const std::lock_guard lock(world_.mutex_);
      const char* begin = static_cast<const char*>(data);
      if (channel != Channel::kNotice) {
        const auto stops = world_.stops_after_.find(rank_);
        if (stops != world_.stops_after_.end() && world_.n_messages_[rank_] >= stops->second) {
          world_.stopped_.insert(rank_);
        }
        ++world_.n_messages_[rank_];
      }
      const bool is_eager = bytes <= kEager || channel == Channel::kNotice;
      auto is_done = std::make_shared<bool>(is_eager && world_.stopped_.count(to) == 0);
      world_.queue(rank_, to, channel).push_back({tag, {begin, begin + bytes}, is_done});
      return add(std::move(is_done));
    }
    int32_t receive(void* data, uint64_t bytes, int32_t from, Channel channel) override {
      const std::lock_guard lock(world_.mutex_);
      auto& queue = world_.queue(from, rank_, channel);
      if (queue.empty() || queue.front().bytes.size() != bytes) throw std::logic_error("receive()");
      const int32_t transfer = add(std::make_shared<bool>(true));
      Transfer& begun = transfers().at(transfer);
      begun.to = data;
      begun.message = std::move(queue.front());
      begun.n_asked_before = channel == Channel::kData ? 1 : 0;
      queue.pop_front();
      return transfer;
    }
    bool is_done(int32_t transfer) override {
      const std::lock_guard lock(world_.mutex_);
      const auto found = transfers().find(transfer);
      if (found == transfers().end()) throw std::logic_error("is_done() of no transfer");
      Transfer& asked = found->second;
      if (is_stopped() || !*asked.is_done || asked.n_asked_before-- > 0) return false;
      if (asked.to != nullptr) {  // the memory is written as late as that
        const std::vector<char>& bytes = asked.message.bytes;
        if (!bytes.empty()) std::memcpy(asked.to, bytes.data(), bytes.size());
        *asked.message.is_received = true;
      }
      transfers().erase(found);
      return true;
    }
    std::optional<Arrived> arrived(int32_t from, Channel channel) override {
      const std::lock_guard lock(world_.mutex_);
      const auto& queue = world_.queue(from, rank_, channel);
      if (queue.empty() || is_stopped() || world_.stopped_.count(from) > 0) return std::nullopt;
      return Arrived{.tag = queue.front().tag, .bytes = queue.front().bytes.size()};
    }
    Status status() const override {
      const std::lock_guard lock(world_.mutex_);
      return world_.is_broken_ ? Status(Code::kUnavailable, "broken") : Status();
    }
    [[noreturn]] void abort(int /*code*/) override { std::abort(); }

   private:
    std::map<int32_t, Transfer>& transfers() { return world_.ends_[to_size(rank_)]; }
    int32_t add(std::shared_ptr<bool> is_done) {
      transfers()[++world_.n_transfers_].is_done = std::move(is_done);
      return world_.n_transfers_;
    }
    bool is_stopped() const { return world_.stopped_.count(rank_) > 0; }

    LocalWorld& world_;
    const int32_t rank_;
  };

  std::deque<Message>& queue(int32_t from, int32_t to, Channel channel) {
    return queues_[to_size((from * n_ranks_ + to) * kChannels + static_cast<int32_t>(channel))];
  }

  const int32_t n_ranks_;
  std::mutex mutex_;
  std::vector<std::deque<Message>> queues_;
  std::vector<std::map<int32_t, Transfer>> ends_;  // open transfers of each rank
  int32_t n_transfers_ = 0;
  std::set<int32_t> stopped_;
  bool is_broken_ = false;
  std::map<int32_t, int32_t> stops_after_, n_messages_;
};

}  // namespace specd
