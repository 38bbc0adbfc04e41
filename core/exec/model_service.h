// Host service model/1: sessions of draft models, keyed by the instance's handle and the sequence.
//
// The KV of a session lies in pages of the target's pool and counts against the same limit. It is
// the first to go when pages are short: a session that lost it is empty, and its drafter feeds the
// text again. Pages are given back when the sequence ends and when the model is closed.
//
// Every argument comes from a plugin and is checked; what is refused is said through report().
// [step] functions run on the step thread, which owns sessions and pages; [control] ones on any.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "core/device/device.h"
#include "core/kv/block_table.h"
#include "core/kv/page_pool.h"
#include "core/model/draft_model.h"
#include "core/plugin/host_context.h"
#include "specd/plugin_api/services/model.h"

namespace specd {

struct ModelSession {
  std::vector<int32_t> pool_pages;
  BlockTable table;  // the model's own pages inside of them
  int32_t kept = 0;  // tokens at positions [0, kept), in slots of the same numbers
  // Row i of the round lies in slot kept + i, at position kept + depth[i]. Parent -1 = last kept.
  std::vector<int32_t> parent, depth;
  uint64_t last_step = 0;  // batch->step_id of its last forward
  bool in_use = false;     // by the forward that runs now

  int32_t n_rows() const { return static_cast<int32_t>(parent.size()); }
  // True when the row and all its ancestors form the chain of the round's first rows: slot and
  // position agree then, and its attention is a plain span.
  bool in_place(int32_t row) const { return depth[static_cast<size_t>(row)] == row; }
};

}  // namespace specd

// The handle behind the boundary. The owner's map keeps it open; the service holds it as well,
// until the step thread has given its pages back.
struct specd_model {
  specd::DraftModel* model = nullptr;
  std::unordered_map<uint64_t, specd::ModelSession> sessions;  // by seq_id; step thread only
};

namespace specd {

class ModelService final {
 public:
  // All outlive this.
  ModelService(Device& device, PagePool& pool) : device_(device), pool_(pool) {}

  // [control] Before the first open().
  void add(std::unique_ptr<DraftModel> model) { models_.push_back(std::move(model)); }
  const std::vector<std::unique_ptr<DraftModel>>& models() const { return models_; }

  // The functions of specd_models.
  specd_status open(specd_owner* owner, const char* name, specd_model** out);
  specd_status info(specd_owner* owner, const specd_model* model, specd_target_info* out);
  void close(specd_owner* owner, const specd_model* model);
  specd_status length(specd_call* call, const specd_model* model, uint32_t* out);
  specd_status forward(specd_call* call, const specd_model* model, const specd_forward_args* args);
  specd_status keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                    const uint32_t* row_offsets, const uint32_t* rows);

  // [step] The sequence is over for its drafter: its sessions go.
  void end(uint64_t seq_id);
  // [step] Pages that reclaim() would free now, all together; between steps every session's.
  int32_t n_reclaimable() const;
  // [step] Ends sessions until n_pages more are free or none is left; returns how many became free.
  // Who has not drafted for longest goes first, of equals the newest. Those of a running forward()
  // stay, and what drafted in this step or the last is not taken for another draft.
  int32_t reclaim(int32_t n_pages);

 private:
  // One output of the rows that are gathered.
  struct Output {
    uint32_t index;     // among the outputs of the call
    uint32_t sequence;  // in the batch
  };

  std::shared_ptr<specd_model> find(specd_call* call, const specd_model* model,
                                    const char* function, specd_status* status);
  void collect_closed();
  int32_t release(specd_model& model, ModelSession& session);
  bool may_go(const ModelSession& session) const;
  specd_status extend(specd_model& model, specd_call* call, uint32_t s,
                      const specd_forward_args& args);
  void compute(specd_model& model, const specd_call* call, const specd_forward_args& args);
  void flush(specd_model& model, const specd_call* call, const specd_forward_args& args);

  Device& device_;
  PagePool& pool_;
  std::vector<std::unique_ptr<DraftModel>> models_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<specd_model>> open_;  // guarded by mutex_

  // Step thread only.
  uint64_t forward_step_ = 0;  // of the running forward(), 0 = none
  ForwardRows rows_;
  std::vector<Output> outputs_;
  std::vector<kernels::DrawRow> draw_rows_;
  std::vector<int32_t> drawn_;
  std::vector<float> cut_logits_;
};

}  // namespace specd
