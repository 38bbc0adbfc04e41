// Forwards of draft models: gathers rows of sessions into forwards within the model's limits,
// stages and submits them, and computes the requested outputs from the logits.
//
//   rows of sessions -> ForwardRows -> columns (staging) -> transformer -> draw, top_k, log_prob
//                                        tokens that the device knows ──┘
//
// After an error nothing more is submitted until take_failure().
// [step] all functions, unless marked [control].
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/device/device.h"
#include "core/device/staging.h"
#include "core/draft/draft_model.h"
#include "core/draft/session.h"
#include "core/model/transformer.h"
#include "specd/kernels/draw.h"

namespace specd {

// Largest k of the top k when models run on a device that is not the host.
inline constexpr size_t kDraftTopKMax = 64;

// Element i is data[i * stride]; data null = absent.
template <typename T>
struct Strided {
  T* data = nullptr;
  int64_t stride = 0;

  T* element(int64_t i) const { return data + i * stride; }
};

// The sequences of a call.
struct DraftBatch {
  uint64_t step_id = 0;
  std::span<const uint64_t> seq_id = {};         // [n_seqs]
  std::span<const kernels::DrawRow> draws = {};  // [n_seqs], without position, purpose and round
  std::span<const std::span<const int32_t>> text =
      {};  // [n_seqs] committed tokens; only in propose()
};

// Where outputs go. Device memory is written in stream order, host memory before the call returns.
struct DraftOutputs {
  bool on_device = false;
  int32_t top_k = 0;
  uint32_t purpose = 0;             // of the noise of `token`; 0 = the target's
  Strided<int32_t> token = {};      // drawn from these logits as the target draws
  Strided<float> logprob = {};      // of token
  Strided<int32_t> top_token = {};  // top_k each
  Strided<float> top_logprob = {};
  // Always host memory:
  Strided<float> logits = {};
  Strided<float> law = {};  // of token; law_width each
  Strided<float> lse = {};
  int64_t law_width = 0;  // at least the model's vocabulary
};

// Row `row` of the round of sequence `sequence` of the batch; row -1 = the sequence failed, and the
// token of its output becomes -1.
struct DraftRow {
  uint32_t sequence = 0;
  int32_t row = -1;
  int64_t token_at = -1;  // element of the device's tokens; -1 = the session has the token
  int64_t output = -1;    // element of the outputs; -1 = none
};

class DraftForward final {
 public:
  explicit DraftForward(Device& device) : device_(device) {}

  // [control] Allocates the columns of the model's forwards. Call before its first compute().
  Status make_room(const DraftModel& model);

  enum class Mode {
    kSubmit,
    kCapture,  // the work is captured in a graph: nothing may wait
    kRepeat    // a graph does the device's part: only the host's is done
  };
  void set_mode(Mode mode) { mode_ = mode; }

  const Device& device() const { return device_; }
  // Bytes of columns that the stream may still use.
  uint64_t columns_used() const { return staging_.used(); }

  void move(const DraftModel& model, const KvMoves& moves);
  // Computes all rows, in as many forwards as the model's limits require. `tokens`: device memory
  // with the tokens of the rows that have token_at.
  void compute(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
               const std::vector<DraftRow>& rows, Strided<const int32_t> tokens,
               const DraftOutputs& outputs);
  // False when the last compute() had to wait for room for columns, which a graph cannot do.
  bool was_in_one_piece() const { return was_in_one_piece_; }

  // Call when the stream has finished all submitted work: copies the tokens that the device wrote
  // to their sessions, and drops all columns.
  void passed();
  // The sequence's session ends: what the device writes is not for the one that comes after it.
  void forget(const DraftUse& use, uint64_t seq_id);
  bool has_failed() const { return !failed_.ok(); }
  Status take_failure();

 private:
  // A session's token that only the device knows so far.
  struct Unread {
    std::weak_ptr<DraftUse> use;
    uint64_t seq_id;
    int32_t row;
    const int32_t* token;
  };
  // The arguments of one compute().
  struct Call {
    const std::shared_ptr<DraftUse>& use;
    const DraftBatch& batch;
    Strided<const int32_t> tokens;
    const DraftOutputs& outputs;
  };
  void flush(const Call& call);
  bool make_room_for(uint64_t bytes);
  void write_outputs(const Call& call, const Column<kernels::DrawRow>& draws);
  void mark_failed(const DraftOutputs& outputs);
  void copy_outputs(const Call& call, const Column<kernels::DrawRow>& draws);
  void submit_ops(const DraftModel& model, const kernels::DrawRow* draws, int32_t first, int32_t n,
                  const DraftOutputs& to);
  void copy_rows(const DraftModel& model, const Strided<float>& to,
                 const std::vector<int64_t>& places);
  void copy_lse(const DraftModel& model, const DraftOutputs& outputs, const Column<float>& lse,
                const std::vector<int64_t>& places);
  Status wait();

  Device& device_;
  Staging staging_;
  uint64_t block_bytes_ = 0;  // columns of one forward, at most
  Mode mode_ = Mode::kSubmit;
  bool was_in_one_piece_ = true;
  Status failed_;
  std::vector<Unread> unread_;
  // Of the forward that is being gathered:
  ForwardRows rows_;
  std::vector<DraftRow> gathered_;
};

}  // namespace specd
