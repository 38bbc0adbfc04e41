#include "core/plugin/bundle/config_schema.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/plugin/instance/plugin_config.h"

namespace specd {
namespace {

constexpr const char* kSchema = R"({
  "type": "object", "title": "t", "description": "d",
  "required": ["mode"],
  "properties": {
    "mode": {"type": "string", "enum": ["fast", "deep"]},
    "max_nodes": {"type": "integer", "minimum": 1, "maximum": 64, "default": 8},
    "ratio": {"type": "number", "minimum": 0.5},
    "big": {"type": "integer", "maximum": 9223372036854775807},
    "keep": {"type": "boolean"},
    "sizes": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    "tree": {"type": "object", "properties": {"depth": {"type": "integer"}}},
    "free": {"type": "object", "additionalProperties": {"type": "number"}},
    "open": {"type": "object", "additionalProperties": true}
  }})";

std::string fault(const std::string& config, const char* schema = kSchema) {
  auto parsed = ConfigSchema::parse(schema, "plugin 'p'");
  if (!parsed.ok()) return "schema: " + parsed.status().text();
  return parsed.value().check(Json::parse(config)).text();
}

TEST(ConfigSchema, good_configurations_pass) {
  EXPECT_EQ(fault(R"({"mode": "fast"})"), "");
  EXPECT_EQ(fault(R"({"mode": "deep", "max_nodes": 64, "ratio": 0.5, "keep": true,
                      "sizes": [1, 2, 3], "tree": {"depth": 2}, "free": {"x": 1.5, "y": 2},
                      "open": {"z": [null]}, "big": 9223372036854775807})"),
            "");
  EXPECT_EQ(fault(R"({"mode": "fast", "max_nodes": 8.0})"), "") << "8.0 is an integer";
}

TEST(ConfigSchema, it_knows_which_keys_a_configuration_may_have) {
  const ConfigSchema schema = ConfigSchema::parse(kSchema, "plugin 'p'").value();
  for (const char* path : {"mode", "sizes", "sizes[0]", "sizes.2", "tree.depth", "free.x", "open.z",
                           "open.z[0].any"}) {
    EXPECT_TRUE(schema.may_have(path)) << path;
  }
  for (const char* path :
       {"", "note", "mode.x", "sizes.x", "sizes[0].x", "tree.note", "tree.", "free.x.y", ".mode"}) {
    EXPECT_FALSE(schema.may_have(path)) << path;
  }
}

TEST(ConfigSchema, refusals_name_key_expected_and_found) {
  const auto expect = [](const char* config, const char* words) {
    EXPECT_EQ(fault(config), words);
  };
  expect(R"({})", "key 'mode' is missing");
  expect(R"({"mode": "slow"})", "mode: expected one of 'fast', 'deep', found string 'slow'");
  expect(R"({"mode": 3})", "mode: expected string, found 3");
  expect(R"({"mode": "fast", "max_nodes": 0})", "max_nodes: expected at least 1, found 0");
  expect(R"({"mode": "fast", "max_nodes": 65})", "max_nodes: expected at most 64, found 65");
  expect(R"({"mode": "fast", "max_nodes": 1.5})", "max_nodes: expected integer, found 1.5");
  expect(R"({"mode": "fast", "max_nodes": true})", "max_nodes: expected integer, found true");
  expect(R"({"mode": "fast", "ratio": 0.25})", "ratio: expected at least 0.5, found 0.25");
  expect(R"({"mode": "fast", "big": 9223372036854775808})",
         "big: expected at most 9223372036854775807, found 9223372036854775808");
  expect(R"({"mode": "fast", "sizes": []})", "sizes: expected at least 1 items, found 0");
  expect(R"({"mode": "fast", "sizes": [1, 2, 3, 4]})", "sizes: expected at most 3 items, found 4");
  expect(R"({"mode": "fast", "sizes": [1, "x"]})", "sizes[1]: expected integer, found string 'x'");
  expect(R"({"mode": "fast", "tree": {"depth": []}})",
         "tree.depth: expected integer, found a list of 0");
  expect(R"({"mode": "fast", "free": {"x": "1"}})", "free.x: expected number, found string '1'");
  expect(R"([])", "expected object, found a list of 0");
}

TEST(ConfigSchema, unknown_key_suggests_the_nearest) {
  EXPECT_EQ(
      fault(R"({"mode": "fast", "max_node": 3})"),
      "max_node: unknown key 'max_node'; did you mean 'max_nodes'? known here: big, free, keep, "
      "max_nodes, mode, open, ratio, sizes, tree");
  EXPECT_EQ(fault(R"({"mode": "fast", "tree": {"dept": 3}})"),
            "tree.dept: unknown key 'dept'; did you mean 'depth'? known here: depth");
  EXPECT_NE(fault(R"({"mode": "fast", "zzzzzz": 3})").find("; known here: big, free"),
            std::string::npos);
}

TEST(ConfigSchema, no_schema_allows_no_key) {
  EXPECT_EQ(fault("{}", nullptr), "");
  EXPECT_EQ(fault(R"({"a": 1})", nullptr), "a: unknown key 'a'; known here: none");
}

TEST(ConfigSchema, schema_that_it_cannot_enforce_is_refused) {
  const auto expect = [](const char* schema, const char* words) {
    const std::string found = fault("{}", schema);
    EXPECT_NE(found.find(std::string("schema: plugin 'p': config_schema: ") + words),
              std::string::npos)
        << found;
  };
  expect(R"({"oneOf": []})", "the top: keyword 'oneOf' is not supported; the host knows type,");
  expect(R"({"properties": {"a": {"pattern": "x"}}})", "'a': keyword 'pattern' is not supported");
  expect(R"({"properties": {"a": {"type": "int"}}})", "'a': type 'int' is not known; use one of");
  expect(R"({"properties": {"a": {"type": ["integer", "null"]}}})",
         "'a': keyword 'type' needs one type name, found a list of 2");
  expect(R"({"properties": {"a": {"items": {"minimum": "1"}}}})",
         "'a[]': keyword 'minimum' needs a number, found string '1'");
  expect(R"({"properties": {"a": {"minItems": -1}}})", "'a': keyword 'minItems' needs a count");
  expect(R"({"properties": {"a": {"enum": []}}})", "'a': keyword 'enum' needs a list of values");
  expect(R"({"required": [1]})", "the top: keyword 'required' needs a list of strings");
  expect(R"({"type": "array"})", "the top: expected type 'object'");
  expect(R"([1])", "the top: expected a schema object");
  EXPECT_NE(fault("{}", "{\"type\":").find("schema: "), std::string::npos);
  std::string deep;
  for (int i = 0; i < 40; ++i) deep += R"({"items":)";
  deep += "{}" + std::string(40, '}');
  EXPECT_NE(fault("{}", deep.c_str()).find("nested deeper than 32"), std::string::npos);
}

TEST(PluginConfig, paths_go_through_lists) {
  const auto made =
      PluginConfig::make(Json::parse(R"({"list": [{"n": 5}, [7, 8]], "0": {"n": 9}})"), nullptr);
  const specd_config* config = made.value()->get();
  int64_t number = 0;
  EXPECT_EQ(config->get_i64(config, "list.0.n", &number), SPECD_OK);
  EXPECT_EQ(number, 5);
  EXPECT_EQ(config->get_i64(config, "list.1.1", &number), SPECD_OK);
  EXPECT_EQ(number, 8);
  EXPECT_EQ(config->get_i64(config, "0.n", &number), SPECD_OK);
  EXPECT_EQ(number, 9);
  for (const char* path : {"list.2", "list.-1", "list.+1", "list.1x", "list.", "list.n", "list.0.0",
                           "list.99999999999999999999"}) {
    EXPECT_EQ(config->get_i64(config, path, &number), SPECD_E_PRECONDITION) << path;
  }
}

TEST(PluginConfig, getters_read_by_path_and_leave_out_alone_on_error) {
  auto made = PluginConfig::make(
      Json::parse(R"({"b": {"n": 5, "whole": 8.0, "half": 0.5, "on": true, "text": "hi"},
                      "a": 18446744073709551615})"),
      nullptr);
  ASSERT_TRUE(made.ok());
  const specd_config* config = made.value()->get();
  EXPECT_EQ(
      std::string(config->json, config->json_len),
      R"({"a":18446744073709551615,"b":{"half":0.5,"n":5,"on":true,"text":"hi","whole":8.0}})");
  int64_t number = -7;
  double real = -7;
  uint32_t flag = 7;
  const char* text = nullptr;
  uint64_t length = 0;
  EXPECT_EQ(config->get_i64(config, "b.absent", &number), SPECD_E_PRECONDITION);
  EXPECT_EQ(config->get_i64(config, "b.text.x", &number), SPECD_E_PRECONDITION);
  EXPECT_EQ(config->get_i64(config, "", &number), SPECD_E_PRECONDITION);
  EXPECT_EQ(config->get_i64(config, "b.half", &number), SPECD_E_CONFIG);
  EXPECT_EQ(config->get_i64(config, "b.on", &number), SPECD_E_CONFIG);
  EXPECT_EQ(config->get_i64(config, "a", &number), SPECD_E_CONFIG) << "does not fit";
  EXPECT_EQ(config->get_i64(config, nullptr, &number), SPECD_E_INVALID);
  EXPECT_EQ(config->get_bool(config, "b.n", &flag), SPECD_E_CONFIG);
  EXPECT_EQ(config->get_f64(config, "b.text", &real), SPECD_E_CONFIG);
  EXPECT_EQ(config->get_str(config, "b", &text, &length), SPECD_E_CONFIG);
  EXPECT_EQ(number, -7);
  EXPECT_EQ(real, -7);
  EXPECT_EQ(flag, 7u);
  EXPECT_EQ(text, nullptr);
  EXPECT_EQ(config->get_i64(config, "b.n", &number), SPECD_OK);
  EXPECT_EQ(number, 5);
  EXPECT_EQ(config->get_i64(config, "b.whole", &number), SPECD_OK);
  EXPECT_EQ(number, 8);
  EXPECT_EQ(config->get_f64(config, "b.n", &real), SPECD_OK);
  EXPECT_EQ(real, 5.0);
  EXPECT_EQ(config->get_bool(config, "b.on", &flag), SPECD_OK);
  EXPECT_EQ(flag, 1u);
  EXPECT_EQ(config->get_str(config, "b.text", &text, &length), SPECD_OK);
  EXPECT_STREQ(text, "hi");
  EXPECT_EQ(length, 2u);
}

TEST(PluginConfig, what_has_no_json_is_refused) {
  EXPECT_FALSE(PluginConfig::make(Json::array(), nullptr).ok());
  EXPECT_FALSE(PluginConfig::make(Json{{"a", "\xff"}}, nullptr).ok());
  EXPECT_FALSE(
      PluginConfig::make(Json{{"a", std::numeric_limits<double>::infinity()}}, nullptr).ok());
  Json deep = Json::object();
  for (int i = 0; i < 80; ++i) deep = Json{{"a", deep}};
  EXPECT_FALSE(PluginConfig::make(deep, nullptr).ok());
}

}  // namespace
}  // namespace specd
