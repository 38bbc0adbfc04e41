#include "core/draft/recorder.h"

#include <algorithm>
#include <bit>

#include "core/base/check.h"

namespace specd {

void DraftRecorder::watch(ModelRecord* record, bool capturing) {
  record_ = record;
  is_capturing_ = capturing;
  forward_.set_mode(capturing ? DraftForward::Mode::kCapture : DraftForward::Mode::kSubmit);
}

// ---- recording -------------------------------------------------------------------------------

ModelRecord::Call* DraftRecorder::note(const std::shared_ptr<DraftUse>& use,
                                       const DraftRequest& request) {
  if (record_ == nullptr) return nullptr;
  record_->repeatable = record_->repeatable && fits_graph(request);
  ModelRecord::Call& noted = record_->calls.emplace_back();
  noted.use = use;
  noted.output_rows.assign(request.output_rows.begin(), request.output_rows.end());
  return &noted;
}

Status DraftRecorder::forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                              const DraftRequest& request, std::span<Status> of) {
  if (ModelRecord::Call* noted = note(use, request); noted != nullptr) {
    noted->row_offsets.assign(request.row_offsets.begin(), request.row_offsets.end());
    for (size_t s = 0; s < batch.seq_id.size(); ++s) {
      noted->n_rows.push_back(request.row_offsets[s + 1] - request.row_offsets[s]);
    }
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
  if (noted != nullptr) noted->follow = true;
  Status status =
      feed_.follow(use, batch, request, of, noted == nullptr ? nullptr : &noted->n_rows);
  if (!forward_.was_in_one_piece()) note_unrepeatable();
  return status;
}

// ---- repeating -------------------------------------------------------------------------------

std::optional<std::vector<uint64_t>> DraftRecorder::reserve(const ModelRecord& record,
                                                            const DraftBatch& batch) {
  if (!record.repeatable) return std::nullopt;
  sessions_.protect(batch.step_id);  // one sequence's reserved pages are not reclaimed for another
  std::vector<DraftUse*> seen;
  std::vector<uint64_t> layout;
  for (const ModelRecord::Call& each : record.calls) {
    const std::shared_ptr<DraftUse> use = each.use.lock();
    if (use == nullptr) return std::nullopt;
    if (std::find(seen.begin(), seen.end(), use.get()) == seen.end()) {
      seen.push_back(use.get());
      if (!each.follow || !reserve_model(record, each, *use, batch)) return std::nullopt;
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
  }
  layout.push_back(forward_.columns_used());
  if (forward_.has_failed()) return std::nullopt;  // the drafter's next call returns the error
  return layout;
}

// Takes the pages that all calls of `record` to one model need.
bool DraftRecorder::reserve_model(const ModelRecord& record, const ModelRecord::Call& first,
                                  DraftUse& use, const DraftBatch& batch) {
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
      if (!each.follow && each.use.lock().get() == &use) rows += each.n_rows[s];
    }
    if (rows > config.max_positions || !sessions_.take_pages(use, session, rows)) return false;
    session.last_step = batch.step_id;
  }
  return true;
}

void DraftRecorder::repeat(const ModelRecord& record, const DraftBatch& batch) {
  forward_.set_mode(DraftForward::Mode::kRepeat);
  std::vector<Status> of(batch.seq_id.size());
  for (const ModelRecord::Call& each : record.calls) {
    DraftRequest request;
    request.row_offsets = each.row_offsets;
    request.output_rows = each.output_rows;
    request.token_at = each.token_at.data();
    request.token.stride = each.token_stride;
    request.outputs.on_device = true;
    const std::shared_ptr<DraftUse> use = each.use.lock();
    const Status done = each.follow ? feed_.follow(use, batch, request, of, nullptr)
                                    : feed_.forward(use, batch, request, of);
    SPECD_CHECK(done.ok(), "reserve() guarantees success");
  }
  forward_.set_mode(DraftForward::Mode::kSubmit);
}

}  // namespace specd
