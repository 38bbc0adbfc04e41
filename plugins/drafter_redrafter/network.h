// The recurrent head on the granted device: one row per beam and step. See README.md for the
// equations.
#pragma once

#include <specd/sdk/layers.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "layout.h"
#include "settings.h"

namespace specd::redrafter {

class Network {
 public:
  static uint64_t bytes_per_sequence(const Layout& layout, const specd_target_info& target,
                                     const Settings& settings) {
    const uint64_t hidden = target.hidden_size, vocab = target.vocab_size;
    const auto exit = static_cast<uint64_t>(layout.exit);
    return sdk::SlotStates::bytes_per_sequence(hidden) + 4 * hidden +
           settings.beams * 4 * (8 * hidden + 3 * exit + 2 * vocab + 4);
  }
  static uint64_t bytes_fixed(const specd_target_info& target) {
    return sdk::SlotStates::bytes_fixed(target.hidden_size);
  }

  // [control & active]
  Network(const sdk::Instance& instance, const specd_drafter_grant& grant,
          const sdk::Weights& weights, const Layout& layout, const Settings& settings)
      : ops_(instance),
        target_(instance),
        hidden_(instance.target().hidden_size),
        use_target_noise_(settings.use_target_noise) {
    const int64_t vocab = instance.target().vocab_size, exit = layout.exit;
    if (layout.is_recurrent) {
      from_token_.emplace(weights, std::vector<std::string>{"rnn_w.weight"},
                          std::vector<std::string>(), hidden_, hidden_);
      from_state_.emplace(weights, std::vector<std::string>{"rnn_u.weight"},
                          std::vector<std::string>{"rnn_u.bias"}, hidden_, hidden_);
    }
    if (!layout.input.empty()) {
      input_.emplace(weights, std::vector{layout.input + "weight"},
                     std::vector{layout.input + "bias"}, exit, 2 * hidden_);
    }
    for (const std::string& block : layout.blocks) {
      blocks_.emplace_back(weights, block + "weight", block + "bias", exit);
    }
    output_ = weights.matrix({layout.output}, vocab, exit);
    const sdk::Place place(instance, grant);
    const int64_t n_max = grant.max_batch, rows = n_max * settings.beams;
    using sdk::Owned;
    states_.emplace(place, n_max, hidden_);
    zeros_ = Owned::make<float>(place, n_max, hidden_);
    for (Owned* each : {&embedded_, &recurrent_, &memory_, &next_memory_, &context_, &before_}) {
      *each = Owned::make<float>(place, rows, hidden_);
    }
    joined_ = Owned::make<float>(place, rows, 2 * hidden_);
    for (Owned* each : {&z_, &y_, &scratch_}) *each = Owned::make<float>(place, rows, exit);
    logits_ = Owned::make<float>(place, rows, vocab);
    if (use_target_noise_) score_ = Owned::make<float>(place, rows, vocab);
    for (Owned* each : {&token_, &slot_, &sequence_, &parent_}) {
      *each = Owned::make<int32_t>(place, rows);
    }
  }

  void begin(const specd_batch& batch) const { states_->begin(ops_, batch); }
  void update(const specd_update_args& in) const {
    states_->keep(ops_, *in.batch, *in.hidden[0], in.last_hidden_row);
  }

  // The rows of one step.
  struct Rows {
    std::vector<int32_t> token, slot, sequence;
    std::vector<int32_t> parent;  // row of the step before; -1 = there is none
    std::vector<int32_t> candidate;
    std::vector<float> logprob;  // [rows, n_candidates], of candidate
    int64_t n_candidates = 0;
    void clear() { token.clear(), slot.clear(), sequence.clear(), parent.clear(); }
  };
  // Computes the likeliest tokens after each row, at `depth` below the root, from 1.
  void run(const specd_propose_args& in, Rows& rows, uint32_t depth) {
    const specd_batch& batch = *in.batch;
    const auto n = static_cast<int64_t>(rows.token.size());
    ops_.put(batch, rows.token, *token_);
    ops_.put(batch, rows.slot, *slot_);
    ops_.put(batch, rows.sequence, *sequence_);
    const specd_tensor token = token_.rows(n), slot = slot_.rows(n), context = context_.rows(n),
                       embedded = embedded_.rows(n), memory = next_memory_.rows(n);
    states_->gather(ops_, batch, slot, context);
    ops_.embed(batch, target_.embedding, token, embedded);
    step(batch, rows, depth, embedded, memory);
    const specd_tensor joined = joined_.rows(n);
    ops_.copy(batch, context, nullptr, sdk::columns_of(joined, 0, hidden_));
    ops_.copy(batch, memory, nullptr, sdk::columns_of(joined, hidden_, hidden_));
    specd_tensor z = joined;
    if (input_) {
      z = z_.rows(n);
      (*input_)(ops_, batch, joined, z);
    } else if (!blocks_.empty()) {
      z = z_.rows(n);
      ops_.copy(batch, joined, nullptr, z);
    }
    specd_tensor out = y_.rows(n);
    for (const sdk::ResidualBlock& block : blocks_) {
      block(ops_, batch, z, scratch_.rows(n), out);
      std::swap(z, out);
    }
    specd_tensor logits = logits_.rows(n);
    ops_.linear(batch, output_, z, nullptr, logits);
    if (use_target_noise_) {
      const specd_tensor score = score_.rows(n), sequence = sequence_.rows(n);
      ops_.target_scores(in, logits, sequence, depth, nullptr, score);
      logits = score;
    }
    rows.n_candidates = std::min<int64_t>(kCandidates, logits.shape[1]);
    rows.candidate.resize(static_cast<std::size_t>(n * rows.n_candidates));
    rows.logprob.resize(rows.candidate.size());
    const specd_tensor candidate = sdk::host_view(rows.candidate, n, rows.n_candidates),
                       logprob = sdk::host_view(rows.logprob, n, rows.n_candidates);
    ops_.topk(batch, logits, candidate, &logprob);
    std::swap(memory_, next_memory_);
  }

 private:
  // memory = silu(W e + U m + b), or e + m; m = 0 in the first step.
  void step(const specd_batch& batch, Rows& rows, uint32_t depth, const specd_tensor& embedded,
            const specd_tensor& memory) const {
    const int64_t n = embedded.shape[0];
    const specd_tensor before = memory_before(batch, rows, depth, n);
    if (!from_state_) {
      ops_.map(batch, SPECD_MAP_ADD, embedded, before, memory);
      return;
    }
    const specd_tensor recurrent = recurrent_.rows(n);
    (*from_state_)(ops_, batch, before, recurrent);
    (*from_token_)(ops_, batch, embedded, memory);
    ops_.map(batch, SPECD_MAP_ADD, memory, recurrent, memory);
    ops_.silu(batch, memory, memory);
  }
  // That of the rows' parents.
  specd_tensor memory_before(const specd_batch& batch, Rows& rows, uint32_t depth,
                             int64_t n) const {
    if (depth == 1) return zeros_.rows(n);
    const specd_tensor before = before_.rows(n);
    ops_.put(batch, rows.parent, *parent_);
    const specd_tensor parent = parent_.rows(n);
    ops_.copy(batch, *memory_, &parent, before);
    return before;
  }

  const sdk::Ops ops_;
  const sdk::Target target_;
  const int64_t hidden_;
  const bool use_target_noise_;
  std::optional<sdk::Linear> from_token_, from_state_, input_;
  std::vector<sdk::ResidualBlock> blocks_;
  specd_matrix* output_ = nullptr;
  std::optional<sdk::SlotStates> states_;
  sdk::Owned embedded_, recurrent_, memory_, next_memory_, context_, joined_, z_, y_, scratch_,
      logits_, score_, token_, slot_, sequence_, parent_, before_, zeros_;
};

}  // namespace specd::redrafter
