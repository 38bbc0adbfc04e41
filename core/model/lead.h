// Rank 0 of a group that shares models (core/model/split.h): tells the other ranks what to compute with it.
//
//   lead                                    follower (core/ranks/follower.h)
//   forward(model, rows) ──── command ────> rows without tokens
//   Transformer::forward() <─ tokens, sums ─> Transformer::forward()
//
// A follower knows no sequence, request or plugin. Its models have the lead's numbers: 0 is the target.
// [step] all functions except those marked [control], which come before the first step.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/base/status.h"
#include "core/device/agree.h"
#include "core/device/collective.h"
#include "core/kv/block_table.h"
#include "core/model/transformer.h"

namespace specd {

enum class RankCommand : int32_t { kLoad, kPages, kTap, kForward, kHead, kMove, kStop };

class Lead {
 public:
  // `links`: of rank 0.
  explicit Lead(const RankLinks& links) : ranks_(*links.all), links_(links) {}

  // The ranks that have model `model`: the target is on all, others on those of the last stage.
  RankLinks links_of(int32_t model) const;
  // [control] These load the model, or allocate pages for its KV; n_pages 0 = it lies in the target's pages.
  // The caller does the same and calls agree() with the result. When all have the model they call
  // Transformer::gather_bytes(), and when all have pages gathered() with their bytes; for the target's pages
  // gathered() again, with the bytes of each rank's columns.
  void load(int32_t model);
  void make_pages(int32_t model, int32_t n_pages);
  // The stages send the target's state at `point` from now on, behind those before. Call it before
  // Transformer::add_tap().
  void tap(uint32_t point);

  // Call before the lead's own forward(), shared_head() or move() of a shared model.
  void forward(int32_t model, const ForwardRows& rows);
  void head(int32_t model, int32_t n_rows);
  void move(int32_t model, const KvMoves& moves);
  // [control] The followers end, unless the group has failed.
  void stop();
  // Between these, commands wait, because what is submitted is captured in a graph and may not run.
  // release() sends them when it was launched, and otherwise forgets them. False: the graph must not be
  // launched again, because the commands of the next launch would not be known.
  void hold();
  bool release(bool is_launched);
  // Why the ranks cannot go on.
  Status status() const { return ranks_.status(); }

 private:
  void send();

  Collective& ranks_;
  const RankLinks links_;
  std::vector<int32_t> words_;
  bool holds_ = false;
  std::vector<std::vector<int32_t>> held_;
};

// The columns of a kForward command, in this order; the ranks get the tokens in the forward itself.
// `Rows` is ForwardRows, const or not.
template <typename Rows>
auto sent_columns(Rows& rows) {
  return std::array{&rows.position, &rows.slot, &rows.span,        &rows.table,   &rows.tail_begin,
                    &rows.pages,    &rows.tail, &rows.logits_rows, &rows.tap_rows};
}

// Of a rank with these links to the ranks of the target.
RankLinks links_of_model(const RankLinks& links, int32_t model);

}  // namespace specd
