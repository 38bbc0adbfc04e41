// A drafter that ends its process, or tries what a confined process may not, while the file `while` is there:
// `mode` says how. Only for `isolation: process`. Otherwise it drafts token 1.
#include <specd/sdk/plugin.h>
#include <specd/sdk/column.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

using specd::sdk::Column;

// While the library is loaded.
struct Constructor {
  Constructor() {
    const char* const wanted = getenv("SPECD_TEST_CONSTRUCTOR");
    const std::string mode = wanted == nullptr ? "" : wanted;
    if (mode == "throws") throw std::runtime_error("a constructor that throws");
    while (mode == "sleeps") sleep(1);
  }
} const constructor;

struct Fatal {
  std::string mode, file;
  specd_drafter_grant grant{};
};
Fatal* self(specd_drafter* d) { return reinterpret_cast<Fatal*>(d); }

[[gnu::noinline]] int overflow_stack(volatile char* before, int depth) {
  volatile char page[4096];
  page[0] = before == nullptr ? 1 : before[0];
  return depth < 0 ? 0 : overflow_stack(page, depth + 1) + page[0];
}

// The optimizer must not see what comes.
template <typename T>
T* hidden(T* pointer) {
  T* volatile its = pointer;
  return its;
}

// `left`: the file that gets the number of what is left behind; "" = none.
void do_it(const std::string& mode, const std::string& left_file = "") {
  const auto note = [left_file](pid_t number) {
    if (!left_file.empty()) std::ofstream(left_file) << number << std::endl;
  };
  if (mode == "aborts") abort();
  if (mode == "exits") exit(0);
  if (mode == "segfaults") *hidden(reinterpret_cast<int*>(8)) = 1;
  if (mode == "overflows_the_stack") (void)overflow_stack(nullptr, 0);
  if (mode == "takes_all_memory") {
    std::vector<std::unique_ptr<char[]>> all;
    while (true) {
      all.push_back(std::make_unique_for_overwrite<char[]>(size_t{64} << 20));
      all.back()[0] = 1;
    }
  }
  if (mode == "frees_twice") {
    char* const memory = static_cast<char*>(malloc(2000));
    char* const again = hidden(memory);
    free(memory);
    free(again);
  }
  if (mode == "overflows_the_heap") {
    char* const memory = hidden(static_cast<char*>(malloc(2000)));
    memset(memory, 0xff, 2016);  // over the size of what is behind it
    free(memory);
  }
  if (mode == "forks") {
    const pid_t left = fork();
    while (left == 0) pause();
    note(left);
  }
  if (mode == "starts_a_thread") {
    static std::atomic<pid_t> left{0};
    std::thread([] {
      left = gettid();
      while (true) sleep(1);
    }).detach();
    while (left == 0) std::this_thread::yield();
    note(left);
  }
  if (mode == "opens_a_socket") (void)socket(AF_INET, SOCK_STREAM, 0);
  if (mode == "kills_its_parent") (void)kill(getppid(), SIGKILL);
  if (mode == "closes_all") {
    for (int fd = 0; fd < 64; ++fd) (void)close(fd);
  }
  if (mode == "stops") {
    while (true) sleep(1);
  }
  // Not fatal, and so only told when it succeeds.
  if (mode == "opens_a_file" && open("/etc/passwd", O_RDONLY) >= 0) abort();
}

specd_status describe(const specd_factory*, const specd_host*, const specd_target_info*,
                      const specd_config*, specd_drafter_caps* out) noexcept {
  out->struct_size = sizeof *out;
  out->tree_mode = SPECD_TREE_CHAIN;
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
    const std::string at = config.string("at", "propose");
    auto made =
        std::make_unique<Fatal>(Fatal{config.required_string("mode"), config.string("while", "")});
    if (at == "create") do_it(made->mode, config.string("left", ""));
    *out = reinterpret_cast<specd_drafter*>(made.release());
  });
}

specd_status activate(specd_drafter* d, const specd_drafter_grant* grant) noexcept {
  self(d)->grant = *grant;
  return SPECD_OK;
}

specd_status begin(specd_drafter*, const specd_begin_args* args) noexcept {
  for (uint32_t i = 0; i < args->batch->n_seqs; ++i) args->seq_state[i] = nullptr;
  return SPECD_OK;
}

specd_status propose(specd_drafter* d, const specd_propose_args* args) noexcept {
  const Fatal& fatal = *self(d);
  struct stat unused {};
  if (stat(fatal.file.c_str(), &unused) == 0) do_it(fatal.mode);
  const int64_t n = args->batch->n_seqs;
  const Column<int32_t> token(args->out->token, n, args->out->node_capacity, "token");
  const Column<int32_t> count(args->out->n_nodes, n, 1, "n_nodes");
  const Column<const int32_t> budget(args->node_budget, n, 1, "node_budget");
  for (int64_t s = 0; s < n; ++s) {
    count(s) = budget(s);
    for (int64_t i = 0; i < budget(s); ++i) token(s, i) = 1;
  }
  return SPECD_OK;
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
                                    nullptr,
                                    &propose,
                                    &end,
                                    &deactivate,
                                    &destroy};
constexpr const char* kSchema = R"({"type": "object", "additionalProperties": false,
  "required": ["mode"], "properties": {"mode": {"type": "string"}, "while": {"type": "string"},
  "at": {"type": "string"}, "left": {"type": "string"}}})";

}  // namespace

SPECD_SDK_PLUGIN("Ends its process, for tests of the host",
                 specd_factory{sizeof(specd_factory), 0, "fatal", "chains", kSchema, &kApi,
                               nullptr})
