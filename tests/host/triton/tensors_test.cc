// Tensors of KServe's protocol: what they mean, and what is said of those whose parts disagree.
#include "host/triton/tensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <set>
#include <string>

namespace specd::host {
namespace {

using namespace std::string_literals;

const TritonModel kModel{.name = "m", .version = "3"};

std::string refusal(const TensorHead& head) {
  size_t count = 0;
  const auto spec = check_tensor(head, kModel, count);
  EXPECT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
  return spec.status().text();
}

template <typename T>
std::string bytes_of(T value) {
  std::string raw(sizeof(value), '\0');
  std::memcpy(raw.data(), &value, sizeof(value));
  return raw;
}

Json values(const char* name, size_t count, const std::string& raw) {
  const auto made = values_of_raw(*find_input(name), count, raw);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.ok() ? made.value() : Json();
}
std::string error(const char* name, size_t count, const std::string& raw) {
  const auto made = values_of_raw(*find_input(name), count, raw);
  EXPECT_FALSE(made.ok());
  return made.ok() ? "" : made.status().text();
}

TEST(TritonTensors, a_head_is_of_a_declared_input_with_its_type_and_shape) {
  size_t count = 99;
  const auto spec =
      check_tensor({.name = "max_tokens", .datatype = "INT32", .shape = {1}}, kModel, count);
  ASSERT_TRUE(spec.ok()) << spec.status().text();
  EXPECT_STREQ(spec.value()->name, "max_tokens");
  EXPECT_EQ(count, 1u);
  ASSERT_TRUE(
      check_tensor({.name = "stop_words", .datatype = "BYTES", .shape = {3}}, kModel, count).ok());
  EXPECT_EQ(count, 3u);
  EXPECT_EQ(refusal({.name = "input_ids", .datatype = "INT32", .shape = {1}}),
            "unexpected inference input 'input_ids' for model 'm'");
  EXPECT_EQ(refusal({.name = "max_tokens", .datatype = "INT64", .shape = {1}}),
            "inference input 'max_tokens': expected data-type INT32, found 'INT64'");
  EXPECT_EQ(refusal({.name = "max_tokens", .datatype = "", .shape = {1}}),
            "inference input 'max_tokens': expected data-type INT32, found ''");
  EXPECT_EQ(refusal({.name = "text_input", .datatype = "BYTES", .shape = {1, 1}}),
            "inference input 'text_input': expected shape [1], found [1,1]");
  EXPECT_EQ(refusal({.name = "text_input", .datatype = "BYTES", .shape = {}}),
            "inference input 'text_input': expected shape [1], found []");
  EXPECT_EQ(refusal({.name = "text_input", .datatype = "BYTES", .shape = {0}}),
            "inference input 'text_input': expected shape [1], found [0]");
  EXPECT_EQ(refusal({.name = "stop_words", .datatype = "BYTES", .shape = {-1}}),
            "inference input 'stop_words': expected shape [n] with at most 1024, found [-1]");
  EXPECT_EQ(refusal({.name = "stop_words", .datatype = "BYTES", .shape = {INT64_MAX}}),
            "inference input 'stop_words': expected shape [n] with at most 1024, found "
            "[9223372036854775807]");
}

TEST(TritonTensors, elements_are_little_endian_and_texts_have_their_length_in_front) {
  EXPECT_EQ(values("max_tokens", 1, bytes_of<int32_t>(-7)), Json({-7}));
  EXPECT_EQ(values("seed", 1, bytes_of<uint64_t>(UINT64_MAX)), Json({UINT64_MAX}));
  EXPECT_EQ(values("top_p", 1, bytes_of(0.5f)), Json({0.5}));
  EXPECT_EQ(values("ignore_eos", 1, "\1"s), Json({true}));
  EXPECT_EQ(values("ignore_eos", 1, "\0"s), Json({false}));
  EXPECT_EQ(values("stop_words", 2, "\2\0\0\0ab\0\0\0\0"s), Json({"ab", ""}));
  EXPECT_EQ(values("stop_words", 0, ""), Json::array());
  EXPECT_EQ(values("text_input", 1, "\3\0\0\0a\0b"s), Json({"a\0b"s})) << "NUL is a character";
  EXPECT_EQ(raw_of_text("ab"), "\2\0\0\0ab"s);
}

TEST(TritonTensors, bytes_that_do_not_make_the_elements_are_refused_with_their_place) {
  EXPECT_EQ(error("max_tokens", 1, "\1\0\0"s),
            "inference input 'max_tokens': expected 4 bytes for shape [1] of INT32, found 3");
  EXPECT_EQ(error("max_tokens", 1, ""),
            "inference input 'max_tokens': expected 4 bytes for shape [1] of INT32, found 0");
  EXPECT_EQ(error("ignore_eos", 1, "\1\1"s),
            "inference input 'ignore_eos': expected 1 bytes for shape [1] of BOOL, found 2");
  EXPECT_EQ(error("top_p", 1, bytes_of(std::numeric_limits<float>::quiet_NaN())),
            "inference input 'top_p': expected a finite number at byte 0");
  EXPECT_EQ(error("text_input", 1, "\2\0\0"s),
            "inference input 'text_input': expected the length of element 0 in 4 bytes at byte 0, "
            "found 3 bytes");
  EXPECT_EQ(error("text_input", 1, "\xff\xff\xff\xff"s),
            "inference input 'text_input': expected the 4294967295 bytes of element 0 at byte 4, "
            "found 0");
  EXPECT_EQ(error("text_input", 1, "\1\0\0\0ab"s),
            "inference input 'text_input': expected 5 bytes for 1 elements, found 6");
  EXPECT_EQ(error("stop_words", 2, "\1\0\0\0a"s),
            "inference input 'stop_words': expected the length of element 1 in 4 bytes at byte 5, "
            "found 0 bytes");
  EXPECT_EQ(error("text_input", 1, "\2\0\0\0a\xc3"s),
            "inference input 'text_input': expected UTF-8, found another byte at byte 5");
}

TEST(TritonTensors, every_input_but_the_text_is_optional_and_has_one_name) {
  std::set<std::string> names;
  for (const TensorSpec& each : infer_inputs()) {
    EXPECT_TRUE(names.insert(each.name).second) << each.name;
    EXPECT_EQ(find_input(each.name), &each);
  }
  EXPECT_EQ(find_input("text"), nullptr);
}

TEST(TritonTensors, a_model_is_known_by_its_name_and_its_one_version) {
  EXPECT_TRUE(kModel.check("m", "").ok());
  EXPECT_TRUE(kModel.check("m", "3").ok());
  EXPECT_EQ(kModel.check("m", "1").code(), Code::kNotFound);
  EXPECT_EQ(kModel.check("n", "").text(),
            "Request for unknown model: 'n' is not found; this server has 'm' version 3");
}

}  // namespace
}  // namespace specd::host
