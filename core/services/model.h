// model/1: checks what plugins ask of draft models and translates it for core/draft. Also the
// step's interface to the same draft models.
//
// Every argument of the functions of specd_models comes from a plugin and is checked; report() says
// what was refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "core/device/device.h"
#include "core/draft/draft_model.h"
#include "core/draft/feed.h"
#include "core/draft/forward.h"
#include "core/draft/recorder.h"
#include "core/draft/session.h"
#include "core/kv/page_pool.h"
#include "core/plugin/instance/host_context.h"
#include "core/services/kv.h"
#include "specd/plugin_api/services/model.h"

// A plugin's handle. The owner's map keeps it open. DraftSessions shares it until the step thread
// has returned its pages.
struct specd_model : specd::DraftUse {};

namespace specd {

class ModelService final {
 public:
  // All must outlive this.
  ModelService(Device& device, PagePool& pool, const KvPages& pages = {})
      : device_(device),
        sessions_(pool),
        forward_(device),
        kv_feed_(device, sessions_),
        kv_(device, pages, sessions_, kv_feed_, recorder_) {}

  // [control] Call before the first open(). The model's status says when there is no memory for its
  // columns.
  void add(std::unique_ptr<DraftModel> model);
  const std::vector<std::unique_ptr<DraftModel>>& models() const { return models_; }
  // kv/1 over the same pages.
  KvService& kv() { return kv_; }

  // The functions of specd_models.
  specd_status open(specd_owner* owner, const char* name, specd_model** out);
  specd_status info(specd_owner* owner, const specd_model* model, specd_target_info* out);
  void close(specd_owner* owner, const specd_model* model);
  specd_status length(specd_call* call, const specd_model* model, uint32_t* out);
  specd_status forward(specd_call* call, const specd_model* model, const specd_forward_args* args);
  specd_status follow(specd_call* call, const specd_model* model, const specd_forward_args* args);
  specd_status keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                    const uint32_t* row_offsets, const uint32_t* rows);
  // Call when one of the four above found no memory half way.
  void start_over(const specd_call& call, const specd_model* model);

  // [step] For graphs; see core/draft/recorder.h. `call` is that of the propose().
  void watch(ModelRecord* record, bool capturing) { recorder_.watch(record, capturing); }
  bool is_capturing() const { return recorder_.is_capturing(); }
  void note_unrepeatable() { recorder_.note_unrepeatable(); }
  std::optional<std::vector<uint64_t>> reserve(const ModelRecord& record, specd_call& call) {
    kv_feed_.enter(call.serial);
    return recorder_.reserve(record, batch_of(call));
  }
  void repeat(const ModelRecord& record, specd_call& call) {
    kv_feed_.enter(call.serial);  // another call may have been reserved since
    recorder_.repeat(record, batch_of(call));
  }
  // [step] Call when the stream has finished all submitted work.
  void passed() {
    forward_.passed();
    kv_feed_.passed();
  }
  // [step] Reserved pages may be reclaimed again.
  void step_is_over() { sessions_.unprotect(); }

  // [step] Ends the sequence's sessions.
  void end(uint64_t seq_id) { sessions_.end(seq_id); }
  // [step] See core/draft/session.h. Outside of calls to plugins.
  int32_t n_reclaimable() {
    kv_feed_.enter(0);
    sessions_.collect_closed();
    return sessions_.n_reclaimable();
  }
  int32_t reclaim(int32_t n_pages) {
    kv_feed_.enter(0);
    sessions_.collect_closed();
    return sessions_.reclaim(n_pages);
  }

 private:
  // The forwards of a model that is on another device than the target. After a call nothing is under way but
  // moves of KV.
  struct Elsewhere {
    Elsewhere(Device& device, DraftSessions& sessions) : forward(device), feed(sessions, forward) {}
    DraftForward forward;
    DraftFeed feed;
    Buffer brought;  // pinned: outputs on their way to the target's device
  };
  // Null = it is where the target is.
  Elsewhere* elsewhere(const DraftModel& model) const {
    const auto found = elsewhere_.find(&model);
    return found == elsewhere_.end() ? nullptr : found->second.get();
  }
  DraftForward& forward_of(const DraftModel& model) {
    Elsewhere* const other = elsewhere(model);
    return other == nullptr ? forward_ : other->forward;
  }
  DraftFeed& feed_of(const DraftModel& model) {
    Elsewhere* const other = elsewhere(model);
    return other == nullptr ? feed_ : other->feed;
  }
  // Of forward(), or of follow() when the arguments have no rows of their own.
  specd_status call_elsewhere(specd_call* call, const std::shared_ptr<specd_model>& handle,
                              const specd_forward_args& args, DraftRequest request);
  std::shared_ptr<specd_model> find(specd_call* call, const specd_model* model,
                                    const char* function, specd_status* status);
  DraftBatch batch_of(const specd_call& call);

  Device& device_;  // of the target
  std::vector<std::unique_ptr<DraftModel>> models_;
  DraftSessions sessions_;
  DraftForward forward_;
  DraftFeed feed_{sessions_, forward_};
  KvFeed kv_feed_;
  std::map<const DraftModel*, std::unique_ptr<Elsewhere>> elsewhere_;
  DraftRecorder recorder_{sessions_, forward_, feed_, kv_feed_};
  KvService kv_;
  // Of the current call, by sequence; members, so that their memory is reused.
  std::vector<kernels::DrawRow> draws_;
  std::vector<Status> of_;
};

}  // namespace specd
