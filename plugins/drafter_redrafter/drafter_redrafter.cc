// ReDrafter: a recurrent head on the target's last hidden state, searched with beams that share
// what they begin with. See README.md.
#include <specd/sdk/plugin.h>
#include <specd/sdk/tree.h>

#include <algorithm>
#include <optional>

#include "beams.h"
#include "layout.h"
#include "network.h"
#include "settings.h"

namespace specd::redrafter {
namespace {

class ReDrafter final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "required": ["weights"],
    "properties": {
      "weights": {"type": "string"},
      "beams": {"type": "integer", "minimum": 1, "maximum": 50},
      "draft_tokens": {"type": "integer", "minimum": 1, "maximum": 16},
      "use_target_noise": {"type": "boolean"}
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Parts parts(context);
    const specd_target_info& target = *context.target;
    caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.max_nodes = parts.settings.beams * parts.settings.draft_tokens;
    caps.max_depth = parts.settings.draft_tokens;
    sdk::SlotStates::describe(context, caps);
    caps.bytes_fixed = parts.weights.bytes() + Network::bytes_fixed(target);
    caps.bytes_per_seq = Network::bytes_per_sequence(parts.layout, target, parts.settings);
  }

  explicit ReDrafter(const sdk::Context& context) : Drafter(context), parts_(context) {}

  void activated() {
    network_.emplace(*this, grant(), parts_.weights, parts_.layout, parts_.settings);
  }
  void deactivated() noexcept { network_.reset(); }

  struct Sequence {  // its last state is in the network, by slot
    explicit Sequence(ReDrafter&) {}
  };
  void begin(Sequence&, const sdk::Begin&) {}
  void begin_tensors(const specd_begin_args& in) { network_->begin(*in.batch); }
  void update_tensors(const specd_update_args& in) { network_->update(in); }

  void propose_tensors(const specd_propose_args& in) {
    const specd_batch& batch = *in.batch;
    const int64_t n = batch.n_seqs, capacity = in.out->node_capacity;
    const sdk::Column<int32_t> token(in.out->token, n, capacity, "token"),
        parent(in.out->parent, n, capacity, "parent");
    beams_.resize(std::max(beams_.size(), std::size_t{batch.n_seqs}));
    for (uint32_t s = 0; s < batch.n_seqs; ++s) beams_[s].clear();
    for (uint32_t depth = 1; depth <= parts_.settings.draft_tokens; ++depth) {
      add_rows(in, depth);
      if (rows_.token.empty()) break;
      network_->run(in, rows_, depth);
      take(in, depth);
    }
    for (uint32_t s = 0; s < batch.n_seqs; ++s) {
      sdk::Proposal out(in, token, &parent, nullptr, s, in.out->node_capacity);
      std::vector<std::vector<int32_t>> paths;
      for (const Beams::Beam& beam : beams_[s].all()) paths.push_back(beam.tokens);
      sdk::propose_beams(paths, out);
    }
  }

 private:
  // What the configuration and the files say, checked.
  struct Parts {
    explicit Parts(const sdk::Context& context)
        : settings(context.config), weights(context, "weights"), layout(weights, *context.target) {}
    Settings settings;
    sdk::Weights weights;
    Layout layout;
  };

  // Whether sequence s has beams at this depth: a path takes a node a level, and the step itself adds
  // a token.
  bool drafts(const specd_propose_args& in, uint32_t s, uint32_t depth) const {
    const int64_t budget = in.host_node_budget[s];
    return depth <= budget && depth < in.sampling[s]->tokens_left && !beams_[s].all().empty();
  }
  // A row per beam, in the order of the batch.
  void add_rows(const specd_propose_args& in, uint32_t depth) {
    const std::vector<int32_t> first = std::move(first_row_);
    first_row_.assign(in.batch->n_seqs, -1);
    rows_.clear();
    for (uint32_t s = 0; s < in.batch->n_seqs; ++s) {
      if (!drafts(in, s, depth)) continue;
      first_row_[s] = static_cast<int32_t>(rows_.token.size());
      for (const Beams::Beam& beam : beams_[s].all()) {
        rows_.token.push_back(depth == 1 ? in.host_root_token[s] : beam.tokens.back());
        rows_.slot.push_back(static_cast<int32_t>(in.batch->slot[s]));
        rows_.sequence.push_back(static_cast<int32_t>(s));
        rows_.parent.push_back(depth == 1 ? -1 : first[s] + static_cast<int32_t>(beam.parent));
      }
    }
  }
  void take(const specd_propose_args& in, uint32_t depth) {
    for (uint32_t s = 0; s < in.batch->n_seqs; ++s) {
      if (!drafts(in, s, depth)) continue;
      const int64_t at = first_row_[s] * rows_.n_candidates;
      beams_[s].grow(rows_.candidate.data() + at, rows_.logprob.data() + at, rows_.n_candidates,
                     parts_.settings.beams);
    }
  }

  Parts parts_;
  std::optional<Network> network_;
  std::vector<Beams> beams_;        // by sequence of the batch
  std::vector<int32_t> first_row_;  // by sequence, in the last step
  Network::Rows rows_;
};

}  // namespace
}  // namespace specd::redrafter

SPECD_SDK_PLUGIN("ReDrafter: beams of a recurrent head on the target's last hidden state",
                 specd::sdk::drafter<specd::redrafter::ReDrafter>(
                     "beams", "the likeliest beams of a trained recurrent head"))
