// The door of the gRPC server: accepts connections, finds out whose they are, and carries their bytes.
//
// gRPC's own listener has no bound, and stops accepting for good once the process runs out of
// descriptors (grpc 1.51, src/core/lib/iomgr/tcp_server_posix.cc). The bytes pass through here
// because gRPC does not bound calls that are opened and dropped (call_meter.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "core/base/file_descriptor.h"
#include "core/base/status.h"
#include "host/rpc/listen_socket.h"
#include "host/rpc/relay.h"
#include "host/rpc/tls.h"

namespace specd::host {

class Listener {
 public:
  static constexpr size_t kDescriptorsPerConnection = 3;

  // How many connections there may be: in all, of one process or address, of one user, and of all users together.
  // The last two do not count for those who are trusted.
  // A client has `greeting` to show its certificate. When one side of a connection has closed, the other has
  // `last_bytes` to take what is left.
  struct Limits {
    size_t connections, of_origin, of_user, of_users;
    std::chrono::milliseconds greeting{10'000}, last_bytes{10'000};
  };

  // What a connection shows of its client.
  struct Credentials {
    std::optional<uid_t> user;       // of a Unix socket
    std::vector<std::string> names;  // of the certificate, where one is asked for
  };
  // Takes a stream socket, which the callee owns.
  using Take = std::function<void(int)>;
  // What serves a client.
  struct Host {
    const Take* take = nullptr;  // none: the client may not connect; else outlives the listener
    std::string user;            // for people
    bool is_trusted = false;
  };
  using Admit = std::function<Host(const Credentials&)>;

  // Accepts on `socket`, and hands each new connection to what serves its client, on the thread of the listener.
  // Other connections, and those beyond the limits, are closed at once. With `tls`, which outlives the
  // listener, a client has to show a certificate first.
  static Result<std::unique_ptr<Listener>> start(ListenSocket socket, Limits limits, Admit admit,
                                                 const TlsKeys* tls = nullptr);
  ~Listener();  // ends the connections that are left
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  // Where it listens.
  const std::string& name() const { return socket_.name(); }
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
  // A client that has not shown its certificate yet.
  struct Guest {
    std::unique_ptr<TlsStream> client;
    FileDescriptor ours, theirs;
    std::string origin;
    int64_t end_ms;  // of the steady clock
  };

  using Guests = std::map<uint64_t, Guest>;
  enum class Cause { kStranger, kHandshake, kPlaces, kAbuse };  // of a warning
  static constexpr size_t kCauses = 4;

  explicit Listener(ListenSocket socket) : socket_(std::move(socket)) {}
  void run();
  int wait_ms() const;
  void wake();
  void close_door();
  void accept_one();
  void receive(FileDescriptor client, FileDescriptor ours, FileDescriptor theirs);
  void greet(uint64_t id);
  Guests::iterator most_numerous();
  void dismiss(Guests::iterator guest);
  void open_relay(uint64_t id, std::unique_ptr<Stream> client, FileDescriptor ours,
                  FileDescriptor theirs, const std::string& origin, const Credentials& shown);
  // `events` of epoll: what woke the relay, if anything did.
  void pump(uint64_t id, uint32_t events = 0);
  void end_relay(uint64_t id);
  bool has_place(const Peer& peer);
  void warn(Cause cause, const std::string& text);
  // 0 = connections can be accepted.
  void set_problem(int problem);
  std::string problem_text(int problem) const;

  ListenSocket socket_;
  FileDescriptor wake_{-1}, epoll_{-1};
  Limits limits_{};
  Admit admit_;
  const TlsKeys* tls_ = nullptr;
  std::atomic<int> problem_{0};  // errno of accept4(), or kFull
  std::atomic<Phase> phase_{Phase::kAccepting};
  std::atomic<int64_t> end_ms_{0};  // of the steady clock; for kEnding

  // Of the thread. By the data of their events; the longest there is the first.
  Guests guests_;
  std::unordered_map<uint64_t, std::unique_ptr<Relay>> relays_;
  // Relays to pump again without an event, in turn: at once, and after kHeldMs.
  std::vector<uint64_t> busy_, held_;
  std::vector<uint64_t> greeting_;  // guests whose handshake can go on, in turn
  // Relays of which one side has closed, the first to end in front. Some may have ended.
  std::deque<LastBytes> last_bytes_;
  UnansweredCalls calls_{2500};
  uint64_t next_id_ = 2;  // after kWake and kDoor
  std::array<std::chrono::steady_clock::time_point, kCauses> warn_again_{};
  std::thread thread_;
};

}  // namespace specd::host
