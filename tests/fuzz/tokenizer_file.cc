// tokenizer.json: what is accepted encodes and decodes any text, within a second.
#include "core/text/tokenizer.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto tokenizer = Tokenizer::from_text(fuzz::text_of(data, size), "tokenizer.json");
  fuzz::check_message(tokenizer.status(), "tokenizer.json");
  if (!tokenizer.ok()) return 0;
  const Tokenizer& made = *tokenizer.value();
  static const std::string kTexts[] = {"", "hello world, it's 1234567",
                                       "<s> a\u0301 \u00e9\u4e16 </s>\n\n", std::string(3000, 'a'),
                                       std::string(3000, ' ') + "\u2581"};
  for (const std::string& text : kTexts) {
    const auto ids = made.encode(text);
    if (!ids.ok()) continue;
    for (const int32_t id : ids.value()) {
      if (id < 0 || id >= made.vocab_size()) fuzz::fail("an id of no token");
    }
    const std::string whole = made.decode(ids.value(), false);
    std::string streamed;
    Tokenizer::TextState state = made.begin_text();
    for (const int32_t id : ids.value()) made.push(id, false, state, streamed);
    if (whole.compare(0, streamed.size(), streamed) != 0)
      fuzz::fail("a stream that is not the text");
  }
  return 0;
}
