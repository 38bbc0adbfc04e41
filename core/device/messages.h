// Messages between the processes of a group: the little of MPI that ranks need (message_ranks.h). Nothing
// here waits.
//
// Not thread-safe. Between two ranks, messages of a channel arrive in the order in which they were sent.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "core/base/status.h"

namespace specd {

enum class Channel : int32_t { kData, kCommand, kNotice };

class Messages {
 public:
  struct Arrived {
    int32_t tag = 0;
    uint64_t bytes = 0;
  };
  // Waits until all ranks end like this.
  virtual ~Messages() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t n_ranks() const = 0;
  virtual int32_t n_here() const = 0;      // ranks on this machine, this one too
  virtual uint64_t bytes_max() const = 0;  // of a message

  // These begin a transfer and return its number. `data` must stay until it is done, and unchanged when it
  // is sent. receive(): a message that has arrived, with its size.
  virtual int32_t send(const void* data, uint64_t bytes, int32_t to, Channel channel,
                       int32_t tag) = 0;
  virtual int32_t receive(void* data, uint64_t bytes, int32_t from, Channel channel) = 0;
  // True once: the transfer is over and its number is free. All transfers go on meanwhile.
  virtual bool is_done(int32_t transfer) = 0;
  // The next message of this rank that can be received.
  virtual std::optional<Arrived> arrived(int32_t from, Channel channel) = 0;
  // Not ok: messages no longer work.
  virtual Status status() const = 0;
  // Ends all processes of the group, this one with `code`, which is not 0. [any]
  [[noreturn]] virtual void abort(int code) = 0;
};

// [main] Whether mpirun has started this process.
bool is_under_mpirun();
// [main] Joins the processes that mpirun has started with this one. Once per process, and before it has
// many threads; signals that it wants to handle must be blocked. Fails with kUnsupported when there is
// no libspecd_mpi, or one of another build, or no Open MPI.
Result<std::unique_ptr<Messages>> open_mpi();

// What libspecd_mpi exports (mpi/library.cc). Of the same build as the program, because the interface is
// C++.
struct MpiLibrary {
  const char* build;
  // Null: `why` says why.
  Messages* (*open)(char* why, uint64_t size);
};
inline constexpr char kMpiBuild[] = "specd mpi 1, " __VERSION__;
inline constexpr char kMpiSymbol[] = "specd_mpi_library";
using MpiLibraryFn = const MpiLibrary* (*)();

}  // namespace specd
