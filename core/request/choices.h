// The choices of one request: several texts for one prompt.
//
//   choice 0 ─ sink 0 ─┐
//   choice 1 ─ sink 1 ─┼─> the client's sink: events with an index, one last event
//   choice 2 ─ sink 2 ─┘
//
// Each choice is a sequence of its own, drawn with seed + index. With best_of > n the client gets the n
// choices whose tokens have the highest mean log-probability under the model (Logprobs), best first,
// when all have ended; on ties the lower index. When a choice fails, so does the request.
#pragma once

#include <vector>

#include "core/request/request.h"

namespace specd {

// One sink for each choice. They share state and must be called on one thread.
std::vector<Sink> choice_sinks(const Request& request, Sink client);

}  // namespace specd
