#include "core/text/detokenizer.h"

#include <utility>

#include "core/text/utf8.h"

namespace specd {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string Detokenizer::push(int32_t token) {
  std::string text;
  if (skip_special_ && tokenizer_->is_special(token)) return text;
  waiting_ += tokenizer_->token_bytes(token);
  waiting_.erase(0, utf8_append_lossy(waiting_, false, text));
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  utf8_append_lossy(waiting_, true, text);
  waiting_.clear();
  return text;
}

}  // namespace specd
