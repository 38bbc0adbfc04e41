#include "core/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/text/detokenizer.h"
#include "core/text/split_scanner.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

const std::string kTokenizerPath = std::string(SPECD_TEST_ZOO) + "/pico-target/tokenizer.json";

std::shared_ptr<const Tokenizer> zoo_tokenizer() {
  static const std::shared_ptr<const Tokenizer> tokenizer = Tokenizer::load(kTokenizerPath).value();
  return tokenizer;
}

const Json& goldens() {
  static const Json json =
      parse_json_file(std::string(SPECD_TEST_REFERENCE) + "/tokenizer_goldens.json", 1 << 20)
          .value();
  return json;
}

std::vector<int32_t> encode(const std::string& text, bool add_special = false, bool parse = true) {
  return zoo_tokenizer()->encode(text, {add_special, parse, {}}).value();
}

std::string stream(const std::vector<int32_t>& ids, bool skip_special) {
  Detokenizer detokenizer(zoo_tokenizer(), skip_special);
  std::string all;
  for (const int32_t id : ids) {
    const std::string piece = detokenizer.push(id);
    EXPECT_EQ(utf8_error_offset(piece), std::string_view::npos);
    all += piece;
  }
  return all + detokenizer.flush();
}

TEST(Tokenizer, encodes_as_the_reference_does) {
  const Json& cases = goldens()["encode"];
  ASSERT_GE(cases.size(), 2000u);
  for (const Json& golden : cases) {
    const auto text = golden[0].get<std::string>();
    EXPECT_EQ(encode(text), golden[1].get<std::vector<int32_t>>()) << golden[0];
  }
}

TEST(Tokenizer, no_token_stands_for_more_bytes_than_the_bound) {
  const size_t most = zoo_tokenizer()->bytes_per_token_max();
  ASSERT_GT(most, 0U);
  for (const Json& golden : goldens()["encode"]) {
    const auto text = golden[0].get<std::string>();
    EXPECT_LE(text.size(), golden[1].size() * most) << golden[0];
  }
  for (int32_t id = 0; id < zoo_tokenizer()->vocab_size(); ++id)
    EXPECT_LE(zoo_tokenizer()->token_bytes(id).size(), most) << id;
  EXPECT_GE(encode(std::string(100'000, ' ')).size() * most, 100'000U);
}

TEST(Tokenizer, puts_the_template_around_the_text) {
  ASSERT_GE(goldens()["encode_bos"].size(), 50u);
  for (const Json& golden : goldens()["encode_bos"]) {
    EXPECT_EQ(encode(golden[0].get<std::string>(), true), golden[1].get<std::vector<int32_t>>())
        << golden[0];
  }
}

TEST(Tokenizer, special_tokens_can_be_taken_as_plain_text) {
  ASSERT_GE(goldens()["encode_plain"].size(), 50u);
  for (const Json& golden : goldens()["encode_plain"]) {
    EXPECT_EQ(encode(golden[0].get<std::string>(), false, false),
              golden[1].get<std::vector<int32_t>>())
        << golden[0];
  }
}

TEST(Tokenizer, splits_where_the_expression_does) {
  ASSERT_GE(goldens()["split"].size(), 300u);
  for (const Json& golden : goldens()["split"]) {
    const auto text = golden[0].get<std::string>();
    std::vector<int> lengths;
    for (size_t at = 0; at < text.size();) {
      const size_t end = llama3_piece_end(text, at);
      ASSERT_GT(end, at);
      int length = 0;  // in characters
      for (; at < end; ++at) length += (static_cast<unsigned char>(text[at]) & 0xC0) != 0x80;
      lengths.push_back(length);
    }
    EXPECT_EQ(lengths, golden[1].get<std::vector<int>>()) << golden[0];
  }
}

TEST(Tokenizer, decode_gives_back_what_encode_took) {
  for (const Json& golden : goldens()["encode"]) {
    const auto text = golden[0].get<std::string>();
    EXPECT_EQ(zoo_tokenizer()->decode(encode(text), false), text);
    EXPECT_EQ(zoo_tokenizer()->decode(encode(text, false, false), true), text);
  }
}

TEST(Tokenizer, decodes_as_the_reference_does_broken_characters_included) {
  const Json& cases = goldens()["decode"];
  ASSERT_GE(cases.size(), 300u);
  size_t replaced = 0;
  for (const Json& golden : cases) {
    const auto ids = golden[0].get<std::vector<int32_t>>();
    const auto skip_special = golden[1].get<bool>();
    const auto text = golden[2].get<std::string>();
    replaced += text.find("\xEF\xBF\xBD") != std::string::npos;
    EXPECT_EQ(zoo_tokenizer()->decode(ids, skip_special), text) << golden[0];
    EXPECT_EQ(stream(ids, skip_special), text) << golden[0];
  }
  EXPECT_GE(replaced, 100u);
}

TEST(Tokenizer, text_that_is_not_utf8_is_refused_with_the_offset) {
  for (const auto& [text, offset] : std::vector<std::pair<std::string, std::string>>{
           {"ab\xFF", "byte 2"},
           {"\x80", "byte 0"},
           {"abc\xC0\x80", "byte 3"},       // overlong
           {"\xED\xA0\x80", "byte 0"},      // surrogate
           {"\xF4\x90\x80\x80", "byte 0"},  // above U+10FFFF
           {"caf\xC3", "byte 3"},           // cut
           {"<|end_of_text|>\xE2\x82", "byte 15"}}) {
    const auto ids = zoo_tokenizer()->encode(text);
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), Code::kInvalidArgument);
    EXPECT_NE(ids.status().message().find(offset), std::string::npos) << ids.status().message();
  }
}

TEST(Tokenizer, ids_out_of_range_have_no_text) {
  const std::vector<int32_t> ids = {-1, 4096, 1 << 30, INT32_MIN};
  EXPECT_EQ(zoo_tokenizer()->decode(ids, false), "");
  EXPECT_EQ(zoo_tokenizer()->token_bytes(-1), "");
  EXPECT_FALSE(zoo_tokenizer()->is_special(4096));
}

TEST(Tokenizer, knows_its_file) {
  EXPECT_EQ(zoo_tokenizer()->vocab_size(), 4096);
  EXPECT_EQ(zoo_tokenizer()->added_token_id("<|end_of_text|>"), 1);
  EXPECT_EQ(zoo_tokenizer()->added_token_id("no such token"), -1);
  EXPECT_TRUE(zoo_tokenizer()->is_special(1));
  EXPECT_FALSE(zoo_tokenizer()->is_special(2));
  const std::string file = read_text_file(kTokenizerPath, 1 << 20).value();
  EXPECT_EQ(zoo_tokenizer()->sha256(), sha256(file));
}

// Linear and without recursion: far above what a quadratic scan or merge could finish. Sanitizers
// and a busy machine get a wide margin; the figures of a plain build stand in core/text/README.md.
TEST(Tokenizer, long_texts_of_every_shape_take_seconds_at_most) {
  std::string mixed;
  for (size_t i = 0; mixed.size() < 1'000'000; i = (i + 1) % goldens()["encode"].size()) {
    mixed += goldens()["encode"][i][0].get_ref<const std::string&>();
  }
  std::string newline_at_the_end(1'000'000, ' ');
  newline_at_the_end += '\n';
  std::string spaces_and_letters;
  for (int i = 0; i < 250'000; ++i) spaces_and_letters += "   a";
  std::string almost_special;
  for (int i = 0; i < 60'000; ++i) almost_special += "<|begin_of_text|";
  for (const std::string& text :
       {mixed, std::string(1'000'000, 'a'), std::string(1'000'000, ' '),
        std::string(1'000'000, '\n'), std::string(1'000'000, '!'), std::string(1'000'000, '7'),
        std::string(1'000'000, '<'), std::string(1'000'000, '\''), newline_at_the_end,
        spaces_and_letters, almost_special}) {
    const auto start = CpuClock::now();
    const std::vector<int32_t> ids = encode(text);
    const double seconds = std::chrono::duration<double>(CpuClock::now() - start).count();
    EXPECT_LT(seconds, 20.0) << text.substr(0, 20);
    RecordProperty("milliseconds_" + std::to_string(ids.size()), static_cast<int>(seconds * 1000));
    EXPECT_EQ(zoo_tokenizer()->decode(ids, false), text);
  }
}

TEST(Tokenizer, threads_share_one_tokenizer) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      const Json& cases = goldens()["encode"];
      for (size_t i = static_cast<size_t>(t); i < cases.size(); i += 9) {
        EXPECT_EQ(encode(cases[i][0].get<std::string>()), cases[i][1].get<std::vector<int32_t>>());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Detokenizer, pieces_together_are_the_whole_for_any_tokens) {
  std::mt19937 random(7);
  std::vector<int32_t> byte_tokens;  // single bytes break characters most often
  for (int32_t id = 0; id < zoo_tokenizer()->vocab_size(); ++id) {
    if (zoo_tokenizer()->token_bytes(id).size() == 1) byte_tokens.push_back(id);
  }
  ASSERT_EQ(byte_tokens.size(), 256u);
  for (int round = 0; round < 4000; ++round) {
    std::vector<int32_t> ids(random() % 40);
    for (int32_t& id : ids) {
      id = random() % 3 == 0 ? static_cast<int32_t>(random() % 4100) : byte_tokens[random() % 256];
    }
    const bool skip_special = random() % 2 == 0;
    ASSERT_EQ(stream(ids, skip_special), zoo_tokenizer()->decode(ids, skip_special));
  }
}

TEST(Detokenizer, waits_for_whole_characters) {
  Detokenizer detokenizer(zoo_tokenizer(), true);
  const std::string text = "\U0001F469\u200D\U0001F680";  // astronaut: three characters joined
  int empty = 0;
  std::string all;
  for (const char c : text) {
    int32_t id = 0;
    while (zoo_tokenizer()->token_bytes(id) != std::string(1, c)) ++id;
    const std::string piece = detokenizer.push(id);
    empty += piece.empty();
    all += piece;
  }
  EXPECT_EQ(empty, 8);  // 11 bytes, 3 characters
  EXPECT_EQ(all, text);
  EXPECT_EQ(detokenizer.flush(), "");
}

TEST(Detokenizer, a_skipped_special_token_does_not_part_a_character) {
  const std::vector<int32_t> first = encode("\u4e2d");
  ASSERT_GE(first.size(), 2u);
  std::vector<int32_t> ids = first;
  ids.insert(ids.begin() + 1, 1);
  EXPECT_EQ(stream(ids, true), "\u4e2d");
  EXPECT_EQ(stream(ids, false), zoo_tokenizer()->decode(ids, false));
}

TEST(Detokenizer, starts_anew_after_a_flush) {
  Detokenizer detokenizer(zoo_tokenizer(), true);
  const std::vector<int32_t> ids = encode("\u4e2d");
  ASSERT_GE(ids.size(), 2u);
  EXPECT_EQ(detokenizer.push(ids[0]), "");
  EXPECT_EQ(detokenizer.flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(detokenizer.flush(), "");
  std::string all;
  for (const int32_t id : ids) all += detokenizer.push(id);
  EXPECT_EQ(all, "\u4e2d");
}

}  // namespace
}  // namespace specd
