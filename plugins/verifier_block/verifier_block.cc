#include "block.h"

#include <specd/sdk/plugin.h>
#include <specd/sdk/rng.h>

namespace {

namespace sdk = specd::sdk;

class Block final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_RNG};
    caps.tree_modes = 1u << SPECD_TREE_CHAIN;
    // In a chain each draft has no siblings, so the rules that draw are the same.
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_LAW;
    caps.services = kServices;
    caps.n_services = 1;
    caps.needs = SPECD_NEED_LAW | SPECD_NEED_Q;
  }

  explicit Block(const sdk::Context& context) : Verifier(context), rng_(*this) {}

  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    sdk::Noise noise(rng_, nodes.batch(), nodes.index(), nodes.root_position());
    specd::judge_block(nodes, grant().draft_rule != SPECD_RULE_POINT_MASS, noise, weight_, verdict);
  }

 private:
  sdk::Rng rng_;
  std::vector<double> weight_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts the drafted tokens of a chain together (block verification)",
                 sdk::verifier<Block>("block", "Guarantee `law` for chains"))
