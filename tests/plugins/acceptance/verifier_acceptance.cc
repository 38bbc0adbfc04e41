// Rejection as verifier_rejection has it, with counters for the identity that its acceptance must
// satisfy: a draft is accepted with the probability sum of min(p, q) of its place.
#include <specd/sdk/plugin.h>
#include <specd/sdk/rng.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "../../../plugins/verifier_rejection/rejection.h"

namespace {

namespace sdk = specd::sdk;

class Acceptance final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;
  static constexpr int kDepths = 4;

  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_RNG, SPECD_SERVICE_METRICS};
    caps.tree_modes = 1u << SPECD_TREE_CHAIN;
    caps.guarantee[SPECD_RULE_IID] = SPECD_GUARANTEE_LAW;
    caps.services = kServices;
    caps.n_services = 2;
    caps.needs = SPECD_NEED_LAW | SPECD_NEED_Q;
  }

  explicit Acceptance(const sdk::Context& context) : Verifier(context), rng_(*this) {
    for (int depth = 0; depth < kDepths; ++depth) {
      for (const char* what : {"reached", "accepted", "overlap", "variance"}) {
        metrics_.push_back(std::make_unique<sdk::Metric>(
            *this, SPECD_METRIC_COUNTER, (what + std::to_string(depth)).c_str(), "of this depth"));
      }
    }
  }

  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    sdk::Noise noise(rng_, nodes.batch(), nodes.index(), nodes.root_position());
    struct Counted {
      sdk::Verdict& out;
      int accepted = 0;
      void accept(int32_t node) { ++accepted, out.accept(node); }
      void next_token(int32_t token) { out.next_token(token); }
    } counted{verdict};
    specd::judge_chain(nodes, true, noise, weight_, counted);
    const int reached = std::min({counted.accepted + 1, nodes.size(), kDepths});
    for (int depth = 0; depth < reached; ++depth) {
      const sdk::Law p = nodes.law(depth - 1), q = nodes.q(depth - 1);
      double overlap = 0;
      for (int32_t t = 0; t < p.vocab_size(); ++t) overlap += std::min(p.p(t), q.p(t));
      const auto record = [&](int which, double value) {
        metrics_[static_cast<std::size_t>(4 * depth + which)]->record(value);
      };
      record(0, 1);
      record(1, depth < counted.accepted ? 1 : 0);
      record(2, overlap);
      record(3, std::max(0.0, overlap * (1 - overlap)));
    }
  }

 private:
  sdk::Rng rng_;
  std::vector<double> weight_;
  std::vector<std::unique_ptr<sdk::Metric>> metrics_;
};

}  // namespace

SPECD_SDK_PLUGIN("Measures acceptance, for tests",
                 sdk::verifier<Acceptance>("acceptance", "rejection with counters"))
