#include "tests/device/strict_nccl/group.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

namespace specd::strict_nccl {
namespace {

constexpr int32_t kRanksMax = 16;
constexpr uint64_t kPieceBytes = 64 << 10;

// What a rank is at, as the other one sees it.
struct Point {
  int32_t kind = 0, type = 0, root = 0;
  uint64_t number = 0;  // of collectives before, or of messages between the two
  uint64_t count = 0;

  bool operator==(const Point&) const = default;
  std::string text() const {
    static constexpr const char* kNames[] = {"all-gather", "broadcast", "send or receive"};
    return std::string(kNames[std::min(kind, 2)]) + " " + std::to_string(number) + " of " +
           std::to_string(count) + " of type " + std::to_string(type) +
           (kind == 1 ? " from rank " + std::to_string(root) : "");
  }
};

// From one rank to another, a piece at a time.
struct Mailbox {
  std::atomic<uint64_t> n_put, n_taken;
  Point point;
  uint64_t bytes;
  char data[kPieceBytes];
};

struct Shared {
  std::atomic<int32_t> n_joined;
  std::atomic<int32_t> has_failed, join_failed;
  std::atomic<int32_t> has_rank[kRanksMax];
  char device[kRanksMax][64];
  char failure[512];
  Mailbox mailboxes[kRanksMax * kRanksMax];
};

int64_t setting(const char* name, int64_t otherwise) {
  const char* all = std::getenv("SPECD_STRICT_NCCL");
  const std::string words = std::string(",") + (all == nullptr ? "" : all);
  const std::string wanted = std::string(",") + name + "=";
  const size_t at = words.find(wanted);
  return at == std::string::npos ? otherwise : std::atoll(words.c_str() + at + wanted.size());
}

std::string path_of(const GroupId& id) { return std::string("/specd-strict-nccl-") + id.bytes; }

class SharedRank final : public Rank {
 public:
  SharedRank(Shared* shared, int32_t rank, int32_t n_ranks)
      : shared_(shared), rank_(rank), n_ranks_(n_ranks), put_(kRanksMax), taken_(kRanksMax) {
    if (setting("hang_rank", -1) == rank) n_until_it_hangs_ = setting("hang_after", 0);
  }
  ~SharedRank() override { munmap(shared_, sizeof(Shared)); }

  bool join(const std::string& device, const std::function<bool()>& goes_on, std::string& why) {
    std::snprintf(shared_->device[rank_], sizeof(shared_->device[rank_]), "%s", device.c_str());
    if (shared_->has_rank[rank_].exchange(1) != 0) {
      why = "rank " + std::to_string(rank_) + " has joined before";
      return false;
    }
    ++shared_->n_joined;
    const auto end =
        std::chrono::steady_clock::now() + std::chrono::seconds(setting("join_seconds", 20));
    while (shared_->n_joined < n_ranks_) {
      if (shared_->join_failed != 0) {
        why = kOtherFailed;
        return false;
      }
      if (!goes_on() || std::chrono::steady_clock::now() > end) {
        why = "not all ranks have joined";
        return false;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    for (int32_t other = 0; other < n_ranks_; ++other) {
      if (other == rank_ || device != shared_->device[other]) continue;
      why = "Duplicate GPU detected: rank " + std::to_string(rank_) + " and rank " +
            std::to_string(other) + " both on " + device;
      return false;
    }
    return true;
  }

  State advance(const std::vector<Operation>& operations) override {
    if (aborted_ || shared_->has_failed != 0) return State::kFailed;
    if (n_done_ >= n_until_it_hangs_) return State::kWaits;
    if (!is_under_way_) begin(operations);
    bool is_done = true;
    for (Transfer& each : transfers_) {
      const bool is_over = each.is_put ? put(each) : take(each);
      is_done = is_done && is_over;
    }
    if (shared_->has_failed != 0) return State::kFailed;
    if (!is_done) return State::kWaits;
    is_under_way_ = false;
    ++n_done_;
    return State::kDone;
  }
  void abort() override { aborted_ = true; }
  bool is_aborted() const override { return aborted_; }
  std::string failure() const override {
    return shared_->has_failed == 0 ? "" : std::string(shared_->failure);
  }

 private:
  // Of one operation to or from one other rank.
  struct Transfer {
    bool is_put = false;
    int32_t other = 0;
    Point point;
    char* data = nullptr;
    uint64_t bytes = 0, done = 0;
    bool has_begun = false;  // one message goes even without data
  };

  void begin(const std::vector<Operation>& operations) {
    transfers_.clear();
    for (const Operation& each : operations) {
      const auto add = [&](bool is_put, int32_t other, const void* data, uint64_t bytes) {
        const bool is_pair = each.kind >= Operation::Kind::kSend;
        transfers_.push_back(
            {.is_put = is_put,
             .other = other,
             .point = {.kind = std::min(static_cast<int32_t>(each.kind), 2),
                       .type = each.type,
                       .root = each.kind == Operation::Kind::kBroadcast ? each.other : 0,
                       .number = !is_pair ? n_collectives_
                                 : is_put ? put_[static_cast<size_t>(other)]++
                                          : taken_[static_cast<size_t>(other)]++,
                       .count = each.count},
             .data = static_cast<char*>(const_cast<void*>(data)),
             .bytes = bytes});
      };
      auto* const to = static_cast<char*>(each.to);
      switch (each.kind) {
        case Operation::Kind::kAllGather: {
          char* const mine = to + static_cast<uint64_t>(rank_) * each.bytes;
          if (each.from != mine && each.bytes > 0) std::memcpy(mine, each.from, each.bytes);
          for (int32_t other = 0; other < n_ranks_; ++other) {
            if (other == rank_) continue;
            add(true, other, mine, each.bytes);
            add(false, other, to + static_cast<uint64_t>(other) * each.bytes, each.bytes);
          }
          ++n_collectives_;
          break;
        }
        case Operation::Kind::kBroadcast: {
          const bool is_root = rank_ == each.other;
          if (is_root && each.to != each.from && each.bytes > 0) {
            std::memcpy(each.to, each.from, each.bytes);
          }
          for (int32_t other = 0; other < n_ranks_; ++other) {
            if (other == rank_) continue;
            add(true, other, each.from, is_root ? each.bytes : 0);
            add(false, other, each.to, other == each.other ? each.bytes : 0);
          }
          ++n_collectives_;
          break;
        }
        case Operation::Kind::kSend:
          add(true, each.other, each.from, each.bytes);
          break;
        case Operation::Kind::kReceive:
          add(false, each.other, each.to, each.bytes);
          break;
      }
    }
    is_under_way_ = true;
  }

  Mailbox& mailbox(int32_t from, int32_t to) { return shared_->mailboxes[from * kRanksMax + to]; }
  static bool is_over(const Transfer& t) { return t.has_begun && t.done == t.bytes; }
  bool put(Transfer& t) {
    Mailbox& box = mailbox(rank_, t.other);
    while (!is_over(t)) {
      const uint64_t n_put = box.n_put.load();
      if (box.n_taken.load() != n_put) return false;
      box.point = t.point;
      box.bytes = std::min(kPieceBytes, t.bytes - t.done);
      if (box.bytes > 0) std::memcpy(box.data, t.data + t.done, box.bytes);
      t.done += box.bytes;
      t.has_begun = true;
      box.n_put.store(n_put + 1);
    }
    return true;
  }
  bool take(Transfer& t) {
    Mailbox& box = mailbox(t.other, rank_);
    while (!is_over(t)) {
      const uint64_t n_taken = box.n_taken.load();
      if (box.n_put.load() == n_taken) return false;
      if (box.point != t.point || box.bytes > t.bytes - t.done) {
        fail("rank " + std::to_string(t.other) + " is at " + box.point.text() + ", rank " +
             std::to_string(rank_) + " at " + t.point.text());
        return false;
      }
      if (box.bytes > 0) std::memcpy(t.data + t.done, box.data, box.bytes);
      t.done += box.bytes;
      t.has_begun = true;
      box.n_taken.store(n_taken + 1);
    }
    return true;
  }
  void fail(const std::string& why) {
    std::fprintf(stderr, "strict NCCL: %s\n", why.c_str());
    std::snprintf(shared_->failure, sizeof(shared_->failure), "%s", why.c_str());
    shared_->has_failed = 1;
  }

  Shared* const shared_;
  const int32_t rank_, n_ranks_;
  std::atomic<bool> aborted_{false};
  bool is_under_way_ = false;
  std::vector<Transfer> transfers_;
  int64_t n_done_ = 0, n_until_it_hangs_ = INT64_MAX;
  uint64_t n_collectives_ = 0;
  std::vector<uint64_t> put_, taken_;  // messages to and from each rank
};

}  // namespace

bool make_group(GroupId& id, std::string& why) {
  static std::random_device random;
  std::snprintf(id.bytes, sizeof(id.bytes), "%d-%08x%08x", getpid(), random(), random());
  const int file = shm_open(path_of(id).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  const bool made = file >= 0 && ftruncate(file, sizeof(Shared)) == 0;
  if (!made) why = std::string("shared memory: ") + std::strerror(errno);
  if (file >= 0) close(file);
  return made;
}

std::unique_ptr<Rank> Rank::join(const GroupId& id, int32_t rank, int32_t n_ranks,
                                 const std::string& device, const std::function<bool()>& goes_on,
                                 std::string& why) {
  if (rank < 0 || rank >= n_ranks || n_ranks > kRanksMax) {
    why = "rank " + std::to_string(rank) + " of " + std::to_string(n_ranks);
    return nullptr;
  }
  const int file = shm_open(path_of(id).c_str(), O_RDWR, 0600);
  void* data = file < 0
                   ? MAP_FAILED
                   : mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) why = std::string("no such group: ") + std::strerror(errno);
  if (file >= 0) close(file);
  if (data == MAP_FAILED) return nullptr;
  // Counted when the file is open, so that a rank that fails by it leaves the others one to wait in.
  static std::atomic<int64_t> n_joins{0};
  const int64_t failing = setting("fail_join", 0);
  if (failing == 0) {
    n_joins = 0;
  } else if (++n_joins == failing) {
    why = "this join fails, as asked for";
    const bool is_seen = setting("fail_join_is_seen", 0) != 0;
    if (is_seen) static_cast<Shared*>(data)->join_failed = 1;
    munmap(data, sizeof(Shared));
    if (rank != 0 && !is_seen) return nullptr;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others open it, or fail
    if (rank == 0) shm_unlink(path_of(id).c_str());
    return nullptr;
  }
  auto joined = std::make_unique<SharedRank>(static_cast<Shared*>(data), rank, n_ranks);
  const bool is_in = joined->join(device, goes_on, why);
  if (rank == 0) shm_unlink(path_of(id).c_str());
  if (!is_in) return nullptr;
  return joined;
}

}  // namespace specd::strict_nccl
