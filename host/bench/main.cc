// specd-bench: makes heavy targets, and measures routes side by side.
#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <sstream>

#include "host/bench/ballast.h"
#include "host/bench/command.h"
#include "host/table.h"
#include "host/version.h"

namespace specd::host {

std::atomic<bool> bench_stop = false;

namespace {

namespace po = boost::program_options;

constexpr char kHelp[] =
    "specd-bench: measures routes side by side, on targets that stream from memory\n"
    "\n"
    "  specd-bench ballast   a checkpoint made heavy: same tokens, more bytes a forward\n"
    "  specd-bench run       the same prompts on several routes: speed, acceptance, identical or not\n"
    "  specd-bench COMMAND --help\n"
    "\n"
    "Exit codes: 0 fine, 1 refused, broken off, or a text that differs, 2 wrong command line\n";

void on_signal(int number) {
  if (bench_stop.exchange(true)) {
    signal(number, SIG_DFL);
    raise(number);
  }
}

int run(const std::vector<std::string>& arguments) {
  const std::string command = arguments.empty() ? "" : arguments[0];
  if (command == "--help" || command == "-h") {
    std::fputs(kHelp, stdout);
    return kBenchOk;
  }
  if (command == "--version") {
    std::printf("specd-bench %s\n", kVersion);
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
  const std::string expected = "expected ballast or run";
  return bench_usage("",
                     command.empty() ? expected : "unknown command '" + command + "'; " + expected);
}

}  // namespace

int bench_fail(const Status& status) {
  std::fprintf(stderr, "specd-bench: %s: %s\n", code_name(status.code()),
               printable(status.message()).c_str());
  return kBenchFailed;
}

int bench_usage(const std::string& command, const std::string& problem) {
  std::fprintf(stderr, "specd-bench: %s\nTry: specd-bench %s--help\n", printable(problem).c_str(),
               command.empty() ? "" : (command + " ").c_str());
  return kBenchUsage;
}

Result<uint64_t> parse_bytes(const std::string& option, std::string_view text) {
  constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1},  {"KB", 1e3},    {"MB", 1e6},       {"GB", 1e9},
      {"B", 1}, {"KiB", 1024.}, {"MiB", 1048576.}, {"GiB", 1073741824.}};
  uint64_t value = 0;
  const auto [end, bad] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : kUnits) {
    if (bad != std::errc() || unit != name) continue;
    if (value == 0 || static_cast<double>(value) * factor > 0x1p50) break;
    return value * static_cast<uint64_t>(factor);
  }
  return Status(Code::kInvalidArgument,
                option + ": expected a size such as 2GB, 512MiB or 1000000, found '" +
                    std::string(text) + "'");
}

Result<std::vector<double>> parse_list(const std::string& option, const std::string& text,
                                       double min, double max, bool whole) {
  std::vector<double> values;
  std::istringstream parts(text);
  const auto number = [](double value) {
    std::ostringstream out;
    out << value;
    return out.str();
  };
  for (std::string part; std::getline(parts, part, ',');) {
    double value = 0;
    const auto [end, bad] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (bad != std::errc() || end != part.data() + part.size() || !(value >= min && value <= max) ||
        (whole && value != std::floor(value)))
      return Status(Code::kInvalidArgument, option + ": expected " +
                                                (whole ? "whole numbers" : "numbers") + " from " +
                                                number(min) + " to " + number(max) +
                                                ", separated by commas, found '" + part + "'");
    values.push_back(value);
  }
  if (values.empty())
    return Status(Code::kInvalidArgument, option + ": expected at least one number");
  return values;
}

Result<po::variables_map> parse_command(const po::options_description& options,
                                        const po::positional_options_description& positional,
                                        const std::vector<std::string>& arguments) {
  po::variables_map values;
  try {
    namespace style = po::command_line_style;
    po::store(po::command_line_parser(arguments)
                  .options(options)
                  .positional(positional)
                  .style(style::unix_style & ~style::allow_guessing)
                  .run(),
              values);
    po::notify(values);
  } catch (const po::error& error) {
    return Status(Code::kInvalidArgument, error.what());
  }
  return values;
}

int ballast_command(const std::vector<std::string>& arguments) {
  po::options_description options(
      "specd-bench ballast --bytes SIZE MODEL OUT: a checkpoint that reads SIZE of weights a "
      "forward\nand writes the tokens of MODEL, to the bit");
  auto add = options.add_options();
  add("help,h", "this text");
  add("bytes", po::value<std::string>(), "size of the new model.safetensors: 2GB, 512MiB");
  add("context", po::value<int32_t>(), "new max_position_embeddings, for long prompts");
  add("model", po::value<std::string>(), "a Hugging Face folder with a plain Llama");
  add("out", po::value<std::string>(), "the new folder; must not exist");
  po::positional_options_description positional;
  positional.add("model", 1).add("out", 1);
  const auto parsed = parse_command(options, positional, arguments);
  if (!parsed.ok()) return bench_usage("ballast", parsed.status().message());
  const po::variables_map& values = parsed.value();
  if (values.count("help") != 0) {
    std::ostringstream text;
    text << options;
    std::fputs(text.str().c_str(), stdout);
    return kBenchOk;
  }
  for (const char* need : {"bytes", "model", "out"})
    if (values.count(need) == 0)
      return bench_usage("ballast",
                         std::string("expected --bytes SIZE MODEL OUT; missing: ") + need);
  const auto bytes = parse_bytes("--bytes", values["bytes"].as<std::string>());
  if (!bytes.ok()) return bench_usage("ballast", bytes.status().message());
  BallastOptions wanted{.model = values["model"].as<std::string>(),
                        .out = values["out"].as<std::string>(),
                        .bytes = bytes.value(),
                        .context = 0,
                        .progress = {},
                        .stop = &bench_stop};
  if (values.count("context") != 0) {
    wanted.context = values["context"].as<int32_t>();
    if (wanted.context < 1) return bench_usage("ballast", "--context: expected at least 1");
  }
  const bool is_terminal = isatty(STDERR_FILENO) == 1;
  if (is_terminal)
    wanted.progress = [](double fraction) {
      std::fprintf(stderr, "\r[%3d %%] writing", static_cast<int>(fraction * 100));
    };
  const auto made = write_ballast(wanted);
  if (is_terminal) std::fputc('\n', stderr);
  if (!made.ok()) return bench_fail(made.status());
  const BallastReport& report = made.value();
  std::printf("%s: ballast of %s, %s of weights (the source has %s), %d layers, FFN %d\n",
              printable(wanted.out).c_str(), printable(wanted.model).c_str(),
              bytes_text(report.bytes).c_str(), bytes_text(report.source_bytes).c_str(),
              report.shape.n_layers, report.shape.intermediate_size);
  return kBenchOk;
}

}  // namespace specd::host

int main(int argc, char** argv) {
  try {
    return specd::host::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {  // memory at most
    std::fprintf(stderr, "specd-bench: %s\n", error.what());
    return 1;
  }
}
