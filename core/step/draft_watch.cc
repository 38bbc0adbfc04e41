#include "core/step/draft_watch.h"

#include <algorithm>
#include <new>
#include <utility>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

WatchedRequest report_of(const ActiveSequence& member) {
  const Sequence& sequence = *member.sequence;
  WatchedRequest report{.number = sequence.number(),
                        .id = sequence.request().id,
                        .index = sequence.index(),
                        .prompt_tokens = sequence.n_prompt(),
                        .output_tokens = sequence.n_output(),
                        .max_tokens = sequence.request().max_tokens,
                        .drafted = sequence.usage.draft_tokens,
                        .accepted = sequence.usage.accepted_tokens};
  if (member.route != nullptr) {
    report.route = member.route->name;
    report.generation = member.route->generation;
  }
  return report;
}

// REQUIRES that the step has added to its text.
WatchedStep step_of(const ActiveSequence& member, uint64_t number) {
  const Sequence& sequence = *member.sequence;
  const std::vector<int32_t>& accepted = member.accepted();
  const int32_t n_before = sequence.size() - member.n_taken;
  WatchedStep step{.number = number,
                   .n_output = n_before - sequence.n_prompt(),
                   .root = sequence.tokens()[to_size(n_before - 1)],
                   .token = member.tree.token,
                   .parent = member.tree.parent,
                   .is_probe = std::vector<bool>(member.tree.token.size()),
                   .accepted = {}};
  for (size_t i = 0; i < step.token.size(); ++i)
    step.is_probe[i] = (member.tree.flags[i] & SPECD_NODE_PROBE) != 0;
  // The text may have ended at one of them.
  const size_t n_kept = std::min(accepted.size(), to_size(member.n_taken));
  step.accepted.assign(accepted.begin(), accepted.begin() + static_cast<ptrdiff_t>(n_kept));
  if (to_size(member.n_taken) > n_kept) step.next_token = sequence.tokens().back();
  return step;
}

}  // namespace

WatchedDrafts DraftWatch::read(uint64_t now_ns) {
  const MutexLock lock(mutex_);
  if (now_ns >= until_ns_.load(std::memory_order_relaxed)) forget();
  until_ns_.store(now_ns + kLeaseNs, std::memory_order_relaxed);
  return {.running = running_,
          .followed = followed_,
          .is_picked = picked_ != 0,
          .steps = {steps_.begin(), steps_.end()}};
}

void DraftWatch::follow(uint64_t number) {
  const MutexLock lock(mutex_);
  picked_ = number;
  if (number == 0 || number == followed_.number) return;
  steps_.clear();
  n_nodes_ = 0;
  followed_ = {};
  followed_.number = number;
  last_step_ = 0;
  has_ended_ = false;
}

void DraftWatch::forget() {
  running_.clear();
  steps_.clear();
  n_nodes_ = 0;
  followed_ = {};
  picked_ = last_step_ = 0;
  has_ended_ = false;
}

void DraftWatch::record(const Members& members, uint64_t step, uint64_t now_ns) {
  if (now_ns >= until_ns_.load(std::memory_order_relaxed)) return;
  try {
    std::vector<WatchedRequest> running;
    for (const ActiveSequence* member : members) {
      if (running.size() == kRunningMax) break;
      if (member->sequence->finish() == FinishReason::kNone) running.push_back(report_of(*member));
    }
    const MutexLock lock(mutex_);
    running_.swap(running);
    if (const ActiveSequence* const member = choose(members, step)) keep(*member, step);
  } catch (const std::bad_alloc&) {  // nobody's text depends on it
  }
}

// The member to keep, if it is in this step.
const ActiveSequence* DraftWatch::choose(const Members& members, uint64_t step) {
  const ActiveSequence *followed = nullptr, *newest = nullptr;
  for (const ActiveSequence* member : members) {
    const uint64_t number = member->sequence->number();
    if (number == followed_.number) followed = member;
    if (member->n_taken == 0 || member->tree.size() == 0) continue;
    if (newest == nullptr || number > newest->sequence->number()) newest = member;
  }
  if (followed_.number != 0 && !has_ended_) {
    const bool is_active = followed != nullptr && (picked_ != 0 || followed->tree.size() > 0);
    if (is_active || last_step_ == 0) last_step_ = step;
    if (step - last_step_ <= kIdleSteps) return followed;
  }
  if (newest == nullptr) return followed;
  if (newest != followed) {
    steps_.clear();
    n_nodes_ = 0;
  }
  picked_ = 0;
  last_step_ = step;
  has_ended_ = false;
  return newest;
}

void DraftWatch::keep(const ActiveSequence& member, uint64_t step) {
  followed_ = report_of(member);
  has_ended_ = member.sequence->finish() != FinishReason::kNone;
  if (member.n_taken == 0) return;
  steps_.push_back(std::make_shared<const WatchedStep>(step_of(member, step)));
  n_nodes_ += steps_.back()->token.size();
  while (steps_.size() > kStepsMax || (n_nodes_ > kNodesMax && steps_.size() > 1)) {
    n_nodes_ -= steps_.front()->token.size();
    steps_.pop_front();
  }
}

}  // namespace specd
