// A drafter that never comes back from the call that its configuration names: its first proposal
// when none is named.
#include <specd/sdk/plugin.h>
#include <unistd.h>

#include <string>

namespace {

struct Hang {
  const specd_host* host;
  std::string in;
};
Hang* self(specd_drafter* d) { return reinterpret_cast<Hang*>(d); }

void hang_if_in(const Hang& hang, const char* name) {
  if (hang.in != name) return;
  constexpr char kText[] = "from here on it hangs";
  hang.host->log(hang.host, SPECD_LOG_WARN, kText, sizeof kText - 1);
  while (true) pause();
}

// Destroyed when the process exits.
struct Library {
  bool hangs = false;
  ~Library() {
    while (hangs) pause();
  }
} library;

specd_status describe(const specd_factory*, const specd_host*, const specd_target_info*,
                      const specd_config*, specd_drafter_caps* out) noexcept {
  out->struct_size = sizeof *out;
  out->tree_mode = SPECD_TREE_CHAIN;
  out->needs = SPECD_NEED_HOST_TOKENS;
  out->draft_rule = SPECD_RULE_POINT_MASS;
  out->attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD;
  out->device_types = 1u << SPECD_DEV_CPU;
  out->max_nodes = out->max_depth = 4;
  return SPECD_OK;
}
specd_status create(const specd_factory*, const specd_host* host, const specd_create_args* args,
                    specd_drafter** out) noexcept {
  return specd::sdk::guard(host, args->call, -1, [&] {
    const Hang hang{host, specd::sdk::Config(args->config).string("in", "propose")};
    hang_if_in(hang, "create");
    library.hangs = hang.in == "exit";
    *out = reinterpret_cast<specd_drafter*>(new Hang(hang));
  });
}
specd_status activate(specd_drafter* d, const specd_drafter_grant*) noexcept {
  hang_if_in(*self(d), "activate");
  return SPECD_OK;
}
specd_status begin(specd_drafter*, const specd_begin_args* args) noexcept {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) args->seq_state[i] = nullptr;
  return SPECD_OK;
}
specd_status update(specd_drafter*, const specd_update_args*) noexcept { return SPECD_OK; }
specd_status propose(specd_drafter* d, const specd_propose_args* args) noexcept {
  hang_if_in(*self(d), "propose");
  const specd::sdk::Column<int32_t> count(args->out->n_nodes, args->batch->n_seqs, 1, "n_nodes");
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) count(s) = 0;
  return SPECD_OK;
}
void end(specd_drafter*, const specd_end_args*) noexcept {}
void deactivate(specd_drafter* d) noexcept { hang_if_in(*self(d), "deactivate"); }
void destroy(specd_drafter* d) noexcept {
  hang_if_in(*self(d), "destroy");
  delete self(d);
}

constexpr specd_drafter_api kApi = {sizeof(specd_drafter_api),
                                    0,
                                    &describe,
                                    &create,
                                    &activate,
                                    nullptr,
                                    &begin,
                                    &update,
                                    &propose,
                                    &end,
                                    &deactivate,
                                    &destroy};
constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
  "properties": {"in": {"type": "string", "default": "propose"}}})";

}  // namespace

SPECD_SDK_PLUGIN("Never comes back, for a test of the daemon",
                 specd_factory{sizeof(specd_factory), 0, "hang", "hangs", kSchema, &kApi, nullptr})
