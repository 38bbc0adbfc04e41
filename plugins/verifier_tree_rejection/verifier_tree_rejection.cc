#include <specd/sdk/plugin.h>
#include <specd/sdk/rng.h>

#include <optional>

#include "tree_rejection.h"

namespace {

namespace sdk = specd::sdk;

class Plugin final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_RNG};
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_LAW;
    caps.services = kServices;
    caps.n_services = 1;
    caps.needs = SPECD_NEED_LAW | SPECD_NEED_Q;
  }

  explicit Plugin(const sdk::Context& context) : Verifier(context), rng_(*this) {}

  void activated() { rule_.emplace(grant().draft_rule); }
  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    sdk::Noise noise(rng_, nodes.batch(), nodes.index(), nodes.root_position());
    rule_->judge(nodes, noise, verdict);
  }

 private:
  sdk::Rng rng_;
  std::optional<specd::TreeRejection> rule_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts drafted tokens by rejection, child by child",
                 sdk::verifier<Plugin>("tree_rejection",
                                       "Guarantee `law` for trees of every draft rule"))
