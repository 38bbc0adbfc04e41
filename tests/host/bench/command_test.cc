// The program itself, by its exit status and what it prints.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "core/base/json.h"
#include "tests/host/base/run_command.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

class BenchCommand : public testing::Test {
 protected:
  void SetUp() override {
    char pattern[] = "/tmp/specd-bench-test-XXXXXX";
    ASSERT_NE(mkdtemp(pattern), nullptr);
    folder_ = pattern;
    std::ofstream(folder_ + "/c.yaml")
        << "listen: unix:s.sock\n"
        << "engine: {threads: 2}\n"
        << "model: {name: pico, path: " << SPECD_TEST_ZOO << "/pico-draft}\n"
        << "plugins: {directories: [" << SPECD_TEST_PLUGINS << ", " << SPECD_TEST_BAD_PLUGINS
        << "], cache_directory: cache}\n"
        << "routes:\n"
        << "  lookup:\n"
        << "    drafter: {plugin: specd.drafter.prompt_lookup}\n"
        << "    verifier: {plugin: specd.verifier.match}\n"
        << "  liar:\n"
        << "    drafter: {plugin: specd.drafter.prompt_lookup}\n"
        << "    verifier: {plugin: specd.test.verifier_bad, config: {mode: next_other}}\n";
    std::ofstream(folder_ + "/set.jsonl")
        << "{\"prompt\": \"def add(a, b):\\n    return a + b\\n\"}\n"
        << "{\"prompt\": \"import os\\nimport sys\\n\"}\n";
  }
  void TearDown() override { fs::remove_all(folder_); }

  void spawn(const std::string& arguments) {
    pid_ = fork();
    if (pid_ != 0) return;
    const std::string command = "cd " + folder_ + " && exec " + SPECD_BENCH + " " + arguments +
                                " > " + folder_ + "/out 2> " + folder_ + "/err";
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  // The exit status; out_ and err_ have what was printed.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    out_ = text("/out");
    err_ = text("/err");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  int run(const std::string& arguments) {
    spawn(arguments);
    return wait();
  }
  std::string text(const std::string& name) const {
    std::ostringstream all;
    all << std::ifstream(folder_ + name).rdbuf();
    return all.str();
  }

  std::string folder_, out_, err_;
  pid_t pid_ = -1;
};

TEST_F(BenchCommand, routes_run_side_by_side_and_the_json_holds_what_the_table_shows) {
  ASSERT_EQ(run("run --config c.yaml --prompts set.jsonl --routes lookup --max-tokens 17 "
                "--ignore-eos --repeat 2 --concurrency 1,2 --temperature 0,0.85 --top-p 0.9 "
                "--synthetic-acceptance 1 --draft-tokens 1,3 --verify-cost 2,4 --json r.json"),
            0)
      << out_ << err_;
  const Json json = parse_json(text("/r.json"), "r.json").value();
  EXPECT_TRUE(json["complete"]);
  EXPECT_EQ(json["rows"].size(), 2u * 2 * 5);  // off, lookup, two replays, the control
  EXPECT_EQ(json["format"], "specd-bench run");
  EXPECT_EQ(json["format_version"], 1);
  EXPECT_EQ(
      json["command"].get<std::string>().find(
          "specd-bench run --config c.yaml --prompts set.jsonl --routes lookup --max-tokens 17 "),
      0u);
  EXPECT_EQ(json["program_sha256"].get<std::string>().size(), 64u);
  EXPECT_EQ(json["device"].get<std::string>().find("cpu"), 0u);
  EXPECT_EQ(json["drafters"]["lookup"]["plugin"], "specd.drafter.prompt_lookup");
  EXPECT_EQ(json["drafters"]["replay-100-k3"]["config"]["draft_tokens"], 3);
  EXPECT_EQ(json["drafters"]["replay-100-k3"]["draft_nodes_max"], 3);
  int replays = 0;
  for (const Json& row : json["rows"]) {
    EXPECT_GT(row["input_tokens"].get<double>(), 1);
    EXPECT_TRUE(row["identical"]);
    EXPECT_NE(out_.find(row["route"].get<std::string>()), std::string::npos);
    if (row["route"] != "replay-100-k3") continue;
    ++replays;
    EXPECT_NEAR(row["tau"].get<double>(), 4, 1e-9);
    EXPECT_EQ(row["acceptance_rate"], 1.0);
  }
  EXPECT_EQ(replays, 4);
  EXPECT_GT(json["verify_cost"]["4"].get<double>(), 0.2);
  EXPECT_NE(out_.find("noise: off (again)"), std::string::npos) << out_;
  EXPECT_TRUE(json["fresh_drafters"]);
  EXPECT_EQ(out_.find("keep what earlier requests taught them"), std::string::npos) << out_;
  EXPECT_NE(out_.find("replay-100-k3, temperature 0.85, concurrency 1: eta "), std::string::npos)
      << out_;
  EXPECT_NE(out_.find("1 / V(4)"), std::string::npos) << out_;
  EXPECT_EQ(out_.find("concurrency 2: eta "), std::string::npos) << out_;  // V(8), not V(4)
  EXPECT_EQ(json["rows"].back()["temperature"], 0.85);
  EXPECT_EQ(json["top_p"], 0.9);
  EXPECT_EQ(json["top_k"], 0);
}

TEST_F(BenchCommand, the_command_in_the_json_is_one_that_a_shell_reads_as_the_same) {
  std::ofstream(folder_ + "/it's one.txt") << "import os\n";
  ASSERT_EQ(run("run --config c.yaml --prompts \"it's one.txt\" --max-tokens 5 --repeat 1 "
                "--no-control --routes '' --json r.json"),
            0)
      << out_ << err_;
  EXPECT_EQ(
      parse_json(text("/r.json"), "r.json").value()["command"],
      "specd-bench run --config c.yaml --prompts 'it'\\''s one.txt' --max-tokens 5 --repeat 1 "
      "--no-control --routes '' --json r.json");
}

TEST_F(BenchCommand, a_text_that_differs_is_named_and_the_exit_status_says_so) {
  EXPECT_EQ(run("run --config c.yaml --prompts set.jsonl --routes lookup,liar --max-tokens 9 "
                "--repeat 1 --no-control"),
            1)
      << out_ << err_;
  EXPECT_NE(out_.find("DIFFERENT TEXT: liar, greedy, concurrency 1: set.jsonl:1: token "),
            std::string::npos)
      << out_;
  EXPECT_EQ(out_.find("DIFFERENT TEXT: lookup"), std::string::npos) << out_;
}

TEST_F(BenchCommand, synthetic_prompts_need_no_file) {
  EXPECT_EQ(run("run --config c.yaml --synthetic 3 --input-mean 20 --input-stdev 5 --output-mean 9 "
                "--repeat 1"),
            0)
      << out_ << err_;
  EXPECT_NE(out_.find("3 prompts"), std::string::npos) << out_;
}

TEST_F(BenchCommand, a_signal_ends_the_run_with_what_is_known) {
  spawn(
      "run --config c.yaml --prompts set.jsonl --max-tokens 200 --ignore-eos --repeat 1000 "
      "--json r.json");
  std::this_thread::sleep_for(std::chrono::seconds(3));
  kill(pid_, SIGINT);
  EXPECT_EQ(wait(), 1) << out_ << err_;
  EXPECT_NE(err_.find("CANCELLED"), std::string::npos) << err_;
  EXPECT_NE(out_.find("off (again)"), std::string::npos) << out_;
  EXPECT_FALSE(parse_json(text("/r.json"), "r.json").value()["complete"]);
}

TEST_F(BenchCommand, what_is_wrong_is_named_by_option_file_and_line) {
  std::ofstream(folder_ + "/bad.jsonl") << "{\"prompt\": \"a\"}\n{\"question\": 1}\n";
  std::ofstream(folder_ + "/bad.yaml") << "listen: unix:s.sock\nmodle: {}\n";
  const std::vector<std::tuple<std::string, int, std::string>> cases = {
      {"", 2, "expected ballast, run or prefill"},
      {"rnu", 2, "unknown command 'rnu'"},
      {"run", 2, "expected --config FILE or --socket PATH"},
      {"run --config c.yaml", 2, "expected --prompts PATH or --synthetic N"},
      {"run --config c.yaml --prompts set.jsonl --concurrency 1,x", 2,
       "--concurrency: expected whole numbers from 1 to 1024, separated by commas, found 'x'"},
      {"run --config c.yaml --prompts set.jsonl --concurrency 1,2,1", 2,
       "--concurrency: expected each number once, found '1,2,1'"},
      {"run --config c.yaml --prompts set.jsonl --temperature 0.8,0.80", 2,
       "--temperature: expected each number once, found '0.8,0.80'"},
      {"run --config c.yaml --prompts set.jsonl --synthetic-acceptance 1 --draft-tokens 3,3", 2,
       "--draft-tokens: expected each number once, found '3,3'"},
      {"run --config c.yaml --prompts set.jsonl --temperature -1", 2, "--temperature: expected"},
      {"run --config c.yaml --prompts set.jsonl --synthetic-acceptance 1.5", 2,
       "--synthetic-acceptance: expected 0 to 1"},
      {"run --config c.yaml --prompts set.jsonl --nonsense", 2, "--nonsense"},
      {"run --config c.yaml --prompts set.jsonl --repeat 1 --repeat 2", 2,
       "option '--repeat' cannot be specified more than once\n"},
      {"run --socket s.sock --prompts set.jsonl --verify-cost 2", 2,
       "--verify-cost: expected with --config only"},
      {"run --config bad.yaml --prompts set.jsonl", 1, "bad.yaml:2:1:"},
      {"run --config c.yaml --prompts bad.jsonl", 1, "bad.jsonl:2: expected a key"},
      {"run --config c.yaml --prompts set.jsonl --routes none", 1,
       "--routes: expected routes of c.yaml (off, liar, lookup), found 'none'"},
      {"run --config c.yaml --model nowhere --prompts set.jsonl", 1, "nowhere/config.json"},
      {"run --config c.yaml --prompts set.jsonl --json no/r.json", 1, "cannot write no/r.json"},
      {"run --socket none.sock --prompts set.jsonl", 1, "nobody answers on"},
      {"prefill", 2, "expected --config FILE"},
      {"prefill --config c.yaml --long 100 --short 100", 2, "less than --long"},
      {"ballast --bytes 2XB a b", 2, "--bytes: expected a size such as 2GB"},
      {"ballast --bytes 2GB a", 2, "missing: out"},
      {"ballast --bytes 2GB --weights int3 a b", 2,
       "--weights: expected int8, int4 or fp8, found 'int3'"},
      {"ballast --bytes 2GB --hidden 0 a b", 2, "--hidden: expected at least 1"},
      {"ballast --bytes 2GB nowhere out", 1, "nowhere/config.json"},
  };
  for (const auto& [arguments, status, part] : cases) {
    EXPECT_EQ(run(arguments), status) << arguments << err_;
    EXPECT_NE(err_.find(part), std::string::npos) << arguments << "\n" << err_;
    EXPECT_EQ(out_, "") << arguments;
  }
}

TEST_F(BenchCommand, output_that_cannot_be_written_is_told_and_the_json_is_kept) {
  for (const char* arguments : {"--help", "--version", "run --help",
                                "run --config c.yaml --prompts set.jsonl --max-tokens 4 "
                                "--repeat 1 --json r.json"}) {
    const auto [code, output] =
        run_command("cd " + folder_ + " && " + SPECD_BENCH + " " + arguments + " > /dev/full");
    EXPECT_EQ(code, 1) << arguments;
    EXPECT_TRUE(
        output.ends_with("specd-bench: cannot write to standard output: No space left on device\n"))
        << arguments << "\n"
        << output;
  }
  EXPECT_TRUE(parse_json(text("/r.json"), "r.json").value()["complete"]);
}

TEST_F(BenchCommand, ballast_is_quantized_and_widened_as_asked) {
  const std::string make = std::string("ballast --weights fp8 --bytes 24MB --hidden 768 ") +
                           SPECD_TEST_ZOO + "/pico-draft heavy";
  EXPECT_EQ(run(make), 0) << err_;
  EXPECT_NE(out_.find("heavy: ballast of "), std::string::npos) << out_;
  EXPECT_NE(out_.find(" layers, hidden 768, FFN "), std::string::npos) << out_;
  EXPECT_NE(text("/heavy/config.json").find("\"float-quantized\""), std::string::npos);
  EXPECT_NE(text("/heavy/README.md").find("ballast-24MB-fp8"), std::string::npos);
}

TEST_F(BenchCommand, ballast_is_written_once) {
  const std::string make =
      std::string("ballast --bytes 7MB ") + SPECD_TEST_ZOO + "/pico-draft heavy";
  EXPECT_EQ(run(make), 0) << err_;
  EXPECT_NE(out_.find("heavy: ballast of "), std::string::npos) << out_;
  EXPECT_EQ(run(make), 1);
  EXPECT_NE(err_.find("exists already"), std::string::npos) << err_;
}

}  // namespace
}  // namespace specd::host
