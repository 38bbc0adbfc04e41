// How close the CPU's choice between two tokens was. A device whose logits differ in bits may choose
// otherwise where this is small.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model/transformer.h"
#include "specd/kernels/cpu.h"

namespace specd {

// After `text`, by what the draw compares: the logits, or logits / temperature + noise.
inline Result<float> choice_gap(const std::string& model_folder, kernels::KvDType kv_dtype,
                                const std::vector<int32_t>& text, float temperature, uint64_t seed,
                                int32_t own, int32_t other) {
  SPECD_TRY(const auto cpu, CpuDevice::create("", 0));
  SPECD_TRY(const ModelConfig config, load_model_config(model_folder));
  const auto n = static_cast<int32_t>(text.size());
  SPECD_TRY(const auto model, Transformer::load(*cpu, model_folder, config, n, 1, {}));
  SPECD_TRY(KvStore kv, KvStore::create(*cpu, config, kv_dtype, pages_for(n)));
  ForwardRows rows;
  for (int32_t page = 0; page < pages_for(n); ++page) rows.pages.push_back(page);
  for (int32_t i = 0; i < n; ++i) {
    rows.token.push_back(text[static_cast<size_t>(i)]);
    rows.position.push_back(i);
    rows.slot.push_back(i);
    rows.span.push_back(i + 1);
    rows.table.push_back(0);
    rows.tail_begin.push_back(0);
  }
  rows.logits_rows.push_back(n - 1);
  model->forward(rows.in_place(), kv);
  const float* logits = model->logits();
  if (temperature == 0) return logits[own] - logits[other];
  std::vector<float> noise(static_cast<size_t>(config.vocab_size));
  cpu->ops().draw_noise(cpu->stream(), {.seed = &seed,
                                        .position = &n,
                                        .out = noise.data(),
                                        .n_rows = 1,
                                        .vocab = config.vocab_size});
  return (logits[own] - logits[other]) / temperature + noise[static_cast<size_t>(own)] -
         noise[static_cast<size_t>(other)];
}

}  // namespace specd
