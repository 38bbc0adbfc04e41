#include "core/device/message_ranks.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/thread.h"
#include "core/base/to_size.h"
#include "core/base/utf8.h"
#include "core/device/exchange.h"
#include "core/device/pairwise_rank.h"

namespace specd {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

struct Notice {
  enum class Kind : int32_t { kBeat, kTimeout, kFailure };
  Kind kind = Kind::kBeat;
  int32_t code = 0;         // of a failure
  uint64_t value = 0;       // marks of progress, or milliseconds
  int32_t waits_for = -1;   // of a beat: a rank
  char message[1000] = {};  // of a failure
};

Notice failure_notice(const Status& why) {
  Notice notice;
  notice.kind = Notice::Kind::kFailure;
  notice.code = static_cast<int32_t>(why.code());
  copy_text(why.message(), notice.message);
  return notice;
}

// How long a rank sleeps between two looks, when it has waited for so long.
std::chrono::microseconds rest_after(Clock::duration waited) {
  if (waited < milliseconds(5)) return std::chrono::microseconds(20);
  return std::chrono::microseconds(waited < milliseconds(500) ? 200 : 1000);
}

// What the groups of a process share. A mutex around each use of the messages: none of them takes long.
class Wire {
 public:
  Wire(Messages& messages, const MessageRankOptions& options)
      : messages_(messages),
        rank_(messages.rank()),
        n_ranks_(messages.n_ranks()),
        bytes_max_(messages.bytes_max()),
        silence_max_(options.silence_max),
        beat_every_(std::clamp(options.silence_max / 10, milliseconds(10), milliseconds(1000))),
        spin_(options.spin),
        timeout_(options.timeout),
        peers_(to_size(n_ranks_)) {
    beats_ = start_thread("specd-beat", [this] { beat(); });
  }
  ~Wire() {
    {
      const MutexLock lock(mutex_);
      is_over_ = true;
    }
    over_.notify_one();
    beats_.join();
    const auto end = Clock::now() + silence_max_;
    while (!all_have_left() && Clock::now() < end) std::this_thread::sleep_for(milliseconds(1));
  }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  void begin_send(const void* data, uint64_t bytes, int32_t to, Exchange exchange) {
    const MutexLock lock(mutex_);
    if (failed_) return;
    for_pieces(bytes, [&](uint64_t at, uint64_t n) {
      sends_.push_back({messages_.send(static_cast<const char*>(data) + at, n, to, Channel::kData,
                                       static_cast<int32_t>(exchange)),
                        to});
      return true;
    });
  }
  // Waits until what was sent is on its way and its memory is free.
  void finish_sends(Exchange exchange) {
    for (const Sent& sent : sends_) {
      if (!wait(sent.to, exchange, [&] { return messages_.is_done(sent.transfer); })) break;
    }
    sends_.clear();
  }
  void receive(void* data, uint64_t bytes, int32_t from, Exchange exchange) {
    for_pieces(bytes, [&](uint64_t at, uint64_t n) {
      std::optional<Messages::Arrived> next;
      if (!wait(from, exchange, [&] {
            next = messages_.arrived(from, Channel::kData);
            return next.has_value();
          }))
        return false;
      const auto theirs = static_cast<Exchange>(next->tag);
      if (theirs != exchange || next->bytes != n) {
        fail(ranks_disagree({from, theirs, next->bytes}, {rank_, exchange, n}));
        return false;
      }
      return receive_now(static_cast<char*>(data) + at, n, from, Channel::kData, exchange);
    });
  }

  void command(std::span<const int32_t> words) {
    const auto kept = std::make_shared<const std::vector<int32_t>>(words.begin(), words.end());
    const MutexLock lock(mutex_);
    forget_sent();
    try {
      for (int32_t to = 1; to < n_ranks_ && !failed_; ++to) {
        outgoing_.push_back({-1, kept});
        outgoing_.back().transfer =
            messages_.send(kept->data(), kept->size() * sizeof(int32_t), to, Channel::kCommand, 0);
      }
    } catch (const std::bad_alloc&) {
      fail_alone(Status(Code::kExhausted, kOutOfMemory));  // not all ranks have the command
      throw;
    }
  }
  bool next_command(std::vector<int32_t>& words) {
    std::optional<Messages::Arrived> next;
    if (!wait(0, Exchange::kCommand, [&] {
          next = messages_.arrived(0, Channel::kCommand);
          return next.has_value();
        }))
      return false;
    words.resize(next->bytes / sizeof(int32_t));
    return receive_now(words.data(), next->bytes, 0, Channel::kCommand, Exchange::kCommand);
  }

  void mark_progress() { marks_.fetch_add(1, std::memory_order_relaxed); }
  milliseconds timeout() const { return timeout_; }
  void set_timeout(milliseconds timeout) {
    timeout_ = timeout;
    const auto notice = std::make_shared<Notice>();
    notice->kind = Notice::Kind::kTimeout;
    notice->value = static_cast<uint64_t>(timeout.count());
    const MutexLock lock(mutex_);
    for (int32_t to = 0; to < n_ranks_ && !failed_; ++to) {
      if (to == rank_) continue;
      outgoing_.push_back({-1, notice});
      outgoing_.back().transfer =
          messages_.send(notice.get(), sizeof(Notice), to, Channel::kNotice, 0);
    }
  }
  void fail(const Status& why) {
    const MutexLock lock(mutex_);
    fail_and_tell(why);
  }
  // Fails without memory for a reason. The others miss the beats.
  void fall_silent() noexcept {
    const MutexLock lock(mutex_);
    if (failed_) return;
    failure_ = Status(Code::kUnavailable, "");
    failed_ = true;
  }
  Status status() const {
    const MutexLock lock(mutex_);
    return failure_;
  }

 private:
  struct Sent {
    int32_t transfer, to;
  };
  struct Outgoing {
    int32_t transfer;
    std::shared_ptr<const void> data;
  };
  struct Peer {
    int32_t silent_beats = 0;  // of this rank, since one of theirs
    uint64_t marks = 0;
    int32_t waits_for = -1;
    Notice beat, notice;  // on its way there, and from there
    int32_t beat_transfer = -1, notice_transfer = -1;
  };

  template <typename Fn>
  void for_pieces(uint64_t bytes, Fn&& fn) const {
    uint64_t at = 0;
    do {
      const uint64_t n = std::min(bytes - at, bytes_max_);
      if (!fn(at, n)) return;
      at += n;
    } while (at < bytes);
  }
  bool receive_now(void* data, uint64_t bytes, int32_t from, Channel channel, Exchange exchange) {
    int32_t transfer = 0;
    {
      const MutexLock lock(mutex_);
      if (failed_) return false;
      transfer = messages_.receive(data, bytes, from, channel);
    }
    return wait(from, exchange, [&] { return messages_.is_done(transfer); });
  }

  // Waits until `is_there`, which is called with the mutex held. False when the group has failed.
  template <typename Fn>
  bool wait(int32_t other, Exchange exchange, Fn&& is_there) {
    constexpr milliseconds kPiece(500);  // as in thread_ranks.cc
    constexpr uint32_t kLooksPerNotice = 16;
    const Clock::time_point start = Clock::now();
    Clock::time_point last = start;
    Clock::duration idle{};
    uint64_t marks_seen = 0;
    for (uint32_t look = 0;; ++look) {
      {
        const MutexLock lock(mutex_);
        waits_for_ = -1;
        if (failed_) return false;
        if (is_there()) return true;
        if (exchange != Exchange::kCommand) waits_for_ = other;
        if (look % kLooksPerNotice == 0) hear();
        const uint64_t marks = peers_[to_size(other)].marks;
        if (exchange == Exchange::kSend && marks != marks_seen) {
          idle = {};
          mark_progress();  // for those that wait for this one
        }
        marks_seen = marks;
        // The deadline may have become shorter meanwhile.
        const milliseconds timeout = timeout_;
        if (exchange != Exchange::kCommand && idle >= timeout) {
          fail_and_tell(rank_is_late(last_of_chain(other), exchange, timeout, rank_));
        }
        if (failed_) return false;
      }
      const Clock::time_point now = Clock::now();
      if (now - start >= spin_) std::this_thread::sleep_for(rest_after(now - start));
      idle += std::min<Clock::duration>(now - last, kPiece);
      last = now;
    }
  }

  // A rank that itself waits for another one is not the one that is late. What a rank said that has sent no
  // beat lately no longer holds.
  int32_t last_of_chain(int32_t late) SPECD_REQUIRES(mutex_) {
    constexpr int32_t kSilentMax = 2;
    for (int32_t i = 0; i < n_ranks_; ++i) {
      const Peer& peer = peers_[to_size(late)];
      const int32_t next = peer.silent_beats <= kSilentMax ? peer.waits_for : -1;
      if (next < 0 || next >= n_ranks_ || next == rank_) break;
      late = next;
    }
    return late;
  }

  // Takes the notices that have come.
  void hear() SPECD_REQUIRES(mutex_) {
    for (int32_t from = 0; from < n_ranks_; ++from) {
      Peer& peer = peers_[to_size(from)];
      while (from != rank_ && !failed_) {
        if (peer.notice_transfer < 0) {
          if (!messages_.arrived(from, Channel::kNotice).has_value()) break;
          peer.notice_transfer =
              messages_.receive(&peer.notice, sizeof(peer.notice), from, Channel::kNotice);
        }
        if (!messages_.is_done(peer.notice_transfer)) break;
        peer.notice_transfer = -1;
        take(peer.notice, peer);
      }
    }
    if (!failed_ && !messages_.status().ok()) {
      fail_and_tell(messages_.status().with_context("rank " + std::to_string(rank_)));
    }
  }
  void take(Notice& notice, Peer& from) SPECD_REQUIRES(mutex_) {
    from.silent_beats = 0;
    switch (notice.kind) {
      case Notice::Kind::kBeat:
        from.marks = notice.value;
        from.waits_for = notice.waits_for;
        return;
      case Notice::Kind::kTimeout:
        timeout_ = milliseconds(notice.value);
        return;
      case Notice::Kind::kFailure:
        notice.message[sizeof(notice.message) - 1] = '\0';
        return fail_alone(Status(static_cast<Code>(notice.code), notice.message));
    }
  }

  void beat() {
    try {
      beat_until_over();
    } catch (const std::bad_alloc&) {
      fall_silent();
    }
  }
  void beat_until_over() {
    MutexLock lock(mutex_);
    while (!is_over_ && !failed_) {
      hear();
      for (int32_t to = 0; to < n_ranks_ && !failed_; ++to) {
        if (to == rank_) continue;
        Peer& peer = peers_[to_size(to)];
        if (++peer.silent_beats > silence_max_ / beat_every_) {
          fail_and_tell(Status(Code::kUnavailable,
                               "rank " + std::to_string(to) + " has not been heard of for " +
                                   std::to_string(silence_max_.count()) +
                                   " ms: it was stopped, or its machine cannot be reached"));
          break;
        }
        // One at a time, so that they do not pile up for a rank that does not read.
        if (peer.beat_transfer >= 0 && !messages_.is_done(peer.beat_transfer)) continue;
        peer.beat.value = marks_.load(std::memory_order_relaxed);
        peer.beat.waits_for = waits_for_;
        peer.beat_transfer = messages_.send(&peer.beat, sizeof(peer.beat), to, Channel::kNotice, 0);
      }
      forget_sent();
      const auto next = CondVar::Clock::now() + beat_every_;
      while (!is_over_ && !failed_ && over_.wait_until(lock, next)) {
      }
    }
  }

  void fail_alone(const Status& why) SPECD_REQUIRES(mutex_) {
    if (failed_) return;
    failure_ = why;
    failed_ = true;
  }
  void fail_and_tell(const Status& why) SPECD_REQUIRES(mutex_) {
    if (failed_) return;
    constexpr milliseconds kTellingMax(20);
    last_notice_ = failure_notice(why);
    std::vector<int32_t> telling;
    for (int32_t to = 0; to < n_ranks_; ++to) {
      if (to == rank_) continue;
      telling.push_back(
          messages_.send(&last_notice_, sizeof(last_notice_), to, Channel::kNotice, 0));
    }
    const auto end = Clock::now() + kTellingMax;
    while (!telling.empty() && Clock::now() < end) {
      std::erase_if(telling, [this](int32_t transfer) { return messages_.is_done(transfer); });
    }
    fail_alone(why);
  }

  void forget_sent() SPECD_REQUIRES(mutex_) {
    if (failed_) return;
    std::erase_if(outgoing_, [this](const Outgoing& each) {
      return each.transfer < 0 || messages_.is_done(each.transfer);
    });
  }
  bool all_have_left() {
    const MutexLock lock(mutex_);
    if (failed_) return true;
    forget_sent();
    for (Peer& peer : peers_) {
      if (peer.beat_transfer >= 0 && messages_.is_done(peer.beat_transfer)) peer.beat_transfer = -1;
    }
    return outgoing_.empty() && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
             return peer.beat_transfer < 0;
           });
  }

  Messages& messages_;
  const int32_t rank_, n_ranks_;
  const uint64_t bytes_max_;
  const milliseconds silence_max_, beat_every_;
  const std::chrono::nanoseconds spin_;
  std::atomic<milliseconds> timeout_;
  std::atomic<uint64_t> marks_{0};
  std::vector<Sent> sends_;  // of the exchange that goes on

  mutable Mutex mutex_;
  CondVar over_;
  bool is_over_ SPECD_GUARDED_BY(mutex_) = false;
  bool failed_ SPECD_GUARDED_BY(mutex_) = false;
  Status failure_ SPECD_GUARDED_BY(mutex_);
  Notice last_notice_ SPECD_GUARDED_BY(mutex_);
  int32_t waits_for_ SPECD_GUARDED_BY(mutex_) = -1;  // the rank that an exchange waits for
  std::vector<Peer> peers_ SPECD_GUARDED_BY(mutex_);
  std::deque<Outgoing> outgoing_ SPECD_GUARDED_BY(mutex_);
  std::thread beats_;
};

class MessageRank final : public PairwiseRank {
 public:
  MessageRank(std::shared_ptr<Wire> wire, int32_t first, int32_t n_ranks, int32_t rank)
      : PairwiseRank(first, n_ranks, rank), wire_(std::move(wire)) {}

  std::unique_ptr<Collective> group(int32_t first, int32_t n) override {
    return std::make_unique<MessageRank>(wire_, this->first() + first, n, rank() - first);
  }
  void command(std::span<const int32_t> words) override { wire_->command(words); }
  bool next_command(std::vector<int32_t>& words) override { return wire_->next_command(words); }
  void mark_progress() override { wire_->mark_progress(); }
  void set_timeout(milliseconds timeout) override { wire_->set_timeout(timeout); }
  milliseconds timeout() const override { return wire_->timeout(); }
  Status status() const override { return wire_->status(); }
  void give_up(const Status& why) noexcept override {
    try {
      wire_->fail(rank_gave_up(rank_of_all(), why));
    } catch (const std::bad_alloc&) {
      wire_->fall_silent();
    }
  }

 private:
  void offer(const void* data, uint64_t bytes, int32_t to, Exchange exchange) override {
    wire_->begin_send(data, bytes, to, exchange);
  }
  void take(void* data, uint64_t bytes, int32_t from, Exchange exchange) override {
    wire_->receive(data, bytes, from, exchange);
  }
  // What was offered to all.
  void finish(int32_t, Exchange exchange) override { wire_->finish_sends(exchange); }

  const std::shared_ptr<Wire> wire_;
};

}  // namespace

std::unique_ptr<Collective> make_message_rank(Messages& messages,
                                              const MessageRankOptions& options) {
  const auto wire = std::make_shared<Wire>(messages, options);
  return std::make_unique<MessageRank>(wire, 0, messages.n_ranks(), messages.rank());
}

}  // namespace specd
