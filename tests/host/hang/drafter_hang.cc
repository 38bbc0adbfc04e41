// A drafter whose first proposal never comes back.
#include <specd/sdk/plugin.h>
#include <unistd.h>

namespace {

int only = 0;
const specd_host* the_host = nullptr;

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
specd_status create(const specd_factory*, const specd_host* host, const specd_create_args*,
                    specd_drafter** out) noexcept {
  the_host = host;
  *out = reinterpret_cast<specd_drafter*>(&only);
  return SPECD_OK;
}
specd_status activate(specd_drafter*, const specd_drafter_grant*) noexcept { return SPECD_OK; }
specd_status begin(specd_drafter*, const specd_begin_args* args) noexcept {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) args->seq_state[i] = nullptr;
  return SPECD_OK;
}
specd_status update(specd_drafter*, const specd_update_args*) noexcept { return SPECD_OK; }
specd_status propose(specd_drafter*, const specd_propose_args*) noexcept {
  constexpr char kText[] = "from here on it hangs";
  the_host->log(the_host, SPECD_LOG_WARN, kText, sizeof kText - 1);
  while (true) pause();
}
void end(specd_drafter*, const specd_end_args*) noexcept {}
void deactivate(specd_drafter*) noexcept {}
void destroy(specd_drafter*) noexcept {}

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

}  // namespace

SPECD_SDK_PLUGIN("Never comes back, for a test of the daemon",
                 specd_factory{sizeof(specd_factory), 0, "hang", "hangs", nullptr, &kApi, nullptr})
