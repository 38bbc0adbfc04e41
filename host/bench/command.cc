#include "host/bench/command.h"

#include <charconv>
#include <cstdio>
#include <sstream>

#include "host/base/output.h"
#include "host/base/table.h"

namespace specd::host {

namespace po = boost::program_options;

std::atomic<bool> bench_stop = false;

int bench_fail(const Status& status) {
  std::fprintf(stderr, "specd-bench: %s: %s\n", code_name(status.code()),
               printable(status.text()).c_str());
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

void print_options(const po::options_description& options) {
  std::ostringstream text;
  text << options;
  write_output(text.str());
}

}  // namespace specd::host
