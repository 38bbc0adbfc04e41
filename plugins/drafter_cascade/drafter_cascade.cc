// A drafter composed of drafters: in each step the first one with a proposal drafts. Uses the C
// tables directly, because it forwards calls. See README.md.
#include <specd/plugin_api/services/parts.h>
#include <specd/sdk/instance.h>
#include <specd/sdk/plugin.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "part.h"

namespace specd::cascade {
namespace {

constexpr std::size_t kPartsMax = 8;

constexpr const char* kSchema = R"({
  "type": "object",
  "additionalProperties": false,
  "required": ["drafters"],
  "properties": {
    "drafters": {
      "type": "array", "minItems": 2, "maxItems": 8,
      "items": {
        "type": "object",
        "additionalProperties": false,
        "required": ["plugin"],
        "properties": {
          "plugin": {"type": "string"},
          "factory": {"type": "string"},
          "config": {"type": "object", "additionalProperties": true}
        }
      }
    },
    "min_nodes": {
      "type": "array", "maxItems": 8,
      "items": {"type": "integer", "minimum": 1, "maximum": 1024}
    }
  }
})";

class Cascade {
 public:
  // Describes every part; create() constructs them.
  Cascade(const specd_host* host, const specd_target_info* target, const specd_config* config)
      : host_(host) {
    const auto* parts = sdk::require_service<specd_parts>(host, SPECD_SERVICE_PARTS);
    const sdk::Config own(config);
    for (std::size_t i = 0; i < kPartsMax; ++i) {
      const std::string where = "drafters." + std::to_string(i);
      specd_part found{};
      found.struct_size = sizeof found;
      const specd_status status = parts->find(host, config, where.c_str(), &found);
      if (status == SPECD_E_PRECONDITION) break;
      if (status != SPECD_OK) throw sdk::Error(status, where + ": cannot be used");
      parts_.emplace_back(host, target, found, where);
      const std::string min_nodes = "min_nodes." + std::to_string(i);
      min_nodes_.push_back(
          static_cast<int32_t>(own.i64(min_nodes.c_str(), 1, 1, SPECD_MAX_TREE_NODES)));
      const uint32_t most = parts_.back().caps().max_nodes;
      if (static_cast<uint32_t>(min_nodes_.back()) > most) {
        throw sdk::Error(SPECD_E_CONFIG, min_nodes + ": expected at most " + std::to_string(most) +
                                             ", the max_nodes of " + where + ", found " +
                                             std::to_string(min_nodes_.back()));
      }
    }
    if (parts_.size() < 2) {
      throw sdk::Error(SPECD_E_CONFIG,
                       "drafters: expected 2 to 8, found " + std::to_string(parts_.size()));
    }
    const std::string more = "min_nodes." + std::to_string(parts_.size());
    if (own.has(more.c_str())) {
      throw sdk::Error(SPECD_E_CONFIG, more + ": there is no such drafter");
    }
  }

  // The combined requirements and capabilities of all parts.
  specd_drafter_caps caps() const {
    static const char* const kServices[] = {SPECD_SERVICE_PARTS};
    specd_drafter_caps all{};
    all.struct_size = sizeof all;
    all.tree_mode = SPECD_TREE_CHAIN;
    all.needs = SPECD_NEED_HOST_TOKENS;
    all.draft_rule = parts_[0].caps().draft_rule;
    all.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD;
    all.device_types = 1u << SPECD_DEV_CPU;
    all.services = kServices;
    all.n_services = 1;
    for (const Part& part : parts_) {
      const specd_drafter_caps& one = part.caps();
      if (one.draft_rule != all.draft_rule) {
        throw sdk::Error(SPECD_E_UNSUPPORTED,
                         part.where() + ": its draft rule differs from that of " +
                             parts_[0].where() + ", so no verifier can state one guarantee");
      }
      if (one.tree_mode != SPECD_TREE_CHAIN) all.tree_mode = SPECD_TREE_VARIABLE;
      all.needs |= one.needs;
      all.attach_modes &= one.attach_modes;
      all.max_nodes = std::max(all.max_nodes, one.max_nodes);
      all.max_depth = std::max(all.max_depth, one.max_depth);
      all.rows_max = std::max(all.rows_max, one.rows_max);
      all.top_k = std::max(all.top_k, one.top_k);
      if (one.max_batch != 0) {
        all.max_batch = all.max_batch == 0 ? one.max_batch : std::min(all.max_batch, one.max_batch);
      }
      if (__builtin_add_overflow(all.bytes_fixed, one.bytes_fixed, &all.bytes_fixed) ||
          __builtin_add_overflow(all.bytes_per_seq, one.bytes_per_seq, &all.bytes_per_seq)) {
        throw sdk::Error(SPECD_E_UNSUPPORTED,
                         part.where() + ": the drafters need more than 2^64 bytes together");
      }
    }
    const std::vector<uint32_t> taps = union_of_taps();
    if (taps.size() > SPECD_MAX_TAPS) {
      throw sdk::Error(SPECD_E_UNSUPPORTED,
                       "drafters: together they need " + std::to_string(taps.size()) +
                           " taps, the host gives at most " + std::to_string(SPECD_MAX_TAPS));
    }
    std::copy(taps.begin(), taps.end(), all.taps);
    all.n_taps = static_cast<uint32_t>(taps.size());
    return all;
  }

  const specd_host* host() const { return host_; }

  void create(const specd_create_args& args) {
    for (Part& part : parts_) {
      const std::string name = std::string(args.instance_name) + "." + part.where();
      specd_create_args own = args;
      own.instance_name = name.c_str();
      part.create(own);
    }
  }

  void activate(const specd_drafter_grant& grant) {
    grant_ = grant;
    ending_.resize(grant.max_batch);
    ending_slot_.shape(1, 1, 0, 1);
    is_tree_ = caps().tree_mode == SPECD_TREE_VARIABLE;
    const std::vector<uint32_t> all = union_of_taps();
    try {
      for (Part& part : parts_) {
        std::vector<uint32_t> places;
        for (uint32_t i = 0; i < part.caps().n_taps; ++i) {
          const auto at = std::lower_bound(all.begin(), all.end(), part.caps().taps[i]);
          places.push_back(static_cast<uint32_t>(at - all.begin()));
        }
        part.activate(grant, std::move(places));
        const std::size_t i = static_cast<std::size_t>(&part - parts_.data());
        if (static_cast<uint32_t>(min_nodes_[i]) > part.capacity()) {
          throw sdk::Error(SPECD_E_CONFIG,
                           "min_nodes." + std::to_string(i) + ": expected at most " +
                               std::to_string(part.capacity()) + ", found " +
                               std::to_string(min_nodes_[i]) +
                               ": raise the route's draft_nodes_max, or lower this");
        }
      }
    } catch (...) {
      deactivate();
      throw;
    }
  }
  void deactivate() {
    for (Part& part : parts_) part.deactivate();
  }

  void begin(const specd_begin_args& args) {
    const uint32_t n = args.batch->n_seqs;
    // Allocate before the parts begin: what they have begun must not be lost to an
    // allocation failure.
    std::vector<std::vector<void*>> states(parts_.size(), std::vector<void*>(n));
    std::vector<std::vector<specd_status>> statuses(parts_.size(), std::vector<specd_status>(n));
    std::vector<specd_status> worst(n, SPECD_OK);
    std::vector<bool> began(parts_.size() * n, false);
    std::vector<std::unique_ptr<Sequence>> sequences(n);
    for (std::unique_ptr<Sequence>& sequence : sequences) {
      sequence = std::make_unique<Sequence>();
      sequence->state.resize(parts_.size());
    }
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const specd_status status = parts_[p].begin(args, states[p], statuses[p]);
      for (uint32_t s = 0; s < n; ++s) {
        const specd_status one = is_good(status) ? statuses[p][s] : status;
        began[p * n + s] = one == SPECD_OK;
        if (one != SPECD_OK && worst[s] == SPECD_OK) worst[s] = one;
      }
    }
    for (uint32_t s = 0; s < n; ++s) {
      args.seq_state[s] = nullptr;
      if (worst[s] == SPECD_OK) {
        Sequence& sequence = *sequences[s];
        for (std::size_t p = 0; p < parts_.size(); ++p) sequence.state[p] = states[p][s];
        sequence.n_begun = static_cast<int32_t>(args.token_offsets[s + 1] - args.token_offsets[s]);
        args.seq_state[s] = sequences[s].release();
        continue;
      }
      args.batch->seq_status[s] = worst[s];
      for (std::size_t p = 0; p < parts_.size(); ++p) {
        if (began[p * n + s]) end_one(p, *args.batch, s, states[p][s]);
      }
    }
  }

  void update(const specd_update_args& args) {
    const std::vector<Sequence*> sequences = sequences_of(*args.batch);
    std::vector<specd_status> statuses;
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const specd_status status = parts_[p].update(args, sequences, p, statuses);
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        const specd_status one = is_good(status) ? statuses[s] : status;
        if (one != SPECD_OK) args.batch->seq_status[s] = one;
      }
    }
  }

  void propose(const specd_propose_args& args) {
    const std::vector<Sequence*> sequences = sequences_of(*args.batch);
    std::vector<int32_t> budgets(args.host_node_budget, args.host_node_budget + sequences.size());
    auto* n_nodes = static_cast<int32_t*>(args.out->n_nodes->data);
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      sequences[s]->chosen = -1;
      budgets[s] = std::clamp(budgets[s], 0, static_cast<int32_t>(args.out->node_capacity));
      n_nodes[s] = 0;
    }
    // Per sequence: the first part whose proposal was too short, and the status of a part
    // that failed.
    std::vector<int32_t> second_best(sequences.size(), -1);
    std::vector<specd_status> failed(sequences.size(), SPECD_OK);
    const auto take = [&](std::size_t p, std::size_t s) {
      n_nodes[s] = parts_[p].n_nodes(s);
      hand_on(parts_[p], s, n_nodes[s], *args.out);
      sequences[s]->chosen = static_cast<int32_t>(p);
      budgets[s] = 0;
    };
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      const auto asked = [](int32_t budget) { return budget > 0; };
      if (std::none_of(budgets.begin(), budgets.end(), asked)) return;
      const specd_status status = parts_[p].propose(args, sequences, p, budgets);
      for (std::size_t s = 0; s < sequences.size(); ++s) {
        if (budgets[s] == 0) continue;
        const specd_status one = is_good(status) ? parts_[p].status(s) : status;
        if (!is_good(one)) {
          failed[s] = one;
          tell_once(parts_[p], one);
        } else if (parts_[p].n_acceptable(s) >= min_nodes_[p]) {
          take(p, s);
        } else if (parts_[p].n_nodes(s) > 0 && second_best[s] < 0) {
          second_best[s] = static_cast<int32_t>(p);
        }
      }
    }
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      if (budgets[s] == 0) continue;
      if (second_best[s] >= 0) {
        take(static_cast<std::size_t>(second_best[s]), s);
      } else if (failed[s] != SPECD_OK) {
        args.batch->seq_status[s] = failed[s];
      }
    }
  }

  // Allocates nothing: a failure here would keep parts from ending their sequences.
  void end(const specd_end_args& args) {
    const specd_batch& batch = *args.batch;
    const auto sequence = [&](uint32_t s) { return static_cast<Sequence*>(batch.seq_state[s]); };
    for (std::size_t p = 0; p < parts_.size(); ++p) {
      for (uint32_t s = 0; s < batch.n_seqs; ++s) ending_[s] = sequence(s)->state[p];
      parts_[p].end(args, ending_);
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) delete sequence(s);
  }

 private:
  static std::vector<Sequence*> sequences_of(const specd_batch& batch) {
    std::vector<Sequence*> all;
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      all.push_back(static_cast<Sequence*>(batch.seq_state[s]));
      sdk::expect(all.back() != nullptr, "a sequence that never began");
    }
    return all;
  }

  std::vector<uint32_t> union_of_taps() const {
    std::set<uint32_t> taps;
    for (const Part& part : parts_) {
      taps.insert(part.caps().taps, part.caps().taps + part.caps().n_taps);
    }
    return {taps.begin(), taps.end()};
  }

  static bool is_good(specd_status status) {
    return status == SPECD_OK || status == SPECD_E_DEADLINE;
  }

  // Ends a sequence that another part failed in begin(). Like every end(), without the call, on
  // which services depend.
  void end_one(std::size_t part, const specd_batch& all, uint32_t s, void* state) {
    specd_status status = SPECD_OK;
    ending_[0] = state;
    *ending_slot_.row(0) = all.slot == nullptr ? 0 : static_cast<int32_t>(all.slot[s]);
    specd_batch batch = all;
    batch.n_seqs = 1;
    batch.call = nullptr;
    batch.seq_id = all.seq_id + s;
    batch.slot = all.slot == nullptr ? nullptr : all.slot + s;
    batch.slots = ending_slot_.tensor();
    batch.seq_status = &status;
    specd_end_args args{};
    args.struct_size = sizeof args;
    args.reason = SPECD_END_QUARANTINED;
    args.batch = &batch;
    parts_[part].end(args, ending_);
  }

  void hand_on(Part& part, std::size_t s, int32_t n, const specd_proposal& out) const {
    const std::size_t at = s * out.node_capacity;
    std::copy_n(part.tokens(s), n, static_cast<int32_t*>(out.token->data) + at);
    if (is_tree_) std::copy_n(part.parents(s), n, static_cast<int32_t*>(out.parent->data) + at);
    if (out.flags != nullptr) {
      std::copy_n(part.flags(s), n, static_cast<int32_t*>(out.flags->data) + at);
    }
  }

  void tell_once(const Part& part, specd_status status) {
    if (!told_.emplace(&part, status).second) return;
    const std::string text = part.where() + ": propose() failed with status " +
                             std::to_string(status) + "; the other drafters continue";
    host_->log(host_, SPECD_LOG_WARN, text.data(), text.size());
  }

  const specd_host* host_;
  std::vector<Part> parts_;
  std::vector<int32_t> min_nodes_;  // indexed by part
  specd_drafter_grant grant_{};
  bool is_tree_ = false;  // the cascade writes the parents
  std::set<std::pair<const Part*, specd_status>> told_;
  // For end() and end_one(), which must not allocate: states, and the slot of one sequence.
  std::vector<void*> ending_;
  Grid ending_slot_;
};

// ---- the table -------------------------------------------------------------------------------

Cascade* self(specd_drafter* drafter) { return reinterpret_cast<Cascade*>(drafter); }

specd_status describe(const specd_factory*, const specd_host* host, const specd_target_info* target,
                      const specd_config* config, specd_drafter_caps* out) noexcept {
  return sdk::guard(host, nullptr, -1, [&] { *out = Cascade(host, target, config).caps(); });
}

specd_status create(const specd_factory*, const specd_host* host, const specd_create_args* args,
                    specd_drafter** out) noexcept {
  return sdk::guard(host, args->call, -1, [&] {
    auto made = std::make_unique<Cascade>(host, args->target, args->config);
    made->create(*args);
    *out = reinterpret_cast<specd_drafter*>(made.release());
  });
}

specd_status activate(specd_drafter* drafter, const specd_drafter_grant* grant) noexcept {
  return sdk::guard(self(drafter)->host(), nullptr, -1, [&] { self(drafter)->activate(*grant); });
}

template <auto kFunction, class Args>
specd_status step(specd_drafter* drafter, const Args* args) noexcept {
  return sdk::guard(self(drafter)->host(), args->batch->call, -1,
                    [&] { (self(drafter)->*kFunction)(*args); });
}

void end(specd_drafter* drafter, const specd_end_args* args) noexcept {
  (void)step<&Cascade::end>(drafter, args);
}
void deactivate(specd_drafter* drafter) noexcept { self(drafter)->deactivate(); }
void destroy(specd_drafter* drafter) noexcept { delete self(drafter); }

constexpr specd_drafter_api kApi = {sizeof(specd_drafter_api),
                                    0,
                                    describe,
                                    create,
                                    activate,
                                    nullptr,
                                    step<&Cascade::begin, specd_begin_args>,
                                    step<&Cascade::update, specd_update_args>,
                                    step<&Cascade::propose, specd_propose_args>,
                                    end,
                                    deactivate,
                                    destroy};

}  // namespace
}  // namespace specd::cascade

SPECD_SDK_PLUGIN("A drafter composed of drafters: the first one with a proposal drafts",
                 specd_factory{sizeof(specd_factory), 0, "cascade",
                               "the first of its drafters with a proposal drafts",
                               specd::cascade::kSchema, &specd::cascade::kApi, nullptr})
