// The head's layers on the granted device. See README.md for the equations.
#pragma once

#include <specd/sdk/feature_tree.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout.h"

namespace specd::eagle3 {

class Network {
 public:
  // Floats for each row of a call.
  static int64_t floats_per_row(const Layout& layout) {
    const auto n_taps = static_cast<int64_t>(layout.taps.size());
    return 2 * n_taps * layout.target_hidden + input_width(layout) + 3 * layout.hidden;
  }
  static uint64_t bytes(const Layout& layout, int64_t rows, int64_t attending) {
    const int64_t per_row = floats_per_row(layout) + 1 + layout.shapes[0].head_dim;
    return 4 * static_cast<uint64_t>(rows * per_row) +
           sdk::DecoderStack::bytes(layout.shapes, rows, attending);
  }

  // [control & active] rows_max: of a call of Kv::rows(); attending_max: of those that attend.
  Network(const sdk::Instance& instance, const specd_drafter_grant& grant,
          const sdk::Weights& weights, const Layout& layout, int64_t rows_max,
          int64_t attending_max)
      : layout_(layout),
        target_(instance),
        kv_(instance,
            {static_cast<uint32_t>(layout.layers.size()),
             static_cast<uint32_t>(layout.shapes[0].n_kv_heads),
             static_cast<uint32_t>(layout.shapes[0].head_dim), static_cast<uint32_t>(rows_max),
             static_cast<uint32_t>(layout.positions_max), layout.inv_freq, 1}),
        embedding_(layout.has_embedding
                       ? weights.table("embed_tokens.weight", layout.vocab, layout.hidden)
                       : target_.embedding) {
    const int64_t hidden = layout.hidden,
                  fused = static_cast<int64_t>(layout.taps.size()) * layout.target_hidden;
    if (layout.has_fc) {
      fc_.emplace(
          weights, std::vector<std::string>{"fc.weight"},
          layout.has_fc_bias ? std::vector<std::string>{"fc.bias"} : std::vector<std::string>(),
          hidden, fused);
    }
    const auto vector = [&](const std::string& name, int64_t n) {
      return weights.copy<float>(name, {n});
    };
    if (layout.norm_before_fc) input_norm_ = vector("input_norm.weight", fused);
    for (std::size_t t = 0; layout.fc_norm && t < layout.taps.size(); ++t) {
      fc_norm_.push_back(vector("fc_norm." + std::to_string(t) + ".weight", layout.target_hidden));
    }
    hidden_norm_ = vector(layout.layers[0] + "hidden_norm.weight", hidden);
    norm_ = vector("norm.weight", hidden);
    head_ = weights.matrix({"lm_head.weight"}, layout.columns(), hidden);
    const sdk::Place place(instance, grant);
    embedded_norm_ = vector(layout.layers[0] + "input_layernorm.weight", hidden);
    layers_.emplace(place, weights, layout.layers, layout.shapes, rows_max, attending_max);
    using sdk::Owned;
    fused_ = Owned::make<float>(place, rows_max, fused);
    normed_fused_ = Owned::make<float>(place, rows_max, fused);
    for (Owned* each : {&embedded_, &normed_}) *each = Owned::make<float>(place, rows_max, hidden);
    input_ = Owned::make<float>(place, rows_max, input_width(layout));
    residual_ = Owned::make<float>(place, rows_max, hidden);
  }

  int64_t width() const { return layout_.hidden; }
  int64_t columns() const { return layout_.columns(); }
  const std::vector<int32_t>& ids() const { return layout_.ids; }
  const sdk::Kv& kv() const { return kv_; }

  // out = fc(the target's states, one beside the other)
  void features(const sdk::Ops& ops, const specd_update_args& in, const specd_tensor& out) {
    const specd_batch& batch = *in.batch;
    const int64_t n = in.n_rows, width = layout_.target_hidden;
    if (!fc_) {
      ops.copy(batch, *in.hidden[0], in.hidden_row, out);
      return;
    }
    specd_tensor fused = fused_.rows(n);
    for (std::size_t t = 0; t < layout_.taps.size(); ++t) {
      const specd_tensor part = sdk::columns_of(fused, static_cast<int64_t>(t) * width, width);
      if (!layout_.fc_norm) {
        ops.copy(batch, *in.hidden[t], in.hidden_row, part);
        continue;
      }
      // The norm of one state, in the place of the others for a while.
      const specd_tensor state = sdk::shaped(normed_fused_.rows(n), n, width);
      const specd_tensor normed = sdk::shaped(*input_, n, width);
      ops.copy(batch, *in.hidden[t], in.hidden_row, state);
      ops.rmsnorm(batch, state, fc_norm_[t], layout_.eps, normed);
      ops.copy(batch, normed, nullptr, part);
    }
    if (layout_.norm_before_fc) {
      ops.rmsnorm(batch, fused, input_norm_, layout_.eps, normed_fused_.rows(n));
      fused = normed_fused_.rows(n);
    }
    (*fc_)(ops, batch, fused, out);
  }

  void run(const sdk::Ops& ops, const specd_batch& batch, const specd_tensor& feature,
           const specd_tensor& token, const specd_tensor* queries, const specd_tensor& out) {
    const int64_t n = feature.shape[0], hidden = layout_.hidden;
    const specd_tensor embedded = embedded_.rows(n), normed = normed_.rows(n),
                       input = sdk::shaped(*input_, n, 2 * hidden), residual = residual_.rows(n);
    ops.embed(batch, embedding_, token, embedded);
    ops.rmsnorm(batch, embedded, embedded_norm_, layout_.eps, normed);
    ops.copy(batch, normed, nullptr, sdk::columns_of(input, 0, hidden));
    ops.rmsnorm(batch, feature, hidden_norm_, layout_.eps, normed);
    ops.copy(batch, normed, nullptr, sdk::columns_of(input, hidden, hidden));
    ops.copy(batch, layout_.norm_before_residual ? normed : feature, nullptr, residual);
    const specd_tensor stream = layers_->run(ops, batch, kv_, input, queries, normed, residual);
    if (layout_.norm_output) {
      ops.rmsnorm(batch, stream, norm_, layout_.eps, out);
    } else {
      ops.copy(batch, stream, nullptr, out);
    }
  }

  void logits(const sdk::Ops& ops, const specd_batch& batch, const specd_tensor& feature,
              const specd_tensor& out) {
    specd_tensor normed = feature;
    if (!layout_.norm_output) {
      normed = embedded_.rows(feature.shape[0]);
      ops.rmsnorm(batch, feature, norm_, layout_.eps, normed);
    }
    ops.linear(batch, head_, normed, nullptr, out);
  }

 private:
  // Of the layer's input, and of a state on its way to fc.
  static int64_t input_width(const Layout& layout) {
    return std::max(2 * layout.hidden, layout.target_hidden);
  }

  const Layout& layout_;
  const sdk::Target target_;
  const sdk::Kv kv_;
  const specd_tensor embedding_;
  std::optional<sdk::Linear> fc_;
  specd_tensor input_norm_{}, embedded_norm_{}, hidden_norm_{}, norm_{};
  std::vector<specd_tensor> fc_norm_;
  specd_matrix* head_ = nullptr;
  std::optional<sdk::DecoderStack> layers_;
  sdk::Owned fused_, normed_fused_, embedded_, normed_, input_, residual_;
};

}  // namespace specd::eagle3
