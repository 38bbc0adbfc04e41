// The state that the live page shows, as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "core/engine.h"

namespace specd::host {

struct PageLimits {
  int32_t sequences_max = 0, queue_max = 0;
};

// Counters only grow, times are those of the engine: the page takes the differences of two states.
//
//   {"version", "model", "device", "state": "ready", "uptime_ns", "step_age_ns",
//    "running", "sequences_max", "waiting", "queue_max", "steps", "rows", "tokens",
//    "kv": {"pages", "free", "cached", "page_tokens", "queries", "hits"},
//    "routes": [{"name", "state", "generation", "is_default", "drafter", "verifier", "guarantee", "suspended",
//                "in_use", "requests", "steps", "drafts", "drafted", "accepted", "rejected", "discarded",
//                "accepted_at": [..], "lost", "cut", "problem"}],
//    "requests": [REQUEST], "followed": REQUEST or null, "is_picked",
//    "trees": [{"step", "at", "root": TOKEN, "nodes": [[parent, TOKEN, is_probe]], "accepted": [node],
//               "next": TOKEN or null}]}
//   REQUEST: {"number", "id", "index", "route", "generation", "prompt", "output", "max", "drafted", "accepted"}
//   TOKEN: [id, text]; one that is not whole characters is "bytes:\xe2\x82"
//
// The last trees of the followed request, see WatchedStep. Asking makes steps record them for two seconds.
std::string page_state(const Engine& engine, const PageLimits& limits);

}  // namespace specd::host
