// Ranks as processes that send each other messages.
//
//   data       of the exchanges, one message each, or pieces of Messages::bytes_max()
//   commands   from rank 0
//   notices    a beat with the marks of progress, from every rank to every other one, sent by a thread of
//              its own; a new deadline; why the group has failed
//
// A rank that has not been heard of for a while is lost, whatever this one is doing. When the group has failed,
// no message is received any more, so memory of an exchange that was cut short may be freed.
#pragma once

#include <chrono>
#include <memory>

#include "core/device/collective.h"
#include "core/device/messages.h"

namespace specd {

struct MessageRankOptions {
  std::chrono::milliseconds timeout{10'000};      // of each exchange
  std::chrono::milliseconds silence_max{10'000};  // then a rank that sends no beat is lost
  std::chrono::nanoseconds spin{0};               // as in make_thread_ranks()
};

// This process's end of the group of all. `messages` must outlive it and is used by it alone; abort()
// excepted. Its destructor waits until what it has sent has left, unless the group has failed.
std::unique_ptr<Collective> make_message_rank(Messages& messages,
                                              const MessageRankOptions& options);

}  // namespace specd
