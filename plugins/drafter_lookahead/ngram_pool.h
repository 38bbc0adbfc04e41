// The n-grams found by the window, by their first token (the key).
#ifndef SPECD_LOOKAHEAD_NGRAM_POOL_H
#define SPECD_LOOKAHEAD_NGRAM_POOL_H

#include <algorithm>
#include <cstddef>
#include <utility>

#include "memory.h"

namespace specd::lookahead {

// Holds at most `max_ngrams` n-grams, and at most `per_key` of one key; beyond either limit the
// least recently inserted one is evicted. Inserting a known n-gram makes it the newest. An
// insertion compares only with the n-grams of its key, whatever the pool's size.
//
// Every n-gram is in two lists ordered by age: one of all, one of its bucket. Buckets are indexed
// by a hash of the key, so a bucket may hold several keys; the salt keeps a text from being crafted
// to collide.
class NgramPool {
 public:
  NgramPool(const sdk::HostAllocator<int32_t>& memory, uint32_t n, uint32_t per_key,
            uint32_t max_ngrams, uint64_t salt)
      : n_(n),
        per_key_(per_key),
        max_ngrams_(max_ngrams),
        salt_(salt),
        tokens_(memory),
        links_(memory),
        buckets_(memory) {}

  // Inserts `n` tokens; the first is the key.
  void insert(const int32_t* ngram) {
    if (per_key_ == 0) return;
    make_room();
    uint32_t entry = kNone, oldest_of_key = kNone, count = 0;
    for (uint32_t e = bucket_of(ngram[0]); e != kNone && entry == kNone;
         e = links_[e].older[kBucket]) {
      if (at(e)[0] != ngram[0]) continue;
      oldest_of_key = e;
      ++count;
      if (std::equal(ngram, ngram + n_, at(e))) entry = e;
    }
    if (entry == kNone && count == per_key_) entry = oldest_of_key;
    if (entry == kNone && size_ == max_ngrams_) entry = oldest_;
    if (entry == kNone) {
      entry = size_++;
    } else {
      unlink(entry);
    }
    std::copy_n(ngram, n_, at(entry));
    link_bucket(entry);
    links_[entry].older[kAll] = newest_;
    links_[entry].newer[kAll] = kNone;
    (newest_ == kNone ? oldest_ : links_[newest_].newer[kAll]) = entry;
    newest_ = entry;
  }

  // Calls visit(tokens) with the n - 1 tokens after the key, newest n-gram first.
  template <class Visit>
  void each(int32_t key, Visit&& visit) const {
    if (buckets_.empty()) return;
    for (uint32_t e = buckets_[hash(key)]; e != kNone; e = links_[e].older[kBucket]) {
      const int32_t* ngram = tokens_.data() + std::size_t{e} * n_;
      if (ngram[0] == key) visit(ngram + 1);
    }
  }

  // Maximum bytes of a pool: while it grows, the old arrays exist beside the new ones.
  static uint64_t bytes_max(uint32_t n, uint32_t max_ngrams) {
    return 2 * uint64_t{max_ngrams} * (n * sizeof(int32_t) + sizeof(Links) + 2 * sizeof(uint32_t));
  }

 private:
  static constexpr uint32_t kNone = 0xffffffffu;
  static constexpr uint32_t kFirst = 64;  // n-grams in the first allocation
  enum { kAll, kBucket };
  struct Links {
    uint32_t older[2];
    uint32_t newer[2];
  };

  std::size_t hash(int32_t key) const {
    return splitmix64(salt_ ^ static_cast<uint32_t>(key)) & (buckets_.size() - 1);
  }
  uint32_t& bucket_of(int32_t key) { return buckets_[hash(key)]; }
  int32_t* at(uint32_t entry) { return tokens_.data() + std::size_t{entry} * n_; }

  void link_bucket(uint32_t entry) {
    uint32_t& newest = bucket_of(at(entry)[0]);
    links_[entry].older[kBucket] = newest;
    links_[entry].newer[kBucket] = kNone;
    if (newest != kNone) links_[newest].newer[kBucket] = entry;
    newest = entry;
  }

  void unlink(uint32_t entry) {
    const Links& l = links_[entry];
    (l.newer[kAll] == kNone ? newest_ : links_[l.newer[kAll]].older[kAll]) = l.older[kAll];
    (l.older[kAll] == kNone ? oldest_ : links_[l.older[kAll]].newer[kAll]) = l.newer[kAll];
    (l.newer[kBucket] == kNone ? bucket_of(at(entry)[0])
                               : links_[l.newer[kBucket]].older[kBucket]) = l.older[kBucket];
    if (l.older[kBucket] != kNone) links_[l.older[kBucket]].newer[kBucket] = l.newer[kBucket];
  }

  // All or nothing: everything that may throw comes before any change.
  void make_room() {
    if (size_ < links_.size() || size_ == max_ngrams_) return;
    const std::size_t more =
        std::min<std::size_t>(max_ngrams_, std::max<std::size_t>(kFirst, std::size_t{2} * size_));
    std::size_t n_buckets = 1;
    while (n_buckets < more) n_buckets *= 2;
    tokens_.reserve(more * n_);
    links_.reserve(more);
    HostVector<uint32_t> buckets(n_buckets, kNone, buckets_.get_allocator());
    tokens_.resize(more * n_);
    links_.resize(more);
    buckets_.swap(buckets);
    for (uint32_t e = oldest_; e != kNone; e = links_[e].newer[kAll]) link_bucket(e);
  }

  uint32_t n_, per_key_, max_ngrams_;
  uint64_t salt_;
  HostVector<int32_t> tokens_;    // n-gram e at e * n
  HostVector<Links> links_;       // one entry per n-gram of capacity
  HostVector<uint32_t> buckets_;  // the newest n-gram of each; a power of two
  uint32_t size_ = 0;
  uint32_t newest_ = kNone, oldest_ = kNone;
};

}  // namespace specd::lookahead

#endif
