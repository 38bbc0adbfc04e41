#include "core/plugin/process/child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/clock.h"
#include "core/base/failpoint.h"

namespace specd {
namespace {

// How often ask() checks whether it is cancelled.
constexpr uint64_t kLookMs = 20;
// Messages that are read at once. A process sends its figures four times a second.
constexpr int kMessagesMax = 64;
// A process that has closed its socket because it ends has ended by then.
constexpr int kEndMs = 1000;

// What posix_spawn() is told, freed at the end.
struct Spawn {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  Spawn() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  ~Spawn() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  Spawn(const Spawn&) = delete;
  Spawn& operator=(const Spawn&) = delete;
};

// Nothing of the daemon's: neither its descriptors nor its signals nor its terminal's.
int set_up(Spawn& spawn, int socket) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  int error = posix_spawn_file_actions_addopen(&spawn.files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
  const auto then = [&error](int next) { error = error != 0 ? error : next; };
  then(posix_spawn_file_actions_adddup2(&spawn.files, STDIN_FILENO, STDOUT_FILENO));
  then(posix_spawn_file_actions_adddup2(&spawn.files, socket, DrafterChild::kControlFd));
  then(posix_spawn_file_actions_addclosefrom_np(&spawn.files, DrafterChild::kControlFd + 1));
  then(posix_spawnattr_setsigmask(&spawn.attributes, &none));
  then(posix_spawnattr_setsigdefault(&spawn.attributes, &all));
  then(posix_spawnattr_setpgroup(&spawn.attributes, 0));
  then(posix_spawnattr_setflags(
      &spawn.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP));
  return error;
}

std::string signal_text(int signal) {
  const char* const name = sigabbrev_np(signal);
  return "killed by signal " + std::to_string(signal) +
         (name == nullptr ? "" : std::string(" (SIG") + name + ")") +
         (signal == SIGSYS ? ", for a system call that no drafter may make" : "");
}

}  // namespace

Result<std::unique_ptr<DrafterChild>> DrafterChild::start(const std::string& program,
                                                          const std::string& plugin) {
  const auto failed = [&](const char* what, int error) {
    return Status(Code::kExhausted, "cannot start the process of a drafter, " + program + ": " +
                                        what + ": " + strerror(error));
  };
  SPECD_TRY(auto ends, ControlSocket::pair());
  Spawn spawn;
  // adddup2() of a descriptor onto itself would leave it closed on exec.
  FileDescriptor theirs(fcntl(ends.second.get(), F_DUPFD_CLOEXEC, kControlFd + 1));
  if (theirs.get() < 0) return failed("F_DUPFD_CLOEXEC", errno);
  if (const int error = set_up(spawn, theirs.get()); error != 0) return failed("set-up", error);
  std::string name = "specd-runner", parent = std::to_string(getpid());
  std::string shown = plugin;
  std::array<char*, 4> arguments{name.data(), parent.data(), shown.data(), nullptr};
  pid_t pid = 0;
  const int error = SPECD_FAILS(kProcessStart, EAGAIN)
                        ? errno
                        : posix_spawn(&pid, program.c_str(), &spawn.files, &spawn.attributes,
                                      arguments.data(), environ);
  if (error != 0) return failed("posix_spawn", error);
  FileDescriptor process(
      SPECD_FAILS(kProcessWatch, EMFILE) ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (process.get() < 0) {
    const int its = errno;
    (void)::kill(pid, SIGKILL);
    (void)waitpid(pid, nullptr, 0);
    return failed("pidfd_open", its);
  }
  return std::unique_ptr<DrafterChild>(
      new DrafterChild(pid, std::move(process), std::move(ends.first)));
}

DrafterChild::~DrafterChild() {
  kill("it was ended");
  (void)how_it_ended();
}

void DrafterChild::kill(const std::string& why) {
  const MutexLock lock(mutex_);
  if (why_killed_.empty()) why_killed_ = why;
  (void)syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
}

bool DrafterChild::has_ended() {
  if (!end_.empty()) return true;
  pollfd end{process_.get(), POLLIN, 0};
  return poll(&end, 1, 0) == 1;
}

std::string DrafterChild::how_it_ended() {
  if (!end_.empty()) return end_;
  siginfo_t info{};
  const auto wait = [&](int flags) {
    while (waitid(static_cast<idtype_t>(P_PIDFD), static_cast<id_t>(process_.get()), &info,
                  flags) != 0 &&
           errno == EINTR) {
    }
  };
  wait(WEXITED | WNOWAIT);
  // Processes that it started before it was confined are in its group. The number cannot be reused before it is reaped.
  (void)::kill(-pid_, SIGKILL);
  wait(WEXITED);
  const MutexLock lock(mutex_);
  if (!why_killed_.empty())
    end_ = why_killed_;
  else if (info.si_code == CLD_EXITED)
    end_ = "exited with code " + std::to_string(info.si_status);
  else
    end_ = signal_text(info.si_status);
  return end_;
}

Result<Json> DrafterChild::next_answer() {
  for (int n = 0; n < kMessagesMax; ++n) {
    SPECD_TRY(auto message, socket_.take());
    if (!message.has_value()) return Json();
    if (!message->json.is_object())
      return Status(Code::kDataLoss, "it has sent what is no message");
    if (!message->json.contains("figures")) return std::move(message->json);
    told_ = std::move(message->json["figures"]);
  }
  return Status(Code::kDataLoss, "it tells figures without end");
}

// Whether the socket is closed because the process ends: it may also have closed its descriptors.
bool DrafterChild::ends_soon(const Status& status) {
  pollfd end{process_.get(), POLLIN, 0};
  return poll(&end, 1, status.code() == Code::kUnavailable ? kEndMs : 0) == 1;
}

Json DrafterChild::told() {
  const auto answer = next_answer();
  if (!answer.ok()) {
    if (!ends_soon(answer.status())) kill(answer.status().message());
  } else if (!answer.value().is_null()) {
    kill("it has answered what it was not asked");
  }
  return std::exchange(told_, Json());
}

Result<Json> DrafterChild::ask(const Json& question, int descriptor, uint64_t until_ns,
                               const std::atomic<bool>& is_cancelled) {
  const auto give_up = [this](Status why) -> Result<Json> {
    kill(why.message());
    return why;
  };
  const auto has_died = [this] {
    return Status(Code::kUnavailable, "its process has ended: " + how_it_ended());
  };
  if (const Status sent = socket_.send(question, until_ns, descriptor); !sent.ok())
    return has_ended() ? has_died() : give_up(sent);
  if (SPECD_FAILS(kProcessAnswer, EIO))
    return give_up(Status(Code::kDataLoss, "it has sent what is no message"));
  while (true) {
    auto answer = next_answer();
    if (!answer.ok()) return ends_soon(answer.status()) ? has_died() : give_up(answer.status());
    if (!answer.value().is_null()) return answer;
    if (has_ended()) return has_died();
    const uint64_t now = now_ns();
    if (now >= until_ns) return give_up(Status(Code::kDeadlineExceeded, "it did not answer"));
    if (is_cancelled) return give_up(Status(Code::kCancelled, "it was given up"));
    std::array<pollfd, 2> any{pollfd{socket_.fd(), POLLIN, 0}, {process_.get(), POLLIN, 0}};
    (void)poll(any.data(), any.size(),
               static_cast<int>(std::min((until_ns - now) / 1'000'000 + 1, kLookMs)));
  }
}

}  // namespace specd
