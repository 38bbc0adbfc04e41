// A model beside the target, for drafters: loaded like it, with KV in the same pages.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/base/status.h"
#include "core/model/kv_store.h"
#include "core/model/model_config.h"
#include "core/model/model_facts.h"
#include "core/model/transformer.h"
#include "core/text/tokenizer.h"

namespace specd {

struct DraftModel {
  std::string name, path;
  kernels::DType kv_dtype = kernels::DType::kBF16;
  Status status;  // not ok: why no drafter can use it; what follows may be empty then
  ModelConfig config;
  // vocab_size counts the ids that the target has too.
  ModelFacts facts;
  int32_t target_vocab_size = 0;
  std::unique_ptr<Transformer> transformer;  // null when it was only checked
  std::optional<KvStore> kv;                 // set with the transformer
  int32_t rows_max = 0, outputs_max = 0;     // of one forward

  // Written by the step thread, read by reports.
  std::atomic<int32_t> pages_held{0};
  std::atomic<uint64_t> forwards{0}, rows{0}, forward_ns{0};
};

// The target, as far as a draft model must fit it.
struct DraftTarget {
  const ModelConfig& config;
  const Tokenizer& tokenizer;
};

// Ids must mean the same to both models: equal token texts for every id that both tokenizers have,
// equal BOS and EOS. kFailedPrecondition naming the first difference. Either may have further ids:
// the draft model's are never drawn, the target's end drafting for the text they appear in.
Status check_same_tokens(const DraftTarget& target, const ModelConfig& draft,
                         const Tokenizer& draft_tokenizer);

// Everything that can be said without loading weights; the reason is in `status`.
std::unique_ptr<DraftModel> check_draft_model(const std::string& name, const std::string& path,
                                              kernels::DType kv_dtype, const DraftTarget& target);

// Loads what check_draft_model() found good. `pages` is the target's cache and outlives it.
// rows_max: rows of one forward; outputs_max: rows of one forward that want logits.
void load_draft_model(DraftModel& model, Device& device, const KvStore& pages, int32_t rows_max,
                      int32_t outputs_max, const std::function<void(double)>& progress);

}  // namespace specd
