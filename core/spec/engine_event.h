// What happens to routes and plugins while the engine runs, for those who watch it.
#pragma once

#include <cstdint>
#include <string>

namespace specd {

enum class EventKind {
  kApplied,      // a version is live, in place of the one before, if there was one
  kStopped,      // a version has ended to make room for the next, or that could not be made
  kDeleted,      // the route is gone
  kStaged,       // a version is the candidate
  kTraffic,      // the candidate's share has changed, or whether it is a shadow
  kPromoted,     // the candidate is live
  kAborted,      // the candidate was given up
  kRolledBack,   // the version before is live again
  kPassed,       // the live version has passed its probation: there is no way back any more
  kDefect,       // a plugin of a version has failed or broken a rule for the first time
  kSuspended,    // a drafter failed again and again, and does not draft for a while
  kResumed,      // it works again
  kQuarantined,  // a call of a drafter does not return, or its process dies again and again: it is not called any more
  kProcessEnded,      // the process of a drafter has died
  kProcessRestarted,  // it works again
  kSetAside,          // a plugin's control call does not return: the plugin is refused
  kNotRecorded,       // the journal could not be written: the next start does not know of it
  kConfigured,        // routes were changed to those of a configuration
  kPluginLoaded,
  kPluginRetired,  // a plugin is refused until it is loaded again
};
inline constexpr EventKind kLastEventKind = EventKind::kPluginRetired;
const char* event_kind_name(EventKind kind);

struct EngineEvent {
  uint64_t number = 0;  // 1, 2, .. in this engine; set by the event log
  int64_t unix_ns = 0;  // when, likewise
  EventKind kind = EventKind::kApplied;
  std::string route = {};       // empty for kSetAside
  uint64_t generation = 0;      // of the version that it is about; 0 = the route as a whole
  std::string text = {};        // what happened, and why, in words
  std::string request_id = {};  // of the change; empty when nobody asked for it
};

}  // namespace specd
