// One life of a drafter's process: started, asked, and reaped.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "core/base/file_descriptor.h"
#include "core/base/json.h"
#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/plugin/process/control_socket.h"

namespace specd {

class DrafterChild {
 public:
  // Starts `program` with the socket as its descriptor kControlFd and nothing else but standard error. `plugin`: to
  // be seen in a list of processes. The process dies with the thread that calls this.
  static Result<std::unique_ptr<DrafterChild>> start(const std::string& program,
                                                     const std::string& plugin);
  static constexpr int kControlFd = 3;
  static constexpr uint32_t kQuestionBytesMax = uint32_t{16} << 20;  // a configuration may be large
  static constexpr uint32_t kAnswerBytesMax = uint32_t{256} << 10;
  ~DrafterChild();  // kills it
  DrafterChild(const DrafterChild&) = delete;
  DrafterChild& operator=(const DrafterChild&) = delete;

  // Sends a question and waits for the answer; what it tells meanwhile goes to told(). When there is none by then, or
  // `is_cancelled` becomes true, or the process ends or sends what is no answer, it is killed:
  // kDeadlineExceeded, kCancelled, kUnavailable, kDataLoss. `descriptor`: goes along; -1 = none.
  Result<Json> ask(const Json& question, int descriptor, uint64_t until_ns,
                   const std::atomic<bool>& is_cancelled);
  // What it has told without being asked: the last one, or null. Reads what has come.
  Json told();

  // [any] Kills it. `why` is how it ended then; the first reason holds.
  void kill(const std::string& why);
  // Whether it has ended.
  bool has_ended();
  // How: "killed by signal 11 (SIGSEGV)". REQUIRES has_ended(), or kill() before; then waits for the end.
  std::string how_it_ended();

  int process() const { return process_.get(); }  // readable once it has ended
  int socket() const { return socket_.fd(); }

 private:
  DrafterChild(pid_t pid, FileDescriptor process, FileDescriptor socket)
      : pid_(pid), process_(std::move(process)), socket_(std::move(socket), kAnswerBytesMax) {}
  bool ends_soon(const Status& status);
  Result<Json> next_answer();  // null = there is none yet

  const pid_t pid_;
  const FileDescriptor process_;
  ControlSocket socket_;
  Json told_;
  std::string end_;  // once it was reaped
  Mutex mutex_;
  std::string why_killed_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd
