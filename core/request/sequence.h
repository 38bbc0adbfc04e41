// One request on its way: the committed tokens and the text they make.
// [step] only, but for cancel(); nothing here knows of pages, rows or drafts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "core/request/rank.h"
#include "core/request/request.h"
#include "core/request/request_metrics.h"
#include "core/request/stop_rule.h"
#include "core/text/detokenizer.h"
#include "core/text/tokenizer.h"

namespace specd {

class Sequence {
 public:
  // `prompt` is what the model sees first, at least one token; of `request` its words are not kept.
  // `sampling` is complete. `eos` are the model's own stop ids.
  Sequence(uint64_t number, const Request& request, std::vector<int32_t> prompt,
           const SamplingParams& sampling, const std::vector<int32_t>& eos,
           std::shared_ptr<const Tokenizer> tokenizer, Sink sink);

  uint64_t number() const { return number_; }                   // never reused by one process
  const Request& request() const { return request_; }           // without the prompt
  void set_id(std::string id) { request_.id = std::move(id); }  // before anybody else knows it
  const SamplingParams& sampling() const { return sampling_; }
  // Of tokens(), when the sampling penalizes; else empty.
  const std::vector<kernels::PenaltySeen>& seen() const { return seen_.seen(); }
  // Prompt, then output. The last token's KV is never computed yet.
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }
  int32_t n_prompt() const { return n_prompt_; }
  // Tokens that may still be emitted.
  int32_t n_left() const { return request_.max_tokens - (size() - n_prompt_); }
  FinishReason finish() const { return finish_; }

  // Appends newly decided tokens until the text ends; returns how many were taken (all, or up to
  // and with the one that ended it). REQUIRES finish() == kNone and n >= 1.
  int32_t append(const int32_t* tokens, int32_t n);
  // Ends the request another way.
  void fail(FinishReason reason, Status error);
  const Status& error() const { return event_.error; }  // before send()

  // [any] The client wants no more; must_end() sees it.
  void cancel() { cancelled_ = true; }
  // True when the request has ended, or ends here: it was cancelled or is past its deadline.
  bool must_end(uint64_t now_ns);

  // Sends what append() and fail() have gathered, if anything, and counts it first.
  void send();

  Usage usage;
  Rank rank;
  uint64_t deadline_ns = 0;                                     // 0 = none
  uint64_t arrived_ns = 0, started_ns = 0, first_token_ns = 0;  // by now_ns()
  RequestMetrics* metrics = nullptr;  // outlives this; null = nobody counts

 private:
  uint64_t number_;
  Request request_;
  SamplingParams sampling_;
  std::vector<int32_t> tokens_;
  SeenTokens seen_;
  int32_t n_prompt_;
  std::unordered_set<int32_t> stop_tokens_;
  Detokenizer detokenizer_;
  StopStrings stop_strings_;
  Sink sink_;
  FinishReason finish_ = FinishReason::kNone;
  std::atomic<bool> cancelled_{false};
  Event event_;
  uint64_t last_sent_ns_ = 0;  // when the last tokens went out; 0 = none yet

  void count_sent(uint64_t sent_ns);
};

}  // namespace specd
