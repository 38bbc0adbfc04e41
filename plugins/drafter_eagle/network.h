// The head's layers on the granted device. See README.md for the equations.
#pragma once

#include <specd/sdk/feature_tree.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layout.h"

namespace specd::eagle {

class Network {
 public:
  static uint64_t bytes(const Layout& layout, int64_t rows, int64_t attending) {
    return 4 * static_cast<uint64_t>(rows * (5 * layout.hidden + layout.shapes[0].head_dim)) +
           sdk::DecoderStack::bytes(layout.shapes, rows, attending);
  }

  // [control & active] rows_max: of a call of Kv::rows(); attending_max: of those that attend.
  Network(const sdk::Instance& instance, const specd_drafter_grant& grant,
          const sdk::Weights& weights, const Layout& layout, int64_t rows_max,
          int64_t attending_max)
      : layout_(layout),
        target_(instance),
        kv_(instance,
            {static_cast<uint32_t>(layout.shapes.size()),
             static_cast<uint32_t>(layout.shapes[0].n_kv_heads),
             static_cast<uint32_t>(layout.shapes[0].head_dim), static_cast<uint32_t>(rows_max),
             static_cast<uint32_t>(layout.positions_max), layout.inv_freq, 1}),
        fc_(weights, {"fc.weight"},
            layout.has_bias ? std::vector<std::string>{"fc.bias"} : std::vector<std::string>(),
            layout.hidden, 2 * layout.hidden) {
    const sdk::Place place(instance, grant);
    const int64_t hidden = layout.hidden;
    std::vector<std::string> at;
    for (std::size_t l = 0; l < layout.shapes.size(); ++l) at.push_back(Layout::layer(l));
    layers_.emplace(place, weights, at, layout.shapes, rows_max, attending_max);
    using sdk::Owned;
    for (Owned* each : {&embedded_, &normed_, &residual_}) {
      *each = Owned::make<float>(place, rows_max, hidden);
    }
    input_ = Owned::make<float>(place, rows_max, 2 * hidden);
  }

  int64_t width() const { return layout_.hidden; }
  int64_t columns() const { return layout_.vocab; }
  const std::vector<int32_t>& ids() const { return ids_; }
  const sdk::Kv& kv() const { return kv_; }

  void features(const sdk::Ops& ops, const specd_update_args& in, const specd_tensor& out) {
    ops.copy(*in.batch, *in.hidden[0], in.hidden_row, out);
  }

  void run(const sdk::Ops& ops, const specd_batch& batch, const specd_tensor& feature,
           const specd_tensor& token, const specd_tensor* queries, const specd_tensor& out) {
    const int64_t n = feature.shape[0], hidden = layout_.hidden;
    const specd_tensor embedded = embedded_.rows(n), input = input_.rows(n),
                       residual = residual_.rows(n), normed = normed_.rows(n);
    ops.embed(batch, target_.embedding, token, embedded);
    ops.copy(batch, embedded, nullptr, sdk::columns_of(input, 0, hidden));
    ops.copy(batch, feature, nullptr, sdk::columns_of(input, hidden, hidden));
    fc_(ops, batch, input, residual);
    ops.copy(batch, layers_->run(ops, batch, kv_, residual, queries, normed, residual), nullptr,
             out);
  }

  void logits(const sdk::Ops& ops, const specd_batch& batch, const specd_tensor& feature,
              const specd_tensor& out) {
    ops.linear(batch, target_.head, feature, nullptr, out);
  }

 private:
  const Layout& layout_;
  const sdk::Target target_;
  const sdk::Kv kv_;
  const sdk::Linear fc_;
  const std::vector<int32_t> ids_;  // the head knows every token
  std::optional<sdk::DecoderStack> layers_;
  sdk::Owned embedded_, normed_, residual_, input_;
};

}  // namespace specd::eagle
