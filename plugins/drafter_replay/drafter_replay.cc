// Replays recorded continuations with a configured acceptance: for exact tests of the engine and
// for the upper bound of what drafting can gain. See README.md.
#include <specd/sdk/plugin.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coin.h"
#include "record.h"

namespace specd::replay {
namespace {

struct Settings {
  std::string file;
  // by index in the draft; the last value applies to all later ones
  std::vector<double> acceptance;
  uint64_t seed = 0;
  int32_t draft_tokens = 8;
  bool tree = false;
  int32_t nodes = 0;   // tree: chain, decoys and probes together
  int32_t probes = 0;  // part of `nodes`

  explicit Settings(const sdk::Config& config) {
    file = config.required_string("file");
    seed = static_cast<uint64_t>(config.i64("seed", 0, 0, INT64_MAX));
    draft_tokens = static_cast<int32_t>(config.i64("draft_tokens", 8, 1, SPECD_MAX_TREE_DEPTH));
    read_acceptance(config);
    tree = config.has("tree");
    if (tree) {
      nodes = static_cast<int32_t>(
          config.i64("tree.nodes", 4 * draft_tokens, draft_tokens, SPECD_MAX_TREE_NODES));
      probes = static_cast<int32_t>(config.i64("tree.probes", 0, 0, nodes - draft_tokens));
    }
  }

 private:
  void read_acceptance(const sdk::Config& config) {
    if (!config.has("acceptance")) {
      acceptance = {1.0};
      return;
    }
    // A number or a list; the getters do not support lists.
    const nlohmann::json json = nlohmann::json::parse(config.json(), nullptr, false);
    const nlohmann::json value =
        json.is_object() && json.contains("acceptance") ? json["acceptance"] : nlohmann::json();
    const nlohmann::json list = value.is_array() ? value : nlohmann::json::array({value});
    for (const nlohmann::json& element : list) {
      const double a = element.is_number() ? element.get<double>() : -1.0;
      if (!(a >= 0.0 && a <= 1.0)) {
        throw sdk::Error(
            SPECD_E_CONFIG,
            "acceptance: expected a number from 0 to 1, or a list of them, found " + value.dump());
      }
      acceptance.push_back(a);
    }
    if (acceptance.empty() || acceptance.size() > SPECD_MAX_TREE_DEPTH) {
      throw sdk::Error(SPECD_E_CONFIG, "acceptance: expected 1 to 64 numbers, found " +
                                           std::to_string(acceptance.size()));
    }
  }
};

class Replay final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "required": ["file"],
    "properties": {
      "file": {"type": "string"},
      "acceptance": {"description": "number from 0 to 1, or a list of them by index in the draft"},
      "seed": {"type": "integer", "minimum": 0},
      "draft_tokens": {"type": "integer", "minimum": 1, "maximum": 64},
      "tree": {
        "type": "object",
        "additionalProperties": false,
        "properties": {
          "nodes": {"type": "integer", "minimum": 1, "maximum": 1024},
          "probes": {"type": "integer", "minimum": 0, "maximum": 1023}
        }
      }
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Settings settings(context.config);
    if (context.target->vocab_size < 2) {
      throw sdk::Error(SPECD_E_UNSUPPORTED, "a wrong token needs a vocabulary of at least 2");
    }
    caps.tree_mode = settings.tree ? SPECD_TREE_VARIABLE : SPECD_TREE_CHAIN;
    caps.max_nodes = static_cast<uint32_t>(settings.tree ? settings.nodes : settings.draft_tokens);
    caps.max_depth = static_cast<uint32_t>(settings.draft_tokens);
    if (settings.probes > 0) caps.needs |= SPECD_NEED_PROBES;
  }

  explicit Replay(const sdk::Context& context)
      : Drafter(context), settings_(context.config), book_(settings_.file, vocab_size()) {}

  struct Sequence {
    explicit Sequence(Replay&) {}
    const Record* record = nullptr;  // null: no record, or the text left it
    std::size_t known = 0;           // committed tokens
  };

  void begin(Sequence& sequence, const sdk::Begin& in) {
    sequence.known = in.tokens.size;
    sequence.record = book_.find(in.tokens.data, in.tokens.size, in.sampling->seed);
  }

  void update(Sequence& sequence, const sdk::Rows& rows) {
    for (int32_t r = 0; r < rows.size(); ++r) {
      const sdk::Row row = rows[r];
      if (static_cast<std::size_t>(row.position) + 1 != sequence.known) continue;
      if (sequence.record != nullptr &&
          (sequence.known >= sequence.record->tokens.size() ||
           sequence.record->tokens[sequence.known] != row.next_token)) {
        sequence.record = nullptr;
      }
      ++sequence.known;
    }
  }

  void propose(Sequence& sequence, sdk::Proposal& out) {
    if (sequence.record == nullptr || sequence.known >= sequence.record->tokens.size()) return;
    const std::size_t left = sequence.record->tokens.size() - sequence.known;
    const int32_t depth_max =
        std::min(settings_.draft_tokens, static_cast<int32_t>(grant().max_depth));
    const int32_t chain =
        static_cast<int32_t>(std::min<std::size_t>(left, std::min(depth_max, out.budget())));
    if (settings_.tree) {
      propose_tree(sequence, out, chain, depth_max);
      return;
    }
    for (int32_t d = 0; d < chain; ++d) out.push(chain_token(sequence, d));
  }

 private:
  struct Draft {
    int32_t token;
    int32_t parent;  // index in building order, -1 = root
    int32_t depth;   // 1 = child of the root
    bool probe;
  };

  // Token of the chain node at index d (0-based): the recorded one, or another.
  int32_t chain_token(const Sequence& sequence, int32_t d) const {
    const std::size_t position = sequence.known + static_cast<std::size_t>(d);
    const int32_t truth = sequence.record->tokens[position];
    const std::size_t place =
        std::min(static_cast<std::size_t>(d), settings_.acceptance.size() - 1);
    if (tells_truth(settings_.seed, position, settings_.acceptance[place])) return truth;
    return other_token(draw(settings_.seed, position, 1), truth, vocab_size());
  }

  // Places the chain among decoys, which are wrong at their position, and probes, which may be
  // right (to expose a verifier that accepts probes), in a random order with parents first.
  void propose_tree(const Sequence& sequence, sdk::Proposal& out, int32_t chain,
                    int32_t depth_max) {
    uint64_t state = draw(settings_.seed, sequence.known, 2);
    const auto random = [&state](uint64_t below) { return (state = mix(state)) % below; };

    drafts_.clear();
    for (int32_t d = 0; d < chain; ++d) {
      drafts_.push_back({chain_token(sequence, d), d - 1, d + 1, false});
    }
    const int32_t total = std::min(settings_.nodes, out.budget());
    const int32_t probes = out.probes_granted() ? std::min(settings_.probes, total - chain) : 0;
    for (int32_t i = chain; i < total; ++i) {
      const bool probe = i >= total - probes;
      int32_t parent = static_cast<int32_t>(random(drafts_.size() + 1)) - 1;
      // Too deep: attach it to the root.
      if (parent >= 0 && drafts_[static_cast<std::size_t>(parent)].depth >= depth_max) parent = -1;
      const int32_t depth = parent < 0 ? 1 : drafts_[static_cast<std::size_t>(parent)].depth + 1;
      const std::size_t position = sequence.known + static_cast<std::size_t>(depth) - 1;
      const bool recorded = position < sequence.record->tokens.size();
      const int32_t truth = recorded ? sequence.record->tokens[position] : 0;
      const bool honest = probe && recorded && random(2) == 0;
      drafts_.push_back({honest ? truth : other_token(random(UINT64_MAX), truth, vocab_size()),
                         parent, depth, probe});
    }

    // Random topological order: any node whose parent is placed may be next.
    placed_.assign(drafts_.size(), -1);
    ready_.clear();
    for (std::size_t i = 0; i < drafts_.size(); ++i) {
      if (drafts_[i].parent < 0) ready_.push_back(i);
    }
    while (!ready_.empty()) {
      const std::size_t pick = static_cast<std::size_t>(random(ready_.size()));
      const std::size_t node = ready_[pick];
      ready_[pick] = ready_.back();
      ready_.pop_back();
      const Draft& draft = drafts_[node];
      const int32_t parent =
          draft.parent < 0 ? -1 : placed_[static_cast<std::size_t>(draft.parent)];
      placed_[node] = out.push(draft.token, parent, draft.probe ? SPECD_NODE_PROBE : 0);
      for (std::size_t i = node + 1; i < drafts_.size(); ++i) {
        if (drafts_[i].parent == static_cast<int32_t>(node)) ready_.push_back(i);
      }
    }
  }

  Settings settings_;
  RecordBook book_;
  // Scratch memory of propose_tree().
  std::vector<Draft> drafts_;
  std::vector<int32_t> placed_;
  std::vector<std::size_t> ready_;
};

}  // namespace
}  // namespace specd::replay

SPECD_SDK_PLUGIN(
    "Replays recorded continuations with a configured acceptance, for tests and bounds",
    specd::sdk::drafter<specd::replay::Replay>("replay",
                                               "the recorded continuation of a known prompt"))
