// specd: the daemon's command line.
#include <unistd.h>

#include <boost/program_options.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "core/base/last_words.h"
#include "core/base/run_within.h"
#include "core/base/words.h"
#include "core/rank_process.h"
#include "host/base/command_line.h"
#include "host/base/completion.h"
#include "host/compat/load.h"
#include "host/config/config.h"
#include "host/config/config_print.h"
#include "host/config/config_schema.h"
#include "host/daemon/daemon.h"
#include "host/daemon/renewal.h"
#include "host/base/memory_table.h"
#include "host/base/output.h"
#include "host/base/table.h"
#include "host/version.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;

constexpr char kAbout[] = "specd: LLM inference with speculative decoding from plugins\n";
constexpr char kNotes[] =
    "\n"
    "The environment overrides the file, --set overrides both: SPECD__ENGINE__THREADS=2 and\n"
    "--set engine.threads=2. Relative paths are relative to the file, wherever they are given; those in\n"
    "--speculative-config are relative to the working directory.\n"
    "\n"
    "Exit codes: 0 fine, 1 could not load, listen or print, 2 wrong command line,\n"
    "            3 wrong configuration, 4 stopped, but had to cut requests or a plugin that hung,\n"
    "            or was told to leave at once\n";

int usage(const std::string& problem) {
  std::fprintf(stderr, "specd: %s\nTry: specd --help\n", printable(problem).c_str());
  return kExitUsage;
}

int wrong_config(const Status& status) {
  std::fprintf(stderr, "specd: %s\n", printable(status.text()).c_str());
  return kExitConfig;
}

// main() tells of output that is lost.
int print(const std::string& text) {
  write_output(text);
  return kExitOk;
}

// What a rank will hold, and the pages that other places of draft models would leave.
std::string plan_text(const MemoryPlan& plan) {
  MemoryTable memory;
  for (const MemoryPlan::Line& line : plan.lines)
    memory.add(line.what, line.detail, line.bytes, {});
  Table places({"pages of KV that fit with", "shared by ranks", "on rank 0 alone", "elsewhere"});
  for (const MemoryPlan::Placements& each : plan.placements) {
    const auto cell = [&](int32_t pages, bool is_chosen) {
      return (pages < 0 ? "cannot be shared" : std::to_string(pages)) +
             (is_chosen ? " (chosen)" : "");
    };
    places.add({each.draft_model, cell(each.pages_shared, each.is_shared),
                cell(each.pages_alone, !each.is_shared), cell(each.pages_elsewhere, false)});
  }
  return memory.text() + places.text();
}

// Whoever opens a port to everybody has to say so.
Result<Config> check_insecure(Result<Config> config, bool is_allowed) {
  const std::optional<TcpOptions>& tcp = config.value().tcp;
  if (!tcp.has_value() || tcp->tls.has_value() || is_allowed) return config;
  return with_place(config.value(),
                    Status(Code::kFailedPrecondition, "tcp.tls",
                           "expected certificates; to let everybody on this machine use Inference "
                           "without, start with --insecure"));
}

int check(const Config& config) {
  std::unique_ptr<TlsKeys> tls, http_tls;
  std::unique_ptr<Doorkeeper> doorkeeper;
  std::vector<Renewal> renewals;
  if (const Status keys = load_keys(config, tls, http_tls, doorkeeper, renewals); !keys.ok())
    return wrong_config(keys);
  const Result<MemoryPlan> plan = check_options(config.engine);
  const Status& status = plan.status();
  if (n_late_works() > 0) {
    // exit() waits for the linker's lock, which a constructor that hangs holds.
    const int code = wrong_config(with_place(config, status));
    expect_end();
    _exit(code);
  }
  shut_down_plugins();
  if (!status.ok()) return wrong_config(with_place(config, status));
  write_output(config.file + ": ok (model " + config.engine.model.name + ", " +
               std::to_string(config.engine.routes.size()) + " routes besides off)\n" +
               printable(plan_text(plan.value())));
  return kExitOk;
}

Program make_program() {
  Program program{
      .name = "specd",
      .commands =
          {{"serve", "--config FILE | --model-repository DIR",
            "load the model and serve until SIGTERM or SIGINT;\nSIGHUP reads the configuration again"},
           {"check", "--config FILE | --model-repository DIR",
            "check the configuration, the model's files and the\n"
            "routes without loading weights; runs the code of the\n"
            "routes' plugins"},
           {"schema", "[--table]",
            "print the JSON Schema of configurations for editors, or\n"
            "a table of all keys"},
           {"completion", "SHELL", "print completion for bash, zsh or fish", completion_shells()}},
      .options = po::options_description("Options"),
      .taken_by = {{"config", "serve check"},
                   {"model-repository", "serve check"},
                   {"load-model", "serve check"},
                   {"speculative-config", "serve check"},
                   {"strict-config", "serve check"},
                   {"set", "serve check"},
                   {"print-config", "serve check"},
                   {"insecure", "serve"},
                   {"table", "schema"}},
  };
  auto add = program.options.add_options();
  add("help,h", "this text");
  add("version", "the version");
  add("config", po::value<std::string>()->value_name("FILE"), "the configuration, YAML");
  add("model-repository", po::value<std::string>()->value_name("PATH"),
      "instead of --config: a model repository as Triton has it, of TensorRT-LLM's LLM API or vLLM; HTTP on port "
      "8000, gRPC on 8001, metrics on 8002 of 127.0.0.1");
  add("load-model", po::value<std::string>()->value_name("NAME"),
      "which model of the repository, NAME or NAME/VERSION, where it has several");
  add("speculative-config", po::value<std::string>()->value_name("JSON"),
      "how to speculate, as vLLM takes it: a default route instead of the file's");
  add("strict-config", po::bool_switch(),
      "refuse unknown keys of a model repository and of --speculative-config, which are otherwise ignored with a "
      "warning");
  add("set", po::value<std::vector<std::string>>()->composing()->value_name("KEY=VALUE"),
      "instead of the file's value, such as engine.threads=2; may be repeated");
  add("print-config", po::bool_switch(),
      "print the effective configuration with the origin of each value, and exit; the output is "
      "itself a valid configuration");
  add("insecure", po::bool_switch(),
      "serve a port without certificates (tcp.listen) on a loopback address: everybody on this machine may use "
      "Inference there");
  add("table", po::bool_switch(), "a table in Markdown");
  std::vector<std::string> keys;
  for (const std::string& key : settable_keys()) keys.push_back(key + "=");
  program.values = {{"set", keys}};
  return program;
}

// What to load, or what is wrong with the command line.
Result<LoadOptions> load_options(const std::string& command, const po::variables_map& values) {
  const auto text = [&](const char* name) {
    return values.count(name) == 0 ? std::string() : values[name].as<std::string>();
  };
  const auto wrong = [&](const std::string& problem) {
    return Status(Code::kInvalidArgument, problem);
  };
  LoadOptions options{.config = text("config"),
                      .model_repository = text("model-repository"),
                      .load_model = text("load-model"),
                      .speculative_config = text("speculative-config"),
                      .is_strict = values["strict-config"].as<bool>()};
  for (const char* name : {"model-repository", "load-model", "speculative-config"})
    if (values.count(name) != 0 && text(name).empty())
      return wrong("--" + std::string(name) + ": expected a value, found an empty one");
  const bool has_repository = !options.model_repository.empty();
  if (values.count("config") == 0 && !has_repository)
    return wrong(command + " needs --config FILE or --model-repository DIR");
  if (values.count("config") != 0 && has_repository)
    return wrong("expected --config or --model-repository, not both");
  if (!options.load_model.empty() && !has_repository)
    return wrong("--load-model is for --model-repository");
  if (options.is_strict && !has_repository && options.speculative_config.empty())
    return wrong(
        "--strict-config is for --model-repository and --speculative-config; unknown keys of "
        "--config are always refused");
  options.overrides =
      overrides_of_process(values.count("set") != 0 ? values["set"].as<std::vector<std::string>>()
                                                    : std::vector<std::string>());
  return options;
}

int run_command(const Program& program, const std::string& command,
                const po::variables_map& values) {
  if (command == "schema")
    return print(values["table"].as<bool>() ? config_table() : config_schema());
  if (command == "completion") {
    const auto script = completion_script(
        program, values.count("argument") != 0 ? values["argument"].as<std::string>() : "");
    return script.ok() ? print(script.value()) : usage(script.status().message());
  }
  const auto options = load_options(command, values);
  if (!options.ok()) return usage(options.status().message());
  Result<Config> config = load(options.value(), surroundings_of_process());
  if (config.ok())
    for (const std::string& warning : config.value().warnings)
      std::fprintf(stderr, "specd: %s\n", printable(warning).c_str());
  const bool serves = command == "serve" && !values["print-config"].as<bool>();
  if (serves && config.ok())
    config = check_insecure(std::move(config), values["insecure"].as<bool>());
  if (serves && RankProcess::is_one()) return run_daemon(config);
  if (!config.ok()) return wrong_config(config.status());
  if (values["print-config"].as<bool>()) return print(print_config(config.value()));
  return command == "check" ? check(config.value()) : run_daemon(config);
}

int run(int argc, char** argv) {
  const Program program = make_program();
  po::options_description all;
  all.add(program.options)
      .add_options()("command", po::value<std::string>(), "")("argument", po::value<std::string>(),
                                                              "");
  po::positional_options_description positional;
  positional.add("command", 1).add("argument", 1);
  const auto parsed = read_command_line(all, positional, {argv + 1, argv + argc});
  if (!parsed.ok()) return usage(parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0)
    return print(kAbout + ("\n" + commands_help(program)) + "  specd --version | --help\n\n" +
                 options_text(program) + kNotes);
  if (values.count("version") != 0) return print("specd " + std::string(kVersion) + "\n");
  const std::vector<std::string> names = program.command_names();
  if (values.count("command") == 0) return usage("expected a command: " + joined(names));
  const std::string command = values["command"].as<std::string>();
  const Command* known = program.find(command);
  if (known == nullptr) {
    const std::string near = did_you_mean(command, names);
    return usage("unknown command '" + command + "'" +
                 (near.empty() ? "; expected " + joined(names) : near));
  }
  if (const std::string option = option_of_another_command(program, values, command);
      !option.empty())
    return usage(command + " takes no --" + option);
  if (values.count("argument") != 0 && known->words.empty())
    return usage(command + " takes no '" + values["argument"].as<std::string>() + "'");
  return run_command(program, command, values);
}

}  // namespace
}  // namespace specd::host

int main(int argc, char** argv) {
  specd::install_last_words();
  int code = specd::host::kExitFailed;
  try {
    code = specd::host::end_output("specd", specd::host::run(argc, argv));
  } catch (const std::exception& error) {  // memory at most: no room throws
    std::fprintf(stderr, "specd: %s\n", error.what());
  }
  specd::expect_end();
  return code;
}
