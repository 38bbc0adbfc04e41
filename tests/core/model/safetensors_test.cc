#include "core/model/safetensors.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace specd {
namespace {

std::string with_length(uint64_t length, const std::string& rest) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
  return file + rest;
}

std::string make(const std::string& header, size_t data_bytes) {
  return with_length(header.size(), header + std::string(data_bytes, '\x3f'));
}

const std::string kGood =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},"empty":{"dtype":"I64","shape":[0,5],)"
    R"("data_offsets":[28,28]},"one":{"dtype":"U8","shape":[],"data_offsets":[28,29]}}   )";
constexpr size_t kGoodData = 29;

class Safetensors : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_safetensors_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  Result<SafetensorsFile> open(const std::string& content) {
    const std::string path = root_ + "/model.safetensors";
    std::filesystem::remove(path);  // never over a file that may be mapped
    std::ofstream(path, std::ios::binary) << content;
    return SafetensorsFile::open(path);
  }

  std::string root_;
};

TEST_F(Safetensors, views_show_what_the_file_holds) {
  std::string content = make(kGood, kGoodData);
  const size_t data = 8 + kGood.size();
  const float third = 3.25f;
  std::memcpy(content.data() + data + 4 + 8, &third, 4);
  SafetensorsFile file = open(content).value();
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.file_bytes(), content.size());
  EXPECT_EQ(file.find("none"), nullptr);
  EXPECT_EQ(file.find("__metadata__"), nullptr);

  const TensorView* b = file.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->type, TensorType::kF32);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->bytes, 24u);
  EXPECT_EQ(b->file_offset, data + 4);
  float value = 0;
  std::memcpy(&value, static_cast<const char*>(b->data) + 8, 4);
  EXPECT_EQ(value, third);
  EXPECT_EQ(file.find("empty")->bytes, 0u);
  EXPECT_EQ(file.find("one")->bytes, 1u);

  // The mapping moves with the object.
  SafetensorsFile moved = std::move(file);
  EXPECT_EQ(std::memcmp(moved.find("b")->data, content.data() + data + 4, 24), 0);
  SafetensorsFile other = open(make("{}", 0)).value();
  other = std::move(moved);
  EXPECT_EQ(std::memcmp(other.find("b")->data, content.data() + data + 4, 24), 0);
}

TEST_F(Safetensors, require_compares_shape_and_type) {
  const SafetensorsFile file = open(make(kGood, kGoodData)).value();
  const std::vector<int64_t> shape = {2, 3};
  const std::vector<int64_t> turned = {3, 2};
  const std::vector<int64_t> longer = {2, 3, 1};
  EXPECT_EQ(file.require("b", shape).value(), file.find("b"));
  const auto message = [&](std::string_view name, std::span<const int64_t> wanted) {
    return file.require(name, wanted).status().message();
  };
  EXPECT_NE(message("b", turned).find("tensor 'b': shape [2, 3], expected [3, 2]"),
            std::string::npos);
  EXPECT_NE(message("b", longer).find("expected [2, 3, 1]"), std::string::npos);
  EXPECT_NE(message("c", shape).find("tensor 'c': missing; expected with shape [2, 3]"),
            std::string::npos);
  EXPECT_EQ(file.require("one", {}).status().code(), Code::kUnsupported);
  EXPECT_NE(message("one", {}).find("type U8, supported are F32, F16 and BF16"), std::string::npos);
}

TEST_F(Safetensors, the_models_of_the_tree_open) {
  for (const char* name : {"pico-target", "pico-draft"}) {
    const auto file =
        SafetensorsFile::open(std::string(SPECD_TEST_ZOO) + "/" + name + "/model.safetensors");
    ASSERT_TRUE(file.ok()) << file.status().to_string();
    EXPECT_NE(file.value().find("model.norm.weight"), nullptr);
  }
}

TEST_F(Safetensors, a_file_that_lies_is_refused_with_the_reason) {
  struct Lie {
    const char* name;
    std::string content;
    const char* message;  // a part of it
    Code code = Code::kDataLoss;
  };
  const auto entry = [](const std::string& fields) { return "{\"t\":{" + fields + "}}"; };
  const auto f32 = [&](const std::string& shape, const std::string& offsets, size_t data_bytes) {
    return make(entry(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets),
                data_bytes);
  };
  const std::vector<Lie> lies = {
      {"empty file", "", "byte 0: expected a header length of 8 bytes, the file has 0"},
      {"seven bytes", std::string(7, '\0'), "the file has 7"},
      {"length only", with_length(2, ""), "byte 0: header length 2, expected at most 0"},
      {"length past the end", with_length(100, "{}"), "header length 100, expected at most 2"},
      {"length of 2^64 - 1", with_length(UINT64_MAX, "{}"), "header length 18446744073709551615"},
      {"length of 2^63", with_length(1ull << 63, "{}"), "header length 9223372036854775808"},
      {"length 0", with_length(0, "{}"), "byte 8: expected a header that starts with '{'"},
      {"a space first", make(" {}", 0), "starts with '{', found ' '"},
      {"a list", make("[]", 0), "starts with '{', found '['"},
      {"a NUL first", make(std::string("\0{}", 3), 0), "starts with '{', found '\\x00'"},
      {"cut JSON", make("{\"t\":", 0), "header from byte 8:1:6: malformed JSON"},
      {"bytes after the JSON", make("{}x", 0), "malformed JSON"},
      {"too deep", make("{\"t\":" + std::string(200, '['), 0), "nested deeper than 64"},
      {"a name twice",
       make(R"({"t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
            R"("t":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
            0),
       "the key 't' occurs twice"},
      {"entry is no object", make("{\"t\":1}", 0), "tensor 't': expected an object"},
      {"no dtype", make(entry(R"("shape":[1],"data_offsets":[0,4])"), 4), "'dtype' is missing"},
      {"dtype of a number", make(entry(R"("dtype":1,"shape":[1],"data_offsets":[0,4])"), 4),
       "key 'dtype': expected a string"},
      {"unknown dtype", make(entry(R"("dtype":"F9","shape":[1],"data_offsets":[0,4])"), 4),
       "tensor 't': dtype 'F9', known are F64 F32", Code::kUnsupported},
      {"unknown key", make(entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1)"), 4),
       "unknown key 'x'"},
      {"no shape", make(entry(R"("dtype":"F32","data_offsets":[0,4])"), 4),
       "'shape' must be a list"},
      {"shape is a number", f32("1", "[0,4]", 4), "'shape' must be a list"},
      {"negative size", f32("[-1]", "[0,4]", 4), "expected an integer from 0"},
      {"fraction", f32("[1.0]", "[0,4]", 4), "found number '1.0'"},
      {"size as text", f32("[\"1\"]", "[0,4]", 4), "found string"},
      {"size above 2^63", f32("[18446744073709551615]", "[0,4]", 4), "expected an integer from 0"},
      {"product overflows", f32("[4611686018427387904,4]", "[0,4]", 4),
       "product of the shape overflows"},
      {"product overflows to the right size", f32("[4294967296,4294967296,1]", "[0,0]", 0),
       "product of the shape overflows"},
      {"no offsets", make(entry(R"("dtype":"F32","shape":[1])"), 4),
       "'data_offsets' must be a list"},
      {"one offset", f32("[1]", "[0]", 4), "list of two integers"},
      {"three offsets", f32("[1]", "[0,4,8]", 4), "list of two integers"},
      {"negative offset", f32("[1]", "[-4,0]", 4), "expected an integer from 0"},
      {"backwards", f32("[1]", "[4,0]", 4), "[4, 0] run backwards"},
      {"past the end", f32("[2]", "[0,8]", 4), "[0, 8] leave the file, which has 4 bytes of data"},
      {"far past the end", f32("[1]", "[9223372036854775803,9223372036854775807]", 4),
       "leave the file"},
      {"too small for the shape", f32("[2]", "[0,4]", 4), "hold 4 bytes, but F32 [2] needs 8"},
      {"too large for the shape", f32("[0]", "[0,4]", 4), "hold 4 bytes, but F32 [0] needs 0"},
      {"hole at the start", f32("[1]", "[4,8]", 8), "a hole"},
      {"bytes left over", f32("[1]", "[0,4]", 5), "the tensors end at byte"},
      {"no tensors but data", make("{}", 1), "the tensors end at byte 10, but the file has 11"},
      {"overlap",
       make(R"({"s":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("t":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
            6),
       "tensor 't' begins at byte 115, expected byte 117: tensors overlap"},
      {"the same bytes twice",
       make(R"({"s":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
            4),
       "tensors overlap"},
      {"metadata is a list", make(R"({"__metadata__":[]})", 0), "'__metadata__' must be an object"},
      {"metadata of numbers", make(R"({"__metadata__":{"a":1}})", 0),
       "the value of 'a' must be a string"},
      {"a name with a newline", make("{\"a\\nb\":1}", 0), "tensor 'a\\x0ab'"},
  };
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.name);
    const auto file = open(lie.content);
    ASSERT_FALSE(file.ok());
    EXPECT_EQ(file.status().code(), lie.code) << file.status().message();
    EXPECT_NE(file.status().message().find(lie.message), std::string::npos)
        << file.status().message();
    EXPECT_EQ(file.status().message().find("'" + root_ + "/model.safetensors'"), 0u);
  }
}

TEST_F(Safetensors, what_is_not_a_readable_file_is_refused) {
  EXPECT_EQ(SafetensorsFile::open(root_ + "/none").status().code(), Code::kNotFound);
  const Status folder = SafetensorsFile::open(root_).status();
  EXPECT_EQ(folder.code(), Code::kInvalidArgument);
  EXPECT_NE(folder.message().find("found a directory"), std::string::npos);
  ASSERT_EQ(mkfifo((root_ + "/fifo").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsFile::open(root_ + "/fifo").status().code(), Code::kInvalidArgument);
  if (geteuid() != 0) {
    std::ofstream(root_ + "/locked") << "x";
    ASSERT_EQ(chmod((root_ + "/locked").c_str(), 0), 0);
    EXPECT_EQ(SafetensorsFile::open(root_ + "/locked").status().code(), Code::kFailedPrecondition);
  }
}

TEST_F(Safetensors, a_file_cut_anywhere_is_refused) {
  const std::string content = make(kGood, kGoodData);
  ASSERT_TRUE(open(content).ok());
  for (size_t length = 0; length < content.size(); ++length) {
    EXPECT_FALSE(open(content.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(open(content + "x").ok());
}

// Whatever one byte of the header becomes, every view that is handed out lies inside the file.
TEST_F(Safetensors, a_header_with_any_byte_changed_is_refused_or_consistent) {
  const std::string content = make(kGood, kGoodData);
  std::mt19937 random(11);
  size_t refused = 0;
  for (size_t at = 0; at < 8 + kGood.size(); ++at) {
    for (int n = 0; n < 8; ++n) {
      std::string changed = content;
      changed[at] = n == 0   ? static_cast<char>(changed[at] ^ 1)
                    : n == 1 ? '9'
                    : n == 2 ? '"'
                             : static_cast<char>(random());
      const auto file = open(changed);
      if (!file.ok()) {
        EXPECT_FALSE(file.status().message().empty());
        ++refused;
        continue;
      }
      uint64_t total = 0;
      for (const auto& [name, view] : file.value().tensors()) {
        ASSERT_LE(view.file_offset + view.bytes, changed.size());
        ASSERT_EQ(std::memcmp(view.data, changed.data() + view.file_offset, view.bytes), 0);
        total += view.bytes;
      }
      EXPECT_EQ(total, kGoodData);
    }
  }
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace specd
