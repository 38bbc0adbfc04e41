#include "core/plugin/process/keeper.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "core/base/bad_alloc.h"
#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/thread.h"

namespace specd {
namespace {

// For destroy(), when the daemon wants to go on.
constexpr std::chrono::milliseconds kEndLimit{1000};
// When the system has no room for a process.
constexpr std::chrono::seconds kLongPause{5};

uint64_t ns_of(std::chrono::nanoseconds duration) {
  return static_cast<uint64_t>(duration.count());
}

}  // namespace

ProcessKeeper::ProcessKeeper(Terms terms)
    : terms_(std::move(terms)),
      event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      // What it asks of a process has the limit, and so has the start of another one.
      beat_("specd-keeper", terms_.order.plugin + " (" + terms_.order.instance_name + ")",
            2 * terms_.limit),
      made_until_ns_(limit_from_now()) {
  if (event_.get() < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  thread_ = try_start_thread("specd-keeper", [this] { run(); });
}

Result<std::unique_ptr<ProcessKeeper>> ProcessKeeper::start(Terms terms) {
  try {
    return std::unique_ptr<ProcessKeeper>(new ProcessKeeper(std::move(terms)));
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, std::string("cannot keep a drafter's process: ") +
                                        error.what() + " (ulimit -u, -n, pids.max of the cgroup)");
  }
}

ProcessKeeper::~ProcessKeeper() {
  is_cancelled_ = true;
  on_thread([this] {
    is_cancelled_ = false;
    serving_.reset();
    drop_link();
    if (child_ != nullptr)
      (void)child_->ask({{"do", "end"}}, -1, now_ns() + ns_of(kEndLimit), is_cancelled_);
    child_.reset();
  });
  is_over_ = true;
  wake();
  thread_.join();
}

void ProcessKeeper::wake() {
  const uint64_t one = 1;
  (void)!write(event_.get(), &one, sizeof(one));
}

void ProcessKeeper::on_thread(const std::function<void()>& work) {
  MutexLock lock(mutex_);
  work_ = &work;
  wake();
  while (work_ != nullptr) done_.wait(lock);
}

void ProcessKeeper::run() {
  while (!is_over_) {
    const std::function<void()>* work = nullptr;
    {
      const MutexLock lock(mutex_);
      work = work_;
    }
    if (work != nullptr) {
      const BusyTurn turn(beat_);
      or_drop([&] { (*work)(); });  // which has said before that there is no memory
      const MutexLock lock(mutex_);
      work_ = nullptr;
      done_.notify_all();
      continue;
    }
    {
      const BusyTurn turn(beat_);
      or_drop([this] { look(); });
    }
    wait();
  }
}

// Until somebody wants something, the process ends or tells something, or is to be started again.
void ProcessKeeper::wait() {
  std::array<pollfd, 3> any{pollfd{event_.get(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  int limit_ms = -1;
  if (child_ != nullptr) {
    any[1].fd = child_->process();
    any[2].fd = child_->socket();
  } else if (serving_.has_value() && !is_lost_) {
    const uint64_t now = now_ns();
    limit_ms = restart_ns_ <= now ? 0 : static_cast<int>((restart_ns_ - now) / 1'000'000 + 1);
  }
  (void)poll(any.data(), any.size(), limit_ms);
  uint64_t unused = 0;
  (void)!read(event_.get(), &unused, sizeof(unused));
}

void ProcessKeeper::look() {
  if (child_ != nullptr && is_lost_) child_->kill("given up");
  if (child_ != nullptr && child_->has_ended()) {
    const std::string how = child_->how_it_ended();
    drop_link();
    child_.reset();
    if (specd_owner* const owner = owner_; owner != nullptr) end_figures(counted_, *owner);
    note_death(how);
  } else if (child_ != nullptr) {
    const Json told = child_->told();
    specd_owner* const owner = owner_;
    if (!told.is_null() && owner != nullptr) take_figures(told, counted_, *owner);
  }
  if (child_ == nullptr && serving_.has_value() && !is_lost_ && now_ns() >= restart_ns_) revive();
}

void ProcessKeeper::note_death(const std::string& how) {
  if (is_lost_) return;
  const uint64_t now = now_ns();
  deaths_.push_back(now);
  while (deaths_.front() + ns_of(kDeathsWithin) < now) deaths_.pop_front();
  restart_ns_ = now + (ns_of(kFirstPause) << (deaths_.size() - 1));
  if (!serving_.has_value())
    return log(LogLevel::kWarn, label() + ": its process has ended: " + how);
  const bool is_started_again = deaths_.size() < kDeathsMax;
  if (serving_->hooks.on_death) serving_->hooks.on_death(how, is_started_again);
  if (is_started_again) return;
  lose("its process has died " + std::to_string(deaths_.size()) + " times within " +
       std::to_string(kDeathsWithin.count()) + " s; the last time: " + how);
}

void ProcessKeeper::lose(const std::string& why) {
  is_lost_ = true;
  if (serving_->hooks.on_lost) serving_->hooks.on_lost(why);
}

void ProcessKeeper::drop_link() {
  if (link_ == nullptr) return;
  link_->is_gone = true;
  ring_bell(link_->rings->replies());
  link_.reset();
}

uint64_t ProcessKeeper::limit_from_now() const { return now_ns() + ns_of(terms_.limit); }

Result<Json> ProcessKeeper::ask(const Json& question, int descriptor, uint64_t until_ns,
                                const char* what) {
  if (child_ == nullptr) return Status(Code::kUnavailable, label() + ": its process has ended");
  auto answer = child_->ask(question, descriptor, until_ns, is_cancelled_);
  if (!answer.ok()) {
    const Status& why = answer.status();
    child_.reset();
    if (why.code() == Code::kDeadlineExceeded)
      return Status(why.code(), label() + ": " + what + " has not returned within " +
                                    std::to_string(terms_.limit.count()) +
                                    " ms, so its process was killed (plugins.control_seconds)");
    return why.with_context(label() + ": " + what);
  }
  SPECD_OK_OR_RETURN(status_from_json(answer.value()));
  return answer;
}

Result<CreatedDrafter> ProcessKeeper::start_child(uint64_t until_ns) {
  SPECD_TRY(std::unique_ptr<DrafterChild> child,
            DrafterChild::start(terms_.program, terms_.order.plugin));
  child_ = std::move(child);
  SPECD_TRY(Json answer, ask(order_to_json(terms_.order), -1, until_ns, "create()"));
  SPECD_TRY(CreatedDrafter created, created_from_json(answer));
  answer.erase("status");
  terms_.order.contents = created.contents;
  if (created_.is_null()) created_ = answer;
  if (created_ != answer)
    return Status(Code::kFailedPrecondition,
                  label() + ": it says something else of itself than when it was made first");
  return created;
}

Result<Json> ProcessKeeper::activate_child(uint64_t until_ns) {
  return ask({{"do", "activate"}, {"grant", grant_to_json(*grant_)}}, -1, until_ns, "activate()");
}

Status ProcessKeeper::connect(uint64_t until_ns) {
  SPECD_TRY(std::unique_ptr<SharedRings> rings,
            SharedRings::make(serving_->request_capacity, serving_->reply_capacity));
  const Json question{{"do", "serve"},
                      {"request_capacity", serving_->request_capacity},
                      {"reply_capacity", serving_->reply_capacity},
                      {"is_shadow", serving_->is_shadow}};
  SPECD_OK_OR_RETURN(as_status(ask(question, rings->file(), until_ns, "the start of its thread")));
  rings->close_file();
  link_ = serving_->connect(std::move(rings), child_);
  serving_->links->put(link_);
  return Status();
}

Status ProcessKeeper::start_serving(uint64_t until_ns) {
  if (child_ == nullptr) {
    SPECD_OK_OR_RETURN(as_status(start_child(until_ns)));
    SPECD_OK_OR_RETURN(as_status(activate_child(until_ns)));
  }
  return connect(until_ns);
}

void ProcessKeeper::revive() {
  const Status status = start_serving(limit_from_now());
  if (status.ok()) {
    if (serving_->hooks.on_restart) serving_->hooks.on_restart();
    return;
  }
  child_.reset();
  if (is_cancelled_) return;
  if (status.code() == Code::kExhausted) {  // which is not its fault
    restart_ns_ = now_ns() + ns_of(kLongPause);
    return log(LogLevel::kWarn,
               label() + ": its process cannot be started now: " + status.message());
  }
  if (status.code() == Code::kFailedPrecondition) return lose(status.message());
  note_death("it could not be started: " + status.message());
}

Result<CreatedDrafter> ProcessKeeper::create() {
  Result<CreatedDrafter> created = Status(Code::kExhausted, label() + ": no memory left");
  on_thread([&] { created = start_child(making_until()); });
  return created;
}

Result<std::vector<int32_t>> ProcessKeeper::activate(const specd_drafter_grant& grant) {
  Result<std::vector<int32_t>> parents = Status(Code::kExhausted, label() + ": no memory left");
  const auto run = [&]() -> Result<std::vector<int32_t>> {
    grant_ = grant;
    SPECD_TRY(const Json answer, activate_child(making_until()));
    std::vector<int32_t> read;
    for (const Json& each : answer.value("parents", Json::array())) {
      const bool is_node = each.is_number_integer() && each >= -1 && each < INT32_MAX;
      read.push_back(is_node ? each.get<int32_t>() : INT32_MAX);
    }
    return read;
  };
  on_thread([&] { parents = run(); });
  return parents;
}

Status ProcessKeeper::serve(Serving serving) {
  Status status(Code::kExhausted, label() + ": no memory left");
  const auto run = [&]() -> Status {
    if (is_lost_) return Status(Code::kFailedPrecondition, label() + ": its process was given up");
    const uint64_t until_ns = making_until();
    has_served_ = true;
    serving_ = std::move(serving);
    // It may have died while it did not serve.
    if (child_ != nullptr && child_->has_ended()) child_.reset();
    return start_serving(until_ns);
  };
  on_thread([&] {
    or_drop([&] { status = run(); });
    if (status.ok()) return;
    serving_.reset();
    drop_link();
    child_.reset();  // the next serve() starts another
  });
  return status;
}

void ProcessKeeper::pause(std::chrono::milliseconds limit) {
  is_cancelled_ = true;
  on_thread([&] {
    is_cancelled_ = false;
    const bool serves = serving_.has_value() && link_ != nullptr;
    serving_.reset();
    if (child_ != nullptr && serves &&
        !child_->ask({{"do", "pause"}}, -1, now_ns() + ns_of(limit), is_cancelled_).ok())
      child_.reset();
    drop_link();
  });
}

void ProcessKeeper::abandon() {
  is_lost_ = true;
  is_cancelled_ = true;  // what is being started
  wake();
}

}  // namespace specd
