// What Tokenizer::load accepts in other spellings, and what it refuses.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <random>

#include "core/base/json.h"
#include "core/text/tokenizer.h"
#include "tests/core/text/kinds.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

std::string file_text() {
  return read_text_file(std::string(SPECD_TEST_ZOO) + "/pico-target/tokenizer.json", 1 << 20)
      .value();
}

// The 256 bytes, one merge and one special token: small enough to break in every place.
Json tiny() {
  Json file = parse_json(file_text(), "tokenizer.json").value();
  Json vocab = Json::object();
  int kept = 0;
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    if (id < 258) vocab[text] = id;
    kept += id < 258;
  }
  EXPECT_EQ(kept, 258);
  vocab["ab"] = 258;
  file["model"]["vocab"] = vocab;
  file["model"]["merges"] = Json::array({"a b"});
  return file;
}

Result<std::shared_ptr<const Tokenizer>> load(const Json& file) {
  return Tokenizer::from_text(file.dump(), "tokenizer.json");
}

TEST(TokenizerLoad, variants_of_the_file_agree_with_the_reference) {
  const Json goldens =
      parse_json_file(std::string(SPECD_TEST_REFERENCE) + "/tokenizer_goldens.json", 1 << 20)
          .value();
  ASSERT_GE(goldens["variants"].size(), 5u);
  for (const Json& variant : goldens["variants"]) {
    Json file = parse_json(file_text(), "tokenizer.json").value();
    // A merge patch means "remove" by null; that equals a null value here.
    file.merge_patch(variant["patch"]);
    if (!variant["merges_kept"].is_null()) {
      Json& merges = file["model"]["merges"];
      merges.erase(merges.begin() + variant["merges_kept"].get<int>(), merges.end());
    }
    const auto tokenizer = load(file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    for (const Json& golden : variant["cases"]) {
      const auto ids = tokenizer.value()->encode(golden[0].get<std::string>()).value();
      EXPECT_EQ(ids, golden[1].get<std::vector<int32_t>>()) << variant["patch"] << golden[0];
      EXPECT_EQ(tokenizer.value()->decode(ids, false), golden[2].get<std::string>());
    }
  }
}

TEST(TokenizerLoad, merges_as_pairs_equal_merges_as_strings) {
  Json file = parse_json(file_text(), "tokenizer.json").value();
  for (Json& merge : file["model"]["merges"]) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    merge = Json::array({text.substr(0, space), text.substr(space + 1)});
  }
  const auto pairs = load(file).value();
  const auto strings = Tokenizer::from_text(file_text(), "tokenizer.json").value();
  const std::string text = file_text().substr(0, 20000);
  EXPECT_EQ(pairs->encode(text).value(), strings->encode(text).value());
}

struct RefusedFile {
  const char* name;
  std::function<void(Json&)> change;
  Code code;
  const char* message;  // a part of it
};

Json sequence(const char* key, const std::vector<Json>& steps) {
  return {{"type", "Sequence"}, {key, steps}};
}
Json replace(const char* kind, const std::string& pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}
Json strip(const char* content, int start, int stop) {
  return {{"type", "Strip"}, {"content", content}, {"start", start}, {"stop", stop}};
}
Json metaspace(const char* replacement, const char* scheme) {
  return {{"type", "Metaspace"}, {"replacement", replacement}, {"prepend_scheme", scheme}};
}

const Json kNewToken = {{"id", 259}, {"content", "<x>"}, {"special", true}};

const std::vector<RefusedFile>& refusals() {
  static const std::vector<RefusedFile> all = {
      {"not_an_object", [](Json& f) { f = Json::array({1}); }, Code::kDataLoss,
       "expected a JSON object"},
      {"unknown_key", [](Json& f) { f["extra"] = 1; }, Code::kUnsupported, "unknown key 'extra'"},
      {"version", [](Json& f) { f["version"] = "2.0"; }, Code::kUnsupported,
       "version: found '\"2.0\"'"},
      {"normalizer",
       [](Json& f) {
         f["normalizer"] = {{"type", "Lowercase"}};
       },
       Code::kUnsupported, ": normalizer: found '{\"type\":\"Lowercase\"}'"},
      {"normalizer_type", [](Json& f) { f["normalizer"] = "NFC"; }, Code::kDataLoss,
       ": normalizer: expected an object with the key 'type'"},
      {"normalizer_without_type", [](Json& f) { f["normalizer"] = Json::object(); },
       Code::kDataLoss, ": normalizer: the key 'type' is missing"},
      {"normalizers_list",
       [](Json& f) {
         f["normalizer"] = {{"type", "Sequence"}, {"normalizers", 1}};
       },
       Code::kDataLoss, ": normalizer.normalizers: expected a list"},
      {"normalizer_inside",
       [](Json& f) {
         f["normalizer"] = sequence("normalizers", {{{"type", "NFC"}}, {{"type", "NFKC"}}});
       },
       Code::kUnsupported, ": normalizer.normalizers[1]: found"},
      {"normalizers_without_end",
       [](Json& f) {
         f["normalizer"] = sequence("normalizers", std::vector<Json>(40, {{"type", "NFC"}}));
       },
       Code::kUnsupported, ": normalizer.normalizers[32]: more than 32 steps"},
      {"prepend",
       [](Json& f) {
         f["normalizer"] = {{"type", "Prepend"}, {"prepend", 1}};
       },
       Code::kDataLoss, ": normalizer: key 'prepend': expected a string"},
      {"prepend_much",
       [](Json& f) {
         f["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1000, 'x')}};
       },
       Code::kUnsupported, ": normalizer.prepend: found 1000 bytes"},
      {"replace_nothing", [](Json& f) { f["normalizer"] = replace("String", "", "x"); },
       Code::kUnsupported, ": normalizer.pattern.String: is empty"},
      {"replace_everywhere", [](Json& f) { f["normalizer"] = replace("Regex", "a*", "x"); },
       Code::kUnsupported, ": normalizer.pattern: may match nothing"},
      {"replace_by_much",
       [](Json& f) { f["normalizer"] = replace("String", "a", std::string(1000, 'x')); },
       Code::kUnsupported, ": normalizer.content: found 1000 bytes"},
      {"replace_pattern_kind", [](Json& f) { f["normalizer"] = replace("Glob", "a", "b"); },
       Code::kDataLoss, ": normalizer.pattern: expected {\"String\": text} or"},
      {"replace_without_pattern",
       [](Json& f) {
         f["normalizer"] = {{"type", "Replace"}, {"content", "x"}};
       },
       Code::kDataLoss, ": normalizer.pattern: expected"},
      {"decoder", [](Json& f) { f["decoder"]["type"] = "WordPiece"; }, Code::kUnsupported,
       ": decoder: found"},
      {"no_decoder", [](Json& f) { f.erase("decoder"); }, Code::kUnsupported, ": decoder"},
      {"decoders_list",
       [](Json& f) {
         f["decoder"] = {{"type", "Sequence"}, {"decoders", 1}};
       },
       Code::kDataLoss, ": decoder.decoders: expected a list"},
      {"decoders_out_of_order",
       [](Json& f) {
         f["decoder"] = sequence("decoders", {{{"type", "Fuse"}}, {{"type", "ByteFallback"}}});
       },
       Code::kUnsupported, ": decoder.decoders[1]: found"},
      {"decoders_both",
       [](Json& f) {
         f["decoder"] = sequence("decoders", {{{"type", "ByteFallback"}}, {{"type", "ByteLevel"}}});
       },
       Code::kUnsupported, ": decoder.decoders[1]: found"},
      {"strip_right", [](Json& f) { f["decoder"] = strip(" ", 0, 1); }, Code::kUnsupported,
       "supported: \"stop\": 0"},
      {"strip_two_characters", [](Json& f) { f["decoder"] = strip("  ", 1, 0); }, Code::kDataLoss,
       ": decoder.content: expected one character"},
      {"strip_negative", [](Json& f) { f["decoder"] = strip(" ", -1, 0); }, Code::kDataLoss,
       ": decoder: key 'start'"},
      {"decoder_grows",
       [](Json& f) {
         f["decoder"] = sequence("decoders", {replace("Regex", ".", std::string(200, 'x')),
                                              replace("Regex", ".", std::string(200, 'x'))});
       },
       Code::kUnsupported, "model.vocab: the decoder makes the token"},
      {"no_pre_tokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }, Code::kUnsupported,
       "model.unk_token: found null"},
      {"pre_tokenizer", [](Json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; },
       Code::kUnsupported, ": pre_tokenizer: found"},
      {"pretokenizers_list", [](Json& f) { f["pre_tokenizer"]["pretokenizers"] = "Split"; },
       Code::kDataLoss, ": pre_tokenizer.pretokenizers: expected a list"},
      {"expression_of_words",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "a\\w+"; },
       Code::kUnsupported,
       "pretokenizers[0].pattern.Regex: expression 'a\\w+': byte 1: this escape"},
      {"expression_of_anchors",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a+)+$"; },
       Code::kUnsupported,
       "pretokenizers[0].pattern.Regex: expression '(a+)+$': byte 5: the anchor"},
      {"expression_empty",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = ""; },
       Code::kUnsupported, "pretokenizers[0].pattern.Regex: is empty"},
      {"pattern_of_both",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["String"] = "a"; },
       Code::kDataLoss, "pretokenizers[0].pattern: expected"},
      {"pattern_type",
       [](Json& f) {
         f["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"Regex", 1}};
       },
       Code::kDataLoss, "pretokenizers[0].pattern: expected"},
      {"other_behaviour",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Sideways"; },
       Code::kUnsupported, "pretokenizers[0].behavior: found '\"Sideways\"'"},
      {"invert", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = 1; },
       Code::kDataLoss, "pretokenizers[0]: key 'invert'"},
      {"no_invert", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0].erase("invert"); },
       Code::kDataLoss, "pretokenizers[0]: the key 'invert' is missing"},
      {"prefix_space",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = "yes"; },
       Code::kDataLoss, "pretokenizers[1]: key 'add_prefix_space'"},
      {"use_regex", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][1]["use_regex"] = 1; },
       Code::kDataLoss, "pretokenizers[1]: key 'use_regex'"},
      {"digits",
       [](Json& f) {
         f["pre_tokenizer"] = {{"type", "Digits"}};
       },
       Code::kDataLoss, ": pre_tokenizer: the key 'individual_digits' is missing"},
      {"metaspace_replacement", [](Json& f) { f["pre_tokenizer"] = metaspace("__", "first"); },
       Code::kDataLoss, ": pre_tokenizer.replacement: expected one character, found '__'"},
      {"metaspace_scheme", [](Json& f) { f["pre_tokenizer"] = metaspace("_", "last"); },
       Code::kUnsupported, ": pre_tokenizer.prepend_scheme: found '\"last\"'"},
      {"metaspace_disagrees",
       [](Json& f) {
         f["pre_tokenizer"] = metaspace("_", "first");
         f["pre_tokenizer"]["add_prefix_space"] = false;
       },
       Code::kDataLoss, "add_prefix_space is false and prepend_scheme 'first'"},
      {"first_after_nfc",
       [](Json& f) {
         f["normalizer"] = {{"type", "NFC"}};
         f["pre_tokenizer"]["pretokenizers"][0] = metaspace("_", "first");
       },
       Code::kUnsupported, "prepend_scheme 'first' after the normalizer NFC"},
      {"unk_token", [](Json& f) { f["model"]["unk_token"] = "<unk>"; }, Code::kDataLoss,
       "model.unk_token: '<unk>' is not in the vocabulary"},
      {"unk_token_type", [](Json& f) { f["model"]["unk_token"] = 0; }, Code::kDataLoss,
       "model: key 'unk_token'"},
      {"byte_fallback_without_bytes", [](Json& f) { f["model"]["byte_fallback"] = true; },
       Code::kUnsupported, "no token for the byte 0, '<0x00>'"},
      {"byte_fallback_type", [](Json& f) { f["model"]["byte_fallback"] = "yes"; }, Code::kDataLoss,
       "model: key 'byte_fallback'"},
      {"fuse_unk_type", [](Json& f) { f["model"]["fuse_unk"] = 1; }, Code::kDataLoss,
       "model: key 'fuse_unk'"},
      {"no_model", [](Json& f) { f.erase("model"); }, Code::kDataLoss, ": model"},
      {"other_model", [](Json& f) { f["model"]["type"] = "Unigram"; }, Code::kUnsupported,
       "model.type: found 'Unigram'"},
      {"model_without_type", [](Json& f) { f["model"].erase("type"); }, Code::kUnsupported,
       "model.type"},
      {"unknown_model_key", [](Json& f) { f["model"]["new_rule"] = true; }, Code::kUnsupported,
       "unknown key 'new_rule'"},
      {"dropout", [](Json& f) { f["model"]["dropout"] = 0.1; }, Code::kUnsupported,
       "model.dropout"},
      {"prefix", [](Json& f) { f["model"]["continuing_subword_prefix"] = "##"; },
       Code::kUnsupported, "continuing_subword_prefix"},
      {"suffix", [](Json& f) { f["model"]["end_of_word_suffix"] = "</w>"; }, Code::kUnsupported,
       "end_of_word_suffix"},
      {"ignore_merges_type", [](Json& f) { f["model"]["ignore_merges"] = 1; }, Code::kDataLoss,
       "'ignore_merges': expected true or false, found number '1'"},
      {"vocab_type", [](Json& f) { f["model"]["vocab"] = Json::array(); }, Code::kDataLoss,
       "model.vocab"},
      {"byte_missing", [](Json& f) { f["model"]["vocab"].erase("!"); }, Code::kUnsupported,
       "no token for the byte 33"},
      {"negative_id", [](Json& f) { f["model"]["vocab"]["ab"] = -1; }, Code::kDataLoss,
       "'ab': expected an id below"},
      {"huge_id", [](Json& f) { f["model"]["vocab"]["ab"] = 4294967297; }, Code::kDataLoss,
       "found '4294967297'"},
      {"id_of_many_gigabytes", [](Json& f) { f["model"]["vocab"]["ab"] = 2000000000; },
       Code::kDataLoss, "'ab': expected an id below"},
      {"float_id", [](Json& f) { f["model"]["vocab"]["ab"] = 1.5; }, Code::kDataLoss,
       "found '1.5'"},
      {"id_twice", [](Json& f) { f["model"]["vocab"]["ab"] = 5; }, Code::kDataLoss,
       "the id 5 belongs to another token too"},
      {"merges_type", [](Json& f) { f["model"]["merges"] = "a b"; }, Code::kDataLoss,
       "model.merges"},
      {"merge_without_space", [](Json& f) { f["model"]["merges"][0] = "ab"; }, Code::kDataLoss,
       "model.merges[0]: expected"},
      {"merge_of_three", [](Json& f) { f["model"]["merges"][0] = "a b c"; }, Code::kDataLoss,
       "model.merges[0]: expected"},
      {"merge_pair_of_three",
       [](Json& f) {
         f["model"]["merges"][0] = {"a", "b", "c"};
       },
       Code::kDataLoss, "model.merges[0]: expected"},
      {"merge_of_numbers",
       [](Json& f) {
         f["model"]["merges"][0] = {1, 2};
       },
       Code::kDataLoss, "model.merges[0]: expected"},
      {"merge_of_nothing", [](Json& f) { f["model"]["merges"].push_back("b a"); }, Code::kDataLoss,
       "model.merges[1]: 'ba' is not in the vocabulary"},
      {"merge_of_unknown", [](Json& f) { f["model"]["merges"][0] = "xx b"; }, Code::kDataLoss,
       "'xx' is not in the vocabulary"},
      {"added_tokens_type", [](Json& f) { f["added_tokens"] = 3; }, Code::kDataLoss,
       "added_tokens: expected a list"},
      {"added_token_type", [](Json& f) { f["added_tokens"][0] = "x"; }, Code::kDataLoss,
       "added_tokens[0]"},
      {"added_without_id", [](Json& f) { f["added_tokens"][1].erase("id"); }, Code::kDataLoss,
       "added_tokens[1]: the key 'id' is missing"},
      {"added_huge_id",
       [](Json& f) {
         f["added_tokens"].push_back(kNewToken);
         f["added_tokens"][2]["id"] = 1000000000;
       },
       Code::kDataLoss, "added_tokens[2]: key 'id'"},
      {"added_empty", [](Json& f) { f["added_tokens"][1]["content"] = ""; }, Code::kDataLoss,
       "added_tokens[1]: 'content' is empty"},
      {"added_twice", [](Json& f) { f["added_tokens"].push_back(f["added_tokens"][0]); },
       Code::kDataLoss, "occurs twice"},
      {"added_unlike_vocab", [](Json& f) { f["added_tokens"][1]["id"] = 300; }, Code::kDataLoss,
       "has the id 300 here and 1 in model.vocab"},
      {"added_takes_an_id",
       [](Json& f) {
         f["added_tokens"].push_back(kNewToken);
         f["added_tokens"][2]["id"] = 7;
       },
       Code::kDataLoss, "the id 7 belongs to another token too"},
      {"single_word", [](Json& f) { f["added_tokens"][0]["single_word"] = 1; }, Code::kDataLoss,
       "added_tokens[0]: key 'single_word'"},
      {"lstrip", [](Json& f) { f["added_tokens"][1]["lstrip"] = "no"; }, Code::kDataLoss,
       "added_tokens[1]: key 'lstrip'"},
      {"rstrip", [](Json& f) { f["added_tokens"][1]["rstrip"] = 0; }, Code::kDataLoss,
       "added_tokens[1]: key 'rstrip'"},
      {"normalized", [](Json& f) { f["added_tokens"][1]["normalized"] = 0; }, Code::kDataLoss,
       "added_tokens[1]: key 'normalized'"},
      {"added_very_long",
       [](Json& f) {
         f["added_tokens"].push_back(kNewToken);
         f["added_tokens"][2]["content"] = std::string(300, 'x');
       },
       Code::kUnsupported, "added_tokens[2]: 300 bytes to look for"},
      {"added_normalizes_to_nothing",
       [](Json& f) {
         f["normalizer"] = replace("String", "<x>", "");
         f["added_tokens"].push_back(kNewToken);
         f["added_tokens"][2]["normalized"] = true;
       },
       Code::kUnsupported, "added_tokens[2]: 0 bytes to look for"},
      {"added_twice_normalized",
       [](Json& f) {
         f["normalizer"] = replace("String", "<y>", "<x>");
         for (int i = 0; i < 2; ++i) {
           f["added_tokens"].push_back(kNewToken);
           f["added_tokens"][static_cast<size_t>(2 + i)].update(
               {{"normalized", true}, {"id", 259 + i}, {"content", i == 0 ? "<x>" : "<y>"}});
         }
       },
       Code::kDataLoss, "added_tokens[3]: the normalizer makes '<y>' equal to another token"},
      {"post_processor",
       [](Json& f) {
         f["post_processor"] = {{"type", "BertProcessing"}};
       },
       Code::kUnsupported, "post_processor"},
      {"template_twice",
       [](Json& f) {
         Json& p = f["post_processor"]["processors"];
         p.push_back(p[1]);
       },
       Code::kUnsupported, "post_processor.processors[2]"},
      {"template_type", [](Json& f) { f["post_processor"]["processors"][1]["single"] = 1; },
       Code::kUnsupported, "processors[1].single"},
      {"template_without_text",
       [](Json& f) { f["post_processor"]["processors"][1]["single"].erase(1); }, Code::kUnsupported,
       "processors[1].single"},
      {"template_with_b",
       [](Json& f) { f["post_processor"]["processors"][1]["single"][1]["Sequence"]["id"] = "B"; },
       Code::kUnsupported, "processors[1].single"},
      {"template_of_numbers",
       [](Json& f) { f["post_processor"]["processors"][1]["single"][0] = 7; }, Code::kUnsupported,
       "processors[1].single"},
      {"template_unknown_token",
       [](Json& f) { f["post_processor"]["processors"][1]["special_tokens"] = Json::object(); },
       Code::kDataLoss, "no ids for '<|begin_of_text|>'"},
      {"template_id_out_of_range",
       [](Json& f) {
         f["post_processor"]["processors"][1]["special_tokens"]["<|begin_of_text|>"]["ids"][0] =
             259;
       },
       Code::kDataLoss, "expected an integer from 0 to 258, found number '259'"},
  };
  return all;
}

// transformers sets both aside whenever a call asks for neither.
TEST(TokenizerLoad, truncation_and_padding_change_no_ids) {
  Json file = tiny();
  const auto plain = load(file);
  file["truncation"] = {{"direction", "Right"}, {"max_length", 2}, {"strategy", "LongestFirst"}};
  file["padding"] = {{"strategy", {{"Fixed", 64}}}, {"direction", "Left"}, {"pad_id", 0}};
  const auto saved = load(file);
  ASSERT_TRUE(plain.ok() && saved.ok()) << saved.status().message();
  const std::string text(12, 'a');
  const auto ids = plain.value()->encode(text);
  ASSERT_TRUE(ids.ok()) << ids.status().message();
  EXPECT_GT(ids.value().size(), 2u);
  EXPECT_EQ(saved.value()->encode(text).value(), ids.value());
}

TEST(TokenizerLoad, a_folder_with_another_format_is_told_the_way_out) {
  EXPECT_NE(Tokenizer::load("/proc/self/tokenizer.json").status().message().find("tokenizer.model"),
            std::string::npos);
}

TEST(TokenizerLoad, refusals_name_the_place) {
  ASSERT_TRUE(load(tiny()).ok());
  for (const RefusedFile& refusal : refusals()) {
    SCOPED_TRACE(refusal.name);
    Json file = tiny();
    refusal.change(file);
    const auto result = load(file);
    ASSERT_FALSE(result.ok());
    const std::string message = result.status().message();
    EXPECT_EQ(result.status().code(), refusal.code) << message;
    EXPECT_NE(message.find(refusal.message), std::string::npos) << message;
    EXPECT_EQ(message.rfind("tokenizer.json", 0), 0u) << message;
    EXPECT_LT(message.size(), 600u);
  }
}

TEST(TokenizerLoad, nested_sequences_end_at_the_depth_that_json_has) {
  Json file = tiny();
  Json step = {{"type", "NFC"}};
  for (int i = 0; i < 20; ++i) step = sequence("normalizers", {step});
  file["normalizer"] = step;
  EXPECT_TRUE(load(file).ok());
  for (int i = 0; i < 200; ++i) step = sequence("normalizers", {step});
  file["normalizer"] = step;
  const auto result = load(file);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("nested deeper than"), std::string::npos);
}

TEST(TokenizerLoad, a_text_that_the_files_rules_blow_up_is_refused) {
  Json file = tiny();
  file["normalizer"] = sequence("normalizers", {replace("String", "a", std::string(200, 'b')),
                                                replace("String", "b", std::string(200, 'a'))});
  auto tokenizer = load(file).value();
  EXPECT_TRUE(tokenizer->encode("ccc").ok());
  auto result = tokenizer->encode(std::string(10'000, 'a'));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("more than 16 times as long"), std::string::npos);

  // Every second step cuts all characters apart, every other one doubles them.
  file = tiny();
  std::vector<Json> steps;
  for (int i = 0; i < 8; ++i) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", "."}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
    steps.push_back(metaspace(i % 2 == 0 ? "x" : "y", "always"));
    steps.back()["split"] = false;
  }
  steps.push_back(file["pre_tokenizer"]["pretokenizers"][1]);
  file["pre_tokenizer"]["pretokenizers"] = steps;
  tokenizer = load(file).value();
  const auto start = CpuClock::now();
  result = tokenizer->encode(std::string(100'000, 'a'));
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  EXPECT_LT(seconds.count(), 20.0);  // under a sanitizer, on a busy machine
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("more than 16 times as long"), std::string::npos);
}

TEST(TokenizerLoad, no_cut_and_no_second_step_lets_a_text_grow_more) {
  // Every part grows by less than a text of its own may.
  Json file = tiny();
  const Json dot = {{"id", file["model"]["vocab"]["."]}, {"content", "."}, {"special", true}};
  file["added_tokens"].push_back(dot);
  const Json byte_level = file["pre_tokenizer"]["pretokenizers"][1];
  file["pre_tokenizer"] = byte_level;
  file["normalizer"] = replace("String", "x", std::string(256, 'y'));
  auto tokenizer = load(file).value();
  EXPECT_TRUE(tokenizer->encode(".x.x.x.x").ok());
  std::string text;
  while (text.size() < 100'000) text += ".x";
  auto result = tokenizer->encode(text);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("the normalizer makes the text more than 16 times as"),
            std::string::npos);

  // 5 times as long, and that 8 times.
  file = tiny();
  file["normalizer"] = replace("String", "x", std::string(5, ' '));
  file["pre_tokenizer"] = sequence("pretokenizers", {metaspace("\U0001F600", "never"), byte_level});
  tokenizer = load(file).value();
  EXPECT_TRUE(tokenizer->encode(std::string(100, 'x')).ok());
  result = tokenizer->encode(std::string(100'000, 'x'));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(
      result.status().message().find("the pre_tokenizer makes the text more than 16 times as"),
      std::string::npos);
}

TEST(TokenizerLoad, searches_in_pieces_of_one_character_cost_what_they_allocate) {
  Json file = tiny();
  const auto split = [](const char* expression) -> Json {
    return {{"type", "Split"},
            {"pattern", {{"Regex", expression}}},
            {"behavior", "Isolated"},
            {"invert", false}};
  };
  std::vector<Json> steps = {split(".")};
  for (int i = 0; i < 10; ++i) steps.push_back(split("q?z"));
  steps.push_back(file["pre_tokenizer"]["pretokenizers"][1]);
  file["pre_tokenizer"]["pretokenizers"] = steps;
  const auto tokenizer = load(file).value();
  EXPECT_TRUE(tokenizer->encode(std::string(1000, 'a')).ok());
  const auto result = tokenizer->encode(std::string(100'000, 'a'));
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("too many steps"), std::string::npos);
}

TEST(TokenizerLoad, steps_beyond_the_limit_are_refused_before_they_are_compiled) {
  Json file = tiny();
  std::string expression;
  for (int i = 0; i < 500; ++i) expression += "[\\p{L}a]";
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", expression}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  std::vector<Json> steps(31, {{"type", "Digits"}, {"individual_digits", true}});
  steps.push_back(file["pre_tokenizer"]["pretokenizers"][1]);
  steps.resize(1000, split);
  file["pre_tokenizer"]["pretokenizers"] = steps;
  const auto start = CpuClock::now();
  const auto result = load(file);
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find(": pre_tokenizer.pretokenizers[32]: more than 32 steps"),
            std::string::npos)
      << result.status().message();
  EXPECT_LT(seconds.count(), 1.0 * kSlowdown);
}

TEST(TokenizerLoad, rules_over_all_tokens_share_what_the_file_may_cost) {
  Json file = tiny();
  Json& vocab = file["model"]["vocab"];
  const size_t n = vocab.size();
  for (size_t i = 0; i < 1000; ++i) {
    vocab[std::to_string(i) + std::string(1000, 'a') + "b"] = 1000 + i;
  }
  file["decoder"] = sequence(
      "decoders",
      std::vector<Json>(
          20, {{"type", "Replace"}, {"pattern", {{"Regex", "a(?=[^b]*b)"}}}, {"content", "a"}}));
  const auto start = CpuClock::now();
  const auto result = load(file);
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  ASSERT_FALSE(result.ok()) << n;
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("too many steps"), std::string::npos)
      << result.status().message();
  EXPECT_LT(seconds.count(), 1.0 * kSlowdown);
}

TEST(TokenizerLoad, added_tokens_have_a_limit_together) {
  Json file = tiny();
  for (int i = 0; i < 20'000; ++i) {
    std::string content = std::to_string(i);
    content.resize(256, 'x');
    file["added_tokens"].push_back(
        {{"id", 1000 + i}, {"content", content}, {"special", true}, {"normalized", false}});
  }
  const auto result = load(file);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().message().find("the added tokens up to here have"), std::string::npos)
      << result.status().message();
}

TEST(TokenizerLoad, an_expression_that_takes_too_long_fails_the_request_alone) {
  Json file = tiny();
  file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\s(?=\\s*x)|.";
  const auto tokenizer = load(file).value();
  EXPECT_TRUE(tokenizer->encode("a few words x").ok());
  const auto result = tokenizer->encode(std::string(100'000, ' ') + "x");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  for (const char* part : {"'\\s(?=\\s*x)|.'", "byte"}) {
    EXPECT_NE(result.status().message().find(part), std::string::npos) << result.status().message();
  }
}

// Each piece alone may take as long as this; a text of many such pieces may not.
TEST(TokenizerLoad, all_pieces_of_a_text_share_what_it_may_cost) {
  const auto split = [](const char* kind, const std::string& pattern) {
    return Json{{"type", "Split"},
                {"pattern", {{kind, pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  };
  Json file = tiny();
  Json& steps = file["pre_tokenizer"]["pretokenizers"];
  const Json bytes = steps[1];
  steps = {split("String", "y"), split("Regex", "\\s(?=\\s*x)|."), bytes};
  const auto tokenizer = load(file).value();
  const std::string piece = std::string(1'200, ' ') + "xy";
  EXPECT_TRUE(tokenizer->encode(piece).ok());
  std::string text;
  while (text.size() < 1'000'000) text += piece;
  const auto start = CpuClock::now();
  const auto result = tokenizer->encode(text);
  const std::chrono::duration<double> seconds = CpuClock::now() - start;
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kUnsupported);
  EXPECT_NE(result.status().message().find("takes too many steps"), std::string::npos);
  EXPECT_LT(seconds.count(), 1.0 * kSlowdown);
}

TEST(TokenizerLoad, a_list_of_merges_may_begin_with_the_version_of_its_file) {
  Json file = tiny();
  file["model"]["merges"] = Json::array({"#version: 0.2", "a b"});
  EXPECT_EQ(load(file).value()->encode("ab", {.add_special_tokens = false}).value(),
            std::vector<int32_t>{258});
}

TEST(TokenizerLoad, a_file_that_is_not_there_or_not_a_file_is_refused) {
  EXPECT_EQ(Tokenizer::load("/no/such/tokenizer.json").status().code(), Code::kNotFound);
  EXPECT_EQ(Tokenizer::load("/").status().code(), Code::kInvalidArgument);
}

TEST(TokenizerLoad, a_file_cut_anywhere_is_refused) {
  const std::string text = tiny().dump();
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_FALSE(Tokenizer::from_text(std::string_view(text).substr(0, length), "t").ok())
        << length;
  }
}

// The sentencepiece kind with its smallest vocabulary.
Json tiny_llama2() {
  Json file = read_kind_file("llama2_legacy")["tokenizer"];
  Json vocab = Json::object();
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    if (id < 259) vocab[text] = id;
  }
  vocab["a"] = 259;
  vocab["\u2581"] = 260;
  vocab["\u2581a"] = 261;
  file["model"]["vocab"] = vocab;
  file["model"]["merges"] = Json::array({Json::array({"\u2581", "a"})});
  for (Json& token : file["added_tokens"]) {
    if (token["id"] > 259) token["id"] = token["id"].get<int>() % 2 + 262;
  }
  return file;
}

TEST(TokenizerLoad, a_file_with_any_byte_changed_is_refused_or_works) {
  for (const std::string& text : {tiny().dump(), tiny_llama2().dump()}) {
    ASSERT_TRUE(Tokenizer::from_text(text, "t").ok());
    std::mt19937 random(3);
    for (size_t at = 0; at < text.size(); ++at) {
      for (int n = 0; n < 3; ++n) {
        std::string changed = text;
        changed[at] = n == 0 ? '"' : static_cast<char>(random());
        const auto tokenizer = Tokenizer::from_text(changed, "t");
        if (tokenizer.ok()) {
          const auto ids = tokenizer.value()->encode("abab <|end_of_text|>");
          ASSERT_TRUE(ids.ok());
          tokenizer.value()->decode(ids.value(), true);
        } else {
          EXPECT_FALSE(tokenizer.status().message().empty());
        }
      }
    }
  }
}

}  // namespace
}  // namespace specd
