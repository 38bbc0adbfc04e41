// Routes side by side on the same prompts: is the text the same, and what did it cost?
//
// A block is one route on one prompt (concurrency 1) or on all prompts (more). The routes take
// turns on every block, each time in the opposite order (ABBA), so that a machine that slows down
// slows all of them. The base route runs once more as the control: its difference from the base is
// the noise of the run. Every request has its own cache salt, so none is faster because of an
// earlier one.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "host/bench/backend.h"
#include "host/bench/statistics.h"
#include "host/bench/workload.h"

namespace specd::host {

struct MeasureOptions {
  std::vector<std::string> routes;  // the first is the base
  bool with_control = false;
  std::vector<int> concurrencies{1};
  std::vector<float> temperatures{0};  // 0 = greedy
  float top_p = 1;
  int32_t top_k = 0;
  uint64_t seed = 0;  // of the first temperature; each further one adds 1, so that recordings of
                      // one prompt differ
  int32_t max_tokens = 0;
  bool ignore_eos = false;
  int repeat = 1;
};

// One route at one sampling and one concurrency.
struct Cell {
  std::string route;
  bool is_control = false;
  size_t sampling = 0;  // place in the list of temperatures
  float temperature = 0;
  int concurrency = 1;

  struct Run {
    size_t prompt = 0;
    int round = 0;
    Answer answer;
  };
  std::vector<Run> runs;
  DraftCounts drafts;
  double busy_s = 0;             // wall time of the blocks
  std::string first_difference;  // "orders.py: token 17"; empty: ids equal the base's everywhere
};

struct Measurement {
  std::vector<Cell> cells;     // by temperature, concurrency, route; the base first
  Status status;               // why it ended early; the cells then have what was measured
  bool fresh_drafters = true;  // false: drafters kept what earlier passes had taught them
};

// Runs every route once on the first prompt, untimed, then everything `repeat` times. Every pass
// over the prompts (one round, temperature and concurrency) begins with fresh drafters where the
// backend can make them: one that learns across requests has seen nothing of these prompts.
// between_rounds (may be empty) is called before each round and after the last one, with nothing
// running.
Measurement measure(Backend& backend, const std::vector<Prompt>& prompts,
                    const MeasureOptions& options, const std::atomic<bool>& stop,
                    const std::function<void()>& between_rounds);

// For the reader of a measurement without fresh drafters.
constexpr char kNoFreshDrafters[] =
    "drafters: those of the daemon, which keep what earlier requests taught them; for fresh ones "
    "in every round use specd-bench run --config\n";
// The fewest digits that give the value: "0.8", "0.05", "1"
std::string shortest(float value);
// "greedy", "temperature 0.8"
std::string sampling_text(float temperature);

// One line of the result.
struct Row {
  std::string route;
  bool is_control = false;
  size_t sampling = 0;  // place in the list of temperatures
  float temperature = 0;
  int concurrency = 1;
  double input_tokens = 0;  // of a prompt, median
  int64_t requests = 0, tokens = 0, drafted = 0, accepted = 0, loops = 0;
  // All tokens / wall time of the blocks, prefill included; 0: unknown.
  double tokens_per_s = 0;
  double decode_tokens_per_s = 0;  // of one request, median: 1000 / TPOT
  struct Spread {
    double p50 = 0, p90 = 0, p99 = 0;
  } ttft_ms, tpot_ms;
  // The share of the nonempty drafts whose node at depth 1, 2, ... was accepted; empty when unknown
  // (skip_loops) or without drafts.
  std::vector<double> accepted_at;
  double drafting = 0;  // share of the blocks' wall time inside propose(); 0 with skip_loops
  double tau = 0;       // tokens per decode step
  double speedup = 0;   // S: TPOT of the base / TPOT here, prompt by prompt, median
  Interval speedup_interval;
  double eta = 0;  // S / tau, prompt by prompt, median
  bool identical = true;
  bool promises_text = true;  // by its guarantee: then a text that differs is a fault
  std::string first_difference;
};

// skip_loops: without the prompts whose base text ends in a loop; tokens_per_s is then known at
// concurrency 1 only.
std::vector<Row> summarize(const Measurement& measurement, bool skip_loops);

// Runs every prompt once on the first route and returns {"sequences": [{"prompt": [ids], "output":
// [ids], "seed": n}]}, the format that the replay drafter reads.
Result<std::string> record(Backend& backend, const std::vector<Prompt>& prompts,
                           const MeasureOptions& options, const std::atomic<bool>& stop);

}  // namespace specd::host
