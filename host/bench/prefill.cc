#include "host/bench/prefill.h"

#include <chrono>
#include <thread>

#include "host/bench/engine_backend.h"
#include "host/bench/workload.h"

namespace specd::host {
namespace {

constexpr uint64_t kStepsLeast = 4;  // of the long prompt; fewer leave no time to be met
constexpr std::chrono::microseconds kPoll{100};

Request request_of(int32_t n_tokens, uint64_t seed, int32_t vocab_size) {
  const SyntheticOptions drawn{.count = 1,
                               .input_mean = static_cast<double>(n_tokens),
                               .input_stdev = 0,
                               .output_mean = 1,
                               .output_stdev = 0,
                               .seed = seed};
  Request request;
  request.prompt_tokens = synthetic_prompts(drawn, vocab_size, n_tokens + 1).front().tokens;
  request.max_tokens = 1;
  request.route = "off";
  return request;
}

}  // namespace

Result<std::vector<PrefillRound>> measure_prefill(Engine& engine, const PrefillOptions& options,
                                                  const std::atomic<bool>& stop) {
  EngineBackend backend(engine);
  const int32_t vocab_size = engine.model().vocab_size;
  uint64_t seed = options.seed;
  const auto long_one = [&] { return request_of(options.long_tokens, ++seed, vocab_size); };
  const auto short_one = [&] { return request_of(options.short_tokens, ++seed, vocab_size); };
  std::vector<PrefillRound> rounds;
  for (int i = 0; i < options.repeat; ++i) {
    PrefillRound round;
    uint64_t steps = engine.status().steps;
    SPECD_TRY(const Answer alone, backend.run(long_one(), false, stop));
    steps = engine.status().steps - steps;
    if (steps < kStepsLeast)
      return Status(Code::kFailedPrecondition,
                    "--long: expected a prompt of at least " + std::to_string(kStepsLeast) +
                        " chunks, " + std::to_string(options.long_tokens) + " tokens took " +
                        std::to_string(steps) + "; make it longer, or engine.step_tokens_max less");
    round.long_ms = alone.ms_to_first();
    round.chunk_ms = round.long_ms / static_cast<double>(steps);
    SPECD_TRY(const Answer small, backend.run(short_one(), false, stop));
    round.short_ms = small.ms_to_first();

    const uint64_t before = engine.status().steps;
    Result<Answer> big = Status(Code::kInternal, "not run");
    std::atomic<bool> ended = false;
    std::thread sender([&, request = long_one()] {
      big = backend.run(request, false, stop);
      ended = true;
    });
    while (engine.status().steps == before && !ended) std::this_thread::sleep_for(kPoll);
    const Result<Answer> met = backend.run(short_one(), false, stop);
    sender.join();
    if (!met.ok()) return met.status();
    if (!big.ok()) return big.status();
    if (met.value().start_ns > big.value().first_ns)
      return Status(Code::kFailedPrecondition,
                    "--long: the long prompt was done before the short one could be sent; expected "
                    "more than " +
                        std::to_string(options.long_tokens) + " tokens");
    round.meeting_ms = met.value().ms_to_first();
    rounds.push_back(round);
  }
  return rounds;
}

}  // namespace specd::host
