// Carries the bytes of one client's connection to gRPC and back.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/file_descriptor.h"
#include "host/rpc/call_meter.h"
#include "host/rpc/stream.h"

namespace specd::host {

// The other end of a connection.
struct Peer {
  std::string origin;       // "process 4711", or "address 192.0.2.7"
  std::string user;         // "user www-data (33)", or "client 'client-7'"
  bool is_trusted = false;  // is never kept out: the user of the daemon, or root
};

class Relay {
 public:
  enum class State {
    kWaiting,  // until one of the descriptors can do more
    kHeld,     // requests wait until gRPC has cleared away calls that were dropped
    kBusy,     // more could be carried now, when others have had their turn
    kClosing,  // the server closed, and the client has not taken all of its bytes yet
    kEnded,    // the server closed, and its bytes were delivered or cannot be
    kAbusive,  // the client drops calls faster than they can be cleared away
  };

  // `server`, a stream socket that does not block, leads to gRPC. `peer`: who connected. `calls`: those of all
  // connections; outlives this.
  Relay(std::unique_ptr<Stream> client, FileDescriptor server, Peer peer, UnansweredCalls& calls);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Carries what can be carried now. Throws std::bad_alloc.
  State pump();

  // True at the first call: of the time when one side has closed and the other takes the last bytes.
  bool starts_last_bytes() { return !std::exchange(has_last_bytes_, true); }
  // The server closed.
  bool is_closing() const { return answers_.is_closed; }
  const Peer& peer() const { return peer_; }
  int client() const { return client_->descriptor(); }
  int server() const { return server_.descriptor(); }

 private:
  struct Direction {
    std::string unsent;  // read, and not taken by the other side yet
    bool is_closed = false;
  };

  State close();
  template <typename MayPass>
  bool carry(Direction& direction, Stream& from, Stream& to, MayPass may_pass);
  bool send_some(Direction& direction, Stream& to, std::string_view bytes);

  std::unique_ptr<Stream> client_;
  Stream server_;
  const Peer peer_;
  Direction requests_, answers_;
  UnansweredCalls& calls_;
  CallMeter meter_;
  bool has_last_bytes_ = false;
};

}  // namespace specd::host
