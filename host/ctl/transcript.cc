#include "host/ctl/transcript.h"

#include <algorithm>

namespace specd::host {
namespace {

constexpr int32_t kChoicesMax = 1024;  // more than any daemon sends

}  // namespace

void Transcript::Logprobs::add(const Ids& ids, const v1::Logprobs& logprobs) {
  const int n = std::min(logprobs.token_size(), ids.size());
  const int n_top = n == 0 ? 0 : logprobs.top_size() / logprobs.token_size();
  for (int i = 0; i < n; ++i) {
    std::string most_likely;
    for (int k = i * n_top; k < (i + 1) * n_top && k < logprobs.top_token_ids_size(); ++k) {
      most_likely += (most_likely.empty() ? "" : "  ") + std::to_string(logprobs.top_token_ids(k)) +
                     " (" + fixed(double{logprobs.top(k)}, 3) + ")";
    }
    table.add({std::to_string(ids[i]), fixed(double{logprobs.token(i)}, 3), most_likely});
  }
}

std::string Transcript::add(const v1::GenerateResponse& message) {
  if (message.has_started()) {
    unscored_ = message.started().prompt_token_ids();
    if (!unscored_.empty()) unscored_.erase(unscored_.begin());
    return message.started().prompt_text();
  }
  if (message.has_prompt_logprobs()) {
    prompt_.add(unscored_, message.prompt_logprobs());
    const int n = std::min(unscored_.size(), message.prompt_logprobs().token_size());
    unscored_.erase(unscored_.begin(), unscored_.begin() + n);
  }
  if (!message.has_chunk()) return "";
  const v1::Chunk& chunk = message.chunk();
  if (chunk.index() < 0 || chunk.index() >= kChoicesMax) return "";
  const auto index = static_cast<size_t>(chunk.index());
  if (index >= choices_.size()) choices_.resize(index + 1);
  Choice& choice = choices_[index];
  choice.logprobs.add(chunk.token_ids(), chunk.logprobs());
  if (chunk.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    choice.finish = chunk.finish_reason() == v1::FINISH_REASON_STOP ? "stop" : "length";
  }
  if (index == 0) return chunk.text();
  choice.text += chunk.text();
  return "";
}

std::string Transcript::rest() const {
  std::string shown = "\n";
  for (size_t i = 0; i < choices_.size() && choices_.size() > 1; ++i) {
    const Choice& choice = choices_[i];
    shown += (i == 0 ? "--- that was choice " : "--- choice ") + std::to_string(i) +
             (choice.finish.empty() ? "" : " (" + choice.finish + ")") + "\n";
    if (i > 0) shown += choice.text + "\n";
  }
  const auto show = [&](const std::string& what, const Logprobs& logprobs) {
    const std::string lines = logprobs.table.text();
    if (!lines.empty()) shown += "--- log-probabilities of " + what + "\n" + lines;
  };
  show("the prompt", prompt_);
  for (size_t i = 0; i < choices_.size(); ++i) {
    show("choice " + std::to_string(i), choices_[i].logprobs);
  }
  return shown;
}

}  // namespace specd::host
