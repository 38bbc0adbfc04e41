// Edges of an automaton: (state, token) -> state.
#ifndef SPECD_SUFFIX_EDGE_TABLE_H
#define SPECD_SUFFIX_EDGE_TABLE_H

#include <cstddef>
#include <cstdint>

#include "chunks.h"

namespace specd::suffix {

// Open addressing in 16-byte entries, four to a cache line. The edges of a state form a list by
// token, from the youngest to the oldest, so that they can be copied. Nothing is ever removed.
class EdgeTable {
 public:
  static constexpr int32_t kNoToken = -2;

  struct Edge {
    uint32_t target;  // 0 = free
    uint32_t state;
    int32_t token;
    int32_t older;  // token of the state's next older edge, or kNoToken
  };

  // The salt keeps a text from being crafted to collide.
  EdgeTable(const HostAllocator& memory, uint64_t salt) : salt_(salt | 1), edges_(memory) {
    edges_.assign(64, Edge{0, 0, 0, 0});
  }

  void reserve(std::size_t n) {
    std::size_t size = edges_.size();
    while (size * 3 < n * 4) size *= 2;
    if (size > edges_.size()) resize(size);
  }

  const Edge* find(uint32_t state, int32_t token) const {
    const std::size_t mask = edges_.size() - 1;
    for (std::size_t at = hash(state, token) & mask;; at = (at + 1) & mask) {
      const Edge& edge = edges_[at];
      if (edge.target == 0) return nullptr;
      if (edge.state == state && edge.token == token) return &edge;
    }
  }
  Edge* find(uint32_t state, int32_t token) {
    return const_cast<Edge*>(static_cast<const EdgeTable*>(this)->find(state, token));
  }

  void prefetch(uint32_t state, int32_t token) const {
    __builtin_prefetch(&edges_[hash(state, token) & (edges_.size() - 1)]);
  }

  // REQUIRES that the edge is absent.
  void insert(uint32_t state, int32_t token, uint32_t target, int32_t older) {
    if ((used_ + 1) * 4 > edges_.size() * 3) resize(edges_.size() * 2);
    place({target, state, token, older});
    ++used_;
  }

 private:
  std::size_t hash(uint32_t state, int32_t token) const {
    const uint64_t key = (uint64_t{state} << 32 | static_cast<uint32_t>(token)) + salt_;
    const uint64_t x = (key ^ (key >> 29)) * 0xbf58476d1ce4e5b9u;
    return static_cast<std::size_t>(x ^ (x >> 32));
  }
  void place(const Edge& edge) {
    const std::size_t mask = edges_.size() - 1;
    std::size_t at = hash(edge.state, edge.token) & mask;
    while (edges_[at].target != 0) at = (at + 1) & mask;
    edges_[at] = edge;
  }
  void resize(std::size_t size) {
    HostVector<Edge> old(edges_.get_allocator());
    HostVector<Edge> bigger(edges_.get_allocator());
    bigger.assign(size, Edge{0, 0, 0, 0});
    old.swap(edges_);
    edges_.swap(bigger);
    for (const Edge& edge : old) {
      if (edge.target != 0) place(edge);
    }
  }

  const uint64_t salt_;
  std::size_t used_ = 0;
  HostVector<Edge> edges_;
};

}  // namespace specd::suffix

#endif
