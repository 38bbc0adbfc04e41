// Answers a call for which there is not enough memory, instead of ending the process.
#pragma once

#include <new>
#include <utility>

#include "core/base/status.h"

namespace specd::host {

inline Status no_memory() {
  return Status(Code::kExhausted, "the daemon has not enough memory for this call; try again");
}

// What `call` returns, a Status or a Result; kExhausted when it throws std::bad_alloc.
template <typename Call>
auto within_memory(Call&& call) -> decltype(call()) {
  try {
    return std::forward<Call>(call)();
  } catch (const std::bad_alloc&) {
    return no_memory();
  }
}

}  // namespace specd::host
