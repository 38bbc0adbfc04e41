// specd and specctl as a shell runs them: --set, the environment, --print-config, schema,
// completion.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "host/base/command_line.h"
#include "host/config/config_schema.h"
#include "tests/host/config/config_rig.h"
#include "tests/host/base/run_command.h"

namespace specd::host {
namespace {

std::string quoted(const std::string& word) { return "'" + word + "'"; }

const std::string kSpecd = SPECD_BINARY;
const std::string kSpecctl = SPECCTL_BINARY;

// A word too many, so that specctl ends before it looks for a daemon.
std::string one_more(const std::string& program) { return program == kSpecctl ? " extra" : ""; }

class Shipped : public testing::Test {
 protected:
  // With what a build puts beside the tree replaced: where the plugins are, what is written.
  std::string options(const fs::path& file) const {
    return " --config " + quoted(file.string()) +
           " --set plugins.directories='[" SPECD_PLUGINS "]' --set plugins.cache_directory=" +
           quoted((folder_.path() / "cache").string()) +
           " --set listen=" + quoted("unix:" + (folder_.path() / "s.sock").string());
  }
  ConfigFolder folder_;
};

TEST_F(Shipped, every_configuration_passes_the_check_and_is_printed_as_one_that_does) {
  fs::create_directories(folder_.path() / "build/quickstart");
  std::ofstream(folder_.path() / "build/quickstart/replay.json") << R"({"sequences": []})";
  const std::string cd = "cd " + quoted(folder_.path().string()) + " && ";
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const auto [code, output] = run_command(cd + kSpecd + " check" + options(entry.path()));
    EXPECT_EQ(code, 0) << output;
    const auto [print_code, text] =
        run_command(cd + kSpecd + " serve --print-config" + options(entry.path()));
    EXPECT_EQ(print_code, 0) << text;
    std::ofstream(folder_.path() / "printed.yaml") << text;
    const auto [again, said] = run_command(cd + kSpecd + " check --config printed.yaml");
    EXPECT_EQ(again, 0) << said << text;
  }
  EXPECT_GE(count, 2);
}

TEST_F(Shipped, variables_and_options_reach_the_program) {
  const std::string file = options(fs::path(SPECD_SOURCE_DIR) / "configs/minimal.yaml");
  auto [code, text] =
      run_command("SPECD__ENGINE__QUEUE_MAX=7 SPECD__LOG_LEVEL=warn " + kSpecd +
                  " serve --print-config" + file + " --set log_level=error --set=engine.threads=3");
  EXPECT_EQ(code, 0) << text;
  for (const char* line : {"  queue_max: 7 ", "# SPECD__ENGINE__QUEUE_MAX\n", "log_level: error ",
                           "# --set log_level\n", "  threads: 3 "})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\n" << text;
  std::tie(code, text) = run_command("SPECD__ENGINE__QUEUE_MX=7 " + kSpecd + " serve" + file);
  EXPECT_EQ(code, 3);
  EXPECT_TRUE(
      text.starts_with("specd: SPECD__ENGINE__QUEUE_MX: engine.queue_mx: unknown key; did "
                       "you mean 'queue_max'?"))
      << text;
  std::tie(code, text) = run_command(kSpecd + " check" + file + " --set engine.threads=many");
  EXPECT_EQ(code, 3);
  EXPECT_EQ(text,
            "specd: --set engine.threads: expected a whole number in [0, 256], found 'many'\n");
  std::tie(code, text) = run_command(kSpecd + " check" + file + " --set model.path=nowhere");
  EXPECT_EQ(code, 3);
  EXPECT_TRUE(text.starts_with("specd: --set model.path: expected a folder with")) << text;
}

#ifndef SPECD_FAILPOINTS
TEST_F(Shipped, failpoints_that_this_build_does_not_have_are_an_error_at_the_start) {
  const auto [code, text] =
      run_command("SPECD_FAILPOINTS=step.begin=block " + kSpecd + " serve" +
                  options(fs::path(SPECD_SOURCE_DIR) / "configs/minimal.yaml"));
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("SPECD_FAILPOINTS: this build has no failpoints"), std::string::npos) << text;
}
#endif

TEST_F(Shipped, the_check_activates_a_pair_with_the_limits_of_its_route) {
  std::ofstream(folder_.path() / "wide.yaml")
      << "listen: unix:s.sock\nmodel:\n  name: m\n  path: " SPECD_SOURCE_DIR
         "/configs/zoo/pico-target\nplugins:\n  directories: [" SPECD_PLUGINS
         "]\n  cache_directory: cache\nroutes:\n  wide:\n    drafter: {plugin: "
         "specd.drafter.lookahead}\n    verifier: {plugin: specd.verifier.match}\n";
  const std::string check =
      "cd " + quoted(folder_.path().string()) + " && " + kSpecd + " check --config wide.yaml";
  const auto [code, text] = run_command(check);
  EXPECT_EQ(code, 3) << text;
  EXPECT_NE(text.find("wide.yaml:10:5: routes.wide.drafter.config: "), std::string::npos) << text;
  EXPECT_NE(text.find("draft nodes and the route allows 8: raise its draft_nodes_max"),
            std::string::npos)
      << text;
  EXPECT_EQ(run_command(check + " --set routes.wide.draft_nodes_max=64").first, 0);
}

TEST_F(Shipped, the_check_tells_what_is_wrong_with_a_chat_template) {
  const std::string file = options(fs::path(SPECD_SOURCE_DIR) / "configs/minimal.yaml");
  const fs::path model = folder_.path() / "model";
  fs::create_directories(model);
  for (const auto& entry :
       fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs/zoo/pico-target"))
    fs::create_symlink(entry.path(), model / entry.path().filename());
  const std::string own = " --set model.path=" + quoted(model.string());
  EXPECT_EQ(run_command(kSpecd + " check" + file + own).first, 0);
  std::ofstream(model / "chat_template.jinja") << "a\n{{ x | nope }}";
  // The daemon would serve text with it, and says why no chats.
  const auto [code, text] = run_command(kSpecd + " check" + file + own);
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(
      text.find("serves no chats: chat_template.jinja:2:8: the filter 'nope' is not supported"),
      std::string::npos)
      << text;
  const auto [asked_code, asked] =
      run_command(kSpecd + " check" + file +
                  " --set model.chat_template=" + quoted((model / "chat_template.jinja").string()));
  EXPECT_EQ(asked_code, 3) << asked;
  EXPECT_NE(asked.find("--set model.chat_template: chat_template.jinja:2:8: the filter 'nope'"),
            std::string::npos)
      << asked;
}

TEST(CommandLine, what_a_command_does_not_take_is_refused) {
  const std::pair<std::string, const char*> table[] = {
      {kSpecd, "expected a command: serve, check, schema, completion"},
      {kSpecd + " chek", "did you mean 'check'?"},
      {kSpecd + " dance", "expected serve, check"},
      {kSpecd + " serve", "serve needs --config FILE or --model-repository DIR"},
      {kSpecd + " check --config a --model-repository b",
       "--config or --model-repository, not both"},
      {kSpecd + " check --config a --load-model b", "--load-model is for --model-repository"},
      {kSpecd + " check --config a --strict-config",
       "--strict-config is for --model-repository and"},
      {kSpecd + " check --config a --speculative-config ''",
       "--speculative-config: expected a value"},
      {kSpecd + " check --model-repository ''", "--model-repository: expected a value"},
      {kSpecd + " schema --model-repository b", "schema takes no --model-repository"},
      {kSpecd + " serve x", "serve takes no 'x'"},
      {kSpecd + " schema --config x", "schema takes no --config"},
      {kSpecd + " schema --print-config", "schema takes no --print-config"},
      {kSpecd + " serve --table", "serve takes no --table"},
      {kSpecd + " completion", "expected one of bash, zsh, fish; found ''"},
      {kSpecd + " completion tcsh", "found 'tcsh'"},
      {kSpecd + " completion bash zsh", "too many positional"},
      {kSpecd + " serve --confg x", "unrecognised option '--confg'"},
      {kSpecctl + " dance", "unknown command 'dance'"},
      {kSpecctl + " status x", "status takes no 'x'"},
      {kSpecctl + " status -f x", "status takes no "},
      {kSpecctl + " status --prompt x", "status takes no --prompt"},
      {kSpecctl + " routes --file x", "routes takes no --file"},
      {kSpecctl + " generate --prompt x --prompt-file y", "--prompt or --prompt-file, not both"},
      {kSpecctl + " generate --prompt-tokens 1 --prompt x",
       "--prompt or --prompt-tokens, not both"},
      {kSpecctl + " render --prompt-file x --prompt y", "--prompt or --prompt-file, not both"},
      {kSpecctl + " route", "expected apply, delete, get, stage"},
      {kSpecctl + " route remove x", "abort or rollback, found 'remove'"},
      {kSpecctl + " route apply", "route apply: expected -f FILE"},
      {kSpecctl + " route apply x", "route apply: expected -f FILE"},
      {kSpecctl + " route get", "route get: expected NAME"},
      {kSpecctl + " route get a b", "route get: expected NAME"},
      {kSpecctl + " route delete -f x", "route delete: expected NAME"},
      {kSpecctl + " route stage x", "route stage: expected -f FILE"},
      {kSpecctl + " route traffic x",
       "route traffic: expected NAME and either --percent N or --shadow"},
      {kSpecctl + " route traffic --percent 5",
       "route traffic: expected NAME and either --percent N or --shadow"},
      {kSpecctl + " route traffic x --percent 101", "from 0 to 100"},
      {kSpecctl + " route traffic x --percent 5 --shadow",
       "route traffic: expected NAME and either --percent N or --shadow"},
      {kSpecctl + " route promote x --shadow", "route promote: --shadow is for route traffic"},
      {kSpecctl + " route promote x --percent 5", "route promote: --percent is for route traffic"},
      {kSpecctl + " route rollback", "route rollback: expected NAME"},
      {kSpecctl + " compare --route off", "compare takes no --route"},
      {kSpecctl + " compare --routes off,,lookup", "--routes: expected names"},
      {kSpecctl + " compare --routes off,", "--routes: expected names"},
      {kSpecctl + " generate --seed -1 --prompt x", "('-1') for option '--seed' is invalid"},
      {kSpecctl + " generate --seed=-1 --prompt x", "('-1') for option '--seed' is invalid"},
      {kSpecctl + " generate --seed 1e99 --prompt x", "from 0 to 18446744073709551615"},
      {kSpecctl + " generate --max-tokens 99999999999 --prompt x", "from 1 to 2147483647"},
      {kSpecctl + " status --timeout -1",
       "('-1') for option '--timeout' is invalid; expected a whole number from 0 to 2147483647"},
      {kSpecctl + " generate --timeout 1", "generate takes no --timeout"},
      {kSpecctl + " generate --repeat 2", "generate takes no --repeat"},
      {kSpecctl + " generate --request-id 'a\xff'", "--request-id: expected UTF-8, found 'a\\xff'"},
      {kSpecctl + " generate --message '\xff=hi'", "--message: expected UTF-8, found '\\xff=hi'"},
      {kSpecctl + " generate --prompt '\xff'", "--prompt: expected UTF-8"},
      {kSpecctl + " route get '\xff'", "expected UTF-8"},
      {kSpecctl + " completion tcsh", "found 'tcsh'"},
      {kSpecctl + " status --server a.example:1", "of another machine needs --tls-ca"},
      {kSpecctl + " status --server localhost:1 --tls-ca x", "together"},
      {kSpecctl + " status --tls-ca x", "are for --server"},
      {kSpecctl + " status --server localhost:1 --socket x", "--socket or --server, not both"},
      {kSpecctl + " completion bash zsh", "expected one shell"},
  };
  for (const auto& [line, words] : table) {
    const auto [code, output] = run_command(line);
    EXPECT_EQ(code, 2) << line;
    EXPECT_NE(output.find(words), std::string::npos) << line << ": " << output;
  }
}

TEST(CommandLine, a_number_outside_of_the_range_that_its_option_declares_is_refused_with_it) {
  namespace po = boost::program_options;
  po::options_description options;
  options.add_options()("rounds,r", whole_number<int32_t>(1)->default_value(3), "")(
      "priority", whole_number<int64_t>(-10, 10), "")("seed", po::value<uint64_t>(), "");
  const auto read = [&](const std::vector<std::string>& arguments) {
    return read_command_line(options, {}, arguments);
  };
  for (const char* word : {"0", "-1", "99999999999", "x"}) {
    const Status status = read({"--rounds", word}).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << word;
    EXPECT_NE(status.message().find("--rounds"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("expected a whole number from 1 to 2147483647"),
              std::string::npos)
        << status.message();
  }
  for (const char* word : {"-11", "11"}) {
    EXPECT_NE(read({"--priority", word}).status().message().find("from -10 to 10"),
              std::string::npos)
        << word;
  }
  EXPECT_NE(read({"--seed", "x"}).status().message().find("from 0 to 18446744073709551615"),
            std::string::npos);
  const auto values = read({"--priority", "-10", "-r", "1"});
  ASSERT_TRUE(values.ok()) << values.status().message();
  EXPECT_EQ(values.value()["priority"].as<int64_t>(), -10);
  EXPECT_EQ(values.value()["rounds"].as<int32_t>(), 1);
  EXPECT_EQ(read({}).value()["rounds"].as<int32_t>(), 3);
}

TEST(CommandLine, help_and_version_are_printed_and_a_file_that_is_not_there_is_a_config_error) {
  for (const auto& [program, front] : {std::pair(kSpecd, "specd: "), {kSpecctl, "specctl: "}}) {
    const auto [code, help] = run_command(program + " --help");
    EXPECT_EQ(code, 0);
    EXPECT_TRUE(help.starts_with(front)) << help;
  }
  const auto [code, version] = run_command(kSpecd + " --version");
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(version.starts_with("specd ")) << version;
  EXPECT_EQ(run_command(kSpecd + " check --config /nonexistent.yaml").first, 3);
}

TEST(CommandLine, schema_prints_what_the_library_says) {
  EXPECT_EQ(run_command(kSpecd + " schema"), std::pair(0, config_schema()));
  EXPECT_EQ(run_command(kSpecd + " schema --table"), std::pair(0, config_table()));
}

TEST_F(Shipped, output_that_cannot_be_written_is_told_and_the_program_ends_with_1) {
  const std::string file = options(fs::path(SPECD_SOURCE_DIR) / "configs/minimal.yaml");
  const std::string lines[] = {
      kSpecd + " --help",          kSpecd + " --version",
      kSpecd + " schema",          kSpecd + " schema --table",
      kSpecd + " completion bash", kSpecd + " serve --print-config" + file,
      kSpecd + " check" + file,    kSpecctl + " --help",
      kSpecctl + " --version",     kSpecctl + " completion bash",
  };
  for (const std::string& line : lines) {
    for (const auto& [to, why] :
         {std::pair(" > /dev/full", "No space left on device"), {" >&-", "Bad file descriptor"}}) {
      const auto [code, text] = run_command(line + to);
      EXPECT_EQ(code, 1) << line << to;
      const std::string told = (line.starts_with(kSpecctl) ? "specctl" : "specd") +
                               std::string(": cannot write to standard output: ") + why + "\n";
      EXPECT_NE(text.find(told), std::string::npos) << line << to << ": " << text;
    }
  }
}

TEST_F(Shipped, a_pipe_whose_reader_has_left_is_no_full_disk) {
  // The exit code and standard error of a program that writes when nobody reads any more.
  const auto end_without_reader = [&](const std::string& line) {
    return run_command("cd " + quoted(folder_.path().string()) +
                       " && rm -f left && { until [ -e left ]; do sleep 0.01; done; " + line +
                       "; echo $? >&2; } | { exec <&-; touch left; }")
        .second;
  };
  EXPECT_EQ(end_without_reader("env --default-signal=PIPE " + kSpecd + " schema"), "141\n");
  EXPECT_EQ(end_without_reader("env --default-signal=PIPE " + kSpecctl + " --help"), "141\n");
  EXPECT_EQ(end_without_reader("env --ignore-signal=PIPE " + kSpecd + " schema"), "0\n");
  EXPECT_EQ(end_without_reader("env --ignore-signal=PIPE " + kSpecctl + " --help"), "0\n");
}

// What bash would offer for the last of these words, which is what COMP_WORDS would hold.
std::vector<std::string> offered(const std::string& program, const std::vector<std::string>& words,
                                 const std::string& cd = ".") {
  const std::string name = fs::path(program).filename().string();
  std::string line = "cd " + quoted(cd) +
                     " && bash --norc --noprofile -c 'set -u; source <(\"$0\" "
                     "completion bash); shift 0; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); _" +
                     name + "; printf \"%s\\n\" ${COMPREPLY[@]+\"${COMPREPLY[@]}\"}' " +
                     quoted(program) + " " + name;
  for (const std::string& word : words) line += " " + quoted(word);
  const auto [code, output] = run_command(line);
  EXPECT_EQ(code, 0) << output;
  std::vector<std::string> list;
  std::istringstream lines(output);
  for (std::string one; std::getline(lines, one);)
    if (!one.empty()) list.push_back(one);
  return list;
}

bool has(const std::vector<std::string>& list, const std::string& word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

// Words of a column of the help: the programs' own list of what they take.
std::vector<std::string> help_words(const std::string& program, const std::string& pattern) {
  const auto [code, output] = run_command(program + " --help | grep -oE -- " + quoted(pattern) +
                                          " | grep -oE -- '[a-z-]+$' | sort -u");
  EXPECT_EQ(code, 0) << output;
  std::vector<std::string> list;
  std::istringstream lines(output);
  for (std::string one; std::getline(lines, one);) list.push_back(one);
  return list;
}

TEST(Completion, bash_offers_the_commands_that_the_program_takes) {
  for (const std::string& program : {kSpecd, kSpecctl}) {
    const std::vector<std::string> list = offered(program, {""});
    const std::string name = fs::path(program).filename().string();
    for (const std::string& command : help_words(program, "^  " + name + " [a-z]+"))
      EXPECT_TRUE(has(list, command)) << command;
    for (const std::string& word : list) {
      if (word[0] == '-') continue;
      const auto [code, output] = run_command(program + " " + word + " --no-such-option");
      EXPECT_NE(output.find("unrecognised option"), std::string::npos) << word << output;
      EXPECT_EQ(
          run_command(program + " " + word + one_more(program)).second.find("unknown command"),
          std::string::npos)
          << word;
    }
  }
  EXPECT_EQ(offered(kSpecd, {"ch"}), std::vector<std::string>{"check"});
  EXPECT_EQ(offered(kSpecctl, {"comple"}), std::vector<std::string>{"completion"});
}

TEST(Completion, bash_offers_the_options_that_a_command_takes_and_no_others) {
  int count = 0;
  for (const std::string& program : {kSpecd, kSpecctl}) {
    const std::vector<std::string> options = help_words(program, "\\-\\-[a-z][a-z-]*");
    for (const std::string& command : offered(program, {""})) {
      if (command[0] == '-') continue;
      const std::vector<std::string> list = offered(program, {command, "--"});
      for (const std::string& option : options) {
        if (option == "--help" || option == "--version" || option == "help" || option == "version")
          continue;
        const std::string word = option.starts_with("--") ? option : "--" + option;
        const auto [code, output] =
            run_command(program + " " + command + " " + word + " 1" + one_more(program));
        const bool is_taken = output.find("takes no " + word) == std::string::npos;
        EXPECT_EQ(has(list, word), is_taken) << program << " " << command << " " << word << output;
        ++count;
      }
    }
  }
  EXPECT_GT(count, 100);
}

TEST(Completion, bash_offers_values_files_and_keys) {
  const ConfigFolder folder;
  const std::string here = folder.path().string();
  std::ofstream(folder.path() / "with space.yaml") << "x";
  std::ofstream(folder.path() / "plain.yaml") << "x";
  using List = std::vector<std::string>;
  EXPECT_EQ(offered(kSpecd, {"check", "--config", "pla"}, here), List{"plain.yaml"});
  EXPECT_EQ(offered(kSpecd, {"check", "--config", "with"}, here), List{"with space.yaml"});
  EXPECT_EQ(offered(kSpecd, {"check", "--config", "=", "pla"}, here), List{"plain.yaml"});
  EXPECT_EQ(offered(kSpecd, {"check", "--config", "="}, here).size(), 6U);
  EXPECT_EQ(offered(kSpecd, {"serve", "--config", "x", "--set", "engine.th"}),
            List{"engine.threads="});
  for (const std::string& key : settable_keys())
    EXPECT_TRUE(has(offered(kSpecd, {"serve", "--set", key.substr(0, 3)}), key + "=")) << key;
  EXPECT_TRUE(offered(kSpecd, {"serve", "--set", "engine.threads", "=", ""}).empty());
  // A value is no command.
  EXPECT_EQ(offered(kSpecd, {"--config", "check", "sch"}), List{"schema"});
  EXPECT_EQ(offered(kSpecd, {"--set", "engine.threads", "=", "2", "sche"}), List{"schema"});
  EXPECT_EQ(offered(kSpecd, {"completion", "f"}), List{"fish"});
  EXPECT_EQ(offered(kSpecctl, {"route", "a"}), (List{"apply", "abort"}));
  EXPECT_EQ(offered(kSpecctl, {"route", "apply", "-f", "pla"}, here), List{"plain.yaml"});
  EXPECT_EQ(offered(kSpecctl, {"status", "-o", ""}), (List{"table", "json", "yaml"}));
  EXPECT_EQ(offered(kSpecctl, {"status", "--output", "j"}), List{"json"});
  EXPECT_TRUE(offered(kSpecctl, {"generate", "--route", ""}).empty());
}

TEST(Completion, scripts_are_good_to_their_shells) {
  for (const std::string shell : {"bash", "zsh", "fish"}) {
    if (run_command("command -v " + shell).first != 0) continue;  // not on this machine
    for (const std::string& program : {kSpecd, kSpecctl}) {
      const auto [code, output] =
          run_command(program + " completion " + shell + " > /dev/null && " + program +
                      " completion " + shell + " | " + shell + " -n");
      EXPECT_EQ(code, 0) << shell << output;
      EXPECT_EQ(output, "") << shell;
    }
  }
}

// fish can be asked what it would offer.
TEST(Completion, fish_offers_commands_options_and_words) {
  if (run_command("command -v fish").first != 0) GTEST_SKIP() << "no fish on this machine";
  const auto offers = [&](const std::string& line) {
    return run_command("export HOME=$(mktemp -d); fish --no-config -c '" + kSpecctl +
                       " completion fish | source; complete -C \"specctl " + line +
                       "\"'; rm -r $HOME")
        .second;
  };
  EXPECT_NE(offers("gen").find("generate\t"), std::string::npos) << offers("gen");
  EXPECT_NE(offers("generate --prompt-f").find("--prompt-file\t"), std::string::npos);
  EXPECT_EQ(offers("status --prompt-f"), "");
  EXPECT_NE(offers("status -o ").find("json"), std::string::npos);
  EXPECT_NE(offers("route ").find("apply"), std::string::npos);
}

}  // namespace
}  // namespace specd::host
