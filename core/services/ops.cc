// ops/1: operations on tensors in host memory or on the models' device.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/base/to_size.h"
#include "core/device/staging.h"
#include "core/services/arguments.h"
#include "core/services/model_arguments.h"
#include "core/services/op_call.h"
#include "core/services/tables.h"
#include "specd/kernels/ops.h"

namespace specd {
namespace {

using kernels::DType;

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

specd_status ops_walk(const specd_host* host, specd_call* call, const specd_walk_args* args) {
  OpCall op(host, call, "ops.walk", args == nullptr ? nullptr : args->n_nodes);
  op.expect(args != nullptr && args->struct_size == sizeof(specd_walk_args), [&] {
    return "args of struct_size " + std::to_string(sizeof(specd_walk_args)) + " expected";
  });
  if (!op.ok()) return op.status();
  const std::string fault = walk_fault(*args, op.on_host() ? nullptr : &op.device());
  op.expect(fault.empty(), [&]() -> const std::string& { return fault; });
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

// By all ranks. When they fail, the next forward says so.
void shared_head(const SharedHead& head, const float* x, int32_t n, float* out) {
  const int32_t most = head.target->logits_rows_max();
  const ModelConfig& config = head.target->config();
  for (int32_t done = 0; done < n; done += most) {
    const int32_t rows = std::min(most, n - done);
    head.lead->head(0, rows);
    head.target->shared_head(x + int64_t{done} * config.hidden_size, rows,
                             out + int64_t{done} * config.vocab_size);
  }
}

// Matrices of codes need memory for each row of x. The lane keeps it: for kLinearScratchBytes, or for one row
// of an x that needs more. Returns the number of rows that it is enough for.
constexpr uint64_t kLinearScratchBytes = 1u << 20;
int32_t with_scratch(OpCall& op, const kernels::PackedMatrix& weights, int32_t n) {
  const uint64_t of_row = kernels::matmul_scratch_bytes(weights, 1);
  if (of_row == 0) return n;
  const auto at_once = static_cast<int32_t>(
      std::clamp<uint64_t>(kLinearScratchBytes / of_row, 1, to_size(std::max(n, 1))));
  ServiceLane& lane = op.lane();
  const uint64_t bytes = std::max(kLinearScratchBytes, of_row);
  if (lane.linear_scratch.bytes() >= bytes) return at_once;
  Result<Buffer> memory = lane.cpu.allocate(bytes, "rows of x for a matrix of codes");
  if (memory.ok()) {
    lane.linear_scratch = std::move(memory).value();
  } else {
    op.fail(SPECD_E_EXHAUSTED, memory.status().message());
  }
  return at_once;
}

specd_status ops_linear(const specd_host* host, specd_call* call, const specd_matrix* matrix,
                        const specd_tensor* x, const specd_tensor* bias, const specd_tensor* out) {
  OpCall op(host, call, "ops.linear", x);
  std::shared_ptr<const specd_matrix> held;
  if (op.ok() && call->owner != nullptr) {
    const MutexLock lock(call->owner->mutex);
    const auto found = call->owner->matrices.find(matrix);
    if (found != call->owner->matrices.end()) held = found->second;
  }
  op.expect(held != nullptr, [&] { return std::string("not a matrix of this instance"); });
  if (!op.ok()) return op.status();
  if (held->shared != nullptr && call->lane != nullptr)
    op.fail(SPECD_E_PRECONDITION, "not with a matrix that several ranks share, beside the step");
  op.expect(op.on_host() != held->on_device,
            [&] { return std::string("the matrix and x are in different memory"); });
  const kernels::PackedMatrix& weights = held->packed;
  const int32_t n = op.rows(x);
  const float* in = op.floats("x", x, n, weights.n_in);
  float* const to = op.floats("out", out, n, weights.n_out);
  const float* add = bias == nullptr ? nullptr : op.floats("bias", bias, weights.n_out, 0);
  op.apart(x, out, "x and out");
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    if (held->shared != nullptr) {
      shared_head(*held->shared, in, n, to);
    } else {
      const int32_t at_once = op.on_host() ? with_scratch(op, weights, n) : n;
      for (int32_t done = 0; op.ok() && done < n; done += at_once) {
        ops.matmul(stream, {.x = in + int64_t{done} * weights.n_in,
                            .weights = weights,
                            .out = to + int64_t{done} * weights.n_out,
                            .n_rows = std::min(at_once, n - done),
                            .k_segments = 1,
                            .scratch = op.on_host() ? op.lane().linear_scratch.data() : nullptr});
      }
    }
    if (!op.ok()) return;
    if (add != nullptr) ops.map(stream, kernels::add_bias(to, add, n, weights.n_out));
  });
}

specd_status ops_embed(const specd_host* host, specd_call* call, const specd_tensor* table,
                       const specd_tensor* token, const specd_tensor* out) {
  OpCall op(host, call, "ops.embed", token);
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
  OpCall op(host, call, "ops.rmsnorm", x);
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
  OpCall op(host, call, "ops.map", x);
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

// Host memory to the device, in stream order.
specd_status upload_rows(OpCall& op, const specd_host* host, const specd_tensor* from,
                         const specd_tensor* to) {
  OpCall source(host, op.call(), "ops.copy", from);
  const int32_t n = source.rows(from);
  const int64_t width = from->shape[1];
  source.expect(width >= 1 && width <= INT32_MAX,
                [&] { return "rows of " + std::to_string(width) + " elements"; });
  const uint8_t code = from->dtype_code == SPECD_DT_INT ? SPECD_DT_INT : SPECD_DT_FLOAT;
  const void* const data = source.tensor("from", from, code, n, width);
  if (!source.ok()) return source.status();
  void* const target = op.tensor("to", to, code, to->shape[0], width, true);
  op.expect(!op.state().is_capturing(), [&] {
    return std::string("from host memory is not allowed while propose() is captured");
  });
  if (op.ok() && op.state().models == nullptr) {
    op.fail(SPECD_E_PRECONDITION, "this host has no models");
  }
  op.take_turn();
  if (!op.ok() || n == 0) return op.status();
  op.state().note_wait();
  const uint64_t bytes = static_cast<uint64_t>(n) * static_cast<uint64_t>(width) * 4;
  const Result<void*> staged = op.state().models.load()->kv().upload(*op.call(), data, bytes);
  if (!staged.ok()) {
    op.fail(SPECD_E_EXHAUSTED, staged.status().message());
    return op.status();
  }
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) {
    ops.copy_rows(stream, {.from = staged.value(),
                           .to = target,
                           .from_row = nullptr,
                           .to_row = nullptr,
                           .n_rows = n,
                           .n = static_cast<int32_t>(width),
                           .from_rows = n,
                           .to_rows = static_cast<int32_t>(to->shape[0]),
                           .from_stride = width,
                           .to_stride = OpCall::stride(to)});
  });
}

specd_status ops_copy(const specd_host* host, specd_call* call, const specd_tensor* from,
                      const specd_tensor* from_row, const specd_tensor* to,
                      const specd_tensor* to_row) {
  OpCall op(host, call, "ops.copy", to);
  op.expect(from != nullptr, [&] { return std::string("from is null"); });
  if (!op.ok()) return op.status();
  if (from->device_type == SPECD_DEV_CPU && !op.on_host() && from_row == nullptr &&
      to_row == nullptr) {
    return upload_rows(op, host, from, to);
  }
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
  OpCall op(host, call, "ops.topk", logits);
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
  OpCall outputs(host, call, "ops.topk", out_index);
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
  op.take_turn();
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

specd_status ops_draw(const specd_host* host, specd_call* call, const specd_draw_args* args) {
  if (args == nullptr || args->struct_size != sizeof(specd_draw_args)) {
    return refuse(
        call, SPECD_E_INVALID,
        "ops.draw: args of struct_size " + std::to_string(sizeof(specd_draw_args)) + " expected");
  }
  OpCall op(host, call, "ops.draw", args->logits);
  op.expect(!op.ok() || call->sampling != nullptr,
            [&] { return std::string("the call has no sampling parameters"); });
  op.expect(!op.ok() || (args->seq_index != nullptr && args->position != nullptr),
            [&] { return std::string("seq_index or position is null"); });
  if (!op.ok()) return op.status();
  const int32_t n = op.rows(args->logits);
  const int64_t width = args->logits->shape[1];
  op.expect(width >= 1 && width <= INT32_MAX,
            [&] { return "rows of " + std::to_string(width) + " elements"; });
  op.expect(args->position_offset <= kPositionsMax,
            [&] { return "position_offset is " + std::to_string(args->position_offset); });
  const auto n_seqs = static_cast<int32_t>(call->batch->n_seqs);
  kernels::DrawArgs draw{
      .logits = op.floats("logits", args->logits, n, width),
      .row = nullptr,
      .n_rows = n,
      .vocab = static_cast<int32_t>(width),
      .sequence = op.ints("seq_index", args->seq_index, n, 0),
      .n_sequences = n_seqs,
      .position = op.ints("position", args->position, n_seqs, 0),
      .position_offset = static_cast<int32_t>(args->position_offset),
  };
  if (args->token_id != nullptr) draw.id = op.ints("token_id", args->token_id, width, 0);
  if (args->out_index != nullptr) draw.token = op.ints("out_index", args->out_index, n, 0);
  if (args->out_score != nullptr) {
    draw.score = op.floats("out_score", args->out_score, n, width);
    op.apart(args->logits, args->out_score, "logits and out_score");
  }
  op.take_turn();
  if (!op.ok()) return op.status();
  std::vector<kernels::DrawRow> draws;
  if (op.on_host()) {
    (void)draft_batch(*call, draws);
    draw.row = draws.data();
  } else {
    draw.row = op.staged_draws();
  }
  return op.run([&](const kernels::Ops& ops, kernels::Stream& stream) { ops.draw(stream, draw); });
}

}  // namespace

const specd_ops kOpsService = {sizeof(specd_ops),       0,
                               or_exhausted<ops_walk>,  or_exhausted<ops_linear>,
                               or_exhausted<ops_embed>, or_exhausted<ops_rmsnorm>,
                               or_exhausted<ops_map>,   or_exhausted<ops_copy>,
                               or_exhausted<ops_topk>,  or_exhausted<ops_draw>};

}  // namespace specd
