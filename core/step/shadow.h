// Shows a shadow what the requests of its route do: the same begin(), update() and end() as the route's own
// drafter gets, and a propose() whose draft nobody waits for. It is compared with the text later, on the
// shadow's thread (core/plugin/beside/score.h).
#pragma once

#include <cstdint>

#include "core/step/context.h"
#include "core/step/plugin_batch.h"

namespace specd {

// The shadow of the member's route that has begun it, or null.
inline LiveRoute* shadow_of(const ActiveSequence& member) {
  LiveRoute* const shadow = member.route == nullptr ? nullptr : member.route->shadow.get();
  const auto slot = static_cast<size_t>(member.slot);
  return shadow != nullptr && shadow->shadow_sessions[slot].is_on() ? shadow : nullptr;
}
// Calls fn(shadow, members that it has begun) once per shadow of the members' routes.
template <typename Fn>
void by_shadow(const Members& members, Fn&& fn) {
  Members all;
  for (ActiveSequence* member : members) {
    if (shadow_of(*member) != nullptr) all.push_back(member);
  }
  by_route(all, [&](LiveRoute& route, const Members& its) { fn(*route.shadow, its); });
}
// Asks for the drafts of this step. `n_running`: sequences that run.
void propose_to_shadows(StepContext& step, const Members& members, int32_t n_running);
// Ends what the shadow of the member's route has of it, which loses its slot or its route.
void end_shadow(StepContext& step, ActiveSequence& member, uint32_t reason);

}  // namespace specd
