#include "core/step/logprobs.h"

#include <algorithm>
#include <string>
#include <vector>

namespace specd {
namespace {

// One column of tokens and one of log-probabilities for each copied row: the text's own token, then
// the most likely ones.
class Table {
 public:
  Table(size_t n_rows, int32_t n_top, int32_t vocab)
      : width_(to_size(n_top) + 1),
        vocab_(vocab),
        token_(n_rows * width_, kNone),
        logprob_(n_rows * width_) {}

  void set_token(int32_t row, int32_t token) { token_[to_size(row) * width_] = token; }

  void compute(CpuDevice& host, const float* logits) {
    const auto n_rows = static_cast<int32_t>(token_.size() / width_);
    const auto width = static_cast<int32_t>(width_);
    if (width > 1) {
      host.ops().top_k(host.stream(), {.logits = logits,
                                       .token = token_.data() + 1,
                                       .n_rows = n_rows,
                                       .vocab = vocab_,
                                       .k = width - 1,
                                       .token_stride = width});
    }
    host.ops().log_prob(host.stream(), {.logits = logits,
                                        .token = token_.data(),
                                        .out = logprob_.data(),
                                        .n_rows = n_rows,
                                        .vocab = vocab_,
                                        .k = width});
  }

  void read(int32_t row, int32_t n_top, Logprobs& to) const {
    const auto first = static_cast<ptrdiff_t>(to_size(row) * width_);
    to.n_top = n_top;
    to.token.push_back(logprob_[to_size(row) * width_]);
    to.top_token.insert(to.top_token.end(), token_.begin() + first + 1,
                        token_.begin() + first + 1 + n_top);
    to.top.insert(to.top.end(), logprob_.begin() + first + 1, logprob_.begin() + first + 1 + n_top);
  }

 private:
  static constexpr int32_t kNone = -1;  // of a row that no text has gone through
  size_t width_;
  int32_t vocab_;
  std::vector<int32_t> token_;
  std::vector<float> logprob_;
};

// The copy of the row that decided the i-th token of this step.
int32_t row_of_token(const ActiveSequence& member, int32_t i) {
  const RowPlace& place = member.place;
  const int32_t logits =
      i == 0 ? place.root_logits : place.logits_of_node[to_size(member.accepted()[to_size(i - 1)])];
  return place.first_raw + logits - place.first_logits;
}

int32_t n_reported(const ActiveSequence& member) {
  return member.sequence->request().logprobs.has_value() ? member.n_taken : 0;
}

// A row that is not finite draws no token.
void check_prompt(ActiveSequence& member, const std::vector<int32_t>& drawn) {
  Sequence& sequence = *member.sequence;
  for (int32_t i = 0; i < member.place.n_scored; ++i) {
    if (drawn[to_size(member.place.first_logits + i)] >= 0) continue;
    if (sequence.finish() != FinishReason::kNone) return;
    sequence.fail(
        FinishReason::kError,
        Status(Code::kInternal, "the model's logits at position " +
                                    std::to_string(sequence.n_scored() + i) + " are not finite"));
  }
}

}  // namespace

Scored scored_rows(const ActiveSequence& member) {
  const Sequence& sequence = *member.sequence;
  if (!sequence.scores_prompt()) return {};
  const int32_t first = std::max(sequence.n_scored(), member.n_computed);
  const int32_t end = std::min(sequence.n_prompt() - 1, member.n_computed + member.n_rows);
  return {.first = first - member.n_computed, .n = std::max(end - first, 0)};
}

void report_logprobs(CpuDevice& host, const Members& members, const StepInput& input,
                     const StepOutput& output, int32_t vocab) {
  if (input.raw_to_host.empty()) return;
  int32_t n_top = 0;
  for (const ActiveSequence* member : members) {
    const Request& request = member->sequence->request();
    n_top = std::max({n_top, request.logprobs.value_or(0), request.prompt_logprobs.value_or(0)});
  }
  Table table(input.raw_to_host.size(), n_top, vocab);
  for (const ActiveSequence* member : members) {
    const Sequence& sequence = *member->sequence;
    for (int32_t i = 0; i < member->place.n_scored; ++i) {
      table.set_token(member->place.first_raw + i,
                      sequence.tokens()[to_size(sequence.n_scored() + i + 1)]);
    }
    for (int32_t i = 0; i < n_reported(*member); ++i) {
      table.set_token(row_of_token(*member, i),
                      sequence.tokens()[to_size(sequence.size() - member->n_taken + i)]);
    }
  }
  table.compute(host, output.raw);
  for (ActiveSequence* member : members) {
    Sequence& sequence = *member->sequence;
    check_prompt(*member, output.drawn);
    Logprobs of_prompt, of_tokens;
    for (int32_t i = 0; i < member->place.n_scored; ++i) {
      table.read(member->place.first_raw + i, *sequence.request().prompt_logprobs, of_prompt);
    }
    for (int32_t i = 0; i < n_reported(*member); ++i) {
      table.read(row_of_token(*member, i), *sequence.request().logprobs, of_tokens);
    }
    if (!of_prompt.token.empty()) sequence.add_prompt_logprobs(of_prompt);
    if (!of_tokens.token.empty()) sequence.add_logprobs(of_tokens);
  }
}

}  // namespace specd
