#include <specd/sdk/plugin.h>

#include "relaxed.h"

namespace {

namespace sdk = specd::sdk;

class Relaxed final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = R"({
    "type": "object",
    "additionalProperties": false,
    "properties": {
      "top_n": {"type": "integer", "minimum": 1},
      "delta": {"type": "number", "minimum": 0, "maximum": 1},
      "begin_token": {"type": "integer", "minimum": 0},
      "end_token": {"type": "integer", "minimum": 0}
    }
  })";

  static void describe(const sdk::Context& context, specd_verifier_caps& caps) {
    (void)rule_of(context);
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_NONE;
    caps.needs = SPECD_NEED_LAW;
  }

  explicit Relaxed(const sdk::Context& context) : Verifier(context), rule_(rule_of(context)) {}

  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    int64_t& state = nodes.state();
    state = specd::relaxed_state(rule_, state, nodes.text(), nodes.text_len());
    specd::judge_relaxed(nodes, rule_, rule_.begin_token < 0 || (state & 1) != 0, verdict);
  }

 private:
  static specd::RelaxedRule rule_of(const sdk::Context& context) {
    specd::RelaxedRule rule;
    const int64_t vocab = context.target->vocab_size;
    const auto token = [&](const char* key) {
      return static_cast<int32_t>(context.config.i64(key, -1, 0, vocab - 1));
    };
    rule.top_n = static_cast<int32_t>(context.config.i64("top_n", rule.top_n, 1, vocab));
    rule.delta = context.config.f64("delta", rule.delta, 0, 1);
    rule.begin_token = token("begin_token");
    rule.end_token = token("end_token");
    if ((rule.begin_token < 0) != (rule.end_token < 0)) {
      throw sdk::Error(SPECD_E_CONFIG,
                       std::string(rule.begin_token < 0 ? "begin_token" : "end_token") +
                           ": set both begin_token and end_token, or none");
    }
    if (rule.begin_token >= 0 && rule.begin_token == rule.end_token) {
      throw sdk::Error(SPECD_E_CONFIG, "end_token: equals begin_token");
    }
    return rule;
  }

  const specd::RelaxedRule rule_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts drafted tokens that are nearly as likely as the target's best",
                 sdk::verifier<Relaxed>("relaxed", "Relaxed acceptance; changes the text"))
