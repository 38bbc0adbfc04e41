// A verifier that breaks one rule of the boundary, selected by `mode`.
#include <specd/sdk/plugin.h>

#include <algorithm>
#include <string>

namespace {

using specd::sdk::Column;

constexpr const char* kModes[] = {
    "path_out_of_range",  // a node that does not exist
    "path_not_root",      // starts at a node whose parent is not the root
    "path_broken",        // the second node is no child of the first
    "path_repeats",       // the same node twice
    "path_probe",         // accepts the first probe node
    "next_negative",      // next_token -1
    "next_vocab",         // next_token == vocab_size
    "next_other",         // a vocabulary token other than the drawn one: only texts reveal it
    "count_huge",         // INT32_MAX accepted
    "count_over",         // one more than there are nodes
    "count_negative",     // -1 accepted
    "status_error",       // SPECD_E_INTERNAL
    "status_unknown",     // 12345
    "status_one",         // seq_status of sequence 0 fails
};

class Bad final : public specd::sdk::Verifier {
 public:
  static constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
    "required": ["mode"], "properties": {"mode": {"type": "string"}}})";

  static std::string mode_of(const specd::sdk::Config& config) {
    const std::string mode = config.required_string("mode");
    if (std::find(std::begin(kModes), std::end(kModes), mode) == std::end(kModes)) {
      throw specd::sdk::Error(SPECD_E_CONFIG, "mode: unknown: " + mode);
    }
    return mode;
  }
  static void describe(const specd::sdk::Context& context, specd_verifier_caps& caps) {
    mode_of(context.config);
    // Also a false claim.
    for (uint32_t& guarantee : caps.guarantee) guarantee = SPECD_GUARANTEE_IDENTICAL;
  }
  explicit Bad(const specd::sdk::Context& context)
      : Verifier(context), mode_(mode_of(context.config)) {}

  const std::string& mode() const { return mode_; }
  void verify(const specd::sdk::Nodes&, specd::sdk::Verdict&) {}

 private:
  std::string mode_;
};

// Replaces verify() of the SDK's table, which would prevent all of this.
specd_status verify(specd_verifier* v, const specd_verify_args* args) noexcept {
  Bad& bad = *reinterpret_cast<Bad*>(v);
  return specd::sdk::guard(bad.host(), args->batch->call, -1, [&] {
    const auto c = specd::sdk::VerifyColumns::of(*args);
    const std::string& mode = bad.mode();
    for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
      const specd::sdk::Nodes nodes(c, s);
      const int32_t n = nodes.size();
      c.n_accepted(s) = 0;
      c.next_token(s) = nodes.row_token(-1);
      const auto accept = [&](int32_t a, int32_t b) {
        if (c.path_capacity < 2) return;
        c.path(s, 0) = a;
        c.path(s, 1) = b;
        c.n_accepted(s) = b == -1 ? 1 : 2;
      };
      if (mode == "path_out_of_range") accept(n + 5, -1);
      for (int32_t i = 0; i < n; ++i) {
        if (mode == "path_not_root" && nodes.parent(i) >= 0) accept(i, -1);
        if (mode == "path_broken" && i > 0 && nodes.parent(i) != 0 && nodes.parent(0) == -1) {
          accept(0, i);
        }
        if (mode == "path_repeats" && nodes.parent(i) == -1) accept(i, i);
        if (mode == "path_probe" && nodes.is_probe(i)) accept(i, -1);
      }
      if (mode == "next_negative") c.next_token(s) = -1;
      if (mode == "next_vocab") c.next_token(s) = bad.vocab_size();
      if (mode == "next_other") c.next_token(s) = (nodes.row_token(-1) + 1) % bad.vocab_size();
      if (mode == "count_huge") c.n_accepted(s) = INT32_MAX;
      if (mode == "count_over") c.n_accepted(s) = n + 1;
      if (mode == "count_negative") c.n_accepted(s) = -1;
      if (mode == "status_one" && s == 0) args->batch->seq_status[s] = SPECD_E_INTERNAL;
    }
    if (mode == "status_error") throw specd::sdk::Error(SPECD_E_INTERNAL, "undecided");
    if (mode == "status_unknown") throw specd::sdk::Error(12345, "a status nobody knows");
  });
}

constexpr specd_verifier_api make_api() {
  specd_verifier_api api = specd::sdk::VerifierTable<Bad>::make();
  api.verify = &verify;
  return api;
}
constexpr specd_verifier_api kApi = make_api();

}  // namespace

SPECD_SDK_PLUGIN("Breaks the rules of the boundary, for tests of the host",
                 specd_factory{sizeof(specd_factory), 0, "bad", "broken verdicts", Bad::kSchema,
                               nullptr, &kApi})
