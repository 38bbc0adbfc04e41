// Prompts that wait to be rendered and tokenized, and the threads that do it.
//
// The bytes that were rendered before a prompt came, plus its own, plus a share for its priority, make
// its rank; the lowest rank is next. So a short prompt passes long ones that wait, and a long one is
// passed by no more bytes than it has itself. Each counts kTemplateBytes more than it has, so that
// empty ones do not pass without end. One thread takes short prompts only, so that two long ones do
// not hold them up.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"

namespace specd::host {

class PromptQueue {
 public:
  static constexpr size_t kPromptsMax = 256;               // waiting
  static constexpr size_t kBytesMax = size_t{64} << 20;    // waiting or being rendered
  static constexpr size_t kShortBytes = size_t{64} << 10;  // what the thread for short ones takes
  static constexpr int64_t kPriorityBytes = int64_t{1} << 16;  // what one level is worth
  static constexpr int64_t kTemplateBytes = 512;               // what a template adds, about

  struct Prompt {
    size_t bytes = 0;      // of its text
    int64_t priority = 0;  // lower is served first
    std::function<void()> render;
  };

  PromptQueue();
  ~PromptQueue();  // renders what waits, then joins
  PromptQueue(const PromptQueue&) = delete;
  PromptQueue& operator=(const PromptQueue&) = delete;

  // [any] Returns a number for remove(). kExhausted when too many prompts or bytes wait.
  Result<uint64_t> add(Prompt prompt);
  // [any] Gives the place and the memory of a prompt that still waits back. False when it waits no
  // more: it is or was rendered, or removed.
  bool remove(uint64_t number);
  // [any] True when no prompt waits or is being rendered; false at the timeout.
  [[nodiscard]] bool wait_idle(std::chrono::milliseconds timeout);

 private:
  using Rank = std::pair<int64_t, uint64_t>;  // ties go to the older prompt
  using Waiting = std::map<Rank, Prompt>;

  static int64_t cost(const Prompt& prompt) {
    return static_cast<int64_t>(prompt.bytes) + kTemplateBytes;
  }
  void run(bool takes_long);
  Waiting::iterator next(bool takes_long) SPECD_REQUIRES(mutex_);

  Mutex mutex_;
  CondVar changed_, idle_;
  Waiting waiting_ SPECD_GUARDED_BY(mutex_);
  std::map<uint64_t, Rank> rank_of_ SPECD_GUARDED_BY(mutex_);  // of those that wait
  uint64_t last_number_ SPECD_GUARDED_BY(mutex_) = 0;
  int64_t taken_ SPECD_GUARDED_BY(mutex_) = 0;  // cost of all that left the queue to be rendered
  size_t bytes_ SPECD_GUARDED_BY(mutex_) = 0;   // that wait or are being rendered
  size_t n_unfinished_ SPECD_GUARDED_BY(mutex_) = 0;
  bool leaving_ SPECD_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace specd::host
