// One running request, or one choice of it: the committed tokens and their text. [step] only, except cancel(). Knows
// nothing about pages, rows or drafts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/request/logit_bias.h"
#include "core/request/rank.h"
#include "core/request/request.h"
#include "core/request/request_metrics.h"
#include "core/request/stop_rule.h"
#include "core/text/detokenizer.h"
#include "core/text/tokenizer.h"

namespace specd {

class Sequence {
 public:
  // `request` has no prompt any more (Request::drop_prompt()); `prompt` is the model's input, at least
  // one token. `sampling` is complete. `eos` are the model's stop ids. index: of the choice of the
  // request, whose sequences have numbers in a row.
  Sequence(uint64_t number, const Request& request, std::vector<int32_t> prompt,
           const SamplingParams& sampling, const std::vector<int32_t>& eos,
           const std::shared_ptr<const Tokenizer>& tokenizer, Sink sink, int32_t index = 0);

  uint64_t number() const { return number_; }  // unique in the engine
  int32_t index() const { return index_; }
  // The number of choice 0.
  uint64_t request_number() const { return number_ - static_cast<uint64_t>(index_); }
  const Request& request() const { return request_; }  // without its prompt
  // Which sequences may share text by way of a drafter (specd_begin_args): those with the same cache salt.
  uint64_t tenant() const { return tenant_; }
  // only before the sequence is shared
  void set_id(std::string id) { request_.id = std::move(id); }
  const SamplingParams& sampling() const { return sampling_; }
  // Counts of tokens(), when the sampling parameters penalize; otherwise empty.
  const std::vector<kernels::PenaltySeen>& seen() const { return seen_.seen(); }
  const LogitBias& logit_bias() const { return logit_bias_; }
  // Prompt, then output. The KV of the last token is never computed yet.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_prompt() const { return n_prompt_; }
  int32_t n_output() const { return size() - n_prompt_; }
  // Tokens that may still be emitted.
  int32_t n_left() const { return request_.max_tokens - n_output(); }
  FinishReason finish() const { return finish_; }

  // Appends newly decided tokens until the text ends. Returns how many were taken: all, or up to
  // and including the one that ended the text. REQUIRES finish() == kNone and n >= 1.
  int32_t append(const int32_t* tokens, int32_t n);
  // Log-probabilities of the tokens that append() took last.
  void add_logprobs(const Logprobs& logprobs) { event_.logprobs.append(logprobs); }
  // Whether log-probabilities of its prompt are still wanted: those that the rows of the positions
  // [n_scored(), n_prompt() - 1) give the next token.
  bool scores_prompt() const {
    return request_.prompt_logprobs.has_value() && n_scored_ < n_prompt_ - 1;
  }
  int32_t n_scored() const { return n_scored_; }
  void add_prompt_logprobs(const Logprobs& logprobs);
  // Ends the request for any other reason.
  void fail(FinishReason reason, Status error);
  const Status& error() const { return event_.error; }  // valid before send()

  // [any] Called when the client cancels; must_end() acts on it.
  void cancel() { cancelled_ = true; }
  // Returns true when the request has ended, or ends it here because it was cancelled or is past
  // its deadline.
  bool must_end(uint64_t now_ns);

  // Sends what append() and fail() have collected, if anything, after counting it.
  void send();

  Usage usage;
  Rank rank;
  uint64_t deadline_ns = 0;                                     // 0 = none
  uint64_t arrived_ns = 0, started_ns = 0, first_token_ns = 0;  // by now_ns()
  RequestMetrics* metrics = nullptr;  // must outlive this; null = no counting

 private:
  uint64_t number_;
  int32_t index_;
  Request request_;
  uint64_t tenant_;
  SamplingParams sampling_;
  std::vector<int32_t> tokens_;
  SeenTokens seen_;
  int32_t n_prompt_;
  int32_t n_scored_ = 0;
  std::unordered_set<int32_t> stop_tokens_;
  LogitBias logit_bias_;
  Detokenizer detokenizer_;
  StopStrings stop_strings_;
  Sink sink_;
  FinishReason finish_ = FinishReason::kNone;
  std::atomic<bool> cancelled_{false};
  Event event_;
  uint64_t last_sent_ns_ = 0;  // time when tokens were last sent; 0 = never

  void count_sent(uint64_t sent_ns);
};

}  // namespace specd
