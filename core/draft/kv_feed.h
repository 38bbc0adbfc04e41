// Rows of layers that a plugin computes itself: sessions grow by them, and the columns that its ops
// need are staged.
//
//   rows ──> sessions ──> columns (staging), rotary table ──> append and attend, by the plugin
//
// [step] all functions, unless marked otherwise.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/draft/forward.h"
#include "core/draft/session.h"

namespace specd {

// The rows of a call, in memory of the device.
struct KvColumns {
  // What a row attends to; see kernels/attention.h.
  struct Seen {
    const int32_t *position = nullptr, *span = nullptr, *table = nullptr, *tail_begin = nullptr;
  };
  int32_t n_rows = 0, n_queries = 0;
  const int32_t *position = nullptr, *slot = nullptr, *pages = nullptr, *tail = nullptr;
  Seen rows, queries;
};

// One drafter's KV for its own layers.
struct KvUse : DraftUse {
  DraftKv own;  // what `kv` points to
  int32_t rows_max = 0;
  float rope_scale = 1;
  Buffer inv_freq, cos_sin;  // [head_dim / 2], [rows_max, head_dim]
  KvColumns columns;         // of the last rows()
  uint64_t serial = 0;       // of the plugin call in which they are valid
};

struct KvRequest {
  std::span<const uint32_t> row_offsets;  // [n_seqs + 1]
  const int32_t* parent = nullptr;        // [n_rows]; null = each row follows the one before it
  std::span<const uint32_t> query_rows;   // increasing
  bool is_block = false;                  // rows of a sequence see all of its rows of this call
};

class KvFeed final {
 public:
  // Both must outlive this.
  KvFeed(Device& device, DraftSessions& sessions) : device_(device), sessions_(sessions) {}

  // [any] Shares `use` until it is closed.
  void open(const std::shared_ptr<KvUse>& use);

  // A plugin call begins, or one goes on; `serial` numbers it. Rows of another call are no longer
  // protected, and their columns are not valid.
  void enter(uint64_t serial);

  // The sessions of these sequences keep their pages until the plugin call is over.
  void hold(const std::shared_ptr<KvUse>& use, std::span<const uint64_t> seq_id);

  // `recorded`: the calls of a propose() that a graph may repeat. Their columns have a staging of
  // their own, because update() stages another number of rows in every step.
  void set_mode(DraftForward::Mode mode, bool recorded) {
    mode_ = mode;
    staging_ = recorded ? &recorded_ : &others_;
  }

  // Arrays are in range; the caller checked them. of[s] is the result of sequence s; rows of a
  // failed one are not kept and see nothing. When the call fails, the sequences' sessions are over.
  Status rows(const std::shared_ptr<KvUse>& use, const DraftBatch& batch, const KvRequest& request,
              std::span<Status> of);
  // How the sequences of the batch draw: [n_seqs] in memory of the device, the same in one plugin
  // call. Without position.
  Result<const kernels::DrawRow*> draws(const DraftBatch& batch);
  // A copy of host memory on the device, until passed(). Not for a graph.
  Result<void*> upload(const void* data, uint64_t bytes);
  // Copies slots. When it fails, the KV of the sequences is not what their sessions say.
  Status move(const KvUse& use, const KvMoves& moves);

  // Call when the stream has finished all submitted work: drops the columns.
  void passed();
  // What determines the addresses of the next recorded columns.
  uint64_t layout() const { return recorded_.used() + (generation_ << 48); }
  // Promises room for recorded columns of so many bytes, until passed(). False: a graph could not
  // have it, and only a submission without one makes more.
  bool promise(uint64_t bytes);
  static uint64_t rows_bytes(int64_t rows, int64_t pages, int64_t tail);
  // Of the last rows().
  int64_t n_tail() const { return n_tail_; }

 private:
  Status make_room(uint64_t bytes);
  void stage(KvUse& use, const KvRequest& request);

  Device& device_;
  DraftSessions& sessions_;
  Staging others_, recorded_;
  Staging* staging_ = &others_;
  uint64_t generation_ = 0;  // of addresses in recorded_
  DraftForward::Mode mode_ = DraftForward::Mode::kSubmit;
  uint64_t serial_ = 0;
  uint64_t promised_ = 0;  // bytes of recorded_
  int64_t n_tail_ = 0;
  const kernels::DrawRow* draws_ = nullptr;  // of the call `serial_`
  std::vector<std::weak_ptr<KvUse>> used_;   // in the call `serial_`
  ForwardRows rows_;                         // of the current call of rows()
};

}  // namespace specd
