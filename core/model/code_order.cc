#include "core/model/code_order.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "core/base/to_size.h"

namespace specd {
namespace {

// The most k of a run: for sums of integers what 32 bits hold.
int32_t run_max(int32_t x_bits) {
  if (x_bits == 8) return kernels::kRun8Max;
  if (x_bits == 16) return kernels::kRun16Max;
  return std::numeric_limits<int32_t>::max();
}

}  // namespace

kernels::CodeOrder PlacedOrder::counts(const CodeKind& kind) {
  std::vector<int32_t> sizes(to_size(kind.n_groups));
  for (const int32_t group : kind.group_of) ++sizes[to_size(group)];
  kernels::CodeOrder order{.n_groups = kind.n_groups,
                           .bits = kind.bits,
                           .x_bits = kind.x_bits,
                           .x_scale = kind.x_scale,
                           .has_zeros = kind.has_zeros};
  constexpr int32_t kGrain = kernels::kRunGrain;
  for (const int32_t size : sizes) {
    const int32_t longest = run_max(kind.x_bits), rest = size % longest;
    order.n_runs += size / longest + (rest == 0 ? 0 : 1);
    order.depth += size - rest + (rest + kGrain - 1) / kGrain * kGrain;
  }
  return order;
}

PlacedOrder::PlacedOrder(const CodeKind& kind) {
  std::vector<int32_t> ks(kind.group_of.size());
  std::iota(ks.begin(), ks.end(), 0);
  std::ranges::stable_sort(ks, {}, [&](int32_t k) { return kind.group_of[to_size(k)]; });
  kernels::Run run;
  const auto finish = [&] {
    if (run.n == 0) return;
    for (; run.n % kernels::kRunGrain != 0; ++run.n) source_.push_back(-1);
    runs_.push_back(run);
  };
  for (const int32_t k : ks) {
    const int32_t group = kind.group_of[to_size(k)];
    if (run.n == 0 || run.group != group || run.n == run_max(kind.x_bits)) {
      finish();
      run = {.begin = static_cast<int32_t>(source_.size()), .group = group};
    }
    source_.push_back(k);
    ++run.n;
  }
  finish();
  SPECD_CHECK(kind.x_bits != 8 || runs_.size() == 1, "a row of x has one scale");
  order_ = counts(kind);
  SPECD_CHECK(runs_.size() == to_size(order_.n_runs) && source_.size() == to_size(order_.depth),
              "counts() counts what is made");
  order_.runs = runs_.data();
  order_.source = source_.data();
}

uint64_t PlacedOrder::bytes(const kernels::CodeOrder& order) {
  return to_size(order.n_runs) * sizeof(kernels::Run) + to_size(order.depth) * sizeof(int32_t);
}

Status PlacedOrder::place_on(Device& device, Device& by) {
  if (device.is_host()) return Status();
  SPECD_TRY(device_runs_, device.allocate(runs_.size() * sizeof(kernels::Run), "order of codes"));
  SPECD_TRY(device_source_, device.allocate(source_.size() * sizeof(int32_t), "order of codes"));
  by.copy_in(device_runs_.data(), runs_.data(), device_runs_.bytes());
  by.copy_in(device_source_.data(), source_.data(), device_source_.bytes());
  order_.runs = device_runs_.as<kernels::Run>();
  order_.source = device_source_.as<int32_t>();
  return Status();
}

}  // namespace specd
