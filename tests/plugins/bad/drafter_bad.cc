// A drafter that breaks one rule of the boundary, selected by `mode`. Written with the C tables,
// because the C++ wrapper would prevent it. Factory `bad` drafts chains, `bad_tree` variable trees,
// `bad_q` chains with q; flags are broken where probes were granted.
#include <specd/sdk/plugin.h>
#include <specd/sdk/tensor.h>

#include <sys/stat.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using specd::sdk::Column;

constexpr const char* kModes[] = {
    "token_negative",      // token -2
    "token_vocab",         // token == vocab_size
    "token_min",           // INT32_MIN
    "parent_forward",      // parent after its child          (bad_tree)
    "parent_self",         // parent == node                  (bad_tree)
    "parent_negative",     // parent -2                       (bad_tree)
    "count_huge",          // INT32_MAX nodes
    "count_over",          // one node more than the budget
    "count_negative",      // -1 nodes
    "status_unknown",      // propose() returns 12345
    "rounding",            // proposes correctly, but leaves the rounding mode changed
    "status_error",        // propose() returns SPECD_E_INTERNAL, with a report
    "status_deadline",     // propose() returns SPECD_E_DEADLINE; what it wrote is usable
    "status_one",          // seq_status of sequence 0 fails, the others draft
    "status_one_unknown",  // the same with an unknown status
    "flags_garbage",       // flags with unknown bits         (bad_tree)
    "deep_chain",          // deeper than max_depth           (bad_tree)
    "begin_fails",         // begin() fails for every sequence
    "update_fails",        // update() returns SPECD_E_INTERNAL
    "garbage",             // random numbers everywhere
    "wrong",               // well-formed but almost never right: token 0 everywhere
    "slow",                // proposes correctly, after 50 ms of computing
    "hangs",               // propose() does not return while the file `while` is there
    "q_good",              // the same probability for all tokens, as drawn     (bad_q)
    "q_unset",             // no tensor                                         (bad_q)
    "q_columns",           // rows of another length                            (bad_q)
    "q_row",               // a row after the last                              (bad_q)
    "q_row_negative",      // no row                                            (bad_q)
    "q_nan",               // a NaN                                             (bad_q)
    "q_infinite",          // plus infinity                                     (bad_q)
    "q_sum",               // not normalized                                    (bad_q)
    "q_zero",              // no probability for the token that was drawn       (bad_q)
};

struct Bad {
  const specd_host* host;
  std::string mode;
  bool tree;
  int32_t vocab;
  std::string wait_file;
  specd_drafter_grant grant{};
  uint64_t random = 1;
  std::vector<float> q{}, q_lse{};

  uint64_t next() {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return random >> 16;
  }
};
Bad* self(specd_drafter* d) { return reinterpret_cast<Bad*>(d); }

std::string read_mode(const specd_config* config) {
  const std::string mode = specd::sdk::Config(config).required_string("mode");
  if (std::find(std::begin(kModes), std::end(kModes), mode) == std::end(kModes)) {
    throw specd::sdk::Error(SPECD_E_CONFIG, "mode: unknown: " + mode);
  }
  return mode;
}

bool is_tree(const specd_factory* factory) { return std::strcmp(factory->id, "bad_tree") == 0; }

specd_status describe(const specd_factory* factory, const specd_host* host,
                      const specd_target_info*, const specd_config* config,
                      specd_drafter_caps* out) noexcept {
  return specd::sdk::guard(host, nullptr, -1, [&] {
    read_mode(config);
    out->struct_size = sizeof *out;
    out->tree_mode = is_tree(factory) ? SPECD_TREE_VARIABLE : SPECD_TREE_CHAIN;
    out->needs = SPECD_NEED_HOST_TOKENS | (is_tree(factory) ? SPECD_NEED_PROBES : 0);
    const bool draws = std::strcmp(factory->id, "bad_q") == 0;
    out->draft_rule = draws ? SPECD_RULE_IID : SPECD_RULE_POINT_MASS;
    if (draws) out->features = SPECD_FEATURE_Q;
    out->attach_modes = SPECD_ATTACH_FRESH | SPECD_ATTACH_TOKENS | SPECD_ATTACH_COLD;
    out->device_types = 1u << SPECD_DEV_CPU;
    out->max_nodes = 8;
    out->max_depth = is_tree(factory) ? 4 : 8;
  });
}

specd_status create(const specd_factory* factory, const specd_host* host,
                    const specd_create_args* args, specd_drafter** out) noexcept {
  return specd::sdk::guard(host, args->call, -1, [&] {
    *out = reinterpret_cast<specd_drafter*>(
        new Bad{host, read_mode(args->config), is_tree(factory),
                static_cast<int32_t>(args->target->vocab_size),
                specd::sdk::Config(args->config).string("while", "")});
  });
}

specd_status activate(specd_drafter* d, const specd_drafter_grant* grant) noexcept {
  self(d)->grant = *grant;
  return SPECD_OK;
}

specd_status begin(specd_drafter* d, const specd_begin_args* args) noexcept {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) {
    args->seq_state[i] = nullptr;
    if (self(d)->mode == "begin_fails") args->batch->seq_status[i] = SPECD_E_EXHAUSTED;
  }
  return SPECD_OK;
}

specd_status update(specd_drafter* d, const specd_update_args*) noexcept {
  return self(d)->mode == "update_fails" ? SPECD_E_INTERNAL : SPECD_OK;
}

// One row that all tokens were drawn from.
void hand_on_q(Bad& bad, const specd_propose_args* args) {
  const specd_proposal& out = *args->out;
  const Column<int32_t> row(out.q_row, args->batch->n_seqs, out.node_capacity + 1, "q_row");
  const std::string& mode = bad.mode;
  bad.q.assign(static_cast<size_t>(bad.vocab), 0);
  bad.q_lse.assign(1, std::log(static_cast<float>(bad.vocab)));
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    for (uint32_t i = 0; i <= out.node_capacity; ++i) row(s, i) = 0;
    if (mode == "q_row") row(s, 0) = 1;
    if (mode == "q_row_negative") row(s, 0) = -1;
  }
  if (mode == "q_unset") return;
  if (mode == "q_nan") bad.q[0] = std::nanf("");
  if (mode == "q_infinite") bad.q[0] = HUGE_VALF;
  if (mode == "q_sum") bad.q_lse[0] += 0.1f;
  if (mode == "q_zero") bad.q[1] = -HUGE_VALF;
  *out.q = specd::sdk::host_view(bad.q, 1, bad.vocab);
  *out.q_lse = specd::sdk::host_view(bad.q_lse, 1);
  if (mode == "q_columns") out.q->shape[1] -= 1;
}

specd_status propose(specd_drafter* d, const specd_propose_args* args) noexcept {
  Bad& bad = *self(d);
  const std::string& mode = bad.mode;
  const specd_proposal& out = *args->out;
  const int64_t n = args->batch->n_seqs, capacity = out.node_capacity;
  return specd::sdk::guard(bad.host, args->batch->call, -1, [&] {
    const Column<int32_t> count(out.n_nodes, n, 1, "n_nodes");
    const Column<int32_t> token(out.token, n, capacity, "token");
    const Column<int32_t> parent(out.parent, n, capacity, "parent");
    for (int64_t s = 0; s < n; ++s) {
      const int32_t budget = args->host_node_budget[s];
      count(s) = budget;
      // First a good proposal: token 1 in a chain below the root.
      for (int32_t i = 0; i < budget; ++i) {
        token(s, i) = mode == "wrong" ? 0 : 1 % bad.vocab;
        if (bad.tree) parent(s, i) = i % 4 == 0 ? -1 : i - 1;
      }
      if (budget == 0) continue;
      const int32_t victim = budget / 2;
      if (mode == "token_negative") token(s, victim) = -2;
      if (mode == "token_vocab") token(s, victim) = bad.vocab;
      if (mode == "token_min") token(s, victim) = INT32_MIN;
      if (bad.tree && mode == "parent_forward") parent(s, victim) = victim + 1;
      if (bad.tree && mode == "parent_self") parent(s, victim) = victim;
      if (bad.tree && mode == "parent_negative") parent(s, victim) = -2;
      if (bad.tree && mode == "deep_chain") {
        for (int32_t i = 0; i < budget; ++i) parent(s, i) = i - 1;
      }
      if (mode == "count_huge") count(s) = INT32_MAX;
      if (mode == "count_over") count(s) = budget + 1;
      if (mode == "count_negative") count(s) = -1;
      if (mode == "status_one" && s == 0) args->batch->seq_status[s] = SPECD_E_INTERNAL;
      if (mode == "status_one_unknown" && s == 0) args->batch->seq_status[s] = -77;
      if (mode == "flags_garbage" && out.flags != nullptr) {
        Column<int32_t>(out.flags, n, capacity, "flags")(s, victim) = 0x7ffffff0;
      }
      if (mode == "garbage") {
        count(s) = static_cast<int32_t>(bad.next());
        for (int32_t i = 0; i < budget; ++i) {
          token(s, i) = static_cast<int32_t>(bad.next());
          if (bad.tree) parent(s, i) = static_cast<int32_t>(bad.next());
          if (out.flags != nullptr) {
            Column<int32_t>(out.flags, n, capacity, "flags")(s, i) =
                static_cast<int32_t>(bad.next());
          }
        }
      }
    }
    const auto start = std::chrono::steady_clock::now();
    while (mode == "slow" &&
           std::chrono::steady_clock::now() - start < std::chrono::milliseconds(50)) {
    }
    // stat() is what a confined process may still do.
    struct stat unused {};
    while (mode == "hangs" && stat(bad.wait_file.c_str(), &unused) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (out.q_row != nullptr) hand_on_q(bad, args);
    if (mode == "rounding") std::fesetround(FE_UPWARD);
    if (mode == "status_error") throw specd::sdk::Error(SPECD_E_INTERNAL, "out of ideas");
    if (mode == "status_deadline") throw specd::sdk::Error(SPECD_E_DEADLINE, "too slow");
    if (mode == "status_unknown") throw specd::sdk::Error(12345, "a status nobody knows");
  });
}

void end(specd_drafter*, const specd_end_args*) noexcept {}
void deactivate(specd_drafter*) noexcept {}
void destroy(specd_drafter* d) noexcept { delete self(d); }

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
  "required": ["mode"], "properties": {"mode": {"type": "string"}, "while": {"type": "string"}}})";

}  // namespace

SPECD_SDK_PLUGIN(
    "Breaks the rules of the boundary, for tests of the host",
    specd_factory{sizeof(specd_factory), 0, "bad", "broken chains", kSchema, &kApi, nullptr},
    specd_factory{sizeof(specd_factory), 0, "bad_tree", "broken trees", kSchema, &kApi, nullptr},
    specd_factory{sizeof(specd_factory), 0, "bad_q", "broken q", kSchema, &kApi, nullptr})
