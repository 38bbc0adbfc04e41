// A model beside the target, for drafters. It is loaded like the target and keeps its KV in the
// same pages, or in pages of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/draft/draft_kv.h"
#include "core/model/lead.h"
#include "core/model/model_config.h"
#include "core/model/model_facts.h"
#include "core/model/transformer.h"
#include "core/text/tokenizer.h"

namespace specd {

struct DraftModel {
  std::string name, path;
  kernels::KvDType kv_dtype = kernels::KvDType::kBF16;
  Status status;  // not ok: why it cannot be used; the rest may then be empty
  ModelConfig config;
  // vocab_size counts the ids shared with the target.
  ModelFacts facts;
  int32_t target_vocab_size = 0;
  std::unique_ptr<Transformer> transformer;  // null when the model was checked but not loaded
  // Where it is; decided before it is loaded.
  bool is_shared = false;      // by the ranks of the last stage; otherwise the lead has it alone
  bool has_own_pages = false;  // as many as the target's
  bool is_elsewhere = false;   // on another device than the target
  Device* device =
      nullptr;  // that one; null = the target's, or it is another rank that has opened it
  // Of a model that ranks share, with its number there; null = it is on this rank alone.
  Lead* lead = nullptr;
  int32_t number = 0;
  DraftKv kv;                             // its store is set together with `transformer`
  std::vector<uint64_t> own_page_bytes;   // of its own pages, on each rank that has the model
  int32_t rows_max = 0, outputs_max = 0;  // per forward

  // Written by the step thread, read by reports.
  std::atomic<uint64_t> forwards{0}, rows{0}, forward_ns{0};
};

// The properties of the target that a draft model must match.
struct DraftTarget {
  const ModelConfig& config;
  const Tokenizer& tokenizer;
};

// Checks that ids mean the same to both models: the same bytes for every id that both tokenizers
// have, and the same BOS. EOS ids may differ. Fails with kFailedPrecondition, naming the first
// difference. Either model may have additional ids: those of the draft model are never drawn, and a
// text with one of the target's gets no more drafts.
Status check_same_tokens(const DraftTarget& target, const ModelConfig& draft,
                         const Tokenizer& draft_tokenizer);

// Checks everything that can be checked without loading weights; the result is in `status`.
std::unique_ptr<DraftModel> check_draft_model(const std::string& name, const std::string& path,
                                              kernels::KvDType kv_dtype, const DraftTarget& target);

// Loads a model that check_draft_model() accepted, on all ranks that share it. `target_device`: of the target,
// whose cache `pages` is. Both must outlive it. rows_max: rows of one forward; outputs_max: rows of one forward with
// logits.
void load_draft_model(DraftModel& model, Device& target_device, const KvStore& pages,
                      int32_t rows_max, int32_t outputs_max,
                      const std::function<void(double)>& progress);

}  // namespace specd
