// How the ranks of one model exchange data. Every rank of a group calls the same functions in the same
// order with the same sizes; send() and receive() concern two ranks only.
//
// Work is in the order of the rank's stream: on the CPU it is done on return, on another device
// before later ops of that stream. Memory must stay valid and, on a device, unchanged until then.
//
// Each exchange has the deadline of the group; between devices (cuda_ranks.h), each wait for the stream. That of send() and receive() begins anew whenever the other
// rank says that it is computing (mark_progress), because between stages a rank waits as long as others
// compute. The first failure of a group stays, every rank sees it in status(), and later calls return at
// once with undefined data.
//
// Beside that, rank 0 sends commands (core/model/lead.h). They wait for nobody.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/status.h"

namespace specd {

// Short enough for a string that takes no memory.
inline constexpr char kOutOfMemory[] = "out of memory";

class Exchanges {
 public:
  virtual ~Exchanges() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t n_ranks() const = 0;

  // `data` has a part of `bytes` for each rank. Each rank has filled its own; afterwards it has all.
  virtual void all_gather(void* data, uint64_t bytes) = 0;
  // The same for rank `root` alone, whose `parts` has n_ranks() parts; others pass null there. Its own
  // part must not be in `parts`.
  virtual void gather(const void* part, void* parts, uint64_t bytes, int32_t root) = 0;
  // Afterwards `data` is what it was on rank `root`.
  virtual void broadcast(void* data, uint64_t bytes, int32_t root) = 0;
  virtual void send(const void* data, uint64_t bytes, int32_t to) = 0;
  virtual void receive(void* data, uint64_t bytes, int32_t from) = 0;
};

// A group whose exchanges are between host memory.
class Collective : public Exchanges {
 public:
  // Call it more often than the deadline while this rank computes. It costs next to nothing.
  virtual void mark_progress() = 0;

  // The ranks [first, first + n) as a group of their own, with the deadline and the failure of this one
  // and without commands. Every rank calls it for its own group, in the same order among its other
  // calls. REQUIRES that this outlives it.
  virtual std::unique_ptr<Collective> group(int32_t first, int32_t n) = 0;

  // On rank 0: every other rank gets these words, in the order of the calls.
  virtual void command(std::span<const int32_t> words) = 0;
  // On the others: waits for the next command, however long it takes. False: the group has failed.
  virtual bool next_command(std::vector<int32_t>& words) = 0;

  // The deadline of the exchanges that begin from now on. [any]
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  virtual std::chrono::milliseconds timeout() const = 0;  // [any]
  // Why the group has failed. It names the rank that was late, gave up or disagreed.
  // kDeadlineExceeded, kUnavailable or kInternal.
  virtual Status status() const = 0;
  // Makes the group fail with this rank's reason, so that nobody waits for it any more. Without memory
  // for the reason, with none. [any]
  virtual void give_up(const Status& why) noexcept = 0;
};

}  // namespace specd
