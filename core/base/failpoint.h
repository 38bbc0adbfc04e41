// Named places where a program that was built with SPECD_FAILPOINTS can be made to fail, end, sleep or block, so that
// tests reach what no input reaches. In every other build they compile to nothing.
//
//   SPECD_FAILPOINTS='journal.sync=fail@3;step.begin=block' specd serve ...
//
//   NAME=ACTION[@N]  at the Nth time that the place is reached, else every time
//   ACTION           fail      as the system would; only where the list says so
//                    crash     SIGKILL of the own process
//                    sleep MS  for so many milliseconds
//                    block     until other failpoints are set
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>

#include "core/base/status.h"

// X(the name in code, the name in the variable, whether the place can fail)
#define SPECD_FAILPOINT_LIST(X)                                                                    \
  X(kJournalWrite, "journal.write", true)            /* before a line is written */                \
  X(kJournalSync, "journal.sync", true)              /* before it is on disk */                    \
  X(kJournalTruncate, "journal.truncate", true)      /* before what failed is cut off */           \
  X(kJournalReplace, "journal.replace", true)        /* before the new file is written */          \
  X(kJournalRename, "journal.rename", true)          /* before it takes the old one's place */     \
  X(kJournalSyncFolder, "journal.sync_folder", true) /* before that is on disk */                  \
  X(kRouteFlip, "route.flip", true)                  /* a change is recorded, but not published */ \
  X(kRouteFlipped, "route.flipped", false)           /* and published, but not told */             \
  X(kRouteRetire, "route.retire", false)             /* before a pair is destroyed, [control] */   \
  X(kPluginCopy, "plugin.copy", true)                /* a library is open, but not read */         \
  X(kPluginRename, "plugin.rename", true)            /* before its copy gets its name */           \
  X(kProcessStart, "process.start", true)            /* before the process of a drafter starts */  \
  X(kProcessWatch, "process.watch", true)            /* it has started, but is not watched */      \
  X(kProcessRings, "process.rings", true)            /* before its rings are made */               \
  X(kProcessAnswer, "process.answer", true)          /* it was asked, and has not answered */      \
  X(kStepBegin, "step.begin", false)                 /* before a step, on its thread */            \
  X(kStepLogits, "step.logits", true)                /* failing: the first row is no number */     \
  X(kSocketAccept, "socket.accept", true)            /* before a client is accepted */

namespace specd {

enum class Failpoint : uint8_t {
#define SPECD_FAILPOINT_ID(id, name, can_fail) id,
  SPECD_FAILPOINT_LIST(SPECD_FAILPOINT_ID)
#undef SPECD_FAILPOINT_ID
};

constexpr bool can_fail(Failpoint at) {
  constexpr bool kAll[] = {
#define SPECD_FAILPOINT_FAILS(id, name, can_fail) can_fail,
      SPECD_FAILPOINT_LIST(SPECD_FAILPOINT_FAILS)
#undef SPECD_FAILPOINT_FAILS
  };
  return kAll[static_cast<uint8_t>(at)];
}

// [any] Once, before the program serves: sets those of the environment, if it has the variable. In a build without
// failpoints the variable is an error.
Status set_failpoints_of_environment();

#ifdef SPECD_FAILPOINTS

// [any] Sets these, as the variable would, and no others. Whoever is blocked goes on. An unknown name or action, or
// `fail` where nothing can fail, is an error that lists what there is, and changes nothing.
Status set_failpoints(const std::string& text);
// [any] How often the place was reached, and how many threads are blocked there, since they were set.
uint64_t n_reached(Failpoint at);
int n_blocked(Failpoint at);
const char* failpoint_name(Failpoint at);

// [any] At a place: does what was set for it. True when it is to fail.
bool reach_failpoint(Failpoint at);

// Condition: whether the place fails now, with `error` in errno.
#define SPECD_FAILS(id, error)                                                        \
  ([]() -> bool {                                                                     \
    static_assert(::specd::can_fail(::specd::Failpoint::id), "the list has no fail"); \
    if (!::specd::reach_failpoint(::specd::Failpoint::id)) return false;              \
    errno = (error);                                                                  \
    return true;                                                                      \
  }())
// Statement, at a place that cannot fail.
#define SPECD_FAILPOINT(id) ((void)::specd::reach_failpoint(::specd::Failpoint::id))

#else

#define SPECD_FAILS(id, error) (static_cast<void>(::specd::Failpoint::id), false)
#define SPECD_FAILPOINT(id) static_cast<void>(::specd::Failpoint::id)

#endif

}  // namespace specd
