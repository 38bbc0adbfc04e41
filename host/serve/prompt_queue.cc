#include "host/serve/prompt_queue.h"

#include <algorithm>

#include "core/base/thread.h"

namespace specd::host {

PromptQueue::PromptQueue() {
  for (const bool takes_long : {true, false})
    threads_.push_back(start_thread("specd-prompts", [this, takes_long] { run(takes_long); }));
}

PromptQueue::~PromptQueue() {
  {
    const MutexLock lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Result<uint64_t> PromptQueue::add(Prompt prompt) {
  uint64_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (waiting_.size() >= kPromptsMax)
      return Status(Code::kExhausted,
                    std::to_string(kPromptsMax) +
                        " requests wait for their prompts to be rendered; try again");
    if (bytes_ > 0 && bytes_ + prompt.bytes > kBytesMax)
      return Status(Code::kExhausted, "the prompts that wait to be rendered have " +
                                          std::to_string(bytes_) + " bytes, at most " +
                                          std::to_string(kBytesMax) + " may wait; try again");
    number = ++last_number_;
    const Rank rank{taken_ + cost(prompt) + prompt.priority * kPriorityBytes, number};
    const size_t bytes = prompt.bytes;
    const auto known = rank_of_.emplace(number, rank).first;
    try {
      waiting_.emplace(rank, std::move(prompt));
    } catch (...) {  // there is no memory; nothing stays behind
      rank_of_.erase(known);
      throw;
    }
    bytes_ += bytes;
    ++n_unfinished_;
  }
  changed_.notify_all();  // one thread may not take it
  return number;
}

bool PromptQueue::remove(uint64_t number) {
  Prompt removed;  // destroyed outside of the lock
  const MutexLock lock(mutex_);
  const auto found = rank_of_.find(number);
  if (found == rank_of_.end()) return false;
  const auto waiting = waiting_.find(found->second);
  removed = std::move(waiting->second);
  waiting_.erase(waiting);
  rank_of_.erase(found);
  bytes_ -= removed.bytes;
  if (--n_unfinished_ == 0) idle_.notify_all();
  return true;
}

bool PromptQueue::wait_idle(std::chrono::milliseconds timeout) {
  const auto deadline = CondVar::Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (n_unfinished_ > 0) {
    if (!idle_.wait_until(lock, deadline)) return n_unfinished_ == 0;
  }
  return true;
}

PromptQueue::Waiting::iterator PromptQueue::next(bool takes_long) {
  if (takes_long) return waiting_.begin();
  return std::find_if(waiting_.begin(), waiting_.end(),
                      [](const auto& each) { return each.second.bytes <= kShortBytes; });
}

void PromptQueue::run(bool takes_long) {
  MutexLock lock(mutex_);
  while (true) {
    Waiting::iterator found;
    while ((found = next(takes_long)) == waiting_.end()) {
      if (leaving_) return;
      changed_.wait(lock);
    }
    Prompt prompt = std::move(found->second);
    rank_of_.erase(found->first.second);
    waiting_.erase(found);
    taken_ += cost(prompt);
    lock.unlock();
    prompt.render();
    const size_t bytes = prompt.bytes;
    prompt = {};  // destroys what it captured outside of the lock
    lock.lock();
    bytes_ -= bytes;
    if (--n_unfinished_ == 0) idle_.notify_all();
  }
}

}  // namespace specd::host
