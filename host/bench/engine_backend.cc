#include "host/bench/engine_backend.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include "core/base/clock.h"
#include "core/base/mutex.h"

namespace specd::host {
namespace {

constexpr std::chrono::milliseconds kStopPoll{50};
constexpr std::chrono::milliseconds kDrainPoll{1};

}  // namespace

Result<Answer> EngineBackend::run(const Request& request, bool with_prompt_tokens,
                                  const std::atomic<bool>& stop) {
  struct State {
    Mutex mutex;
    CondVar changed;
    Answer answer SPECD_GUARDED_BY(mutex);
    Status error SPECD_GUARDED_BY(mutex);
    bool done SPECD_GUARDED_BY(mutex) = false;
  };
  const auto state = std::make_shared<State>();
  const uint64_t start_ns = now_ns();
  SPECD_TRY(const Ticket ticket, engine_.submit(request, [state](const Event& event) {
    const MutexLock lock(state->mutex);
    Answer& answer = state->answer;
    if (!event.tokens.empty() && answer.first_ns == 0) answer.first_ns = now_ns();
    answer.tokens.insert(answer.tokens.end(), event.tokens.begin(), event.tokens.end());
    if (!event.done) return;
    answer.end_ns = now_ns();
    answer.usage = event.usage;
    state->error = event.error;
    state->done = true;
    state->changed.notify_all();
  }));
  MutexLock lock(state->mutex);
  bool cancelled = false;
  while (!state->done) {
    state->changed.wait_until(lock, CondVar::Clock::now() + kStopPoll);
    if (!stop || state->done || std::exchange(cancelled, true)) continue;
    lock.unlock();  // the sink takes it on the step thread
    engine_.cancel(ticket.number);
    lock.lock();
  }
  if (!state->error.ok()) return state->error;
  Answer answer = std::move(state->answer);
  answer.start_ns = start_ns;
  if (answer.first_ns == 0) answer.first_ns = answer.end_ns;
  if (with_prompt_tokens) {
    if (request.prompt_tokens.has_value()) {
      answer.prompt_tokens = *request.prompt_tokens;
    } else {
      SPECD_TRY(answer.prompt_tokens, engine_.encode(request.prompt));
    }
  }
  return answer;
}

Result<bool> EngineBackend::renew_drafter(const std::string& route, const std::atomic<bool>& stop) {
  if (route == "off") return true;
  SPECD_TRY(const RouteOptions options, engine_.route(route));
  // Applying the definition of a live route again changes nothing, so delete the route first.
  SPECD_OK_OR_RETURN(as_status(engine_.delete_route(route)));
  SPECD_OK_OR_RETURN(as_status(engine_.apply_route(options)));
  // The old drafter is destroyed on another thread; nothing may be timed meanwhile.
  const auto is_draining = [this] {
    const std::vector<RouteReport> routes = engine_.routes();
    return std::any_of(routes.begin(), routes.end(),
                       [](const RouteReport& each) { return each.state == RouteState::kDraining; });
  };
  while (is_draining()) {
    if (stop) return Status(Code::kCancelled, "stopped by a signal");
    std::this_thread::sleep_for(kDrainPoll);
  }
  return true;
}

Result<DraftCounts> EngineBackend::draft_counts(const std::string& route) {
  for (const RouteReport& each : engine_.routes())
    if (each.name() == route)
      return DraftCounts{each.options.guarantee, each.counts.drafts, each.counts.accepted_at,
                         each.counts.propose.ns};
  return Status(Code::kNotFound, "no route is called '" + route + "'");
}

}  // namespace specd::host
