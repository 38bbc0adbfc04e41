#include "core/exec/model_service.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/exec/service_arguments.h"
#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

constexpr uint32_t kRowsMax = 1u << 24;  // of one call; keeps sums inside 32 bits
constexpr int32_t kTailMax = SPECD_MAX_TREE_NODES;
constexpr size_t kNameBytesMax = 256;
// A sequence that drafted in the step before misses the last committed token, and the last draft as
// well when all were accepted, since that one was never fed.
constexpr int32_t kSteadyRows = 2;
constexpr uint64_t kBlocks = 4;  // forwards of the largest size between two waits; more of usual ones
constexpr size_t kTopKMax = 64;  // of host tensors beside a device that is not the host

size_t at(int32_t i) { return static_cast<size_t>(i); }

// Of one forward: pages of a sequence, and rows of all tails together.
int64_t table_max(const DraftModel& model) {
  return pages_for(int64_t{model.config.max_positions} + kTailMax) + model.kv->parts_per_page();
}
int64_t tail_max(const DraftModel& model) {
  return std::max<int64_t>(2 * kTailMax, int64_t{16} * model.rows_max);
}

std::string range_of(int64_t end) { return "0.." + std::to_string(end - 1); }

// Empty when the arrays of a call can be walked.
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

specd_status refuse_capture(specd_call* call, const char* what) {
  return refuse(call, SPECD_E_PRECONDITION,
                std::string("model.") + what + ": not in a propose() that is being captured");
}

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
      return "token has " + std::to_string(n) + " entries, token_at[" + std::to_string(r) + "] is " +
             std::to_string(args.token_at[r]);
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

Status ModelService::add(std::unique_ptr<DraftModel> model) {
  if (model->transformer != nullptr) {
    // One forward: rows, the tables of all its sequences, tails, draws and outputs.
    const int64_t rows = model->rows_max, outputs = model->outputs_max;
    const auto n = static_cast<size_t>(outputs);
    const uint64_t bytes =
        ForwardRows::staging_bytes(rows, std::min(rows, outputs) * table_max(*model),
                                   tail_max(*model)) +
        Staging::bytes_of<kernels::DrawRow>(n) + 2 * Staging::bytes_of<int32_t>(at(model->rows_max)) +
        4 * Staging::bytes_of<int32_t>(n * kTopKMax);
    if (bytes > block_bytes_) {
      block_bytes_ = bytes;
      SPECD_TRY(staging_, Staging::create(device_, kBlocks * bytes, "columns of draft models"));
    }
  }
  models_.push_back(std::move(model));
  return Status();
}

// ---- handles ---------------------------------------------------------------------------------

specd_status ModelService::open(specd_owner* owner, const char* name, specd_model** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "model.open: out is null");
  *out = nullptr;
  if (owner == nullptr || name == nullptr) {
    return refuse(nullptr, SPECD_E_INVALID, "model.open: owner or name is null");
  }
  const std::string wanted(name, strnlen(name, kNameBytesMax));
  std::string known;
  for (const std::unique_ptr<DraftModel>& model : models_) {
    if (model->name != wanted) {
      known += (known.empty() ? "" : ", ") + model->name;
      continue;
    }
    if (!model->status.ok()) {
      return refuse(nullptr, SPECD_E_PRECONDITION,
                    "draft model '" + wanted + "' cannot be used: " + model->status.to_string());
    }
    auto handle = std::make_shared<specd_model>();
    handle->model = model.get();
    {
      const std::lock_guard lock(owner->mutex);
      owner->models.emplace(handle.get(), handle);
    }
    *out = handle.get();
    const std::lock_guard lock(mutex_);
    open_.push_back(std::move(handle));
    return SPECD_OK;
  }
  return refuse(nullptr, SPECD_E_PRECONDITION,
                "no draft model is called '" + wanted + "'; draft_models has " +
                    (known.empty() ? "none" : known));
}

specd_status ModelService::info(specd_owner* owner, const specd_model* model,
                                specd_target_info* out) {
  if (owner == nullptr || out == nullptr || out->struct_size != sizeof(specd_target_info)) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "model.info: expected an owner, and an out of struct_size " +
                      std::to_string(sizeof(specd_target_info)));
  }
  const std::lock_guard lock(owner->mutex);
  const auto found = owner->models.find(model);
  if (found == owner->models.end()) {
    return refuse(nullptr, SPECD_E_INVALID, "model.info: not a model that this instance has open");
  }
  *out = found->second->model->facts.info;
  return SPECD_OK;
}

void ModelService::close(specd_owner* owner, const specd_model* model) {
  if (owner == nullptr) return;
  const std::lock_guard lock(owner->mutex);
  owner->models.erase(model);  // the step thread takes the pages
}

// The open handle behind `model`, or null with *status set and the reason reported.
std::shared_ptr<specd_model> ModelService::find(specd_call* call, const specd_model* model,
                                                const char* function, specd_status* status) {
  const std::string name = std::string("model.") + function + ": ";
  if (call == nullptr || call->batch == nullptr || call->owner == nullptr) {
    *status = refuse(call, SPECD_E_PRECONDITION, name + "only inside begin() to verify()");
    return nullptr;
  }
  collect_closed();
  const std::lock_guard lock(call->owner->mutex);
  const auto found = call->owner->models.find(model);
  if (found == call->owner->models.end()) {
    *status = refuse(call, SPECD_E_INVALID, name + "not a model that this instance has open");
    return nullptr;
  }
  if (found->second->model->transformer == nullptr) {
    *status = refuse(call, SPECD_E_PRECONDITION, name + "the model is checked, not loaded");
    return nullptr;
  }
  *status = SPECD_OK;
  return found->second;
}

// ---- pages -----------------------------------------------------------------------------------

int32_t ModelService::release(specd_model& model, ModelSession& session) {
  const auto n = static_cast<int32_t>(session.pool_pages.size());
  pool_.release(session.pool_pages);
  model.model->pages_held -= n;
  session = ModelSession();
  return n;
}

// What close() and the end of an instance have left to us.
void ModelService::collect_closed() {
  const std::lock_guard lock(mutex_);
  std::erase_if(open_, [this](const std::shared_ptr<specd_model>& handle) {
    if (handle.use_count() > 1) return false;
    for (auto& [seq_id, session] : handle->sessions) release(*handle, session);
    return true;
  });
}

void ModelService::end(uint64_t seq_id) {
  collect_closed();
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<specd_model>& handle : open_) {
    const auto found = handle->sessions.find(seq_id);
    if (found == handle->sessions.end()) continue;
    release(*handle, found->second);
    handle->sessions.erase(found);
  }
}

bool ModelService::may_go(const ModelSession& session) const {
  const bool wanted_soon = forward_step_ != 0 && session.last_step + 1 >= forward_step_;
  return !session.in_use && !wanted_soon && !session.pool_pages.empty();
}

int32_t ModelService::n_reclaimable() const {
  size_t n = 0;
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<specd_model>& handle : open_) {
    for (const auto& [seq_id, session] : handle->sessions) {
      if (may_go(session)) n += session.pool_pages.size();
    }
  }
  return static_cast<int32_t>(n);
}

int32_t ModelService::reclaim(int32_t n_pages) {
  struct Candidate {
    uint64_t last_step, seq_id;
    specd_model* model;
  };
  std::vector<Candidate> candidates;
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<specd_model>& handle : open_) {
    for (const auto& [seq_id, session] : handle->sessions) {
      if (may_go(session)) candidates.push_back({session.last_step, seq_id, handle.get()});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.last_step, b.seq_id) < std::pair(b.last_step, a.seq_id);
  });
  int32_t freed = 0;
  for (const Candidate& each : candidates) {
    if (freed >= n_pages) break;
    const auto found = each.model->sessions.find(each.seq_id);
    freed += release(*each.model, found->second);
    each.model->sessions.erase(found);
  }
  return freed;
}

// ---- sessions --------------------------------------------------------------------------------

specd_status ModelService::length(specd_call* call, const specd_model* model, uint32_t* out) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "length", &status);
  if (handle == nullptr) return status;
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "model.length: out is null");
  if (capturing_) return refuse_capture(call, "length");
  if (record_ != nullptr) record_->repeatable = false;
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    const auto session = handle->sessions.find(call->batch->seq_id[s]);
    out[s] = session == handle->sessions.end() ? 0 : static_cast<uint32_t>(session->second.kept);
  }
  return SPECD_OK;
}

specd_status ModelService::keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                                const uint32_t* row_offsets, const uint32_t* rows) {
  specd_status status = SPECD_OK;
  const std::shared_ptr<specd_model> handle = find(call, model, "keep", &status);
  if (handle == nullptr) return status;
  const auto bad = [&](uint32_t s, const std::string& text) {
    return refuse(call, SPECD_E_INVALID, "model.keep: sequence " + std::to_string(s) + ": " + text);
  };
  const uint32_t n_seqs = call->batch->n_seqs;
  if (capturing_) return refuse_capture(call, "keep");
  if (record_ != nullptr) record_->repeatable = false;
  if (kept == nullptr) return refuse(call, SPECD_E_INVALID, "model.keep: kept is null");
  if (row_offsets != nullptr) {
    std::string fault = offsets_fault(row_offsets, n_seqs, row_offsets[n_seqs]);
    if (fault.empty() && row_offsets[n_seqs] > 0 && rows == nullptr) fault = "rows is null";
    if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "model.keep: " + fault);
  }
  const auto paths = [&](uint32_t s) {
    return row_offsets == nullptr ? std::pair<uint32_t, uint32_t>(0, 0)
                                  : std::pair(row_offsets[s], row_offsets[s + 1]);
  };
  static const ModelSession kEmpty;
  for (uint32_t s = 0; s < n_seqs; ++s) {
    const auto found = handle->sessions.find(call->batch->seq_id[s]);
    const ModelSession& session = found == handle->sessions.end() ? kEmpty : found->second;
    const auto [begin, end] = paths(s);
    const auto length = static_cast<uint32_t>(session.kept);
    if (begin == end ? kept[s] > length : kept[s] != length) {
      return bad(s, "kept is " + std::to_string(kept[s]) + ", expected " +
                        (begin == end ? "at most " : "with rows exactly ") +
                        std::to_string(length));
    }
    int64_t previous = -1;
    for (uint32_t i = begin; i < end; ++i) {
      if (rows[i] >= static_cast<uint32_t>(session.n_rows()) ||
          session.parent[rows[i]] != previous) {
        return bad(s, "row " + std::to_string(rows[i]) + " of the round, which has " +
                          std::to_string(session.n_rows()) + ", is no child of row " +
                          std::to_string(previous));
      }
      previous = rows[i];
    }
  }
  std::vector<int32_t> from, to, path;
  for (uint32_t s = 0; s < n_seqs; ++s) {
    const auto found = handle->sessions.find(call->batch->seq_id[s]);
    if (found == handle->sessions.end()) continue;
    ModelSession& session = found->second;
    const auto [begin, end] = paths(s);
    path.clear();
    for (uint32_t i = begin; i < end; ++i) path.push_back(static_cast<int32_t>(rows[i]));
    plan_compaction(session.table, session.kept - 1, path, from, to);
    session.end_round(static_cast<int32_t>(kept[s]) + static_cast<int32_t>(path.size()));
  }
  move(*handle, from, to);
  return SPECD_OK;
}

void ModelService::move(specd_model& model, const std::vector<int32_t>& from,
                        const std::vector<int32_t>& to) {
  if (from.empty()) return;
  if (2 * Staging::bytes_of<int32_t>(from.size()) > staging_.room()) (void)wait();
  const Column<int32_t> sources = staging_.add(from), targets = staging_.add(to);
  staging_.upload();
  for (const kernels::KvLayer& layer : model.model->kv->layers()) {
    device_.ops().kv_move(device_.stream(), {.kv = layer,
                                             .from = sources.device,
                                             .to = targets.device,
                                             .n = static_cast<int32_t>(from.size())});
  }
}

// Of the pool, for so many rows.
static int32_t pages_missing(const specd_model& model, const ModelSession& session, int64_t rows) {
  const int32_t parts = model.model->kv->parts_per_page();
  const int32_t missing = pages_for(rows) - static_cast<int32_t>(session.table.pages.size());
  return missing <= 0 ? 0 : (missing + parts - 1) / parts;
}

bool ModelService::take_pages(specd_model& model, ModelSession& session, int64_t rows) {
  const int32_t parts = model.model->kv->parts_per_page();
  const int32_t n = pages_missing(model, session, rows);
  if (n <= 0) return true;
  const size_t first = session.pool_pages.size();
  const bool was_in_use = std::exchange(session.in_use, true);  // others' pages, not its own
  const bool taken =
      pool_.take(n, session.pool_pages) ||
      (reclaim(n - pool_.n_free()) > 0 && pool_.take(n, session.pool_pages));
  session.in_use = was_in_use;
  if (!taken) return false;
  for (size_t i = first; i < session.pool_pages.size(); ++i) {
    for (int32_t j = 0; j < parts; ++j) {
      session.table.pages.push_back(session.pool_pages[i] * parts + j);
    }
  }
  model.model->pages_held += n;
  return true;
}

specd_status ModelService::extend(specd_model& model, specd_call* call, uint32_t s,
                                  const int32_t* tokens, const int32_t* parents, uint32_t n) {
  const DraftModel& draft = *model.model;
  const auto fail = [&](specd_status status, const std::string& text) {
    report_text(call, static_cast<int32_t>(s), "model: " + text);
    return status;
  };
  for (uint32_t r = 0; tokens != nullptr && r < n; ++r) {
    if (tokens[r] >= 0 && tokens[r] < draft.config.vocab_size) continue;
    if (tokens[r] < 0 || tokens[r] >= draft.target_vocab_size) {
      return fail(SPECD_E_INVALID, "token " + std::to_string(tokens[r]) + ", expected " +
                                       range_of(draft.target_vocab_size));
    }
    return fail(SPECD_E_UNSUPPORTED,
                "token " + std::to_string(tokens[r]) +
                    " is not in the vocabulary of draft model '" + draft.name +
                    "', which ends at " + std::to_string(draft.config.vocab_size));
  }

  ModelSession& session = model.sessions[call->batch->seq_id[s]];
  const int32_t n_before = session.n_rows();
  const auto undo = [&](specd_status status, const std::string& text) {
    session.parent.resize(at(n_before));
    session.depth.resize(at(n_before));
    session.token.resize(at(n_before));
    if (session.pool_pages.empty()) model.sessions.erase(call->batch->seq_id[s]);
    return fail(status, text);
  };
  const int64_t rows_max = int64_t{draft.config.max_positions} + kTailMax;
  if (int64_t{n_before} + n > rows_max) {
    return undo(SPECD_E_INVALID, "a round of more than " + std::to_string(rows_max) + " rows");
  }
  for (uint32_t r = 0; r < n; ++r) {
    const int32_t row = session.n_rows();
    const int32_t parent = parents == nullptr ? row - 1 : parents[r];
    if (parent < -1 || parent >= row) {
      return undo(SPECD_E_INVALID, "row " + std::to_string(row) + " of the round has parent " +
                                       std::to_string(parent) + ", expected -1.." +
                                       std::to_string(row - 1));
    }
    const int32_t depth = parent < 0 ? 0 : session.depth[at(parent)] + 1;
    if (session.kept + depth >= draft.config.max_positions) {
      return undo(SPECD_E_UNSUPPORTED, "position " + std::to_string(session.kept + depth) +
                                           " is beyond the context of draft model '" + draft.name +
                                           "', " + std::to_string(draft.config.max_positions));
    }
    if (depth != row && depth >= kTailMax) {
      return undo(SPECD_E_INVALID, "more than " + std::to_string(kTailMax) +
                                       " rows between a branch and the last kept token");
    }
    session.parent.push_back(parent);
    session.depth.push_back(depth);
    session.token.push_back(tokens == nullptr ? -1 : tokens[r]);
  }
  const int64_t rows = int64_t{session.kept} + session.n_rows();
  if (!take_pages(model, session, rows)) {
    return undo(SPECD_E_EXHAUSTED, std::to_string(pages_missing(model, session, rows)) +
                                       " KV pages are needed, " + std::to_string(pool_.n_free()) +
                                       " are free");
  }
  session.in_use = true;
  session.last_step = call->batch->step_id;
  return SPECD_OK;
}

// ---- forwards --------------------------------------------------------------------------------

std::string ModelService::check(const specd_call& call, const DraftModel& draft,
                                const specd_forward_args* args) const {
  if (call.sampling == nullptr) return "the call has no sampling";
  if (args == nullptr || args->struct_size != sizeof(specd_forward_args)) {
    return "args of struct_size " + std::to_string(sizeof(specd_forward_args)) + " expected";
  }
  if (args->seq_status == nullptr) return "row_offsets or seq_status is null";
  const uint32_t most = args->row_offsets == nullptr ? call.batch->n_seqs : args->n_rows;
  if (args->n_rows > kRowsMax || args->n_outputs > most) {
    return std::to_string(args->n_rows) + " rows and " + std::to_string(args->n_outputs) +
           " outputs, expected at most " + std::to_string(kRowsMax) + " and " + std::to_string(most);
  }
  const bool device = on_device(*args);
  std::string fault = outputs_fault(*args, static_cast<int64_t>(draft.facts.info.vocab_size),
                                    device ? &device_ : nullptr);
  if (fault.empty() && !device && !device_.is_host() && args->out_topk_token != nullptr &&
      args->out_topk_token->shape[1] > static_cast<int64_t>(kTopKMax)) {
    fault = "out_topk_token has " + std::to_string(args->out_topk_token->shape[1]) +
            " columns, expected at most " + std::to_string(kTopKMax) + " in host memory beside " +
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
  std::string fault = check(*call, *handle->model, args);
  if (!fault.empty()) return bad(fault);
  if (args->row_offsets == nullptr) return bad("row_offsets or seq_status is null");
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
    args.seq_status[s] = extend(*handle, call, s, device ? nullptr : tokens.data(),
                                args.parent == nullptr ? nullptr : args.parent + begin, end - begin);
    const bool ok = args.seq_status[s] == SPECD_OK;
    const int32_t first =
        ok ? handle->sessions.at(call->batch->seq_id[s]).n_rows() - static_cast<int32_t>(end - begin)
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

void ModelService::trim(specd_model& model, ModelSession& session, std::span<const int32_t> text) {
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> path, from, to;
  for (int32_t row = 0; row < session.n_rows(); ++row) {
    const int32_t last = path.empty() ? -1 : path.back();
    const int32_t position = session.kept + static_cast<int32_t>(path.size());
    // The last token is fed in any case: what is asked for comes from its row.
    if (position >= length - 1) break;
    if (session.parent[at(row)] == last && session.token[at(row)] == text[at(position)]) {
      path.push_back(row);
    }
  }
  if (!path.empty()) plan_compaction(session.table, session.kept - 1, path, from, to);
  session.end_round(std::min(session.kept + static_cast<int32_t>(path.size()), length - 1));
  move(model, from, to);
}

int32_t ModelService::missing(const ModelSession& session, int32_t length) const {
  // Beside a device the same number of rows every time lets a graph be used again: the row before
  // is computed twice, with the same result.
  const int32_t n = length - session.kept;
  return n == 1 && session.kept > 0 && !device_.is_host() ? 2 : n;
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
  const bool repeatable = on_device(*args) && !device_.is_host() &&
                          args->out_token != nullptr && args->out_logits == nullptr;
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
    if (args->out_token != nullptr) noted->token = *args->out_token;
    record_->repeatable = record_->repeatable && repeatable;
  }
  return run_follow(handle, call, *args, noted);
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
    trim(*handle, session, text);
    const int32_t all = missing(session, length);
    const int32_t n = all <= kSteadyRows ? all : std::min(all, left);
    if (all > kSteadyRows) left -= n;
    session.kept -= all - (length - session.kept);
    if (noted != nullptr) noted->n_rows.push_back(static_cast<uint32_t>(n));
    if (n > 0) {
      args.seq_status[s] = extend(*handle, call, s, text.data() + session.kept, nullptr,
                                  static_cast<uint32_t>(n));
    } else if (session.pool_pages.empty()) {
      handle->sessions.erase(call->batch->seq_id[s]);
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
  for (ModelSession* session : fed) session->end_round(session->kept + session->n_rows());
  return status;
}


// All rows, in as many forwards as the limits of the model ask for.
specd_status ModelService::compute(const std::shared_ptr<specd_model>& model,
                                   const specd_call* call, const specd_forward_args& args,
                                   const std::vector<Row>& rows) {
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
  const Status failed = std::exchange(failed_, Status());
  if (failed.ok()) return SPECD_OK;
  return refuse(nullptr, SPECD_E_DEVICE, "model: " + failed.to_string());
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
  uint64_t bytes = ForwardRows::staging_bytes(rows_.n_rows(),
                                              static_cast<int64_t>(rows_.pages.size()),
                                              static_cast<int64_t>(rows_.tail.size())) +
                   Staging::bytes_of<kernels::DrawRow>(n_outputs) +
                   2 * Staging::bytes_of<int32_t>(from.size());
  if (through_host) bytes += 2 * Staging::bytes_of<int32_t>(n_outputs * (1 + n_top));
  if (bytes > staging_.room()) {
    failed_ = capturing_ ? Status(Code::kExhausted, "a step with too many rows for a graph") : wait();
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
  if (Staging::bytes_of<int32_t>(failed.size()) > staging_.room()) {
    failed_ = capturing_ ? Status(Code::kExhausted, "too many failed sequences") : wait();
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

// ---- the stream ------------------------------------------------------------------------------

void ModelService::passed() {
  for (const Unread& each : unread_) {
    const std::shared_ptr<specd_model> model = each.model.lock();
    if (model == nullptr) continue;
    const auto session = model->sessions.find(each.seq_id);
    if (session == model->sessions.end() || each.row >= session->second.n_rows()) continue;
    session->second.token[at(each.row)] = *each.token;
  }
  unread_.clear();
  staging_.clear();
}

Status ModelService::wait() {
  SPECD_OK_OR_RETURN(device_.synchronize());
  passed();
  return Status();
}

void ModelService::watch(ModelRecord* record, bool capturing) {
  record_ = record;
  capturing_ = capturing;
}

std::optional<std::vector<uint64_t>> ModelService::reserve(const ModelRecord& record,
                                                           specd_call& call) {
  if (!record.repeatable) return std::nullopt;
  std::vector<specd_model*> seen;
  std::vector<uint64_t> layout;
  for (const ModelRecord::Call& each : record.calls) {
    const std::shared_ptr<specd_model> model = each.model.lock();
    if (model == nullptr) return std::nullopt;
    if (std::find(seen.begin(), seen.end(), model.get()) == seen.end()) {
      seen.push_back(model.get());
      if (!each.follow || !reserve_model(record, each, model, call)) return std::nullopt;
    }
    uint64_t n_pages = 0;
    for (uint32_t s = 0; s < call.batch->n_seqs; ++s) {
      if (each.n_rows[s] == 0) continue;
      n_pages += model->sessions.at(call.batch->seq_id[s]).table.pages.size();
    }
    layout.push_back(std::bit_ceil(n_pages));
  }
  layout.push_back(staging_.used());
  return layout;
}

// All that `record` asks of one model, so that its later calls find their pages.
bool ModelService::reserve_model(const ModelRecord& record, const ModelRecord::Call& first,
                                 const std::shared_ptr<specd_model>& model, specd_call& call) {
  const ModelConfig& config = model->model->config;
  for (uint32_t s = 0; s < call.batch->n_seqs; ++s) {
    const auto found = model->sessions.find(call.batch->seq_id[s]);
    if (found == model->sessions.end()) return false;
    ModelSession& session = found->second;
    const std::span<const int32_t> text = (*call.committed)[s];
    trim(*model, session, text);
    const int32_t n = missing(session, static_cast<int32_t>(text.size()));
    if (n > kSteadyRows || static_cast<uint32_t>(n) != first.n_rows[s]) return false;
    for (const int32_t token : text.last(static_cast<size_t>(n))) {
      if (token >= config.vocab_size) return false;
    }
    auto rows = static_cast<int64_t>(text.size());
    for (const ModelRecord::Call& each : record.calls) {
      if (!each.follow && each.model.lock() == model) rows += each.n_rows[s];
    }
    if (rows > config.max_positions || !take_pages(*model, session, rows)) return false;
    session.last_step = call.batch->step_id;  // so that it is not reclaimed for its neighbours
  }
  return true;
}

void ModelService::repeat(const ModelRecord& record, specd_call& call) {
  repeating_ = true;
  std::vector<specd_status> status(call.batch->n_seqs);
  for (const ModelRecord::Call& each : record.calls) {
    specd_forward_args args{};
    args.seq_status = status.data();
    args.row_offsets = each.row_offsets.data();
    args.output_rows = each.output_rows.data();
    args.token_at = each.follow ? nullptr : each.token_at.data();
    args.n_outputs = each.n_outputs;
    args.token = each.follow ? nullptr : &each.token;
    args.out_token = &each.token;  // says where the call's tensors lie
    const std::shared_ptr<specd_model> model = each.model.lock();
    const specd_status done =
        each.follow ? run_follow(model, &call, args, nullptr) : run_forward(model, &call, args, true);
    SPECD_CHECK(done == SPECD_OK, "reserve() has made sure of it");
  }
  repeating_ = false;
}

}  // namespace specd
