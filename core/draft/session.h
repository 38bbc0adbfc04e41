// Sessions: the rows of a sequence that a draft model, or a plugin with layers of its own, has
// computed, and their KV pages.
//
//   kept tokens at positions [0, kept), then the round's rows: a tree below the last kept token
//
// Pages come from the target's pool and count against its limit, unless the KV has pages of its own. When
// pages are short, sessions lose theirs before sequences do. Such a session is empty, and its drafter
// feeds the text again.
//
// Only numbers: no device and no plugin. Slots to move in the cache are returned; the owner of the
// device moves the bytes. [step] all functions except those marked [any].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/base/to_size.h"
#include "core/draft/draft_kv.h"
#include "core/kv/block_table.h"
#include "core/kv/page_pool.h"

namespace specd {

// Most rows between a branch of the round and the last kept token.
inline constexpr int32_t kDraftTailMax = 1024;

struct DraftSession {
  std::vector<int32_t> pool_pages;
  BlockTable table;  // the pages of `kv` inside them
  int32_t kept = 0;  // tokens at positions [0, kept), in slots of the same numbers
  // Row i of the round is in slot kept + i, at position kept + depth[i]. Parent -1 = the last kept
  // token. Token -1 = only the device knows it, until DraftForward::passed().
  std::vector<int32_t> parent, depth, token;
  uint64_t last_step = 0;  // that added rows
  bool in_use = false;     // by the forward that is being prepared
  bool is_beyond = false;  // the text cannot be fed to the model; the session holds nothing

  int32_t n_rows() const { return static_cast<int32_t>(parent.size()); }
  void end_round(int32_t now_kept) {
    kept = now_kept;
    parent.clear();
    depth.clear();
    token.clear();
  }
  // True when the row and its ancestors are the first rows of the round: slot and position agree,
  // and the row attends to a plain span.
  bool in_place(int32_t row) const { return depth[to_size(row)] == row; }
};

struct DraftModel;

// One drafter's use of a draft model, or of KV for its own layers. It is closed when only
// DraftSessions still owns it.
struct DraftUse {
  DraftKv* kv = nullptr;
  DraftModel* model = nullptr;                          // null = the plugin computes the rows
  std::unordered_map<uint64_t, DraftSession> sessions;  // by seq_id
};

class DraftSessions final {
 public:
  // `pool`: of the target's pages; it must outlive this.
  explicit DraftSessions(PagePool& pool) : pool_(pool) {}

  // [any] Shares `use` until it is closed and its pages are returned.
  void open(std::shared_ptr<DraftUse> use);
  // Returns the pages of closed uses to the pool.
  void collect_closed();
  // Ends the sequence's sessions in all uses.
  void end(uint64_t seq_id);
  void release(DraftUse& use, uint64_t seq_id);

  // The session, if there is one, keeps its pages until forward_is_over().
  static void hold(DraftUse& use, uint64_t seq_id) {
    const auto found = use.sessions.find(seq_id);
    if (found != use.sessions.end()) found->second.in_use = true;
  }

  // Until unprotect() or forward_is_over(), sessions that got rows in step `step_id` or the one
  // before keep their pages. extend() stamps sessions with this step.
  void protect(uint64_t step_id) { step_ = step_id; }
  void unprotect() { step_ = 0; }
  // Call when the forward prepared for `use` is submitted. Its sessions lose their protection.
  void forward_is_over(DraftUse& use);

  // Pages of the target's pool that reclaim() could free now; between steps those of every session.
  int32_t n_reclaimable() const;
  // Evicts sessions until n_pages more are free there or none is left to evict, and returns how many
  // became free. The least recently drafted goes first; the newest sequence breaks ties.
  int32_t reclaim(int32_t n_pages) { return reclaim(pool_, n_pages); }

  static int32_t length(const DraftUse& use, uint64_t seq_id);

  // Adds n rows to the sequence's round, and takes the pages they need. tokens null = not known
  // here; parents null = each row follows the one before it. Fails with
  // kInvalidArgument, with kUnsupported beyond the last position, or with kExhausted
  // when pages are short; then nothing has changed.
  Status extend(DraftUse& use, uint64_t seq_id, const int32_t* tokens, const int32_t* parents,
                uint32_t n);

  // Checks the arguments of keep().
  static Status check_keep(const DraftUse& use, uint64_t seq_id, uint32_t kept,
                           std::span<const uint32_t> path);
  // Ends the round: keeps the first `kept` tokens, followed by the rows of `path`, a path in the
  // round that begins below the last kept token. With a path, kept equals length(). REQUIRES
  // check_keep().
  static void keep(DraftUse& use, uint64_t seq_id, uint32_t kept, std::span<const uint32_t> path,
                   KvMoves& moves);
  // Ends the round and keeps the prefix that the session shares with `text`, except the text's last
  // token: it is always fed, because the drafter asks for what follows it.
  static void trim(DraftSession& session, std::span<const int32_t> text, KvMoves& moves);

  // Takes pages for `rows` kept tokens and rows in all. False: pages are short, and none was taken.
  [[nodiscard]] bool take_pages(DraftUse& use, DraftSession& session, int64_t rows);

 private:
  PagePool& pool_of(const DraftUse& use) const {
    return use.kv->own_pages == nullptr ? pool_ : *use.kv->own_pages;
  }
  int32_t reclaim(const PagePool& pool, int32_t n_pages);
  int32_t give_back(DraftUse& use, DraftSession& session);
  bool may_go(const DraftSession& session) const;

  PagePool& pool_;
  uint64_t step_ = 0;  // the protected step; 0 = none
  mutable Mutex mutex_;
  std::vector<std::shared_ptr<DraftUse>> open_ SPECD_GUARDED_BY(mutex_);
};

}  // namespace specd
