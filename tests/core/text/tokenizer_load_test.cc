// What Tokenizer::load accepts in other spellings, and what it refuses.
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "core/base/json.h"
#include "core/text/tokenizer.h"

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
      const auto ids = tokenizer.value()->encode(golden[0].get<std::string>(), true).value();
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
  EXPECT_EQ(pairs->encode(text, true).value(), strings->encode(text, true).value());
}

struct Refusal {
  const char* name;
  std::function<void(Json&)> change;
  Code code;
  const char* message;  // a part of it
};

const Json kNewToken = {{"id", 259}, {"content", "<x>"}, {"special", true}};

const std::vector<Refusal>& refusals() {
  static const std::vector<Refusal> all = {
      {"not_an_object", [](Json& f) { f = Json::array({1}); }, Code::kDataLoss,
       "expected a JSON object"},
      {"unknown_key", [](Json& f) { f["extra"] = 1; }, Code::kUnsupported, "unknown key 'extra'"},
      {"version", [](Json& f) { f["version"] = "2.0"; }, Code::kUnsupported,
       "version: found '\"2.0\"'"},
      {"truncation",
       [](Json& f) {
         f["truncation"] = {{"max_length", 5}};
       },
       Code::kUnsupported, ": truncation"},
      {"padding", [](Json& f) { f["padding"] = Json::object(); }, Code::kUnsupported, ": padding"},
      {"normalizer",
       [](Json& f) {
         f["normalizer"] = {{"type", "NFC"}};
       },
       Code::kUnsupported, ": normalizer: found '{\"type\":\"NFC\"}'"},
      {"decoder", [](Json& f) { f["decoder"]["type"] = "WordPiece"; }, Code::kUnsupported,
       ": decoder"},
      {"no_decoder", [](Json& f) { f.erase("decoder"); }, Code::kUnsupported, ": decoder"},
      {"no_pre_tokenizer", [](Json& f) { f["pre_tokenizer"] = nullptr; }, Code::kUnsupported,
       ": pre_tokenizer"},
      {"one_pre_tokenizer", [](Json& f) { f["pre_tokenizer"]["pretokenizers"].erase(0); },
       Code::kUnsupported, "pre_tokenizer.pretokenizers"},
      {"other_expression",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; },
       Code::kUnsupported, "pretokenizers[0].pattern"},
      {"other_behaviour",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; },
       Code::kUnsupported, "pretokenizers[0].behavior"},
      {"inverted", [](Json& f) { f["pre_tokenizer"]["pretokenizers"][0]["invert"] = true; },
       Code::kUnsupported, "pretokenizers[0].invert"},
      {"prefix_space",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
       Code::kUnsupported, "pretokenizers[1].add_prefix_space"},
      {"second_expression",
       [](Json& f) { f["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); },
       Code::kUnsupported, "pretokenizers[1].use_regex"},
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
      {"single_word", [](Json& f) { f["added_tokens"][0]["single_word"] = true; },
       Code::kUnsupported, "added_tokens[0].single_word"},
      {"lstrip", [](Json& f) { f["added_tokens"][1]["lstrip"] = true; }, Code::kUnsupported,
       "added_tokens[1].lstrip"},
      {"rstrip", [](Json& f) { f["added_tokens"][1]["rstrip"] = true; }, Code::kUnsupported,
       "added_tokens[1].rstrip"},
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

TEST(TokenizerLoad, refusals_name_the_place) {
  ASSERT_TRUE(load(tiny()).ok());
  for (const Refusal& refusal : refusals()) {
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

TEST(TokenizerLoad, a_file_with_any_byte_changed_is_refused_or_works) {
  const std::string text = tiny().dump();
  std::mt19937 random(3);
  for (size_t at = 0; at < text.size(); ++at) {
    for (int n = 0; n < 3; ++n) {
      std::string changed = text;
      changed[at] = n == 0 ? '"' : static_cast<char>(random());
      const auto tokenizer = Tokenizer::from_text(changed, "t");
      if (tokenizer.ok()) {
        const auto ids = tokenizer.value()->encode("abab <|end_of_text|>", true);
        ASSERT_TRUE(ids.ok());
        tokenizer.value()->decode(ids.value(), true);
      } else {
        EXPECT_FALSE(tokenizer.status().message().empty());
      }
    }
  }
}

}  // namespace
}  // namespace specd
