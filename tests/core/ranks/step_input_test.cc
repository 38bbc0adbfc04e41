#include "core/ranks/step_input.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace specd {
namespace {

constexpr StepLimits kLimits{
    .rows_max = 8, .logits_rows_max = 4, .vocab_size = 100, .n_pages = 4, .positions_end = 64};
const std::vector<size_t> kPartTokens = {4, 2};

// A root at position 3 with two children, of which the second attends through the tail.
StepInput good() {
  StepInput input;
  input.rows.token = {5, 6, 7};
  input.rows.position = {3, 4, 4};
  input.rows.slot = {35, 36, 37};
  input.rows.span = {4, 5, 4};
  input.rows.table = {0, 0, 0};
  input.rows.tail_begin = {0, 0, 0};
  input.rows.pages = {2};
  input.rows.tail = {37};
  input.rows.logits_rows = {0, 1, 2};
  input.rows.tap_rows = {0};
  input.draws.resize(3);
  input.penalty_row.resize(3);
  input.penalty_row[1] = {.seen_begin = 0,
                          .seen_end = 2,
                          .path_begin = 0,
                          .path_end = 1,
                          .bias_begin = 0,
                          .bias_end = 1};
  input.penalty_seen = {{.token = 1, .count = 1}, {.token = 99, .count = 0}};
  input.penalty_path = {1};
  input.penalty_bias = {{.token = 3, .add = 1}};
  input.picks = {{.part = 0, .from = {0, 1}, .to = {1, 2}}};
  return input;
}

TEST(StepInput, a_composed_input_has_no_fault) {
  StepInput input = good();
  EXPECT_EQ(step_input_fault(input, kLimits, kPartTokens), "");
  input.picks = {{.part = 1, .from = {1}, .to = {1}}, {.part = 0, .from = {3}, .to = {2}}};
  EXPECT_EQ(step_input_fault(input, kLimits, kPartTokens), "") << "parts in any order";
  input.picks.clear();
  EXPECT_EQ(step_input_fault(input, kLimits), "") << "nothing to pick needs no part";
}

TEST(StepInput, every_damage_is_named_with_what_was_expected) {
  struct Damage {
    std::function<void(StepInput&)> make;
    std::string fault;
  };
  const std::vector<Damage> damages = {
      {[](StepInput& i) { i.rows.token.clear(); }, "rows.token has 0 entries, expected 1..8"},
      {[](StepInput& i) { i.rows.token[1] = 100; }, "rows.token[1] is 100, expected 0..99"},
      {[](StepInput& i) { i.rows.token[0] = -1; }, "rows.token[0] is -1, expected 0..99"},
      {[](StepInput& i) { i.rows.slot.pop_back(); }, "rows.slot has 2 entries, expected 3"},
      {[](StepInput& i) { i.rows.slot[2] = 64; }, "rows.slot[2] is 64, expected 0..63"},
      {[](StepInput& i) { i.rows.slot[2] = 35; }, "rows.slot[2] repeats that of an earlier row"},
      {[](StepInput& i) { i.rows.position[0] = 64; }, "rows.position[0] is 64, expected 0..63"},
      {[](StepInput& i) { i.rows.span[0] = 5; }, "rows.span[0] is 5, expected 0..4"},
      {[](StepInput& i) { i.rows.span[2] = 3; }, "rows.tail_begin[2] is 0, expected 0..-1"},
      {[](StepInput& i) { i.rows.table[1] = 1; }, "rows.table[1] is 1, expected 0..0"},
      {[](StepInput& i) { i.rows.pages[0] = 4; }, "rows.pages[0] is 4, expected 0..3"},
      {[](StepInput& i) { i.rows.tail[0] = -5; }, "rows.tail[0] is -5, expected 0..63"},
      {[](StepInput& i) { i.rows.tail_begin[2] = 1; }, "rows.tail_begin[2] is 1, expected 0..0"},
      {[](StepInput& i) { i.rows.logits_rows[1] = 0; }, "rows.logits_rows[1] is 0, expected 1..2"},
      {[](StepInput& i) { i.rows.tap_rows[0] = 3; }, "rows.tap_rows[0] is 3, expected 0..2"},
      {[](StepInput& i) { i.draws.pop_back(); }, "draws has 2 entries, expected 3"},
      {[](StepInput& i) { i.penalty_row.pop_back(); }, "penalty_row has 2 entries, expected 3"},
      {[](StepInput& i) { i.penalty_row[1].seen_end = 3; },
       "penalty_row[1].seen is 0..3, expected within 0..2"},
      {[](StepInput& i) { i.penalty_row[1].path_begin = 2; },
       "penalty_row[1].path is 2..1, expected within 0..1"},
      {[](StepInput& i) { i.penalty_seen[0].token = 100; },
       "penalty_seen.token[0] is 100, expected 0..99"},
      {[](StepInput& i) { i.penalty_path[0] = 3; }, "penalty_path[0] is 3, expected 0..2"},
      {[](StepInput& i) { i.penalty_row[1].bias_end = 2; },
       "penalty_row[1].bias is 0..2, expected within 0..1"},
      {[](StepInput& i) { i.penalty_bias[0].token = -1; },
       "penalty_bias.token[0] is -1, expected 0..99"},
      {[](StepInput& i) { i.picks[0].to[1] = 1; }, "picks[0].to[1] is 1, expected 2..2"},
      {[](StepInput& i) { i.picks[0].to[1] = 3; }, "picks[0].to[1] is 3, expected 2..2"},
      {[](StepInput& i) { i.picks[0].from.pop_back(); }, "picks[0].from has 1 entries, expected 2"},
      {[](StepInput& i) { i.picks[0].from[1] = -1; }, "picks[0].from[1] is -1, expected 0..3"},
      {[](StepInput& i) { i.picks[0].from[1] = 4; }, "picks[0].from[1] is 4, expected 0..3"},
      {[](StepInput& i) { i.picks[0] = {.part = 1, .from = {2}, .to = {1}}; },
       "picks[0].from[0] is 2, expected 0..1"},
      {[](StepInput& i) { i.picks[0].part = -1; }, "picks[0].part is -1, expected 0..1"},
      {[](StepInput& i) { i.picks[0].part = 2; }, "picks[0].part is 2, expected 0..1"},
      {[](StepInput& i) { i.picks.push_back(i.picks[0]); },
       "picks[1].part repeats that of an earlier pick"},
      {[](StepInput& i) { i.picks.resize(3); }, "picks has 3 entries, expected at most 2"},
  };
  for (const Damage& damage : damages) {
    StepInput input = good();
    damage.make(input);
    EXPECT_EQ(step_input_fault(input, kLimits, kPartTokens), damage.fault);
  }
  StepLimits few = kLimits;
  few.logits_rows_max = 2;
  EXPECT_EQ(step_input_fault(good(), few, kPartTokens),
            "rows.logits_rows has 3 entries, expected at most 2");
  EXPECT_EQ(step_input_fault(good(), kLimits), "picks has 1 entries, expected at most 0");
}

}  // namespace
}  // namespace specd
