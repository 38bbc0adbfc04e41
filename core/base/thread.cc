#include "core/base/thread.h"

#include <signal.h>
#include <unistd.h>

#include <string>

#include "core/base/last_words.h"
#include "core/base/log.h"

namespace specd {

AlternateStack::AlternateStack() {
  stack_t now{};
  // A sanitizer sets its own.
  if (sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
  stack_t wanted{};
  wanted.ss_sp = memory_.data();
  wanted.ss_size = memory_.size();
  is_set_ = sigaltstack(&wanted, nullptr) == 0;
}

AlternateStack::~AlternateStack() {
  if (!is_set_) return;
  stack_t none{};
  none.ss_flags = SS_DISABLE;
  sigaltstack(&none, nullptr);
}

void end_for_want_of_thread(const char* name, const std::system_error& error) {
  say("specd: cannot start the thread " + std::string(name) + ": " + error.code().message() +
      "; raise the limit of threads (ulimit -u, pids.max of the control group) or of memory\n");
  flush_log(kLastWriteLimit);
  expect_end();
  _exit(1);
}

}  // namespace specd
