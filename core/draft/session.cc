#include "core/draft/session.h"

#include <algorithm>
#include <string>
#include <utility>

namespace specd {
namespace {

// Pages of the pool that the session lacks for `rows` kept tokens and rows in all.
int32_t pages_missing(const DraftUse& use, const DraftSession& session, int64_t rows) {
  const int32_t parts = use.kv->store->parts_per_page();
  const int32_t missing = pages_for(rows) - static_cast<int32_t>(session.table.pages.size());
  return missing <= 0 ? 0 : (missing + parts - 1) / parts;
}

// Adds one row, or returns why it is not allowed.
Status add_row(const DraftKv& kv, DraftSession& session, int32_t parent, int32_t token) {
  const int32_t row = session.n_rows();
  if (parent < -1 || parent >= row) {
    return Status(Code::kInvalidArgument, "row " + std::to_string(row) +
                                              " of the round has parent " + std::to_string(parent) +
                                              ", expected -1.." + std::to_string(row - 1));
  }
  const int32_t depth = parent < 0 ? 0 : session.depth[to_size(parent)] + 1;
  if (session.kept + depth >= kv.positions_max) {
    return Status(Code::kUnsupported, "position " + std::to_string(session.kept + depth) +
                                          " is beyond the context of " + kv.owner + ", " +
                                          std::to_string(kv.positions_max));
  }
  if (depth != row && depth >= kDraftTailMax) {
    return Status(Code::kInvalidArgument, "more than " + std::to_string(kDraftTailMax) +
                                              " rows between a branch and the last kept token");
  }
  session.parent.push_back(parent);
  session.depth.push_back(depth);
  session.token.push_back(token);
  return Status();
}

}  // namespace

// ---- open uses -------------------------------------------------------------------------------

void DraftSessions::open(std::shared_ptr<DraftUse> use) {
  const MutexLock lock(mutex_);
  open_.push_back(std::move(use));
}

void DraftSessions::collect_closed() {
  const MutexLock lock(mutex_);
  std::erase_if(open_, [this](const std::shared_ptr<DraftUse>& use) {
    if (use.use_count() > 1) return false;
    for (auto& [seq_id, session] : use->sessions) give_back(*use, session);
    return true;
  });
}

void DraftSessions::end(uint64_t seq_id) {
  collect_closed();
  const MutexLock lock(mutex_);
  for (const std::shared_ptr<DraftUse>& use : open_) release(*use, seq_id);
}

void DraftSessions::release(DraftUse& use, uint64_t seq_id) {
  const auto found = use.sessions.find(seq_id);
  if (found == use.sessions.end()) return;
  give_back(use, found->second);
  use.sessions.erase(found);
}

// ---- pages -----------------------------------------------------------------------------------

int32_t DraftSessions::give_back(DraftUse& use, DraftSession& session) {
  const auto n = static_cast<int32_t>(session.pool_pages.size());
  pool_of(use).release(session.pool_pages);
  use.kv->pages_held -= n;
  session = DraftSession();
  return n;
}

void DraftSessions::forward_is_over(DraftUse& use) {
  for (auto& [seq_id, session] : use.sessions) session.in_use = false;
  step_ = 0;
}

bool DraftSessions::may_go(const DraftSession& session) const {
  const bool wanted_soon = step_ != 0 && session.last_step + 1 >= step_;
  return !session.in_use && !wanted_soon && !session.pool_pages.empty();
}

int32_t DraftSessions::n_reclaimable() const {
  size_t n = 0;
  const MutexLock lock(mutex_);
  for (const std::shared_ptr<DraftUse>& use : open_) {
    if (&pool_of(*use) != &pool_) continue;
    for (const auto& [seq_id, session] : use->sessions) {
      if (may_go(session)) n += session.pool_pages.size();
    }
  }
  return static_cast<int32_t>(n);
}

int32_t DraftSessions::reclaim(const PagePool& pool, int32_t n_pages) {
  struct Candidate {
    uint64_t last_step, seq_id;
    DraftUse* use;
  };
  std::vector<Candidate> candidates;
  const MutexLock lock(mutex_);
  for (const std::shared_ptr<DraftUse>& use : open_) {
    if (&pool_of(*use) != &pool) continue;
    for (const auto& [seq_id, session] : use->sessions) {
      if (may_go(session)) candidates.push_back({session.last_step, seq_id, use.get()});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::pair(a.last_step, b.seq_id) < std::pair(b.last_step, a.seq_id);
  });
  int32_t freed = 0;
  for (const Candidate& each : candidates) {
    if (freed >= n_pages) break;
    const auto found = each.use->sessions.find(each.seq_id);
    freed += give_back(*each.use, found->second);
    each.use->sessions.erase(found);
  }
  return freed;
}

bool DraftSessions::take_pages(DraftUse& use, DraftSession& session, int64_t rows) {
  const int32_t n = pages_missing(use, session, rows);
  if (n <= 0) return true;
  const size_t first = session.pool_pages.size();
  const int32_t parts = use.kv->store->parts_per_page();
  // Without memory for the tables no page may be taken.
  session.pool_pages.reserve(first + static_cast<size_t>(n));
  session.table.pages.reserve(session.table.pages.size() + static_cast<size_t>(n * parts));
  const bool was_in_use = std::exchange(session.in_use, true);  // reclaim() spares it
  PagePool& pool = pool_of(use);
  const bool taken = pool.take(n, session.pool_pages) ||
                     (reclaim(pool, n - pool.n_free()) > 0 && pool.take(n, session.pool_pages));
  session.in_use = was_in_use;
  if (!taken) return false;
  for (size_t i = first; i < session.pool_pages.size(); ++i) {
    for (int32_t j = 0; j < parts; ++j) {
      session.table.pages.push_back(session.pool_pages[i] * parts + j);
    }
  }
  use.kv->pages_held += n;
  return true;
}

// ---- rounds ----------------------------------------------------------------------------------

int32_t DraftSessions::length(const DraftUse& use, uint64_t seq_id) {
  const auto found = use.sessions.find(seq_id);
  return found == use.sessions.end() ? 0 : found->second.kept;
}

Status DraftSessions::extend(DraftUse& use, uint64_t seq_id, const int32_t* tokens,
                             const int32_t* parents, uint32_t n) {
  DraftSession& session = use.sessions[seq_id];
  const int32_t n_before = session.n_rows();
  const auto undo = [&](Status status) {
    session.parent.resize(to_size(n_before));
    session.depth.resize(to_size(n_before));
    session.token.resize(to_size(n_before));
    if (session.pool_pages.empty()) use.sessions.erase(seq_id);
    return status;
  };
  const int64_t rows_max = int64_t{use.kv->positions_max} + kDraftTailMax;
  if (int64_t{n_before} + n > rows_max) {
    return undo(Status(Code::kInvalidArgument,
                       "the round has more than " + std::to_string(rows_max) + " rows"));
  }
  for (uint32_t r = 0; r < n; ++r) {
    const int32_t parent = parents == nullptr ? session.n_rows() - 1 : parents[r];
    Status added = add_row(*use.kv, session, parent, tokens == nullptr ? -1 : tokens[r]);
    if (!added.ok()) return undo(std::move(added));
  }
  const int64_t rows = int64_t{session.kept} + session.n_rows();
  if (!take_pages(use, session, rows)) {
    return undo(Status(Code::kExhausted, std::to_string(pages_missing(use, session, rows)) +
                                             " KV pages are needed, " +
                                             std::to_string(pool_of(use).n_free()) + " are free"));
  }
  session.in_use = true;
  session.last_step = step_;
  return Status();
}

Status DraftSessions::check_keep(const DraftUse& use, uint64_t seq_id, uint32_t kept,
                                 std::span<const uint32_t> path) {
  static const DraftSession kEmpty;
  const auto found = use.sessions.find(seq_id);
  const DraftSession& session = found == use.sessions.end() ? kEmpty : found->second;
  const auto length = static_cast<uint32_t>(session.kept);
  if (path.empty() ? kept > length : kept != length) {
    return Status(Code::kInvalidArgument, "kept is " + std::to_string(kept) + ", expected " +
                                              (path.empty() ? "at most " : "with rows, exactly ") +
                                              std::to_string(length));
  }
  int64_t previous = -1;
  for (const uint32_t row : path) {
    if (row >= static_cast<uint32_t>(session.n_rows()) || session.parent[row] != previous) {
      return Status(Code::kInvalidArgument,
                    "row " + std::to_string(row) + " of the round, which has " +
                        std::to_string(session.n_rows()) + ", is not a child of row " +
                        std::to_string(previous));
    }
    previous = row;
  }
  return Status();
}

void DraftSessions::keep(DraftUse& use, uint64_t seq_id, uint32_t kept,
                         std::span<const uint32_t> path, KvMoves& moves) {
  const auto found = use.sessions.find(seq_id);
  if (found == use.sessions.end()) return;
  DraftSession& session = found->second;
  const std::vector<int32_t> rows(path.begin(), path.end());
  plan_compaction(session.table, session.kept - 1, rows, moves);
  session.end_round(static_cast<int32_t>(kept + rows.size()));
}

void DraftSessions::trim(DraftSession& session, std::span<const int32_t> text, KvMoves& moves) {
  const auto length = static_cast<int32_t>(text.size());
  std::vector<int32_t> path;
  for (int32_t row = 0; row < session.n_rows(); ++row) {
    const int32_t last = path.empty() ? -1 : path.back();
    const int32_t position = session.kept + static_cast<int32_t>(path.size());
    if (position >= length - 1) break;
    if (session.parent[to_size(row)] == last &&
        session.token[to_size(row)] == text[to_size(position)]) {
      path.push_back(row);
    }
  }
  if (!path.empty()) {
    plan_compaction(session.table, session.kept - 1, path, moves);
  }
  session.end_round(std::min(session.kept + static_cast<int32_t>(path.size()), length - 1));
}

}  // namespace specd
