// A drafter that misbehaves in the call that its configuration names, its first proposal when none is
// named: by default it never comes back from it. Before it has a configuration, the environment
// variable SPECD_TEST_HANG_IN names the call.
#include <specd/sdk/plugin.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

struct Hang {
  const specd_host* host;
  std::string in, does;
  uint64_t bytes = 0;
};
Hang* self(specd_drafter* d) { return reinterpret_cast<Hang*>(d); }

[[noreturn]] void hang() {
  while (true) pause();
}

volatile int depth_max = INT32_MAX;  // the compiler must not see that there is no end

int fill_the_stack(int depth) {
  volatile char page[4096] = {};
  page[0] = static_cast<char>(depth);
  return depth == depth_max ? 0 : fill_the_stack(depth + 1) + page[0];
}

// Throws where the boundary forbids it.
__attribute__((noinline)) void throw_one() { throw std::string("from a plugin"); }

const specd_host* init_host = nullptr;
std::atomic<int> n_instances{0};

specd_status misbehave_in(const Hang& now, const char* name) {
  if (now.in != name) return SPECD_OK;
  const std::string& does = now.does;
  if (does == "fail") return SPECD_E_INTERNAL;
  if (does == "fail sequences") return SPECD_OK;
  if (does == "slow") {
    usleep(50'000);
    return SPECD_OK;
  }
  if (does == "return late") {
    sleep(4);
    return SPECD_OK;
  }
  if (does == "fork") {
    if (fork() == 0) {
      sleep(20);
      _exit(0);
    }
    return SPECD_OK;
  }
  if (does == "crash") *reinterpret_cast<volatile int*>(16) = 1;
  if (does == "crash on a thread")
    std::thread([] { *reinterpret_cast<volatile int*>(16) = 1; }).join();
  if (does == "abort on a thread") std::thread([] { std::abort(); }).join();
  if (does == "throw on a thread") std::thread([] { throw_one(); }).join();
  if (does == "overflow") fill_the_stack(0);
  if (does == "abort") std::abort();
  if (does == "log and exit") {
    for (int i = 1; i <= 90; ++i) {
      const std::string line = "line " + std::to_string(i);
      now.host->log(now.host, SPECD_LOG_WARN, line.data(), line.size());
    }
    std::exit(0);
  }
  if (does == "exit") std::exit(0);
  if (does == "_exit") _exit(0);
  if (does == "quick_exit") std::quick_exit(0);
  if (does == "throw") throw_one();
  constexpr char kText[] = "from here on it hangs";
  now.host->log(now.host, SPECD_LOG_WARN, kText, sizeof kText - 1);
  hang();
}

bool hangs_early(const char* name) {
  const char* in = std::getenv("SPECD_TEST_HANG_IN");
  return in != nullptr && in == std::string(name);
}

// Destroyed when the process exits.
struct Library {
  bool hangs = false;
  Library() {
    if (hangs_early("constructor")) hang();
  }
  ~Library() {
    while (hangs) pause();
  }
} library;

specd_status describe(const specd_factory*, const specd_host*, const specd_target_info*,
                      const specd_config* given, specd_drafter_caps* out) noexcept {
  const specd::sdk::Config config(given);
  if (config.string("in", "propose") == std::string("describe")) hang();
  out->bytes_fixed = static_cast<uint64_t>(config.i64("bytes", 0, 0, INT64_MAX));
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
    const specd::sdk::Config config(args->config);
    const Hang made{host, config.string("in", "propose"), config.string("does", "hang")};
    misbehave_in(made, "create");
    library.hangs = made.in == "exit";
    *out = reinterpret_cast<specd_drafter*>(new Hang(made));
    ++n_instances;
  });
}
specd_status activate(specd_drafter* d, const specd_drafter_grant*) noexcept {
  return misbehave_in(*self(d), "activate");
}
specd_status begin(specd_drafter*, const specd_begin_args* args) noexcept {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) args->seq_state[i] = nullptr;
  return SPECD_OK;
}
specd_status update(specd_drafter*, const specd_update_args*) noexcept { return SPECD_OK; }
specd_status propose(specd_drafter* d, const specd_propose_args* args) noexcept {
  if (const specd_status status = misbehave_in(*self(d), "propose"); status != SPECD_OK)
    return status;
  const specd::sdk::Column<int32_t> count(args->out->n_nodes, args->batch->n_seqs, 1, "n_nodes");
  for (uint32_t s = 0; s < args->batch->n_seqs; ++s) {
    count(s) = 0;
    if (self(d)->does == "fail sequences") args->batch->seq_status[s] = SPECD_E_INTERNAL;
  }
  return SPECD_OK;
}
void end(specd_drafter*, const specd_end_args*) noexcept {}
void deactivate(specd_drafter* d) noexcept { misbehave_in(*self(d), "deactivate"); }
void destroy(specd_drafter* d) noexcept {
  misbehave_in(*self(d), "destroy");
  delete self(d);
  --n_instances;
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
  "properties": {"in": {"type": "string", "default": "propose"},
                 "does": {"type": "string", "default": "hang"},
                 "bytes": {"type": "integer", "minimum": 0}}})";

constexpr specd_factory kFactory = {
    sizeof(specd_factory), 0, "hang", "misbehaves", kSchema, &kApi, nullptr};
constexpr const specd_factory* kFactories[] = {&kFactory};

specd_status init(const specd_host* host) noexcept {
  init_host = host;
  if (hangs_early("init")) hang();
  return SPECD_OK;
}

void deinit() noexcept {
  const std::string text = "deinit() beside " + std::to_string(n_instances) + " instances";
  init_host->log(init_host, SPECD_LOG_WARN, text.data(), text.size());
}

// Not by SPECD_SDK_PLUGIN(), whose init() is empty.
constexpr specd_plugin kTable = {sizeof(specd_plugin),
                                 1,
                                 SPECD_ABI_LAYOUT,
                                 SPECD_PLUGIN_ID,
                                 SPECD_PLUGIN_VERSION,
                                 SPECD_PLUGIN_VENDOR,
                                 SPECD_PLUGIN_LICENSE,
                                 "Misbehaves, for tests of the daemon",
                                 kFactories,
                                 &init,
                                 &deinit};

}  // namespace

extern "C" SPECD_EXPORT specd_status specd_plugin_entry_v0(const char* host_layout,
                                                           const specd_host*,
                                                           const specd_plugin** out) noexcept {
  return specd::sdk::enter(host_layout, &kTable, out);
}
