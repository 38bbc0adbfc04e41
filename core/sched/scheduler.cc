#include "core/sched/scheduler.h"

#include <algorithm>
#include <numeric>

#include "core/kv/block_table.h"

namespace specd {

namespace {

// A sequence of this step: running or admitted.
struct Member {
  Rank rank;
  int32_t sequence = 0;
  int32_t n_tokens = 0, n_computed = 0, n_pages = 0, n_own_pages = 0;
  int32_t draft_nodes_max = 0;
  int32_t n_granted = 0;  // new pages reserved for it
  bool scores = false, copies = false;
  bool runs = false;  // has the pages that one row needs
  bool preempted = false;

  int32_t n_pending() const { return n_tokens - n_computed; }
  bool decodes() const { return n_pending() == 1; }
  // Pages missing for its first n tokens, beyond those reserved.
  int32_t lacks(int64_t n) const { return std::max(0, pages_for(n) - n_pages - n_granted); }
};

class Planner {
 public:
  Planner(const SchedulerLimits& limits, int32_t pages_available, int32_t pages_reclaimable)
      : limits_(limits), pages_left_(pages_available), reclaimable_left_(pages_reclaimable) {}

  StepPlan plan(const std::vector<RunningView>& running, const std::vector<WaitingView>& waiting) {
    for (const RunningView& view : running) {
      members_.push_back({.rank = view.rank,
                          .sequence = static_cast<int32_t>(members_.size()),
                          .n_tokens = view.n_tokens,
                          .n_computed = view.n_computed,
                          .n_pages = view.n_pages,
                          .n_own_pages = view.n_own_pages,
                          .draft_nodes_max = view.draft_nodes_max,
                          .scores = view.scores,
                          .copies = view.copies});
    }
    std::sort(members_.begin(), members_.end(),
              [](const Member& a, const Member& b) { return a.rank < b.rank; });
    n_running_ = members_.size();
    keep_running();
    admit(waiting);
    share_rows();
    // Pages that no sequence took: reserves, and the surplus of a preemption.
    plan_.n_pages_to_reclaim -= std::min(plan_.n_pages_to_reclaim, pages_left_);
    return std::move(plan_);
  }

 private:
  // Goes through the running sequences by rank. Each gets pages for at least one row, if necessary
  // from sequences with larger ranks.
  void keep_running() {
    for (size_t i = 0; i < n_running_; ++i) {
      Member& member = members_[i];
      if (member.preempted) continue;
      const int32_t need = member.lacks(member.n_computed + 1);
      while (!afford(need) && preempt_after(member.rank)) {
      }
      // pages that preempted sequences shared count as free in the next step
      if (need > pages_left_) continue;
      grant(member, need);
      member.runs = true;
    }
  }

  void admit(const std::vector<WaitingView>& waiting) {
    for (const WaitingView& next : waiting) {
      // Sequences just preempted come first.
      if (std::any_of(members_.begin(), members_.end(), [&](const Member& other) {
            return other.preempted && other.rank < next.rank;
          })) {
        return;
      }
      const Admission admission = admission_of(next);
      const int32_t n_shared = admission.n_shared_pages;
      const int32_t n_idle = std::min(next.n_idle_pages, n_shared);
      Member member{.rank = next.rank,
                    .sequence = static_cast<int32_t>(members_.size()),
                    .n_tokens = next.n_tokens,
                    .n_computed = admission.n_computed,
                    .n_pages = n_shared,
                    .scores = next.scores,
                    .runs = true};
      // Besides pages for its own tokens, leave room for the remaining prompts of the sequences
      // before it and one page of growth for each, so that it is not preempted at once.
      const int32_t rest = member.lacks(member.n_tokens + 1);
      int32_t reserve = 0, could_free = 0, could_end = 0;
      for (const Member& other : members_) {
        if (other.preempted) continue;
        if (other.rank < next.rank) {
          reserve += 1 + other.lacks(other.n_tokens + 1);
        } else {
          could_free += other.n_own_pages + other.n_granted;
          ++could_end;
        }
      }
      // Pages it shares may have been in use by a sequence preempted just now; they become idle
      // only now.
      const auto needed = [&](bool some_preempted) {
        return rest + (some_preempted ? n_shared : n_idle) + reserve;
      };
      const auto some_preempted = [&] { return !plan_.preempted.empty(); };
      const bool place = n_alive() < limits_.max_sequences;
      const int32_t need = needed(!place || some_preempted());
      plan_.pages_short = plan_.pages_short || need > pages_left_;
      if (!place || need > pages_left_ + reclaimable_left_) {
        if (could_end == 0 || needed(true) > pages_left_ + reclaimable_left_ + could_free) return;
        // Preemption might not free pages shared with sequences admitted in this step. Wait for the
        // next step, which sees the exact counts.
        if (!plan_.admitted.empty()) return;
      }
      if (!place) preempt_after(next.rank);
      while (!afford(needed(some_preempted())) && preempt_after(next.rank)) {
      }
      pages_left_ -= some_preempted() ? n_shared : n_idle;
      grant(member, rest);
      members_.push_back(member);
      plan_.admitted.push_back(admission);
    }
  }

  void share_rows() {
    std::vector<Member*> decoding, prefilling;
    for (Member& member : members_) {
      if (member.runs && !member.preempted) {
        (member.decodes() ? decoding : prefilling).push_back(&member);
      }
    }
    const auto n_decoding = static_cast<int32_t>(decoding.size());
    const auto n_prefilling = static_cast<int32_t>(prefilling.size());
    int32_t rows_left = limits_.step_tokens_max - n_decoding;
    int32_t draft_rows = prefilling.empty() ? rows_left : rows_left / 2;
    draft_rows = std::min(draft_rows, rows_left - n_prefilling);
    // Of logits; each sequence has one.
    int32_t logits_left = limits_.logits_rows_max - n_decoding - n_prefilling;
    const bool some_score = std::any_of(prefilling.begin(), prefilling.end(),
                                        [](const Member* member) { return member->scores; });
    draft_rows = std::min(
        draft_rows, some_score ? std::max(logits_left - limits_.copied_rows_max, logits_left / 2)
                               : logits_left);

    std::vector<int32_t> wants;
    wants.reserve(decoding.size());
    for (const Member* member : decoding) {
      wants.push_back(member->copies ? member->draft_nodes_max : 0);
    }
    const int32_t copied_max = some_score ? limits_.copied_rows_max / 2 : limits_.copied_rows_max;
    const std::vector<int32_t> copied = share_evenly(wants, copied_max);
    for (size_t i = 0; i < decoding.size(); ++i) {
      wants[i] = decoding[i]->copies ? copied[i] : decoding[i]->draft_nodes_max;
    }
    std::vector<int32_t> nodes = share_evenly(wants, draft_rows);
    const int32_t n_nodes = std::accumulate(nodes.begin(), nodes.end(), 0);
    rows_left -= n_nodes;
    int32_t copies_left = limits_.copied_rows_max;
    for (size_t i = 0; i < decoding.size(); ++i) {
      if (decoding[i]->copies) copies_left -= nodes[i];
    }
    logits_left = std::min(logits_left - n_nodes, copies_left);

    wants.clear();
    for (const Member* member : prefilling) {
      wants.push_back(member->scores ? member->n_pending() - 1 : 0);
    }
    const std::vector<int32_t> scored = share_evenly(wants, logits_left);
    for (size_t i = 0; i < prefilling.size(); ++i) {
      wants[i] = prefilling[i]->scores ? scored[i] + 1 : prefilling[i]->n_pending();
    }
    const std::vector<int32_t> rows = share_evenly(wants, rows_left);
    for (size_t i = 0; i < prefilling.size(); ++i) {
      Member& member = *prefilling[i];
      const int32_t n_rows = extend(member, rows[i]);
      item(member, {.n_rows = n_rows, .wants_token = n_rows == member.n_pending()});
    }
    for (size_t i = 0; i < decoding.size(); ++i) {
      Member& member = *decoding[i];
      const int32_t with_root = extend(member, 1 + nodes[i]);
      item(member, {.n_rows = 1, .wants_token = true, .draft_nodes = with_root - 1});
    }
  }

  // Reserves pages for up to n rows after the computed ones; returns how many rows fit. >= 1 for a
  // member that runs.
  int32_t extend(Member& member, int32_t n) {
    const int32_t lacking = member.lacks(int64_t{member.n_computed} + n);
    grant(member, afford(lacking) ? lacking : pages_left_);
    const int32_t room =
        (member.n_pages + member.n_granted) * kernels::kPageTokens - member.n_computed;
    return std::min(n, room);
  }

  void item(const Member& member, PlanItem one) {
    one.sequence = member.sequence;
    one.n_new_pages = std::max(
        0, pages_for(int64_t{member.n_computed} + one.n_rows + one.draft_nodes) - member.n_pages);
    plan_.items.push_back(one);
  }

  // Whether n pages are available, including reclaimable ones.
  bool afford(int32_t n) {
    if (n <= pages_left_) return true;
    plan_.pages_short = true;
    const int32_t more = std::min(n - pages_left_, reclaimable_left_);
    plan_.n_pages_to_reclaim += more;
    reclaimable_left_ -= more;
    pages_left_ += more;
    return n <= pages_left_;
  }

  void grant(Member& member, int32_t n) {
    member.n_granted += n;
    pages_left_ -= n;
  }

  // Preempts the last running sequence if its rank is larger than `rank`; false if there is none.
  bool preempt_after(const Rank& rank) {
    for (size_t i = n_running_; i-- > 0;) {
      Member& last = members_[i];
      if (last.preempted) continue;
      if (!(rank < last.rank)) return false;
      last.preempted = true;
      pages_left_ += last.n_own_pages + last.n_granted;
      plan_.preempted.push_back(last.sequence);
      return true;
    }
    return false;
  }

  int32_t n_alive() const { return static_cast<int32_t>(members_.size() - plan_.preempted.size()); }

  const SchedulerLimits& limits_;
  int32_t pages_left_;
  int32_t reclaimable_left_;     // not requested yet
  std::vector<Member> members_;  // running sequences by rank, then admitted ones
  size_t n_running_ = 0;
  StepPlan plan_;
};

}  // namespace

Admission admission_of(const WaitingView& waiting) {
  Admission admission;
  // At least one row must be computed.
  admission.n_computed =
      std::min(waiting.n_cached_pages * kernels::kPageTokens, waiting.n_tokens - 1);
  admission.n_shared_pages = admission.n_computed / kernels::kPageTokens;
  admission.copies_page = waiting.n_cached_pages > admission.n_shared_pages;
  return admission;
}

std::vector<int32_t> share_evenly(const std::vector<int32_t>& wants, int32_t total) {
  std::vector<size_t> order(wants.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return wants[a] != wants[b] ? wants[a] < wants[b] : a > b; });
  std::vector<int32_t> shares(wants.size(), 0);
  // From the smallest want up, each takes its even share of what is left. The division's remainder
  // goes to those served last: the largest wants, and among equal wants the first in the list.
  for (size_t i = 0; i < order.size(); ++i) {
    const auto others = static_cast<int32_t>(order.size() - i);
    shares[order[i]] = std::min(wants[order[i]], total / others);
    total -= shares[order[i]];
  }
  return shares;
}

StepPlan plan_step(const SchedulerLimits& limits, const std::vector<RunningView>& running,
                   const std::vector<WaitingView>& waiting, int32_t pages_available,
                   int32_t pages_reclaimable) {
  return Planner(limits, pages_available, pages_reclaimable).plan(running, waiting);
}

}  // namespace specd
