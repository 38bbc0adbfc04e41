#include "host/base/parent_only.h"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>

#include "core/base/check.h"

namespace specd::host {
namespace {

constexpr int kNone = -1;

// Read in a child in which no other thread runs and any lock may be held.
std::array<std::atomic<int>, 16>& descriptors() {
  static auto* const all = [] {
    auto* made = new std::array<std::atomic<int>, 16>;
    for (std::atomic<int>& each : *made) each = kNone;
    pthread_atfork(nullptr, nullptr, [] {
      for (const std::atomic<int>& each : descriptors())
        if (each != kNone) close(each);
    });
    return made;
  }();
  return *all;
}

}  // namespace

void keep_from_children(int fd) {
  for (std::atomic<int>& each : descriptors()) {
    int none = kNone;
    if (each.compare_exchange_strong(none, fd)) return;
  }
  SPECD_CHECK(false, "more descriptors than the daemon has");
}

void forget_descriptor(int fd) {
  for (std::atomic<int>& each : descriptors()) {
    int known = fd;
    if (each.compare_exchange_strong(known, kNone)) return;
  }
}

}  // namespace specd::host
