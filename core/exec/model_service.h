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
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/device/staging.h"
#include "core/kv/block_table.h"
#include "core/kv/page_pool.h"
#include "core/model/draft_model.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/services/model.h"

namespace specd {

struct ModelSession {
  std::vector<int32_t> pool_pages;
  BlockTable table;  // the model's own pages inside of them
  int32_t kept = 0;  // tokens at positions [0, kept), in slots of the same numbers
  // Row i of the round lies in slot kept + i, at position kept + depth[i]. Parent -1 = last kept.
  // Token -1 = known to the device alone, until it was waited for.
  std::vector<int32_t> parent, depth, token;
  uint64_t last_step = 0;  // batch->step_id of its last forward
  bool in_use = false;     // by the forward that runs now
  bool is_beyond = false;  // follow() met what the model cannot be fed; it holds nothing then

  int32_t n_rows() const { return static_cast<int32_t>(parent.size()); }
  void end_round(int32_t now_kept) {
    kept = now_kept;
    parent.clear();
    depth.clear();
    token.clear();
  }
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

// What one propose() asked of models while it was watched: enough to do the host's part of it
// again.
struct ModelRecord {
  struct Call {
    std::weak_ptr<specd_model> model;
    bool follow = false;
    std::vector<uint32_t> n_rows;  // of every sequence of the batch
    std::vector<uint32_t> row_offsets, token_at, output_rows;
    uint32_t n_outputs = 0;
    specd_tensor token{};  // of what was given; follow: out_token
  };
  // The same rows from the same places.
  static bool alike(const Call& a, const Call& b) {
    return a.follow == b.follow && a.n_rows == b.n_rows && a.token_at == b.token_at &&
           a.output_rows == b.output_rows;
  }
  std::vector<Call> calls;
  bool repeatable = true;  // nothing in it depends on what only its own host code knows
};

class ModelService final {
 public:
  // All outlive this.
  ModelService(Device& device, PagePool& pool) : device_(device), pool_(pool) {}

  // [control] Before the first open(). A model for whose columns there is no memory says so in its
  // status.
  void add(std::unique_ptr<DraftModel> model);
  const std::vector<std::unique_ptr<DraftModel>>& models() const { return models_; }

  // The functions of specd_models.
  specd_status open(specd_owner* owner, const char* name, specd_model** out);
  specd_status info(specd_owner* owner, const specd_model* model, specd_target_info* out);
  void close(specd_owner* owner, const specd_model* model);
  specd_status length(specd_call* call, const specd_model* model, uint32_t* out);
  specd_status forward(specd_call* call, const specd_model* model, const specd_forward_args* args);
  specd_status keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                    const uint32_t* row_offsets, const uint32_t* rows);

  specd_status follow(specd_call* call, const specd_model* model, const specd_forward_args* args);

  // [step] From here to watch(null) calls are noted in `record`. capturing: they are also being
  // captured, so those that would have to wait are refused.
  void watch(ModelRecord* record, bool capturing);
  // [step] Nothing when the calls of `record` would not ask for the same rows of these sequences as
  // they did then, or could not have them. Else their pages are taken, and what is returned must be
  // the same for a graph to fit. Between this and propose() or repeat() nothing else happens.
  std::optional<std::vector<uint64_t>> reserve(const ModelRecord& record, specd_call& call);
  // [step] The host's part of the recorded calls: sessions and columns. The graph does the rest.
  void repeat(const ModelRecord& record, specd_call& call);
  // [step] The stream has passed all that was asked for.
  void passed();
  // [step] What was reserved may be reclaimed again.
  void step_is_over();

  // [step] The sequence is over for its drafter: its sessions go.
  void end(uint64_t seq_id);
  // [step] Pages that reclaim() would free now, all together; between steps every session's.
  int32_t n_reclaimable() const;
  // [step] Ends sessions until n_pages more are free or none is left; returns how many became free.
  // Who has not drafted for longest goes first, of equals the newest. Those of a running forward()
  // stay, and what drafted in this step or the last is not taken for another draft.
  int32_t reclaim(int32_t n_pages);

 private:
  // A row to be computed: row `row` of the round of sequence `sequence` of the batch.
  struct Row {
    uint32_t sequence;
    int32_t row;
    int64_t token_at;  // element of args.token on the device; -1 = the session has the token
    int64_t output;    // index among the call's, -1 = none
  };
  // Tokens of a session that the device wrote.
  struct Unread {
    std::weak_ptr<specd_model> model;
    uint64_t seq_id;
    int32_t row;
    const int32_t* token;
  };
  std::shared_ptr<specd_model> find(specd_call* call, const specd_model* model,
                                    const char* function, specd_status* status);
  void collect_closed();
  int32_t release(specd_model& model, ModelSession& session);
  bool may_go(const ModelSession& session) const;
  bool take_pages(specd_model& model, ModelSession& session, int64_t rows);
  void move(specd_model& model, const std::vector<int32_t>& from, const std::vector<int32_t>& to);
  std::string check(const specd_call& call, const DraftModel& draft,
                    const specd_forward_args* args) const;
  // Asks for n rows after those that the round has. tokens: null = on the device. On an error,
  // which is reported, nothing has changed.
  specd_status extend(specd_model& model, specd_call* call, uint32_t s, const int32_t* tokens,
                      const int32_t* parent, uint32_t n);
  void trim(specd_model& model, ModelSession& session, std::span<const int32_t> text);
  // Tokens that follow() feeds to a session that holds `kept` of `length`.
  int32_t missing(const ModelSession& session, int32_t length) const;
  specd_status run_forward(const std::shared_ptr<specd_model>& model, specd_call* call,
                           const specd_forward_args& args, bool device);
  specd_status run_follow(const std::shared_ptr<specd_model>& model, specd_call* call,
                          const specd_forward_args& args, ModelRecord::Call* noted);
  specd_status compute(const std::shared_ptr<specd_model>& model, specd_call* call,
                       const specd_forward_args& args, const std::vector<Row>& rows);
  void flush(const std::shared_ptr<specd_model>& model, const specd_call* call,
             const specd_forward_args& args);
  void write_outputs(const DraftModel& draft, const specd_forward_args& args,
                     const Column<kernels::DrawRow>& draws);
  void copy_outputs(const DraftModel& draft, const specd_forward_args& args,
                    const Column<kernels::DrawRow>& draws);
  void copy_logits(const DraftModel& draft, const specd_forward_args& args,
                   const std::vector<int64_t>& outputs);
  bool reserve_model(const ModelRecord& record, const ModelRecord::Call& first,
                     const std::shared_ptr<specd_model>& model, specd_call& call);
  Status wait();
  // What failed_ holds, told to the plugin and forgotten.
  specd_status told(specd_call* call);

  Device& device_;
  PagePool& pool_;
  std::vector<std::unique_ptr<DraftModel>> models_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<specd_model>> open_;  // guarded by mutex_

  // Step thread only.
  uint64_t forward_step_ = 0;  // while pages are taken for it: a forward, or all of a step; else 0
  ModelRecord* record_ = nullptr;
  bool capturing_ = false;
  bool repeating_ = false;  // the graph submits
  Status failed_;           // of the device, in the running call
  Staging staging_;
  uint64_t block_bytes_ = 0;  // of one forward at most
  std::vector<Unread> unread_;
  // Of the forward that is being gathered:
  ForwardRows rows_;
  std::vector<Row> gathered_;
};

}  // namespace specd
