// Guesses that are drawn from the draft model's distribution with noise of their own: a chain, or a
// chain with siblings. The distribution is handed on where the verifier weighs guesses by it.
//
//   root -> 0 -> 1 -> 2     nodes [0, 3): the chain, which the model continues
//      \-> 3  \-> 5  \-> 7  then the siblings, level by level: drawn beside the chain's node, leaves
//      \-> 4  \-> 6  \-> 8
//
// No guess is left out for what was drawn in its place: the budget cuts the end, and a level has fewer
// siblings only where its distribution has no more tokens. The rules of verifiers need that.
#pragma once

#include <specd/sdk/drafter.h>
#include <specd/sdk/rng.h>
#include <specd/sdk/tensor.h>
#include <specd/sdk/verifier.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

  // Bytes of one sequence, at most.
  static uint64_t bytes_per_sequence(const Settings& settings, const specd_target_info& target) {
    return uint64_t{settings.draft_tokens} * (uint64_t{target.vocab_size} + 1) * sizeof(float);
  }
  void activate(const sdk::Instance& instance, const specd_drafter_grant& grant) {
    if (settings_.draw != Draw::kOwn) return;
    if ((grant.features & SPECD_FEATURE_Q) == 0 && !settings_.tree) return;
    const sdk::Place place(instance, grant);
    const int64_t rows = int64_t{grant.max_batch} * levels();
    law_ = sdk::Owned::make<float>(place, rows, vocab_size_);
    lse_ = sdk::Owned::make<float>(place, rows);
  }
  void deactivate() {
    law_ = sdk::Owned();
    lse_ = sdk::Owned();
  }

  void propose(const specd_propose_args& in) {
    if (in.out->q_row == nullptr && !settings_.tree) {
      chain_.propose(in);
      return;
    }
    const int64_t n = in.batch->n_seqs;
    const specd_tensor law = law_.rows(n * levels()), lse = lse_.rows(n * levels());
    tokens_.assign(static_cast<std::size_t>(n * levels()), SPECD_NO_TOKEN);
    chain_.draft(in, sdk::host_view(tokens_, n, levels()), &law, &lse);
    const Nodes nodes{{in.out->token, n, in.out->node_capacity, "token"},
                      {in.out->parent, n, in.out->node_capacity, "parent"}};
    for (uint32_t s = 0; s < in.batch->n_seqs; ++s) add_nodes(in, s, nodes);
    if (in.out->q_row == nullptr) return;
    *in.out->q = law;
    *in.out->q_lse = lse;
    const sdk::Column<int32_t> q_row(in.out->q_row, n, in.out->node_capacity + 1, "q_row");
    for (uint32_t s = 0; s < in.batch->n_seqs; ++s) {
      // The children of the root, and of node i, are those of level 0, and of level i + 1.
      for (uint32_t level = 0; level < chain_.length(in, s); ++level) {
        q_row(s, level) = static_cast<int32_t>(row_of(s, level));
      }
    }
  }

 private:
  int64_t levels() const { return settings_.draft_tokens; }
  std::size_t row_of(uint32_t s, uint32_t level) const {
    return std::size_t{s} * settings_.draft_tokens + level;
  }

  struct Nodes {
    sdk::Column<int32_t> token, parent;
  };
  void add_nodes(const specd_propose_args& in, uint32_t s, const Nodes& out) {
    uint32_t node = 0;
    const auto budget = static_cast<uint32_t>(std::max(in.host_node_budget[s], 0));
    const auto add = [&](int32_t token, uint32_t level) {
      out.token(s, node) = token;
      if (settings_.tree) out.parent(s, node) = static_cast<int32_t>(level) - 1;
      ++node;
    };
    const uint32_t length = chain_.length(in, s);
    while (node < length && tokens_[row_of(s, node)] != SPECD_NO_TOKEN) {
      add(tokens_[row_of(s, node)], node);
    }
    // All draws of a greedy request are the same token.
    if (!settings_.tree || (in.sampling[s]->flags & SPECD_SAMPLE_GREEDY) != 0) return;
    sdk::Noise noise(*rng_, *in.batch, s, in.host_root_position[s], SPECD_PURPOSE_DRAFT);
    std::vector<double> weight(static_cast<std::size_t>(vocab_size_));
    for (uint32_t level = 0, levels = node; level < levels && node < budget; ++level) {
      const std::size_t row = row_of(s, level);
      const float* values = static_cast<const float*>((*law_).data);
      const sdk::Law law(values + static_cast<int64_t>(row) * vocab_size_,
                         static_cast<const float*>((*lse_).data)[row],
                         static_cast<int32_t>(vocab_size_));
      for (std::size_t t = 0; t < weight.size(); ++t) weight[t] = law.p(static_cast<int32_t>(t));
      draw_siblings(weight, tokens_[row], std::min(settings_.branches - 1, budget - node),
                    settings_.with_replacement, noise, [&](int32_t token) { add(token, level); });
    }
  }

  const Settings& settings_;
  Chain& chain_;
  const int64_t vocab_size_;
  std::optional<sdk::Rng> rng_;
  // What guess i of sequence s was drawn from, and the guess: row s * draft_tokens + i.
  sdk::Owned law_, lse_;
  std::vector<int32_t> tokens_;
};

}  // namespace specd::draft_target
