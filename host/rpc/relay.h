// Carries the bytes of one client's connection to gRPC and back.
#pragma once

#include <sys/socket.h>

#include <string>
#include <string_view>

#include "core/base/file_descriptor.h"
#include "host/rpc/call_meter.h"

namespace specd::host {

class Relay {
 public:
  enum class State {
    kWaiting,  // until one of the descriptors can do more
    kHeld,     // requests wait until gRPC has cleared away calls that were dropped
    kBusy,     // more could be carried now, when others have had their turn
    kEnded,    // the server closed, and its bytes were delivered or cannot be
    kAbusive,  // the client drops calls faster than they can be cleared away
  };

  // Both are stream sockets that do not block. `server` leads to gRPC. `peer`: who connected. `calls`: those of all
  // connections; outlives this.
  Relay(FileDescriptor client, FileDescriptor server, const ucred& peer, UnansweredCalls& calls);
  ~Relay();  // ends the connection, even where a child process still holds its descriptors
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Carries what can be carried now. Throws std::bad_alloc.
  State pump();

  const ucred& peer() const { return peer_; }
  int client() const { return client_.get(); }
  int server() const { return server_.get(); }

 private:
  struct Direction {
    std::string unsent;  // read, and not taken by the other side yet
    bool is_closed = false;
  };

  template <typename MayPass>
  bool carry(Direction& direction, int from, int to, MayPass may_pass);
  bool send_some(Direction& direction, int to, std::string_view bytes);

  FileDescriptor client_, server_;
  const ucred peer_;
  Direction requests_, answers_;
  UnansweredCalls& calls_;
  CallMeter meter_;
};

}  // namespace specd::host
