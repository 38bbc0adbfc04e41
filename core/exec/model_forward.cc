// Forwards of draft models: from a call's tensors to rows, and from logits to its outputs.
#include <algorithm>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/exec/model_limits.h"
#include "core/exec/model_service.h"

namespace specd {
namespace {

// Whether the tensors of a call lie in the device's own memory.
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
  if (fault.empty() && args.out_logits != nullptr) {
    device = nullptr;
    fault = check("out_logits", args.out_logits, SPECD_DT_FLOAT, 2);
  }
  if (!fault.empty()) return fault;
  if (args.out_logprob != nullptr && args.out_token == nullptr) {
    return "out_logprob is of out_token, which is null";
  }
  if (args.out_topk_logprob != nullptr && args.out_topk_token == nullptr) {
    return "out_topk_logprob is of out_topk_token, which is null";
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

// Increasing numbers below `end`.
std::string output_rows_fault(const specd_forward_args& args, uint32_t end) {
  if (args.n_outputs > 0 && args.output_rows == nullptr) return "output_rows is null";
  for (uint32_t i = 0; i < args.n_outputs; ++i) {
    const uint32_t row = args.output_rows[i];
    if (row >= end || (i > 0 && row <= args.output_rows[i - 1])) {
      return "output_rows[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", expected increasing numbers of " + range_of(end);
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

// Where output i of a call goes, and from where row r gets its token.
int64_t place_of(const specd_forward_args& args, uint32_t i) {
  return args.output_at == nullptr ? i : args.output_at[i];
}
int64_t source_of(const specd_forward_args& args, uint32_t r) {
  return args.token_at == nullptr ? r : args.token_at[r];
}

// Where an op writes outputs that follow each other; null = not wanted.
template <typename T>
struct Target {
  T* data = nullptr;
  int32_t stride = 0;
};
struct Outputs {
  Target<int32_t> token;
  Target<float> logprob;
  Target<int32_t> top_token;
  Target<float> top_logprob;
  int32_t k = 0;
};

template <typename T>
Target<T> target(const specd_tensor* tensor, int64_t output, int64_t step) {
  if (tensor == nullptr) return {};
  return {row<T>(*tensor, output), static_cast<int32_t>(step * tensor->stride[0])};
}

int32_t top_k_of(const specd_forward_args& args) {
  return args.out_topk_token == nullptr ? 0 : static_cast<int32_t>(args.out_topk_token->shape[1]);
}

// The ops for the outputs whose logits are rows [first, first + n) of the forward.
void submit_outputs(Device& device, const DraftModel& draft, const kernels::DrawRow* draws,
                    int32_t first, int32_t n, const Outputs& to) {
  const kernels::Ops& ops = device.ops();
  const int32_t width = draft.config.vocab_size;
  const auto vocab = static_cast<int32_t>(draft.facts.info.vocab_size);
  const float* logits =
      draft.transformer->logits() + static_cast<int64_t>(first) * static_cast<int64_t>(width);
  if (to.token.data != nullptr) {
    ops.draw(device.stream(), {.logits = logits,
                               .row = draws + first,
                               .token = to.token.data,
                               .n_rows = n,
                               .vocab = vocab,
                               .logits_stride = width,
                               .token_stride = to.token.stride});
  }
  const auto log_prob = [&](const Target<int32_t>& token, const Target<float>& out, int32_t k) {
    if (out.data == nullptr) return;
    ops.log_prob(device.stream(), {.logits = logits,
                                   .token = token.data,
                                   .out = out.data,
                                   .n_rows = n,
                                   .vocab = vocab,
                                   .k = k,
                                   .logits_stride = width,
                                   .token_stride = token.stride,
                                   .out_stride = out.stride});
  };
  log_prob(to.token, to.logprob, 1);
  if (to.top_token.data != nullptr) {
    ops.top_k(device.stream(), {.logits = logits,
                                .token = to.top_token.data,
                                .n_rows = n,
                                .vocab = vocab,
                                .k = to.k,
                                .logits_stride = width,
                                .token_stride = to.top_token.stride});
    log_prob(to.top_token, to.top_logprob, to.k);
  }
}

}  // namespace

std::string ModelService::check(const specd_call& call, const DraftModel& draft,
                                const specd_forward_args* args) const {
  if (call.sampling == nullptr) return "the call has no sampling";
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
  const bool device = on_device(*args);
  std::string fault = outputs_fault(*args, static_cast<int64_t>(draft.facts.info.vocab_size),
                                    device ? &device_ : nullptr);
  if (fault.empty() && !device_.is_host() && args->out_topk_token != nullptr &&
      args->out_topk_token->shape[1] > static_cast<int64_t>(kTopKMax)) {
    fault = "out_topk_token has " + std::to_string(args->out_topk_token->shape[1]) +
            " columns, expected at most " + std::to_string(kTopKMax) + " on or beside " +
            device_.name();
  }
  return fault;
}

specd_status ModelService::forward(specd_call* call, const specd_model* model,
                                   const specd_forward_args* args) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "forward", &status);
  if (handle == nullptr) return status;
  const auto bad = [&](const std::string& text) {
    return refuse(call, SPECD_E_INVALID, "model.forward: " + text);
  };
  const uint32_t n_seqs = call->batch->n_seqs;
  std::string fault;
  if (args != nullptr && args->struct_size == sizeof(specd_forward_args) &&
      (args->row_offsets == nullptr || args->seq_status == nullptr)) {
    fault = "row_offsets or seq_status is null";
  }
  if (fault.empty()) fault = check(*call, *handle->model, args);
  if (!fault.empty()) return bad(fault);
  const bool device = on_device(*args) && !device_.is_host();
  fault = offsets_fault(args->row_offsets, n_seqs, args->n_rows);
  if (fault.empty()) fault = token_fault(*args, device ? &device_ : nullptr);
  if (fault.empty()) fault = output_rows_fault(*args, args->n_rows);
  if (!fault.empty()) return bad(fault);
  const bool repeatable = device && args->parent == nullptr && args->out_logits == nullptr;
  if (capturing_ && !repeatable) return refuse_capture(call, "forward with these arguments");
  if (record_ != nullptr) {
    ModelRecord::Call& noted = record_->calls.emplace_back();
    noted.model = handle;
    noted.row_offsets.assign(args->row_offsets, args->row_offsets + n_seqs + 1);
    for (uint32_t s = 0; s < n_seqs; ++s) {
      noted.n_rows.push_back(args->row_offsets[s + 1] - args->row_offsets[s]);
    }
    noted.n_outputs = args->n_outputs;
    if (args->n_outputs > 0) {
      noted.output_rows.assign(args->output_rows, args->output_rows + args->n_outputs);
    }
    for (uint32_t r = 0; r < args->n_rows; ++r) {
      noted.token_at.push_back(static_cast<uint32_t>(source_of(*args, r)));
    }
    noted.token = *args->token;
    record_->repeatable = record_->repeatable && repeatable;
  }
  return run_forward(handle, call, *args, device);
}

specd_status ModelService::run_forward(const std::shared_ptr<specd_model>& handle, specd_call* call,
                                       const specd_forward_args& args, bool device) {
  forward_step_ = call->batch->step_id;
  std::vector<Row> wanted;
  std::vector<int32_t> tokens;
  uint32_t output = 0;
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    const uint32_t begin = args.row_offsets[s], end = args.row_offsets[s + 1];
    args.seq_status[s] = SPECD_OK;
    if (begin == end) continue;
    tokens.clear();
    for (uint32_t r = begin; !device && r < end; ++r) {
      tokens.push_back(element(*args.token, source_of(args, r)));
    }
    args.seq_status[s] =
        extend(*handle, call, s, device ? nullptr : tokens.data(),
               args.parent == nullptr ? nullptr : args.parent + begin, end - begin);
    const bool ok = args.seq_status[s] == SPECD_OK;
    const int32_t first = ok ? handle->sessions.at(call->batch->seq_id[s]).n_rows() -
                                   static_cast<int32_t>(end - begin)
                             : 0;
    for (uint32_t r = begin; r < end; ++r) {
      const bool asked = output < args.n_outputs && args.output_rows[output] == r;
      const Row row{.sequence = s,
                    .row = ok ? first + static_cast<int32_t>(r - begin) : -1,
                    .token_at = device ? source_of(args, r) * args.token->stride[0] : -1,
                    .output = asked ? place_of(args, output++) : -1};
      if (ok || asked) wanted.push_back(row);
    }
  }
  return compute(handle, call, args, wanted);
}

specd_status ModelService::follow(specd_call* call, const specd_model* model,
                                  const specd_forward_args* args) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "follow", &status);
  if (handle == nullptr) return status;
  const auto bad = [&](const std::string& text) {
    return refuse(call, SPECD_E_INVALID, "model.follow: " + text);
  };
  if (call->committed == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "model.follow: only inside propose()");
  }
  std::string fault = check(*call, *handle->model, args);
  if (fault.empty()) fault = output_rows_fault(*args, call->batch->n_seqs);
  if (!fault.empty()) return bad(fault);
  if (args->row_offsets != nullptr || args->parent != nullptr || args->token != nullptr ||
      args->token_at != nullptr) {
    return bad("row_offsets, parent, token and token_at are not null");
  }
  const bool repeatable = on_device(*args) && !device_.is_host() && args->out_logits == nullptr;
  if (capturing_ && !repeatable) return refuse_capture(call, "follow with these arguments");
  ModelRecord::Call* noted = nullptr;
  if (record_ != nullptr) {
    noted = &record_->calls.emplace_back();
    noted->model = handle;
    noted->follow = true;
    noted->n_outputs = args->n_outputs;
    if (args->n_outputs > 0) {
      noted->output_rows.assign(args->output_rows, args->output_rows + args->n_outputs);
    }
    if (repeatable) {
      noted->token = args->out_token != nullptr ? *args->out_token : *args->out_topk_token;
    }
    record_->repeatable = record_->repeatable && repeatable;
  }
  return run_follow(handle, call, *args, noted);
}

static std::string beyond_text(const DraftModel& draft) {
  return "model: draft model '" + draft.name + "' cannot follow the text: it takes " +
         std::to_string(draft.config.max_positions) + " tokens, smaller than " +
         std::to_string(draft.config.vocab_size);
}

specd_status ModelService::run_follow(const std::shared_ptr<specd_model>& handle, specd_call* call,
                                      const specd_forward_args& args, ModelRecord::Call* noted) {
  forward_step_ = call->batch->step_id;
  auto left = static_cast<int32_t>(args.n_rows);
  std::vector<Row> wanted;
  std::vector<ModelSession*> fed;
  uint32_t output = 0;
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    const std::span<const int32_t> text = (*call->committed)[s];
    const auto length = static_cast<int32_t>(text.size());
    args.seq_status[s] = SPECD_OK;
    ModelSession& session = handle->sessions[call->batch->seq_id[s]];
    int32_t all = 0, n = 0;
    session.is_beyond = session.is_beyond || length > handle->model->config.max_positions;
    if (session.is_beyond) {
      args.seq_status[s] = SPECD_E_UNSUPPORTED;
      report_text(call, static_cast<int32_t>(s), beyond_text(*handle->model));
    } else {
      trim(*handle, session, text);
      all = missing(session, length);
      n = all <= kSteadyRows ? all : std::min(all, left);
      session.kept -= all - (length - session.kept);
    }
    if (noted != nullptr) noted->n_rows.push_back(static_cast<uint32_t>(n));
    if (n > 0) {
      args.seq_status[s] =
          extend(*handle, call, s, text.data() + session.kept, nullptr, static_cast<uint32_t>(n));
      if (args.seq_status[s] == SPECD_OK && all > kSteadyRows) left -= n;
    } else if (all > 0 && session.pool_pages.empty()) {
      handle->sessions.erase(call->batch->seq_id[s]);
    }
    // Who cannot be fed takes no rows from the others, and holds no pages.
    if (args.seq_status[s] == SPECD_E_UNSUPPORTED) {
      ModelSession& beyond = handle->sessions[call->batch->seq_id[s]];
      release(*handle, beyond);
      beyond.is_beyond = true;
    }
    const bool asked = output < args.n_outputs && args.output_rows[output] == s;
    const int64_t place = asked ? place_of(args, output++) : -1;
    const bool ok = args.seq_status[s] == SPECD_OK;
    for (int32_t i = 0; ok && i < n; ++i) {
      const bool last = i + 1 == all;
      wanted.push_back({.sequence = s, .row = i, .token_at = -1, .output = last ? place : -1});
    }
    if (ok && n > 0) fed.push_back(&session);
    if (ok && n == all) continue;
    if (ok) args.seq_status[s] = SPECD_E_DEADLINE;
    if (asked) wanted.push_back({.sequence = s, .row = -1, .token_at = -1, .output = place});
  }
  const specd_status status = compute(handle, call, args, wanted);
  // Otherwise they are gone.
  for (ModelSession* session : fed) {
    if (status == SPECD_OK) session->end_round(session->kept + session->n_rows());
  }
  return status;
}

// All rows, in as many forwards as the limits of the model ask for.
specd_status ModelService::compute(const std::shared_ptr<specd_model>& model, specd_call* call,
                                   const specd_forward_args& args, const std::vector<Row>& rows) {
  const DraftModel& draft = *model->model;
  rows_.clear();
  gathered_.clear();
  const ModelSession* session = nullptr;
  int64_t tabled = -1;  // the sequence whose table was added last
  int32_t table = 0, n_outputs = 0;
  for (const Row& each : rows) {
    if (each.row < 0) {
      gathered_.push_back(each);
      continue;
    }
    if (tabled != each.sequence) session = &model->sessions.at(call->batch->seq_id[each.sequence]);
    const bool in_place = session->in_place(each.row);
    const int32_t position = session->kept + session->depth[at(each.row)];
    const size_t pages = tabled == each.sequence ? 0 : session->table.pages.size();
    const int64_t tail = in_place ? 0 : session->depth[at(each.row)] + 1;
    if (rows_.n_rows() == draft.rows_max || n_outputs == draft.outputs_max ||
        static_cast<int64_t>(rows_.tail.size()) + tail > tail_max(draft) ||
        static_cast<int64_t>(rows_.pages.size() + pages) >
            std::min(draft.rows_max, draft.outputs_max) * table_max(draft)) {
      flush(model, call, args);
      tabled = -1;
      n_outputs = 0;
    }
    if (tabled != each.sequence) {
      tabled = each.sequence;
      table = static_cast<int32_t>(rows_.pages.size());
      rows_.pages.insert(rows_.pages.end(), session->table.pages.begin(),
                         session->table.pages.end());
    }
    rows_.token.push_back(std::max(session->token[at(each.row)], 0));
    rows_.position.push_back(position);
    rows_.slot.push_back(session->table.physical(session->kept + each.row));
    rows_.span.push_back(in_place ? position + 1 : session->kept);
    rows_.table.push_back(table);
    const auto tail_begin = static_cast<ptrdiff_t>(rows_.tail.size());
    rows_.tail_begin.push_back(static_cast<int32_t>(tail_begin));
    if (!in_place) {
      for (int32_t row = each.row; row >= 0; row = session->parent[at(row)]) {
        rows_.tail.push_back(session->table.physical(session->kept + row));
      }
      std::reverse(rows_.tail.begin() + tail_begin, rows_.tail.end());
    }
    if (each.output >= 0) {
      rows_.logits_rows.push_back(rows_.n_rows() - 1);
      ++n_outputs;
    }
    gathered_.push_back(each);
  }
  flush(model, call, args);
  for (auto& [seq_id, each] : model->sessions) each.in_use = false;
  forward_step_ = 0;
  if (failed_.ok()) return SPECD_OK;
  // Rows that were not computed are nobody's: their sessions begin anew.
  for (const Row& each : rows) {
    const auto found = model->sessions.find(call->batch->seq_id[each.sequence]);
    if (each.row < 0 || found == model->sessions.end()) continue;
    release(*model, found->second);
    model->sessions.erase(found);
  }
  rows_.clear();
  gathered_.clear();
  return told(call);
}

// One forward over the rows gathered so far, and its outputs.
void ModelService::flush(const std::shared_ptr<specd_model>& model, const specd_call* call,
                         const specd_forward_args& args) {
  if (gathered_.empty() || !failed_.ok()) return;
  DraftModel& draft = *model->model;
  const uint64_t start = now_ns();
  std::vector<kernels::DrawRow> draws;
  std::vector<int32_t> from, to;  // tokens that the device has
  int32_t row = 0;
  for (const Row& each : gathered_) {
    if (each.row < 0) continue;
    if (each.token_at >= 0) {
      from.push_back(static_cast<int32_t>(each.token_at));
      to.push_back(row);
    }
    if (each.output >= 0) {
      const specd_sampling& sampling = *call->sampling[each.sequence];
      draws.push_back({.temperature = sampling.temperature,
                       .top_p = sampling.top_p,
                       .min_p = sampling.min_p,
                       .top_k = sampling.top_k,
                       .position = rows_.position[at(row)] + 1,
                       .seed = sampling.seed,
                       .greedy = (sampling.flags & SPECD_SAMPLE_GREEDY) != 0});
    }
    ++row;
  }
  const size_t n_outputs = draws.size();
  const auto n_top = static_cast<size_t>(top_k_of(args));
  // Host tensors beside a device: the ops write columns, which are copied when the stream has
  // passed.
  const bool through_host = !device_.is_host() && !on_device(args);
  uint64_t bytes =
      ForwardRows::staging_bytes(rows_.n_rows(), static_cast<int64_t>(rows_.pages.size()),
                                 static_cast<int64_t>(rows_.tail.size())) +
      Staging::bytes_of<kernels::DrawRow>(n_outputs) + 2 * Staging::bytes_of<int32_t>(from.size());
  if (through_host) {
    bytes +=
        2 * (Staging::bytes_of<int32_t>(n_outputs) + Staging::bytes_of<int32_t>(n_outputs * n_top));
  }
  if (bytes > staging_.room()) {
    SPECD_CHECK(!repeating_, "what was captured had room");
    if (record_ != nullptr) record_->repeatable = false;  // in one piece it would have none
    failed_ =
        capturing_ ? Status(Code::kExhausted, "a step with too many rows for a graph") : wait();
    if (!failed_.ok()) return;
  }
  const ForwardColumns columns = rows_.stage(staging_);
  const auto draw_column = staging_.add(draws);
  const auto from_column = staging_.add(from), to_column = staging_.add(to);
  row = 0;
  for (const Row& each : gathered_) {
    if (each.row < 0) continue;
    if (each.token_at >= 0) {
      unread_.push_back({.model = model,
                         .seq_id = call->batch->seq_id[each.sequence],
                         .row = each.row,
                         .token = columns.token.host + row});
    }
    ++row;
  }
  if (!repeating_) {
    staging_.upload();
    if (!from.empty()) {
      device_.ops().pick_tokens(device_.stream(),
                                {.source = static_cast<const int32_t*>(args.token->data),
                                 .from = from_column.device,
                                 .target = columns.token.device,
                                 .to = to_column.device,
                                 .n = static_cast<int32_t>(from.size()),
                                 .vocab = draft.config.vocab_size,
                                 .otherwise = 0});
      staging_.download(columns.token);
    }
    if (columns.n_rows > 0) draft.transformer->forward(columns, *draft.kv);
    through_host ? copy_outputs(draft, args, draw_column) : write_outputs(draft, args, draw_column);
  }
  draft.forward_ns += now_ns() - start;
  draft.rows += static_cast<uint64_t>(rows_.n_rows());
  ++draft.forwards;
  rows_.clear();
  gathered_.clear();
  if (device_.is_host()) passed();
}

// Into tensors that lie where ops write: runs of outputs at equal distances.
void ModelService::write_outputs(const DraftModel& draft, const specd_forward_args& args,
                                 const Column<kernels::DrawRow>& draws) {
  std::vector<int64_t> outputs;
  std::vector<int32_t> failed;
  for (const Row& each : gathered_) {
    if (each.output < 0) continue;
    if (each.row >= 0) {
      outputs.push_back(each.output);
    } else if (args.out_token != nullptr) {
      failed.push_back(static_cast<int32_t>(each.output * args.out_token->stride[0]));
    }
  }
  for (size_t first = 0, end = 0; first < outputs.size(); first = end) {
    const int64_t output = outputs[first];
    const int64_t step = first + 1 < outputs.size() ? outputs[first + 1] - output : 1;
    for (end = first + 1; end < outputs.size() && outputs[end] == outputs[end - 1] + step;) ++end;
    submit_outputs(device_, draft, draws.device, static_cast<int32_t>(first),
                   static_cast<int32_t>(end - first),
                   {.token = target<int32_t>(args.out_token, output, step),
                    .logprob = target<float>(args.out_logprob, output, step),
                    .top_token = target<int32_t>(args.out_topk_token, output, step),
                    .top_logprob = target<float>(args.out_topk_logprob, output, step),
                    .k = top_k_of(args)});
  }
  copy_logits(draft, args, outputs);
  if (failed.empty()) return;
  // No token of [0, 0): all become -1.
  const uint64_t bytes = Staging::bytes_of<int32_t>(failed.size());
  if (bytes > staging_.room()) {
    if (record_ != nullptr) record_->repeatable = false;
    if (!capturing_) failed_ = wait();
    if (failed_.ok() && bytes > staging_.room()) {
      failed_ = Status(Code::kExhausted, std::to_string(failed.size()) +
                                             " outputs of sequences "
                                             "that failed");
    }
    if (!failed_.ok()) return;
  }
  const Column<int32_t> places = staging_.add(failed);
  staging_.upload();
  auto* token = static_cast<int32_t*>(args.out_token->data);
  device_.ops().pick_tokens(device_.stream(), {.source = token,
                                               .from = places.device,
                                               .target = token,
                                               .to = places.device,
                                               .n = static_cast<int32_t>(failed.size()),
                                               .vocab = 0,
                                               .otherwise = -1});
}

// Into tensors of the host: waits for the stream.
void ModelService::copy_outputs(const DraftModel& draft, const specd_forward_args& args,
                                const Column<kernels::DrawRow>& draws) {
  std::vector<int64_t> outputs;
  for (const Row& each : gathered_) {
    if (each.output < 0) continue;
    if (each.row >= 0) {
      outputs.push_back(each.output);
    } else if (args.out_token != nullptr) {
      *row<int32_t>(*args.out_token, each.output) = -1;
    }
  }
  const size_t n = outputs.size();
  const int32_t k = top_k_of(args);
  const size_t n_top = n * static_cast<size_t>(k);
  const auto token = staging_.add<int32_t>(args.out_token == nullptr ? 0 : n);
  const auto logprob = staging_.add<float>(args.out_logprob == nullptr ? 0 : n);
  const auto top_token = staging_.add<int32_t>(n_top);
  const auto top_logprob = staging_.add<float>(args.out_topk_logprob == nullptr ? 0 : n_top);
  const auto dense = []<typename T>(const Column<T>& column, int32_t width) {
    return column.n == 0 ? Target<T>() : Target<T>{column.device, width};
  };
  if (n > 0) {
    submit_outputs(device_, draft, draws.device, 0, static_cast<int32_t>(n),
                   {.token = dense(token, 1),
                    .logprob = dense(logprob, 1),
                    .top_token = dense(top_token, k),
                    .top_logprob = dense(top_logprob, k),
                    .k = k});
  }
  copy_logits(draft, args, outputs);
  staging_.download(token);
  staging_.download(logprob);
  staging_.download(top_token);
  staging_.download(top_logprob);
  failed_ = device_.synchronize();
  if (!failed_.ok()) return;
  const auto copy = [&]<typename T>(const specd_tensor* tensor, const Column<T>& from) {
    const size_t width = from.n / std::max<size_t>(n, 1);
    for (size_t i = 0; tensor != nullptr && i < n; ++i) {
      std::copy_n(from.host + i * width, width, row<T>(*tensor, outputs[i]));
    }
  };
  copy(args.out_token, token);
  copy(args.out_logprob, logprob);
  copy(args.out_topk_token, top_token);
  copy(args.out_topk_logprob, top_logprob);
  passed();
}

void ModelService::copy_logits(const DraftModel& draft, const specd_forward_args& args,
                               const std::vector<int64_t>& outputs) {
  if (args.out_logits == nullptr) return;
  const float* logits = draft.transformer->logits();
  for (const int64_t output : outputs) {
    device_.copy_out(row<float>(*args.out_logits, output), logits,
                     uint64_t{draft.facts.info.vocab_size} * sizeof(float));
    logits += draft.config.vocab_size;
  }
}

}  // namespace specd
