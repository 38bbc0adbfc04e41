// The life of a sequence with its drafter: begin, update, end.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ranks/step_input.h"
#include "core/ranks/step_output.h"
#include "core/step/context.h"
#include "core/step/plugin_batch.h"

namespace specd {

// begin() for every running sequence that has a route and has not met its drafter yet. One that
// cannot be met, or that the drafter fails, is decoded plainly from here on.
void begin_drafting(StepContext& step, std::vector<ActiveSequence>& running);

// update() with the rows that a step has committed, for the members of one route: in several calls
// where a prompt's chunk is longer than the grant. `input` and `output` are those of the step.
// A member that the drafter fails is decoded plainly from here on. Not ok: the device has failed.
Status update(StepContext& step, LiveRoute& route, const Members& members, const StepInput& input,
              const StepOutput& output);

// The sequence is over for its drafter: end(), and its sessions with draft models go. Idempotent.
void end_drafting(StepContext& step, ActiveSequence& member, uint32_t reason);

}  // namespace specd
