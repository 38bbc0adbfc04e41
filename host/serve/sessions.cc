#include "host/serve/sessions.h"

#include <utility>

#include "core/base/thread.h"

namespace specd::host {

Sessions::Sessions(Engine& engine, std::string default_route, size_t buffer_bytes_max)
    : engine_(engine),
      default_route_(std::move(default_route)),
      buffer_bytes_max_(buffer_bytes_max),
      thread_(start_thread("specd-write", [this] { run(); })) {}

Sessions::~Sessions() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

std::shared_ptr<Session> Sessions::open(SessionReader& reader) {
  std::shared_ptr<Session> session(new Session(*this, reader));
  const MutexLock lock(mutex_);
  live_.emplace(session.get(), session);
  return session;
}

bool Sessions::cancel(const std::string& request_id) {
  // In this order, so that the engine finds a request that is submitted in between.
  bool found = false;
  for (const auto& session : live()) found |= session->cancel_waiting(request_id);
  return engine_.cancel(request_id) || found;
}

Status Sessions::is_open() const {
  return draining_ ? Status(Code::kUnavailable, "the daemon is shutting down") : Status();
}

Result<uint64_t> Sessions::queue(const Request& request, std::function<void()> render) {
  SPECD_OK_OR_RETURN(is_open());
  return prompts_.add(
      {.bytes = request.chat.has_value() ? request.chat->bytes() : request.prompt.size(),
       .priority = request.priority,
       .render = std::move(render)});
}

void Sessions::abort_all(const Status& reason) {
  for (const auto& session : live()) session->abort(reason);
}

bool Sessions::wait_closed(std::chrono::milliseconds timeout) {
  const auto deadline = CondVar::Clock::now() + timeout;
  MutexLock lock(mutex_);
  while (!live_.empty()) {
    if (!all_closed_.wait_until(lock, deadline)) return live_.empty();
  }
  return true;
}

const std::string& Sessions::route_of(const Request& request) const {
  return request.route.empty() ? default_route_ : request.route;
}

void Sessions::wake(std::shared_ptr<Session> session) {
  {
    const MutexLock lock(mutex_);
    ready_.push_back(std::move(session));
  }
  changed_.notify_one();
}

void Sessions::remove(Session* session) {
  std::shared_ptr<Session> last;  // destroyed outside of the lock
  const MutexLock lock(mutex_);
  const auto found = live_.find(session);
  if (found == live_.end()) return;
  last = std::move(found->second);
  live_.erase(found);
  if (live_.empty()) all_closed_.notify_all();
}

std::vector<std::shared_ptr<Session>> Sessions::live() {
  std::vector<std::shared_ptr<Session>> sessions;
  const MutexLock lock(mutex_);
  for (const auto& [key, session] : live_) sessions.push_back(session);
  return sessions;
}

void Sessions::run() {
  MutexLock lock(mutex_);
  while (true) {
    while (!stopping_ && ready_.empty()) changed_.wait(lock);
    if (ready_.empty()) return;
    std::shared_ptr<Session> session = std::move(ready_.front());
    ready_.pop_front();
    lock.unlock();
    session->pump();
    session.reset();
    lock.lock();
  }
}

}  // namespace specd::host
