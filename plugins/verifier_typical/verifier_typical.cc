#include <specd/sdk/plugin.h>

#include "typical.h"

namespace {

namespace sdk = specd::sdk;

class Typical final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "epsilon": {"type": "number", "minimum": 0, "maximum": 1},
      "alpha": {"type": "number", "minimum": 0, "maximum": 1}
    }
  })";

  static void describe(const sdk::Context& context, specd_verifier_caps& caps) {
    (void)limits_of(context.config);
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_NONE;
    caps.needs = SPECD_NEED_LAW;
  }

  explicit Typical(const sdk::Context& context)
      : Verifier(context), limits_(limits_of(context.config)) {}

  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    specd::judge_typical(nodes, limits_, verdict);
  }

 private:
  static specd::TypicalLimits limits_of(const sdk::Config& config) {
    const specd::TypicalLimits preset;
    return {config.f64("epsilon", preset.epsilon, 0, 1), config.f64("alpha", preset.alpha, 0, 1)};
  }

  const specd::TypicalLimits limits_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts drafted tokens that the target finds likely enough",
                 sdk::verifier<Typical>("typical", "Typical acceptance; changes the text"))
