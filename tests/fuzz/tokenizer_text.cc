// Texts and ids through one tokenizer of each kind: only text that is not UTF-8 is
// refused; byte-level kinds give the text back; streaming ids gives the same text as decoding them
// all at once.
#include <cstring>
#include <vector>

#include "core/base/json.h"
#include "core/text/detokenizer.h"
#include "core/text/tokenizer.h"
#include "core/base/utf8.h"
#include "tests/fuzz/fuzz.h"

namespace {

struct Kind {
  std::shared_ptr<const specd::Tokenizer> tokenizer;
  bool gives_text_back;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = [] {
    std::vector<Kind> made;
    // The others put a space in front or normalize.
    for (const auto& [name, back] : {std::pair("gpt2", false),
                                     {"qwen", false},
                                     {"llama2_legacy", false},
                                     {"metaspace_first", false},
                                     {"cased_expression", true},
                                     {"metaspace_words", false}}) {
      const std::string path =
          std::string(SPECD_TEST_REFERENCE) + "/tokenizer_kinds/" + name + ".json";
      const auto json = specd::parse_json_file(path, 1 << 24);
      const auto tokenizer =
          specd::Tokenizer::from_text(json.value().at("tokenizer").dump(), "tokenizer.json");
      made.push_back({tokenizer.value(), back});
    }
    return made;
  }();
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  if (size == 0) return 0;
  const Kind& kind = kinds()[(data[0] & 0x3F) % kinds().size()];  // the upper bits are options
  const Tokenizer& tokenizer = *kind.tokenizer;
  const bool special = (data[0] & 0x80) != 0;
  const std::string text(fuzz::text_of(data + 1, size - 1));
  const bool utf8 = utf8_error_offset(text) == std::string::npos;
  const TextRange plain{text.size() / 3, text.size() * 2 / 3};
  const bool cut_is_good =
      utf8 &&
      (text.empty() || ((text[plain.begin] & 0xC0) != 0x80 && (text[plain.end] & 0xC0) != 0x80));
  EncodeOptions options{.add_special_tokens = false, .parse_special_tokens = special};
  if (cut_is_good && (data[0] & 0x40) != 0) options.plain = {&plain, 1};
  const auto ids = tokenizer.encode(text, options);
  if (ids.ok() && !utf8) fuzz::fail("text that is not UTF-8 was taken");
  if (!ids.ok() && utf8 && ids.status().code() != Code::kUnsupported)
    fuzz::fail("refused: " + ids.status().to_string());
  if (ids.ok() && kind.gives_text_back && tokenizer.decode(ids.value(), false) != text)
    fuzz::fail("another text came back");
  // The same bytes as ids.
  std::vector<int32_t> any;
  for (size_t i = 1; i + 1 < size; i += 2)
    any.push_back((data[i] << 8 | data[i + 1]) % (tokenizer.vocab_size() + 2) - 1);
  const std::string whole = tokenizer.decode(any, special);
  if (utf8_error_offset(whole) != std::string::npos) fuzz::fail("decoded text is not UTF-8");
  Detokenizer stream(kind.tokenizer, special);
  std::string streamed;
  for (const int32_t id : any) {
    const std::string piece = stream.push(id);
    if (utf8_error_offset(piece) != std::string::npos) fuzz::fail("a piece is not UTF-8");
    streamed += piece;
  }
  streamed += stream.flush();
  if (streamed != whole) fuzz::fail("the stream gave another text");
  return 0;
}
