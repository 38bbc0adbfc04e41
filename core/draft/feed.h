// A drafter's request to a draft model, as plain data, and its execution:
//
//   forward: rows of the drafter's choice      follow: the missing part of the committed text
//            └──> sessions grow by them ──> one DraftForward::compute() ──> outputs, a Status each
//
// [step] all functions.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/draft/forward.h"
#include "core/draft/session.h"

namespace specd {

// A sequence that drafted in the step before misses the last committed token. When all drafts were
// accepted, it also misses the last draft, which was never fed.
inline constexpr int32_t kSteadyRows = 2;

// Arrays are in range and consistent; the caller checked them.
struct DraftRequest {
  // forward: row r of sequence s is row_offsets[s] <= r < row_offsets[s + 1].
  std::span<const uint32_t> row_offsets;  // [n_seqs + 1]
  const int32_t* parent = nullptr;        // [n_rows]; null = each row follows the one before it
  const uint32_t* token_at = nullptr;     // [n_rows] elements of `token`; null = r
  Strided<const int32_t> token;           // on the device if the outputs are, else on the host
  // follow: total rows for the sequences that miss more than kSteadyRows.
  int32_t rows_max = 0;
  // forward: rows, follow: sequences; increasing.
  std::span<const uint32_t> output_rows;
  const uint32_t* output_at = nullptr;  // [n_outputs] elements of the outputs; null = i
  DraftOutputs outputs;
};

class DraftFeed final {
 public:
  // Both must outlive this.
  DraftFeed(DraftSessions& sessions, DraftForward& forward)
      : sessions_(sessions), forward_(forward) {}

  // of[s] is the result of sequence s; when one fails, the others continue. The whole call fails
  // when the device does or when there is no room for columns; the sessions that had rows are then
  // empty.
  Status forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request, std::span<Status> of);
  // Like forward(). A sequence that rows_max leaves incomplete gets kDeadlineExceeded without a
  // message. Appends the number of rows of each sequence to `n_rows` unless it is null.
  Status follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                const DraftRequest& request, std::span<Status> of, std::vector<uint32_t>* n_rows);

  // Ends the sessions of these sequences, when it is unknown which of their rows were computed. Takes
  // no memory.
  void start_over(DraftUse& use, std::span<const uint64_t> seq_id);

  // Ends the session's round and keeps the prefix that it shares with `text`. Returns how many
  // tokens follow() must then feed.
  int32_t trim(DraftUse& use, DraftSession& session, std::span<const int32_t> text);

 private:
  // What follow() feeds for one sequence.
  struct Fed {
    int32_t missing = 0, n_rows = 0;
    Status status;
  };
  Fed feed_text(DraftUse& use, uint64_t seq_id, std::span<const int32_t> text, int32_t rows_left);
  Status extend(DraftUse& use, uint64_t seq_id, const int32_t* tokens, const int32_t* parents,
                uint32_t n);
  Status compute(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request);

  DraftSessions& sessions_;
  DraftForward& forward_;
  std::vector<DraftRow> rows_;  // of the current call
  std::vector<int32_t> tokens_;
};

}  // namespace specd
