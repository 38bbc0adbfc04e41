#include "core/request/choices.h"

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <utility>

#include "core/base/to_size.h"

namespace specd {
namespace {

class Choices {
 public:
  Choices(const Request& request, Sink client)
      : client_(std::move(client)),
        n_(request.n),
        n_left_(request.n_choices()),
        wants_logprobs_(request.logprobs.has_value()),
        kept_(request.n < request.n_choices() ? to_size(request.n_choices()) : 0) {}

  void on_event(int32_t index, const Event& event) {
    if (event.done) --n_left_;
    try {
      take(index, event);
    } catch (const std::bad_alloc&) {
      failed_ = FinishReason::kError;
      error_ = Status(Code::kExhausted, "out of memory");  // words that need none
    }
    if (n_left_ > 0 || failed_ == FinishReason::kNone || is_over_) return;
    Event last;
    last.done = true;
    last.finish = failed_;
    last.error = std::move(error_);
    last.usage = std::move(usage_);
    client_(last);
  }

 private:
  void take(int32_t index, const Event& event) {
    if (event.done) add_usage(index, event.usage);
    const bool fails =
        event.finish == FinishReason::kError || event.finish == FinishReason::kCancelled;
    if (fails && failed_ == FinishReason::kNone) {
      failed_ = event.finish;
      error_ = event.error;
    }
    if (failed_ != FinishReason::kNone) return;
    if (kept_.empty()) {
      Event sent = event;
      sent.index = index;
      send(std::move(sent), n_left_ == 0);
    } else {
      keep(to_size(index), event);
      if (n_left_ == 0) send_best();
    }
  }

  // The choices share one prompt and overlap in time.
  void add_usage(int32_t index, const Usage& usage) {
    if (index == 0) {
      usage_.prompt_tokens = usage.prompt_tokens;
      usage_.cached_prompt_tokens = usage.cached_prompt_tokens;
      usage_.queue_ns = usage.queue_ns;
      usage_.prefill_ns = usage.prefill_ns;
    }
    usage_.completion_tokens += usage.completion_tokens;
    usage_.preemptions += usage.preemptions;
    usage_.steps += usage.steps;
    usage_.draft_tokens += usage.draft_tokens;
    usage_.accepted_tokens += usage.accepted_tokens;
    usage_.rejected_tokens += usage.rejected_tokens;
    usage_.discarded_tokens += usage.discarded_tokens;
    usage_.decode_ns = std::max(usage_.decode_ns, usage.decode_ns);
    usage_.drafts.insert(usage_.drafts.end(), usage.drafts.begin(), usage.drafts.end());
  }

  void send(Event event, bool is_last) {
    event.done = is_last;
    event.usage = is_last ? std::move(usage_) : Usage{};
    is_over_ = is_last;
    client_(event);
  }

  void keep(size_t index, const Event& event) {
    if (!event.prompt_logprobs.token.empty()) client_({.prompt_logprobs = event.prompt_logprobs});
    Event& all = kept_[index];
    all.tokens.insert(all.tokens.end(), event.tokens.begin(), event.tokens.end());
    all.text += event.text;
    all.logprobs.append(event.logprobs);
    all.finish = event.finish;
    all.stop = event.stop;
  }

  static double mean_logprob(const Event& choice) {
    const std::vector<float>& each = choice.logprobs.token;
    return std::accumulate(each.begin(), each.end(), 0.0) / static_cast<double>(each.size());
  }

  void send_best() {
    std::stable_sort(kept_.begin(), kept_.end(), [](const Event& a, const Event& b) {
      return mean_logprob(a) > mean_logprob(b);
    });
    for (int32_t i = 0; i < n_; ++i) {
      Event& choice = kept_[to_size(i)];
      choice.index = i;
      if (!wants_logprobs_) choice.logprobs = {};
      send(std::move(choice), i + 1 == n_);
    }
  }

  Sink client_;
  int32_t n_, n_left_;
  bool wants_logprobs_;
  std::vector<Event> kept_;  // [choices] when the best are chosen, else empty
  bool is_over_ = false;     // the last event was sent
  Usage usage_;
  FinishReason failed_ = FinishReason::kNone;  // of the first choice that failed
  Status error_;
};

}  // namespace

std::vector<Sink> choice_sinks(const Request& request, Sink client) {
  if (request.n_choices() == 1) return {std::move(client)};
  const auto choices = std::make_shared<Choices>(request, std::move(client));
  std::vector<Sink> sinks;
  sinks.reserve(static_cast<size_t>(request.n_choices()));
  for (int32_t i = 0; i < request.n_choices(); ++i) {
    sinks.emplace_back([choices, i](const Event& event) { choices->on_event(i, event); });
  }
  return sinks;
}

}  // namespace specd
