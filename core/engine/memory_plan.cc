#include "core/engine/memory_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "core/base/to_size.h"
#include "core/device/host_memory.h"
#include "core/engine/options.h"
#include "core/model/checkpoint.h"
#include "core/model/kv_store.h"
#include "core/model/split.h"
#include "core/model/transformer.h"
#include "core/model/weight_summary.h"
#include "core/ranks/follower.h"
#include "core/ranks/worker.h"
#include "core/step/runner.h"

namespace specd {
namespace {

using Bytes = std::vector<uint64_t>;  // [ranks]

uint64_t page_bytes_of(const ModelConfig& config, kernels::KvDType dtype, Split split) {
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
};

// Memory that ranks share, and the key that says so; no key = what a device or a machine has.
struct Limit {
  const char* key;
  RankMemory memory;
};

class Planner {
 public:
  Planner(const EngineOptions& options, const Target& target, Device& device,
          std::span<const RankMemory> memories, std::span<const DrafterLimit> limits)
      : options_(options),
        target_(target),
        device_(device),
        n_ranks_(to_size(n_ranks_of(options))),
        fixed_(column_bytes(n_ranks_of(options))) {
    for (uint64_t& bytes : fixed_) bytes += device.scratch_bytes();
    for (const DrafterLimit& limit : limits) {
      fixed_.front() += bytes_in({.has_models = true, .is_host = device.is_host()}, limit);
    }
    for (const RankMemory& each : memories) limits_.push_back({nullptr, each});
    for (int32_t rank = 0; options.rank_bytes_max > 0 && rank < n_ranks_of(options); ++rank) {
      limits_.push_back({"engine.rank_bytes_max", {"", options.rank_bytes_max, {rank}}});
    }
  }

  Result<Cost> of_target() const {
    std::vector<Split> splits;
    splits.reserve(n_ranks_);
    for (int32_t rank = 0; rank < n_ranks_of(options_); ++rank) {
      splits.push_back(
          split_of(rank, options_.tensor_parallel_size, options_.pipeline_parallel_size));
    }
    return cost_of(device_, target_.options.path, target_.config, target_logits_rows(options_),
                   splits, target_.options.kv_dtype, true)
        .in_field(kModelPath);
  }
  // On a device of its own: as if rank 0 had it.
  Result<Cost> of_draft_elsewhere(const DraftModel& draft) const {
    return cost_of(*draft.device, draft.path, draft.config, options_.max_sequences, {Split()},
                   draft.kv_dtype, true);
  }
  Result<Cost> of_draft(const DraftModel& draft, bool is_shared) const {
    const int32_t n = is_shared ? options_.tensor_parallel_size : 1;
    std::vector<Split> splits;
    splits.reserve(to_size(n));
    for (int32_t rank = 0; rank < n; ++rank) splits.push_back({.rank = rank, .n_ranks = n});
    return cost_of(device_, draft.path, draft.config, options_.max_sequences, splits,
                   draft.kv_dtype, needs_own_pages(draft, is_shared));
  }
  // Whether a page of the draft model's KV is larger than one of the target's, on a rank that has both.
  bool needs_own_pages(const DraftModel& draft, bool is_shared) const {
    const int32_t n_ranks = options_.tensor_parallel_size;
    const Split lead = split_of(0, n_ranks, options_.pipeline_parallel_size);
    return page_bytes_of(draft.config, draft.kv_dtype, {.n_ranks = is_shared ? n_ranks : 1}) >
           page_bytes_of(target_.config, target_.options.kv_dtype, lead);
  }

  // The number of KV pages: what the options ask for, else enough for the full contexts of all sequences.
  // Unless it is asked for in bytes or pages, as many as there is room for, but at least one.
  Result<int32_t> pages(const Cost& all, const Bytes& target_page) const {
    const ModelOptions& model = options_.model;
    constexpr uint64_t kDefaultKvBytesMax = uint64_t{1} << 30;
    const uint64_t page_bytes = sum(target_page);
    const uint64_t useful =
        to_size(options_.max_sequences) *
        to_size(pages_for(int64_t{target_.config.max_positions} + nodes_max_of(options_)));
    uint64_t pages = useful;
    if (model.kv_pages > 0) {
      pages = to_size(model.kv_pages);
    } else if (model.kv_bytes_max > 0) {
      SPECD_TRY(pages, pages_in(model.kv_bytes_max, page_bytes, "model.kv.bytes_max"));
    } else if (model.kv_memory_share > 0) {
      pages = EngineLimits::kKvPages;
      for (const Limit& limit : limits_) {
        if (options_.rank_bytes_max > 0 && limit.key == nullptr) continue;
        const auto bytes =
            static_cast<uint64_t>(static_cast<double>(limit.memory.bytes) * model.kv_memory_share);
        SPECD_TRY(const uint64_t here,
                  pages_in(bytes, sum_of(target_page, limit.memory), "model.kv.memory_share"));
        pages = std::min(pages, here);
      }
    } else if (options_.rank_bytes_max == 0) {
      SPECD_TRY(pages, pages_in(std::min(kDefaultKvBytesMax, useful * page_bytes), page_bytes,
                                "model.kv.bytes_max"));
    }
    if (model.kv_pages == 0 && model.kv_bytes_max == 0) {
      pages = std::clamp<uint64_t>(to_size(pages_that_fit(all)), 1, pages);
    }
    return static_cast<int32_t>(std::min<uint64_t>(pages, EngineLimits::kKvPages));
  }
  int32_t pages_that_fit(const Cost& all) const {
    uint64_t pages = EngineLimits::kKvPages;
    for (const Limit& limit : limits_) {
      const uint64_t fixed = need(all, limit.memory, 0);
      const uint64_t left = limit.memory.bytes - std::min(limit.memory.bytes, fixed);
      pages = std::min(pages, left / sum_of(all.page, limit.memory));
    }
    return static_cast<int32_t>(pages);
  }

  // Whether there is the memory that the ranks need.
  Status check(const Cost& all, const MemoryPlan& plan) const {
    for (const Limit& limit : limits_) {
      const uint64_t bytes = need(all, limit.memory, plan.kv_pages);
      if (bytes <= limit.memory.bytes) continue;
      std::string who = n_ranks_ == 1 ? "the models need " : "rank";
      if (n_ranks_ > 1) {
        const std::vector<int32_t>& ranks = limit.memory.ranks;
        who += ranks.size() == 1 ? "" : "s";
        for (const int32_t rank : ranks) {
          who += (rank == ranks.front() ? " " : ", ") + std::to_string(rank);
        }
        who += ranks.size() == 1 ? " needs " : " need together ";
      }
      const int32_t fit = pages_that_fit(all);
      const std::string hint =
          fit > 0
              ? "; at most " + std::to_string(fit) + " pages of the KV cache fit"
              : "; lower engine.step_tokens_max, or use a smaller model, drafters that take less "
                "or more machines";
      who += std::to_string(bytes) + " bytes (" + parts_of(plan, limit.memory) + "), ";
      if (limit.key != nullptr) {
        return Status(Code::kExhausted, limit.key,
                      who + "expected at most " + std::to_string(limit.memory.bytes) + hint);
      }
      return Status(Code::kExhausted, fit > 0 ? kv_key() : "",
                    who + limit.memory.name + " has " + std::to_string(limit.memory.bytes) + hint);
    }
    return Status();
  }

 private:
  // `splits`: of the ranks that have the model, from rank 0 on.
  Result<Cost> cost_of(Device& device, const std::string& path, const ModelConfig& config,
                       int32_t logits_rows, const std::vector<Split>& splits,
                       kernels::KvDType kv_dtype, bool has_pages) const {
    Cost cost(n_ranks_);
    for (size_t rank = 0; rank < splits.size(); ++rank) {
      SPECD_TRY(const Transformer::Memory part,
                Transformer::plan(device, path, config, options_.step_tokens_max, logits_rows,
                                  splits[rank]));
      cost.weights[rank] = part.weights;
      cost.activations[rank] = part.activations;
      if (has_pages) cost.page[rank] = page_bytes_of(config, kv_dtype, splits[rank]);
    }
    return cost;
  }
  static Result<uint64_t> pages_in(uint64_t bytes, uint64_t page_bytes, const char* key) {
    if (bytes >= page_bytes) return bytes / page_bytes;
    return Status(
        Code::kInvalidArgument, key,
        std::to_string(bytes) + " bytes hold no page; one takes " + std::to_string(page_bytes));
  }
  const char* kv_key() const {
    return options_.model.kv_pages > 0 ? "model.kv.pages" : "model.kv.bytes_max";
  }
  static uint64_t sum_of(const Bytes& bytes, const RankMemory& memory) {
    uint64_t all = 0;
    for (const int32_t rank : memory.ranks) all += bytes[to_size(rank)];
    return all;
  }
  uint64_t need(const Cost& cost, const RankMemory& memory, int32_t n_pages) const {
    return sum_of(cost.weights, memory) + sum_of(cost.activations, memory) +
           sum_of(fixed_, memory) + to_size(n_pages) * sum_of(cost.page, memory);
  }
  static std::string parts_of(const MemoryPlan& plan, const RankMemory& memory) {
    std::string parts;
    for (const MemoryPlan::Line& line : plan.lines) {
      const uint64_t bytes = sum_of(line.bytes, memory);
      if (bytes == 0 || !line.elsewhere.empty()) continue;
      parts += (parts.empty() ? "" : "; ") + line.what + " " + std::to_string(bytes);
    }
    return parts;
  }

  const EngineOptions& options_;
  const Target& target_;
  Device& device_;
  const size_t n_ranks_;
  Bytes fixed_;  // beside the models and their KV
  std::vector<Limit> limits_;
};

// Whether there is the memory for what is elsewhere than the ranks.
Status check_elsewhere(const MemoryPlan& plan, const std::string& name, uint64_t has,
                       const std::string& field) {
  uint64_t bytes = 0;
  std::string parts;
  for (const MemoryPlan::Line& line : plan.lines) {
    if (line.elsewhere != name) continue;
    bytes += line.bytes.front();
    parts += (parts.empty() ? "" : "; ") + line.what + " " + std::to_string(line.bytes.front());
  }
  if (bytes <= has) return Status();
  return Status(Code::kExhausted, field,
                "draft models and drafters need " + std::to_string(bytes) + " bytes (" + parts +
                    "), " + name + " has " + std::to_string(has) +
                    "; caches of draft models have as many pages as the target's, lower model.kv");
}

}  // namespace

std::string kv_line(const std::string& draft, int32_t n_pages) {
  return "KV cache" + (draft.empty() ? "" : " of " + draft) + ", " + std::to_string(n_pages) +
         " pages of " + std::to_string(kernels::kPageTokens) + " tokens";
}

std::vector<uint64_t> column_bytes(int32_t n_ranks) {
  std::vector<uint64_t> bytes(to_size(n_ranks), Follower::kColumnBytes);
  bytes.front() = Worker::kColumnBytes + StepRunner::kColumnBytes;
  return bytes;
}

std::string scratch_line(const std::string& elsewhere) {
  return "scratch" + (elsewhere.empty() ? "" : " on " + elsewhere);
}

std::string name_with_place(const DraftModel& draft) {
  return draft.name + (draft.device == nullptr ? "" : " on " + draft.device->name());
}

std::string drafter_line(const std::string& route, RouteState state, const std::string& elsewhere) {
  const std::string what =
      state == RouteState::kLive ? "" : std::string(", ") + route_state_name(state);
  return "drafter of route " + route + (elsewhere.empty() ? "" : " on " + elsewhere) + " (limit" +
         what + ")";
}

std::string rings_line(const std::string& route, RouteState state, const std::string& elsewhere) {
  const std::string what =
      state == RouteState::kLive ? "" : std::string(" (") + route_state_name(state) + ")";
  return "calls beside the step of route " + route + (elsewhere.empty() ? "" : " on " + elsewhere) +
         what;
}

uint64_t bytes_in(const RouteMemory& memory, const DrafterLimit& limit) {
  const bool has_drafter = limit.is_with_models ? memory.has_models : memory.is_host;
  return (has_drafter ? limit.bytes : 0) + (memory.is_host ? limit.ring_bytes : 0);
}

std::vector<RouteMemory> memories_of_routes(const EngineOptions& options, const MemoryPlan& plan,
                                            bool models_on_host,
                                            std::span<const RankMemory> memories,
                                            std::span<const DrafterLimit> limits) {
  std::vector<RouteMemory> all;
  for (const RankMemory& each : memories) {
    if (std::find(each.ranks.begin(), each.ranks.end(), 0) == each.ranks.end()) continue;
    RouteMemory memory{
        .name = each.name, .has_models = true, .is_host = models_on_host, .bytes = each.bytes};
    for (const MemoryPlan::Line& line : plan.lines) {
      if (!line.elsewhere.empty()) continue;
      for (const int32_t rank : each.ranks) memory.taken += line.bytes[to_size(rank)];
    }
    all.push_back(std::move(memory));
  }
  if (options.rank_bytes_max > 0) {
    RouteMemory memory{.name = "rank 0",
                       .key = "engine.rank_bytes_max",
                       .has_models = true,
                       .is_host = models_on_host,
                       .bytes = options.rank_bytes_max};
    for (const MemoryPlan::Line& line : plan.lines)
      memory.taken += line.elsewhere.empty() ? line.bytes.front() : 0;
    all.push_back(std::move(memory));
  }
  if (!models_on_host) {
    RouteMemory memory{.name = "cpu", .is_host = true, .bytes = host_memory().bytes};
    for (const MemoryPlan::Line& line : plan.lines)
      memory.taken += line.elsewhere == memory.name ? line.bytes.front() : 0;
    all.push_back(std::move(memory));
  }
  for (RouteMemory& memory : all) {
    for (const DrafterLimit& limit : limits) memory.taken -= bytes_in(memory, limit);
  }
  return all;
}

RankMemory memory_of_all(const EngineOptions& options, const Device& device) {
  RankMemory memory{device.name(), device.total_bytes(), {}};
  for (int32_t rank = 0; rank < n_ranks_of(options); ++rank) memory.ranks.push_back(rank);
  return memory;
}

std::vector<RankMemory> memories_of_devices(const EngineOptions& options,
                                            std::span<const std::unique_ptr<Device>> devices) {
  std::vector<RankMemory> memories;
  for (int32_t rank = 0; rank < n_ranks_of(options); ++rank) {
    const Device& device = *devices[to_size(rank) % devices.size()];
    memories.push_back({device.name(), device.total_bytes(), {rank}});
  }
  return memories;
}

Result<MemoryPlan> plan_memory(const EngineOptions& options, const Target& target,
                               DraftModels& drafts, Device& device,
                               std::span<const RankMemory> memories,
                               std::span<const DrafterLimit> limits) {
  const Planner planner(options, target, device, memories, limits);
  const size_t n_ranks = to_size(n_ranks_of(options));
  SPECD_TRY(const Cost of_target, planner.of_target());
  // Of each draft model: on rank 0 alone, shared, and where it is.
  std::vector<Cost> alone, shared, of_drafts(drafts.size(), Cost(n_ranks));
  const auto all_with = [&](size_t changed, const Cost& other) {
    Cost all = of_target;
    for (size_t i = 0; i < drafts.size(); ++i) all.add(i == changed ? other : of_drafts[i]);
    return all;
  };
  std::vector<bool> can_be_shared;
  // One after the other; each knows where those before it are.
  for (size_t i = 0; i < drafts.size(); ++i) {
    DraftModel& draft = *drafts[i];
    const int32_t n_shared = options.tensor_parallel_size;
    const int32_t wanted = options.draft_models[i].tensor_parallel_size;
    Status split = draft.status;
    if (split.ok()) {
      SPECD_TRY(const int32_t grain,
                grain_of(draft.path, draft.config, device.ops()).in_field(draft_model_field(i)));
      split = check_split(draft.config, n_shared, grain);
    }
    if (draft.status.ok() && wanted == n_shared && !draft.is_elsewhere)
      draft.status = split.in_field("tensor_parallel_size");
    can_be_shared.push_back(n_shared > 1 && split.ok());
    alone.emplace_back(n_ranks);
    shared.emplace_back(n_ranks);
    if (draft.is_elsewhere) draft.has_own_pages = true;
    if (!draft.status.ok() || draft.is_elsewhere) continue;
    SPECD_TRY(alone[i], planner.of_draft(draft, false).in_field(draft_model_field(i)));
    SPECD_TRY(shared[i], planner.of_draft(draft, can_be_shared[i]).in_field(draft_model_field(i)));
    draft.is_shared = can_be_shared[i] && wanted != 1;
    if (draft.is_shared && wanted == 0 && options.rank_bytes_max > 0) {
      draft.is_shared = planner.pages_that_fit(all_with(i, shared[i])) >=
                        planner.pages_that_fit(all_with(i, alone[i]));
    }
    draft.has_own_pages = planner.needs_own_pages(draft, draft.is_shared);
    of_drafts[i] = draft.is_shared ? shared[i] : alone[i];
  }
  const Cost all = all_with(drafts.size(), of_target);
  MemoryPlan plan;
  SPECD_TRY(plan.kv_pages, planner.pages(all, of_target.page));
  const auto pages_of = [&](const Cost& cost) {
    Bytes bytes = cost.page;
    for (uint64_t& each : bytes) each *= to_size(plan.kv_pages);
    return bytes;
  };
  // In the order of Engine::memory().
  SPECD_TRY(const WeightSummary stored,
            weight_summary(target.options.path, target.config).in_field(kModelPath));
  plan.lines = {{"weights of " + target.options.name, of_target.weights, "", stored.text()},
                {"activations", of_target.activations},
                {kColumnsLine, column_bytes(n_ranks_of(options))},
                {kv_line("", plan.kv_pages), pages_of(of_target), "",
                 kv_dtype_name(target.options.kv_dtype)}};
  if (device.scratch_bytes() > 0)
    plan.lines.push_back({scratch_line(""), Bytes(n_ranks, device.scratch_bytes())});
  for (size_t i = 0; i < drafts.size(); ++i) {
    const DraftModel& draft = *drafts[i];
    if (!draft.status.ok()) continue;
    Cost cost = of_drafts[i];
    if (draft.is_elsewhere && draft.device == nullptr) continue;  // rank 0 plans it
    if (draft.is_elsewhere) {
      SPECD_TRY(cost, planner.of_draft_elsewhere(draft).in_field(draft_model_field(i)));
    }
    const std::string name = name_with_place(draft);
    const std::string place = draft.is_elsewhere ? draft.device->name() : "";
    SPECD_TRY(const WeightSummary draft_stored,
              weight_summary(draft.path, draft.config).in_field(draft_model_field(i)));
    plan.lines.push_back({"weights of " + name, cost.weights, place, draft_stored.text()});
    plan.lines.push_back({"activations of " + name, cost.activations, place});
    if (draft.has_own_pages)
      plan.lines.push_back(
          {kv_line(name, plan.kv_pages), pages_of(cost), place, kv_dtype_name(draft.kv_dtype)});
    if (draft.is_elsewhere) continue;
    if (options.rank_bytes_max == 0 || n_ranks == 1) continue;
    const auto pages_with = [&](const Cost& its) {
      return planner.pages_that_fit(all_with(i, its));
    };
    plan.placements.push_back({.draft_model = draft.name,
                               .pages_shared = can_be_shared[i] ? pages_with(shared[i]) : -1,
                               .pages_alone = pages_with(alone[i]),
                               .pages_elsewhere = pages_with(Cost(n_ranks)),
                               .is_shared = draft.is_shared});
  }
  std::set<const Device*> used;
  for (const std::unique_ptr<DraftModel>& draft : drafts) {
    const Device* const where = draft->device;
    if (where == nullptr || !used.insert(where).second || where->scratch_bytes() == 0) continue;
    Bytes bytes(n_ranks);
    bytes.front() = where->scratch_bytes();
    plan.lines.push_back({scratch_line(where->name()), std::move(bytes), where->name()});
  }
  for (const DrafterLimit& limit : limits) {
    Bytes bytes(n_ranks);
    bytes.front() = limit.bytes;
    const std::string elsewhere = limit.is_with_models ? "" : "cpu";
    plan.lines.push_back(
        {drafter_line(limit.route, RouteState::kLive, elsewhere), std::move(bytes), elsewhere});
    if (limit.ring_bytes == 0) continue;
    Bytes rings(n_ranks);
    rings.front() = limit.ring_bytes;
    const std::string place = device.is_host() ? "" : "cpu";
    plan.lines.push_back(
        {rings_line(limit.route, RouteState::kLive, place), std::move(rings), place});
  }
  SPECD_OK_OR_RETURN(planner.check(all, plan));
  for (size_t i = 0; i < drafts.size(); ++i) {
    const Device* const where = drafts[i]->device;
    if (where == nullptr) continue;
    SPECD_OK_OR_RETURN(check_elsewhere(plan, where->name(), where->total_bytes(),
                                       draft_model_field(i) + ".device"));
  }
  if (!device.is_host())
    SPECD_OK_OR_RETURN(check_elsewhere(plan, "cpu", host_memory().bytes, "routes"));
  return plan;
}

}  // namespace specd
