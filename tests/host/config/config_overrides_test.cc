#include "host/config/config_overrides.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "host/config/config_keys.h"
#include "host/config/config_schema.h"
#include "tests/host/config/config_rig.h"

namespace specd::host {
namespace {

std::string replace_all(std::string text, const std::string& word, const std::string& with) {
  for (size_t i = text.find(word); i != std::string::npos; i = text.find(word, i + with.size()))
    text.replace(i, word.size(), with);
  return text;
}

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

TEST(Overrides, every_key_can_be_given_by_option_and_by_variable_instead_of_the_file) {
  const ConfigFolder folder;
  int count = 0;
  for_each_key([&](const std::string& table_path, const Key&, const Key&) {
    const std::string path = replace_all(replace_all(table_path, "[]", "[0]"), ".NAME", ".r");
    OrderedJson full = every_key();
    if (!full.contains(pointer_of(path))) {  // of those that exclude each other
      const bool is_user = path == "users[0].certificate";
      erase_at(full, is_user ? "users[0].name" : "model.kv.bytes_max");
      full[pointer_of(path)] = is_user ? OrderedJson("client") : OrderedJson(1);
    }
    const auto whole = folder.parse(PlacedYaml(full).text());
    ASSERT_TRUE(whole.ok()) << whole.status().text();
    const std::string value = full[pointer_of(path)].dump();
    OrderedJson other = full;
    erase_at(other, path);
    const std::string without = PlacedYaml(other).text();
    std::string variable = replace_all(replace_all(path, "[", "__"), "]", "");
    variable = "SPECD__" + upper(replace_all(variable, ".", "__")) + "=" + value;
    for (const Overrides& given : {Overrides{.environment = {}, .set = {path + "=" + value}},
                                   Overrides{.environment = {variable}, .set = {}}}) {
      const auto config = folder.parse(without, given);
      ASSERT_TRUE(config.ok()) << path << ": " << config.status().text();
      expect_same(config.value(), whole.value(), path);
      // And over the file's own value: nothing of it is left.
      const auto again = folder.parse(PlacedYaml(full).text(), given);
      ASSERT_TRUE(again.ok()) << path << ": " << again.status().text();
      expect_same(again.value(), whole.value(), path);
    }
    ++count;
  });
  EXPECT_GT(count, 30);
}

TEST(Overrides, the_option_holds_over_the_environment_and_that_over_the_file) {
  const ConfigFolder folder;
  const std::string text = PlacedYaml(every_key()).text();
  const auto threads = [&](const Overrides& given) {
    const auto config = folder.parse(text, given);
    EXPECT_TRUE(config.ok()) << config.status().text();
    return config.ok() ? config.value().engine.threads : -1;
  };
  const std::string variable = "SPECD__ENGINE__THREADS=5";
  EXPECT_EQ(threads({}), 2);
  EXPECT_EQ(threads({.environment = {variable}, .set = {}}), 5);
  EXPECT_EQ(threads({.environment = {variable}, .set = {"engine.threads=7"}}), 7);
  EXPECT_EQ(threads({.environment = {}, .set = {"engine.threads=7", "engine.threads=8"}}), 8);
  EXPECT_EQ(
      threads({.environment = {"specd__engine__threads=5", "SPECD_ENGINE__THREADS=6"}, .set = {}}),
      2);
  EXPECT_EQ(threads({.environment = {"SPECD__engine__Threads=5"}, .set = {}}), 5);
  // A whole section first, then what is inside it, in whatever order they come.
  EXPECT_EQ(
      threads({.environment = {variable, "SPECD__ENGINE={threads: 3, queue_max: 2}"}, .set = {}}),
      5);
}

TEST(Overrides, lists_names_and_whole_mappings_can_be_given) {
  const ConfigFolder folder;
  const std::string text = PlacedYaml(every_key()).text();
  const auto with = [&](const Overrides& given) {
    auto config = folder.parse(text, given);
    EXPECT_TRUE(config.ok()) << config.status().text();
    return config.ok() ? std::move(config).value() : Config();
  };
  Config c =
      with({.environment = {"SPECD__DRAFT_MODELS__1__NAME=e", "SPECD__DRAFT_MODELS__1__PATH=draft",
                            "SPECD__ROUTES__R__DRAFTER__CONFIG__NEW_KEY=[1, {a: ~}]"},
            .set = {"draft_models[2]={name: f, path: draft}"}});
  ASSERT_EQ(c.engine.draft_models.size(), 3U);
  EXPECT_EQ(c.engine.draft_models[1].name, "e");
  EXPECT_EQ(c.engine.draft_models[2].name, "f");
  EXPECT_EQ(c.engine.routes[0].drafter.config,
            Json::parse(R"({"n": 3, "new_key": [1, {"a": null}]})"));

  c = with(
      {.environment = {},
       .set = {"routes.\"a.b\".drafter.plugin=x", "routes.\"a.b\".verifier={plugin: v}",
               "routes.r.drafter.config.n=null", "default_route=a.b", "model.kv.bytes_max=null",
               "model.kv.pages=7", "http=null", "engine.threads=0x10"}});
  ASSERT_EQ(c.engine.routes.size(), 2U);
  EXPECT_EQ(c.engine.routes[1].name, "a.b");
  EXPECT_EQ(c.engine.routes[1].model, "m");
  EXPECT_EQ(c.engine.default_route, "a.b");
  // Below a plugin's configuration null is a value, elsewhere it takes the key out.
  EXPECT_EQ(c.engine.routes[0].drafter.config, Json::parse(R"({"n": null})"));
  EXPECT_EQ(c.engine.model.kv_bytes_max, 0U);
  EXPECT_EQ(c.engine.model.kv_pages, 7);
  EXPECT_FALSE(c.http.has_value());
  EXPECT_EQ(c.engine.threads, 16);

  // A name with a dot is one word of a variable.
  const auto dotted =
      folder.parse(text, {.environment = {"SPECD__ROUTES__A.B__DRAFT_NODES_MAX=6"}, .set = {}});
  EXPECT_EQ(dotted.status().text(),
            "SPECD__ROUTES__A.B__DRAFT_NODES_MAX: routes.a.b.drafter: missing; it is required");

  // A list of more than ten, in the order of its indices and not of its digits.
  Overrides many;
  for (int i = 12; i >= 0; --i)
    many.environment.push_back("SPECD__PLUGINS__DIRECTORIES__" + std::to_string(i) + "=" +
                               (i % 2 == 0 ? "plugins" : "run"));
  c = with(many);
  ASSERT_EQ(c.engine.plugin_directories.size(), 13U);
  EXPECT_EQ(c.engine.plugin_directories[11], (folder.path() / "run").string());
}

TEST(Overrides, a_wrong_one_is_refused_in_the_place_of_the_file) {
  const ConfigFolder folder;
  const PlacedYaml placed(every_key());
  const std::string& text = placed.text();
  const std::pair<const char*, std::string> options[] = {
      {"engine.threads=x", "--set engine.threads: expected a whole number in [0, 256], found 'x'"},
      {"engine.threads=257", "--set engine.threads: expected a whole number in [0, 256], found"},
      {"engine.thread=1", "--set engine.thread: unknown key; did you mean 'threads'?"},
      {"engine={threads: x}", "--set engine: engine.threads: expected a whole number"},
      {"engine.threads.x=1",
       "--set engine.threads.x: engine.threads: expected a whole number in [0, 256], found a map"},
      {"lisen=unix:x", "--set lisen: unknown key; did you mean 'listen'?"},
      {"draft_models[1].name=e", "--set draft_models[1].name: draft_models[1].path: missing"},
      {"draft_models[2].name=e",
       "--set draft_models[2].name: expected an index from 0 to 1 (1 appends an item)"},
      {"draft_models.name=e", "--set draft_models.name: 'draft_models' is a list; expected an"},
      {"model[0]=e", "--set model[0]: 'model' is a mapping; expected a key and no index"},
      {"model.name[0]=e", "--set model.name[0]: model.name: expected text, found a list"},
      {"routes.off={drafter: {plugin: d}, verifier: {plugin: v}}",
       "--set routes.off: 'off' is reserved"},
      {"model.path=nowhere", "--set model.path: expected a folder with config.json"},
      {"engine=a: b: c", "--set engine:1:5: not YAML"},
      {"engine=&a {}", "--set engine:1:1: anchors"},
      {"engine=", "--set engine: expected a value after '='"},
      {"engine", "--set: expected KEY=VALUE such as engine.threads=2, found 'engine'"},
      {"", "--set: expected KEY=VALUE such as engine.threads=2, found ''"},
      {"=1", "--set: expected KEY=VALUE"},
      {"engine..threads=1", "--set: expected KEY=VALUE"},
      {".engine=1", "--set: expected KEY=VALUE"},
      {"engine.=1", "--set: expected KEY=VALUE"},
      {"[0]=1", "--set: expected KEY=VALUE"},
      {"routes.\"a=1", "--set: expected KEY=VALUE"},
      {"routes.\"a\"b=1", "--set: expected KEY=VALUE"},
      {"devices[x]=cpu",
       "--set: expected KEY=VALUE such as engine.threads=2, found 'devices[x]=cpu': expected an "
       "index such as [0] at byte 7"},
      {"devices[18446744073709551616]=cpu", "--set: expected KEY=VALUE"},
      {"devices[18446744073709551615]=cpu",
       "--set devices[18446744073709551615]: expected an index from 0 to 1 (1 appends an item), "
       "found 18446744073709551615"},
      {"devices[-1]=cpu", "--set: expected KEY=VALUE"},
      {"devices[0=cpu", "--set: expected KEY=VALUE"},
      {"model.kv.byte_max=null", "--set model.kv.byte_max: unknown key; did you mean 'bytes_max'?"},
      {"routes.x=null", "--set routes.x: expected a mapping, found nothing"},
      {"routes.r=null", "c.yaml:" + placed.place("default_route") +
                            ": default_route: expected a route that is configured (off), found"},
      {"draft_models[0]=null", "--set draft_models[0]: expected a mapping, found nothing"},
      {"listen=null", "c.yaml:1:1: listen: missing; it is required"},
  };
  for (const auto& [option, front] : options) {
    const std::string message = folder.error(text, {.environment = {}, .set = {option}});
    EXPECT_TRUE(message.starts_with(front)) << option << ": " << message;
  }
  const std::pair<const char*, const char*> variables[] = {
      {"SPECD__ENGINE__THREADS=x",
       "SPECD__ENGINE__THREADS: engine.threads: expected a whole number in [0, 256], found 'x'"},
      {"SPECD__ENGIN__THREADS=1",
       "SPECD__ENGIN__THREADS: engin: unknown key; did you mean 'engine'"},
      {"SPECD__ENGINE_THREADS=1", "SPECD__ENGINE_THREADS: engine_threads: unknown key"},
      {"SPECD__=1", "SPECD__: expected SPECD__KEY__KEY=VALUE"},
      {"SPECD__ENGINE__=1", "SPECD__ENGINE__: expected SPECD__KEY__KEY=VALUE"},
      {"SPECD____ENGINE=1", "SPECD____ENGINE: expected SPECD__KEY__KEY=VALUE"},
      {"SPECD__DEVICES__ZERO=cpu", "SPECD__DEVICES__ZERO: expected an index of the list, 0 for"},
      {"SPECD__DEVICES__3=cpu",
       "SPECD__DEVICES__3: expected an index from 0 to 1 (1 appends an item), found 3"},
      {"SPECD__ENGINE__THREADS=", "SPECD__ENGINE__THREADS: expected a value after '='"},
      {"SPECD__ENGINE=a: b: c", "SPECD__ENGINE:1:5: not YAML"},
  };
  for (const auto& [variable, front] : variables) {
    const std::string message = folder.error(text, {.environment = {variable}, .set = {}});
    EXPECT_TRUE(message.starts_with(front)) << variable << ": " << message;
  }
  EXPECT_EQ(folder.error(
                text, {.environment = {"SPECD__LISTEN=unix:x", "SPECD__listen=unix:y"}, .set = {}}),
            "SPECD__listen: the same key as SPECD__LISTEN");
  OrderedJson twins = every_key();
  twins["routes"]["R"] = twins["routes"]["r"];
  EXPECT_EQ(folder.error(PlacedYaml(twins).text(),
                         {.environment = {"SPECD__ROUTES__R__DRAFT_NODES_MAX=3"}, .set = {}}),
            "SPECD__ROUTES__R__DRAFT_NODES_MAX: 'R' is ambiguous (r, R); choose one with --set");
}

TEST(Overrides, paths_are_bounded_and_one_line) {
  const ConfigFolder folder;
  const std::string text = PlacedYaml(every_key()).text();
  std::string deep = "routes.r.drafter.config";
  for (int i = 0; i < 100'000; ++i) deep += ".a";
  std::string message = folder.error(text, {.environment = {}, .set = {deep + "=1"}});
  EXPECT_NE(message.find("deeper than 32 levels"), std::string::npos);
  EXPECT_LT(message.size(), 400U);
  // The path and the value together, so that what is printed can be read again.
  const std::string there = "routes.r.drafter.config.a=";
  const auto nested = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  message = folder.error(text, {.environment = {}, .set = {there + nested(28)}});
  EXPECT_NE(message.find("deeper than 32 levels"), std::string::npos) << message;
  EXPECT_EQ(folder.error(text, {.environment = {}, .set = {there + nested(27)}}), "ok");
  message = folder.error(text, {.environment = {}, .set = {"a\nb\x1b[2J=1"}});
  EXPECT_EQ(message.find_first_of("\n\x1b"), std::string::npos) << message;
  message = folder.error(text, {.environment = {"SPECD__A\nB=1"}, .set = {}});
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  message = folder.error(text, {.environment = {}, .set = {"model.name=\xff"}});
  EXPECT_TRUE(message.starts_with("--set: expected UTF-8")) << message;
  message = folder.error(text, {.environment = {"SPECD__MODEL__NAME=\xff"}, .set = {}});
  EXPECT_TRUE(message.starts_with("SPECD__MODEL__NAME: expected UTF-8")) << message;
  message = folder.error(text, {.environment = {}, .set = {"model.\xff=1"}});
  EXPECT_NE(message.find("UTF-8"), std::string::npos) << message;
}

TEST(Overrides, what_the_engine_says_names_the_option) {
  const ConfigFolder folder;
  const auto config = folder.parse(
      PlacedYaml(every_key()).text(),
      {.environment = {"SPECD__ENGINE__ISA=avx512"}, .set = {"routes.r.drafter.config.n=4"}});
  ASSERT_TRUE(config.ok()) << config.status().text();
  const auto placed = [&](const char* field, const char* message) {
    return with_place(config.value(), Status(Code::kInvalidArgument, field, message)).text();
  };
  EXPECT_EQ(placed("engine.isa", "this machine has no avx512"),
            "SPECD__ENGINE__ISA: engine.isa: this machine has no avx512");
  EXPECT_EQ(placed("routes.r.drafter.config.n", "expected at most 2"),
            "--set routes.r.drafter.config.n: expected at most 2");
}

TEST(Overrides, what_completion_offers_can_be_set) {
  const ConfigFolder folder;
  const std::vector<std::string> keys = settable_keys();
  EXPECT_GT(keys.size(), 20U);
  for (const std::string& key : keys) {
    const std::string message =
        folder.error(PlacedYaml(every_key()).text(), {.environment = {}, .set = {key + "=???"}});
    EXPECT_EQ(message.find("unknown key"), std::string::npos) << message;
  }
}

}  // namespace
}  // namespace specd::host
