// rng/1: the noise of the host's draw, and uniform numbers, keyed by seed, position and purpose.
#include <algorithm>
#include <string>

#include "core/services/arguments.h"
#include "core/services/op_call.h"
#include "core/services/tables.h"
#include "specd/kernels/draw.h"
#include "specd/kernels/ops.h"

namespace specd {
namespace {

// Checks common to both functions.
// Also that `out` is apart from the keys, which would change while they are read.
std::string keys_fault(const specd_call* call, const specd_tensor* seq_index,
                       const specd_tensor* position, const specd_tensor* out) {
  if (call->batch == nullptr || call->sampling == nullptr) return "the call has no batch";
  std::string fault = tensor_fault("seq_index", seq_index, SPECD_DT_INT, 1);
  if (fault.empty()) fault = tensor_fault("position", position, SPECD_DT_INT, 1);
  if (fault.empty()) fault = tensor_fault("out", out, SPECD_DT_FLOAT, 2);
  if (!fault.empty()) return fault;
  const int64_t n = out->shape[0];
  if (seq_index->shape[0] != n || position->shape[0] != n) {
    return "seq_index has " + std::to_string(seq_index->shape[0]) + " entries, position " +
           std::to_string(position->shape[0]) + ", out has " + std::to_string(n) + " rows";
  }
  if (overlap(*seq_index, *out)) return "seq_index and out overlap";
  if (overlap(*position, *out)) return "position and out overlap";
  for (int64_t i = 0; i < n; ++i) {
    const int32_t sequence = element(*seq_index, i);
    if (sequence < 0 || static_cast<uint32_t>(sequence) >= call->batch->n_seqs) {
      return "seq_index[" + std::to_string(i) + "] is " + std::to_string(sequence) +
             ", expected 0.." + std::to_string(int64_t{call->batch->n_seqs} - 1);
    }
    if (call->sampling[sequence] == nullptr) {
      return "sequence " + std::to_string(sequence) + " has no sampling parameters";
    }
    if (element(*position, i) < 0) {
      return "position[" + std::to_string(i) + "] is " + std::to_string(element(*position, i)) +
             ", expected at least 0";
    }
  }
  return std::string();
}

bool is_greedy(const specd_sampling& sampling) {
  return (sampling.flags & SPECD_SAMPLE_GREEDY) != 0;
}

specd_status rng_draw_noise(const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                            const specd_tensor* position, const specd_tensor* out) {
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "rng.draw_noise: call is null");
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr) return refuse(call, SPECD_E_PRECONDITION, "rng.draw_noise: unknown host");
  std::string fault = keys_fault(call, seq_index, position, out);
  if (fault.empty() && out->shape[1] != state->vocab_size) {
    fault = "out has " + std::to_string(out->shape[1]) + " columns, expected vocab_size " +
            std::to_string(state->vocab_size);
  }
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "rng.draw_noise: " + fault);
  ServiceLane& lane = state->lane(*call);
  const PoolTurn turn(lane);
  if (!turn.is_mine()) {
    return refuse(call, SPECD_E_PRECONDITION, "rng.draw_noise: called from a pool task");
  }
  // Adjacent rows of sampled (not greedy) sequences go to the op together.
  constexpr int64_t kRunMax = 64;
  uint64_t seeds[kRunMax];
  int32_t positions[kRunMax];
  const int64_t n = out->shape[0];
  const int64_t run_max = out->stride[0] == out->shape[1] ? kRunMax : 1;
  for (int64_t first = 0; first < n;) {
    int64_t count = 0;
    while (count < run_max && first + count < n) {
      const specd_sampling& sampling = *call->sampling[element(*seq_index, first + count)];
      if (is_greedy(sampling)) break;
      seeds[count] = sampling.seed;
      positions[count] = element(*position, first + count);
      ++count;
    }
    if (count == 0) {
      std::fill_n(row<float>(*out, first), state->vocab_size, 0.0f);
      ++first;
      continue;
    }
    kernels::DrawNoiseArgs args;
    args.seed = seeds;
    args.position = positions;
    args.out = row<float>(*out, first);
    args.n_rows = static_cast<int32_t>(count);
    args.vocab = state->vocab_size;
    lane.cpu.ops().draw_noise(lane.cpu.stream(), args);
    first += count;
  }
  return SPECD_OK;
}

// The host cannot see which sequences and positions are asked for.
specd_status uniform_on_device(const specd_host* host, specd_call* call,
                               const specd_tensor* seq_index, const specd_tensor* position,
                               uint32_t purpose, const specd_tensor& out) {
  if (seq_index == nullptr || position == nullptr)
    return refuse(call, SPECD_E_INVALID, "rng.uniform: seq_index or position is null");
  OpCall op(host, call, "rng.uniform", &out);
  op.expect(!op.ok() || call->sampling != nullptr,
            [&] { return std::string("the call has no sampling parameters"); });
  constexpr int64_t kLanesMax = 1 << 20;
  op.expect(out.rank == 2 && out.shape[1] >= 1 && out.shape[1] <= kLanesMax, [&] {
    return "out has " + std::to_string(out.rank == 2 ? out.shape[1] : 0) +
           " columns, expected 1 to " + std::to_string(kLanesMax);
  });
  const int32_t n = op.rows(&out);
  const int64_t lanes = op.ok() ? out.shape[1] : 1;
  kernels::UniformArgs args{.sequence = op.ints("seq_index", seq_index, n, 0),
                            .position = op.ints("position", position, n, 0),
                            .out = op.floats("out", &out, n, lanes, true),
                            .purpose = purpose,
                            .n_rows = n,
                            .lanes = static_cast<int32_t>(lanes),
                            .out_stride = OpCall::stride(&out)};
  op.apart(seq_index, &out, "seq_index and out");
  op.apart(position, &out, "position and out");
  args.row = op.staged_draws();
  if (op.ok()) args.n_sequences = static_cast<int32_t>(call->batch->n_seqs);
  return op.run(
      [&](const kernels::Ops& ops, kernels::Stream& stream) { ops.uniform(stream, args); });
}

specd_status rng_uniform(const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                         const specd_tensor* position, uint32_t purpose, const specd_tensor* out) {
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "rng.uniform: call is null");
  if (purpose == 0) {
    return refuse(call, SPECD_E_INVALID,
                  "rng.uniform: purpose 0 belongs to the host's own draw; use SPECD_PURPOSE_*");
  }
  const bool is_verifiers = purpose == SPECD_PURPOSE_ACCEPT || purpose == SPECD_PURPOSE_RESIDUAL;
  if (is_verifiers && call->committed != nullptr) {
    return refuse(call, SPECD_E_INVALID,
                  "rng.uniform: purpose " + std::to_string(purpose) +
                      " in propose(): the verifier judges the draft with its numbers; use "
                      "SPECD_PURPOSE_DRAFT (1)");
  }
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "rng.uniform: out is null");
  if (out->device_type != SPECD_DEV_CPU) {
    return uniform_on_device(host, call, seq_index, position, purpose, *out);
  }
  const std::string fault = keys_fault(call, seq_index, position, out);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "rng.uniform: " + fault);
  for (int64_t i = 0; i < out->shape[0]; ++i) {
    kernels::uniform_row(call->sampling[element(*seq_index, i)]->seed, element(*position, i),
                         purpose, row<float>(*out, i), out->shape[1]);
  }
  return SPECD_OK;
}

}  // namespace

const specd_rng kRngService = {sizeof(specd_rng), 0, or_exhausted<rng_draw_noise>,
                               or_exhausted<rng_uniform>};

}  // namespace specd
