// The door of the gRPC server: accepts connections on a Unix socket and carries their bytes.
//
// gRPC's own listener has no bound, and stops accepting for good once the process runs out of
// descriptors (grpc 1.51, src/core/lib/iomgr/tcp_server_posix.cc). The bytes pass through here
// because gRPC does not bound calls that are opened and dropped (call_meter.h).
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"
#include "host/rpc/relay.h"

namespace specd::host {

class Listener {
 public:
  static constexpr size_t kDescriptorsPerConnection = 3;

  // How many connections there may be: in all, of one process, of one user, and of all users together. The last two
  // do not count for the user of the daemon and for root, whom nobody keeps out.
  // When one side of a connection has closed, the other has `last_bytes` to take what is left.
  struct Limits {
    size_t connections, of_process, of_user, of_users;
    std::chrono::milliseconds last_bytes{10'000};
  };

  // Takes a stream socket, which the callee owns.
  using Take = std::function<void(int)>;
  // What serves the user with this id; null when none does. Outlives the listener.
  using Admit = std::function<const Take*(uid_t user)>;

  // Listens on `path`, and hands each new connection to what serves its user, on the thread of the listener.
  // Connections of other users, and those beyond the limits, are closed at once. Only the owner of
  // the socket may connect at all, unless `is_open`.
  static Result<std::unique_ptr<Listener>> start(const std::string& path, bool is_open,
                                                 Limits limits, Admit admit);
  ~Listener();  // ends the connections that are left
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // [any] Not ok while new connections cannot be accepted, or the path leads elsewhere.
  Status status() const;
  // [control] Accepts nothing any more. Afterwards none is handed on.
  void stop_accepting();
  // [control] Waits up to `timeout` until the callee closed its sockets and the clients took what
  // it sent, then ends all connections. After stop_accepting().
  void finish(std::chrono::milliseconds timeout);

 private:
  enum class Phase { kAccepting, kClosing, kClosed, kEnding };
  struct LastBytes {
    uint64_t id;
    int64_t end_ms;  // of the steady clock
  };

  Listener() = default;
  void run();
  int wait_ms() const;
  void wake();
  void close_door();
  void accept_one();
  void open_relay(FileDescriptor client, FileDescriptor ours, FileDescriptor theirs);
  // `events` of epoll: what woke the relay, if anything did.
  void pump(uint64_t id, uint32_t events = 0);
  void end_relay(uint64_t id);
  bool has_place(const ucred& peer);
  void warn(const std::string& text);
  // 0 = connections can be accepted.
  void set_problem(int problem);
  std::string problem_text(int problem) const;

  FileDescriptor socket_{-1}, wake_{-1}, epoll_{-1};
  std::string path_;
  dev_t device_ = 0;  // of the file at the path
  ino_t inode_ = 0;
  Limits limits_{};
  Admit admit_;
  std::atomic<int> problem_{0};  // errno of accept4(), or kFull
  std::atomic<Phase> phase_{Phase::kAccepting};
  std::atomic<int64_t> end_ms_{0};  // of the steady clock; for kEnding

  // Of the thread.
  std::unordered_map<uint64_t, std::unique_ptr<Relay>> relays_;  // by the data of their events
  // Relays to pump again without an event, in turn: at once, and after kHeldMs.
  std::vector<uint64_t> busy_, held_;
  // Relays of which one side has closed, the first to end in front. Some may have ended.
  std::deque<LastBytes> last_bytes_;
  UnansweredCalls calls_{2500};
  uint64_t next_id_ = 2;  // after kWake and kDoor
  std::chrono::steady_clock::time_point warn_again_{};
  std::thread thread_;
};

}  // namespace specd::host
