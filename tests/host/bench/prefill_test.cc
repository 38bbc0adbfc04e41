#include "host/bench/prefill.h"

#include <gtest/gtest.h>

#include "tests/core/engine_rig.h"

namespace specd::host {
namespace {

const std::atomic<bool> kNeverStopped = false;

class Prefill : public EngineTest {};

TEST_F(Prefill, a_short_request_is_met_within_the_long_one) {
  EngineOptions o = options();
  o.step_tokens_max = 64;
  start(o);
  const auto rounds = measure_prefill(
      *engine_, {.long_tokens = 1600, .short_tokens = 16, .repeat = 2}, kNeverStopped);
  ASSERT_TRUE(rounds.ok()) << rounds.status().to_string();
  ASSERT_EQ(rounds.value().size(), 2u);
  for (const PrefillRound& round : rounds.value()) {
    EXPECT_GT(round.chunk_ms, 0);
    EXPECT_NEAR(round.long_ms / round.chunk_ms, 25, 1) << "1600 tokens by 64";
    EXPECT_GT(round.short_ms, 0);
    EXPECT_GT(round.meeting_ms, 0);
  }
}

TEST_F(Prefill, a_prompt_of_few_chunks_and_one_beyond_the_context_are_refused) {
  start(options());
  const auto few = measure_prefill(*engine_, {.long_tokens = 600}, kNeverStopped);
  ASSERT_FALSE(few.ok());
  EXPECT_NE(few.status().text().find("--long: expected"), std::string::npos);
  const auto long_one = measure_prefill(*engine_, {.long_tokens = 4096}, kNeverStopped);
  ASSERT_FALSE(long_one.ok());
  EXPECT_NE(long_one.status().text().find("in the context of"), std::string::npos);
}

}  // namespace
}  // namespace specd::host
