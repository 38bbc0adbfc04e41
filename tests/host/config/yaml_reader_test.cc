#include "host/config/yaml_reader.h"

#include <gtest/gtest.h>

namespace specd::host {
namespace {

Result<Json> json_of(const std::string& text) {
  const auto node = parse_yaml(text, "t");
  if (!node.ok()) return node.status();
  return yaml_to_json({.node = node.value(), .file = "t"});
}

TEST(YamlReader, plain_scalars_follow_the_core_schema) {
  const std::pair<const char*, Json> table[] = {
      {"12", 12},
      {"-7", -7},
      {"+3", 3},
      {"0", 0},
      {"0x1F", 31},
      {"0o17", 15},
      {"1.5", 1.5},
      {".5", 0.5},
      {"-1.", -1.0},
      {"1e3", 1000.0},
      {"+1e-2", 0.01},
      {"true", true},
      {"FALSE", false},
      {"~", nullptr},
      {"null", nullptr},
      {"yes", "yes"},
      {"off", "off"},
      {"on", "on"},
      {"No", "No"},
      {"1_000", "1_000"},
      {"12:30", "12:30"},
      {"0b1", "0b1"},
      {"-0x1F", "-0x1F"},
      {"e3", "e3"},
      {"1.2.3", "1.2.3"},
      {"tRue", "tRue"},
      {"'12'", "12"},
      {"\"true\"", "true"},
      {"''", ""},
      {"18446744073709551615", 18446744073709551615ULL},
      {"-9223372036854775808", INT64_MIN},
  };
  for (const auto& [text, expected] : table) {
    const auto json = json_of(text);
    ASSERT_TRUE(json.ok()) << text << ": " << json.status().text();
    EXPECT_EQ(json.value(), expected) << text;
    EXPECT_EQ(json.value().type_name(), std::string(expected.type_name())) << text;
  }
  EXPECT_EQ(json_of("-").value(), Json::array({nullptr}));
}

TEST(YamlReader, numbers_that_readers_disagree_about_are_refused) {
  for (const char* text :
       {"010", "-010", "00", "007", "18446744073709551616", "-9223372036854775809",
        "0x10000000000000000", "1e999", ".inf", "-.INF", ".nan"})
    EXPECT_FALSE(json_of(text).ok()) << text;
}

TEST(YamlReader, escapes_that_yaml_cpp_makes_no_utf8_of_are_refused) {
  for (const std::string text : {R"(a: "x\_y")", R"(a: "\N")", R"("\_": 1)"}) {
    const auto read = parse_yaml(text, "f.yaml");
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_NE(read.status().text().find("f.yaml:1:"), std::string::npos);
    EXPECT_NE(read.status().text().find("write \\u00a0 and \\u0085"), std::string::npos)
        << read.status().text();
  }
  EXPECT_TRUE(parse_yaml(R"(a: "\u00a0\u0085\xa0\L")", "f.yaml").ok());
}

TEST(YamlReader, nodes_know_their_places) {
  const auto root = parse_yaml("a: 1\nbb:\n  - x\n  - {c: 'd'}\n", "t");
  ASSERT_TRUE(root.ok()) << root.status().text();
  const YamlNode* bb = root.value().find("bb");
  ASSERT_NE(bb, nullptr);
  EXPECT_EQ(place_text("t", root.value().find("a")->place), "t:1:4");
  EXPECT_EQ(place_text("t", root.value().items[1].key_place), "t:2:1");
  EXPECT_EQ(place_text("t", bb->items[0].place), "t:3:5");
  const YamlNode* c = bb->items[1].find("c");
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(place_text("t", c->place), "t:4:9");
  EXPECT_FALSE(c->plain);
}

TEST(YamlReader, deep_nesting_ends_with_an_error_not_with_the_stack) {
  EXPECT_FALSE(parse_yaml(std::string(500'000, '['), "t").ok());
  EXPECT_FALSE(parse_yaml(std::string(500'000, '{'), "t").ok());
  std::string block;
  for (int i = 0; i < 700; ++i) block += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  EXPECT_FALSE(parse_yaml(block, "t").ok());
}

}  // namespace
}  // namespace specd::host
