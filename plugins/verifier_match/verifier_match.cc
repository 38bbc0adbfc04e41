// Accepts exactly the nodes equal to what plain decoding emits after their parent. The text is then
// that of plain decoding whatever the drafter did, so every draft rule gets `identical`.
#include <specd/sdk/plugin.h>

namespace {

class Match final : public specd::sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const specd::sdk::Context&, specd_verifier_caps& caps) {
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_IDENTICAL;
  }

  using Verifier::Verifier;

  // One pass is enough: parents come before their children, so the next node of the path always
  // lies after the last one. Of equal siblings the first wins; a probe is never accepted.
  void verify(const specd::sdk::Nodes& nodes, specd::sdk::Verdict& verdict) {
    int32_t last = -1;
    int32_t wanted = nodes.row_token(last);
    for (int32_t node = 0; node < nodes.size(); ++node) {
      if (nodes.parent(node) != last || nodes.token(node) != wanted || nodes.is_probe(node)) {
        continue;
      }
      verdict.accept(node);
      last = node;
      wanted = nodes.row_token(last);
    }
    verdict.next_token(wanted);
  }
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts what equals plain decoding, token by token",
                 specd::sdk::verifier<Match>("match", "Guarantee `identical` for every draft rule"))
