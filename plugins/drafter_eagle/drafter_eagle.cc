// EAGLE-1 and EAGLE-2: a decoder layer on the target's last state drafts from its own output, through
// the target's output head. See README.md.
#include <specd/sdk/feature_tree.h>
#include <specd/sdk/plugin.h>

#include <optional>
#include <string>

#include "layout.h"
#include "network.h"

namespace specd::eagle {
namespace {

constexpr uint32_t kRowsMax = 512;  // of one update(); a longer prompt comes in several
constexpr const char* kFixedTree =
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001";

class Eagle final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema =
      R"({"type": "object", "additionalProperties": false, "required": ["weights"],
          "properties": {"weights": {"type": "string"},
            "max_positions": {"type": "integer", "minimum": 1}, )" SPECD_SDK_FEATURE_TREE_SCHEMA
      "}}";

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_MEMORY, SPECD_SERVICE_OPS,
                                            SPECD_SERVICE_WEIGHTS, SPECD_SERVICE_TARGET,
                                            SPECD_SERVICE_KV};
    const Parts parts(context);
    const Layout& layout = parts.layout;
    const auto width = static_cast<uint64_t>(layout.hidden),
               columns = static_cast<uint64_t>(layout.vocab);
    caps.tree_mode = parts.shape.choices ? SPECD_TREE_STATIC : SPECD_TREE_VARIABLE;
    caps.max_nodes = parts.shape.max_nodes();
    caps.max_depth = parts.shape.levels();
    caps.needs |= SPECD_NEED_HIDDEN;
    caps.n_taps = 1;
    caps.taps[0] = context.target->n_layers + 1;  // what the target's output head gets
    caps.rows_max = kRowsMax;
    caps.attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_COLD;  // colder for some tokens
    caps.device_types |= 1u << SPECD_DEV_CUDA;
    if (parts.shape.choices) caps.features = SPECD_FEATURE_CAPTURE;
    caps.services = kServices;
    caps.n_services = 5;
    const int64_t decoded = std::max<int64_t>(parts.shape.levels() + 1, parts.shape.rows());
    caps.bytes_fixed = parts.weights.bytes() + Network::bytes(layout, kRowsMax, 0) +
                       sdk::FeatureTree<Network>::bytes_fixed(width, columns, kRowsMax);
    caps.bytes_per_seq = Network::bytes(layout, decoded, decoded) +
                         sdk::FeatureTree<Network>::bytes_per_sequence(parts.shape, width, columns);
  }

  explicit Eagle(const sdk::Context& context) : Drafter(context), parts_(context) {}

  void activated() {
    const auto n_max = static_cast<int64_t>(grant().max_batch);
    const int64_t decoded = n_max * static_cast<int64_t>(parts_.shape.rows()),
                  rows = std::max<int64_t>(grant().max_rows, decoded);
    network_.emplace(*this, grant(), parts_.weights, parts_.layout, rows, std::max(decoded, n_max));
    tree_.emplace(*this, grant(), *network_, parts_.shape);
  }
  void deactivated() noexcept {
    tree_.reset();
    network_.reset();
  }

  struct Sequence {  // its rows are in the KV, its last feature in the tree, by slot
    explicit Sequence(Eagle&) {}
  };
  void begin(Sequence&, const sdk::Begin&) {}
  void begin_tensors(const specd_begin_args& in) { tree_->begin(*in.batch); }
  void update_tensors(const specd_update_args& in) { tree_->update(in); }
  void propose_tensors(const specd_propose_args& in) { tree_->propose(in); }
  std::vector<int32_t> static_tree() { return parts_.shape.choices->parents(grant().max_nodes); }

 private:
  // What the configuration and the files say, checked.
  struct Parts {
    explicit Parts(const sdk::Context& context)
        : weights(context, "weights"),
          layout(weights, *context.target),
          shape(sdk::FeatureTreeShape::of_config(context.config, "dynamic", kFixedTree)) {
      layout.positions_max =
          context.config.i64("max_positions", layout.positions_max, 1, int64_t{1} << 28);
    }
    sdk::Weights weights;
    Layout layout;
    sdk::FeatureTreeShape shape;
  };

  Parts parts_;
  std::optional<Network> network_;
  std::optional<sdk::FeatureTree<Network>> tree_;
};

}  // namespace
}  // namespace specd::eagle

SPECD_SDK_PLUGIN("EAGLE: a layer on the target's last state drafts from its own output",
                 specd::sdk::drafter<specd::eagle::Eagle>(
                     "head", "a trained EAGLE head: a growing tree, a fixed one or a chain"))
