// EAGLE-3: a decoder layer on a fusion of the target's inner states drafts from its own output. See
// README.md.
#include <specd/sdk/feature_tree.h>
#include <specd/sdk/plugin.h>

#include <string>

#include "layout.h"
#include "network.h"

namespace specd::eagle3 {
namespace {

class Eagle3 final : public sdk::FeatureDrafter<Layout, Network> {
 public:
  static constexpr const char* kSchema =
      R"({"type": "object", "additionalProperties": false, "required": ["weights"],
          "properties": {"weights": {"type": "string"},
            "layer_ids": {"type": "array", "minItems": 1, "maxItems": 16,
                          "items": {"type": "integer", "minimum": 0}},
            "layer_ids_are": {"enum": ["inputs", "outputs"]},
            "max_positions": {"type": "integer", "minimum": 1}, )" SPECD_SDK_FEATURE_TREE_SCHEMA
      "}}";

  // Says which states are read: files name them in two ways.
  explicit Eagle3(const sdk::Context& context) : FeatureDrafter(context) {
    std::string text = name() + " reads these states of the target:";
    const uint32_t n_layers = target().n_layers;
    for (const uint32_t tap : layout().taps) {
      text += tap < n_layers    ? " the input of layer " + std::to_string(tap) + ","
              : tap == n_layers ? " the output of the last layer,"
                                : " the final norm,";
    }
    text.back() = '.';
    log(SPECD_LOG_INFO, text);
  }
};

}  // namespace
}  // namespace specd::eagle3

SPECD_SDK_PLUGIN("EAGLE-3: a layer on the target's inner states drafts from its own output",
                 specd::sdk::drafter<specd::eagle3::Eagle3>(
                     "head", "a trained EAGLE-3 head: a growing tree, a fixed one or a chain"))
