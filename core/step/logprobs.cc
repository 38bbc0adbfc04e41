#include "core/step/logprobs.h"

#include <algorithm>
#include <new>
#include <string>
#include <vector>

namespace specd {
namespace {

class Report {
 public:
  Report(CpuDevice& host, const StepOutput& output, int32_t vocab)
      : host_(host), output_(output), vocab_(vocab) {}

  void of_prompt(ActiveSequence& member) {
    Sequence& sequence = *member.sequence;
    const int32_t n = member.place.n_scored;
    if (n == 0) return;
    check_finite(member);
    const int32_t* next = sequence.tokens().data() + sequence.n_scored() + 1;
    Logprobs logprobs{.n_top = *sequence.request().prompt_logprobs};
    add(member.place.first_raw, next, n, logprobs);
    sequence.add_prompt_logprobs(logprobs);
  }

  void of_tokens(ActiveSequence& member) {
    Sequence& sequence = *member.sequence;
    if (!sequence.request().logprobs.has_value()) return;
    Logprobs logprobs{.n_top = *sequence.request().logprobs};
    const int32_t* token = sequence.tokens().data() + sequence.size() - member.n_taken;
    for (int32_t begin = 0, end = 0; begin < member.n_taken; begin = end) {
      const int32_t first = row_of(member, begin);
      for (end = begin + 1; end < member.n_taken && row_of(member, end) == first + end - begin;) {
        ++end;
      }
      add(first, token + begin, end - begin, logprobs);
    }
    if (!logprobs.token.empty()) sequence.add_logprobs(logprobs);
  }

 private:
  // The copy of the row that decided the i-th token of this step.
  static int32_t row_of(const ActiveSequence& member, int32_t i) {
    const RowPlace& place = member.place;
    const int32_t logits = i == 0
                               ? place.root_logits
                               : place.logits_of_node[to_size(member.accepted()[to_size(i - 1)])];
    return place.first_raw + logits - place.first_logits;
  }

  // A row that is not finite draws no token.
  void check_finite(ActiveSequence& member) const {
    Sequence& sequence = *member.sequence;
    const auto first = output_.drawn.begin() + member.place.first_logits;
    const auto bad =
        std::find_if(first, first + member.place.n_scored, [](int32_t drawn) { return drawn < 0; });
    const bool has_failed =
        sequence.finish() == FinishReason::kError || sequence.finish() == FinishReason::kCancelled;
    if (has_failed || bad == first + member.place.n_scored) return;
    sequence.fail(FinishReason::kError,
                  Status(Code::kInternal, "the model's logits at position " +
                                              std::to_string(sequence.n_scored() + (bad - first)) +
                                              " are not finite"));
  }

  // Of n copied rows, which give the tokens [n] their probabilities.
  void add(int32_t first_row, const int32_t* token, int32_t n, Logprobs& to) {
    const float* logits = output_.raw + int64_t{first_row} * vocab_;
    const size_t n_top = to_size(n) * to_size(to.n_top);
    top_token_.resize(n_top);
    token_.resize(to_size(n));
    top_.resize(n_top);
    kernels::LogProbArgs args{.logits = logits,
                              .token = token,
                              .out = token_.data(),
                              .n_rows = n,
                              .vocab = vocab_,
                              .k = 1};
    host_.ops().log_prob(host_.stream(), args);
    if (to.n_top > 0) {
      host_.ops().top_k(host_.stream(), {.logits = logits,
                                         .token = top_token_.data(),
                                         .n_rows = n,
                                         .vocab = vocab_,
                                         .k = to.n_top});
      args.token = top_token_.data();
      args.out = top_.data();
      args.k = to.n_top;
      host_.ops().log_prob(host_.stream(), args);
    }
    to.append({to.n_top, token_, top_token_, top_});
  }

  CpuDevice& host_;
  const StepOutput& output_;
  const int32_t vocab_;
  std::vector<int32_t> top_token_;
  std::vector<float> token_, top_;
};

}  // namespace

bool wants_raw(const ActiveSequence& member) {
  return scored_rows(member).n > 0 ||
         (member.wants_token && member.sequence->request().logprobs.has_value());
}

Scored scored_rows(const ActiveSequence& member) {
  const Sequence& sequence = *member.sequence;
  if (!sequence.scores_prompt()) return {};
  const int32_t first = std::max(sequence.n_scored(), member.n_computed);
  const int32_t end = std::min(sequence.n_prompt() - 1, member.n_computed + member.n_rows);
  return {.first = first - member.n_computed, .n = std::max(end - first, 0)};
}

void report_logprobs(CpuDevice& host, const Members& members, const StepOutput& output,
                     int32_t vocab) {
  Report report(host, output, vocab);
  for (ActiveSequence* member : members) {
    try {
      report.of_prompt(*member);
      report.of_tokens(*member);
    } catch (const std::bad_alloc&) {
      // Words that need none. Not even a text that has ended is complete without them.
      member->sequence->fail(FinishReason::kError, Status(Code::kExhausted, "out of memory"));
    }
  }
}

}  // namespace specd
