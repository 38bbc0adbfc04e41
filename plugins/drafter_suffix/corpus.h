// The index of a corpus, built by a background thread while sequences are drafted.
#ifndef SPECD_SUFFIX_CORPUS_H
#define SPECD_SUFFIX_CORPUS_H

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "suffix_automaton.h"

namespace specd::suffix {

class Corpus {
 public:
  // Build errors are logged; sequences then continue without the corpus.
  Corpus(const sdk::Instance& instance, std::string path, HostVector<int32_t> tokens, uint64_t salt,
         uint32_t depth)
      : instance_(instance),
        path_(std::move(path)),
        tokens_(std::move(tokens)),
        salt_(salt),
        depth_(depth) {}
  ~Corpus() { stop(); }

  // [control] Starts the build unless it is done.
  void start() {
    if (index() != nullptr) return;
    stopping_ = false;
    thread_ = std::thread([this] { build(); });
  }

  // [control] Stops a build within a thousand tokens; start() can restart it.
  void stop() {
    stopping_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // [any] Null until the build is done.
  const SuffixAutomaton* index() const { return ready_.load(std::memory_order_acquire); }

 private:
  void build() noexcept {
    try {
      const uint64_t from = instance_.host()->now_ns(instance_.host());
      auto index = std::make_unique<SuffixAutomaton>(tokens_.get_allocator(), salt_, depth_);
      index->reserve(tokens_.size());
      std::size_t n = 0;
      for (const int32_t token : tokens_) {
        if (n++ % 1024 == 0 && stopping_.load(std::memory_order_relaxed)) return;
        index->append(token);
      }
      HostVector<int32_t>(tokens_.get_allocator()).swap(tokens_);  // the index has copied them
      index_ = std::move(index);
      const uint64_t ms = (instance_.host()->now_ns(instance_.host()) - from) / 1000000;
      ready_.store(index_.get(), std::memory_order_release);
      instance_.log(SPECD_LOG_INFO,
                    instance_.name() + ": corpus " + path_ + ": " + std::to_string(n) +
                        " tokens and ends of documents indexed in " + std::to_string(ms) + " ms");
    } catch (const std::exception& error) {
      instance_.log(SPECD_LOG_WARN,
                    instance_.name() + ": corpus " + path_ + ": not used: " + error.what());
    }
  }

  const sdk::Instance& instance_;
  const std::string path_;
  HostVector<int32_t> tokens_;
  const uint64_t salt_;
  const uint32_t depth_;
  std::unique_ptr<SuffixAutomaton> index_;
  std::atomic<const SuffixAutomaton*> ready_{nullptr};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace specd::suffix

#endif
