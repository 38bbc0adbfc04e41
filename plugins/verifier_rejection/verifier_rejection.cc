#include "rejection.h"

#include <specd/sdk/plugin.h>
#include <specd/sdk/rng.h>

namespace {

namespace sdk = specd::sdk;

class Rejection final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_RNG};
    caps.tree_modes = 1u << SPECD_TREE_CHAIN;
    caps.guarantee[SPECD_RULE_POINT_MASS] = SPECD_GUARANTEE_LAW;
    caps.guarantee[SPECD_RULE_IID] = SPECD_GUARANTEE_LAW;
    caps.guarantee[SPECD_RULE_NO_REPLACE] = SPECD_GUARANTEE_LAW;  // in a chain the same as IID
    caps.services = kServices;
    caps.n_services = 1;
    caps.needs = SPECD_NEED_LAW | SPECD_NEED_Q;
  }

  explicit Rejection(const sdk::Context& context)
      : Verifier(context), rng_(*this), weight_(target().vocab_size) {}

  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    sdk::Noise noise(rng_, nodes.batch(), nodes.index(), nodes.root_position());
    specd::judge_chain(nodes, grant().draft_rule != SPECD_RULE_POINT_MASS, noise, weight_, verdict);
  }

 private:
  sdk::Rng rng_;
  std::vector<double> weight_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts drafted tokens with the target's probability of them",
                 sdk::verifier<Rejection>("rejection", "Guarantee `law` for chains"))
