// A route that is being served: the pair of instances, its limits and its counters; and a request's
// hold on it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/plugin/beside/drafter_beside.h"
#include "core/plugin/beside/server.h"
#include "core/plugin/instance/instance.h"
#include "core/plugin/bundle/registry.h"
#include "core/spec/benefit.h"
#include "core/spec/breaker.h"
#include "core/spec/drafter_session.h"
#include "core/spec/engine_event.h"
#include "core/spec/route.h"
#include "core/spec/route_report.h"

namespace specd {

// Functions of a drafter whose calls are watched.
enum class DrafterCall : size_t { kBegin, kPropose, kUpdate };
constexpr std::array<const char*, 3> kDrafterCallNames = {"begin", "propose", "update"};

constexpr int32_t kDrafterFailuresMax =
    5;                             // of one function in a row; then the drafter is suspended
constexpr int32_t kSlowerMax = 3;  // verdicts in a row for one size of batch; then it is, too

struct RouteCounters {
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> steps{0};   // sequence-steps that decided a token
  std::atomic<uint64_t> drafts{0};  // of them, those with at least one draft node
  std::atomic<uint64_t> drafted{0}, accepted{0}, rejected{0}, discarded{0};
  std::vector<std::atomic<uint64_t>> accepted_at;  // [max_depth] accepted nodes by depth - 1
  std::atomic<uint64_t> forward_ns{0};             // the route's share of the forwards, by rows
  std::atomic<uint64_t> cut{0};  // sequences' proposals and verdicts that were refused or cut
  std::atomic<uint64_t> cut_verdicts{0};    // of these the verdicts
  std::atomic<uint64_t> sequences_lost{0};  // see RouteCounts::lost
  std::atomic<uint64_t> hidden_bytes{0};    // see RouteCounts::hidden_bytes
  std::atomic<uint64_t> process_ends{0};    // see RouteCounts::process_ends
  std::array<std::atomic<uint64_t>, kSuspensionRuleNames.size()> suspensions{};

  void clear() {
    for (auto* each :
         {&requests, &steps, &drafts, &drafted, &accepted, &rejected, &discarded, &forward_ns, &cut,
          &cut_verdicts, &sequences_lost, &hidden_bytes, &process_ends}) {
      *each = 0;
    }
    for (std::atomic<uint64_t>& each : accepted_at) each = 0;
    for (std::atomic<uint64_t>& each : suspensions) each = 0;
  }
  void add_to(RouteCounts& counts) const {
    counts.requests += requests;
    counts.steps += steps;
    counts.drafts += drafts;
    counts.drafted += drafted;
    counts.accepted += accepted;
    counts.rejected += rejected;
    counts.discarded += discarded;
    counts.accepted_at.resize(std::max(counts.accepted_at.size(), accepted_at.size()));
    for (size_t i = 0; i < accepted_at.size(); ++i) counts.accepted_at[i] += accepted_at[i];
    counts.forward_ns += forward_ns;
    counts.cut_verdicts += cut_verdicts;
    counts.cut += cut;
    counts.lost += sequences_lost;
    counts.hidden_bytes += hidden_bytes;
    counts.process_ends += process_ends;
    for (size_t i = 0; i < suspensions.size(); ++i) counts.suspensions[i] += suspensions[i];
  }
};

// The last thing that went wrong with a route's plugins, for reports.
class LastProblem {
 public:
  void set(std::string text) {
    const MutexLock lock(mutex_);
    if (!is_final_) text_ = std::move(text);
  }
  // Nothing that follows matters.
  void set_final(std::string text) {
    const MutexLock lock(mutex_);
    text_ = std::move(text);
    is_final_ = true;
  }
  std::string get() const {
    const MutexLock lock(mutex_);
    return text_;
  }

 private:
  mutable Mutex mutex_;
  std::string text_ SPECD_GUARDED_BY(mutex_);
  bool is_final_ SPECD_GUARDED_BY(mutex_) = false;
};

struct LiveRoute {
  const uint64_t number = next_number();  // unique in the process
  std::string name;
  uint64_t generation = 0;                 // number of the change that made it
  Guarantee guarantee = Guarantee::kNone;  // that its operator requires
  int32_t draft_nodes_max = 0;             // granted
  int32_t disable_by_batch_size = 0;       // 0 = never
  Isolation isolation = Isolation::kNone;
  uint64_t call_ns_max = 0;                    // of a call of the drafter in a step; 0 = no limit
  uint64_t step_budget_ns = 0;                 // for a proposal, of a drafter beside the step
  BundleInfo drafter_bundle, verifier_bundle;  // what the pair was made of
  std::vector<BundleInfo> part_bundles;        // and the drafter's parts
  uint64_t beside_bytes = 0;  // that the rings of its calls take, when it works beside the step
  std::atomic<uint64_t> ring_bytes{0};  // and take now
  std::unique_ptr<Drafter> drafter;
  std::unique_ptr<Verifier> verifier;
  std::unique_ptr<ShadowObserver> observer;  // of the thread, if the route is a shadow
  // The drafter's own thread or process, while it works beside the step. Changes only while no request has the route.
  std::unique_ptr<DrafterBeside> beside;
  bool verifies_on_device = false;  // judges device drafts there; set with the grants
  bool suspend_when_slower = false;
  std::vector<size_t> tap_index;  // for each of the drafter's taps, its index in the model
  RouteCounters counters;
  LastProblem last_problem;
  Breaker breaker{kDrafterFailuresMax};  // [the thread of the drafter's calls]
  Benefit benefit;
  Breaker benefit_breaker{1};  // [step]
  // [any] Told of kSuspended, kResumed, and of what becomes of the drafter's process, with the reason. May be empty.
  std::function<void(EventKind, const std::string& text)> tell;
  // [step] What the drafts of this step were drawn from, in the drafter's memory: see specd_proposal.
  specd_tensor q{}, q_lse{};
  // [step] A version that is shown what the requests of this one do. What it drafts decides nothing.
  std::shared_ptr<LiveRoute> shadow;
  std::vector<DrafterSession> shadow_sessions;  // [step] of this one as a shadow, by slot
  std::atomic<int32_t> n_leases{0};             // requests that wait or run with it
  std::unique_ptr<LiveRoute> next_released;     // in the list of those that retire

  // The drafter's [step] calls, wherever it works.
  DrafterCalls& calls() const {
    return beside == nullptr ? static_cast<DrafterCalls&>(*drafter) : beside->calls();
  }
  // Rows of one update().
  uint32_t rows_max() const {
    const uint32_t most = drafter->grant().max_rows;
    return beside == nullptr ? most : std::min(most, beside->rows_max());
  }
  // [step]
  bool is_shadow() const { return !shadow_sessions.empty(); }
  // [any] Whether the drafter must not be called any more: a call beside the step has not returned.
  bool is_condemned() const { return is_condemned_; }
  // How long control calls of the pair may take. A drafter that hangs already gets a second.
  std::chrono::seconds control_limit(std::chrono::seconds limit) const {
    return is_condemned() ? std::min(limit, std::chrono::seconds(1)) : limit;
  }
  // [any] Logs why, once, and lets the drafter's thread make no further call. RouteControl sees it, and quarantines
  // the version. REQUIRES that `beside` does not change meanwhile.
  void condemn(const std::string& why);
  // [any] The same when it makes no call any more: its process is gone for good. False when it was so already.
  bool set_condemned(const std::string& why);

  // Counts n sequences whose proposal or verdict was refused or cut, and says why. `of`: whose it was.
  void cut(uint64_t n, const BundleInfo& of, std::string why) {
    counters.cut += n;
    note_defect(of, why);
    last_problem.set(std::move(why));
  }
  // [any] The first defect of the version becomes an event; all are counted.
  void note_defect(const BundleInfo& of, const std::string& what);

  // [the thread of the drafter's calls] A call is over. Opens the breaker after too many that failed or were late.
  // A drafter that refuses single sequences works; a propose() of which nothing is usable does not
  // (core/step/proposal.cc).
  void called(DrafterCall call, const Status& status, uint64_t took_ns);
  // [step] A step is over. REQUIRES suspend_when_slower. Suspends the drafter when its drafts do not pay.
  void measured(const MeasuredStep& step);
  // [any] Whether the drafter has ever been suspended.
  bool has_been_suspended() const {
    return breaker.n_opened() > 0 || benefit_breaker.n_opened() > 0;
  }

  // Whether the route does not draft: too many sequences run, or the drafter is suspended.
  bool suspended(int32_t n_running) const {
    return (disable_by_batch_size > 0 && n_running > disable_by_batch_size) || rests(now_ns());
  }
  // Whether the drafter is suspended or condemned.
  bool rests(uint64_t now) const {
    return breaker.is_open(now) || benefit_breaker.is_open(now) || is_condemned();
  }
  // Whether the drafter works in device memory.
  bool on_device() const { return drafter->grant().device_type == SPECD_DEV_CUDA; }
  // Whether its proposals are there too, so that it drafts in the stream of the step.
  bool drafts_in_stream() const {
    return on_device() && drafter->caps().tree_mode != SPECD_TREE_VARIABLE;
  }
  // Whether the pair's part of a step may be captured and replayed without running its host code.
  bool may_capture() const {
    return (drafter->caps().features & SPECD_FEATURE_CAPTURE) != 0 &&
           (!verifies_on_device || (verifier->caps().features & SPECD_FEATURE_CAPTURE) != 0);
  }
  bool reads_law() const { return (verifier->caps().needs & SPECD_NEED_LAW) != 0; }
  // Whether its drafter hands on what it draws from.
  bool hands_on_q() const { return (drafter->grant().features & SPECD_FEATURE_Q) != 0; }
  bool reads_hidden() const { return (drafter->grant().needs & SPECD_NEED_HIDDEN) != 0; }
  bool chain() const { return drafter->caps().tree_mode == SPECD_TREE_CHAIN; }

 private:
  static uint64_t next_number() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
  void say(LogLevel level, EventKind kind, const std::string& what) const;
  void suspended_by(SuspensionRule rule, const Breaker& by, const std::string& problem);

  std::atomic<bool> is_condemned_{false};
  std::atomic<bool> is_defect_told_{false};
};

// A request's hold on its version of a route, from admission to its end or until it gets another. The pair lives as long as a lease does,
// even when the route is replaced or deleted. Empty = plain decoding. Movable only, so that each
// choice of a request counts once.
class RouteLease {
 public:
  RouteLease() = default;
  explicit RouteLease(std::shared_ptr<LiveRoute> route) : route_(std::move(route)) {
    if (route_ != nullptr) ++route_->n_leases;
  }
  ~RouteLease() { reset(); }
  RouteLease(RouteLease&& other) noexcept : route_(std::exchange(other.route_, nullptr)) {}
  RouteLease& operator=(RouteLease&& other) noexcept {
    std::swap(route_, other.route_);
    return *this;
  }

  RouteLease another() const { return RouteLease(route_); }
  void reset() {
    if (route_ != nullptr) --route_->n_leases;
    route_.reset();
  }
  LiveRoute* get() const { return route_.get(); }
  LiveRoute* operator->() const { return get(); }
  LiveRoute& operator*() const { return *get(); }
  bool operator==(std::nullptr_t) const { return route_ == nullptr; }

 private:
  std::shared_ptr<LiveRoute> route_;
};

}  // namespace specd
