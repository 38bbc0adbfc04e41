// The packed order of k of matrices of codes (kernels/codes.h), in the memory of a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/status.h"
#include "core/device/device.h"
#include "specd/kernels/matmul.h"

namespace specd {

// What decides an order.
struct CodeKind {
  int32_t bits = 8;    // of a code
  int32_t x_bits = 8;  // that x is rounded to; 32: not at all, and codes are E4M3
  bool has_zeros = false;
  float x_scale = 0;  // with x_bits 8: of every row; 0 = of each row its own
  int32_t n_groups = 1;
  std::vector<int32_t> group_of;  // of each k

  auto operator<=>(const CodeKind&) const = default;
};

class PlacedOrder {
 public:
  // The k of a group side by side, groups and their k increasing. REQUIRES groups below n_groups, and with
  // x_bits 8 one group and at most kRun8Max k.
  explicit PlacedOrder(const CodeKind& kind);
  PlacedOrder(const PlacedOrder&) = delete;
  PlacedOrder& operator=(const PlacedOrder&) = delete;

  // The order of a kind without its arrays, and what the arrays take. Neither makes them.
  static kernels::CodeOrder counts(const CodeKind& kind);
  static uint64_t bytes(const kernels::CodeOrder& order);

  // Gives it memory on a device, which must outlive it. `by`: whose stream copies, of the same device.
  Status place_on(Device& device, Device& by);

  // In host memory before place_on().
  const kernels::CodeOrder& order() const { return order_; }
  uint64_t bytes() const { return bytes(order_); }

 private:
  std::vector<kernels::Run> runs_;
  std::vector<int32_t> source_;
  Buffer device_runs_, device_source_;
  kernels::CodeOrder order_;
};

}  // namespace specd
