#include "core/spec/engine_event.h"

namespace specd {

const char* event_kind_name(EventKind kind) {
  switch (kind) {
    case EventKind::kApplied:
      return "applied";
    case EventKind::kStopped:
      return "stopped";
    case EventKind::kDeleted:
      return "deleted";
    case EventKind::kStaged:
      return "staged";
    case EventKind::kTraffic:
      return "traffic";
    case EventKind::kPromoted:
      return "promoted";
    case EventKind::kAborted:
      return "aborted";
    case EventKind::kRolledBack:
      return "rolled_back";
    case EventKind::kPassed:
      return "passed";
    case EventKind::kDefect:
      return "defect";
    case EventKind::kSuspended:
      return "suspended";
    case EventKind::kResumed:
      return "resumed";
    case EventKind::kQuarantined:
      return "quarantined";
    case EventKind::kProcessEnded:
      return "process_ended";
    case EventKind::kProcessRestarted:
      return "process_restarted";
    case EventKind::kSetAside:
      return "set_aside";
    case EventKind::kNotRecorded:
      return "not_recorded";
    case EventKind::kConfigured:
      return "configured";
    case EventKind::kPluginLoaded:
      return "plugin_loaded";
    case EventKind::kPluginRetired:
      break;
  }
  return "plugin_retired";
}

}  // namespace specd
