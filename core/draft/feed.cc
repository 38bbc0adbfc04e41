#include "core/draft/feed.h"

#include <algorithm>
#include <string>
#include <utility>

namespace specd {
namespace {

int64_t place_of(const DraftRequest& request, uint32_t i) {
  return request.output_at == nullptr ? i : request.output_at[i];
}
int64_t source_of(const DraftRequest& request, uint32_t r) {
  return request.token_at == nullptr ? r : request.token_at[r];
}

Status beyond(const DraftModel& model) {
  return Status(Code::kUnsupported,
                "draft model '" + model.name + "' cannot follow the text: it supports " +
                    std::to_string(model.kv.positions_max) + " tokens with ids below " +
                    std::to_string(model.config.vocab_size));
}

// Whether the model can be fed these tokens.
Status check_tokens(const DraftModel& model, const int32_t* tokens, uint32_t n) {
  for (uint32_t r = 0; r < n; ++r) {
    const std::string token = "token " + std::to_string(tokens[r]);
    if (tokens[r] >= 0 && tokens[r] < model.config.vocab_size) continue;
    if (tokens[r] < 0 || tokens[r] >= model.target_vocab_size) {
      return Status(Code::kInvalidArgument,
                    token + ", expected 0.." + std::to_string(model.target_vocab_size - 1));
    }
    return Status(Code::kUnsupported, token + " is not in the vocabulary of draft model '" +
                                          model.name + "', which ends at " +
                                          std::to_string(model.config.vocab_size));
  }
  return Status();
}

}  // namespace

Status DraftFeed::compute(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                          const DraftRequest& request) {
  forward_.compute(use, batch, rows_, request.token, request.outputs);
  sessions_.forward_is_over(*use);
  Status failed = forward_.take_failure();
  if (failed.ok()) return failed;
  for (const DraftRow& each : rows_) {
    if (each.row >= 0) start_over(*use, batch.seq_id.subspan(each.sequence, 1));
  }
  return failed;
}

void DraftFeed::start_over(DraftUse& use, std::span<const uint64_t> seq_id) {
  sessions_.forward_is_over(use);
  // Told already, or not of this call: a device that is lost fails again.
  (void)forward_.take_failure();
  for (const uint64_t each : seq_id) {
    forward_.forget(use, each);
    sessions_.release(use, each);
  }
}

// DraftSessions::extend() for tokens that the model must know.
Status DraftFeed::extend(DraftUse& use, uint64_t seq_id, const int32_t* tokens,
                         const int32_t* parents, uint32_t n) {
  if (tokens != nullptr) SPECD_OK_OR_RETURN(check_tokens(*use.model, tokens, n));
  return sessions_.extend(use, seq_id, tokens, parents, n);
}

Status DraftFeed::forward(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                          const DraftRequest& request, std::span<Status> of) {
  sessions_.protect(batch.step_id);
  const bool on_device = request.outputs.on_device;
  rows_.clear();
  uint32_t output = 0;
  for (uint32_t s = 0; s < batch.seq_id.size(); ++s) {
    const uint32_t begin = request.row_offsets[s], end = request.row_offsets[s + 1];
    of[s] = Status();
    if (begin == end) continue;
    tokens_.clear();
    for (uint32_t r = begin; !on_device && r < end; ++r) {
      tokens_.push_back(*request.token.element(source_of(request, r)));
    }
    of[s] = extend(*use, batch.seq_id[s], on_device ? nullptr : tokens_.data(),
                   request.parent == nullptr ? nullptr : request.parent + begin, end - begin);
    const bool ok = of[s].ok();
    const int32_t first =
        ok ? use->sessions.at(batch.seq_id[s]).n_rows() - static_cast<int32_t>(end - begin) : 0;
    for (uint32_t r = begin; r < end; ++r) {
      const bool wanted = output < request.output_rows.size() && request.output_rows[output] == r;
      const DraftRow row{.sequence = s,
                         .row = ok ? first + static_cast<int32_t>(r - begin) : -1,
                         .token_at = on_device ? source_of(request, r) : -1,
                         .output = wanted ? place_of(request, output++) : -1};
      if (ok || wanted) rows_.push_back(row);
    }
  }
  return compute(use, batch, request);
}

int32_t DraftFeed::trim(DraftUse& use, DraftSession& session, std::span<const int32_t> text) {
  KvMoves moves;
  DraftSessions::trim(session, text, moves);
  forward_.move(*use.model, moves);
  // On a device, a constant number of rows lets a graph be reused. The row before is computed
  // again, with the same result.
  const int32_t n = static_cast<int32_t>(text.size()) - session.kept;
  return n == 1 && session.kept > 0 && !forward_.device().is_host() ? 2 : n;
}

DraftFeed::Fed DraftFeed::feed_text(DraftUse& use, uint64_t seq_id, std::span<const int32_t> text,
                                    int32_t rows_left) {
  DraftSession& session = use.sessions[seq_id];
  const auto length = static_cast<int32_t>(text.size());
  Fed fed;
  if (session.is_beyond || length > use.model->kv.positions_max) {
    fed.status = beyond(*use.model);
  } else {
    fed.missing = trim(use, session, text);
    fed.n_rows = fed.missing <= kSteadyRows ? fed.missing : std::min(fed.missing, rows_left);
    session.kept = length - fed.missing;
    if (fed.n_rows > 0) {
      fed.status = extend(use, seq_id, text.data() + session.kept, nullptr,
                          static_cast<uint32_t>(fed.n_rows));
    } else if (fed.missing > 0 && session.pool_pages.empty()) {
      use.sessions.erase(seq_id);
    }
  }
  // A text that the model does not support never becomes supported: its session returns its pages,
  // and later calls spend no rows on it.
  if (fed.status.code() == Code::kUnsupported) {
    sessions_.release(use, seq_id);
    use.sessions[seq_id].is_beyond = true;
  }
  return fed;
}

Status DraftFeed::follow(const std::shared_ptr<DraftUse>& use, const DraftBatch& batch,
                         const DraftRequest& request, std::span<Status> of,
                         std::vector<uint32_t>* n_rows) {
  sessions_.protect(batch.step_id);
  int32_t left = request.rows_max;
  std::vector<uint64_t> fed_ids;
  rows_.clear();
  uint32_t output = 0;
  for (uint32_t s = 0; s < batch.seq_id.size(); ++s) {
    Fed fed = feed_text(*use, batch.seq_id[s], batch.text[s], left);
    if (n_rows != nullptr) n_rows->push_back(static_cast<uint32_t>(fed.n_rows));
    const bool wanted = output < request.output_rows.size() && request.output_rows[output] == s;
    const int64_t place = wanted ? place_of(request, output++) : -1;
    const bool is_fed = fed.status.ok(), is_whole = is_fed && fed.n_rows == fed.missing;
    if (is_fed && fed.missing > kSteadyRows) left -= fed.n_rows;
    for (int32_t i = 0; is_fed && i < fed.n_rows; ++i) {
      const bool is_last = i + 1 == fed.missing;
      rows_.push_back({.sequence = s, .row = i, .output = is_last ? place : -1});
    }
    if (is_fed && fed.n_rows > 0) fed_ids.push_back(batch.seq_id[s]);
    of[s] = is_whole || !is_fed ? std::move(fed.status) : Status(Code::kDeadlineExceeded, "");
    if (!is_whole && wanted) rows_.push_back({.sequence = s, .output = place});
  }
  Status status = compute(use, batch, request);
  if (!status.ok()) return status;
  for (const uint64_t seq_id : fed_ids) {
    DraftSession& session = use->sessions.at(seq_id);
    session.end_round(session.kept + session.n_rows());
  }
  return status;
}

}  // namespace specd
