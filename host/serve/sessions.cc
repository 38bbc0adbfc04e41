#include "host/serve/sessions.h"

#include <utility>

#include "core/base/thread.h"

namespace specd::host {

Sessions::Sessions(Engine& engine, std::string default_route, size_t buffer_bytes_max,
                   size_t unread_bytes_max)
    : engine_(engine),
      default_route_(std::move(default_route)),
      buffer_bytes_max_(buffer_bytes_max),
      unread_bytes_max_(unread_bytes_max),
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

bool Sessions::cancel(const std::string& request_id, uint64_t client) {
  // In this order, so that the engine finds a request that is submitted in between.
  bool found = false;
  if (client != kEveryClient) {
    for (const auto& session : live()) found |= session->cancel_own(request_id, client);
    return found;
  }
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
    if (std::exchange(session->is_ready_, true)) return;
    Session* const last = session.get();
    (first_ready_ == nullptr ? first_ready_ : last_ready_->next_ready_) = std::move(session);
    last_ready_ = last;
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
    while (!stopping_ && first_ready_ == nullptr) changed_.wait(lock);
    if (first_ready_ == nullptr) return;
    std::shared_ptr<Session> session = std::move(first_ready_);
    first_ready_ = std::move(session->next_ready_);
    session->is_ready_ = false;
    lock.unlock();
    cut_unread();
    session->pump();
    session.reset();
    lock.lock();
  }
}

// Whoever writes next may be in no arrears at all, so the largest backlog goes, not the newest.
void Sessions::cut_unread() {
  while (unread_bytes_ > unread_bytes_max_) {
    std::shared_ptr<Session> most;
    {
      const MutexLock lock(mutex_);
      for (const auto& [key, session] : live_)
        if (session->held_bytes_ > (most == nullptr ? 0 : most->held_bytes_.load())) most = session;
    }
    if (most == nullptr) return;  // all of it is being written
    most->cut_unread();
  }
}

}  // namespace specd::host
