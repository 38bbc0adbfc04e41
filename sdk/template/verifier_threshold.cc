#include <specd/sdk/plugin.h>

// Accepts a drafted token when the target would have drawn it, or gives it at least the probability
// `least`. More drafts are accepted than by the target's own draws alone; the text changes.
class Threshold final : public specd::sdk::Verifier {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "properties": {"least": {"type": "number", "minimum": 0, "maximum": 1}}})";
  static void describe(const specd::sdk::Context& context, specd_verifier_caps& caps) {
    (void)least_of(context);  // a bad value is refused here, before a route is made
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_NONE;
    caps.needs = SPECD_NEED_LAW;
  }
  explicit Threshold(const specd::sdk::Context& context)
      : Verifier(context), least_(least_of(context)) {}

  void verify(const specd::sdk::Nodes& nodes, specd::sdk::Verdict& verdict) {
    int32_t at = -1;  // the root
    for (int32_t node = 0; node < nodes.size(); ++node) {
      if (nodes.parent(node) != at || nodes.is_probe(node) || !nodes.can_draw(node)) continue;
      const int32_t token = nodes.token(node);
      if (token == nodes.row_token(at) || nodes.law(at).p(token) >= least_) {
        verdict.accept(at = node);
      }
    }
    verdict.next_token(nodes.row_token(at));
  }

 private:
  static double least_of(const specd::sdk::Context& context) {
    return context.config.f64("least", 0.3, 0, 1);
  }
  const double least_;
};

SPECD_SDK_PLUGIN("A threshold",
                 specd::sdk::verifier<Threshold>("threshold", "accepts what is likely enough"))
