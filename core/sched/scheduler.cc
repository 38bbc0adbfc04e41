#include "core/sched/scheduler.h"

#include <algorithm>

namespace specd {

StepPlan plan_step(const SchedulerLimits& limits, const std::vector<RunningView>& running,
                   const std::vector<WaitingView>& waiting, int32_t pages_free) {
  StepPlan plan;
  std::vector<RunningView> views = running;
  for (const WaitingView& next : waiting) {
    if (static_cast<int32_t>(views.size()) >= limits.max_sequences || next.pages > pages_free)
      break;
    pages_free -= next.pages;
    views.push_back({.n_pending = next.n_pending, .draft_nodes_max = 0});
    ++plan.n_admitted;
  }

  const auto decodes = [](const RunningView& view) { return view.n_pending == 1; };
  const int32_t n_decode = static_cast<int32_t>(std::count_if(views.begin(), views.end(), decodes));
  const bool prefilling = n_decode < static_cast<int32_t>(views.size());

  int32_t rows_left = limits.step_tokens_max - n_decode;
  int32_t draft_rows = prefilling ? rows_left / 2 : rows_left;
  int32_t decode_left = n_decode;
  for (int32_t i = 0; i < static_cast<int32_t>(views.size()); ++i) {
    const RunningView& view = views[static_cast<size_t>(i)];
    if (!decodes(view)) continue;
    // An even share of what is left, so that no sequence starves the ones behind it.
    const int32_t nodes = std::min(view.draft_nodes_max, draft_rows / decode_left--);
    draft_rows -= nodes;
    rows_left -= nodes;
    plan.items.push_back({.sequence = i, .n_rows = 1, .wants_token = true, .draft_nodes = nodes});
  }
  for (int32_t i = 0; i < static_cast<int32_t>(views.size()) && rows_left > 0; ++i) {
    const RunningView& view = views[static_cast<size_t>(i)];
    if (decodes(view)) continue;
    const int32_t n_rows = std::min(view.n_pending, rows_left);
    rows_left -= n_rows;
    plan.items.push_back({.sequence = i,
                          .n_rows = n_rows,
                          .wants_token = n_rows == view.n_pending,
                          .draft_nodes = 0});
  }
  return plan;
}

}  // namespace specd
