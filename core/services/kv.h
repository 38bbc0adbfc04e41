// kv/1: checks what plugins ask of KV for layers of their own, and translates it for core/draft.
//
// Every argument of the functions of specd_kv_api comes from a plugin and is checked; report() says
// what was refused.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/device/device.h"
#include "core/draft/kv_feed.h"
#include "core/draft/recorder.h"
#include "core/draft/session.h"
#include "core/model/kv_store.h"
#include "core/plugin/instance/host_context.h"
#include "specd/plugin_api/services/kv.h"

// A plugin's handle. The owner's map keeps it open. DraftSessions shares it until the step thread
// has returned its pages.
struct specd_kv : specd::KvUse {
  uint64_t charged_bytes = 0;
};

namespace specd {

class OpCall;

// The target's cache.
struct KvPages {
  const KvStore* store = nullptr;  // null = no model is loaded
  int32_t positions_max = 0;       // that the device was opened for
  bool is_planned = false;         // without a store: handles may be opened, but no step runs
  uint64_t page_bytes = 0;         // of all ranks; 0 = those of `store`
};

class KvService final {
 public:
  // All must outlive this.
  KvService(Device& device, const KvPages& pages, DraftSessions& sessions, KvFeed& feed,
            DraftRecorder& recorder)
      : device_(device), pages_(pages), sessions_(sessions), feed_(feed), recorder_(recorder) {}

  // [control]
  specd_status open(specd_owner* owner, const specd_kv_open_args* args, specd_kv** out);
  void close(specd_owner* owner, const specd_kv* kv);

  // [step] The functions of specd_kv_api. append() and attend() check their tensors with `op`, and
  // submit their work with it.
  specd_status length(specd_call* call, const specd_kv* kv, uint32_t* out);
  specd_status rows(specd_call* call, const specd_kv* kv, const specd_kv_rows_args* args);
  specd_status append(OpCall& op, const specd_kv* kv, const specd_kv_append_args& args);
  specd_status attend(OpCall& op, const specd_kv* kv, const specd_kv_attend_args& args);
  specd_status keep(specd_call* call, const specd_kv* kv, const uint32_t* kept,
                    const uint32_t* row_offsets, const uint32_t* rows);
  specd_status view(specd_call* call, const specd_kv* kv, uint32_t layer, specd_kv_view* out);
  // [step] How the sequences of the call draw, on the device, for ops/1.
  Result<const kernels::DrawRow*> draws(const specd_call& call);
  // [step] A copy of host memory on the device, until the stream has passed.
  Result<void*> upload(const specd_call& call, const void* data, uint64_t bytes);
  // Call when length(), rows() or keep() found no memory half way.
  void start_over(const specd_call& call, const specd_kv* kv);

 private:
  std::shared_ptr<specd_kv> find(specd_call* call, const specd_kv* kv, const char* function,
                                 specd_status* status);
  std::shared_ptr<specd_kv> find_rows(OpCall& op, const specd_kv* kv, uint32_t layer);

  Device& device_;
  const KvPages pages_;
  DraftSessions& sessions_;
  KvFeed& feed_;
  DraftRecorder& recorder_;
  // Of the current call, by sequence; members, so that their memory is reused.
  std::vector<kernels::DrawRow> draws_;
  std::vector<Status> of_;
};

}  // namespace specd
