// One call of a service that runs ops on tensors: finds where it works, and checks its tensors
// against that place. The first fault stays, and report() says it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {

inline constexpr int64_t kOpRowsMax = 65535;  // of the ops of a device

class OpCall {
 public:
  // name: "ops.linear". `of`: a tensor that says where the call works.
  OpCall(const specd_host* host, specd_call* call, const char* name, const specd_tensor* of)
      : call_(call), name_(name), state_(ServiceState::of(host)) {
    if (call == nullptr || call->batch == nullptr) {
      fail(SPECD_E_PRECONDITION, "allowed only inside begin() to verify()");
    } else if (state_ == nullptr) {
      fail(SPECD_E_PRECONDITION, "unknown host");
    } else if (of == nullptr) {
      fail(SPECD_E_INVALID, "a tensor is null");
    } else {
      on_host_ = of->device_type == SPECD_DEV_CPU;
      if (!on_host_ && call->lane != nullptr)
        fail(SPECD_E_PRECONDITION, "a drafter beside the step works in host memory only");
    }
  }

  bool ok() const { return status_ == SPECD_OK; }
  specd_status status() const { return status_; }
  bool on_host() const { return on_host_; }
  Device& device() const {
    return on_host_ ? static_cast<Device&>(state_->lane(*call_).cpu) : state_->device;
  }
  ServiceState& state() const { return *state_; }
  ServiceLane& lane() const { return state_->lane(*call_); }
  specd_call* call() const { return call_; }
  const char* name() const { return name_; }

  void fail(specd_status status, const std::string& why) {
    if (!ok()) return;
    status_ = status;
    report_text(call_, -1, std::string(name_) + ": " + why);
  }
  // A fault that was reported already.
  void stop(specd_status status) {
    if (ok()) status_ = status;
  }
  // `why` gives the text of the fault; it is called only when there is one.
  template <typename Why>
  void expect(bool good, Why&& why) {
    if (ok() && !good) fail(SPECD_E_INVALID, why());
  }
  // A tensor of 32-bit elements of this shape; a rank of 1 when columns is 0. Rows must be dense
  // unless `strided`. Returns its data.
  void* tensor(const char* what, const specd_tensor* tensor, uint8_t code, int64_t rows,
               int64_t columns, bool strided = false) {
    if (!ok()) return nullptr;
    const uint32_t rank = columns == 0 ? 1 : 2;
    std::string fault = tensor_fault(what, tensor, code, rank, on_host_ ? nullptr : &device());
    if (!fault.empty()) {
      fail(SPECD_E_INVALID, fault);
      return nullptr;
    }
    const bool is_shaped = tensor->shape[0] == rows && (rank == 1 || tensor->shape[1] == columns);
    const bool is_dense =
        rank == 1 ? tensor->stride[0] == 1 : strided || rows <= 1 || tensor->stride[0] == columns;
    expect(is_shaped && is_dense, [&] {
      return std::string(what) + " has shape [" + std::to_string(tensor->shape[0]) +
             (rank == 2 ? ", " + std::to_string(tensor->shape[1]) : "") + "], expected [" +
             std::to_string(rows) + (rank == 2 ? ", " + std::to_string(columns) : "") + "]" +
             (strided ? "" : ", dense");
    });
    return tensor->data;
  }
  float* floats(const char* what, const specd_tensor* t, int64_t rows, int64_t columns,
                bool strided = false) {
    return static_cast<float*>(tensor(what, t, SPECD_DT_FLOAT, rows, columns, strided));
  }
  int32_t* ints(const char* what, const specd_tensor* t, int64_t rows, int64_t columns,
                bool strided = false) {
    return static_cast<int32_t*>(tensor(what, t, SPECD_DT_INT, rows, columns, strided));
  }
  // The number of rows of a call.
  int32_t rows(const specd_tensor* of) {
    if (!ok()) return 0;
    expect(of->shape[0] >= 0 && of->shape[0] <= kOpRowsMax, [&] {
      return std::to_string(of->shape[0]) + " rows, expected at most " + std::to_string(kOpRowsMax);
    });
    return static_cast<int32_t>(of->shape[0]);
  }
  // Elements from the start of one row to that of the next.
  static int64_t stride(const specd_tensor* tensor) { return tensor->stride[0]; }
  void apart(const specd_tensor* a, const specd_tensor* b, const char* what) {
    if (!ok()) return;
    expect(!overlap(*a, *b), [&] { return std::string(what) + " overlap"; });
  }
  // Takes the pool and the stream for this call. Call before work on what calls share; run() does.
  void take_turn() {
    if (!ok() || turn_.has_value()) return;
    turn_.emplace(state_->lane(*call_));
    if (!turn_->is_mine()) fail(SPECD_E_PRECONDITION, "called from a pool task");
  }
  // The sampling parameters of the batch, a row each, in the memory of the models' device.
  const kernels::DrawRow* staged_draws() {
    take_turn();
    if (!ok()) return nullptr;
    if (state_->models == nullptr) {
      fail(SPECD_E_PRECONDITION, "this host has no models");
      return nullptr;
    }
    const Result<const kernels::DrawRow*> staged = state_->models.load()->kv().draws(*call_);
    if (!staged.ok()) fail(SPECD_E_EXHAUSTED, staged.status().message());
    return staged.ok() ? staged.value() : nullptr;
  }
  // Runs `op` when it is this call's turn.
  template <typename Op>
  specd_status run(Op&& op) {
    take_turn();
    if (ok()) op(device().ops(), device().stream());
    return status_;
  }

 private:
  specd_call* const call_;
  const char* const name_;
  ServiceState* const state_;
  bool on_host_ = true;
  specd_status status_ = SPECD_OK;
  std::optional<PoolTurn> turn_;
};

}  // namespace specd
