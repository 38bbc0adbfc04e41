// Accepts exactly the nodes that equal the token plain decoding emits after their parent.
// The text is then that of plain decoding whatever the drafter proposed, so every draft rule
// gets `identical`.
#include <specd/plugin_api/services/ops.h>
#include <specd/sdk/plugin.h>

namespace {

namespace sdk = specd::sdk;

class Match final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    static const char* const kServices[] = {SPECD_SERVICE_OPS};
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_IDENTICAL;
    caps.services = kServices;
    caps.n_services = 1;
    caps.device_types |= 1u << SPECD_DEV_CUDA;
    caps.features = SPECD_FEATURE_CAPTURE;
  }

  explicit Match(const sdk::Context& context)
      : Verifier(context), ops_(sdk::require_service<specd_ops>(host(), SPECD_SERVICE_OPS)) {}

  // The wanted token below a node is its row's token. Among equal siblings the first wins; a probe
  // is never accepted. The row's token at the end of the path is the next token.
  void verify_tensors(const specd_verify_args& in) {
    specd_walk_args walk{};
    walk.struct_size = sizeof walk;
    walk.skip_flags = SPECD_NODE_PROBE;
    walk.n_nodes = in.proposal->n_nodes;
    walk.token = in.proposal->token;
    walk.parent = in.proposal->parent;
    walk.flags = in.proposal->flags;
    walk.wanted = in.row_token;
    walk.n_path = in.out->n_accepted;
    walk.path = in.out->path;
    walk.last = in.out->next_token;
    const specd_status status = ops_->walk(host(), in.batch->call, &walk);
    if (status != SPECD_OK) throw sdk::Error(status, "the host refused ops.walk()");
  }

 private:
  const specd_ops* ops_;
};

}  // namespace

SPECD_SDK_PLUGIN("Accepts the nodes that equal plain decoding, token by token",
                 sdk::verifier<Match>("match", "Guarantee `identical` for every draft rule"))
