#include "core/services/model_arguments.h"

#include "core/request/sampling.h"
#include "core/services/arguments.h"
#include "specd/plugin_api/services/rng.h"

namespace specd {
namespace {

constexpr uint32_t kRowsMax = 1u << 24;  // of one call; keeps sums within 32 bits

std::string range_of(int64_t end) { return "0.." + std::to_string(end - 1); }

specd_status status_of(Code code) {
  switch (code) {
    case Code::kOk:
      return SPECD_OK;
    case Code::kInvalidArgument:
      return SPECD_E_INVALID;
    case Code::kUnsupported:
      return SPECD_E_UNSUPPORTED;
    case Code::kExhausted:
      return SPECD_E_EXHAUSTED;
    case Code::kDeadlineExceeded:
      return SPECD_E_DEADLINE;
    default:
      return SPECD_E_DEVICE;
  }
}

// Whether the tensors of a call are in device memory.
bool on_device(const specd_forward_args& args) {
  for (const specd_tensor* each : {args.token, args.out_token, args.out_topk_token}) {
    if (each != nullptr) return each->device_type != SPECD_DEV_CPU;
  }
  return false;
}

std::string outputs_fault(const specd_forward_args& args, int64_t vocab, const Device* device) {
  const auto n = static_cast<int64_t>(args.n_outputs);
  const auto check = [&](const char* name, const specd_tensor* tensor, uint8_t dtype_code,
                         uint32_t rank) {
    if (tensor == nullptr) return std::string();
    std::string fault = tensor_fault(name, tensor, dtype_code, rank, device);
    if (!fault.empty()) return fault;
    if (args.output_at == nullptr && tensor->shape[0] != n) {
      return std::string(name) + " has " + std::to_string(tensor->shape[0]) +
             " rows, expected n_outputs " + std::to_string(n);
    }
    if (args.output_at != nullptr && n > 0 && args.output_at[n - 1] >= tensor->shape[0]) {
      return std::string(name) + " has " + std::to_string(tensor->shape[0]) +
             " rows, output_at asks for row " + std::to_string(args.output_at[n - 1]);
    }
    return std::string();
  };
  for (int64_t i = 1; args.output_at != nullptr && i < n; ++i) {
    if (args.output_at[i] <= args.output_at[i - 1]) {
      return "output_at[" + std::to_string(i) + "] does not increase";
    }
  }
  std::string fault = check("out_token", args.out_token, SPECD_DT_INT, 1);
  if (fault.empty()) fault = check("out_logprob", args.out_logprob, SPECD_DT_FLOAT, 1);
  if (fault.empty()) fault = check("out_topk_token", args.out_topk_token, SPECD_DT_INT, 2);
  if (fault.empty()) fault = check("out_topk_logprob", args.out_topk_logprob, SPECD_DT_FLOAT, 2);
  device = nullptr;  // the others are in host memory
  if (fault.empty()) fault = check("out_logits", args.out_logits, SPECD_DT_FLOAT, 2);
  if (fault.empty()) fault = check("out_law", args.out_law, SPECD_DT_FLOAT, 2);
  if (fault.empty()) fault = check("out_lse", args.out_lse, SPECD_DT_FLOAT, 1);
  if (!fault.empty()) return fault;
  if (args.purpose != 0 && args.purpose != SPECD_PURPOSE_DRAFT) {
    return "purpose is " + std::to_string(args.purpose) + ", expected 0 or SPECD_PURPOSE_DRAFT (" +
           std::to_string(SPECD_PURPOSE_DRAFT) + ")";
  }
  if (args.out_law != nullptr && on_device(args)) return "out_law needs tensors in host memory";
  if ((args.out_law != nullptr) != (args.out_lse != nullptr)) {
    return "out_law and out_lse: one of them is null";
  }
  if (args.out_law != nullptr && (args.out_token == nullptr || args.out_logprob != nullptr)) {
    return "out_law needs out_token, and allows no out_logprob";
  }
  if (args.out_law != nullptr && args.out_law->shape[1] < vocab) {
    return "out_law has " + std::to_string(args.out_law->shape[1]) +
           " columns, expected at least vocab_size " + std::to_string(vocab);
  }
  if (args.out_logprob != nullptr && args.out_token == nullptr) {
    return "out_logprob needs out_token, which is null";
  }
  if (args.out_topk_logprob != nullptr && args.out_topk_token == nullptr) {
    return "out_topk_logprob needs out_topk_token, which is null";
  }
  if (args.out_topk_token != nullptr) {
    const int64_t k = args.out_topk_token->shape[1];
    if (k < 1 || k > vocab) {
      return "out_topk_token has " + std::to_string(k) + " columns, expected 1.." +
             std::to_string(vocab);
    }
    if (args.out_topk_logprob != nullptr && args.out_topk_logprob->shape[1] != k) {
      return "out_topk_logprob has " + std::to_string(args.out_topk_logprob->shape[1]) +
             " columns, out_topk_token " + std::to_string(k);
    }
  }
  if (args.out_logits != nullptr && args.out_logits->shape[1] != vocab) {
    return "out_logits has " + std::to_string(args.out_logits->shape[1]) +
           " columns, expected vocab_size " + std::to_string(vocab);
  }
  return std::string();
}

// Checks that output_rows are increasing numbers below `end`.
std::string output_rows_fault(const specd_forward_args& args, uint32_t end) {
  if (args.n_outputs > 0 && args.output_rows == nullptr) return "output_rows is null";
  for (uint32_t i = 0; i < args.n_outputs; ++i) {
    const uint32_t row = args.output_rows[i];
    if (row >= end || (i > 0 && row <= args.output_rows[i - 1])) {
      return "output_rows[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", expected increasing numbers in " + range_of(end);
    }
  }
  return std::string();
}

std::string token_fault(const specd_forward_args& args, const Device* device) {
  std::string fault = tensor_fault("token", args.token, SPECD_DT_INT, 1, device);
  if (!fault.empty()) return fault;
  const auto n = static_cast<uint64_t>(args.token->shape[0]);
  if (args.token_at == nullptr && n != args.n_rows) {
    return "token has " + std::to_string(n) + " entries, expected n_rows " +
           std::to_string(args.n_rows);
  }
  for (uint32_t r = 0; args.token_at != nullptr && r < args.n_rows; ++r) {
    if (args.token_at[r] >= n) {
      return "token has " + std::to_string(n) + " entries, token_at[" + std::to_string(r) +
             "] is " + std::to_string(args.token_at[r]);
    }
  }
  return std::string();
}

// Checks common to forward() and follow().
std::string common_fault(const specd_call& call, const specd_forward_args* args,
                         const DraftModel& model, const Device& device) {
  if (call.sampling == nullptr) return "the call has no sampling parameters";
  if (args == nullptr || args->struct_size != sizeof(specd_forward_args)) {
    return "args of struct_size " + std::to_string(sizeof(specd_forward_args)) + " expected";
  }
  if (args->seq_status == nullptr) return "seq_status is null";
  const uint32_t most = args->row_offsets == nullptr ? call.batch->n_seqs : args->n_rows;
  if (args->n_rows > kRowsMax || args->n_outputs > most) {
    return std::to_string(args->n_rows) + " rows and " + std::to_string(args->n_outputs) +
           " outputs, expected at most " + std::to_string(kRowsMax) + " and " +
           std::to_string(most);
  }
  std::string fault = outputs_fault(*args, static_cast<int64_t>(model.facts.info.vocab_size),
                                    on_device(*args) ? &device : nullptr);
  if (fault.empty() && !device.is_host() && args->out_topk_token != nullptr &&
      args->out_topk_token->shape[1] > static_cast<int64_t>(kDraftTopKMax)) {
    return "out_topk_token has " + std::to_string(args->out_topk_token->shape[1]) +
           " columns, expected at most " + std::to_string(kDraftTopKMax) + " with models on " +
           device.name();
  }
  if (fault.empty() && args->purpose != 0 && call.committed == nullptr) {
    return "a purpose is allowed only inside propose()";
  }
  return fault;
}

template <typename T>
Strided<T> strided(const specd_tensor* tensor) {
  if (tensor == nullptr) return {};
  return {static_cast<T*>(tensor->data), tensor->stride[0]};
}

}  // namespace

std::string offsets_fault(const uint32_t* offsets, uint32_t n_seqs, uint32_t n_rows) {
  if (offsets[0] != 0) return "row_offsets[0] is " + std::to_string(offsets[0]) + ", expected 0";
  for (uint32_t s = 0; s < n_seqs; ++s) {
    if (offsets[s + 1] < offsets[s]) return "row_offsets decrease at " + std::to_string(s + 1);
  }
  if (offsets[n_seqs] != n_rows) {
    return "row_offsets end at " + std::to_string(offsets[n_seqs]) + ", expected n_rows " +
           std::to_string(n_rows);
  }
  return std::string();
}

std::string forward_fault(const specd_call& call, const specd_forward_args* args,
                          const DraftModel& model, const Device& device) {
  if (args != nullptr && args->struct_size == sizeof(specd_forward_args) &&
      (args->row_offsets == nullptr || args->seq_status == nullptr)) {
    return "row_offsets or seq_status is null";
  }
  std::string fault = common_fault(call, args, model, device);
  if (args == nullptr || !fault.empty()) return fault;
  fault = offsets_fault(args->row_offsets, call.batch->n_seqs, args->n_rows);
  if (fault.empty()) fault = token_fault(*args, on_device(*args) ? &device : nullptr);
  if (fault.empty()) fault = output_rows_fault(*args, args->n_rows);
  return fault;
}

std::string follow_fault(const specd_call& call, const specd_forward_args* args,
                         const DraftModel& model, const Device& device) {
  std::string fault = common_fault(call, args, model, device);
  if (fault.empty()) fault = output_rows_fault(*args, call.batch->n_seqs);
  if (!fault.empty()) return fault;
  if (args->row_offsets != nullptr || args->parent != nullptr || args->token != nullptr ||
      args->token_at != nullptr) {
    return "row_offsets, parent, token and token_at must be null";
  }
  return std::string();
}

std::string keep_fault(const specd_call& call, const DraftUse& use, const uint32_t* kept,
                       const uint32_t* row_offsets, const uint32_t* rows) {
  const specd_batch& batch = *call.batch;
  if (kept == nullptr) return "kept is null";
  if (row_offsets != nullptr) {
    std::string fault = offsets_fault(row_offsets, batch.n_seqs, row_offsets[batch.n_seqs]);
    if (!fault.empty()) return fault;
    if (row_offsets[batch.n_seqs] > 0 && rows == nullptr) return "rows is null";
  }
  for (uint32_t s = 0; s < batch.n_seqs; ++s) {
    const Status good =
        DraftSessions::check_keep(use, batch.seq_id[s], kept[s], kept_path(row_offsets, rows, s));
    if (!good.ok()) return "sequence " + std::to_string(s) + ": " + good.message();
  }
  return std::string();
}

specd_status refuse_capture(specd_call* call, const char* function, const char* what) {
  return refuse(call, SPECD_E_PRECONDITION,
                std::string(function) + what + ": not allowed while propose() is captured");
}

DraftRequest follow_request(const specd_forward_args& args) {
  DraftRequest request;
  request.rows_max = static_cast<int32_t>(args.n_rows);
  if (args.n_outputs > 0) request.output_rows = {args.output_rows, args.n_outputs};
  request.output_at = args.output_at;
  request.outputs = {.on_device = on_device(args),
                     .purpose = args.purpose,
                     .token = strided<int32_t>(args.out_token),
                     .logprob = strided<float>(args.out_logprob),
                     .top_token = strided<int32_t>(args.out_topk_token),
                     .top_logprob = strided<float>(args.out_topk_logprob),
                     .logits = strided<float>(args.out_logits),
                     .law = strided<float>(args.out_law),
                     .lse = strided<float>(args.out_lse)};
  if (args.out_law != nullptr) request.outputs.law_width = args.out_law->shape[1];
  if (args.out_topk_token != nullptr) {
    request.outputs.top_k = static_cast<int32_t>(args.out_topk_token->shape[1]);
  }
  return request;
}

DraftRequest forward_request(const specd_forward_args& args, uint32_t n_seqs) {
  DraftRequest request = follow_request(args);
  request.row_offsets = {args.row_offsets, size_t{n_seqs} + 1};
  request.parent = args.parent;
  request.token_at = args.token_at;
  request.token = strided<const int32_t>(args.token);
  return request;
}

DraftBatch draft_batch(const specd_call& call, std::vector<kernels::DrawRow>& draws) {
  const specd_batch& batch = *call.batch;
  draws.clear();
  for (uint32_t s = 0; s < batch.n_seqs; ++s) draws.push_back(draw_row(*call.sampling[s]));
  DraftBatch all{.step_id = batch.step_id, .seq_id = {batch.seq_id, batch.n_seqs}, .draws = draws};
  if (call.committed != nullptr) all.text = *call.committed;
  return all;
}

std::span<const uint32_t> kept_path(const uint32_t* row_offsets, const uint32_t* rows, uint32_t s) {
  if (row_offsets == nullptr || row_offsets[s] == row_offsets[s + 1]) return {};
  return {rows + row_offsets[s], rows + row_offsets[s + 1]};
}

specd_status finish_rows(specd_call* call, const char* service, const Status& status,
                         std::span<const Status> of, specd_status* seq_status) {
  for (size_t s = 0; s < of.size(); ++s) {
    seq_status[s] = status_of(of[s].code());
    if (of[s].message().empty()) continue;
    report_text(call, static_cast<int32_t>(s), std::string(service) + ": " + of[s].message());
  }
  if (status.ok()) return SPECD_OK;
  return refuse(call, status.code() == Code::kExhausted ? SPECD_E_EXHAUSTED : SPECD_E_DEVICE,
                std::string(service) + ": " + status.to_string());
}

}  // namespace specd
