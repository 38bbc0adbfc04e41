#include "core/base/last_words.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string_view>

#include "core/base/log.h"
#include "core/base/sanitizer.h"

namespace specd {

constinit thread_local Activity detail::activity;
constinit thread_local ActivityWatcher* detail::activity_watcher = nullptr;

namespace {

constexpr size_t kTextBytesMax = 2048;
constexpr int kExitUnasked = 1;

std::atomic<bool> is_end_expected{false}, is_said{false};
std::atomic<pid_t> watched_process{0};  // a child that a plugin forks may end as it likes

constexpr size_t kNameBytesMax = 480;

struct NamedMemory {
  std::atomic<bool> is_taken{false};
  std::atomic<uintptr_t> begin{UINTPTR_MAX}, end{0};
  std::array<char, kNameBytesMax + 1> name{};
};
// Read by signal handlers.
std::array<NamedMemory, 1024> named_memory;

const char* name_of(uintptr_t address) {
  for (const NamedMemory& each : named_memory) {
    if (address >= each.begin && address < each.end) return each.name.data();
  }
  return nullptr;
}

// Everything below here up to on_terminate() may run in a signal handler: no allocation, no lock.
class Text {
 public:
  Text& add(std::string_view text) {
    for (const char c : text) {
      // A newline may be part of the name of a file.
      if (n_ < kTextBytesMax - 1) text_[n_++] = static_cast<unsigned char>(c) < ' ' ? ' ' : c;
    }
    return *this;
  }
  Text& add_hex(uintptr_t value) {
    add("0x");
    for (int shift = 60; shift >= 0; shift -= 4) {
      if (shift == 0 || value >> shift != 0) add({&"0123456789abcdef"[value >> shift & 15], 1});
    }
    return *this;
  }
  // Once in a process: the thread that dies first knows why. Nothing in a child that a plugin forks.
  void say() {
    if (watched_process != getpid() || is_said.exchange(true)) return;
    text_[n_++] = '\n';
    pollfd ready{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
    // It may be a pipe that nobody reads.
    const auto wait_ms = static_cast<int>(kLastWriteLimit.count());
    if (poll(&ready, 1, wait_ms) == 1) (void)!write(STDERR_FILENO, text_, n_);
  }

 private:
  char text_[kTextBytesMax + 1];
  size_t n_ = 0;
};

// Where the signal struck.
struct Registers {
  uintptr_t pc, stack;
};
Registers registers_of(const void* context) {
  const mcontext_t& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return {static_cast<uintptr_t>(machine.gregs[REG_RIP]),
          static_cast<uintptr_t>(machine.gregs[REG_RSP])};
#else
  return {static_cast<uintptr_t>(machine.pc), static_cast<uintptr_t>(machine.sp)};
#endif
}

// The plugin whose code is the nearest on a stack, whose end is not known: abort() and the checks of
// the heap end in the C library. Null when there is none.
const char* caller_on(uintptr_t stack) {
  constexpr size_t kBlockBytes = 4096, kBytesMax = 16 * kBlockBytes;
  static std::array<uintptr_t, kBlockBytes / sizeof(uintptr_t)> words;  // of the first who dies
  stack -= stack % sizeof(uintptr_t);
  for (size_t done = 0; done < kBytesMax;) {
    // Up to the end of the page: the kernel copies, and says where nothing is mapped.
    const size_t bytes = kBlockBytes - stack % kBlockBytes;
    const iovec to{.iov_base = words.data(), .iov_len = bytes};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): for the kernel, nothing here reads through it.
    const iovec from{.iov_base = reinterpret_cast<void*>(stack), .iov_len = bytes};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) != static_cast<ssize_t>(bytes)) break;
    for (size_t i = 0; i < bytes / sizeof(uintptr_t); ++i) {
      const char* name = name_of(words[i]);
      if (name != nullptr && std::string_view(name).starts_with("plugin ")) return name;
    }
    stack += bytes;
    done += bytes;
  }
  return nullptr;
}

// Not certain: a word of an earlier call may lie on the stack.
void add_caller(Text& text, uintptr_t stack) {
  const char* caller = is_said ? nullptr : caller_on(stack);
  if (caller != nullptr) text.add(", with code of ").add(caller).add(" on its stack");
}

// Whether the kernel gives the address of this fault. Of a general-protection fault it gives 0.
bool has_address(int number, int code) {
  if (number == SIGSEGV) return code == SEGV_MAPERR || code == SEGV_ACCERR;
  return number == SIGBUS && code > 0 && code != SI_KERNEL;
}

void add_who(Text& text, const char* code_name) {
  const Activity now = current_activity();
  if (now.who != nullptr) {
    text.add(" in ").add(now.who);
    if (now.call != nullptr) text.add(", in ").add(now.call).add("()");
  } else if (code_name != nullptr) {
    text.add(" on a thread of ").add(code_name);
  }
}

void on_signal(int number, siginfo_t* info, void* context) {
  Text text;
  const char* name = sigabbrev_np(number);
  text.add("specd: SIG").add(name != nullptr ? name : "?");
  const bool is_fault = info->si_code > 0;
  const bool is_addressed = has_address(number, info->si_code);
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (is_addressed) text.add(" at address ").add_hex(address);
  const Registers at = registers_of(context);
  const char* code = name_of(at.pc);
  add_who(text, code);
  const char* file = number == SIGBUS && is_addressed ? name_of(address) : nullptr;
  if (file != nullptr) {
    text.add(": ").add(file).add(
        " was cut short while it was in use, or its disk failed; put the whole file back");
  } else if (current_activity().who == nullptr && code == nullptr) {
    add_caller(text, at.stack);
  }
  text.add("; the process ends");
  text.say();
  // The default action is set again. A fault repeats and ends the process where it happened; these
  // two do not repeat.
  if (!is_fault || number == SIGTRAP || number == SIGSYS) raise(number);
}

[[noreturn]] void on_terminate() {
  Text text;
  text.add("specd: an exception that nothing catches");
  add_who(text, nullptr);
  if (current_activity().who == nullptr)
    add_caller(text, reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::exception& error) {
    text.add(": ").add(error.what());
  } catch (...) {
  }
  text.add("; the process ends");
  text.say();
  std::abort();  // not the handler before: it writes to standard error, which may block
}

bool is_unasked() { return watched_process == getpid() && !is_end_expected; }

// Returns the code to end with.
int unasked_exit(const char* how, int code) {
  if (!is_unasked()) return code;
  Text text;
  text.add("specd: ").add(how).add(" was called");
  add_who(text, nullptr);
  text.add(", which nobody asked for; the process ends");
  text.say();
  return code == 0 ? kExitUnasked : code;
}

// Ends the process in place of exit() or quick_exit(). What waits in the log is still written: the
// handlers that would do it do not run any more.
[[noreturn]] void end_unasked(const char* how, int code) {
  code = unasked_exit(how, code);
  flush_log(kLastWriteLimit);
  _exit(code);
}

void end_of_exit(int code, void*) {
  if (is_unasked()) end_unasked("exit()", code);
}

}  // namespace

void watch_activity(ActivityWatcher* watcher) { detail::activity_watcher = watcher; }

void name_memory(uintptr_t begin, size_t bytes, const std::string& name) {
  for (NamedMemory& each : named_memory) {
    if (each.is_taken.exchange(true)) continue;
    each.name[name.copy(each.name.data(), kNameBytesMax)] = '\0';
    each.end = begin + bytes;
    each.begin = begin;  // from here on it is read
    return;
  }
}

void forget_memory(uintptr_t begin) {
  for (NamedMemory& each : named_memory) {
    if (each.begin != begin) continue;
    each.begin = UINTPTR_MAX;
    each.end = 0;
    each.is_taken = false;
    return;
  }
}

void install_last_words() {
  watched_process = getpid();
  std::set_terminate(on_terminate);
  std::at_quick_exit([] {
    if (is_unasked()) end_unasked("quick_exit()", 0);
  });
  watch_exit();
  for (const int number : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS, SIGTRAP}) {
    struct sigaction now {};
    if (sigaction(number, nullptr, &now) != 0 || now.sa_handler != SIG_DFL) continue;
    struct sigaction wanted {};
    wanted.sa_sigaction = on_signal;
    wanted.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    sigemptyset(&wanted.sa_mask);
    sigaction(number, &wanted, nullptr);
  }
}

void watch_exit() { on_exit(end_of_exit, nullptr); }
void expect_end() { is_end_expected = true; }

}  // namespace specd

// Found by the dynamic linker before libc's, so that a plugin that calls it is told too. Sanitizers
// have their own.
#if !SPECD_HAS_SANITIZER
extern "C" {
void _exit(int code) {
  code = specd::unasked_exit("_exit()", code);
  while (true) syscall(SYS_exit_group, code);
}
void _Exit(int code) { _exit(code); }
}
#endif
