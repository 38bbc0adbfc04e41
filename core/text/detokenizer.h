// Turns a stream of tokens into text that is valid UTF-8 at every moment.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/text/tokenizer.h"

namespace specd {

// Whatever the tokens are, the results of push() and flush() concatenate to Tokenizer::decode() of
// all of them, and none has half a character. At most 3 bytes are held back, or with byte_fallback
// DecodeStream::kRunBytesMax. Not thread-safe; one owner.
class Detokenizer {
 public:
  // `continues`: the stream continues an existing text, so no space is stripped from its beginning.
  Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special,
              bool continues = false);

  // The text that `token` completes; empty while a character is unfinished.
  std::string push(int32_t token);
  // What is held back; an unfinished character becomes U+FFFD. A new stream may follow.
  std::string flush();

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  Tokenizer::TextState state_;
};

}  // namespace specd
