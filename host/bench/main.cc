// specd-bench: makes heavy targets, and measures routes side by side.
#include <signal.h>

#include <cstdio>
#include <exception>

#include "host/base/output.h"
#include "host/bench/command.h"
#include "host/version.h"

namespace specd::host {

namespace {

constexpr char kHelp[] =
    "specd-bench: measures routes side by side, on targets that stream from memory\n"
    "\n"
    "  specd-bench ballast   a checkpoint made heavy: same tokens, more bytes a forward\n"
    "  specd-bench run       the same prompts on several routes: speed, acceptance, identical or not\n"
    "  specd-bench prefill   how long a short request waits beside a long prompt\n"
    "  specd-bench COMMAND --help\n"
    "\n"
    "Exit codes: 0 fine, 1 refused, interrupted, a text that differs, or output that cannot be\n"
    "            written, 2 wrong command line\n";

void on_signal(int number) {
  if (bench_stop.exchange(true)) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "--help" || command == "-h") {
    write_output(kHelp);
    return kBenchOk;
  }
  if (command == "--version") {
    write_output("specd-bench " + std::string(kVersion) + "\n");
    return kBenchOk;
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const std::vector<std::string> rest(arguments.begin() + (arguments.empty() ? 0 : 1),
                                      arguments.end());
  if (command == "ballast") return ballast_command(rest);
  if (command == "run") return run_command(rest);
  if (command == "prefill") return prefill_command(rest);
  const std::string expected = "expected ballast, run or prefill";
  return bench_usage("",
                     command.empty() ? expected : "unknown command '" + command + "'; " + expected);
}

}  // namespace

}  // namespace specd::host

int main(int argc, char** argv) {
  try {
    return specd::host::end_output("specd-bench", specd::host::run({argv + 1, argv + argc}));
  } catch (const std::exception& error) {  // memory at most
    std::fprintf(stderr, "specd-bench: %s\n", error.what());
    return 1;
  }
}
