// Every kind of tokenizer against what the reference makes of the same texts and ids.
#include <chrono>
#include <random>

#include "core/text/detokenizer.h"
#include "core/text/pattern.h"
#include "tests/core/text/kinds.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

constexpr EncodeOptions kBare = {.add_special_tokens = false};

std::string stream(const std::shared_ptr<const Tokenizer>& tokenizer,
                   const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(tokenizer, skip_special);
  std::string all;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_EQ(utf8_error_offset(piece), std::string_view::npos);
    all += piece;
  }
  return all + detokenizer.flush();
}

class TokenizerKinds : public testing::TestWithParam<std::string> {
 protected:
  const Json& goldens() const { return tokenizer_kind(GetParam()).goldens; }
  const std::shared_ptr<const Tokenizer>& tokenizer() const {
    return tokenizer_kind(GetParam()).tokenizer;
  }
};
INSTANTIATE_TEST_SUITE_P(Kind, TokenizerKinds, testing::ValuesIn(kind_names()),
                         [](const auto& kind) { return kind.param; });

// What an engine sends is behind a prompt: together they are the text of all ids.
TEST_P(TokenizerKinds, a_stream_behind_a_prompt_keeps_the_space_that_parts_them) {
  size_t parted = 0;
  for (const std::string text : {"The capital of France is Paris , and so on",
                                 " two  spaces   here", "one", "a b c d e f"}) {
    const auto ids = tokenizer()->encode(text, {.add_special_tokens = false}).value();
    for (size_t cut = 1; cut < ids.size(); ++cut) {
      const std::span<const int32_t> all(ids);
      Detokenizer stream(tokenizer(), false, true);
      std::string rest;
      for (const int32_t id : all.subspan(cut)) rest += stream.push(id);
      rest += stream.flush();
      EXPECT_EQ(tokenizer()->decode(all.first(cut), false) + rest, tokenizer()->decode(all, false))
          << text << ", cut at " << cut;
      parted += rest.starts_with(' ') ? 1 : 0;
    }
  }
  EXPECT_GT(parted, 0u);
}

TEST_P(TokenizerKinds, encodes_as_the_reference_does) {
  const auto& texts = kind_texts();
  ASSERT_GE(texts.size(), 2000u);
  ASSERT_EQ(goldens()["encode"].size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer()->encode(texts[i], kBare).value(), unpack_ids(goldens()["encode"][i]))
        << Json(texts[i]);
  }
}

TEST_P(TokenizerKinds, puts_the_template_around_the_text) {
  ASSERT_GE(goldens()["encode_bos"].size(), 50u);
  for (const Json& golden : goldens()["encode_bos"]) {
    const std::string& text = kind_texts()[golden[0].get<size_t>()];
    EXPECT_EQ(tokenizer()->encode(text).value(), unpack_ids(golden[1])) << Json(text);
  }
}

TEST_P(TokenizerKinds, special_tokens_can_be_taken_as_plain_text) {
  ASSERT_GE(goldens()["encode_plain"].size(), 100u);
  for (const Json& golden : goldens()["encode_plain"]) {
    const std::string& text = kind_texts()[golden[0].get<size_t>()];
    const EncodeOptions plain = {.add_special_tokens = false, .parse_special_tokens = false};
    EXPECT_EQ(tokenizer()->encode(text, plain).value(), unpack_ids(golden[1])) << Json(text);
  }
}

TEST_P(TokenizerKinds, decodes_as_the_reference_does_broken_characters_included) {
  ASSERT_GE(goldens()["decode"].size(), 400u);
  size_t replaced = 0;
  for (const Json& golden : goldens()["decode"]) {
    const std::vector<int32_t> ids = unpack_ids(golden[0]);
    const auto skip = golden[1].get<bool>();
    const auto text = golden[2].get<std::string>();
    replaced += text.find("\xEF\xBF\xBD") != std::string::npos;
    EXPECT_EQ(tokenizer()->decode(ids, skip), text) << Json(ids);
    EXPECT_EQ(stream(tokenizer(), ids, skip), text) << Json(ids);
  }
  EXPECT_GE(replaced, GetParam() == "metaspace_words" ? 0u : 40u);  // which has no tokens of bytes
}

TEST_P(TokenizerKinds, finds_no_special_token_that_touches_a_plain_range) {
  ASSERT_GE(goldens()["ranges"].size(), 200u);
  for (const Json& golden : goldens()["ranges"]) {
    std::string text;
    std::vector<TextRange> plain;
    for (size_t i = 0; i < golden[0].size(); ++i) {
      const size_t begin = text.size();
      text += golden[0][i].get_ref<const std::string&>();
      if (i % 2 == 1) plain.push_back({begin, text.size()});
    }
    const EncodeOptions options = {.add_special_tokens = false, .plain = plain};
    EXPECT_EQ(tokenizer()->encode(text, options).value(), unpack_ids(golden[1])) << golden[0];
  }
}

TEST_P(TokenizerKinds, a_text_that_is_plain_all_over_is_one_without_special_tokens) {
  for (const Json& golden : goldens()["encode_plain"]) {
    const std::string& text = kind_texts()[golden[0].get<size_t>()];
    const TextRange all[] = {{0, text.size()}};
    EXPECT_EQ(tokenizer()->encode(text, {.add_special_tokens = false, .plain = all}).value(),
              unpack_ids(golden[1]))
        << Json(text);
  }
}

TEST_P(TokenizerKinds, plain_ranges_without_special_tokens_change_nothing) {
  std::mt19937 random(11);
  for (size_t i = 0; i < kind_texts().size(); ++i) {
    const std::string& text = kind_texts()[i];
    bool has_special = false;
    for (const char* special :
         {"<|begin_of_text|>", "<|end_of_text|>", "<s>", "</s>", "<unk>", "<pad>"}) {
      has_special |= text.find(special) != std::string::npos;
    }
    if (has_special || text.empty()) continue;
    std::vector<TextRange> plain;
    for (size_t at = random() % text.size(); at < text.size();) {
      const size_t end = std::min<size_t>(text.size(), at + random() % 9);
      plain.push_back({at, end});
      at = end + random() % 9;
    }
    EXPECT_EQ(tokenizer()->encode(text, {.add_special_tokens = false, .plain = plain}).value(),
              unpack_ids(goldens()["encode"][i]))
        << Json(text);
  }
}

TEST_P(TokenizerKinds, plain_ranges_must_be_in_order_and_inside) {
  const std::string text = "abcdef";
  for (const std::vector<TextRange>& ranges : std::vector<std::vector<TextRange>>{
           {{2, 1}}, {{0, 7}}, {{0, 3}, {2, 4}}, {{3, 4}, {0, 1}}, {{SIZE_MAX, SIZE_MAX}}}) {
    const auto ids = tokenizer()->encode(text, {.plain = ranges});
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
  }
}

TEST_P(TokenizerKinds, pieces_together_are_the_whole_for_any_tokens) {
  std::mt19937 random(7);
  std::vector<int32_t> bytes;  // single bytes break characters most often
  for (int32_t id = 0; id < tokenizer()->vocab_size(); ++id) {
    if (tokenizer()->token_bytes(id).size() == 1) bytes.push_back(id);
  }
  ASSERT_GE(bytes.size(), 50u);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int32_t> ids(random() % 60);
    for (int32_t& id : ids) {
      id = random() % 9 == 0 ? static_cast<int32_t>(random() % 2000)
                             : bytes[random() % bytes.size()];
    }
    const bool skip = random() % 2 == 0;
    ASSERT_EQ(stream(tokenizer(), ids, skip), tokenizer()->decode(ids, skip)) << Json(ids);
  }
}

class TokenizerPieces : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Kind, TokenizerPieces, testing::Values("qwen", "cased_expression", "gpt2"),
                         [](const auto& kind) { return kind.param; });

TEST_P(TokenizerPieces, end_where_the_reference_ends_them) {
  const Json& goldens = tokenizer_kind(GetParam()).goldens;
  const Json& steps = goldens["tokenizer"]["pre_tokenizer"];
  const Pattern pattern =
      GetParam() == "gpt2" ? Pattern::scanner(gpt2_piece_end)
                           : Pattern::from_json(steps["pretokenizers"][0]["pattern"], "p").value();
  std::vector<Pattern::Part> parts;
  ASSERT_GE(goldens["pieces"].size(), 50u);
  for (const Json& golden : goldens["pieces"]) {
    const std::string& text = kind_texts()[golden[0].get<size_t>()];
    StepBudget budget(text.size());
    ASSERT_TRUE(pattern.cut(text, budget, parts).ok());
    std::vector<int> lengths;  // in characters
    for (const Pattern::Part& part : parts) {
      int length = 0;
      for (size_t i = part.begin; i < part.end; ++i) {
        length += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80;
      }
      if (length > 0) lengths.push_back(length);
    }
    EXPECT_EQ(lengths, golden[1].get<std::vector<int>>()) << Json(text);
  }
}

TEST(ByteRuns, a_run_of_bytes_waits_for_its_end_but_not_forever) {
  const auto& tokenizer = tokenizer_kind("llama2_legacy").tokenizer;
  const int32_t byte_0 = 3;  // the tokens of bytes lie in order
  ASSERT_EQ(tokenizer->token_bytes(byte_0 + 0xE4), "\xE4");
  Detokenizer detokenizer(tokenizer, true);
  std::string all;
  size_t waiting = 0;
  for (int i = 0; i < 1000; ++i) {
    for (const unsigned char byte : std::string("\u4e2d")) {
      const std::string piece = detokenizer.push(byte_0 + byte);
      waiting += 1;
      waiting -= piece.size();
      EXPECT_LE(waiting, DecodeStream::kRunBytesMax);
      all += piece;
    }
  }
  // No UTF-8 after all: what still waits becomes one U+FFFD a byte.
  const std::string broken = detokenizer.push(byte_0 + 0xFF);
  EXPECT_EQ(broken.size(), (waiting + 1) * 3);
  EXPECT_EQ(all.size() + waiting, 3000u);
  EXPECT_EQ(detokenizer.push(byte_0 + 'a'), "\uFFFD");  // the same run
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(LongTexts, long_pieces_and_long_runs_take_seconds_at_most) {
  std::string words;
  while (words.size() < 1'000'000) words += kind_texts()[words.size() % kind_texts().size()] + " ";
  for (const std::string& name : kind_names()) {
    for (const std::string& text : {words, std::string(1'000'000, 'a'), std::string(1'000'000, ' '),
                                    std::string(1'000'000, '\n'), std::string(1'000'000, '7')}) {
      const auto start = CpuClock::now();
      const auto ids = tokenizer_kind(name).tokenizer->encode(text).value();
      tokenizer_kind(name).tokenizer->decode(ids, false);
      const std::chrono::duration<double> seconds = CpuClock::now() - start;
      EXPECT_LT(seconds.count(), 30.0) << name << text.substr(0, 20);
    }
  }
}

TEST(TokenizerVariants, every_step_and_flag_does_what_the_reference_does) {
  const Json file = read_kind_file("variants");
  const auto texts = file["texts"].get<std::vector<std::string>>();
  ASSERT_GE(file["variants"].size(), 90u);
  size_t compared = 0;
  for (const Json& variant : file["variants"]) {
    SCOPED_TRACE(variant["kind"].dump() + variant["patch"].dump());
    Json changed = tokenizer_kind(variant["kind"]).goldens["tokenizer"];
    for (const auto& [key, value] : variant["patch"].items()) {
      if (key == "model") {
        changed[key].update(value);
      } else {
        changed[key] = value;
      }
    }
    const auto tokenizer = Tokenizer::from_text(changed.dump(), "tokenizer.json");
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (size_t i = 0; i < texts.size(); ++i) {
      const auto ids = tokenizer.value()->encode(texts[i], kBare).value();
      if (variant["encode"][i].is_null()) continue;
      EXPECT_EQ(ids, unpack_ids(variant["encode"][i])) << Json(texts[i]);
      ++compared;
    }
    for (const Json& golden : variant["decode"]) {
      const std::vector<int32_t> ids = unpack_ids(golden[0]);
      EXPECT_EQ(tokenizer.value()->decode(ids, false), golden[1].get<std::string>()) << Json(ids);
      EXPECT_EQ(stream(tokenizer.value(), ids, false), golden[1].get<std::string>()) << Json(ids);
    }
  }
  EXPECT_GE(compared, 3500u);
}

}  // namespace
}  // namespace specd
