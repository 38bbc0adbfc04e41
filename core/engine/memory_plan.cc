#include "core/engine/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "core/base/to_size.h"
#include "core/engine/options.h"
#include "core/model/checkpoint.h"
#include "core/model/kv_store.h"
#include "core/model/split.h"
#include "core/model/transformer.h"

namespace specd {
namespace {

using Bytes = std::vector<uint64_t>;  // [ranks]

uint64_t page_bytes_of(const ModelConfig& config, kernels::DType dtype, Split split) {
  return KvStore::page_bytes(part_of(config, split), dtype);
}

uint64_t sum(const Bytes& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
}

// What a model takes. `page`: with a page of the target's cache, in pages of the model's own.
struct Cost {
  Bytes weights, activations, page;

  explicit Cost(size_t n_ranks) : weights(n_ranks), activations(n_ranks), page(n_ranks) {}
  void add(const Cost& other) {
    for (size_t rank = 0; rank < page.size(); ++rank) {
      weights[rank] += other.weights[rank];
      activations[rank] += other.activations[rank];
      page[rank] += other.page[rank];
    }
  }
  uint64_t with_pages(size_t rank, int32_t n_pages) const {
    return weights[rank] + activations[rank] + to_size(n_pages) * page[rank];
  }
};

class Planner {
 public:
  Planner(const EngineOptions& options, const Target& target, Device& device)
      : options_(options),
        target_(target),
        device_(device),
        n_ranks_(to_size(n_ranks_of(options))) {}

  Result<Cost> of_target() const {
    std::vector<Split> splits;
    for (int32_t rank = 0; rank < n_ranks_of(options_); ++rank) {
      splits.push_back(
          split_of(rank, options_.tensor_parallel_size, options_.pipeline_parallel_size));
    }
    return cost_of(target_.options.path, target_.config, target_logits_rows(options_), splits,
                   kernel_dtype(target_.options.kv_dtype), true)
        .in_field(kModelPath);
  }
  Result<Cost> of_draft(const DraftModel& draft, bool is_shared) const {
    const int32_t n = is_shared ? options_.tensor_parallel_size : 1;
    std::vector<Split> splits;
    for (int32_t rank = 0; rank < n; ++rank) splits.push_back({.rank = rank, .n_ranks = n});
    return cost_of(draft.path, draft.config, options_.max_sequences, splits, draft.kv_dtype,
                   needs_own_pages(draft, is_shared));
  }
  // Whether a page of the draft model's KV is larger than one of the target's, on a rank that has both.
  bool needs_own_pages(const DraftModel& draft, bool is_shared) const {
    const int32_t n_ranks = options_.tensor_parallel_size;
    const Split lead = split_of(0, n_ranks, options_.pipeline_parallel_size);
    return page_bytes_of(draft.config, draft.kv_dtype, {.n_ranks = is_shared ? n_ranks : 1}) >
           page_bytes_of(target_.config, kernel_dtype(target_.options.kv_dtype), lead);
  }

  // The number of KV pages: what the options ask for, else enough for the full contexts of all sequences,
  // as far as there is memory for them.
  Result<int32_t> pages(const Cost& all, const Bytes& target_page) const {
    const ModelOptions& model = options_.model;
    const uint64_t page_bytes = sum(target_page);
    const uint64_t useful =
        to_size(options_.max_sequences) *
        to_size(pages_for(int64_t{target_.config.max_positions} + nodes_max_of(options_)));
    if (model.kv_pages > 0) return pages_asked_for(page_bytes);
    constexpr uint64_t kDefaultKvBytesMax = uint64_t{1} << 30;
    const char* key = "model.kv.bytes_max";
    uint64_t bytes = std::min(kDefaultKvBytesMax, useful * page_bytes);
    if (model.kv_bytes_max > 0) {
      bytes = model.kv_bytes_max;
    } else if (model.kv_memory_share > 0) {
      key = "model.kv.memory_share";
      bytes =
          static_cast<uint64_t>(static_cast<double>(device_.total_bytes()) * model.kv_memory_share);
    } else if (options_.rank_bytes_max > 0) {
      // At least one page, so that check() says what is short.
      return static_cast<int32_t>(
          std::max<uint64_t>(1, std::min<uint64_t>(useful, to_size(pages_that_fit(all)))));
    }
    if (bytes < page_bytes) {
      return Status(
          Code::kInvalidArgument, key,
          std::to_string(bytes) + " bytes hold no page; one takes " + std::to_string(page_bytes));
    }
    return static_cast<int32_t>(std::min<uint64_t>(bytes / page_bytes, EngineLimits::kKvPages));
  }
  int32_t pages_that_fit(const Cost& all) const {
    uint64_t pages = EngineLimits::kKvPages;
    for (size_t rank = 0; rank < n_ranks_; ++rank) {
      const uint64_t fixed = all.with_pages(rank, 0);
      const uint64_t left = options_.rank_bytes_max - std::min(options_.rank_bytes_max, fixed);
      pages = std::min(pages, left / all.page[rank]);
    }
    return static_cast<int32_t>(pages);
  }

  // Whether each rank has the memory; ranks of one process have that of its device together.
  Status check(const MemoryPlan& plan) const {
    Bytes need(n_ranks_);
    for (const MemoryPlan::Line& line : plan.lines) {
      for (size_t rank = 0; rank < n_ranks_; ++rank) need[rank] += line.bytes[rank];
    }
    const uint64_t most = options_.rank_bytes_max;
    for (size_t rank = 0; most > 0 && rank < n_ranks_; ++rank) {
      if (need[rank] <= most) continue;
      return Status(Code::kExhausted, "engine.rank_bytes_max",
                    "rank " + std::to_string(rank) + " needs " + std::to_string(need[rank]) +
                        " bytes (" + parts_of(plan, rank) + "), expected at most " +
                        std::to_string(most));
    }
    const bool is_one_memory = options_.process == nullptr;
    const uint64_t bytes = is_one_memory ? sum(need) : *std::max_element(need.begin(), need.end());
    if (most > 0 || bytes <= device_.total_bytes()) return Status();
    return Status(Code::kExhausted,
                  std::string(n_ranks_ == 1   ? "the models need "
                              : is_one_memory ? "the ranks need together "
                                              : "a rank needs ") +
                      std::to_string(bytes) + " bytes (rank 0: " + parts_of(plan, 0) + "), " +
                      device_.name() + " has " + std::to_string(device_.total_bytes()) +
                      "; lower model.kv.bytes_max, share the model among more devices, or set "
                      "engine.rank_bytes_max to plan for another machine");
  }

 private:
  // `splits`: of the ranks that have the model, from rank 0 on.
  Result<Cost> cost_of(const std::string& path, const ModelConfig& config, int32_t logits_rows,
                       const std::vector<Split>& splits, kernels::DType kv_dtype,
                       bool has_pages) const {
    SPECD_TRY(const Checkpoint files, Checkpoint::open(path));
    SPECD_OK_OR_RETURN(check_tensors(files, config));
    SPECD_TRY(const kernels::DType dtype, kernel_dtype(files.at("model.embed_tokens.weight").type));
    Cost cost(n_ranks_);
    for (size_t rank = 0; rank < splits.size(); ++rank) {
      const Transformer::Memory part = Transformer::plan(
          device_, config, dtype, options_.step_tokens_max, logits_rows, splits[rank]);
      cost.weights[rank] = part.weights;
      cost.activations[rank] = part.activations;
      if (has_pages) cost.page[rank] = page_bytes_of(config, kv_dtype, splits[rank]);
    }
    return cost;
  }
  Result<int32_t> pages_asked_for(uint64_t page_bytes) const {
    const uint64_t most =
        options_.rank_bytes_max > 0 ? UINT64_MAX : device_.total_bytes() / page_bytes;
    const int32_t wanted = options_.model.kv_pages;
    if (to_size(wanted) <= most) return wanted;
    return Status(Code::kExhausted, "model.kv.pages",
                  std::to_string(wanted) + " pages of " + std::to_string(page_bytes) +
                      " bytes are more than the memory of " + device_.name() + "; at most " +
                      std::to_string(most) + " fit into its " +
                      std::to_string(device_.total_bytes()) + " bytes");
  }
  static std::string parts_of(const MemoryPlan& plan, size_t rank) {
    std::string parts;
    for (const MemoryPlan::Line& line : plan.lines) {
      if (line.bytes[rank] == 0) continue;
      parts += (parts.empty() ? "" : "; ") + line.what + " " + std::to_string(line.bytes[rank]);
    }
    return parts;
  }

  const EngineOptions& options_;
  const Target& target_;
  Device& device_;
  const size_t n_ranks_;
};

}  // namespace

std::string kv_line(const std::string& draft, int32_t n_pages) {
  return "KV cache" + (draft.empty() ? "" : " of " + draft) + ", " + std::to_string(n_pages) +
         " pages of " + std::to_string(kernels::kPageTokens) + " tokens";
}

std::string drafter_line(const std::string& route, bool is_draining) {
  return "drafter of route " + route + (is_draining ? " (limit, draining)" : " (limit)");
}

Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               DraftModels& drafts, Device& device) {
  const Planner planner(options, target, device);
  const size_t n_ranks = to_size(n_ranks_of(options));
  SPECD_TRY(const Cost of_target, planner.of_target());
  std::vector<Cost> of_drafts(drafts.size(), Cost(n_ranks));
  const auto all_but = [&](size_t left_out) {
    Cost all = of_target;
    for (size_t i = 0; i < drafts.size(); ++i) {
      if (i != left_out) all.add(of_drafts[i]);
    }
    return all;
  };
  MemoryPlan plan;
  // One after the other; each knows where those before it are.
  const kernels::SplitRule rule = device.ops().split_rule(kernels::DType::kBF16);
  for (size_t i = 0; i < drafts.size(); ++i) {
    DraftModel& draft = *drafts[i];
    const int32_t n_shared = options.tensor_parallel_size;
    const int32_t wanted = options.draft_models[i].tensor_parallel_size;
    const Status split = check_split(draft.config, n_shared, rule);
    if (draft.status.ok() && wanted == n_shared)
      draft.status = split.in_field("tensor_parallel_size");
    if (!draft.status.ok()) continue;
    const bool can_be_shared = n_shared > 1 && split.ok();
    draft.is_shared = can_be_shared && wanted != 1;
    SPECD_TRY(Cost alone, planner.of_draft(draft, false));
    SPECD_TRY(Cost shared, planner.of_draft(draft, can_be_shared));
    if (options.rank_bytes_max > 0 && n_ranks > 1) {
      const auto pages_with = [&](const Cost& cost) {
        Cost all = all_but(i);
        all.add(cost);
        return planner.pages_that_fit(all);
      };
      MemoryPlan::Placements places{.draft_model = draft.name,
                                    .pages_shared = can_be_shared ? pages_with(shared) : -1,
                                    .pages_alone = pages_with(alone),
                                    .pages_elsewhere = planner.pages_that_fit(all_but(i))};
      if (wanted == 0) draft.is_shared = places.pages_shared >= places.pages_alone;
      places.is_shared = draft.is_shared;
      plan.placements.push_back(std::move(places));
    }
    draft.has_own_pages = planner.needs_own_pages(draft, draft.is_shared);
    of_drafts[i] = draft.is_shared ? shared : alone;
  }
  const Cost all = all_but(drafts.size());
  SPECD_TRY(plan.kv_pages, planner.pages(all, of_target.page));
  const auto pages_of = [&](const Cost& cost) {
    Bytes bytes = cost.page;
    for (uint64_t& each : bytes) each *= to_size(plan.kv_pages);
    return bytes;
  };
  // In the order of Engine::memory().
  plan.lines = {{"weights of " + target.options.name, of_target.weights},
                {"activations", of_target.activations},
                {kv_line("", plan.kv_pages), pages_of(of_target)}};
  for (size_t i = 0; i < drafts.size(); ++i) {
    const DraftModel& draft = *drafts[i];
    if (!draft.status.ok()) continue;
    plan.lines.push_back({"weights of " + draft.name, of_drafts[i].weights});
    plan.lines.push_back({"activations of " + draft.name, of_drafts[i].activations});
    if (draft.has_own_pages)
      plan.lines.push_back({kv_line(draft.name, plan.kv_pages), pages_of(of_drafts[i])});
  }
  SPECD_OK_OR_RETURN(planner.check(plan));
  return plan;
}

}  // namespace specd
