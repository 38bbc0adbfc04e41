// Guesses that are drawn from the draft model's distribution with noise of their own: a chain, or a
// chain with siblings. The distribution is handed on where the verifier weighs guesses by it.
//
//   root -> 0 -> 1 -> 2     nodes [0, L): the chain, which the model continues
//      \-> 3  \-> 5  \-> 7  then the siblings, level by level: drawn beside the chain's node, leaves
//      \-> 4  \-> 6  \-> 8
//
// The shape is fixed, and a smaller budget cuts its end, so what is proposed never depends on what was
// drawn: the rules of verifiers need that.
#pragma once

#include <specd/sdk/drafter.h>
#include <specd/sdk/rng.h>
#include <specd/sdk/verifier.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "chain.h"
#include "settings.h"
#include "siblings.h"

namespace specd::draft_target {

class Drawn {
 public:
  Drawn(const Settings& settings, Chain& chain, const sdk::Instance& instance)
      : settings_(settings), chain_(chain), vocab_size_(instance.target().vocab_size) {
    if (settings.draw == Draw::kOwn && settings.tree) rng_.emplace(instance);
  }

  // SPECD_TREE_STATIC: the parents of the first `capacity` nodes.
  static std::vector<int32_t> shape(const Settings& settings, uint32_t capacity) {
    std::vector<int32_t> parent;
    const auto levels = static_cast<int32_t>(settings.draft_tokens);
    for (int32_t level = 0; level < levels; ++level) parent.push_back(level - 1);
    for (int32_t level = 0; level < levels; ++level) {
      parent.insert(parent.end(), settings.branches - 1, level - 1);
    }
    parent.resize(std::min<std::size_t>(parent.size(), capacity));
    return parent;
  }

  void propose(const specd_propose_args& in) {
    if (in.out->q_row == nullptr && !settings_.tree) {
      chain_.propose(in);
      return;
    }
    const int64_t rows = int64_t{in.batch->n_seqs} * in.out->node_capacity;
    make_room(rows);
    const specd_tensor law = view(law_.get(), rows, vocab_size_), lse = view(lse_.get(), rows, -1);
    chain_.propose(in, &law, &lse);
    if (settings_.tree) {
      for (uint32_t s = 0; s < in.batch->n_seqs; ++s) add_siblings(in, s);
    }
    if (in.out->q_row == nullptr) return;
    *in.out->q = law;
    *in.out->q_lse = lse;
    const sdk::Column<int32_t> q_row(in.out->q_row, in.batch->n_seqs, in.out->node_capacity + 1,
                                     "q_row");
    for (uint32_t s = 0; s < in.batch->n_seqs; ++s) {
      // The children of the root, and of node i, are those of level 0, and of level i + 1.
      for (uint32_t level = 0; level < chain_.length(in, s); ++level) {
        q_row(s, level) = static_cast<int32_t>(row_of(in, s, level));
      }
    }
  }

 private:
  static int64_t row_of(const specd_propose_args& in, uint32_t s, uint32_t level) {
    return int64_t{s} * in.out->node_capacity + level;
  }
  static specd_tensor view(float* data, int64_t rows, int64_t columns) {
    return sdk::tensor_at(data, rows, columns, SPECD_DEV_CPU, 0);
  }

  void add_siblings(const specd_propose_args& in, uint32_t s) {
    // All draws of a greedy request are the same token.
    if ((in.sampling[s]->flags & SPECD_SAMPLE_GREEDY) != 0) return;
    const sdk::Column<int32_t> token(in.out->token, in.batch->n_seqs, in.out->node_capacity,
                                     "token");
    sdk::Noise noise(*rng_, *in.batch, s, in.host_root_position[s], SPECD_PURPOSE_DRAFT);
    const auto budget = static_cast<uint32_t>(std::max(in.host_node_budget[s], 0));
    uint32_t node = settings_.draft_tokens;
    std::vector<double> weight(vocab_size_);
    for (uint32_t level = 0; level < chain_.length(in, s) && node < budget; ++level) {
      const int32_t first = token(s, level);
      if (first == SPECD_NO_TOKEN) return;
      const int64_t row = row_of(in, s, level);
      const sdk::Law law(law_.get() + row * vocab_size_, lse_[static_cast<std::size_t>(row)],
                         static_cast<int32_t>(vocab_size_));
      for (std::size_t t = 0; t < weight.size(); ++t) weight[t] = law.p(static_cast<int32_t>(t));
      const uint32_t wanted = std::min(settings_.branches - 1, budget - node);
      draw_siblings(weight, first, wanted, settings_.with_replacement, noise,
                    [&](int32_t each) { token(s, node++) = each; });
      node = settings_.draft_tokens + (level + 1) * (settings_.branches - 1);
    }
  }

  // Without touching the memory: of a tree only the rows of the chain are used.
  void make_room(int64_t rows) {
    if (rows <= rows_) return;
    rows_ = 0;
    law_.reset();
    law_.reset(new float[static_cast<std::size_t>(rows * vocab_size_)]);
    lse_.reset(new float[static_cast<std::size_t>(rows)]);
    rows_ = rows;
  }

  const Settings& settings_;
  Chain& chain_;
  const int64_t vocab_size_;
  std::optional<sdk::Rng> rng_;
  std::unique_ptr<float[]> law_;  // [rows_, vocab_size_]
  std::unique_ptr<float[]> lse_;  // [rows_]
  int64_t rows_ = 0;
};

}  // namespace specd::draft_target
