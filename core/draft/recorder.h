// Notes what one propose() asks of draft models, so that a graph that was captured from it can run
// again without it: the host's part of the same calls is then done from the record.
//
//   watch, propose, unwatch -> ModelRecord -> next step: reserve -> propose again, or repeat + graph
//
// Runs on the step thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/draft/feed.h"
#include "core/draft/forward.h"
#include "core/draft/session.h"

namespace specd {

// What one propose() asked of draft models while it was watched.
struct ModelRecord {
  struct Call {
    std::weak_ptr<DraftUse> use;
    bool follow = false;
    std::vector<uint32_t> n_rows;  // of every sequence of the batch
    std::vector<uint32_t> row_offsets, token_at, output_rows;
    int64_t token_stride = 0;
  };
  // The same rows from the same places.
  static bool alike(const Call& a, const Call& b) {
    return a.follow == b.follow && a.n_rows == b.n_rows && a.token_at == b.token_at &&
           a.output_rows == b.output_rows;
  }
  std::vector<Call> calls;
  bool repeatable = true;  // nothing in it depends on what only the drafter's host code knows
};

class DraftRecorder final {
 public:
  // All outlive this.
  DraftRecorder(DraftSessions& sessions, DraftForward& forward, DraftFeed& feed)
      : sessions_(sessions), forward_(forward), feed_(feed) {}

  // Until watch(null) calls are noted in `record`. capturing: they are also being captured, so those
  // that would have to wait must be refused.
  void watch(ModelRecord* record, bool capturing);
  bool is_capturing() const { return is_capturing_; }
  // Whether a graph can hold what the request submits.
  static bool fits_graph(const DraftRequest& request) {
    return request.outputs.on_device && request.parent == nullptr &&
           request.outputs.logits.data == nullptr;
  }
  // The drafter looked at a session, or changed one: its next calls may depend on it.
  void note_unrepeatable() {
    if (record_ != nullptr) record_->repeatable = false;
  }

  // DraftFeed's, noted.
  Status forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request, std::span<Status> of);
  Status follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                const DraftRequest& request, std::span<Status> of);

  // Nothing when the calls of `record` would not ask for the same rows of these sequences as they
  // did, or could not have them. Else their pages are taken, and what is returned must be the same
  // for a graph to fit. Between this and the propose() or repeat() that follows nothing else happens.
  std::optional<std::vector<uint64_t>> reserve(const ModelRecord& record, const DraftBatch& batch);
  // The host's part of the recorded calls: sessions and columns. The graph does the rest. REQUIRES
  // reserve().
  void repeat(const ModelRecord& record, const DraftBatch& batch);

 private:
  ModelRecord::Call* note(const std::shared_ptr<DraftUse>& use, const DraftRequest& request);
  bool reserve_model(const ModelRecord& record, const ModelRecord::Call& first, DraftUse& use,
                     const DraftBatch& batch);

  DraftSessions& sessions_;
  DraftForward& forward_;
  DraftFeed& feed_;
  ModelRecord* record_ = nullptr;
  bool is_capturing_ = false;
};

}  // namespace specd
