// Forwards of a model by one rank of several, or by one alone.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/model/transformer.h"

namespace specd {

inline constexpr int32_t kSplitPages = 10;  // of a rank's KV

// What a rank has after some forwards.
struct Found {
  std::vector<std::vector<float>> logits;  // of rank 0, row by row
  std::vector<std::vector<float>> taps;    // forward by forward, tap by tap
  uint64_t kv_bytes = 0, weight_bytes = 0, parameters = 0;
};

struct Setting {
  std::string path;
  std::string isa;
  kernels::KvDType kv_dtype = kernels::KvDType::kF32;
  bool bf16 = false;
};

// Reads a text, writes on, and then computes a tree, with taps at every point.
inline Found forwards(const Setting& setting, const RankLinks& links) {
  const auto device = CpuDevice::create(setting.isa, 1, setting.bf16).value();
  const ModelConfig config = load_model_config(setting.path).value();
  const auto model = Transformer::load(*device, setting.path, config, 80, 80, {}, links).value();
  const auto n_points = static_cast<uint32_t>(config.n_layers) + 2;
  for (uint32_t point = 0; point < n_points; ++point) {
    model->add_tap(model->make_tap(point).value());
  }
  KvStore kv =
      KvStore::create(*device, part_of(config, model->split()), setting.kv_dtype, kSplitPages)
          .value();
  Found found;
  found.kv_bytes = kv.bytes();
  found.weight_bytes = model->weights().held_bytes;
  found.parameters = model->weights().parameters;
  std::mt19937 random(3);
  ForwardRows rows;
  const auto add = [&](int32_t position, int32_t slot, int32_t span, std::vector<int32_t> tail) {
    if (rows.pages.empty()) {
      for (int32_t page = kSplitPages; page-- > 0;) rows.pages.push_back(page);
    }
    const auto physical = [](int32_t at) {
      return (kSplitPages - 1 - at / kernels::kPageTokens) * kernels::kPageTokens +
             at % kernels::kPageTokens;
    };
    if (rows.n_rows() % 2 == 0) rows.logits_rows.push_back(rows.n_rows());
    if (rows.n_rows() % 3 == 0) rows.tap_rows.push_back(rows.n_rows());
    rows.token.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(config.vocab_size)));
    rows.position.push_back(position);
    rows.slot.push_back(physical(slot));
    rows.span.push_back(span);
    rows.table.push_back(0);
    rows.tail_begin.push_back(static_cast<int32_t>(rows.tail.size()));
    for (const int32_t each : tail) rows.tail.push_back(physical(each));
  };
  const auto run = [&] {
    model->forward(rows.in_place(), kv);
    const auto width = static_cast<size_t>(config.vocab_size);
    for (size_t i = 0; i < rows.logits_rows.size() && model->split().world_rank() == 0; ++i) {
      found.logits.emplace_back(model->logits() + i * width, model->logits() + (i + 1) * width);
    }
    for (size_t i = 0; i < n_points; ++i) {
      found.taps.emplace_back(
          model->tap(i),
          model->tap(i) + rows.tap_rows.size() * static_cast<size_t>(config.hidden_size));
    }
    rows.clear();
  };
  int32_t position = 0;
  for (const int32_t n : {70, 1, 1, 17}) {
    for (int32_t i = 0; i < n; ++i, ++position) add(position, position, position + 1, {});
    run();
  }
  std::vector<int32_t> path;
  for (int32_t node = 0; node < 12; ++node) {
    std::vector<int32_t> tail = path;
    tail.push_back(position + node);
    add(position + static_cast<int32_t>(path.size()), position + node, position, tail);
    if (node % 3 == 2) path = tail;
  }
  run();
  return found;
}

}  // namespace specd
