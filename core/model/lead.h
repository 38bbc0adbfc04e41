// Rank 0 of a group that shares models (core/model/split.h): tells the other ranks what to compute with it.
//
//   lead                                    follower (core/ranks/follower.h)
//   forward(model, rows) ──── command ────> rows without tokens
//   Transformer::forward() <─ tokens, sums ─> Transformer::forward()
//
// A follower knows no sequence, request or plugin. Its models have the lead's numbers: 0 is the target.
// [step] all functions except those marked [control], which come before the first step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/collective.h"
#include "core/kv/block_table.h"
#include "core/model/transformer.h"

namespace specd {

enum class RankCommand : int32_t { kLoad, kPages, kForward, kHead, kMove, kStop };

class Lead {
 public:
  explicit Lead(Collective& ranks) : ranks_(ranks) {}

  Collective& ranks() { return ranks_; }
  // [control] The followers load a model, or allocate pages for its KV; model 0 has pages of its own, the
  // others have theirs inside. The caller does the same, then calls agree() with the result.
  void load(int32_t model);
  void make_pages(int32_t model, int32_t n_pages);

  // Call before the lead's own forward(), shared_head() or move() of a shared model.
  void forward(int32_t model, const ForwardRows& rows);
  void head(int32_t model, int32_t n_rows);
  void move(int32_t model, const KvMoves& moves);
  void stop();
  // Why the ranks cannot go on.
  Status status() const { return ranks_.status(); }

 private:
  Collective& ranks_;
  std::vector<int32_t> words_;
};

// Called by all ranks: ok when it is for each of them, else the first rank's error, which names the rank.
Status agree(Collective& ranks, const Status& mine);
// The same for something that each rank has made; `ranks` null = this one alone.
template <typename T>
Result<T> agreed(Collective* ranks, Result<T> mine) {
  if (ranks != nullptr) SPECD_OK_OR_RETURN(agree(*ranks, mine.status()));
  return mine;
}

}  // namespace specd
