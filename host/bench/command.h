// The commands of specd-bench, and what their options share.
#pragma once

#include <atomic>
#include <boost/program_options.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "host/base/command_line.h"

namespace specd::host {

constexpr int kBenchOk = 0;
constexpr int kBenchFailed = 1;  // refused, interrupted, or a text that differs
constexpr int kBenchUsage = 2;

// Set by SIGINT and SIGTERM; commands then stop and report. A second signal ends the process.
extern std::atomic<bool> bench_stop;

int bench_fail(const Status& status);

// "2GB", "512MiB", "1000000": a whole number, alone or with KB, MB, GB (powers of 1000), KiB, MiB
// or GiB. kInvalidArgument naming `option`.
Result<uint64_t> parse_bytes(const std::string& option, std::string_view text);

// Each takes the arguments after its name.
int ballast_command(const std::vector<std::string>& arguments);
int prefill_command(const std::vector<std::string>& arguments);
int run_command(const std::vector<std::string>& arguments);

// To stdout.
void print_options(const boost::program_options::options_description& options);
int bench_usage(const std::string& command, const std::string& problem);

}  // namespace specd::host
