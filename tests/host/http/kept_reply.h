// A reply without a server: keeps what a handler writes.
#pragma once

#include <condition_variable>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/http/http_message.h"

namespace specd::host {

class KeptReply final : public HttpReply {
 public:
  ~KeptReply() override {
    if (server_.get_id() == std::this_thread::get_id()) {
      server_.detach();  // it let go of this last
    } else if (server_.joinable()) {
      server_.join();
    }
  }
  void answer(HttpAnswer whole) override {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(whole);
    is_complete_ = true;
    changed_.notify_all();
  }
  void answer_later(std::function<HttpAnswer()> make) override {
    server_ = std::thread([this, make = std::move(make)] { answer(make()); });
  }
  void start(HttpAnswer head, std::string) override {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(head);
    is_stream_ = true;
  }
  void write(std::string part, std::function<void(bool)> done) override {
    bool is_gone = false;
    {
      const std::lock_guard lock(mutex_);
      is_gone = is_gone_;
      if (!is_gone) parts_.push_back(std::move(part));
    }
    done(!is_gone);
  }
  void finish() override {
    const std::lock_guard lock(mutex_);
    is_complete_ = true;
    changed_.notify_all();
  }
  void when_gone(std::function<void()> gone) override {
    const std::lock_guard lock(mutex_);
    gone_ = std::move(gone);
  }

  // As a client that disconnects.
  void go() {
    std::function<void()> gone;
    {
      const std::lock_guard lock(mutex_);
      is_gone_ = true;
      gone = gone_;
    }
    if (gone) gone();
  }
  // The answer, or the head of one in parts, once it is complete.
  HttpAnswer answered() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::minutes(5), [this] { return is_complete_; });
    return answer_;
  }
  bool is_stream() {
    const std::lock_guard lock(mutex_);
    return is_stream_;
  }
  std::vector<std::string> parts() {
    const std::lock_guard lock(mutex_);
    return parts_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  HttpAnswer answer_{.status = 0};
  std::vector<std::string> parts_;
  std::function<void()> gone_;
  bool is_stream_ = false, is_complete_ = false, is_gone_ = false;
  std::thread server_;
};

}  // namespace specd::host
