#include "core/draft/kv_feed.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/base/check.h"
#include "core/base/to_size.h"
#include "core/draft/columns.h"

namespace specd {
namespace {

constexpr uint64_t kFirstBytes = uint64_t{1} << 18;  // of columns; grows with the calls

// A row that is not kept and sees nothing.
void add_absent_row(ForwardRows& rows) {
  rows.token.push_back(0);
  rows.position.push_back(-1);
  rows.slot.push_back(-1);
  rows.span.push_back(0);
  rows.table.push_back(0);
  rows.tail_begin.push_back(0);
}

}  // namespace

void KvFeed::open(const std::shared_ptr<KvUse>& use) { sessions_.open(use); }

void KvFeed::enter(uint64_t serial) {
  if (serial == serial_) return;
  for (const std::weak_ptr<KvUse>& each : used_) {
    if (const std::shared_ptr<KvUse> use = each.lock(); use != nullptr) {
      sessions_.forward_is_over(*use);
    }
  }
  used_.clear();
  draws_ = nullptr;
  serial_ = serial;
  if (device_.is_host()) passed();
}

void KvFeed::hold(const std::shared_ptr<KvUse>& use, std::span<const uint64_t> seq_id) {
  used_.push_back(use);
  for (const uint64_t each : seq_id) DraftSessions::hold(*use, each);
}

uint64_t KvFeed::rows_bytes(int64_t rows, int64_t pages, int64_t tail) {
  return ForwardRows::staging_bytes(rows, pages, tail) +
         5 * Staging::bytes_of<int32_t>(to_size(rows));
}

bool KvFeed::promise(uint64_t bytes) {
  if (promised_ + bytes > recorded_.room()) return false;
  promised_ += bytes;
  return true;
}

void KvFeed::passed() {
  promised_ = 0;
  others_.clear();
  if (recorded_.clear()) ++generation_;
}

// Makes the staging, and refuses what a graph could not repeat.
Status KvFeed::make_room(uint64_t bytes) {
  if (bytes <= staging_->room()) return Status();
  SPECD_CHECK(mode_ != DraftForward::Mode::kRepeat, "a captured call had room for its columns");
  if (mode_ == DraftForward::Mode::kCapture) {
    return Status(Code::kExhausted, "too many rows for a graph");
  }
  if (staging_->room() == 0 && staging_->used() == 0) {
    SPECD_TRY(*staging_, Staging::create(device_, std::max(bytes, kFirstBytes), "columns of rows"));
  }
  return Status();
}

Status KvFeed::rows(const std::shared_ptr<KvUse>& use, const DraftBatch& batch,
                    const KvRequest& request, std::span<Status> of) {
  hold(use, batch.seq_id);  // one sequence's pages are not reclaimed for another of the call
  sessions_.protect(batch.step_id);
  use->serial = 0;
  rows_.clear();
  const auto n_seqs = static_cast<uint32_t>(batch.seq_id.size());
  for (uint32_t s = 0; s < n_seqs; ++s) {
    const uint32_t begin = request.row_offsets[s], n = request.row_offsets[s + 1] - begin;
    of[s] = Status();
    if (n == 0) continue;
    const int32_t* parent = request.parent == nullptr ? nullptr : request.parent + begin;
    of[s] = sessions_.extend(*use, batch.seq_id[s], nullptr, parent, n);
    if (!of[s].ok()) {
      for (uint32_t r = 0; r < n; ++r) add_absent_row(rows_);
      continue;
    }
    const DraftSession& session = use->sessions.at(batch.seq_id[s]);
    const auto table = static_cast<int32_t>(rows_.pages.size());
    rows_.pages.insert(rows_.pages.end(), session.table.pages.begin(), session.table.pages.end());
    const int32_t first = session.n_rows() - static_cast<int32_t>(n);
    for (int32_t r = first; r < session.n_rows(); ++r) add_session_row(session, r, table, rows_);
  }
  sessions_.unprotect();
  n_tail_ = static_cast<int64_t>(rows_.tail.size());
  Status staged =
      make_room(rows_bytes(rows_.n_rows(), static_cast<int64_t>(rows_.pages.size()), n_tail_));
  if (staged.ok()) {
    stage(*use, request);
    staged = staging_->status();
  }
  if (!staged.ok()) {
    for (uint32_t s = 0; s < n_seqs; ++s) {
      if (request.row_offsets[s] < request.row_offsets[s + 1])
        sessions_.release(*use, batch.seq_id[s]);
    }
    return staged;
  }
  use->serial = serial_;
  if (mode_ == DraftForward::Mode::kRepeat) return Status();
  staging_->upload();
  const kernels::KvLayer& layer = use->kv->store->layers().front();
  device_.ops().rope_table(device_.stream(), {.position = use->columns.position,
                                              .inv_freq = use->inv_freq.as<float>(),
                                              .cos_sin = use->cos_sin.as<float>(),
                                              .n_rows = use->columns.n_rows,
                                              .head_dim = layer.head_dim,
                                              .scale = use->rope_scale});
  return Status();
}

// Adds the columns of rows_ to the staging.
void KvFeed::stage(KvUse& use, const KvRequest& request) {
  std::vector<int32_t> position = rows_.position;
  if (request.is_block) {
    // Every row sees what the last one of its sequence sees.
    for (size_t s = 0; s + 1 < request.row_offsets.size(); ++s) {
      const uint32_t begin = request.row_offsets[s], end = request.row_offsets[s + 1];
      for (uint32_t r = begin; r < end; ++r) {
        rows_.position[r] = rows_.position[end - 1];
        rows_.span[r] = rows_.span[end - 1];
        rows_.tail_begin[r] = rows_.tail_begin[end - 1];
      }
    }
  }
  const ForwardColumns all = rows_.stage(*staging_);
  KvColumns& columns = use.columns;
  columns = {.n_rows = all.n_rows,
             .n_queries = static_cast<int32_t>(request.query_rows.size()),
             .position = request.is_block ? staging_->add(position).device : all.position,
             .slot = all.slot,
             .pages = all.pages,
             .tail = all.tail,
             .rows = {all.position, all.span, all.table, all.tail_begin},
             .queries = {}};
  const auto picked = [&](const std::vector<int32_t>& column) {
    const Column<int32_t> some = staging_->add<int32_t>(request.query_rows.size());
    for (size_t i = 0; i < request.query_rows.size(); ++i) {
      some.host[i] = column[request.query_rows[i]];
    }
    return some.device;
  };
  if (request.query_rows.empty()) return;
  columns.queries = {picked(rows_.position), picked(rows_.span), picked(rows_.table),
                     picked(rows_.tail_begin)};
}

Result<const kernels::DrawRow*> KvFeed::draws(const DraftBatch& batch) {
  if (draws_ != nullptr) return draws_;
  SPECD_OK_OR_RETURN(make_room(Staging::bytes_of<kernels::DrawRow>(batch.draws.size())));
  const auto column = staging_->add<kernels::DrawRow>(batch.draws.size());
  std::copy(batch.draws.begin(), batch.draws.end(), column.host);
  SPECD_OK_OR_RETURN(staging_->status());
  draws_ = column.device;
  if (mode_ != DraftForward::Mode::kRepeat) staging_->upload();
  return draws_;
}

Result<void*> KvFeed::upload(const void* data, uint64_t bytes) {
  SPECD_OK_OR_RETURN(make_room(Staging::bytes_of<char>(bytes)));
  const auto column = staging_->add<char>(bytes);
  std::memcpy(column.host, data, bytes);
  SPECD_OK_OR_RETURN(staging_->status());
  staging_->upload();
  return static_cast<void*>(column.device);
}

Status KvFeed::move(const KvUse& use, const KvMoves& moves) {
  if (moves.from.empty()) return Status();
  SPECD_OK_OR_RETURN(make_room(2 * Staging::bytes_of<int32_t>(moves.from.size())));
  use.kv->store->move(device_, *staging_, moves);
  return staging_->status();
}

}  // namespace specd
