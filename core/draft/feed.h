// What a drafter asks of a draft model, as plain data, and how it is carried out:
//
//   forward: rows of the drafter's choice      follow: the committed text, as far as it is missing
//            └──> sessions grow by them ──> one DraftForward::compute() ──> outputs, a Status each
//
// Runs on the step thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/draft/forward.h"
#include "core/draft/session.h"

namespace specd {

// A sequence that drafted in the step before misses the last committed token, and the last draft as
// well when all were accepted, since that one was never fed.
inline constexpr int32_t kSteadyRows = 2;

// Arrays are in range and consistent; the caller checked them.
struct DraftRequest {
  // forward: row r of sequence s is row_offsets[s] <= r < row_offsets[s + 1].
  std::span<const uint32_t> row_offsets;  // [n_seqs + 1]
  const int32_t* parent = nullptr;        // [n_rows]; null = each row follows the one before it
  const uint32_t* token_at = nullptr;     // [n_rows] elements of `token`; null = r
  Strided<const int32_t> token;           // where the outputs are: on the device or the host
  // follow: rows for all sequences that miss more than kSteadyRows, together.
  int32_t rows_max = 0;
  // forward: rows, follow: sequences; increasing.
  std::span<const uint32_t> output_rows;
  const uint32_t* output_at = nullptr;  // [n_outputs] elements of the outputs; null = i
  DraftOutputs outputs;
};

class DraftFeed final {
 public:
  // Both outlive this.
  DraftFeed(DraftSessions& sessions, DraftForward& forward)
      : sessions_(sessions), forward_(forward) {}

  // of[s] says what came of sequence s; the others go on when it fails. An error of the whole call
  // comes from the device or from its columns: sessions that had rows are gone then.
  Status forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request, std::span<Status> of);
  // As forward(); kDeadlineExceeded without words for a sequence that rows_max left behind. Appends
  // the rows that each sequence got to `n_rows`, unless it is null.
  Status follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                const DraftRequest& request, std::span<Status> of, std::vector<uint32_t>* n_rows);

  // Ends the session's round, keeping what it shares with `text`; returns how many tokens follow()
  // has to feed then.
  int32_t trim(DraftUse& use, DraftSession& session, std::span<const int32_t> text);

 private:
  // What follow() has done with one sequence.
  struct Fed {
    int32_t missing = 0, n_rows = 0;
    Status status;
  };
  Fed feed_text(DraftUse& use, uint64_t seq_id, std::span<const int32_t> text, int32_t rows_left);
  Status compute(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                 const DraftRequest& request);

  DraftSessions& sessions_;
  DraftForward& forward_;
  std::vector<DraftRow> rows_;  // of the running call
  std::vector<int32_t> tokens_;
};

}  // namespace specd
