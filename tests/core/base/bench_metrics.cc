// What counting costs a step: its parts, in ns. A step reads the clock five times and records one
// duration; every sequence that got tokens reads it once and records one more (the difference of
// the two Send lines).
#include <benchmark/benchmark.h>

#include "core/base/clock.h"
#include "core/base/histogram.h"
#include "core/request/sequence.h"

namespace specd {
namespace {

void Clock(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(now_ns());
}
BENCHMARK(Clock);

void Record(benchmark::State& state) {
  DurationHistogram histogram;
  uint64_t ns = 1;
  for (auto _ : state) histogram.record(ns = ns * 3 % 10'000'000'007);
}
BENCHMARK(Record);

void Send(benchmark::State& state) {
  const auto tokenizer =
      Tokenizer::load(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json");
  if (!tokenizer.ok()) return state.SkipWithError(tokenizer.status().to_string().c_str());
  Request request;
  request.max_tokens = INT32_MAX;
  request.ignore_eos = true;
  Sequence sequence(1, request, {1}, SamplingParams(), {}, tokenizer.value(), [](const Event&) {});
  RequestMetrics metrics;
  sequence.arrived_ns = now_ns();
  if (state.range(0) != 0) sequence.metrics = &metrics;
  const int32_t token = 65;
  for (auto _ : state) {
    sequence.append(&token, 1);
    sequence.send();
  }
}
BENCHMARK(Send)->Arg(0)->Arg(1)->ArgName("counted");

}  // namespace
}  // namespace specd

BENCHMARK_MAIN();
