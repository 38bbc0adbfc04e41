#include "core/exec/model_service.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>

#include "core/base/clock.h"
#include "core/exec/service_arguments.h"
#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

constexpr uint32_t kRowsMax = 1u << 24;  // of one call; keeps sums inside 32 bits
constexpr int32_t kTailMax = SPECD_MAX_TREE_NODES;
constexpr size_t kNameBytesMax = 256;

size_t at(int32_t i) { return static_cast<size_t>(i); }

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

std::string outputs_fault(const specd_forward_args& args, int64_t vocab) {
  const auto n = static_cast<int64_t>(args.n_outputs);
  const auto check = [&](const char* name, const specd_tensor* tensor, uint8_t dtype_code,
                         uint32_t rank) {
    if (tensor == nullptr) return std::string();
    std::string fault = tensor_fault(name, tensor, dtype_code, rank);
    if (fault.empty() && tensor->shape[0] != n) {
      fault = std::string(name) + " has " + std::to_string(tensor->shape[0]) +
              " rows, expected n_outputs " + std::to_string(n);
    }
    return fault;
  };
  std::string fault = check("out_token", args.out_token, SPECD_DT_INT, 1);
  if (fault.empty()) fault = check("out_logprob", args.out_logprob, SPECD_DT_FLOAT, 1);
  if (fault.empty()) fault = check("out_topk_token", args.out_topk_token, SPECD_DT_INT, 2);
  if (fault.empty()) fault = check("out_topk_logprob", args.out_topk_logprob, SPECD_DT_FLOAT, 2);
  if (fault.empty()) fault = check("out_logits", args.out_logits, SPECD_DT_FLOAT, 2);
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
  if (n == 0) return std::string();
  if (args.output_rows == nullptr) return "output_rows is null";
  for (uint32_t i = 0; i < args.n_outputs; ++i) {
    const uint32_t row = args.output_rows[i];
    if (row >= args.n_rows || (i > 0 && row <= args.output_rows[i - 1])) {
      return "output_rows[" + std::to_string(i) + "] is " + std::to_string(row) +
             ", expected increasing numbers of " + range_of(args.n_rows);
    }
  }
  return std::string();
}

// log(sum(exp(logits))), NaN or infinite when they are not finite numbers.
double log_sum_exp(const float* logits, int64_t n) {
  const double top = *std::max_element(logits, logits + n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(logits[i]) - top);
  return top + std::log(sum);
}

// The k most likely, lower id first among equals.
std::vector<int32_t> top_k(const float* logits, int64_t n, int64_t k) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  // A NaN would break the order.
  const auto value = [&](int32_t id) {
    return std::isnan(logits[id]) ? -std::numeric_limits<float>::infinity() : logits[id];
  };
  std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [&](int32_t a, int32_t b) {
    return value(a) != value(b) ? value(a) > value(b) : a < b;
  });
  ids.resize(static_cast<size_t>(k));
  return ids;
}

}  // namespace

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
    session.kept = static_cast<int32_t>(kept[s]) + static_cast<int32_t>(path.size());
    session.parent.clear();
    session.depth.clear();
  }
  if (from.empty()) return SPECD_OK;
  for (const kernels::KvLayer& layer : handle->model->kv->layers()) {
    device_.ops().kv_move(device_.stream(), {.kv = layer,
                                             .from = from.data(),
                                             .to = to.data(),
                                             .n = static_cast<int32_t>(from.size())});
  }
  return SPECD_OK;
}

// Checks the rows of sequence `s` and gives them their places; on error nothing has changed.
specd_status ModelService::extend(specd_model& model, specd_call* call, uint32_t s,
                                  const specd_forward_args& args) {
  const DraftModel& draft = *model.model;
  const auto fail = [&](specd_status status, const std::string& text) {
    report_text(call, static_cast<int32_t>(s), "model.forward: " + text);
    return status;
  };
  const uint32_t begin = args.row_offsets[s], end = args.row_offsets[s + 1];
  for (uint32_t r = begin; r < end; ++r) {
    const int32_t token = element(*args.token, r);
    if (token >= 0 && token < draft.config.vocab_size) continue;
    if (token < 0 || token >= draft.target_vocab_size) {
      return fail(SPECD_E_INVALID, "token " + std::to_string(token) + ", expected " +
                                       range_of(draft.target_vocab_size));
    }
    return fail(SPECD_E_UNSUPPORTED,
                "token " + std::to_string(token) + " is not in the vocabulary of draft model '" +
                    draft.name + "', which ends at " + std::to_string(draft.config.vocab_size));
  }

  ModelSession& session = model.sessions[call->batch->seq_id[s]];
  const int32_t n_before = session.n_rows();
  const auto undo = [&](specd_status status, const std::string& text) {
    session.parent.resize(at(n_before));
    session.depth.resize(at(n_before));
    if (session.pool_pages.empty()) model.sessions.erase(call->batch->seq_id[s]);
    return fail(status, text);
  };
  const int64_t rows_max = int64_t{draft.config.max_positions} + kTailMax;
  if (int64_t{n_before} + (end - begin) > rows_max) {
    return undo(SPECD_E_INVALID, "a round of more than " + std::to_string(rows_max) + " rows");
  }
  for (uint32_t r = begin; r < end; ++r) {
    const int32_t row = session.n_rows();
    const int32_t parent = args.parent == nullptr ? row - 1 : args.parent[r];
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
  }

  const int32_t parts = draft.kv->parts_per_page();
  const auto own_pages = static_cast<int32_t>(session.table.pages.size());
  const int32_t missing = pages_for(int64_t{session.kept} + session.n_rows()) - own_pages;
  if (missing > 0) {
    const size_t first = session.pool_pages.size();
    const int32_t n = (missing + parts - 1) / parts;
    session.in_use = true;  // pages may be taken from other sessions, not from this one
    if (!pool_.take(n, session.pool_pages) &&
        (reclaim(n - pool_.n_free()) == 0 || !pool_.take(n, session.pool_pages))) {
      session.in_use = false;
      return undo(SPECD_E_EXHAUSTED, std::to_string(n) + " KV pages are needed, " +
                                         std::to_string(pool_.n_free()) + " are free");
    }
    for (size_t i = first; i < session.pool_pages.size(); ++i) {
      for (int32_t j = 0; j < parts; ++j) {
        session.table.pages.push_back(session.pool_pages[i] * parts + j);
      }
    }
    model.model->pages_held += n;
  }
  session.in_use = true;
  session.last_step = call->batch->step_id;
  return SPECD_OK;
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
  if (call->sampling == nullptr) return bad("the call has no sampling");
  if (args == nullptr || args->struct_size != sizeof(specd_forward_args)) {
    return bad("args of struct_size " + std::to_string(sizeof(specd_forward_args)) + " expected");
  }
  if (args->row_offsets == nullptr || args->seq_status == nullptr) {
    return bad("row_offsets or seq_status is null");
  }
  if (args->n_rows > kRowsMax || args->n_outputs > args->n_rows) {
    return bad(std::to_string(args->n_rows) + " rows and " + std::to_string(args->n_outputs) +
               " outputs, expected at most " + std::to_string(kRowsMax) +
               " and no more outputs than rows");
  }
  std::string fault = offsets_fault(args->row_offsets, n_seqs, args->n_rows);
  if (fault.empty()) fault = tensor_fault("token", args->token, SPECD_DT_INT, 1);
  if (fault.empty() && args->token->shape[0] != static_cast<int64_t>(args->n_rows)) {
    fault = "token has " + std::to_string(args->token->shape[0]) + " entries, expected n_rows " +
            std::to_string(args->n_rows);
  }
  if (fault.empty()) {
    fault = outputs_fault(*args, static_cast<int64_t>(handle->model->facts.info.vocab_size));
  }
  if (!fault.empty()) return bad(fault);

  forward_step_ = call->batch->step_id;
  for (uint32_t s = 0; s < n_seqs; ++s) {
    args->seq_status[s] = SPECD_OK;
    if (args->row_offsets[s] == args->row_offsets[s + 1]) continue;
    args->seq_status[s] = extend(*handle, call, s, *args);
  }
  compute(*handle, call, *args);
  for (uint32_t s = 0; s < n_seqs; ++s) {
    const auto session = handle->sessions.find(call->batch->seq_id[s]);
    if (session != handle->sessions.end()) session->second.in_use = false;
  }
  forward_step_ = 0;
  return SPECD_OK;
}

// All rows of the sequences that are well, in as many forwards as the limits of the model ask for.
void ModelService::compute(specd_model& model, const specd_call* call,
                           const specd_forward_args& args) {
  const DraftModel& draft = *model.model;
  uint32_t output = 0;
  rows_.clear();
  outputs_.clear();
  for (uint32_t s = 0; s < call->batch->n_seqs; ++s) {
    const uint32_t begin = args.row_offsets[s], end = args.row_offsets[s + 1];
    if (args.seq_status[s] != SPECD_OK) {
      for (; output < args.n_outputs && args.output_rows[output] < end; ++output) {
        if (args.out_token != nullptr) *row<int32_t>(*args.out_token, output) = -1;
      }
      continue;
    }
    if (begin == end) continue;
    const ModelSession& session = model.sessions.at(call->batch->seq_id[s]);
    const int32_t first = session.n_rows() - static_cast<int32_t>(end - begin);
    bool tabled = false;
    int32_t table = 0;
    for (uint32_t r = begin; r < end; ++r) {
      if (rows_.n_rows() == draft.rows_max ||
          outputs_.size() == static_cast<size_t>(draft.outputs_max)) {
        flush(model, call, args);
        tabled = false;
      }
      if (!tabled) {
        table = static_cast<int32_t>(rows_.pages.size());
        rows_.pages.insert(rows_.pages.end(), session.table.pages.begin(),
                           session.table.pages.end());
        tabled = true;
      }
      const int32_t mine = first + static_cast<int32_t>(r - begin);
      const int32_t position = session.kept + session.depth[at(mine)];
      const bool in_place = session.in_place(mine);
      rows_.token.push_back(element(*args.token, r));
      rows_.position.push_back(position);
      rows_.slot.push_back(session.table.physical(session.kept + mine));
      rows_.span.push_back(in_place ? position + 1 : session.kept);
      rows_.table.push_back(table);
      const auto tail = static_cast<ptrdiff_t>(rows_.tail.size());
      rows_.tail_begin.push_back(static_cast<int32_t>(tail));
      if (!in_place) {
        for (int32_t each = mine; each >= 0; each = session.parent[at(each)]) {
          rows_.tail.push_back(session.table.physical(session.kept + each));
        }
        std::reverse(rows_.tail.begin() + tail, rows_.tail.end());
      }
      if (output < args.n_outputs && args.output_rows[output] == r) {
        rows_.logits_rows.push_back(rows_.n_rows() - 1);
        outputs_.push_back({output++, s});
      }
    }
  }
  flush(model, call, args);
}

// One forward over the rows gathered so far, and its outputs.
void ModelService::flush(specd_model& model, const specd_call* call,
                         const specd_forward_args& args) {
  if (rows_.n_rows() == 0) return;
  DraftModel& draft = *model.model;
  const uint64_t start = now_ns();
  draft.transformer->forward(rows_, *draft.kv);

  const int64_t vocab = static_cast<int64_t>(draft.facts.info.vocab_size);
  const int64_t width = draft.config.vocab_size;
  const auto n = static_cast<int64_t>(outputs_.size());
  const float* logits = draft.transformer->logits();
  if (vocab != width) {  // ids that the target lacks are cut off
    cut_logits_.resize(static_cast<size_t>(n * vocab));
    for (int64_t i = 0; i < n; ++i) {
      std::copy_n(logits + i * width, vocab, cut_logits_.begin() + i * vocab);
    }
    logits = cut_logits_.data();
  }
  drawn_.assign(outputs_.size(), -1);
  if (args.out_token != nullptr && n > 0) {
    draw_rows_.clear();
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const specd_sampling& sampling = *call->sampling[outputs_[i].sequence];
      draw_rows_.push_back({.temperature = sampling.temperature,
                            .top_p = sampling.top_p,
                            .top_k = sampling.top_k,
                            .position = rows_.position[at(rows_.logits_rows[i])] + 1,
                            .seed = sampling.seed,
                            .greedy = (sampling.flags & SPECD_SAMPLE_GREEDY) != 0});
    }
    device_.ops().draw(device_.stream(), {.logits = logits,
                                          .row = draw_rows_.data(),
                                          .token = drawn_.data(),
                                          .n_rows = static_cast<int32_t>(n),
                                          .vocab = static_cast<int32_t>(vocab)});
  }
  const bool wants_sum = args.out_logprob != nullptr || args.out_topk_logprob != nullptr;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t index = outputs_[static_cast<size_t>(i)].index;
    const int32_t token = drawn_[static_cast<size_t>(i)];
    const float* mine = logits + i * vocab;
    if (args.out_token != nullptr) *row<int32_t>(*args.out_token, index) = token;
    if (args.out_token != nullptr && token < 0) continue;
    if (args.out_logits != nullptr) std::copy_n(mine, vocab, row<float>(*args.out_logits, index));
    const double total = wants_sum ? log_sum_exp(mine, vocab) : 0;
    if (args.out_logprob != nullptr) {
      *row<float>(*args.out_logprob, index) = static_cast<float>(mine[token] - total);
    }
    if (args.out_topk_token == nullptr) continue;
    const std::vector<int32_t> top = top_k(mine, vocab, args.out_topk_token->shape[1]);
    std::copy(top.begin(), top.end(), row<int32_t>(*args.out_topk_token, index));
    if (args.out_topk_logprob == nullptr) continue;
    for (size_t j = 0; j < top.size(); ++j) {
      row<float>(*args.out_topk_logprob, index)[j] = static_cast<float>(mine[top[j]] - total);
    }
  }
  draft.forward_ns += now_ns() - start;
  draft.rows += static_cast<uint64_t>(rows_.n_rows());
  ++draft.forwards;
  rows_.clear();
  outputs_.clear();
}

}  // namespace specd
