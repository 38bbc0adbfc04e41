#include "core/request/sequence.h"

#include <algorithm>
#include <utility>

#include "core/base/clock.h"
#include "core/base/siphash.h"
#include "core/base/to_size.h"

namespace specd {

const char* finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return "none";
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

namespace {
// Returns whether the prompt contains any text, which the output then continues.
bool shows_text(const Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  return std::any_of(prompt.begin(), prompt.end(), [&](int32_t token) {
    return !tokenizer.is_special(token) && !tokenizer.token_bytes(token).empty();
  });
}

// 0 = no salt. The key is of this process: nobody can choose salts with equal values.
uint64_t tenant_of(const std::string& salt) {
  // A key of its own: plugins see these hashes, and must not learn of those that guard the host's tables.
  static const SipKey key = SipKey::random();
  return salt.empty() ? 0 : std::max<uint64_t>(1, siphash(key, salt.data(), salt.size()));
}

// The request as one choice of it keeps it.
Request of_choice(Request request, int32_t index) {
  if (index > 0) request.prompt_logprobs.reset();
  if (request.n_choices() > request.n && !request.logprobs.has_value()) request.logprobs = 0;
  return request;
}
}  // namespace

Sequence::Sequence(uint64_t number, const Request& request, std::vector<int32_t> prompt,
                   const SamplingParams& sampling, const std::vector<int32_t>& eos,
                   const std::shared_ptr<const Tokenizer>& tokenizer, Sink sink, int32_t index)
    : number_(number),
      index_(index),
      request_(of_choice(request, index)),
      tenant_(tenant_of(request.cache_salt)),
      sampling_(sampling),
      tokens_(std::move(prompt)),
      n_prompt_(static_cast<int32_t>(tokens_.size())),
      stop_tokens_(request_.stop_tokens.begin(), request_.stop_tokens.end()),
      detokenizer_(tokenizer, true, shows_text(*tokenizer, tokens_)),
      stop_strings_(request_.stop),
      sink_(std::move(sink)) {
  if (!request_.ignore_eos) stop_tokens_.insert(eos.begin(), eos.end());
  logit_bias_ = LogitBias(request_.logit_bias, {stop_tokens_.begin(), stop_tokens_.end()},
                          request_.min_tokens);
  if (sampling_.penalizes()) seen_.add(tokens_, false);
  usage.prompt_tokens = n_prompt_;
  // Now, because a step must not fail for want of memory. A step emits at least one token.
  if (request_.records_drafts) usage.drafts.reserve(to_size(request_.max_tokens));
}

int32_t Sequence::append(const int32_t* tokens, int32_t n) {
  SPECD_CHECK(finish_ == FinishReason::kNone && n >= 1, request_.id);
  if (first_token_ns == 0) first_token_ns = now_ns();
  int32_t taken = 0;
  FinishReason finish = FinishReason::kNone;  // set last: a text without its end has not finished
  while (taken < n && finish == FinishReason::kNone) {
    const int32_t token = tokens[taken++];
    tokens_.push_back(token);
    event_.tokens.push_back(token);
    // At once: the client gets it even if memory ends below.
    ++usage.completion_tokens;
    if (metrics != nullptr) ++metrics->tokens;
    if (sampling_.penalizes()) seen_.add({&token, 1}, true);
    if (stop_tokens_.contains(token)) {
      finish = FinishReason::kStop;
      break;
    }
    const std::string piece = detokenizer_.push(token);
    event_.text += n_output() < request_.min_tokens ? piece : stop_strings_.push(piece);
    if (stop_strings_.found()) {
      finish = FinishReason::kStop;
    } else if (n_left() == 0) {
      finish = FinishReason::kLength;
    }
  }
  if (finish != FinishReason::kNone) {
    event_.text += stop_strings_.push(detokenizer_.flush());
    // in text held back so far because of incomplete bytes
    if (stop_strings_.found()) finish = FinishReason::kStop;
    event_.text += stop_strings_.flush();
    event_.stop = stop_strings_.which();
    finish_ = finish;
  }
  return taken;
}

void Sequence::add_prompt_logprobs(const Logprobs& logprobs) {
  event_.prompt_logprobs.append(logprobs);
  n_scored_ += static_cast<int32_t>(logprobs.token.size());
}

void Sequence::fail(FinishReason reason, Status error) {
  finish_ = reason;
  event_.error = std::move(error);
}

bool Sequence::must_end(uint64_t now_ns) {
  if (finish_ != FinishReason::kNone) return true;
  // The deadline first: it is the reason also of the choices that are cancelled because one missed it.
  if (deadline_ns != 0 && now_ns >= deadline_ns) {
    fail(FinishReason::kError,
         Status(Code::kDeadlineExceeded,
                "deadline_ms: " + std::to_string(request_.deadline_ms) + " ms have passed; " +
                    std::to_string(usage.completion_tokens) + " tokens were generated"));
  } else if (cancelled_) {
    fail(FinishReason::kCancelled, Status(Code::kCancelled, "the request was cancelled"));
  }
  return finish_ != FinishReason::kNone;
}

void Sequence::send() {
  if (event_.tokens.empty() && event_.prompt_logprobs.token.empty() &&
      finish_ == FinishReason::kNone) {
    return;
  }
  const uint64_t sent_ns = now_ns();
  if (finish_ != FinishReason::kNone) {
    const uint64_t end_ns = sent_ns;
    const uint64_t started = started_ns == 0 ? end_ns : started_ns;
    const uint64_t first = first_token_ns == 0 ? end_ns : first_token_ns;
    usage.queue_ns = started - arrived_ns;
    usage.prefill_ns = first - started;
    usage.decode_ns = end_ns - first;
    event_.done = true;
    event_.finish = finish_;
    std::vector<StepDrafts> drafts = std::move(usage.drafts);  // the last event needs no memory
    event_.usage = usage;
    event_.usage.drafts = std::move(drafts);
  }
  // Count before calling the sink, so that an observed event has already been counted.
  if (metrics != nullptr) count_sent(sent_ns);
  sink_(event_);
  event_ = Event{};
}

void Sequence::count_sent(uint64_t sent_ns) {
  if (const uint64_t n = event_.tokens.size(); n > 0) {
    uint64_t later = n;  // tokens after the request's first
    if (last_sent_ns_ == 0) {
      metrics->time_to_first_token.record(sent_ns - arrived_ns);
      last_sent_ns_ = sent_ns;
      --later;
    }
    if (later > 0) metrics->inter_token_latency.record((sent_ns - last_sent_ns_) / later, later);
    last_sent_ns_ = sent_ns;
  }
  if (!event_.done) return;
  ++metrics->ended[static_cast<size_t>(finish_)];
  if (index_ == 0) metrics->prompt_tokens += static_cast<uint64_t>(usage.prompt_tokens);
  metrics->queue_time.record(usage.queue_ns);
  metrics->whole_time.record(sent_ns - arrived_ns);
  metrics->prompt_lengths.record(static_cast<uint64_t>(usage.prompt_tokens));
  metrics->text_lengths.record(static_cast<uint64_t>(usage.completion_tokens));
  metrics->max_tokens.record(static_cast<uint64_t>(request_.max_tokens));
  if (first_token_ns == 0) return;
  metrics->prefill_time.record(usage.prefill_ns);
  metrics->decode_time.record(usage.decode_ns);
}

}  // namespace specd
