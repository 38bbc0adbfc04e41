#include "core/text/detokenizer.h"

#include <utility>

namespace specd {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
                         bool continues)
    : tokenizer_(std::move(tokenizer)),
      skip_special_(skip_special),
      state_(continues ? tokenizer_->continue_text() : tokenizer_->begin_text()) {}

std::string Detokenizer::push(int32_t token) {
  std::string text;
  tokenizer_->push(token, skip_special_, state_, text);
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  state_.stream.flush(text);
  state_.first = true;
  return text;
}

}  // namespace specd
