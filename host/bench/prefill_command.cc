// specd-bench prefill.
#include "host/bench/command.h"
#include "host/bench/engine_config.h"
#include "host/bench/prefill.h"
#include "host/bench/statistics.h"
#include "host/base/output.h"
#include "host/base/table.h"

namespace specd::host {

namespace po = boost::program_options;

int prefill_command(const std::vector<std::string>& arguments) {
  po::options_description options(
      "specd-bench prefill --config FILE: the time to the first token of a short request that comes\n"
      "while a long prompt is being prefilled, by the time of one chunk");
  add_engine_options(options);
  PrefillOptions wanted;
  auto add = options.add_options();
  add("help,h", "this text");
  add("long", po::value<int32_t>(&wanted.long_tokens)->default_value(4096), "tokens");
  add("short", po::value<int32_t>(&wanted.short_tokens)->default_value(32), "tokens");
  add("repeat", po::value<int>(&wanted.repeat)->default_value(5), "rounds");
  const auto parsed = read_command_line(options, {}, arguments);
  if (!parsed.ok()) return bench_usage("prefill", parsed.status().message());
  if (parsed.value().count("help") != 0) {
    print_options(options);
    return kBenchOk;
  }
  if (parsed.value().count("config") == 0) return bench_usage("prefill", "expected --config FILE");
  if (wanted.short_tokens < 1 || wanted.long_tokens <= wanted.short_tokens)
    return bench_usage("prefill", "expected --short of at least 1 and less than --long");
  if (wanted.repeat < 1 || wanted.repeat > 1000)
    return bench_usage("prefill", "--repeat: expected 1 to 1000");

  const auto config = read_engine_config(parsed.value());
  if (!config.ok()) return bench_fail(config.status());
  const PluginsEnd plugins_end;
  const auto engine = start_engine(config.value());
  if (!engine.ok()) return bench_fail(engine.status());
  const auto rounds = measure_prefill(*engine.value(), wanted, bench_stop);
  if (!rounds.ok()) return bench_fail(rounds.status());
  std::vector<double> shares;
  Table table({"long alone ms", "chunk ms", "short alone ms", "short beside it ms", "chunks"});
  for (const PrefillRound& round : rounds.value()) {
    shares.push_back(round.meeting_ms / round.chunk_ms);
    table.add({fixed(round.long_ms, 1), fixed(round.chunk_ms, 1), fixed(round.short_ms, 1),
               fixed(round.meeting_ms, 1), fixed(shares.back(), 2)});
  }
  write_output(printable(table.text()) + std::to_string(wanted.short_tokens) + " tokens beside " +
               std::to_string(wanted.long_tokens) + ": the first token after " +
               fixed(median(shares), 2) + " chunk times (median of " +
               std::to_string(wanted.repeat) + ", most " + fixed(percentile(shares, 1), 2) + ")\n");
  return kBenchOk;
}

}  // namespace specd::host
