// Sixty-four clients, each a process, of which half are killed while they wait, are prefilled or decode: their places
// and pages are free a few steps later, and the texts of the others do not change.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

constexpr int kKilledOrNot = 64;
constexpr int32_t kSurvivorTokens = 24;
// Many more steps than a request may take to notice that its client is dead: that the connection has ended passes three
// threads, while steps of milliseconds go on.
constexpr int32_t kVictimTokens = 1200;
constexpr uint64_t kStepsMax = 300;

// Four prompts of several chunks, greedy and seeded: eight kinds. The text goes to the file `id`, errors to `errors`.
pid_t start_client(const Daemon& daemon, const std::string& id, int kind, const char* route,
                   int32_t n_tokens) {
  std::string prompt = "# " + std::to_string(kind % 4) + "\n";
  for (int i = 0; i < 3; ++i) prompt += kPrompt;
  std::vector<std::string> words{(fs::path(SPECD_BINARY).parent_path() / "specctl").string(),
                                 "--socket",
                                 daemon.socket(),
                                 "generate",
                                 "--prompt",
                                 prompt,
                                 "--temperature",
                                 kind < 4 ? "0" : "0.9",
                                 "--seed",
                                 "5",
                                 "--max-tokens",
                                 std::to_string(n_tokens),
                                 "--ignore-eos",
                                 "--route",
                                 route,
                                 "--request-id",
                                 id,
                                 "--cache-salt",
                                 id};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const std::string file = (daemon.folder() / id).string();
  const std::string errors = (daemon.folder() / "errors").string();
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open(file.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    dup2(open(errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    execv(arguments.front(), arguments.data());
    _exit(127);
  }
  return pid;
}
int wait_for_end(pid_t pid) {
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return status;
}

struct Victim {
  pid_t pid = -1;
  // Killed as soon as it is seen, as soon as it runs, or after so many tokens.
  enum { kSeen, kRuns, kDecodes } dies = kSeen;
  int32_t tokens = 0;
  bool is_killed = false, is_gone = false;
  uint64_t steps_at_kill = 0;
};

TEST(KilledClients, half_of_them_leave_their_places_and_the_others_their_texts) {
  Daemon daemon;
  daemon.write_config_text(R"(
engine: {threads: 1, max_sequences: 16, step_tokens_max: 64, queue_max: 100}
model: {name: pico, path: ZOO/pico-target}
plugins: {directories: [PLUGINS], cache_directory: cache}
default_route: lookup
routes:
  lookup: {drafter: {plugin: specd.drafter.prompt_lookup}, verifier: {plugin: specd.verifier.match}}
)");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  std::vector<std::string> plain;
  for (int kind = 0; kind < 8; ++kind) {
    const std::string id = "plain-" + std::to_string(kind);
    ASSERT_EQ(wait_for_end(start_client(daemon, id, kind, "off", kSurvivorTokens)), 0);
    plain.push_back(read_file(daemon.folder() / id));
    ASSERT_FALSE(plain.back().empty());
  }

  std::map<std::string, Victim> victims;
  std::vector<pid_t> survivors;
  for (int i = 0; i < kKilledOrNot / 2; ++i) {
    const char* const route = i % 4 == 0 ? "off" : "lookup";
    Victim victim{
        .pid = start_client(daemon, "dies-" + std::to_string(i), i % 8, route, kVictimTokens)};
    victim.dies = i % 4 == 0 ? Victim::kSeen : i % 4 == 1 ? Victim::kRuns : Victim::kDecodes;
    victim.tokens = 1 + i * 7 % 30;
    victims["dies-" + std::to_string(i)] = victim;
    survivors.push_back(
        start_client(daemon, "lives-" + std::to_string(i), i % 8, route, kSurvivorTokens));
  }

  const auto n_steps = [&] { return client.status().value().steps(); };
  int n_waited = 0, n_prefilled = 0, n_decoded = 0;
  uint64_t steps_until_gone_max = 0;
  const auto look = [&](const v1::RequestInfo& seen) {
    const auto found = victims.find(seen.request_id());
    if (found == victims.end() || found->second.is_killed) return;
    Victim& victim = found->second;
    if (victim.dies != Victim::kSeen && !seen.running()) return;
    if (victim.dies == Victim::kDecodes && seen.completion_tokens() < victim.tokens) return;
    (seen.completion_tokens() > 0 ? n_decoded : seen.running() ? n_prefilled : n_waited) += 1;
    kill(victim.pid, SIGKILL);
    EXPECT_EQ(wait_for_end(victim.pid), SIGKILL);
    victim.is_killed = true;
    victim.steps_at_kill = n_steps();
  };
  EXPECT_TRUE(eventually([&] {
    const uint64_t before = n_steps();
    const auto listed = client.requests(0);
    if (!listed.ok()) return false;
    for (auto& [id, victim] : victims) {
      if (!victim.is_killed || victim.is_gone) continue;
      victim.is_gone =
          std::ranges::none_of(listed.value().requests(),
                               [&id = id](const auto& each) { return each.request_id() == id; });
      if (victim.is_gone)
        steps_until_gone_max =
            std::max(steps_until_gone_max, before - std::min(before, victim.steps_at_kill));
    }
    for (const v1::RequestInfo& seen : listed.value().requests()) look(seen);
    return std::ranges::all_of(victims, [](const auto& each) { return each.second.is_gone; });
  }));
  for (int i = 0; i < kKilledOrNot / 2; ++i) {
    EXPECT_EQ(wait_for_end(survivors[static_cast<size_t>(i)]), 0)
        << read_file(daemon.folder() / "errors");
    EXPECT_EQ(read_file(daemon.folder() / ("lives-" + std::to_string(i))),
              plain[static_cast<size_t>(i % 8)]);
  }
  std::printf("killed: %d waited, %d were prefilled, %d decoded; gone after %lu steps at most\n",
              n_waited, n_prefilled, n_decoded, steps_until_gone_max);
  EXPECT_GT(n_waited, 0);
  EXPECT_GT(n_decoded, 0);
  EXPECT_LE(steps_until_gone_max, kStepsMax);
  EXPECT_TRUE(eventually([&] {
    const auto status = client.status();
    return status.ok() && status.value().running() == 0 && status.value().waiting() == 0;
  }));
  const v1::GetStatusResponse s = client.status().value();
  EXPECT_EQ(s.cancelled(), static_cast<uint64_t>(kKilledOrNot / 2));
  EXPECT_EQ(s.completed(), plain.size() + kKilledOrNot / 2);
  EXPECT_EQ(s.admitted(), s.completed() + s.cancelled());
  const v1::ListModelsResponse models = client.models().value();
  EXPECT_EQ(models.models(0).kv_pages_free() + models.models(0).kv_pages_cached(),
            models.models(0).kv_pages_total());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
