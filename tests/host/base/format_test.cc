// What specctl prints as YAML: read back by the configuration's reader, it says what the JSON says.
#include "host/base/format.h"

#include <gtest/gtest.h>

#include <string>

#include "host/config/config.h"

namespace specd::host {
namespace {

TEST(Format, yaml_says_what_json_says) {
  RouteOptions route;
  route.name = "r";
  route.model = "m";
  route.drafter = {.plugin = "d", .factory = {}, .config = {}};
  route.verifier = {.plugin = "v", .factory = {}, .config = Json::object()};
  route.drafter.config = Json::parse(
      R"({"i": -9223372036854775808, "u": 18446744073709551615, "f": 0.1, "e": 1e300, "s": 1e-05,
          "b": true, "t": "12", "z": null, "q": "a \"b\" \\ \n\t\u0001 é 😀 #x: *y", "empty": "",
          "c": "\u007f \u0085 \u2028 \u2029 \ufeff", "l": [0, [], {}, [1, "1"], {"s": 1e-05}],
          "m": [{"a": 1, "b": [{"c": []}]}, {}], "007": "0x1f", "- k: v": 1, "True": 1, "NO": 2,
          "y": 3, "null": 4, "o": {"p": {"q": {}}}})");
  const std::string yaml = object_text(route_to_json(route).dump(), Format::kYaml);
  EXPECT_EQ(yaml.substr(0, 4), "---\n");
  for (const unsigned char c : yaml) EXPECT_TRUE(c == '\n' || (c >= ' ' && c != 0x7f)) << int{c};
  EXPECT_NE(yaml.find(R"("\u007f \u0085 \u2028 \u2029 \ufeff")"), std::string::npos) << yaml;
  EXPECT_NE(yaml.find("s: 1.0e-05\n"), std::string::npos) << "text for YAML 1.1 without a point";
  EXPECT_NE(yaml.find("\"True\": 1\n"), std::string::npos) << yaml;
  EngineOptions served;
  served.model.name = "m";
  const auto file = parse_route(yaml, "r.yaml", served);
  ASSERT_TRUE(file.ok()) << file.status().text() << "\n" << yaml;
  EXPECT_EQ(file.value().route, route) << yaml;
}

TEST(Format, json_stays_a_line) {
  EXPECT_EQ(object_text(R"({"b":1,"a":[]})", Format::kJson), "{\"b\":1,\"a\":[]}\n");
}

}  // namespace
}  // namespace specd::host
