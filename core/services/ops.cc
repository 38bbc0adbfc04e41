// ops/1: operations on tensors in host memory or on the models' device.
#include <algorithm>
#include <memory>
#include <string>

#include "core/device/staging.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"
#include "specd/kernels/ops.h"

namespace specd {
namespace {

using kernels::DType;

constexpr int64_t kOpRowsMax = 65535;  // of the ops of a device
constexpr int64_t kTopKMax = 64;

std::string walk_fault(const specd_walk_args& a, const Device* device) {
  if (a.n_nodes == nullptr || a.token == nullptr || a.path == nullptr) {
    return "n_nodes, token or path is null";
  }
  const int64_t n = a.n_nodes->shape[0], capacity = a.token->shape[1];
  const int64_t path_capacity = a.path->shape[1];
  const auto check = [&](const char* name, const specd_tensor* tensor, uint32_t rank,
                         int64_t columns) {
    std::string fault = tensor_fault(name, tensor, SPECD_DT_INT, rank, device);
    if (!fault.empty()) return fault;
    const bool dense = tensor->stride[rank - 1] == 1 && (rank == 1 || tensor->stride[0] == columns);
    if (tensor->shape[0] != n || (rank == 2 && tensor->shape[1] != columns) || !dense) {
      return std::string(name) + " is not contiguous with shape [" + std::to_string(n) +
             (rank == 2 ? ", " + std::to_string(columns) : "") + "]";
    }
    return std::string();
  };
  std::string fault = check("n_nodes", a.n_nodes, 1, 0);
  if (fault.empty()) fault = check("token", a.token, 2, capacity);
  if (fault.empty()) fault = check("parent", a.parent, 2, capacity);
  if (fault.empty() && a.flags != nullptr) fault = check("flags", a.flags, 2, capacity);
  if (fault.empty()) fault = check("wanted", a.wanted, 2, capacity + 1);
  if (fault.empty()) fault = check("n_path", a.n_path, 1, 0);
  if (fault.empty()) fault = check("path", a.path, 2, path_capacity);
  if (fault.empty()) fault = check("last", a.last, 1, 0);
  return fault;
}

// One call of an op: finds where it works, and checks its tensors against that place. The first
// fault stays.
class OpCall {
 public:
  // `of`: a tensor that says where the call works.
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
    }
  }

  bool ok() const { return status_ == SPECD_OK; }
  specd_status status() const { return status_; }
  bool on_host() const { return on_host_; }
  Device& device() const { return on_host_ ? state_->cpu : state_->device; }
  ServiceState& state() const { return *state_; }
  specd_call* call() const { return call_; }

  void fail(specd_status status, const std::string& why) {
    if (!ok()) return;
    status_ = status;
    report_text(call_, -1, std::string("ops.") + name_ + ": " + why);
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
    const auto* from = static_cast<const char*>(a->data);
    const auto* to = static_cast<const char*>(b->data);
    expect(from + extent(a) <= to || to + extent(b) <= from,
           [&] { return std::string(what) + " overlap"; });
  }
  // Runs `op`, with the pool and the stream for itself.
  template <typename Op>
  specd_status run(Op&& op) {
    if (!ok()) return status_;
    const PoolTurn turn(*state_);
    if (!turn.is_mine()) fail(SPECD_E_PRECONDITION, "called from a pool task");
    if (ok()) op(device().ops(), device().stream());
    return status_;
  }

 private:
  static int64_t extent(const specd_tensor* tensor) {
    if (tensor->shape[0] == 0) return 0;
    const int64_t last = (tensor->shape[0] - 1) * tensor->stride[0];
    return (last + (tensor->rank == 2 ? tensor->shape[1] : 1)) * 4;
  }

  specd_call* const call_;
  const char* const name_;
  ServiceState* const state_;
  bool on_host_ = true;
  specd_status status_ = SPECD_OK;
};

specd_status ops_walk(const specd_host* host, specd_call* call, const specd_walk_args* args) {
  OpCall op(host, call, "walk", args == nullptr ? nullptr : args->n_nodes);
  op.expect(args != nullptr && args->struct_size == sizeof(specd_walk_args), [&] {
    return "args of struct_size " + std::to_string(sizeof(specd_walk_args)) + " expected";
  });
  if (!op.ok()) return op.status();
  const std::string fault = walk_fault(*args, op.on_host() ? nullptr : &op.device());
  op.expect(fault.empty(), [&] { return fault; });
  const auto data = [](const specd_tensor* tensor) {
    return tensor == nullptr ? nullptr : static_cast<int32_t*>(tensor->data);
  };
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.walk_tree(stream, {.n_nodes = data(args->n_nodes),
                           .token = data(args->token),
                           .parent = data(args->parent),
                           .flags = data(args->flags),
                           .wanted = data(args->wanted),
                           .n_path = data(args->n_path),
                           .path = data(args->path),
                           .last = data(args->last),
                           .n = static_cast<int32_t>(args->n_nodes->shape[0]),
                           .capacity = static_cast<int32_t>(args->token->shape[1]),
                           .path_capacity = static_cast<int32_t>(args->path->shape[1]),
                           .skip_flags = static_cast<int32_t>(args->skip_flags)});
  });
}

specd_status ops_linear(const specd_host* host, specd_call* call, const specd_matrix* matrix,
                        const specd_tensor* x, const specd_tensor* bias, const specd_tensor* out) {
  OpCall op(host, call, "linear", x);
  std::shared_ptr<const specd_matrix> held;
  if (op.ok() && call->owner != nullptr) {
    const MutexLock lock(call->owner->mutex);
    const auto found = call->owner->matrices.find(matrix);
    if (found != call->owner->matrices.end()) held = found->second;
  }
  op.expect(held != nullptr, [&] { return std::string("not a matrix of this instance"); });
  if (!op.ok()) return op.status();
  op.expect(op.on_host() != held->on_device,
            [&] { return std::string("the matrix and x are in different memory"); });
  const kernels::PackedMatrix& weights = held->packed;
  const int32_t n = op.rows(x);
  const float* in = op.floats("x", x, n, weights.n_in);
  float* const to = op.floats("out", out, n, weights.n_out);
  const float* add = bias == nullptr ? nullptr : op.floats("bias", bias, weights.n_out, 0);
  op.apart(x, out, "x and out");
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.matmul(stream, {.x = in, .weights = weights, .out = to, .n_rows = n, .k_segments = 1});
    if (add != nullptr) ops.map(stream, kernels::add_bias(to, add, n, weights.n_out));
  });
}

specd_status ops_embed(const specd_host* host, specd_call* call, const specd_tensor* table,
                       const specd_tensor* token, const specd_tensor* out) {
  OpCall op(host, call, "embed", token);
  op.expect(table != nullptr && out != nullptr, [&] { return std::string("a tensor is null"); });
  if (!op.ok()) return op.status();
  DType dtype = DType::kF32;
  const bool is_half = table->dtype_bits == 16;
  if (is_half) dtype = table->dtype_code == SPECD_DT_BFLOAT ? DType::kBF16 : DType::kF16;
  const bool is_float =
      table->dtype_code == SPECD_DT_FLOAT && (table->dtype_bits == 32 || table->dtype_bits == 16);
  const bool is_bfloat = table->dtype_code == SPECD_DT_BFLOAT && is_half;
  const int64_t vocab = table->shape[0], width = table->shape[1];
  constexpr int64_t kSizeMax = INT32_MAX;
  op.expect(
      table->rank == 2 && (is_float || is_bfloat) && table->data != nullptr && vocab >= 1 &&
          vocab <= kSizeMax && width >= 1 && width <= kSizeMax && table->stride[1] == 1 &&
          table->stride[0] == width,
      [&] {
        return std::string("table: expected float32, float16 or bfloat16 of [vocab, width], dense");
      });
  op.expect(!op.ok() || static_cast<uint64_t>(vocab) * static_cast<uint64_t>(width) <=
                            table->byte_capacity / kernels::dtype_bytes(dtype),
            [&] { return std::string("table reaches beyond its capacity"); });
  op.expect(!op.ok() || (op.on_host() ? table->device_type == SPECD_DEV_CPU
                                      : table->device_type == SPECD_DEV_CUDA &&
                                            table->device_index == op.device().index()),
            [&] { return std::string("table and token are in different memory"); });
  op.expect(!op.ok() || op.on_host() ||
                reinterpret_cast<uintptr_t>(table->data) % kernels::dtype_bytes(dtype) == 0,
            [&] { return std::string("table: expected elements that are aligned, on a device"); });
  const int32_t n = op.rows(token);
  const int32_t* from = op.ints("token", token, n, 0);
  float* const to = op.floats("out", out, n, width);
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.embed(stream, {.table = table->data,
                       .dtype = dtype,
                       .token = from,
                       .out = to,
                       .n_rows = n,
                       .n = static_cast<int32_t>(width),
                       .vocab = static_cast<int32_t>(vocab)});
  });
}

specd_status ops_rmsnorm(const specd_host* host, specd_call* call, const specd_tensor* x,
                         const specd_tensor* weight, double eps, const specd_tensor* out) {
  OpCall op(host, call, "rmsnorm", x);
  op.expect(weight != nullptr && out != nullptr, [&] { return std::string("a tensor is null"); });
  op.expect(eps >= 0 && eps <= 1,
            [&] { return "eps is " + std::to_string(eps) + ", expected 0 to 1"; });
  if (!op.ok()) return op.status();
  const int32_t n = op.rows(x);
  const int64_t width = weight->shape[0];
  op.expect(width >= 1 && width <= INT32_MAX,
            [&] { return "rows of " + std::to_string(width) + " elements"; });
  float* const in = op.floats("x", x, n, width);
  const float* scale = op.floats("weight", weight, width, 0);
  float* const to = op.floats("out", out, n, width);
  op.apart(x, out, "x and out");
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.rmsnorm(stream, {.x = in,
                         .delta = nullptr,
                         .weight = scale,
                         .out = to,
                         .n_rows = n,
                         .n = static_cast<int32_t>(width),
                         .eps = static_cast<float>(eps)});
  });
}

specd_status ops_map(const specd_host* host, specd_call* call, uint32_t map, const specd_tensor* x,
                     const specd_tensor* y, const specd_tensor* out) {
  OpCall op(host, call, "map", x);
  op.expect(map <= SPECD_MAP_SILU_MUL,
            [&] { return "map " + std::to_string(map) + ", expected SPECD_MAP_*"; });
  op.expect((map == SPECD_MAP_SILU) == (y == nullptr),
            [&] { return std::string("y must be null for SPECD_MAP_SILU only"); });
  op.expect(out != nullptr, [&] { return std::string("out is null"); });
  if (!op.ok()) return op.status();
  static_assert(static_cast<int>(kernels::MapOp::kAdd) == SPECD_MAP_ADD &&
                static_cast<int>(kernels::MapOp::kMul) == SPECD_MAP_MUL &&
                static_cast<int>(kernels::MapOp::kSilu) == SPECD_MAP_SILU &&
                static_cast<int>(kernels::MapOp::kSiluAdd) == SPECD_MAP_SILU_ADD &&
                static_cast<int>(kernels::MapOp::kSiluMul) == SPECD_MAP_SILU_MUL);
  const int32_t n = op.rows(x);
  const int64_t width = x->shape[1];
  op.expect(width >= 1 && width <= INT32_MAX,
            [&] { return "rows of " + std::to_string(width) + " elements"; });
  const bool is_row = y != nullptr && y->rank == 1;  // the same for every row
  kernels::MapArgs args{.op = static_cast<kernels::MapOp>(map),
                        .x = op.floats("x", x, n, width, true),
                        .y = nullptr,
                        .out = op.floats("out", out, n, width, true),
                        .n_rows = n,
                        .n = static_cast<int32_t>(width),
                        .x_stride = OpCall::stride(x),
                        .y_stride = is_row || y == nullptr ? 0 : OpCall::stride(y),
                        .out_stride = OpCall::stride(out)};
  if (is_row) args.y = op.floats("y", y, width, 0);
  if (y != nullptr && !is_row) args.y = op.floats("y", y, n, width, true);
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) { ops.map(stream, args); });
}

specd_status ops_copy(const specd_host* host, specd_call* call, const specd_tensor* from,
                      const specd_tensor* from_row, const specd_tensor* to,
                      const specd_tensor* to_row) {
  OpCall op(host, call, "copy", from);
  op.expect(to != nullptr, [&] { return std::string("to is null"); });
  if (!op.ok()) return op.status();
  const uint8_t code = from->dtype_code == SPECD_DT_INT ? SPECD_DT_INT : SPECD_DT_FLOAT;
  const specd_tensor* listed = from_row != nullptr ? from_row : to_row;
  const int32_t n = op.rows(listed != nullptr ? listed : from);
  const int64_t width = from->shape[1];
  op.expect(width >= 1 && width <= INT32_MAX,
            [&] { return "rows of " + std::to_string(width) + " elements"; });
  op.expect(from->shape[0] <= INT32_MAX && to->shape[0] <= INT32_MAX,
            [&] { return std::string("more than 2^31 rows"); });
  kernels::CopyRowsArgs args{
      .from = op.tensor("from", from, code, from->shape[0], width, true),
      .to = op.tensor("to", to, code, to->shape[0], width, true),
      .from_row = from_row == nullptr ? nullptr : op.ints("from_row", from_row, n, 0),
      .to_row = to_row == nullptr ? nullptr : op.ints("to_row", to_row, n, 0),
      .n_rows = n,
      .n = static_cast<int32_t>(width),
      .from_rows = static_cast<int32_t>(from->shape[0]),
      .to_rows = static_cast<int32_t>(to->shape[0]),
      .from_stride = OpCall::stride(from),
      .to_stride = OpCall::stride(to)};
  return op.run(
      [&](const kernels::Ops& ops, kernels::Stream& stream) { ops.copy_rows(stream, args); });
}

specd_status ops_topk(const specd_host* host, specd_call* call, const specd_tensor* logits,
                      const specd_tensor* out_index, const specd_tensor* out_logprob) {
  OpCall op(host, call, "topk", logits);
  op.expect(out_index != nullptr, [&] { return std::string("out_index is null"); });
  if (!op.ok()) return op.status();
  const int32_t n = op.rows(logits);
  const int64_t width = logits->shape[1], k = out_index->shape[1];
  op.expect(width >= 1 && width <= INT32_MAX,
            [&] { return "rows of " + std::to_string(width) + " elements"; });
  op.expect(out_index->rank == 2 && k >= 1 && k <= std::min(kTopKMax, width), [&] {
    return "k is " + std::to_string(k) + ", expected 1 to " +
           std::to_string(std::min(kTopKMax, width));
  });
  const float* values = op.floats("logits", logits, n, width);
  const bool through_host = op.ok() && !op.on_host() && out_index->device_type == SPECD_DEV_CPU;
  // The outputs are checked as tensors of the host where they are.
  OpCall outputs(host, call, "topk", out_index);
  OpCall& where = through_host ? outputs : op;
  int32_t* const index = where.ints("out_index", out_index, n, k, true);
  float* const logprob =
      out_logprob == nullptr ? nullptr : where.floats("out_logprob", out_logprob, n, k, true);
  if (!where.ok()) return where.status();
  op.expect(!through_host || !op.state().is_capturing(), [&] {
    return std::string("outputs in host memory are not allowed while propose() is captured");
  });
  if (!op.ok()) return op.status();
  const auto submit = [&](const kernels::Ops& ops, kernels::Stream& stream, int32_t* to_index,
                          int64_t index_stride, float* to_logprob, int64_t logprob_stride) {
    ops.top_k(stream, {.logits = values,
                       .token = to_index,
                       .n_rows = n,
                       .vocab = static_cast<int32_t>(width),
                       .k = static_cast<int32_t>(k),
                       .logits_stride = 0,
                       .token_stride = static_cast<int32_t>(index_stride)});
    if (to_logprob == nullptr) return;
    ops.log_prob(stream, {.logits = values,
                          .token = to_index,
                          .out = to_logprob,
                          .n_rows = n,
                          .vocab = static_cast<int32_t>(width),
                          .k = static_cast<int32_t>(k),
                          .logits_stride = 0,
                          .token_stride = static_cast<int32_t>(index_stride),
                          .out_stride = static_cast<int32_t>(logprob_stride)});
  };
  if (n == 0) return SPECD_OK;
  if (!through_host) {
    return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
      submit(ops, stream, index, OpCall::stride(out_index), logprob,
             logprob == nullptr ? 0 : OpCall::stride(out_logprob));
    });
  }
  const PoolTurn turn(op.state());
  if (!turn.is_mine()) op.fail(SPECD_E_PRECONDITION, "called from a pool task");
  if (!op.ok()) return op.status();
  op.state().note_wait();
  Device& device = op.device();
  Result<Staging*> staging = op.state().results();
  if (!staging.ok()) {
    op.fail(SPECD_E_EXHAUSTED, staging.status().message());
    return op.status();
  }
  const size_t cells = static_cast<size_t>(n) * static_cast<size_t>(k);
  const auto indexes = staging.value()->add<int32_t>(cells);
  const auto logprobs = staging.value()->add<float>(logprob == nullptr ? 0 : cells);
  if (!staging.value()->status().ok()) {
    op.fail(SPECD_E_EXHAUSTED, staging.value()->status().message());
  } else {
    submit(device.ops(), device.stream(), indexes.device, k,
           logprob == nullptr ? nullptr : logprobs.device, k);
    staging.value()->download(indexes);
    if (logprob != nullptr) staging.value()->download(logprobs);
  }
  if (const Status passed = device.synchronize(); !passed.ok()) {
    op.fail(SPECD_E_DEVICE, passed.message());
  }
  for (int64_t r = 0; r < n && op.ok(); ++r) {
    std::copy_n(indexes.host + r * k, k, index + r * OpCall::stride(out_index));
    if (logprob == nullptr) continue;
    std::copy_n(logprobs.host + r * k, k, logprob + r * OpCall::stride(out_logprob));
  }
  staging.value()->clear();
  return op.status();
}

}  // namespace

const specd_ops kOpsService = {sizeof(specd_ops),       0,
                               or_exhausted<ops_walk>,  or_exhausted<ops_linear>,
                               or_exhausted<ops_embed>, or_exhausted<ops_rmsnorm>,
                               or_exhausted<ops_map>,   or_exhausted<ops_copy>,
                               or_exhausted<ops_topk>};

}  // namespace specd
