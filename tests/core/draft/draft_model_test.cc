#include "core/draft/draft_model.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "core/base/json.h"

namespace specd {
namespace {

class DraftModelTest : public testing::Test {
 protected:
  const std::string target_ = std::string(SPECD_TEST_ZOO) + "/pico-target";
  const ModelConfig config_ = load_model_config(target_).value();
  const std::shared_ptr<const Tokenizer> tokenizer_ =
      Tokenizer::load(target_ + "/tokenizer.json").value();
  const std::unique_ptr<CpuDevice> device_ = CpuDevice::create("", 1).value();
};

TEST_F(DraftModelTest, the_first_token_that_differs_is_named) {
  const ModelConfig draft = load_model_config(std::string(SPECD_TEST_ZOO) + "/pico-draft").value();
  EXPECT_TRUE(check_same_tokens({config_, *tokenizer_}, draft, *tokenizer_).ok());
  Json json =
      parse_json_file(std::string(SPECD_TEST_ZOO) + "/pico-draft/tokenizer.json", 1 << 24).value();
  // Two tokens change places: the merges still find theirs.
  Json& vocab = json["model"]["vocab"];
  std::string first, second;
  for (const auto& [text, id] : vocab.items()) {
    if (id == 300) first = text;
    if (id == 3000) second = text;
  }
  ASSERT_FALSE(first.empty() || second.empty());
  vocab[first] = 3000;
  vocab[second] = 300;
  const auto other = Tokenizer::from_text(json.dump(), "other");
  ASSERT_TRUE(other.ok()) << other.status().to_string();
  const Status status = check_same_tokens({config_, *tokenizer_}, draft, *other.value());
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_NE(status.message().find("its tokens are not the target's: id 300 is '"),
            std::string::npos)
      << status.message();
  ModelConfig moved = draft;
  moved.bos_token = -1;
  EXPECT_NE(check_same_tokens({config_, *tokenizer_}, moved, *tokenizer_)
                .message()
                .find("the BOS id is 0 in the target, none here"),
            std::string::npos);
  // As a model for chats beside its base: the target's own end the text.
  moved = draft;
  moved.eos_tokens = {2};
  EXPECT_TRUE(check_same_tokens({config_, *tokenizer_}, moved, *tokenizer_).ok());
}

TEST_F(DraftModelTest, a_model_whose_page_is_larger_is_refused) {
  const KvStore small = KvStore::create(*device_, config_, kernels::KvDType::kBF16, 2).value();
  const auto inside = KvStore::inside(small, config_, kernels::KvDType::kF32);
  ASSERT_FALSE(inside.ok());
  EXPECT_EQ(inside.status().code(), Code::kUnsupported);
  EXPECT_NE(inside.status().message().find("a page of the target's cache has 65536"),
            std::string::npos)
      << inside.status().message();
}

}  // namespace
}  // namespace specd
