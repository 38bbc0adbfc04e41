// specd: the daemon's command line.
#include <boost/program_options.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "host/command_line.h"
#include "host/config.h"
#include "host/daemon.h"
#include "host/table.h"
#include "host/version.h"

namespace specd::host {
namespace {

namespace po = boost::program_options;

constexpr char kHelp[] =
    "specd: LLM inference with speculative decoding from plugins\n"
    "\n"
    "  specd serve --config FILE   load the model and serve until SIGTERM or SIGINT\n"
    "  specd check --config FILE   check the configuration, the model's files and the routes without\n"
    "                              loading weights; runs the code of the routes' plugins\n"
    "  specd --version | --help\n"
    "\n"
    "Exit codes: 0 fine, 1 could not load or listen, 2 wrong command line, 3 wrong configuration,\n"
    "            4 stopped, but had to cut requests or a plugin that hung, or was told to leave at\n"
    "              once\n";

int usage(const std::string& problem) {
  std::fprintf(stderr, "specd: %s\nTry: specd --help\n", printable(problem).c_str());
  return kExitUsage;
}

int wrong_config(const Status& status) {
  std::fprintf(stderr, "specd: %s\n", printable(status.message()).c_str());
  return kExitConfig;
}

int check(const Config& config) {
  const Status status = check_options(config.engine);
  shut_down_plugins();
  if (!status.ok()) return wrong_config(with_place(config, status));
  std::printf("%s: ok (model %s, %zu routes besides off)\n", config.file.c_str(),
              config.engine.model.name.c_str(), config.engine.routes.size());
  return kExitOk;
}

int run(int argc, char** argv) {
  po::options_description options;
  options.add_options()("help,h", "")("version", "")("config", po::value<std::string>(), "")(
      "command", po::value<std::string>(), "");
  po::positional_options_description positional;
  positional.add("command", 1);
  const auto parsed = read_command_line(options, positional, {argv + 1, argv + argc});
  if (!parsed.ok()) return usage(parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    std::fputs(kHelp, stdout);
    return kExitOk;
  }
  if (values.count("version") != 0) {
    std::printf("specd %s\n", kVersion);
    return kExitOk;
  }
  if (values.count("command") == 0) return usage("expected a command: serve or check");
  const std::string command = values["command"].as<std::string>();
  if (command != "serve" && command != "check") {
    const std::string near = nearest(command, {"serve", "check"});
    return usage("unknown command '" + command + "'; " +
                 (near.empty() ? "expected serve or check" : "did you mean '" + near + "'?"));
  }
  if (values.count("config") == 0) return usage(command + " needs --config FILE");
  const Result<Config> config = load_config(values["config"].as<std::string>());
  if (!config.ok()) return wrong_config(config.status());
  return command == "check" ? check(config.value()) : run_daemon(config.value());
}

}  // namespace
}  // namespace specd::host

int main(int argc, char** argv) {
  try {
    return specd::host::run(argc, argv);
  } catch (const std::exception& error) {  // memory at most: no room throws
    std::fprintf(stderr, "specd: %s\n", error.what());
    return specd::host::kExitFailed;
  }
}
