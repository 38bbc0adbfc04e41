#include "core/spec/benefit.h"

#include <algorithm>
#include <bit>

namespace specd {
namespace {

template <size_t kN>
double median(std::array<uint64_t, kN> values) {
  const auto middle = values.begin() + kN / 2;
  std::nth_element(values.begin(), middle, values.end());
  return static_cast<double>(*middle);
}

}  // namespace

std::optional<BenefitVerdict> Benefit::record(const MeasuredStep& step) {
  if (step.n_sequences <= 0 || step.n_running <= 0 || step.n_tokens <= 0) return std::nullopt;
  const auto at = static_cast<size_t>(std::bit_width(static_cast<uint32_t>(step.n_running)) - 1);
  Size& size = sizes_[at];
  if (step.has_drafts) {
    size.with[size.n_steps % kDraftSteps] = step.ns;
    size.n_tokens += step.n_tokens;
    size.n_sequences += step.n_sequences;
    if (++size.n_steps < size.interval || is_probing()) return std::nullopt;
    probed_ = at;
    size.n_without = 0;
    n_left_ = 2 * kProbeSteps;  // batches of other sizes may come between
    return std::nullopt;
  }
  if (!is_probing()) return std::nullopt;
  --n_left_;
  Size& probed = sizes_[probed_];
  if (at == probed_) probed.without[probed.n_without++] = step.ns;
  if (probed.n_without == kProbeSteps) return end_probe();
  // Batches of this size have become rare: not before as many steps again.
  if (n_left_ == 0) probed = {.interval = probed.interval};
  return std::nullopt;
}

BenefitVerdict Benefit::end_probe() {
  Size& size = sizes_[probed_];
  BenefitVerdict verdict;
  verdict.ns_with = median(size.with) * static_cast<double>(size.n_sequences) /
                    static_cast<double>(size.n_tokens);
  verdict.ns_without = median(size.without);
  verdict.pays = verdict.ns_with <= kSlower * verdict.ns_without;
  verdict.n_running_min = int32_t{1} << probed_;
  verdict.n_running_max = verdict.n_running_min + (verdict.n_running_min - 1);
  size = {.interval = verdict.pays ? std::min(2 * size.interval, kIntervalMax) : kDraftSteps};
  n_left_ = 0;
  return verdict;
}

}  // namespace specd
