// The exchanges of a group as data that goes from one rank to another.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/device/collective.h"
#include "core/device/exchange.h"

namespace specd {

class PairwiseRank : public Collective {
 public:
  // Rank `rank` of the n_ranks from `first` on.
  PairwiseRank(int32_t first, int32_t n_ranks, int32_t rank)
      : first_(first), n_ranks_(n_ranks), rank_(rank) {}

  int32_t rank() const final { return rank_; }
  int32_t n_ranks() const final { return n_ranks_; }

  void all_gather(void* data, uint64_t bytes) final {
    const auto part = [&](int32_t rank) { return part_of(data, rank, bytes); };
    each_other([&](int32_t to) { offer(part(rank_), bytes, first_ + to, Exchange::kAllGather); });
    each_other([&](int32_t from) { take(part(from), bytes, first_ + from, Exchange::kAllGather); });
    each_other([&](int32_t to) { finish(first_ + to, Exchange::kAllGather); });
  }
  void gather(const void* part, void* parts, uint64_t bytes, int32_t root) final {
    if (rank_ != root) return give(part, bytes, root, Exchange::kGather);
    if (bytes > 0) std::memcpy(part_of(parts, rank_, bytes), part, bytes);
    each_other([&](int32_t from) {
      take(part_of(parts, from, bytes), bytes, first_ + from, Exchange::kGather);
    });
  }
  void broadcast(void* data, uint64_t bytes, int32_t root) final {
    if (rank_ != root) return take(data, bytes, first_ + root, Exchange::kBroadcast);
    each_other([&](int32_t to) { offer(data, bytes, first_ + to, Exchange::kBroadcast); });
    each_other([&](int32_t to) { finish(first_ + to, Exchange::kBroadcast); });
  }
  void send(const void* data, uint64_t bytes, int32_t to) final {
    give(data, bytes, to, Exchange::kSend);
  }
  void receive(void* data, uint64_t bytes, int32_t from) final {
    take(data, bytes, first_ + from, Exchange::kSend);
  }

 protected:
  // `to` and `from` are numbers among all ranks. The memory stays unchanged until finish() has returned.
  virtual void offer(const void* data, uint64_t bytes, int32_t to, Exchange exchange) = 0;
  virtual void take(void* data, uint64_t bytes, int32_t from, Exchange exchange) = 0;
  // Waits until what was offered is taken, or on its way.
  virtual void finish(int32_t to, Exchange exchange) = 0;

  int32_t first() const { return first_; }
  int32_t rank_of_all() const { return first_ + rank_; }

 private:
  static char* part_of(void* data, int32_t rank, uint64_t bytes) {
    return static_cast<char*>(data) + static_cast<uint64_t>(rank) * bytes;
  }
  void give(const void* data, uint64_t bytes, int32_t to, Exchange exchange) {
    offer(data, bytes, first_ + to, exchange);
    finish(first_ + to, exchange);
  }
  // Begins behind this rank, so that not all ranks turn to the same one first.
  template <typename Fn>
  void each_other(Fn&& fn) {
    for (int32_t i = 1; i < n_ranks_; ++i) fn((rank_ + i) % n_ranks_);
  }

  const int32_t first_, n_ranks_, rank_;
};

}  // namespace specd
