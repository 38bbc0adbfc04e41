#include "host/config/config_print.h"

#include <gtest/gtest.h>

#include <string>

#include "host/config/config_keys.h"
#include "tests/host/config/config_rig.h"

namespace specd::host {
namespace {

// Printed, saved in another folder, read again.
void expect_round_trip(const Result<Config>& config) {
  ASSERT_TRUE(config.ok()) << config.status().text();
  const std::string text = print_config(config.value());
  const ConfigFolder elsewhere;
  const auto again = elsewhere.parse(text);
  ASSERT_TRUE(again.ok()) << again.status().text() << "\n" << text;
  expect_same(config.value(), again.value(), text);
}

const char kLeast[] = "listen: unix:run/s.sock\nmodel: {name: m, path: model}\n";

TEST(PrintConfig, what_is_printed_gives_the_same_configuration_in_another_folder) {
  const ConfigFolder folder;
  expect_round_trip(folder.parse(kLeast));
  expect_round_trip(folder.parse(PlacedYaml(every_key()).text()));
  expect_round_trip(folder.parse(kLeast + std::string("http: {listen: '[::1]:0'}\n")));
  expect_round_trip(folder.parse(kLeast, {.environment = {}, .set = {"model.kv.pages=7"}}));
  expect_round_trip(
      folder.parse(kLeast, {.environment = {}, .set = {"model.kv.memory_share=0.1"}}));
  expect_round_trip(folder.parse(kLeast, {.environment = {"SPECD__ENGINE__THREADS=3"},
                                          .set = {"plugins.directories=[run, model]"}}));
}

TEST(PrintConfig, what_a_plugin_takes_is_printed_to_the_bit) {
  const ConfigFolder folder;
  OrderedJson json = every_key();
  json["routes"]["r"]["drafter"]["config"] = OrderedJson::parse(
      R"({"i": -9223372036854775808, "u": 18446744073709551615, "f": 0.1, "e": 1e300, "b": true,
          "s": "true", "t": "12", "z": null, "q": "a \"b\" \\ \n\t\u0001 é 😀 #x: *y", "empty": "",
          "l": [[], {}, [1, "1"], {"a": [{"b": 1}]}], "007": "0x1f", "- k: v": 1, "null": "~",
          "o": {"p": {"q": {}}, "": "no"}, "on": "off", "x:": "y:", "#": "# no comment",
          "trailing ": " leading", "1.5": "1e3", "?": "!", "[": "]", "&a": "*a", "\u0007": "\u007f"})");
  expect_round_trip(folder.parse(json.dump()));
}

TEST(PrintConfig, every_value_names_its_origin) {
  const ConfigFolder folder;
  const auto config = folder.parse(
      "listen: unix:run/s.sock\n"
      "model: {name: m, path: model}\n"
      "draft_models:\n"
      "  - {name: d, path: draft}\n"
      "engine:\n"
      "  threads: 4\n"
      "  queue_max: 9\n"
      "routes:\n"
      "  r:\n"
      "    drafter: {plugin: d, config: {a: {b: 1}, c: 2}}\n"
      "    verifier: {plugin: v}\n",
      {.environment = {"SPECD__LOG_LEVEL=warn", "SPECD__ENGINE__THREADS=5"},
       .set = {"engine.threads=6", "routes.r.drafter.config.a.x=7",
               "draft_models[1]={name: e, "
               "path: draft}"}});
  ASSERT_TRUE(config.ok()) << config.status().text();
  const std::string text = print_config(config.value());
  // Each line without the blanks in the middle.
  const auto has = [&](const std::string& value, const std::string& origin) {
    const size_t at = text.find("\n" + value + " ");
    if (at == std::string::npos) return ADD_FAILURE() << value << "\n" << text, void();
    const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
    EXPECT_EQ(line.substr(line.rfind("  # ") + 4), origin) << line;
  };
  const std::string file = folder.file();
  EXPECT_TRUE(text.starts_with("listen: unix:" + folder.path().string() + "/run/s.sock")) << text;
  has("log_level: warn", "SPECD__LOG_LEVEL");
  has("drain_seconds: 30", "default");
  has("  threads: 6", "--set engine.threads");
  has("  queue_max: 9", file + ":7:14");
  has("  max_sequences: 64", "default");
  has("  name: m", file + ":2:15");
  has("    # bytes_max:", "default: full contexts, at most 1 GiB");
  has("  - name: d", file + ":4:12");
  has("  - name: e", "--set draft_models[1]");
  has("          b: 1", file + ":10:42");
  has("          x: 7", "--set routes.r.drafter.config.a.x");
  has("        c: 2", file + ":10:49");
  has("# http:", "default: no listener");
  has("    draft_nodes_max: 8", "default");
  has("  directories: []", "default");
}

TEST(PrintConfig, every_key_of_the_table_is_printed) {
  const ConfigFolder folder;
  const auto config = folder.parse(PlacedYaml(every_key()).text());
  ASSERT_TRUE(config.ok());
  const std::string text = print_config(config.value());
  for_each_key([&](const std::string& path, const Key& key, const Key&) {
    EXPECT_NE(text.find(key.name + ":"), std::string::npos) << path;
  });
}

TEST(PrintConfig, a_name_of_the_file_cannot_leave_its_comment) {
  const ConfigFolder folder;
  fs::create_directory(folder.path() / "a\nlog_level: off");
  const auto config = parse_config("listen: unix:../run/s.sock\nmodel: {name: m, path: ../model}\n",
                                   (folder.path() / "a\nlog_level: off" / "c.yaml").string());
  ASSERT_TRUE(config.ok()) << config.status().text();
  expect_round_trip(config);
}

}  // namespace
}  // namespace specd::host
