#include "core/base/failpoint.h"

#include <cstdlib>

#ifdef SPECD_FAILPOINTS

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <chrono>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/quote.h"
#include "core/base/words.h"

#endif

namespace specd {

namespace {
constexpr char kVariable[] = "SPECD_FAILPOINTS";
}  // namespace

#ifdef SPECD_FAILPOINTS

namespace {

enum class FailAction { kNone, kFail, kCrash, kSleep, kBlock };

constexpr std::array kNames = {
#define SPECD_FAILPOINT_NAME(id, name, can_fail) name,
    SPECD_FAILPOINT_LIST(SPECD_FAILPOINT_NAME)
#undef SPECD_FAILPOINT_NAME
};

struct SetFailpoint {
  FailAction action = FailAction::kNone;
  std::chrono::milliseconds sleep{0};
  uint64_t at = 0;  // 0 = every time
  uint64_t n_reached = 0;
  int n_blocked = 0;
};
using AllFailpoints = std::array<SetFailpoint, kNames.size()>;

struct Failpoints {
  std::atomic<bool> is_set{false};
  Mutex mutex;
  CondVar changed;
  uint64_t number SPECD_GUARDED_BY(mutex) = 0;  // of the setting
  AllFailpoints all SPECD_GUARDED_BY(mutex){};
};
// Never destroyed: threads may be blocked in it.
Failpoints& failpoints() {
  static Failpoints* const the = new Failpoints;
  return *the;
}

// The whole text as a number from 1 to a million.
bool read_number(std::string_view text, uint64_t& out) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, out);
  return read.ec == std::errc() && read.ptr == end && out >= 1 && out <= 1'000'000;
}

// Splits at the first `sign`; without one the second part is empty.
std::pair<std::string_view, std::string_view> split(std::string_view text, char sign) {
  const size_t at = text.find(sign);
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

Status read_failpoint(std::string_view text, AllFailpoints& all) {
  const auto refuse = [&](const std::string& what) {
    return Status(Code::kInvalidArgument, kVariable, quote(text) + ": " + what);
  };
  const auto [name, what] = split(text, '=');
  const auto [action, count] = split(what, '@');
  size_t i = 0;
  while (i < kNames.size() && kNames[i] != name) ++i;
  if (i == kNames.size())
    return refuse("no failpoint is called " + quote(name) +
                  known_words(name, std::vector<std::string>(kNames.begin(), kNames.end())));
  SetFailpoint next;
  constexpr std::string_view kSleep = "sleep ";
  uint64_t ms = 0;
  if (action == "fail") {
    next.action = FailAction::kFail;
  } else if (action == "crash") {
    next.action = FailAction::kCrash;
  } else if (action == "block") {
    next.action = FailAction::kBlock;
  } else if (action.starts_with(kSleep) && read_number(action.substr(kSleep.size()), ms)) {
    next.action = FailAction::kSleep;
    next.sleep = std::chrono::milliseconds(ms);
  } else {
    return refuse("expected NAME=ACTION with fail, crash, block or sleep and milliseconds, found " +
                  quote(action));
  }
  if (next.action == FailAction::kFail && !can_fail(static_cast<Failpoint>(i)))
    return refuse("this place cannot fail; expected crash, block or sleep and milliseconds");
  if (what.find('@') != std::string_view::npos && !read_number(count, next.at))
    return refuse("expected a number from 1 behind '@', found " + quote(count));
  all[i] = next;
  return Status();
}

}  // namespace

Status set_failpoints(const std::string& text) {
  AllFailpoints all{};
  std::string_view rest = text;
  while (!rest.empty()) {
    const auto [one, others] = split(rest, ';');
    SPECD_OK_OR_RETURN(read_failpoint(one, all));
    rest = others;
  }
  Failpoints& the = failpoints();
  {
    const MutexLock lock(the.mutex);
    the.all = all;
    ++the.number;
    the.is_set = true;
  }
  the.changed.notify_all();
  return Status();
}

bool reach_failpoint(Failpoint at) {
  Failpoints& the = failpoints();
  if (!the.is_set) return false;
  std::chrono::milliseconds sleep{0};
  {
    MutexLock lock(the.mutex);
    SetFailpoint& its = the.all[static_cast<size_t>(at)];
    ++its.n_reached;
    if (its.at != 0 && its.at != its.n_reached) return false;
    switch (its.action) {
      case FailAction::kNone:
        return false;
      case FailAction::kFail:
        return true;
      case FailAction::kCrash:
        (void)kill(getpid(), SIGKILL);
        break;
      case FailAction::kSleep:
        sleep = its.sleep;
        break;
      case FailAction::kBlock:
        ++its.n_blocked;
        for (const uint64_t number = the.number; number == the.number;) the.changed.wait(lock);
        break;
    }
  }
  std::this_thread::sleep_for(sleep);
  return false;
}

uint64_t n_reached(Failpoint at) {
  const MutexLock lock(failpoints().mutex);
  return failpoints().all[static_cast<size_t>(at)].n_reached;
}

int n_blocked(Failpoint at) {
  const MutexLock lock(failpoints().mutex);
  return failpoints().all[static_cast<size_t>(at)].n_blocked;
}

const char* failpoint_name(Failpoint at) { return kNames[static_cast<size_t>(at)]; }

Status set_failpoints_of_environment() {
  static const Status set = [] {
    const char* const text = std::getenv(kVariable);
    return text == nullptr ? Status() : set_failpoints(text);
  }();
  return set;
}

#else

Status set_failpoints_of_environment() {
  if (std::getenv(kVariable) == nullptr) return Status();
  return Status(Code::kUnsupported, kVariable,
                "this build has no failpoints; unset the variable, or build with "
                "-DSPECD_FAILPOINTS=ON, for tests only");
}

#endif

}  // namespace specd
