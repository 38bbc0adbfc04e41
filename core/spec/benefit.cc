#include "core/spec/benefit.h"

#include <algorithm>
#include <bit>

namespace specd {
namespace {

// Time per token of a sequence.
template <size_t kN>
double time_per_token(const std::array<MeasuredStep, kN>& steps) {
  std::array<uint64_t, kN> times;
  double n_tokens = 0, n_sequences = 0;
  for (size_t i = 0; i < kN; ++i) {
    times[i] = steps[i].ns;
    n_tokens += steps[i].n_tokens;
    n_sequences += steps[i].n_sequences;
  }
  const auto middle = times.begin() + kN / 2;
  std::nth_element(times.begin(), middle, times.end());
  return static_cast<double>(*middle) * n_sequences / n_tokens;
}

}  // namespace

std::optional<BenefitVerdict> Benefit::record(const MeasuredStep& step) {
  if (step.n_sequences <= 0 || step.n_running <= 0) return std::nullopt;
  if (step.has_prompt || step.n_tokens <= 0) {
    count_down();
    return std::nullopt;
  }
  const auto at = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(step.n_running)) - 1);
  Size& size = sizes_[at];
  if (step.has_drafts) {
    size.with[size.n_steps % kDraftSteps] = step;
    if (++size.n_steps < size.interval || is_probing() || !step.may_probe) return std::nullopt;
    probed_ = at;
    size.n_without = 0;
    n_left_ = 2 * kProbeSteps;  // batches of other sizes may come between
    return std::nullopt;
  }
  if (!is_probing()) return std::nullopt;
  Size& probed = sizes_[probed_];
  if (at == probed_) probed.without[probed.n_without++] = step;
  if (probed.n_without == kProbeSteps) return end_probe();
  count_down();
  return std::nullopt;
}

// The steps that a probe needs have become rare: not before as many with drafts again.
void Benefit::count_down() {
  if (is_probing() && --n_left_ == 0) sizes_[probed_].n_steps = 0;
}

BenefitVerdict Benefit::end_probe() {
  Size& size = sizes_[probed_];
  BenefitVerdict verdict;
  verdict.ns_with = time_per_token(size.with);
  verdict.ns_without = time_per_token(size.without);
  verdict.pays = verdict.ns_with <= kSlower * verdict.ns_without;
  verdict.n_running_min = int32_t{1} << probed_;
  verdict.n_running_max = verdict.n_running_min + (verdict.n_running_min - 1);
  verdict.n_slower = verdict.pays ? 0 : size.n_slower + 1;
  size.n_slower = verdict.n_slower;
  size.interval = verdict.pays ? std::min(2 * size.interval, kIntervalMax) : kDraftSteps;
  size.n_steps = 0;
  n_left_ = 0;
  return verdict;
}

}  // namespace specd
