// The heads on the granted device: the last hidden state of every sequence in, the ranks of the tree
// out. See README.md.
#pragma once

#include <specd/sdk/layers.h>
#include <specd/sdk/tree.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout.h"

namespace specd::medusa {

class Heads {
 public:
  // Bytes for the buffers of one sequence.
  static uint64_t bytes_per_sequence(const Layout& layout, const specd_target_info& target,
                                     const sdk::Choices& choices) {
    const uint64_t hidden = target.hidden_size, n = choices.nodes().size();
    const auto columns = static_cast<uint64_t>(layout.columns);
    const auto ranks = static_cast<uint64_t>(choices.depth() * choices.width());
    return sdk::SlotStates::bytes_per_sequence(hidden) +
           4 * (4 * hidden + 2 * columns + 2 * ranks + 2 * n + 1);
  }
  static uint64_t bytes_fixed(const specd_target_info& target) {
    return sdk::SlotStates::bytes_fixed(target.hidden_size);
  }

  // [control & active]
  Heads(const sdk::Instance& instance, const specd_drafter_grant& grant,
        const sdk::Weights& weights, const Layout& layout, const sdk::Choices& choices,
        bool use_target_noise)
      : ops_(instance),
        choices_(choices),
        levels_(choices.depth()),
        width_(choices.width()),
        n_max_(grant.max_batch),
        n_nodes_(std::min<std::size_t>(choices.nodes().size(), grant.max_nodes)),
        capacity_(grant.max_nodes),
        use_target_noise_(use_target_noise),
        is_reduced_(!layout.token_map.empty()) {
    const int64_t hidden = instance.target().hidden_size, columns = layout.columns;
    const int64_t cells = n_max_ * std::max(static_cast<int64_t>(n_nodes_), levels_ * width_);
    if (cells > sdk::Ops::kRowsMax) {
      throw sdk::Error(SPECD_E_CONFIG, "choices: " + std::to_string(n_nodes_) +
                                           " nodes, ranks to " + std::to_string(width_ - 1) +
                                           " at " + std::to_string(levels_) + " levels for " +
                                           std::to_string(n_max_) + " sequences, at most " +
                                           std::to_string(sdk::Ops::kRowsMax) + " together");
    }
    for (int32_t h = 0; h < levels_; ++h) {
      const Layout::Head& from = layout.heads[static_cast<std::size_t>(h)];
      Head head;
      for (std::size_t l = 0; l < from.weights.size(); ++l) {
        head.blocks.emplace_back(weights, from.weights[l], from.biases[l], hidden);
      }
      head.output = from.output.empty() ? sdk::Target(instance).head
                                        : weights.matrix({from.output}, columns, hidden);
      heads_.push_back(std::move(head));
    }
    if (is_reduced_)
      token_map_ = sdk::shaped(weights.copy<int32_t>(layout.token_map, {columns}), columns, 1);
    const sdk::Place place(instance, grant);
    using sdk::Owned;
    states_.emplace(place, n_max_, hidden);
    for (Owned* each : {&x_, &y_, &last_, &scratch_})
      *each = Owned::make<float>(place, n_max_, hidden);
    logits_ = Owned::make<float>(place, n_max_, columns);
    if (use_target_noise) score_ = Owned::make<float>(place, n_max_, columns);
    // By level, sequence and rank.
    rank_ = Owned::make<int32_t>(place, levels_ * n_max_, width_);
    if (is_reduced_) token_ = Owned::make<int32_t>(place, levels_ * n_max_, width_);
    cell_from_ = Owned::make<int32_t>(place, n_max_ * static_cast<int64_t>(n_nodes_));
    cell_to_ = Owned::make<int32_t>(place, n_max_ * static_cast<int64_t>(n_nodes_));
    sequence_ = Owned::make<int32_t>(place, n_max_);
  }

  // [step] No sequence begins with the state of another.
  void begin(const specd_batch& batch) {
    prepare(batch);
    states_->begin(ops_, batch);
  }

  // [step] Keeps the states of the last rows.
  void update(const specd_update_args& in) {
    states_->keep(ops_, *in.batch, *in.hidden[0], in.last_hidden_row);
  }

  // [step] Does the same for every batch of this size, and reads nothing.
  void propose(const specd_propose_args& in) const {
    const specd_batch& batch = *in.batch;
    const int64_t n = batch.n_seqs;
    const specd_tensor x = x_.rows(n), logits = logits_.rows(n);
    states_->gather(ops_, batch, *batch.slots, x);
    const int32_t budget = *std::max_element(in.host_node_budget, in.host_node_budget + n);
    for (int32_t h = 0; h < levels_ && choices_.first(h) < budget; ++h) {
      const Head& head = heads_[static_cast<std::size_t>(h)];
      ops_.linear(batch, head.output, run_blocks(batch, head, x), nullptr, logits);
      const specd_tensor ranks = sdk::rows_from(*rank_, h * n_max_, n);
      ops_.topk(batch, use_target_noise_ ? score(in, logits, h) : logits, ranks, nullptr);
    }
    const int64_t all = levels_ * n_max_ * width_;
    specd_tensor tokens = sdk::shaped(*rank_, all, 1);
    if (is_reduced_) {
      const specd_tensor ranks = sdk::shaped(*rank_, all);
      tokens = sdk::shaped(*token_, all, 1);
      ops_.copy(batch, token_map_, &ranks, tokens);
    }
    const int64_t cells = n * static_cast<int64_t>(n_nodes_);
    const specd_tensor from = cell_from_.rows(cells), to = cell_to_.rows(cells);
    ops_.copy(batch, tokens, &from, sdk::shaped(*in.out->token, n * capacity_, 1), &to);
  }

 private:
  struct Head {
    std::vector<sdk::ResidualBlock> blocks;
    specd_matrix* output = nullptr;
  };

  // The tables of indexes, brought by the first call of a step.
  void prepare(const specd_batch& batch) {
    if (is_prepared_) return;
    std::vector<int32_t> from, to, sequence;
    for (int64_t s = 0; s < n_max_; ++s) {
      sequence.push_back(static_cast<int32_t>(s));
      for (std::size_t i = 0; i < n_nodes_; ++i) {
        const sdk::Choices::Node& node = choices_.nodes()[i];
        from.push_back(static_cast<int32_t>((node.depth * n_max_ + s) * width_ + node.rank));
        to.push_back(static_cast<int32_t>(s * capacity_ + static_cast<int64_t>(i)));
      }
    }
    ops_.put(batch, from, *cell_from_);
    ops_.put(batch, to, *cell_to_);
    ops_.put(batch, sequence, *sequence_);
    is_prepared_ = true;
  }

  specd_tensor run_blocks(const specd_batch& batch, const Head& head, specd_tensor x) const {
    const int64_t n = batch.n_seqs;
    for (std::size_t l = 0; l < head.blocks.size(); ++l) {
      const specd_tensor out = l % 2 == 0 ? y_.rows(n) : last_.rows(n);
      head.blocks[l](ops_, batch, x, scratch_.rows(n), out);
      x = out;
    }
    return x;
  }

  // What the target's draw would take the largest of, at the position that the head predicts.
  specd_tensor score(const specd_propose_args& in, const specd_tensor& logits, int32_t h) const {
    const specd_tensor out = score_.rows(logits.shape[0]),
                       sequence = sequence_.rows(logits.shape[0]);
    const specd_tensor ids = sdk::shaped(token_map_, token_map_.shape[0]);
    ops_.target_scores(in, logits, sequence, static_cast<uint32_t>(h) + 1,
                       is_reduced_ ? &ids : nullptr, out);
    return out;
  }

  const sdk::Ops ops_;
  const sdk::Choices choices_;
  const int32_t levels_;
  const int64_t width_, n_max_;
  const std::size_t n_nodes_;
  const int64_t capacity_;
  const bool use_target_noise_, is_reduced_;
  bool is_prepared_ = false;
  std::vector<Head> heads_;
  specd_tensor token_map_{};  // [columns, 1] int32
  std::optional<sdk::SlotStates> states_;
  sdk::Owned x_, y_, last_, scratch_, logits_, score_, rank_, token_, cell_from_, cell_to_,
      sequence_;
};

}  // namespace specd::medusa
