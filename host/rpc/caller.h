// Who calls: a user of the machine, or the owner of a certificate. The listener knows it by the connection and hands
// that to a server of this user's own, since gRPC does not show who is at the other end. So a right belongs to a
// server, and none is looked up by a number that may be used again.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "host/config/user_options.h"
#include "host/rpc/policy.h"

namespace specd::host {

// Outlives its calls. [any]
class Caller {
 public:
  explicit Caller(UserOptions options);

  const UserOptions& options() const { return options_; }
  // For people: "user www-data (33)", "client 'client-7'".
  const std::string& name() const { return name_; }
  // Unique in the process. Requests belong to it.
  uint64_t number() const { return number_; }
  bool may(Right right) const;
  // A change is refused because this caller may not operate. How many of them a line of the log is to stand for
  // now; 0 = no line, since there was one within the last second.
  uint64_t refuse();

  // The place of an open call, which waits for its first output; gives it back at its end.
  class Place {
   public:
    Place() = default;
    Place(Caller& caller, uint64_t bytes) : caller_(&caller), bytes_(bytes) {}
    Place(Place&& other) noexcept
        : caller_(std::exchange(other.caller_, nullptr)),
          bytes_(other.bytes_),
          is_waiting_(other.is_waiting_) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(caller_, other.caller_);
      std::swap(bytes_, other.bytes_);
      std::swap(is_waiting_, other.is_waiting_);
      return *this;
    }
    ~Place();
    // The call has some output.
    void stop_waiting();

   private:
    Caller* caller_ = nullptr;
    uint64_t bytes_ = 0;
    bool is_waiting_ = true;
  };
  // kExhausted, naming the limit, when the caller has as many calls, or bytes, as it may have.
  Result<Place> take_place(uint64_t bytes);

 private:
  const UserOptions options_;
  const std::string name_;
  const uint64_t number_;
  Mutex mutex_;
  int64_t n_calls_ SPECD_GUARDED_BY(mutex_) = 0;
  int64_t n_waiting_ SPECD_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ SPECD_GUARDED_BY(mutex_) = 0;
  uint64_t n_refused_ SPECD_GUARDED_BY(mutex_) = 0;  // since the last line
  uint64_t next_line_ns_ SPECD_GUARDED_BY(mutex_) = 0;
};

}  // namespace specd::host
