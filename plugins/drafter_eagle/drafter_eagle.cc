// EAGLE-1 and EAGLE-2: a decoder layer on the target's last state drafts from its own output, through
// the target's output head. See README.md.
#include <specd/sdk/feature_tree.h>
#include <specd/sdk/plugin.h>

#include "layout.h"
#include "network.h"

namespace specd::eagle {
namespace {

class Eagle final : public sdk::FeatureDrafter<Layout, Network> {
 public:
  static constexpr const char* kSchema =
      R"({"type": "object", "additionalProperties": false, "required": ["weights"],
          "properties": {"weights": {"type": "string"},
            "max_positions": {"type": "integer", "minimum": 1}, )" SPECD_SDK_FEATURE_TREE_SCHEMA
      "}}";
  using FeatureDrafter::FeatureDrafter;
};

}  // namespace
}  // namespace specd::eagle

SPECD_SDK_PLUGIN("EAGLE: a layer on the target's last state drafts from its own output",
                 specd::sdk::drafter<specd::eagle::Eagle>(
                     "head", "a trained EAGLE head: a growing tree, a fixed one or a chain"))
