// model/1: what a plugin asks of draft models, checked and translated for core/draft; and the same
// draft models as the step sees them.
//
// Every argument of the functions of specd_models comes from a plugin and is checked; report() says
// what was refused. [step] functions run on the step thread, [control] ones on any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/draft/draft_model.h"
#include "core/draft/feed.h"
#include "core/draft/forward.h"
#include "core/draft/recorder.h"
#include "core/draft/session.h"
#include "core/kv/page_pool.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/services/model.h"

// The handle behind the boundary. The owner's map keeps it open; the sessions hold it as well, until
// the step thread has given its pages back.
struct specd_model : specd::DraftUse {};

namespace specd {

class ModelService final {
 public:
  // All outlive this.
  ModelService(Device& device, PagePool& pool) : sessions_(pool), forward_(device) {}

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
  specd_status follow(specd_call* call, const specd_model* model, const specd_forward_args* args);
  specd_status keep(specd_call* call, const specd_model* model, const uint32_t* kept,
                    const uint32_t* row_offsets, const uint32_t* rows);

  // [step] Graphs: core/draft/recorder.h says what these do. `call` is that of the propose().
  void watch(ModelRecord* record, bool capturing) { recorder_.watch(record, capturing); }
  std::optional<std::vector<uint64_t>> reserve(const ModelRecord& record, specd_call& call) {
    return recorder_.reserve(record, batch_of(call));
  }
  void repeat(const ModelRecord& record, specd_call& call) {
    recorder_.repeat(record, batch_of(call));
  }
  // [step] The stream has passed all that was asked for.
  void passed() { forward_.passed(); }
  // [step] What was reserved may be reclaimed again.
  void step_is_over() { sessions_.unprotect(); }

  // [step] The sequence is over for its drafter: its sessions go.
  void end(uint64_t seq_id) { sessions_.end(seq_id); }
  // [step] Pages of sessions; core/draft/session.h says which.
  int32_t n_reclaimable() const { return sessions_.n_reclaimable(); }
  int32_t reclaim(int32_t n_pages) { return sessions_.reclaim(n_pages); }

 private:
  std::shared_ptr<specd_model> find(specd_call* call, const specd_model* model,
                                    const char* function, specd_status* status);
  DraftBatch batch_of(const specd_call& call);
  specd_status finish(specd_call* call, const Status& status, specd_status* seq_status);

  std::vector<std::unique_ptr<DraftModel>> models_;
  DraftSessions sessions_;
  DraftForward forward_;
  DraftFeed feed_{sessions_, forward_};
  DraftRecorder recorder_{sessions_, forward_, feed_};
  // Of the running call, by sequence; members to keep their memory.
  std::vector<kernels::DrawRow> draws_;
  std::vector<Status> of_;
};

}  // namespace specd
