// A tree of guesses, grown level by level: the most likely nodes of each level are run, each adds
// its most likely children, and the most likely nodes overall are proposed.
#pragma once

#include <specd/sdk/drafter.h>
#include <specd/sdk/model.h>
#include <specd/sdk/tree.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "settings.h"

namespace specd::draft_target {

class Tree {
 public:
  Tree(const Settings& settings, const sdk::Model& model)
      : settings_(settings),
        branches_(std::min(settings.branches, model.info().vocab_size)),
        score_min_(static_cast<float>(std::log(settings.path_p_min))),
        model_(model) {}

  void propose(const specd_propose_args& in) {
    const specd_batch& batch = *in.batch;
    const int64_t n = batch.n_seqs, capacity = in.out->node_capacity;
    const sdk::Column<int32_t> token(in.out->token, n, capacity, "token");
    const sdk::Column<int32_t> parent(in.out->parent, n, capacity, "parent");
    grown_.resize(std::max(grown_.size(), std::size_t{batch.n_seqs}));
    growing_.clear();
    rows_.clear(batch.n_seqs, wants());
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      grown_[s].clear();
      const uint32_t depth = depth_of(in, s);
      if (depth == 0) continue;
      rows_.want(s);
      growing_.push_back({s, depth, static_cast<std::size_t>(in.host_node_budget[s]), {kRoot}});
    }
    model_.follow(batch, rows_, settings_.prefill_chunk);
    for (uint32_t depth = 1;; ++depth) {
      take_children();
      choose_rows(batch.n_seqs, depth);
      if (rows_.empty()) break;
      model_.forward(batch, rows_);
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      sdk::Proposal out(in, token, &parent, nullptr, s, in.out->node_capacity);
      grown_[s].propose(out);
    }
  }

 private:
  static constexpr int32_t kRoot = -1;
  struct Growing {
    uint32_t sequence, depth;
    std::size_t budget;
    std::vector<int32_t> run;  // nodes that the model is running
  };

  sdk::ModelRows::Wants wants() const { return {true, false, branches_}; }
  // Levels that the text has room for: the step itself adds a token.
  uint32_t depth_of(const specd_propose_args& in, uint32_t s) const {
    const uint64_t left = in.sampling[s]->tokens_left;
    if (in.host_node_budget[s] <= 0 || left == 0) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(settings_.draft_tokens, left - 1));
  }

  // Adds the model's outputs as children of the nodes that were run.
  void take_children() {
    int32_t output = 0;
    for (const Growing& each : growing_) {
      const bool good = rows_.status(each.sequence) == SPECD_OK;
      for (const int32_t node : each.run) {
        if (good) add_children(grown_[each.sequence], node, output);
        ++output;
      }
    }
  }

  // The draw comes first and takes the score of the most likely child: made with the target's
  // noise, it is what the target will draw when the two models roughly agree. When greedy it is the
  // most likely child.
  void add_children(sdk::GrownTree& grown, int32_t parent, int32_t output) {
    const int32_t drawn = rows_.token(output);
    if (drawn == SPECD_NO_TOKEN) return;  // non-finite logits
    const float above = parent == kRoot ? 0 : grown.nodes()[static_cast<std::size_t>(parent)].score;
    uint32_t rank = 0;
    const auto add = [&](int32_t token) {
      const float score = above + std::min(0.0f, rows_.top_logprob(output, rank++));
      if (token != SPECD_NO_TOKEN && score >= score_min_) grown.add(token, parent, score);
    };
    if (settings_.draw == Draw::kTargetNoise) add(drawn);
    for (uint32_t i = 0; rank < branches_; ++i) {
      const int32_t token = rows_.top_token(output, i);
      if (token != drawn || settings_.draw != Draw::kTargetNoise) add(token);
    }
  }

  // For each sequence that may grow deeper than `depth`, the most likely nodes at that depth.
  void choose_rows(uint32_t n_seqs, uint32_t depth) {
    std::vector<Growing> deeper;
    for (Growing& each : growing_) {
      if (rows_.status(each.sequence) != SPECD_OK || depth >= each.depth) continue;
      each.run = grown_[each.sequence].begin_level(branches_, each.budget);
      if (!each.run.empty()) deeper.push_back(std::move(each));
    }
    growing_ = std::move(deeper);
    rows_.clear(n_seqs, wants());
    for (const Growing& each : growing_) {
      const sdk::GrownTree& grown = grown_[each.sequence];
      for (const int32_t node : each.run) {
        const sdk::GrownTree::Node& run = grown.nodes()[static_cast<std::size_t>(node)];
        rows_.add_child(each.sequence, run.token, grown.row_of(run.parent), true);
      }
    }
  }

  const Settings& settings_;
  const uint32_t branches_;
  const float score_min_;
  const sdk::Model& model_;
  sdk::ModelRows rows_;
  std::vector<sdk::GrownTree> grown_;  // indexed by sequence of the batch
  std::vector<Growing> growing_;
};

}  // namespace specd::draft_target
