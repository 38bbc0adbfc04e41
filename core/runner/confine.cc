#include "core/runner/confine.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/sanitizer.h"

namespace specd {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#else
#error "say which architecture the numbers of system calls are of"
#endif

// Memory, time, locks, signals of its own, and what is open.
constexpr int kAllowed[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_close,
    SYS_fstat,
    SYS_newfstatat,
    SYS_lseek,
    SYS_ppoll,
    SYS_mmap,
    SYS_munmap,
    SYS_mprotect,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_futex,
    SYS_nanosleep,
    SYS_clock_nanosleep,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_gettimeofday,
    SYS_getrandom,
    SYS_getpid,
    SYS_gettid,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_getcpu,
    SYS_rt_sigreturn,
    SYS_rt_sigprocmask,
    SYS_rt_sigaction,
    SYS_sigaltstack,
    SYS_exit,
    SYS_exit_group,
    SYS_restart_syscall,
    SYS_recvmsg,
    SYS_sendmsg,
    SYS_membarrier,
    SYS_rseq,
    SYS_set_robust_list,
    SYS_sysinfo,
    SYS_uname,
    SYS_getrusage,
#if SPECD_ASAN
    SYS_pipe,  // by which UndefinedBehaviorSanitizer finds out what can be read
    SYS_pipe2,
#endif
#if defined(__x86_64__)
    SYS_poll,
    SYS_time,
    SYS_arch_prctl,
#endif
};
// A drafter that tries one of these has gone astray.
constexpr int kFatal[] = {
    SYS_clone,
    SYS_clone3,
    SYS_execve,
    SYS_execveat,
    SYS_socket,
    SYS_socketpair,
    SYS_connect,
    SYS_bind,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_kill,
#if defined(__x86_64__)
    SYS_fork,
    SYS_vfork,
#endif
};

uint32_t field(size_t offset) { return static_cast<uint32_t>(offset); }

sock_filter load(size_t offset) { return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, field(offset)); }
sock_filter answer(uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }
// Skips the next one unless the value is the one that was loaded.
sock_filter unless(uint32_t value) { return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1); }

std::vector<sock_filter> filter() {
  std::vector<sock_filter> all{load(offsetof(seccomp_data, arch)),
                               BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
                               answer(SECCOMP_RET_KILL_PROCESS), load(offsetof(seccomp_data, nr))};
  const auto rule = [&all](int number, uint32_t action) {
    all.push_back(unless(static_cast<uint32_t>(number)));
    all.push_back(answer(action));
  };
  for (const int number : kAllowed) rule(number, SECCOMP_RET_ALLOW);
  for (const int number : kFatal) rule(number, SECCOMP_RET_KILL_PROCESS);
  // abort() signals a thread of this process; others are none of its business. The low word comes first here.
  all.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3));
  all.push_back(load(offsetof(seccomp_data, args)));
  all.push_back(unless(static_cast<uint32_t>(getpid())));
  all.push_back(answer(SECCOMP_RET_ALLOW));
  all.push_back(answer(SECCOMP_RET_ERRNO | EPERM));
  return all;
}

[[maybe_unused]] uint64_t mapped_bytes() {  // not under a sanitizer
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

Status confine(uint64_t bytes) {
  const auto failed = [](const char* what) {
    return Status(Code::kUnsupported, std::string("this system cannot confine the process of a "
                                                  "drafter: ") +
                                          what + ": " + strerror(errno));
  };
  if constexpr (!SPECD_HAS_SANITIZER) {  // whose shadow memory is reserved as it is needed
    const uint64_t most = mapped_bytes() + bytes;
    const rlimit space{most, most};
    if (setrlimit(RLIMIT_AS, &space) != 0) return failed("RLIMIT_AS");
  }
  std::vector<sock_filter> rules = filter();
  const sock_fprog program{static_cast<unsigned short>(rules.size()), rules.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return failed("PR_SET_NO_NEW_PRIVS");
  if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) != 0)
    return failed("seccomp");
  return Status();
}

}  // namespace specd
