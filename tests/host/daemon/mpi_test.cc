// The daemon as several processes under mpirun: the texts of one, and what is left when a rank is lost.
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kTimeoutSeconds = 2;

// Every drafter of the tree, on the zoo's target.
constexpr char kEveryDrafter[] = R"(
engine: {threads: 2, max_sequences: 8, rank_timeout_seconds: 60}
model: {name: pico, path: ZOO/pico-target}
draft_models: [{name: small, path: ZOO/pico-draft}]
plugins: {directories: [PLUGINS], cache_directory: cache}
routes:
  lookup: {drafter: {plugin: specd.drafter.prompt_lookup}, verifier: {plugin: specd.verifier.match}}
  suffix: {drafter: {plugin: specd.drafter.suffix}, verifier: {plugin: specd.verifier.match}}
  lookahead: {drafter: {plugin: specd.drafter.lookahead}, verifier: {plugin: specd.verifier.match}, draft_nodes_max: 60}
  small:
    drafter: {plugin: specd.drafter.draft_target, config: {model: small, draft_tokens: 3}}
    verifier: {plugin: specd.verifier.match}
  eagle3:
    drafter: {plugin: specd.drafter.eagle3, config: {weights: ZOO/pico-eagle3, total_token: 17, depth: 4, top_k: 4}}
    verifier: {plugin: specd.verifier.match}
    draft_nodes_max: 16
  eagle2:
    drafter: {plugin: specd.drafter.eagle, config: {weights: ZOO/pico-eagle2, mode: chain, draft_tokens: 3}}
    verifier: {plugin: specd.verifier.match}
  medusa:
    drafter: {plugin: specd.drafter.medusa, config: {weights: ZOO/pico-medusa}}
    verifier: {plugin: specd.verifier.match}
    draft_nodes_max: 20
  redrafter:
    drafter: {plugin: specd.drafter.redrafter, config: {weights: ZOO/pico-redrafter}}
    verifier: {plugin: specd.verifier.match}
    draft_nodes_max: 20
)";

const std::vector<std::string> kRoutes{"lookup", "suffix", "lookahead", "small",
                                       "eagle3", "eagle2", "medusa",    "redrafter"};

// mpirun refuses to be run by root unless it is told twice.
void allow_root() {
  setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
  setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

std::vector<std::string> under_mpirun(int n, std::vector<std::string> words) {
  words.insert(words.begin(), {SPECD_MPIRUN, "-n", std::to_string(n), "--oversubscribe"});
  return words;
}

std::vector<std::string> split_settings(int n_ranks, int n_stages) {
  return {"engine.tensor_parallel_size=" + std::to_string(n_ranks),
          "engine.pipeline_parallel_size=" + std::to_string(n_stages)};
}

// In a child: mpirun may be run by root, and devices are those of this library.
std::function<void()> with_devices_of(const std::string& library) {
  return [library] {
    allow_root();
    if (library.empty()) return;
    setenv("SPECD_CUDA_LIBRARY", library.c_str(), 1);
    setenv("SPECD_FAKE_CUDA", "devices=4,open", 1);
    setenv("SPECD_EMULATED_CUDA", "devices=4", 1);
  };
}

// `library`: each rank has one of its devices; empty = they are on the CPU.
void spawn_ranks(Daemon& daemon, int n_ranks, int n_stages, std::vector<std::string> settings = {},
                 const std::string& library = "") {
  for (const std::string& each : split_settings(n_ranks, n_stages)) settings.push_back(each);
  std::string devices;
  for (int i = 0; i < n_ranks * n_stages; ++i) {
    devices += (i == 0 ? "cuda:" : ", cuda:") + std::to_string(i);
  }
  if (!library.empty()) settings.push_back("devices=[" + devices + "]");
  daemon.spawn_words(under_mpirun(n_ranks * n_stages, daemon.serve_words(settings)),
                     with_devices_of(library));
}

struct ProcessState {
  char state = 0;  // 0 = there is none, 'Z' = it has ended
  int parent = 0;
};
ProcessState state_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  std::string line;
  std::getline(file, line);
  ProcessState found;
  const size_t behind_name = line.rfind(')');
  if (behind_name == std::string::npos) return found;
  if (std::sscanf(line.c_str() + behind_name + 1, " %c %d", &found.state, &found.parent) != 2) {
    return {};
  }
  return found;
}
bool runs(pid_t pid) {
  const char state = state_of(std::to_string(pid)).state;
  return state != 0 && state != 'Z';
}
std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    if (state_of(name).parent == parent) children.push_back(std::stoi(name));
  }
  return children;
}

// The texts of all routes, greedy and seeded, at once: more than there are places.
std::map<std::string, std::string> texts_of(const Daemon& daemon,
                                            const std::vector<std::string>& routes) {
  std::map<std::string, std::string> texts;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (const std::string& route : routes) {
    for (const float temperature : {0.0F, 0.8F}) {
      threads.emplace_back([&, route, temperature] {
        Client client = daemon.client();
        const auto made = client.generate(make_request(route, 40, temperature), {});
        const std::lock_guard lock(mutex);
        texts[route + (temperature == 0 ? " greedy" : " seeded")] =
            made.ok() ? made.value().text : made.status().to_string();
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return texts;
}

// `kvs`: sizes of the cache.
void write_the_texts_of_one_process(const std::vector<std::string>& kvs,
                                    const std::string& library) {
  std::map<std::string, std::string> plain;
  {
    Daemon daemon;
    daemon.write_config_text(kEveryDrafter);
    ASSERT_TRUE(daemon.start()) << daemon.output();
    plain = texts_of(daemon, {"off"});
    EXPECT_EQ(daemon.stop(), 0);
  }
  ASSERT_NE(plain["off greedy"], plain["off seeded"]);
  for (const auto& [n_ranks, n_stages] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {2, 2}}) {
    for (const std::string& kv : kvs) {
      const std::string what =
          std::to_string(n_stages) + " stages of " + std::to_string(n_ranks) + ", " + kv;
      Daemon daemon;
      daemon.write_config_text(kEveryDrafter);
      spawn_ranks(daemon, n_ranks, n_stages, {kv}, library);
      ASSERT_TRUE(daemon.wait_ready()) << what << daemon.output();
      // The prompt is in the prefix cache the second time; the engine's tests have that on devices too.
      for (int round = 1; round <= (library.empty() ? 2 : 1); ++round) {
        for (const auto& [name, text] : texts_of(daemon, kRoutes)) {
          const bool is_greedy = name.find("greedy") != std::string::npos;
          EXPECT_EQ(text, plain[is_greedy ? "off greedy" : "off seeded"])
              << what << ", " << name << ", round " << round;
        }
        // Between the rounds one route changes.
        v1::ApplyRouteRequest change;
        change.set_definition(
            "name: lookup\ndrafter:\n  plugin: specd.drafter.prompt_lookup\n"
            "  config: {num_speculative_tokens: 2}\nverifier: {plugin: specd.verifier.match}\n");
        change.set_source("x.yaml");
        EXPECT_TRUE(daemon.client().apply_route(change).ok());
      }
      const auto routes = daemon.client().routes();
      ASSERT_TRUE(routes.ok());
      for (const v1::Route& route : routes.value().routes()) {
        EXPECT_EQ(route.drafted(), route.accepted() + route.rejected() + route.discarded())
            << what << ", " << route.name();
      }
      const std::vector<pid_t> ranks = children_of(daemon.pid());
      EXPECT_EQ(ranks.size(), static_cast<size_t>(n_ranks * n_stages));
      EXPECT_EQ(daemon.stop(SIGUSR1), 0) << "SIGUSR1 drains: " << daemon.output();
      for (const pid_t rank : ranks) EXPECT_FALSE(runs(rank));
      EXPECT_FALSE(fs::exists(daemon.socket()));
    }
  }
}

// A text alone takes a third of 26 pages.
TEST(Mpi, writes_the_texts_of_one_process_with_every_drafter) {
  write_the_texts_of_one_process({"model.kv.pages=600", "model.kv.pages=26"}, "");
}

TEST(Mpi, writes_the_texts_of_one_process_on_devices) {
  write_the_texts_of_one_process({"model.kv.pages=26"}, SPECD_TEST_FAKE_CUDA);
}

// A daemon for a reference checkpoint, which have four heads.
void write_family_config(Daemon& daemon, const std::string& family) {
  const std::string models = std::string(SPECD_SOURCE_DIR) + "/tests/reference/models/";
  const fs::path folder = daemon.folder() / family;
  fs::create_directory(folder);
  for (const auto& entry : fs::directory_iterator(models + family)) fs::copy(entry.path(), folder);
  if (!fs::exists(folder / "tokenizer.json")) {
    fs::copy(models + "tokenizer.json", folder / "tokenizer.json");
  }
  daemon.write_config_text(
      "engine: {threads: 2, rank_timeout_seconds: 60}\nmodel: {name: m, path: " + folder.string() +
      "}\nplugins: {directories: [PLUGINS], cache_directory: cache}\n");
}

TEST(Mpi, writes_the_texts_of_one_process_with_four_ranks) {
  for (const std::string family : {"llama31", "qwen3"}) {
    std::map<std::string, std::string> plain;
    for (const int n_ranks : {1, 4}) {
      Daemon daemon;
      write_family_config(daemon, family);
      if (n_ranks == 1) {
        daemon.spawn();
      } else {
        spawn_ranks(daemon, n_ranks, 1);
      }
      ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
      const auto texts = texts_of(daemon, {"off"});
      if (n_ranks == 1) plain = texts;
      EXPECT_EQ(texts, plain) << family;
      EXPECT_EQ(daemon.stop(n_ranks == 1 ? SIGTERM : SIGUSR1), 0) << daemon.output();
    }
  }
}

#ifdef SPECD_TEST_EMULATED_CUDA
TEST(Mpi, writes_the_texts_of_one_emulated_device_on_several) {
  std::string plain;
  for (const auto& [n_ranks, n_stages] : std::vector<std::pair<int, int>>{{1, 1}, {2, 1}, {2, 2}}) {
    Daemon daemon;
    write_family_config(daemon, "llama_bias");
    if (n_ranks == 1) {
      daemon.spawn_words(daemon.serve_words({"devices=[cuda:0]"}),
                         with_devices_of(SPECD_TEST_EMULATED_CUDA));
    } else {
      spawn_ranks(daemon, n_ranks, n_stages, {}, SPECD_TEST_EMULATED_CUDA);
    }
    ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
    v1::GenerateRequest request = make_request("off", 8, 0.8F);
    request.set_text("ranks");
    const auto made = daemon.client().generate(request, {});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    if (n_ranks == 1) plain = made.value().text;
    EXPECT_EQ(made.value().text, plain) << n_stages << " stages of " << n_ranks;
    EXPECT_EQ(daemon.stop(n_ranks == 1 ? SIGTERM : SIGUSR1), 0) << daemon.output();
  }
}
#endif

// Of every row, and of taps at every point.
TEST(Mpi, computes_the_bits_of_one_process) {
  const std::string tree = SPECD_SOURCE_DIR;
  const auto printed = [](const std::string& model, int n_ranks, int n_stages) {
    Daemon program;
    std::vector<std::string> words{SPECD_TEST_MPI_FORWARDS, model, std::to_string(n_ranks),
                                   std::to_string(n_stages)};
    const int n = n_ranks * n_stages;
    program.spawn_words(n == 1 ? words : under_mpirun(n, words), allow_root);
    EXPECT_EQ(program.wait(), 0) << program.output();
    return program.output();
  };
  const std::string zoo = tree + "/configs/zoo/pico-target";
  const std::string one = printed(zoo, 1, 1);
  EXPECT_NE(one.find("rows of logits"), std::string::npos) << one;
  for (const auto& [n_ranks, n_stages] : std::vector<std::pair<int, int>>{{2, 1}, {1, 2}, {2, 2}}) {
    EXPECT_EQ(printed(zoo, n_ranks, n_stages), one) << n_stages << " stages of " << n_ranks;
  }
  const std::string family = tree + "/tests/reference/models/llama_bias";
  EXPECT_EQ(printed(family, 4, 1), printed(family, 1, 1));
}

// ---- loss ----------------------------------------------------------------------------------------

struct Loss {
  bool of_lead;
  int signal;
  seconds answer_max, end_max;
  bool on_devices = false;
};

class MpiLoss : public testing::TestWithParam<Loss> {};

constexpr Loss kLosses[] = {
    {.of_lead = false, .signal = SIGKILL, .answer_max = seconds(2), .end_max = seconds(5)},
    {.of_lead = true, .signal = SIGKILL, .answer_max = seconds(2), .end_max = seconds(5)},
    {.of_lead = false,
     .signal = SIGSTOP,
     .answer_max = seconds(kTimeoutSeconds + 5),
     .end_max = seconds(kTimeoutSeconds + 10)},
    {.of_lead = true,
     .signal = SIGSTOP,
     .answer_max = seconds(kTimeoutSeconds + 5),
     .end_max = seconds(kTimeoutSeconds + 10)},
    {.of_lead = false,
     .signal = SIGKILL,
     .answer_max = seconds(2),
     .end_max = seconds(5),
     .on_devices = true},
    {.of_lead = false,
     .signal = SIGSTOP,
     .answer_max = seconds(kTimeoutSeconds + 5),
     .end_max = seconds(kTimeoutSeconds + 10),
     .on_devices = true},
};
INSTANTIATE_TEST_SUITE_P(, MpiLoss, testing::ValuesIn(kLosses), [](const auto& loss) {
  return std::string(loss.param.of_lead ? "lead" : "follower") +
         (loss.param.signal == SIGKILL ? "_killed" : "_stopped") +
         (loss.param.on_devices ? "_on_devices" : "");
});

TEST_P(MpiLoss, is_told_to_every_client_and_leaves_nothing_behind) {
  const Loss& loss = GetParam();
  const int rounds = std::getenv("SPECD_NIGHTLY") != nullptr ? 20 : 1;
  for (int round = 0; round < rounds; ++round) {
    Daemon daemon;
    daemon.write_config("", SPECD_PLUGINS);
    spawn_ranks(daemon, 2, 1, {"engine.rank_timeout_seconds=" + std::to_string(kTimeoutSeconds)},
                loss.on_devices ? SPECD_TEST_FAKE_CUDA : "");
    ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
    const pid_t mpirun = daemon.pid();
    const std::vector<pid_t> ranks = children_of(mpirun);
    ASSERT_EQ(ranks.size(), 2U) << daemon.output();
    const auto status = daemon.client().status();
    ASSERT_TRUE(status.ok());
    const auto lead = static_cast<pid_t>(status.value().pid());
    const pid_t follower = ranks[0] == lead ? ranks[1] : ranks[0];

    std::vector<std::thread> streams;
    std::vector<Status> ends(3);
    std::vector<Clock::time_point> ended(ends.size());
    std::atomic<int> begun{0};
    for (size_t i = 0; i < ends.size(); ++i) {
      streams.emplace_back([&, i] {
        Client client = daemon.client();
        bool has_begun = false;
        ends[i] = client
                      .generate(make_request(i == 0 ? "off" : "lookup", 1500),
                                [&](const v1::GenerateResponse&) {
                                  if (!has_begun) ++begun;
                                  has_begun = true;
                                })
                      .status();
        ended[i] = Clock::now();
      });
    }
    EXPECT_TRUE(eventually([&] { return begun == static_cast<int>(ends.size()); }));
    std::this_thread::sleep_for(milliseconds(7 * round));  // another place in a step
    const Clock::time_point start = Clock::now();
    kill(loss.of_lead ? lead : follower, loss.signal);
    for (std::thread& stream : streams) stream.join();
    for (size_t i = 0; i < ends.size(); ++i) {
      EXPECT_EQ(ends[i].code(), Code::kUnavailable) << ends[i].to_string();
      EXPECT_LT(ended[i] - start, loss.answer_max);
      if (!loss.of_lead) {
        EXPECT_NE(ends[i].message().find("rank 1"), std::string::npos) << ends[i].to_string();
      }
    }
    EXPECT_NE(daemon.wait(), 0) << daemon.output();
    EXPECT_LT(Clock::now() - start, loss.end_max);
    while (runs(lead) || runs(follower)) {
      ASSERT_LT(Clock::now() - start, loss.end_max) << daemon.output();
      std::this_thread::sleep_for(milliseconds(10));
    }
    // A lead that is gone cannot remove the name of its socket, but nobody serves it.
    if (!loss.of_lead) {
      EXPECT_FALSE(fs::exists(daemon.socket())) << daemon.output();
    }
    fs::remove(daemon.folder() / "log");
    ASSERT_TRUE(daemon.start()) << "the next one finds nothing in its way: " << daemon.output();
    EXPECT_EQ(daemon.stop(), 0);
  }
}

TEST(Mpi, a_stopped_follower_is_noticed_while_nobody_asks) {
  Daemon daemon;
  daemon.write_config();
  spawn_ranks(daemon, 1, 2, {"engine.rank_timeout_seconds=1"});
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  const auto lead = static_cast<pid_t>(daemon.client().status().value().pid());
  for (const pid_t rank : children_of(daemon.pid())) {
    if (rank != lead) kill(rank, SIGSTOP);
  }
  EXPECT_NE(daemon.wait(), 0);
  EXPECT_NE(daemon.output().find("rank 1 has not been heard of for 1000 ms"), std::string::npos)
      << daemon.output();
}

TEST(Mpi, a_sigterm_cuts_at_once_and_says_what_drains) {
  Daemon daemon;
  daemon.write_config();
  spawn_ranks(daemon, 2, 1);
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  Status end;
  std::atomic<bool> begun{false};
  std::thread stream([&] {
    end =
        daemon.client()
            .generate(make_request("off", 1500), [&](const v1::GenerateResponse&) { begun = true; })
            .status();
  });
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  EXPECT_NE(daemon.stop(SIGTERM), 0);  // mpirun's own code
  EXPECT_NE(daemon.output().find("specd: stopped; some requests were cut"), std::string::npos)
      << daemon.output();
  stream.join();
  EXPECT_EQ(end.code(), Code::kUnavailable) << end.to_string();
  EXPECT_NE(end.message().find("one SIGUSR1 drains"), std::string::npos) << end.to_string();
  EXPECT_FALSE(fs::exists(daemon.socket()));
}

// ---- bad input -----------------------------------------------------------------------------------

// What mpirun printed, once it has ended with this code.
std::string refusal(Daemon& daemon, const std::vector<std::string>& words, int code) {
  const Clock::time_point start = Clock::now();
  daemon.spawn_words(words, allow_root);
  EXPECT_EQ(daemon.wait(), code);
  EXPECT_LT(Clock::now() - start, seconds(15));
  EXPECT_FALSE(fs::exists(daemon.socket()));
  return daemon.output();
}

void expect_said_once(const std::string& output, const std::string& text) {
  const size_t first = output.find(text);
  EXPECT_NE(first, std::string::npos) << output;
  if (first != std::string::npos) {
    EXPECT_EQ(output.find(text, first + 1), std::string::npos) << output;
  }
}

TEST(Mpi, another_number_of_ranks_than_configured_is_refused) {
  Daemon daemon;
  daemon.write_config();
  expect_said_once(
      refusal(daemon, under_mpirun(3, daemon.serve_words({"engine.tensor_parallel_size=2"})), 1),
      "specd: --set engine.tensor_parallel_size: 2 ranks are configured (tensor_parallel_size 2 x "
      "pipeline_parallel_size 1), and mpirun has started 3; make them equal");
}

// `mpirun -n 1 A : -n 1 B` starts ranks with other arguments.
std::string two_unlike(Daemon& daemon, const std::vector<std::string>& second, int code) {
  std::vector<std::string> words =
      under_mpirun(1, daemon.serve_words({"engine.tensor_parallel_size=2"}));
  words.insert(words.end(), {":", "-n", "1"});
  words.insert(words.end(), second.begin(), second.end());
  return refusal(daemon, words, code);
}

TEST(Mpi, ranks_with_other_options_are_refused) {
  Daemon daemon;
  daemon.write_config();
  expect_said_once(
      two_unlike(daemon,
                 daemon.serve_words({"engine.tensor_parallel_size=2", "engine.queue_max=77"}), 1),
      "rank 1: it has engine.queue_max: 77 where rank 0 has engine.queue_max: 256");
}

TEST(Mpi, a_configuration_that_is_wrong_on_one_rank_is_told_once) {
  Daemon daemon;
  daemon.write_config();
  expect_said_once(two_unlike(daemon, {SPECD_BINARY, "serve", "--config", "/nowhere/c.yaml"}, 3),
                   "specd: rank 1: '/nowhere/c.yaml': cannot open");
}

// The same configuration, but the second rank sees other files at the same place.
TEST(Mpi, ranks_with_another_model_are_refused_before_weights_are_read) {
  for (const std::string changed : {"config.json", "tokenizer.json", "model.safetensors"}) {
    Daemon daemon;
    for (const std::string side : {"a", "b"}) {
      const fs::path folder = daemon.folder() / side / "m";
      fs::create_directories(folder);
      for (const auto& entry :
           fs::directory_iterator(std::string(SPECD_SOURCE_DIR) + "/configs/zoo/pico-target")) {
        if (entry.is_regular_file()) fs::copy(entry.path(), folder);
      }
    }
    daemon.write_config_text("model: {name: pico, path: /proc/self/cwd/m}\n");
    const fs::path file = daemon.folder() / "b/m" / changed;
    fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
    if (changed == "model.safetensors") {
      std::fstream weights(file, std::ios::in | std::ios::out | std::ios::binary);
      weights.seekp(-2, std::ios::end);  // of the last tensor: a norm
      weights.put('\x11');
    } else {
      std::ofstream(file, std::ios::app) << "\n";
    }
    const auto serve_in = [&](const std::string& side) {
      std::string line = "cd " + (daemon.folder() / side).string() + " && exec";
      for (const std::string& word : daemon.serve_words({"engine.tensor_parallel_size=2"})) {
        line += " " + word;
      }
      return std::vector<std::string>{"sh", "-c", line};
    };
    std::vector<std::string> words = under_mpirun(1, serve_in("a"));
    words.insert(words.end(), {":", "-n", "1"});
    for (const std::string& word : serve_in("b")) words.push_back(word);
    const std::string output = refusal(daemon, words, 1);
    const std::string what = changed == "model.safetensors" ? "the values of the norms" : changed;
    EXPECT_NE(output.find("rank 1: "), std::string::npos) << output;
    EXPECT_NE(output.find(what), std::string::npos) << output;
    EXPECT_NE(output.find("is not that of rank 0"), std::string::npos) << output;
  }
}

TEST(Mpi, a_rank_without_its_device_is_told_once_with_the_key) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn_words(under_mpirun(2, daemon.serve_words({"engine.tensor_parallel_size=2",
                                                         "devices=[cuda:0, cuda:1]"})),
                     [] {
                       with_devices_of(SPECD_TEST_FAKE_CUDA)();
                       setenv("SPECD_FAKE_CUDA", "devices=1", 1);
                     });
  EXPECT_EQ(daemon.wait(), 1);
  expect_said_once(daemon.output(), "devices[1]: rank 1: cuda:1: this machine has 1 CUDA devices");
}

TEST(Mpi, ranks_without_room_for_the_drafters_of_rank_0_are_refused) {
  Daemon daemon;
  daemon.write_config();
  const std::string pool =
      "{max_matching_ngram_size: 1, is_public_pool: true, "
      "max_pool_tokens: 1048576}";
  const std::string output = refusal(
      daemon,
      under_mpirun(
          2, daemon.serve_words({"engine.tensor_parallel_size=2", "engine.rank_bytes_max=32MiB",
                                 "routes.lookup.drafter.config=" + pool})),
      1);
  expect_said_once(output, "rank 0 needs ");
  expect_said_once(output, "; drafter of route lookup (limit) ");
}

TEST(Mpi, an_installation_without_its_library_is_told) {
  Daemon daemon;
  daemon.write_config();
  daemon.spawn_words(under_mpirun(1, daemon.serve_words()), [] {
    allow_root();
    setenv("SPECD_MPI_LIBRARY", "/nonexistent/libspecd_mpi.so", 1);
  });
  EXPECT_EQ(daemon.wait(), 1);
  EXPECT_NE(daemon.output().find("this installation has no MPI library (looked for /nonexistent/"),
            std::string::npos)
      << daemon.output();
}

}  // namespace
}  // namespace specd::host
