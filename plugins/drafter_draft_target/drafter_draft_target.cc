// Draft-target speculation: a small model with the same tokens guesses for the large one. The
// daemon runs the model (service model/1); this plugin decides what to feed it. See README.md.
#include <specd/sdk/plugin.h>

#include "chain.h"
#include "drawn.h"
#include "settings.h"
#include "tree.h"

namespace specd::draft_target {
namespace {

class DraftTarget final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "required": ["model"],
    "properties": {
      "model": {"type": "string"},
      "draft_tokens": {"type": "integer", "minimum": 1, "maximum": 64},
      "p_min": {"type": "number", "minimum": 0, "maximum": 1},
      "draw": {"enum": ["target_noise", "most_likely", "own"]},
      "prefill_chunk": {"type": "integer", "minimum": 1, "maximum": 65536},
      "tree": {
        "type": "object",
        "additionalProperties": false,
        "properties": {
          "branches": {"type": "integer", "minimum": 1, "maximum": 16},
          "nodes": {"type": "integer", "minimum": 1, "maximum": 1024},
          "p_min": {"type": "number", "minimum": 0, "maximum": 1},
          "replacement": {"type": "boolean"}
        }
      }
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MODEL, SPECD_SERVICE_MEMORY,
                                            SPECD_SERVICE_RNG};
    const Settings settings(context.config);
    const bool is_own = settings.draw == Draw::kOwn;
    caps.max_depth = settings.draft_tokens;
    caps.max_nodes = settings.tree ? settings.nodes : settings.draft_tokens;
    caps.services = kServices;
    caps.n_services = !is_own ? 1 : settings.tree ? 3 : 2;
    if (settings.tree) caps.tree_mode = SPECD_TREE_VARIABLE;
    if (is_own) {
      caps.draft_rule =
          settings.tree && !settings.with_replacement ? SPECD_RULE_NO_REPLACE : SPECD_RULE_IID;
      caps.features = SPECD_FEATURE_Q;
      caps.bytes_per_seq = Drawn::bytes_per_sequence(settings, *context.target);
      caps.max_nodes = std::min(caps.max_nodes, settings.draft_tokens * settings.branches);
    }
    // trees and stopping at p_min read values
    if (settings.tree || settings.p_min > 0) return;
    caps.device_types |= 1u << SPECD_DEV_CUDA;
    caps.features |= SPECD_FEATURE_CAPTURE;
  }

  explicit DraftTarget(const sdk::Context& context)
      : Drafter(context),
        settings_(context.config),
        model_(*this, settings_.model),
        chain_(settings_, model_),
        drawn_(settings_, chain_, *this),
        tree_(settings_, model_) {}

  void activated() { drawn_.activate(*this, grant()); }
  void deactivated() noexcept { drawn_.deactivate(); }

  struct Sequence {  // the daemon keeps the text and the model's state
    explicit Sequence(DraftTarget&) {}
  };
  void begin(Sequence&, const sdk::Begin&) {}

  void propose_tensors(const specd_propose_args& in) {
    if (settings_.draw == Draw::kOwn) {
      drawn_.propose(in);
    } else if (settings_.tree) {
      tree_.propose(in);
    } else {
      chain_.propose(in);
    }
  }

 private:
  const Settings settings_;
  sdk::Model model_;
  Chain chain_;
  Drawn drawn_;
  Tree tree_;
};

}  // namespace
}  // namespace specd::draft_target

SPECD_SDK_PLUGIN("Draft-target: a small model, run by the daemon, guesses for the large one",
                 specd::sdk::drafter<specd::draft_target::DraftTarget>(
                     "chain", "the draft model's draws, or a tree of its most likely tokens"))
