#include "core/draft/recorder.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace specd {

void DraftRecorder::watch(ModelRecord* record, bool capturing) {
  record_ = record;
  is_capturing_ = capturing;
  const auto mode = capturing ? DraftForward::Mode::kCapture : DraftForward::Mode::kSubmit;
  forward_.set_mode(mode);
  kv_feed_.set_mode(mode, record != nullptr);
}

// ---- recording -------------------------------------------------------------------------------

ModelRecord::Call* DraftRecorder::note(const std::shared_ptr<DraftUse>& use,
                                       const DraftRequest& request) {
  if (record_ == nullptr) return nullptr;
  record_->repeatable = record_->repeatable && fits_graph(request);
  ModelRecord::Call& noted = record_->calls.emplace_back();
  noted.use = use;
  noted.output_rows.assign(request.output_rows.begin(), request.output_rows.end());
  noted.purpose = request.outputs.purpose;
  return &noted;
}

namespace {

void note_offsets(ModelRecord::Call& noted, std::span<const uint32_t> row_offsets) {
  noted.row_offsets.assign(row_offsets.begin(), row_offsets.end());
  for (size_t s = 0; s + 1 < row_offsets.size(); ++s) {
    noted.n_rows.push_back(row_offsets[s + 1] - row_offsets[s]);
  }
}

}  // namespace

Status DraftRecorder::forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                              const DraftRequest& request, std::span<Status> of) {
  if (ModelRecord::Call* noted = note(use, request); noted != nullptr) {
    note_offsets(*noted, request.row_offsets);
    for (uint32_t r = 0; r < request.row_offsets.back(); ++r) {
      noted->token_at.push_back(request.token_at == nullptr ? r : request.token_at[r]);
    }
    noted->token_stride = request.token.stride;
  }
  Status status = feed_.forward(use, batch, request, of);
  if (!forward_.was_in_one_piece()) note_unrepeatable();
  return status;
}

Status DraftRecorder::follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                             const DraftRequest& request, std::span<Status> of) {
  ModelRecord::Call* noted = note(use, request);
  if (noted != nullptr) noted->kind = ModelRecord::Call::Kind::kFollow;
  Status status =
      feed_.follow(use, batch, request, of, noted == nullptr ? nullptr : &noted->n_rows);
  if (!forward_.was_in_one_piece()) note_unrepeatable();
  return status;
}

Status DraftRecorder::rows(const std::shared_ptr<KvUse>& use, const DraftBatch& batch,
                           const KvRequest& request, std::span<Status> of) {
  if (record_ != nullptr) {
    ModelRecord::Call& noted = record_->calls.emplace_back();
    noted.kind = ModelRecord::Call::Kind::kRows;
    noted.use = use;
    note_offsets(noted, request.row_offsets);
    noted.output_rows.assign(request.query_rows.begin(), request.query_rows.end());
    noted.is_block = request.is_block;
    if (request.parent != nullptr) {
      noted.parent.assign(request.parent, request.parent + request.row_offsets.back());
    }
  }
  Status status = kv_feed_.rows(use, batch, request, of);
  if (record_ != nullptr) record_->calls.back().n_tail = kv_feed_.n_tail();
  return status;
}

Result<const kernels::DrawRow*> DraftRecorder::draws(const DraftBatch& batch) {
  if (record_ != nullptr) {
    ModelRecord::Call& noted = record_->calls.emplace_back();
    noted.kind = ModelRecord::Call::Kind::kDraws;
  }
  return kv_feed_.draws(batch);
}

// ---- repeating -------------------------------------------------------------------------------

std::optional<std::vector<uint64_t>> DraftRecorder::reserve(const ModelRecord& record,
                                                            const DraftBatch& batch) {
  if (!record.repeatable) return std::nullopt;
  sessions_.protect(batch.step_id);  // one sequence's reserved pages are not reclaimed for another
  std::vector<DraftUse*> seen;
  std::vector<uint64_t> layout;
  uint64_t bytes = 0;  // of the columns of KvFeed
  for (const ModelRecord::Call& each : record.calls) {
    if (each.kind == ModelRecord::Call::Kind::kDraws) {
      bytes += Staging::bytes_of<kernels::DrawRow>(batch.seq_id.size());
      continue;
    }
    const std::shared_ptr<DraftUse> use = each.use.lock();
    if (use == nullptr) return std::nullopt;
    if (std::find(seen.begin(), seen.end(), use.get()) == seen.end()) {
      seen.push_back(use.get());
      const bool is_reserved = each.kind == ModelRecord::Call::Kind::kRows
                                   ? reserve_rows(record, *use, batch)
                                   : reserve_model(record, each, *use, batch);
      if (!is_reserved) return std::nullopt;
    }
    uint64_t n_pages = 0;
    for (size_t s = 0; s < batch.seq_id.size(); ++s) {
      layout.push_back(each.n_rows[s]);
      if (each.n_rows[s] == 0) continue;
      const auto session = use->sessions.find(batch.seq_id[s]);
      if (session == use->sessions.end()) return std::nullopt;
      n_pages += session->second.table.pages.size();
    }
    layout.push_back(std::bit_ceil(n_pages));
    if (each.kind == ModelRecord::Call::Kind::kRows) {
      bytes +=
          KvFeed::rows_bytes(each.row_offsets.back(), static_cast<int64_t>(n_pages), each.n_tail);
    }
  }
  if (!kv_feed_.promise(bytes)) return std::nullopt;
  layout.push_back(kv_feed_.layout());
  layout.push_back(forward_.columns_used());
  if (forward_.has_failed()) return std::nullopt;  // the drafter's next call returns the error
  return layout;
}

// Takes the pages that all calls of `record` to one model need.
bool DraftRecorder::reserve_model(const ModelRecord& record, const ModelRecord::Call& first,
                                  DraftUse& use, const DraftBatch& batch) {
  if (first.kind != ModelRecord::Call::Kind::kFollow) return false;
  const ModelConfig& config = use.model->config;
  for (size_t s = 0; s < batch.seq_id.size(); ++s) {
    const auto found = use.sessions.find(batch.seq_id[s]);
    if (found == use.sessions.end()) return false;
    DraftSession& session = found->second;
    const std::span<const int32_t> text = batch.text[s];
    const int32_t n = feed_.trim(use, session, text);
    if (n > kSteadyRows || static_cast<uint32_t>(n) != first.n_rows[s]) return false;
    for (const int32_t token : text.last(to_size(n))) {
      if (token >= config.vocab_size) return false;
    }
    auto rows = static_cast<int64_t>(text.size());
    for (const ModelRecord::Call& each : record.calls) {
      const bool is_forward = each.kind == ModelRecord::Call::Kind::kForward;
      if (is_forward && each.use.lock().get() == &use) rows += each.n_rows[s];
    }
    if (rows > use.kv->positions_max || !sessions_.take_pages(use, session, rows)) return false;
    session.last_step = batch.step_id;
  }
  return true;
}

// Takes the pages for all rows of `record` in one KV.
bool DraftRecorder::reserve_rows(const ModelRecord& record, DraftUse& use,
                                 const DraftBatch& batch) {
  for (size_t s = 0; s < batch.seq_id.size(); ++s) {
    int64_t rows = 0;
    for (const ModelRecord::Call& each : record.calls) {
      if (each.use.lock().get() == &use) rows += each.n_rows[s];
    }
    if (rows == 0) continue;
    const auto found = use.sessions.find(batch.seq_id[s]);
    // Rows of an earlier round would be ancestors of these.
    if (found == use.sessions.end() || found->second.n_rows() > 0) return false;
    DraftSession& session = found->second;
    rows += session.kept;
    if (rows > use.kv->positions_max || !sessions_.take_pages(use, session, rows)) return false;
    session.last_step = batch.step_id;
  }
  return true;
}

Status DraftRecorder::repeat_call(const ModelRecord::Call& call, const DraftBatch& batch,
                                  std::span<Status> of) {
  if (call.kind == ModelRecord::Call::Kind::kDraws) return kv_feed_.draws(batch).status();
  const std::shared_ptr<DraftUse> use = call.use.lock();
  if (call.kind == ModelRecord::Call::Kind::kRows) {
    return kv_feed_.rows(std::static_pointer_cast<KvUse>(use), batch,
                         {.row_offsets = call.row_offsets,
                          .parent = call.parent.empty() ? nullptr : call.parent.data(),
                          .query_rows = call.output_rows,
                          .is_block = call.is_block},
                         of);
  }
  DraftRequest request;
  request.row_offsets = call.row_offsets;
  request.output_rows = call.output_rows;
  request.token_at = call.token_at.data();
  request.token.stride = call.token_stride;
  request.outputs.on_device = true;
  request.outputs.purpose = call.purpose;
  return call.kind == ModelRecord::Call::Kind::kFollow
             ? feed_.follow(use, batch, request, of, nullptr)
             : feed_.forward(use, batch, request, of);
}

void DraftRecorder::repeat(const ModelRecord& record, const DraftBatch& batch) {
  forward_.set_mode(DraftForward::Mode::kRepeat);
  kv_feed_.set_mode(DraftForward::Mode::kRepeat, true);
  std::vector<Status> of(batch.seq_id.size());
  for (const ModelRecord::Call& each : record.calls) {
    SPECD_CHECK(repeat_call(each, batch, of).ok(), "reserve() guarantees success");
  }
  forward_.set_mode(DraftForward::Mode::kSubmit);
  kv_feed_.set_mode(DraftForward::Mode::kSubmit, false);
}

}  // namespace specd
