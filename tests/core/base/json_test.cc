#include "core/base/json.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/base/utf8.h"
#include "tests/cpu_clock.h"

namespace specd {
namespace {

std::string message_of(std::string_view text) {
  const Result<Json> result = parse_json(text, "file.json");
  EXPECT_FALSE(result.ok()) << text;
  EXPECT_EQ(result.status().code(), Code::kDataLoss);
  return result.status().message();
}

TEST(Json, every_kind_of_value_is_read) {
  const Json json =
      parse_json(R"({"a": [1, -2, 2.5, true, false, null, "x\u00e9"], "b": {"c": {}}, "d": []})",
                 "file.json")
          .value();
  EXPECT_EQ(json.dump(),
            "{\"a\":[1,-2,2.5,true,false,null,\"x\u00e9\"],\"b\":{\"c\":{}},\"d\":[]}");
  EXPECT_EQ(parse_json("7", "file.json").value(), 7);
  EXPECT_EQ(parse_json(" [18446744073709551615] ", "f").value()[0].get<uint64_t>(), UINT64_MAX);
}

TEST(Json, malformed_text_is_refused_with_line_and_column) {
  for (const auto& [text, place] : std::vector<std::pair<std::string, std::string>>{
           {"", "file.json:1:1: "},
           {"{", "file.json:1:2: "},
           {"{\"a\": 1,\n \"b\": }", "file.json:2:7: "},
           {"[1, 2", "file.json:1:6: "},
           {"{} x", "file.json:1:4: "},
           {"[1,]", "file.json:1:4: "},
           {"{'a': 1}", "file.json:1:2: "},
           {"// no\n1", "file.json:1:1: "},
           {"[\"a\xFF\"]", "file.json:1:4: "},
           {"[\"\\ud800\"]", "file.json:1:9: "},
           {"[1e999]", "file.json:1:6: "},
           {"nul", "file.json:1:4: "},
           {std::string("[1\0]", 4), "file.json:1:3: "}}) {
    const std::string message = message_of(text);
    EXPECT_EQ(message.rfind(place, 0), 0u) << message;
    EXPECT_LT(message.size(), 400u);
    EXPECT_EQ(utf8_error_offset(message), std::string::npos) << message;
    EXPECT_EQ(message.find("json.exception"), std::string::npos) << message;
  }
}

TEST(Json, a_zero_byte_ends_no_text) {
  for (const std::string& text :
       {std::string("{}\0", 3), std::string("{}\0 }}} \xff", 9), std::string("[1]\n\0[", 6)})
    EXPECT_NE(message_of(text).find(": malformed JSON: a zero byte"), std::string::npos);
  EXPECT_EQ(message_of(std::string("[1]\n\0[", 6)).rfind("file.json:2:1: ", 0), 0u);
}

TEST(Json, a_pointer_of_git_lfs_is_named) {
  const std::string path = "/tmp/specd_lfs_" + std::to_string(getpid()) + ".json";
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
  const Status status = parse_json_file(path, 1000).status();
  std::filesystem::remove(path);
  EXPECT_EQ(status.message(), "'" + path +
                                  "': a Git LFS pointer is in place of the file; fetch it "
                                  "(git lfs pull)");
}

TEST(Json, a_key_that_occurs_twice_is_refused_with_its_place) {
  EXPECT_EQ(message_of("{\"a\": 1,\n  \"a\": 2}"),
            "file.json:2:5: malformed JSON: the key 'a' occurs twice");
  EXPECT_NE(message_of(R"({"x": {"a": 1, "b": [{}], "a": 2}})").find("'a' occurs twice"),
            std::string::npos);
  EXPECT_TRUE(parse_json(R"([{"a": 1}, {"a": {"a": 1}}])", "file.json").ok());
}

TEST(Json, nesting_is_limited_to_64_levels) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_TRUE(parse_json(nested(64), "file.json").ok());
  EXPECT_NE(message_of(nested(65)).find("file.json:1:65: malformed JSON: nested deeper than 64"),
            std::string::npos);
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  message_of(objects);
  message_of(std::string(10'000'000, '['));
}

TEST(Json, values_are_counted_so_that_a_file_cannot_grow_many_times_in_memory) {
  const auto zeros = [](size_t n) {
    std::string text = "[0";
    for (size_t i = 1; i < n; ++i) text += ",0";
    return text + "]";
  };
  EXPECT_TRUE(parse_json(zeros(3'999'999), "file.json").ok());  // and the list itself
  EXPECT_EQ(message_of(zeros(4'000'000)),
            "file.json:1:8000001: malformed JSON: more than 4000000 values");
  std::string lists = "[";
  for (int i = 0; i < 30'000'000; ++i) lists += "[],";
  // A child, so that what other tests took does not count.
  const auto peak_mib = [&] {
    message_of(lists);
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_maxrss / 1024;
  };
#if SPECD_HAS_SANITIZER
  peak_mib();
#else
  // 86 MiB of text, and of what was built of it, not 30 million lists.
  EXPECT_EXIT(_exit(peak_mib() < 700 ? 0 : 1), testing::ExitedWithCode(0), "");
#endif
}

TEST(Json, a_long_wrong_string_does_not_fill_the_message) {
  EXPECT_LT(message_of("[\"" + std::string(1 << 20, 'x') + "\n\"]").size(), 400u);
}

TEST(Json, integers_are_checked_not_cut) {
  const Json json =
      parse_json(R"({"i": 5, "big": 4294967297, "huge": 18446744073709551615, "f": 5.0,
                                   "s": "5", "n": null, "b": true, "neg": -1})",
                 "file.json")
          .value();
  const auto get = [&](const char* key) { return json_int(json, key, 0, 1 << 30, "file.json"); };
  EXPECT_EQ(get("i").value(), 5);
  for (const char* key : {"big", "huge", "f", "s", "b", "neg"}) {
    ASSERT_FALSE(get(key).ok()) << key;
    EXPECT_EQ(get(key).status().code(), Code::kDataLoss);
    EXPECT_NE(get(key).status().message().find(key), std::string::npos);
  }
  EXPECT_EQ(
      get("big").status().message(),
      "file.json: key 'big': expected an integer from 0 to 1073741824, found number '4294967297'");
  EXPECT_EQ(get("none").status().message(), "file.json: the key 'none' is missing");
  EXPECT_FALSE(get("n").ok());
  EXPECT_EQ(json_int_or(json, "n", 9, 0, 10, "f").value(), 9);
  EXPECT_EQ(json_int_or(json, "none", -9, 0, 10, "f").value(), -9);
  EXPECT_EQ(json_int_or(json, "i", -9, 0, 10, "f").value(), 5);
  EXPECT_FALSE(json_int_or(json, "s", 9, 0, 10, "f").ok());
  EXPECT_EQ(json_int(json, "neg", -1, 0, "f").value(), -1);
  EXPECT_EQ(json_int(Json::array(), "i", 0, 1, "f").status().message(),
            "f: expected an object with the key 'i', found array");
}

TEST(Json, other_getters_check_the_type) {
  const Json json =
      parse_json(R"({"d": 2.5, "i": 3, "b": true, "s": "x", "n": null})", "f").value();
  EXPECT_EQ(json_double_or(json, "d", 1, "f").value(), 2.5);
  EXPECT_EQ(json_double_or(json, "i", 1, "f").value(), 3);
  EXPECT_EQ(json_double_or(json, "n", 1, "f").value(), 1);
  EXPECT_FALSE(json_double_or(json, "s", 1, "f").ok());
  EXPECT_FALSE(json_double_or(json, "b", 1, "f").ok());
  EXPECT_TRUE(json_bool_or(json, "b", false, "f").value());
  EXPECT_TRUE(json_bool_or(json, "none", true, "f").value());
  EXPECT_FALSE(json_bool_or(json, "i", true, "f").ok());
  EXPECT_EQ(json_string(json, "s", "f").value(), "x");
  EXPECT_FALSE(json_string(json, "n", "f").ok());
  EXPECT_FALSE(json_string(json, "i", "f").ok());
  EXPECT_EQ(json_string_or(json, "none", "y", "f").value(), "y");
  EXPECT_FALSE(json_string_or(json, "d", "y", "f").ok());
}

TEST(Json, only_regular_files_of_sane_size_are_read) {
  char folder[] = "/tmp/specd_json_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string root = folder;
  std::ofstream(root + "/good.json") << "{\"a\": 1}";
  std::ofstream(root + "/empty.json");
  ASSERT_EQ(mkfifo((root + "/fifo").c_str(), 0600), 0);

  EXPECT_EQ(parse_json_file(root + "/good.json", 100).value().dump(), "{\"a\":1}");
  EXPECT_EQ(read_text_file(root + "/good.json", 8).value(), "{\"a\": 1}");
  EXPECT_EQ(read_text_file(root + "/empty.json", 8).value(), "");
  const Status large = read_text_file(root + "/good.json", 7).status();
  EXPECT_NE(large.message().find("8 bytes, expected at most 7"), std::string::npos);
  EXPECT_EQ(read_text_file(root + "/none", 7).status().code(), Code::kNotFound);
  EXPECT_EQ(read_text_file(root, 7).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(read_text_file(root + "/fifo", 7).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(parse_json_file(root + "/empty.json", 8).status().code(), Code::kDataLoss);
  std::filesystem::remove_all(root);
}

}  // namespace
}  // namespace specd
