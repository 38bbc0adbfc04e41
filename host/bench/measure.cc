#include "host/bench/measure.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/json.h"
#include "core/base/mutex.h"

namespace specd::host {
namespace {

// Adds what was counted between two snapshots.
void add_difference(const DraftCounts& before, const DraftCounts& after, DraftCounts& to) {
  to.guarantee = after.guarantee;
  to.drafts += after.drafts - before.drafts;
  to.propose_ns += after.propose_ns - before.propose_ns;
  to.accepted_at.resize(std::max(to.accepted_at.size(), after.accepted_at.size()));
  for (size_t i = 0; i < after.accepted_at.size(); ++i)
    to.accepted_at[i] +=
        after.accepted_at[i] - (i < before.accepted_at.size() ? before.accepted_at[i] : 0);
}

Request make_request(const Prompt& prompt, const MeasureOptions& options, const std::string& route,
                     size_t sampling) {
  Request request;
  if (prompt.tokens.has_value())
    request.prompt_tokens = prompt.tokens;
  else
    request.prompt = prompt.text;
  request.sampling.temperature = options.temperatures[sampling];
  request.sampling.top_p = options.top_p;
  request.sampling.top_k = options.top_k;
  request.sampling.seed = options.seed + sampling;
  // Off, whatever the model's generation_config.json sets: the report does not name them.
  request.sampling.min_p = 0.0F;
  request.sampling.typical_p = 1.0F;
  request.sampling.repetition_penalty = 1.0F;
  request.sampling.frequency_penalty = request.sampling.presence_penalty = 0.0F;
  request.max_tokens = prompt.max_tokens > 0 ? prompt.max_tokens : options.max_tokens;
  request.ignore_eos = options.ignore_eos;
  request.route = route;
  // A unique salt: no request finds the prefix of another one in the cache.
  static std::atomic<uint64_t> number = 0;
  static const uint64_t process = now_ns();
  request.cache_salt = "bench-" + std::to_string(process) + "-" + std::to_string(++number);
  return request;
}

// Runs `work` (indices of prompts) with `concurrency` requests at a time.
Status run_block(Backend& backend, const std::vector<Prompt>& prompts,
                 const std::vector<size_t>& work, const MeasureOptions& options, size_t sampling,
                 int round, const std::atomic<bool>& stop, Cell& cell) {
  const size_t first = cell.runs.size();
  Mutex mutex;  // guards the next three
  size_t next = 0;
  std::vector<std::optional<Cell::Run>> done(work.size());
  Status problem;
  const auto worker = [&] {
    for (;;) {
      size_t mine = 0;
      {
        const MutexLock lock(mutex);
        if (next == work.size() || !problem.ok()) return;
        if (stop) {  // a short request may end before it sees that
          problem = Status(Code::kCancelled, "stopped by a signal");
          return;
        }
        mine = next++;
      }
      const Prompt& prompt = prompts[work[mine]];
      auto answer = backend.run(make_request(prompt, options, cell.route, sampling), false, stop);
      const MutexLock lock(mutex);
      if (answer.ok()) {
        done[mine] = Cell::Run{work[mine], round, std::move(answer).value()};
      } else if (problem.ok()) {
        problem = answer.status().with_context(prompt.name + " on route " + cell.route);
      }
    }
  };
  SPECD_TRY(const DraftCounts before, backend.draft_counts(cell.route));
  const uint64_t start = now_ns();
  std::vector<std::thread> others;
  for (int i = 1; i < cell.concurrency; ++i) others.emplace_back(worker);
  worker();
  for (std::thread& each : others) each.join();
  if (!problem.ok()) return problem;
  cell.busy_s += static_cast<double>(now_ns() - start) / 1e9;
  SPECD_TRY(const DraftCounts after, backend.draft_counts(cell.route));
  add_difference(before, after, cell.drafts);
  for (std::optional<Cell::Run>& each : done) cell.runs.push_back(std::move(*each));
  SPECD_CHECK(cell.runs.size() == first + work.size(), "a request of a block is missing");
  return Status();
}

// With more than one request at a time every prompt repeats until there are two full waves.
std::vector<std::vector<size_t>> make_blocks(size_t n_prompts, int concurrency) {
  std::vector<std::vector<size_t>> blocks;
  if (concurrency == 1) {
    for (size_t p = 0; p < n_prompts; ++p) blocks.push_back({p});
    return blocks;
  }
  blocks.emplace_back();
  do {
    for (size_t p = 0; p < n_prompts; ++p) blocks[0].push_back(p);
  } while (blocks[0].size() < 2 * static_cast<size_t>(concurrency));
  return blocks;
}

// By prompt: the ids of the first answer of the base route.
using Expected = std::map<size_t, std::vector<int32_t>>;

void compare_texts(Cell& cell, size_t first_run, const std::vector<Prompt>& prompts,
                   Expected& expected) {
  for (size_t i = first_run; i < cell.runs.size(); ++i) {
    const Cell::Run& run = cell.runs[i];
    const std::vector<int32_t>& got = run.answer.tokens;
    const std::vector<int32_t>& want = expected.try_emplace(run.prompt, got).first->second;
    if (got == want || !cell.first_difference.empty()) continue;
    const auto at = std::mismatch(got.begin(), got.end(), want.begin(), want.end());
    cell.first_difference = prompts[run.prompt].name + ": token " +
                            std::to_string(std::distance(got.begin(), at.first));
  }
}

Row::Spread spread(const std::vector<double>& values) {
  return {percentile(values, 0.5), percentile(values, 0.9), percentile(values, 0.99)};
}

// Milliseconds per token by prompt and round, without runs that have no token after the first. The
// mean when a prompt ran more than once in a block.
struct Pace {
  double ms_per_token = 0, tau = 0;
};
std::map<std::pair<size_t, int>, Pace> paces_of(const Cell& cell) {
  struct Sum {
    double ms = 0;
    int64_t tokens = 0, steps = 0;
  };
  std::map<std::pair<size_t, int>, Sum> sums;
  for (const Cell::Run& run : cell.runs) {
    const Answer& answer = run.answer;
    if (answer.decode_tokens() < 1) continue;
    Sum& sum = sums[{run.prompt, run.round}];
    sum.ms += answer.ms_per_token() * static_cast<double>(answer.decode_tokens());
    sum.tokens += answer.decode_tokens();
    sum.steps += answer.decode_steps();
  }
  std::map<std::pair<size_t, int>, Pace> paces;
  for (const auto& [key, sum] : sums) {
    if (sum.ms <= 0 || sum.steps < 1) continue;
    paces[key] = {sum.ms / static_cast<double>(sum.tokens),
                  static_cast<double>(sum.tokens) / static_cast<double>(sum.steps)};
  }
  return paces;
}

// S and S / tau of `cell` against `base`. Each prompt counts with the median of its rounds, so that
// the interval is over prompts, which are independent. With one prompt it is over its rounds.
void fill_speedup(const Cell& cell, const Cell& base, Row& row) {
  const auto here = paces_of(cell), there = paces_of(base);
  std::map<size_t, std::vector<double>> speedups, etas;
  for (const auto& [key, pace] : here) {
    const auto found = there.find(key);
    if (found == there.end()) continue;
    const double speedup = found->second.ms_per_token / pace.ms_per_token;
    speedups[key.first].push_back(speedup);
    etas[key.first].push_back(speedup / pace.tau);
  }
  const auto by_prompt = [](const std::map<size_t, std::vector<double>>& values) {
    if (values.size() == 1) return values.begin()->second;
    std::vector<double> medians;
    medians.reserve(values.size());
    for (const auto& [prompt, each] : values) medians.push_back(median(each));
    return medians;
  };
  const std::vector<double> values = by_prompt(speedups);
  row.speedup = median(values);
  row.speedup_interval = median_interval(values);
  row.eta = median(by_prompt(etas));
}

}  // namespace

Measurement measure(Backend& backend, const std::vector<Prompt>& prompts,
                    const MeasureOptions& options, const std::atomic<bool>& stop,
                    const std::function<void()>& between_rounds) {
  Measurement out;
  std::vector<std::pair<std::string, bool>> arms;
  for (const std::string& route : options.routes) arms.emplace_back(route, false);
  if (options.with_control) arms.emplace_back(options.routes.front(), true);
  for (size_t sampling = 0; sampling < options.temperatures.size(); ++sampling)
    for (const int concurrency : options.concurrencies)
      for (const auto& [route, is_control] : arms)
        out.cells.push_back({.route = route,
                             .is_control = is_control,
                             .sampling = sampling,
                             .temperature = options.temperatures[sampling],
                             .concurrency = concurrency,
                             .runs = {},
                             .drafts = {},
                             .busy_s = 0,
                             .first_difference = {}});
  for (const std::string& route : options.routes) {
    const auto warm = backend.run(make_request(prompts.front(), options, route, 0), false, stop);
    if (!warm.ok()) {
      out.status = warm.status().with_context(prompts.front().name + " on route " + route);
      return out;
    }
  }

  std::vector<Expected> expected(options.temperatures.size());
  for (int round = 0; round < options.repeat; ++round) {
    if (between_rounds) between_rounds();
    size_t first = 0;
    for (size_t t = 0; t < options.temperatures.size(); ++t) {
      for (const int concurrency : options.concurrencies) {
        for (const std::string& route : options.routes) {
          const Result<bool> fresh = backend.renew_drafter(route, stop);
          if (!fresh.ok()) {
            out.status = fresh.status().with_context("a fresh drafter for route " + route);
            return out;
          }
          out.fresh_drafters = out.fresh_drafters && fresh.value();
        }
        bool forward = round % 2 == 0;
        for (const std::vector<size_t>& work : make_blocks(prompts.size(), concurrency)) {
          // Texts are compared after all arms of the block, so that the base's come first.
          std::vector<size_t> runs_before;
          for (size_t a = 0; a < arms.size(); ++a)
            runs_before.push_back(out.cells[first + a].runs.size());
          for (size_t i = 0; i < arms.size(); ++i) {
            Cell& cell = out.cells[first + (forward ? i : arms.size() - 1 - i)];
            out.status = run_block(backend, prompts, work, options, t, round, stop, cell);
            if (!out.status.ok()) break;
          }
          for (size_t a = 0; a < arms.size(); ++a)
            compare_texts(out.cells[first + a], runs_before[a], prompts, expected[t]);
          if (!out.status.ok()) return out;
          forward = !forward;
        }
        first += arms.size();
      }
    }
  }
  if (between_rounds) between_rounds();
  return out;
}

std::string shortest(float value) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof(digits), value).ptr};
}

std::string sampling_text(float temperature) {
  return temperature == 0 ? "greedy" : "temperature " + shortest(temperature);
}

std::vector<Row> summarize(const Measurement& measurement, bool skip_loops) {
  std::vector<Row> rows;
  const Cell* base = nullptr;
  std::map<std::pair<size_t, size_t>, bool> loops;  // by sampling and prompt
  for (const Cell& cell : measurement.cells)
    for (const Cell::Run& run : cell.runs)
      loops.try_emplace({cell.sampling, run.prompt}, ends_in_loop(run.answer.tokens));
  Cell kept_base;
  for (const Cell& all : measurement.cells) {
    const bool is_base =
        base == nullptr || all.sampling != base->sampling || all.concurrency != base->concurrency;
    Cell cell = all;
    if (skip_loops)
      std::erase_if(cell.runs, [&](const Cell::Run& run) {
        return loops.at({cell.sampling, run.prompt});
      });
    if (is_base) {
      kept_base = cell;
      base = &kept_base;
    }
    Row& row = rows.emplace_back();
    row.route = cell.route;
    row.is_control = cell.is_control;
    row.sampling = cell.sampling;
    row.temperature = cell.temperature;
    row.concurrency = cell.concurrency;
    row.identical = cell.first_difference.empty();
    // At temperature 0 a text with the law of plain decoding is that text.
    row.promises_text = cell.drafts.guarantee == Guarantee::kIdentical ||
                        (cell.drafts.guarantee == Guarantee::kLaw && cell.temperature == 0);
    row.first_difference = cell.first_difference;
    std::vector<double> input_tokens, first_ms, token_ms;
    int64_t decode_tokens = 0, decode_steps = 0;
    double request_s = 0;
    for (const Cell::Run& run : cell.runs) {
      const Answer& answer = run.answer;
      ++row.requests;
      row.tokens += static_cast<int64_t>(answer.tokens.size());
      row.drafted += answer.usage.draft_tokens;
      row.accepted += answer.usage.accepted_tokens;
      row.loops += loops.at({cell.sampling, run.prompt}) ? 1 : 0;
      request_s += static_cast<double>(answer.end_ns - answer.start_ns) / 1e9;
      input_tokens.push_back(answer.usage.prompt_tokens);
      first_ms.push_back(answer.ms_to_first());
      if (answer.decode_tokens() < 1) continue;
      token_ms.push_back(answer.ms_per_token());
      decode_tokens += answer.decode_tokens();
      decode_steps += answer.decode_steps();
    }
    const double seconds = !skip_loops ? cell.busy_s : cell.concurrency == 1 ? request_s : 0;
    if (seconds > 0) row.tokens_per_s = static_cast<double>(row.tokens) / seconds;
    if (!skip_loops && cell.drafts.drafts > 0)
      for (const uint64_t accepted : cell.drafts.accepted_at)
        row.accepted_at.push_back(static_cast<double>(accepted) /
                                  static_cast<double>(cell.drafts.drafts));
    if (!skip_loops && cell.busy_s > 0)
      row.drafting = static_cast<double>(cell.drafts.propose_ns) / 1e9 / cell.busy_s;
    row.input_tokens = median(input_tokens);
    row.ttft_ms = spread(first_ms);
    row.tpot_ms = spread(token_ms);
    if (row.tpot_ms.p50 > 0) row.decode_tokens_per_s = 1000 / median(token_ms);
    if (decode_steps > 0)
      row.tau = static_cast<double>(decode_tokens) / static_cast<double>(decode_steps);
    fill_speedup(cell, *base, row);
  }
  return rows;
}

Result<std::string> record(Backend& backend, const std::vector<Prompt>& prompts,
                           const MeasureOptions& options, const std::atomic<bool>& stop) {
  Json sequences = Json::array();
  for (size_t sampling = 0; sampling < options.temperatures.size(); ++sampling) {
    for (const Prompt& prompt : prompts) {
      const auto answer =
          backend.run(make_request(prompt, options, options.routes.at(0), sampling), true, stop);
      if (!answer.ok()) return answer.status().with_context(prompt.name);
      sequences.push_back({{"prompt", answer.value().prompt_tokens},
                           {"output", answer.value().tokens},
                           {"seed", options.seed + sampling}});
    }
  }
  return Json{{"sequences", std::move(sequences)}}.dump() + "\n";
}

}  // namespace specd::host
