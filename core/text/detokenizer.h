// Turns a stream of tokens into text that is valid UTF-8 at every moment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/text/tokenizer.h"

namespace specd {

// The pieces of push() and flush(), put together, are Tokenizer::decode() of all tokens, whatever
// the tokens are; no piece holds half a character. At most 3 bytes wait, or with byte_fallback
// DecodeStream::kRunBytesMax. Not thread-safe; one owner.
class Detokenizer {
 public:
  // continues: the stream goes on behind a text, so no space is stripped from its beginning.
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
              bool continues = false);

  // The text that `token` completes; empty while a character is unfinished.
  std::string push(int32_t token);
  // What waits; a beginning of a character becomes U+FFFD. The stream may start anew after it.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  Tokenizer::TextState state_;
};

}  // namespace specd
