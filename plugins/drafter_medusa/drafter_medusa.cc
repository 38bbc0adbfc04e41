// Medusa: heads that each guess one of the next tokens from the target's last hidden state, and a
// fixed tree of their best guesses. See README.md.
#include <specd/sdk/plugin.h>

#include <optional>
#include <string>

#include "heads.h"
#include "layout.h"
#include "settings.h"

namespace specd::medusa {
namespace {

class Medusa final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "required": ["weights"],
    "properties": {
      "weights": {"type": "string"},
      "tree": {"type": "string"},
      "choices": {
        "type": "array", "minItems": 1, "maxItems": 1024,
        "items": {"type": "array", "minItems": 1, "maxItems": 64,
                  "items": {"type": "integer", "minimum": 0, "maximum": 63}}
      },
      "use_target_noise": {"type": "boolean"}
    }
  })";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    const Parts parts(context);
    const specd_target_info& target = *context.target;
    caps.tree_mode = SPECD_TREE_STATIC;
    caps.max_nodes = static_cast<uint32_t>(parts.choices.nodes().size());
    caps.max_depth = static_cast<uint32_t>(parts.choices.depth());
    sdk::SlotStates::describe(context, caps);
    caps.features = SPECD_FEATURE_CAPTURE;
    caps.bytes_fixed = parts.weights.bytes() + Heads::bytes_fixed(target);
    caps.bytes_per_seq = Heads::bytes_per_sequence(parts.layout, target, parts.choices);
  }

  explicit Medusa(const sdk::Context& context) : Drafter(context), parts_(context) {
    const auto said = static_cast<int64_t>(parts_.layout.heads.size());
    if (!parts_.weights.has_config()) return;
    const int64_t found = parts_.weights.from_config([&](const sdk::Config& config) {
      return config.i64("medusa_num_heads", said, INT64_MIN, INT64_MAX);
    });
    if (found != said) {
      log(SPECD_LOG_WARN, "config.json of the weights says " + std::to_string(found) +
                              " heads, the tensors are those of " + std::to_string(said));
    }
  }

  void activated() {
    heads_.emplace(*this, grant(), parts_.weights, parts_.layout, parts_.choices,
                   parts_.settings.use_target_noise);
  }
  void deactivated() noexcept { heads_.reset(); }

  struct Sequence {  // its last state is in the heads, by slot
    explicit Sequence(Medusa&) {}
  };
  void begin(Sequence&, const sdk::Begin&) {}
  void begin_tensors(const specd_begin_args& in) { heads_->begin(*in.batch); }
  void update_tensors(const specd_update_args& in) { heads_->update(in); }
  void propose_tensors(const specd_propose_args& in) { heads_->propose(in); }
  std::vector<int32_t> static_tree() { return parts_.choices.parents(grant().max_nodes); }

 private:
  // What the configuration and the files say, checked.
  struct Parts {
    explicit Parts(const sdk::Context& context)
        : settings(context.config),
          weights(context, "weights"),
          layout(weights, *context.target),
          choices(settings.choices(static_cast<int32_t>(layout.heads.size()))) {
      if (choices.width() > layout.columns) {
        throw sdk::Error(SPECD_E_CONFIG, "choices: rank " + std::to_string(choices.width() - 1) +
                                             ", the heads know " + std::to_string(layout.columns) +
                                             " tokens");
      }
    }
    Settings settings;
    sdk::Weights weights;
    Layout layout;
    sdk::Choices choices;
  };

  Parts parts_;
  std::optional<Heads> heads_;
};

}  // namespace
}  // namespace specd::medusa

SPECD_SDK_PLUGIN("Medusa: heads on the target's last hidden state guess the next tokens",
                 specd::sdk::drafter<specd::medusa::Medusa>(
                     "heads", "a fixed tree of the best guesses of trained heads"))
