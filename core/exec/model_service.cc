#include "core/exec/model_service.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/clock.h"
#include "core/exec/model_limits.h"

namespace specd {

void ModelService::add(std::unique_ptr<DraftModel> model) {
  if (model->transformer != nullptr) {
    // One forward: rows, the tables of all its sequences, tails, draws and outputs.
    const int64_t rows = model->rows_max, outputs = model->outputs_max;
    const auto n = static_cast<size_t>(outputs);
    const uint64_t bytes =
        ForwardRows::staging_bytes(rows, std::min(rows, outputs) * table_max(*model),
                                   tail_max(*model)) +
        Staging::bytes_of<kernels::DrawRow>(n) +
        2 * Staging::bytes_of<int32_t>(at(model->rows_max)) +
        4 * Staging::bytes_of<int32_t>(n * kTopKMax);
    if (bytes > block_bytes_) {
      Result<Staging> made = Staging::create(device_, kBlocks * bytes, "columns of draft models");
      if (made.ok()) {
        block_bytes_ = bytes;
        staging_ = std::move(made).value();
      } else {
        model->status = made.status();
      }
    }
  }
  models_.push_back(std::move(model));
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
  return told(call);
}

void ModelService::move(specd_model& model, const std::vector<int32_t>& from,
                        const std::vector<int32_t>& to) {
  if (from.empty()) return;
  if (2 * Staging::bytes_of<int32_t>(from.size()) > staging_.room()) {
    failed_ = capturing_ ? Status(Code::kExhausted, "moves without room in a graph") : wait();
  }
  if (!failed_.ok()) return;
  model.model->kv->move(device_, staging_, from, to);
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
  const bool taken = pool_.take(n, session.pool_pages) ||
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
    return fail(SPECD_E_UNSUPPORTED, "token " + std::to_string(tokens[r]) +
                                         " is not in the vocabulary of draft model '" + draft.name +
                                         "', which ends at " +
                                         std::to_string(draft.config.vocab_size));
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

specd_status ModelService::told(specd_call* call) {
  const Status failed = std::exchange(failed_, Status());
  if (failed.ok()) return SPECD_OK;
  return refuse(call, failed.code() == Code::kExhausted ? SPECD_E_EXHAUSTED : SPECD_E_DEVICE,
                "model: " + failed.to_string());
}

Status ModelService::wait() {
  SPECD_OK_OR_RETURN(device_.synchronize());
  passed();
  return Status();
}

void ModelService::step_is_over() { forward_step_ = 0; }

void ModelService::watch(ModelRecord* record, bool capturing) {
  record_ = record;
  capturing_ = capturing;
}

std::optional<std::vector<uint64_t>> ModelService::reserve(const ModelRecord& record,
                                                           specd_call& call) {
  if (!record.repeatable) return std::nullopt;
  forward_step_ = call.batch->step_id;  // what is reserved is not reclaimed for its neighbours
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
      layout.push_back(each.n_rows[s]);
      if (each.n_rows[s] == 0) continue;
      const auto session = model->sessions.find(call.batch->seq_id[s]);
      if (session == model->sessions.end()) return std::nullopt;
      n_pages += session->second.table.pages.size();
    }
    layout.push_back(std::bit_ceil(n_pages));
  }
  layout.push_back(staging_.used());
  if (!failed_.ok()) return std::nullopt;  // the next call that is made tells it
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
    session.last_step = call.batch->step_id;
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
    const specd_status done = each.follow ? run_follow(model, &call, args, nullptr)
                                          : run_forward(model, &call, args, true);
    SPECD_CHECK(done == SPECD_OK, "reserve() has made sure of it");
  }
  repeating_ = false;
}

}  // namespace specd
