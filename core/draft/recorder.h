// Records what one propose() asks of draft models and of KV for layers of its own. A graph that was
// captured from it can then run again without the plugin: the host's part of the calls is repeated
// from the record.
//
//   watch, propose, unwatch -> ModelRecord -> next step: reserve -> propose again or graph + repeat
//
// [step] all functions.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/draft/feed.h"
#include "core/draft/forward.h"
#include "core/draft/kv_feed.h"
#include "core/draft/session.h"

namespace specd {

// The calls of one propose() while it was watched.
struct ModelRecord {
  struct Call {
    enum class Kind { kForward, kFollow, kRows, kDraws } kind = Kind::kForward;
    std::weak_ptr<DraftUse> use;   // of kRows: a KvUse
    std::vector<uint32_t> n_rows;  // of every sequence of the batch
    std::vector<uint32_t> row_offsets, token_at;
    std::vector<uint32_t> output_rows;  // of kRows: the queries
    uint32_t purpose = 0;
    int64_t token_stride = 0;
    std::vector<int32_t> parent;  // of kRows; empty = chains
    int64_t n_tail = 0;           // of kRows: slots of ancestors
    bool is_block = false;
  };
  // Whether both compute the same rows of the same model from the same places.
  static bool alike(const Call& a, const Call& b) {
    return !a.use.owner_before(b.use) && !b.use.owner_before(a.use) && a.kind == b.kind &&
           a.purpose == b.purpose && a.n_rows == b.n_rows && a.token_at == b.token_at &&
           a.output_rows == b.output_rows && a.parent == b.parent && a.is_block == b.is_block;
  }
  std::vector<Call> calls;
  bool repeatable = true;  // no call depends on the drafter's host code
};

class DraftRecorder final {
 public:
  // All must outlive this.
  DraftRecorder(DraftSessions& sessions, DraftForward& forward, DraftFeed& feed, KvFeed& kv_feed)
      : sessions_(sessions), forward_(forward), feed_(feed), kv_feed_(kv_feed) {}

  // Records calls in `record` until watch(nullptr). `capturing`: their work is also being captured,
  // so calls that would have to wait must be refused.
  void watch(ModelRecord* record, bool capturing);
  bool is_capturing() const { return is_capturing_; }
  // Whether a graph can contain the request's work.
  static bool fits_graph(const DraftRequest& request) {
    return request.outputs.on_device && request.parent == nullptr &&
           request.outputs.logits.data == nullptr && request.outputs.law.data == nullptr;
  }
  // The drafter has read or changed a session, so its next calls may depend on that.
  void note_unrepeatable() {
    if (record_ != nullptr) record_->repeatable = false;
  }

  // DraftFeed's functions, recorded.
  Status forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request, std::span<Status> of);
  Status follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                const DraftRequest& request, std::span<Status> of);
  // KvFeed's functions, recorded.
  Status rows(const std::shared_ptr<KvUse>& use, const DraftBatch& batch, const KvRequest& request,
              std::span<Status> of);
  Result<const kernels::DrawRow*> draws(const DraftBatch& batch);

  // Returns nothing when the calls of `record` would now compute other rows of these sequences, or
  // when pages are short. Otherwise takes the pages and returns their layout; a graph fits only an
  // equal layout. REQUIRES that nothing else happens before the propose() or repeat() that follows.
  std::optional<std::vector<uint64_t>> reserve(const ModelRecord& record, const DraftBatch& batch);
  // Repeats the host's part of the recorded calls: sessions and columns. The graph does the rest.
  // REQUIRES reserve().
  void repeat(const ModelRecord& record, const DraftBatch& batch);

 private:
  ModelRecord::Call* note(const std::shared_ptr<DraftUse>& use, const DraftRequest& request);
  bool reserve_model(const ModelRecord& record, const ModelRecord::Call& first, DraftUse& use,
                     const DraftBatch& batch);
  bool reserve_rows(const ModelRecord& record, DraftUse& use, const DraftBatch& batch);
  Status repeat_call(const ModelRecord::Call& call, const DraftBatch& batch, std::span<Status> of);

  DraftSessions& sessions_;
  DraftForward& forward_;
  DraftFeed& feed_;
  KvFeed& kv_feed_;
  ModelRecord* record_ = nullptr;
  bool is_capturing_ = false;
};

}  // namespace specd
