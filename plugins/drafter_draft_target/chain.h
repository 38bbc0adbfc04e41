// A chain of guesses, drawn one after the other.
#pragma once

#include <specd/plugin_api/services/rng.h>
#include <specd/sdk/model.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "settings.h"

namespace specd::draft_target {

class Chain {
 public:
  Chain(const Settings& settings, const sdk::Model& model) : settings_(settings), model_(model) {}

  // Guesses of sequence s in this step, at most.
  uint32_t length(const specd_propose_args& in, uint32_t s) const {
    const auto asked = static_cast<uint32_t>(std::max(in.host_node_budget[s], 0));
    const uint32_t most = std::min(asked, settings_.draft_tokens);
    if (!settings_.tree) return most;  // the budget is a depth, and shapes depend on it alone
    const uint64_t left = in.sampling[s]->tokens_left;
    return left == 0 ? 0 : static_cast<uint32_t>(std::min<uint64_t>(most, left - 1));
  }

  // Writes guess i of a sequence to node i of its proposal, which is also the input of the row for
  // guess i + 1. No value is read on the host.
  void propose(const specd_propose_args& in) { draft(in, *in.out->token, nullptr, nullptr); }

  // The same to `token` [n_seqs, at least length()]. `law` and `lse` get what guess i of sequence s is
  // drawn from, in the row of its token; null = not wanted.
  void draft(const specd_propose_args& in, const specd_tensor& token, const specd_tensor* law,
             const specd_tensor* lse) {
    const specd_batch& batch = *in.batch;
    const auto capacity = static_cast<uint32_t>(token.shape[1]);
    const auto budget = [&](uint32_t s) { return length(in, s); };
    const specd_tensor tokens = sdk::ModelCall::flat(token, 1);
    const specd_tensor top_tokens = sdk::ModelCall::flat(token, 2);
    std::vector<float> logprob(settings_.p_min > 0 ? std::size_t{batch.n_seqs} * capacity : 0);
    const specd_tensor logprobs = column_of(logprob, 1), top_logprobs = column_of(logprob, 2);
    sdk::Model::Tensors out;
    const bool draws = settings_.draw != Draw::kMostLikely;
    (draws ? out.drawn : out.top_token) = draws ? &tokens : &top_tokens;
    if (settings_.p_min > 0) {
      (draws ? out.logprob : out.top_logprob) = draws ? &logprobs : &top_logprobs;
    }
    out.purpose = settings_.draw == Draw::kOwn ? SPECD_PURPOSE_DRAFT : 0;
    out.law = law;
    out.lse = lse;

    call_.clear(batch.n_seqs);
    std::vector<uint32_t> active;  // sequences still drafting
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      if (budget(s) == 0) continue;
      call_.want(s, s * capacity);
      active.push_back(s);
    }
    model_.follow(batch, call_, settings_.prefill_chunk, out);
    for (uint32_t node = 1; !active.empty(); ++node) {
      const auto done = [&](uint32_t s) {
        return call_.status(s) != SPECD_OK || node >= budget(s) ||
               (settings_.p_min > 0 && is_unlikely(tokens, logprob, s * capacity + node - 1));
      };
      active.erase(std::remove_if(active.begin(), active.end(), done), active.end());
      if (active.empty()) return;
      call_.clear(batch.n_seqs);
      for (const uint32_t s : active) {
        call_.add(s, s * capacity + node - 1, s * capacity + node);
      }
      model_.forward(batch, call_, tokens, out);
    }
  }

 private:
  // Host memory only: with p_min SPECD_DEV_CUDA is not offered.
  bool is_unlikely(const specd_tensor& tokens, const std::vector<float>& logprob,
                   uint32_t at) const {
    return static_cast<const int32_t*>(tokens.data)[at] < 0 ||
           std::exp(logprob[at]) < settings_.p_min;
  }
  static specd_tensor column_of(std::vector<float>& values, uint32_t rank) {
    specd_tensor t{};
    t.struct_size = sizeof t;
    t.dtype_code = SPECD_DT_FLOAT;
    t.dtype_bits = 32;
    t.dtype_lanes = 1;
    t.device_type = SPECD_DEV_CPU;
    t.rank = 1;
    t.data = values.data();
    t.shape[0] = static_cast<int64_t>(values.size());
    t.stride[0] = 1;
    t.byte_capacity = values.size() * sizeof(float);
    return sdk::ModelCall::flat(t, rank);
  }

  const Settings& settings_;
  const sdk::Model& model_;
  sdk::ModelCall call_;
};

}  // namespace specd::draft_target
