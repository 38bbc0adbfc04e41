// A drafter's calls over the life of a sequence: begin, update, end.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ranks/step_input.h"
#include "core/ranks/step_output.h"
#include "core/step/context.h"
#include "core/step/plugin_batch.h"

namespace specd {

// Calls begin() for every running sequence whose drafter, or its route's shadow, has not begun it yet. A
// sequence is decoded plainly from then on when the drafter has no attach mode for it or fails it, or when there
// is no memory for the call. While the drafter is suspended no sequence begins, and those that it has
// are decoded plainly; each counts as lost, also one that may begin later.
void begin_drafting(StepContext& step, std::vector<ActiveSequence>& running);

// Calls update() with the rows that a step has committed, for members of one route, or for its shadow: several
// times when they are more than the grant's max_rows. `input` and `output` are those of the step.
// A member that the drafter fails, or all when there is no memory for the columns, are decoded
// plainly from then on.
void update(StepContext& step, LiveRoute& route, const Members& members, const StepInput& input,
            const StepOutput& output);

// Calls end() if the drafter of `route`, the member's or its shadow, still has the sequence, and ends its
// sessions of draft models. Idempotent. Needs no memory.
void end_session(StepContext& step, LiveRoute& route, ActiveSequence& member, uint32_t reason);

}  // namespace specd
