#include "core/device/thread_ranks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <new>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "core/base/check.h"
#include "core/base/mutex.h"
#include "core/base/to_size.h"
#include "core/device/exchange.h"
#include "core/device/pairwise_rank.h"

namespace specd {
namespace {

using Clock = std::chrono::steady_clock;

// From one rank to another. The sender offers memory, then waits until the receiver has read it. What either
// of them writes has a cache line of its own.
struct alignas(64) Channel {  // NOLINT(clang-analyzer-optin.performance.Padding)
  const void* data = nullptr;
  uint64_t bytes = 0;
  Exchange kind = Exchange::kSend;
  std::atomic<uint64_t> n_offered{0};
  alignas(64) std::atomic<uint64_t> n_read{0};
  std::atomic<bool> is_read{false};  // at this moment
};

class Group {
 public:
  Group(int32_t n_ranks, std::chrono::milliseconds timeout, std::chrono::nanoseconds spin)
      : timeout_(timeout),
        spin_(spin),
        n_ranks_(n_ranks),
        channels_(to_size(n_ranks) * to_size(n_ranks)),
        sleepers_(to_size(n_ranks)),
        progress_(to_size(n_ranks)),
        n_commands_read_(to_size(n_ranks), 0) {}

  int32_t n_ranks() const { return n_ranks_; }
  Channel& channel(int32_t from, int32_t to) {
    return channels_[to_size(from) * to_size(n_ranks_) + to_size(to)];
  }

  void offer(int32_t from, int32_t to, const void* data, uint64_t bytes, Exchange kind) {
    if (failed_) return;  // the receiver may still look at the last offer
    Channel& c = channel(from, to);
    c.data = data;
    c.bytes = bytes;
    c.kind = kind;
    count(c.n_offered, to);
  }
  // Waits for what `from` offers and copies it.
  void read(int32_t from, int32_t to, void* data, uint64_t bytes, Exchange kind) {
    Channel& c = channel(from, to);
    if (!wait_for(c.n_offered, c.n_read.load(std::memory_order_relaxed) + 1, to, from, kind))
      return;
    if (c.kind != kind || c.bytes != bytes) {
      return fail(ranks_disagree({from, c.kind, c.bytes}, {to, kind, bytes}));
    }
    c.is_read = true;
    if (!failed_ && bytes > 0) std::memcpy(data, c.data, bytes);
    c.is_read = false;
    count(c.n_read, from);
  }
  // Waits until `to` has read what `from` has offered. When the group has failed, `to` may be reading
  // now or will not read.
  void finish(int32_t from, int32_t to, Exchange kind) {
    Channel& c = channel(from, to);
    if (wait_for(c.n_read, c.n_offered.load(std::memory_order_relaxed), from, to, kind)) return;
    while (c.is_read) std::this_thread::yield();
  }

  void command(std::span<const int32_t> words) {
    {
      const MutexLock lock(mutex_);
      commands_.emplace_back(words.begin(), words.end());
    }
    n_commands_.fetch_add(1);
    for (Sleeper& each : sleepers_) each.wake();
  }
  bool next_command(int32_t rank, std::vector<int32_t>& words) {
    uint64_t wanted = 0;
    {
      const MutexLock lock(mutex_);
      wanted = n_commands_read_[to_size(rank)] + 1;
    }
    if (!wait_for(n_commands_, wanted, rank, 0, Exchange::kCommand)) return false;
    const MutexLock lock(mutex_);
    words = commands_[to_size(static_cast<int64_t>(wanted - 1 - n_commands_dropped_))];
    n_commands_read_[to_size(rank)] = wanted;
    const uint64_t read_by_all =
        *std::min_element(n_commands_read_.begin() + 1, n_commands_read_.end());
    for (; n_commands_dropped_ < read_by_all; ++n_commands_dropped_) commands_.pop_front();
    return true;
  }

  void mark_progress(int32_t rank) {
    progress_[to_size(rank)].marks.fetch_add(1, std::memory_order_relaxed);
  }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void fail(const Status& why) {
    {
      const MutexLock lock(mutex_);
      if (failure_.ok()) failure_ = why;
    }
    failed_ = true;
    for (Sleeper& each : sleepers_) each.wake();
  }
  Status status() const {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  // Where a rank sleeps. It first says so, then looks once more at what it waits for; who changes that
  // does so before it looks whether the rank sleeps. In one total order, so one sees the other.
  struct alignas(64) Sleeper {
    std::atomic<bool> is_asleep{false};
    Mutex mutex;
    CondVar changed;

    void wake() {
      if (!is_asleep) return;
      { const MutexLock lock(mutex); }
      changed.notify_one();
    }
  };
  struct alignas(64) Progress {
    std::atomic<uint64_t> marks{0};
    std::atomic<int32_t> waits_for{-1};  // a rank; -1 = it does not wait
  };
  // A rank that itself waits for another one is not the one that is late.
  int32_t last_of_chain(int32_t late, int32_t rank) const {
    for (int32_t i = 0; i < n_ranks_; ++i) {
      const int32_t next = progress_[to_size(late)].waits_for;
      if (next < 0 || next == rank) break;
      late = next;
    }
    return late;
  }
  void count(std::atomic<uint64_t>& number, int32_t waiting) {
    number.fetch_add(1);
    sleepers_[to_size(waiting)].wake();
  }
  // False when the group has failed.
  bool wait_for(const std::atomic<uint64_t>& number, uint64_t wanted, int32_t rank, int32_t other,
                Exchange kind) {
    const auto reached = [&] { return number.load(std::memory_order_acquire) >= wanted; };
    if (reached()) return !failed_.load();
    const auto start = Clock::now();
    if (spin_.count() > 0) {
      do {
        for (int i = 0; i < 64; ++i) {
          if (reached()) return true;
        }
        if (failed_) return false;
      } while (Clock::now() - start < spin_);
    }
    Sleeper& sleeper = sleepers_[to_size(rank)];
    const std::atomic<uint64_t>& marks = progress_[to_size(other)].marks;
    uint64_t marks_seen = marks.load(std::memory_order_relaxed);
    std::atomic<int32_t>& waits_for = progress_[to_size(rank)].waits_for;
    if (kind != Exchange::kCommand) waits_for = other;
    const std::chrono::milliseconds timeout = timeout_;
    // In pieces: a process that was stopped for a while must not find its deadlines passed.
    constexpr std::chrono::milliseconds kPiece(500);
    std::chrono::milliseconds left = timeout;
    sleeper.is_asleep = true;
    {
      MutexLock lock(sleeper.mutex);
      while (number < wanted && !failed_ && left.count() > 0) {
        const std::chrono::milliseconds piece = std::min(left, kPiece);
        if (kind == Exchange::kCommand) {
          sleeper.changed.wait(lock);
        } else if (!sleeper.changed.wait_until(lock, Clock::now() + piece)) {
          left -= piece;
          const uint64_t marks_now = marks.load(std::memory_order_relaxed);
          if (kind == Exchange::kSend && marks_now != marks_seen) {
            left = timeout;
            mark_progress(rank);  // for those that wait for this one
          }
          marks_seen = marks_now;
        }
      }
    }
    sleeper.is_asleep = false;
    // A failed group stays so, and its ranks go on to say whom they wait for: others may find just now
    // that their deadline has passed, and must not name a rank that waited itself.
    if (failed_) return false;
    if (reached()) {
      waits_for = -1;
      return true;
    }
    fail(rank_is_late(last_of_chain(other, rank), kind, timeout, rank));
    return false;
  }

  std::atomic<std::chrono::milliseconds> timeout_;
  const std::chrono::nanoseconds spin_;
  const int32_t n_ranks_;
  std::vector<Channel> channels_;
  std::vector<Sleeper> sleepers_;   // of each rank
  std::vector<Progress> progress_;  // of each rank
  std::atomic<bool> failed_{false};
  mutable Mutex mutex_;
  Status failure_ SPECD_GUARDED_BY(mutex_);
  // Commands that not all have read, how many were sent, read by each rank, and dropped.
  std::deque<std::vector<int32_t>> commands_ SPECD_GUARDED_BY(mutex_);
  std::atomic<uint64_t> n_commands_{0};
  std::vector<uint64_t> n_commands_read_ SPECD_GUARDED_BY(mutex_);
  uint64_t n_commands_dropped_ SPECD_GUARDED_BY(mutex_) = 0;
};

class ThreadRank final : public PairwiseRank {
 public:
  ThreadRank(std::shared_ptr<Group> group, int32_t first, int32_t n_ranks, int32_t rank)
      : PairwiseRank(first, n_ranks, rank), group_(std::move(group)) {}

  std::unique_ptr<Collective> group(int32_t first, int32_t n) override {
    return std::make_unique<ThreadRank>(group_, this->first() + first, n, rank() - first);
  }
  void command(std::span<const int32_t> words) override {
    if (n_ranks() > 1) group_->command(words);
  }
  bool next_command(std::vector<int32_t>& words) override {
    return group_->next_command(rank(), words);
  }
  void mark_progress() override { group_->mark_progress(rank_of_all()); }
  void set_timeout(std::chrono::milliseconds timeout) override { group_->set_timeout(timeout); }
  std::chrono::milliseconds timeout() const override { return group_->timeout(); }
  Status status() const override { return group_->status(); }
  void give_up(const Status& why) noexcept override {
    try {
      group_->fail(rank_gave_up(rank_of_all(), why));
    } catch (const std::bad_alloc&) {
      group_->fail(Status(Code::kUnavailable, ""));
    }
  }

 private:
  void offer(const void* data, uint64_t bytes, int32_t to, Exchange exchange) override {
    group_->offer(rank_of_all(), to, data, bytes, exchange);
  }
  void take(void* data, uint64_t bytes, int32_t from, Exchange exchange) override {
    group_->read(from, rank_of_all(), data, bytes, exchange);
  }
  void finish(int32_t to, Exchange exchange) override {
    group_->finish(rank_of_all(), to, exchange);
  }

  const std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> make_thread_ranks(int32_t n_ranks,
                                                           std::chrono::milliseconds timeout,
                                                           std::chrono::nanoseconds spin) {
  SPECD_CHECK(n_ranks >= 1, std::to_string(n_ranks) + " ranks");
  const auto group = std::make_shared<Group>(n_ranks, timeout, spin);
  std::vector<std::unique_ptr<Collective>> ranks;
  ranks.reserve(to_size(n_ranks));
  for (int32_t i = 0; i < n_ranks; ++i) {
    ranks.push_back(std::make_unique<ThreadRank>(group, 0, n_ranks, i));
  }
  return ranks;
}

}  // namespace specd
