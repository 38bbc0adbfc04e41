// Every key of the table, spoiled in every way, against the reader and against the schema.
#include "host/config/config_keys.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/words.h"
#include "host/config/config_schema.h"
#include "tests/host/config/config_rig.h"
#include "tests/host/config/json_schema_check.h"

namespace specd::host {
namespace {

using Type = Key::Type;

// A key with its path in every_key(): "draft_models[0].kv.dtype".
struct Found {
  std::string path;
  const Key* key;
  const Key* section;  // it stands in
};

void collect(const Key& section, const std::string& front, std::vector<Found>& found) {
  for (const Key& key : section.keys) {
    const std::string path = front + key.name;
    found.push_back({path, &key, &section});
    if (key.type == Type::kSection) collect(key, path + ".", found);
    if (key.type == Type::kNamed) collect(key.keys[0], path + ".r.", found);
    if (key.type == Type::kList && key.keys[0].type == Type::kSection)
      collect(key.keys[0], path + "[0].", found);
    if (key.type == Type::kList && key.keys[0].type != Type::kSection)
      found.push_back({path + "[0]", &key.keys[0], &section});
  }
}

std::vector<Found> all_keys() {
  std::vector<Found> found;
  collect(config_keys(), "", found);
  return found;
}

// every_key() in which this key stands, and none that it excludes.
OrderedJson base_for(const Found& one) {
  OrderedJson base = every_key();
  const auto& exclusive = one.section->exclusive;
  if (std::find(exclusive.begin(), exclusive.end(), one.key->name) == exclusive.end()) return base;
  const std::string front = one.path.substr(0, one.path.size() - one.key->name.size());
  for (const std::string& other : exclusive)
    if (other != one.key->name && base.contains(pointer_of(front + other)))
      erase_at(base, front + other);
  if (one.key->name == "memory_share") base[pointer_of(one.path)] = 0.5;
  if (one.key->name == "pages") base[pointer_of(one.path)] = 11;
  if (one.key->name == "certificate") base[pointer_of(one.path)] = "client";
  return base;
}

struct Wrong {
  std::string text;
  bool schema_sees = true;  // false: only the reader can
};

std::vector<Wrong> wrong_values(const Key& key) {
  const std::string huge(5000, 'x');
  const std::vector<Wrong> no_scalar{{"[1]"}, {"{a: 1}"}, {"null"}, {"~"}};
  const std::vector<Wrong> no_mapping{{"x"}, {"7"}, {"[1]"}, {"''"}, {huge}};
  std::vector<Wrong> all;
  const auto add = [&](std::vector<Wrong> more) {
    all.insert(all.end(), more.begin(), more.end());
  };
  const bool is_text =
      key.type == Type::kText || key.type == Type::kName || key.type == Type::kPath;
  if (is_text) add({{"''"}, {"\"a\\u0000b\""}, {"\"a\\nb\""}, {"\"\\x7f\""}});
  switch (key.type) {
    case Type::kText:
      add(no_scalar);
      add({{huge}});
      // Of a certificate any text may be the name.
      if (key.name != "certificate") add({{"'x:'"}, {"'x@'"}, {"'@1'"}, {"../x"}, {"'unix:'"}});
      break;
    case Type::kName:
      add(no_scalar);
      add({{"a b"}, {"../x"}, {"a/b"}, {"'%2e'"}, {"'é'"}, {huge}, {std::string(65, 'x')}});
      break;
    case Type::kPath:
      add(no_scalar);
      add({{huge}, {"a/" + std::string(256, 'x'), false}});
      break;
    case Type::kChoice:
      add(no_scalar);
      add({{"''"}, {"zzz"}, {"7"}, {"true"}, {key.choices[0] + "x"}, {huge}});
      break;
    case Type::kInteger:
      add(no_scalar);
      add({{std::to_string(key.min - 1)},
           {std::to_string(key.max + 1)},
           {"99999999999999999999"},
           {"-99999999999999999999"},
           {"18446744073709551615"},
           {"-9223372036854775808"},
           {"1.5"},
           {"1e999"},
           {".inf"},
           {".nan"},
           {"''"},
           {"'5'"},
           {"true"},
           {"0b1"},
           {"1_000"},
           {huge}});
      break;
    case Type::kShare:
      add(no_scalar);
      add({{"0"}, {"-0.1"}, {"1.0001"}, {"1e999"}, {".nan"}, {"''"}, {"'0.5'"}, {"true"}, {huge}});
      break;
    case Type::kBoolean:
      add(no_scalar);
      add({{"''"}, {"yes"}, {"on"}, {"1"}, {"'true'"}, {"tru"}, {huge}});
      break;
    case Type::kBytes:
      add(no_scalar);
      add({{"''"}, {"0"}, {"-1"}, {"1.5"}, {"64MB"}, {"1 MiB"}, {"010MiB"}, {"true"}, {huge}});
      add({{"1125899906842625"}, {"1048577GiB", false}, {"99999999999999999999"}});
      add({{"99999999999999999999GiB", false}});
      break;
    case Type::kSection:
      add(no_mapping);
      add({{"null"}});
      break;
    case Type::kList:
      add({{"x"}, {"7"}, {"{a: 1}"}, {"null"}, {"''"}, {huge}});
      if (key.max > 0) {
        std::string too_many = "[cpu";
        for (int64_t i = 0; i < key.max; ++i) too_many += ", cpu";
        add({{"[]"}, {too_many + "]"}});
      }
      break;
    case Type::kNamed:
    case Type::kFree:
      add(no_mapping);
      break;
  }
  return all;
}

TEST(ConfigKeys, the_configuration_of_these_tests_says_every_key) {
  const OrderedJson base = every_key();
  for (const Found& one : all_keys()) {
    EXPECT_TRUE(base_for(one).contains(pointer_of(one.path))) << one.path;
  }
  const ConfigFolder folder;
  EXPECT_EQ(folder.error(PlacedYaml(base).text()), "ok");
}

TEST(ConfigKeys, every_key_says_what_it_means) {
  for (const Found& one : all_keys()) {
    if (one.key->name.empty()) continue;  // the items of a list
    EXPECT_FALSE(one.key->meaning.empty()) << one.path;
    EXPECT_EQ(one.key->meaning.find('|'), std::string::npos) << one.path;
  }
}

TEST(ConfigKeys, each_of_them_spoiled_is_refused_with_place_key_expected_and_found) {
  const ConfigFolder folder;
  const Json schema = Json::parse(config_schema());
  int count = 0;
  for (const Found& one : all_keys()) {
    const OrderedJson base = base_for(one);
    ASSERT_EQ(folder.error(PlacedYaml(base).text()), "ok") << one.path;
    for (const Wrong& wrong : wrong_values(*one.key)) {
      ++count;
      const PlacedYaml yaml(base, {.path = one.path, .text = wrong.text});
      const std::string message = folder.error(yaml.text());
      const std::string shown = one.path + ": " + wrong.text.substr(0, 80) + ": " + message;
      // An absent value has no place of its own: its key is where the reader looks.
      const bool is_nothing = wrong.text == "null" || wrong.text == "~";
      const std::string line = yaml.place(one.path).substr(0, yaml.place(one.path).find(':'));
      const std::string place = is_nothing ? line + ":" : yaml.place(one.path) + ": ";
      EXPECT_TRUE(message.starts_with("c.yaml:" + place)) << shown << yaml.place(one.path);
      EXPECT_NE(message.find(": " + one.path), std::string::npos) << shown;
      EXPECT_NE(message.find("expected "), std::string::npos) << shown;
      EXPECT_NE(message.find("found "), std::string::npos) << shown;
      EXPECT_EQ(message.find('\n'), std::string::npos) << shown;
      EXPECT_LT(message.size(), 700U) << shown;

      const auto node = parse_yaml(yaml.text(), "t");
      ASSERT_TRUE(node.ok()) << shown;
      const auto json = yaml_to_json({.node = node.value(), .file = "t"});
      if (!json.ok() || !wrong.schema_sees) continue;
      EXPECT_NE(schema_violation(schema, json.value()), "") << shown;
    }
  }
  EXPECT_GT(count, 400);
}

TEST(ConfigKeys, what_is_missing_unknown_or_said_twice_is_refused_by_reader_and_schema) {
  const ConfigFolder folder;
  const Json schema = Json::parse(config_schema());
  const auto refused = [&](const OrderedJson& json, const std::string& words) {
    const std::string message = folder.error(PlacedYaml(json).text());
    EXPECT_NE(message.find(words), std::string::npos) << words << ": " << message;
    EXPECT_NE(schema_violation(schema, Json::parse(json.dump())), "") << words;
  };
  int required = 0;
  for (const Found& one : all_keys()) {
    if (one.key->is_required) {
      OrderedJson without = every_key();
      erase_at(without, one.path);
      // Nothing left of its mapping: that is written {}.
      refused(without, one.path + ": missing; it is required");
      ++required;
    }
    if (one.key->type == Type::kSection) {
      OrderedJson with = every_key();
      with[pointer_of(one.path)]["thing"] = 1;
      refused(with, one.path + ".thing: unknown key; ");
    }
    const auto& exclusive = one.key->exclusive;
    for (size_t i = 0; i < exclusive.size(); ++i)
      for (size_t j = i + 1; j < exclusive.size(); ++j) {
        OrderedJson with = every_key();
        OrderedJson& section = with[pointer_of(one.path)];
        for (const std::string& key : exclusive) section.erase(key);
        for (const std::string& key : {exclusive[i], exclusive[j]}) section[key] = 1;
        const std::string words = ": expected only one of " + joined_or(exclusive) + "; ";
        refused(with, one.path + "." + exclusive[j] + words);
      }
  }
  EXPECT_GT(required, 8);
  OrderedJson with = every_key();
  with["thing"] = 1;
  refused(with, "thing: unknown key; ");
  for (const char* name : {"off", "a b", "../x", ""}) {
    OrderedJson named = every_key();
    named["routes"][name] = named["routes"]["r"];
    const std::string message = folder.error(named.dump());
    EXPECT_NE(message.find("routes"), std::string::npos) << message;
    EXPECT_NE(message, "ok") << name;
    EXPECT_NE(schema_violation(schema, Json::parse(named.dump())), "") << name;
  }
  OrderedJson many = every_key();
  for (int i = 0; i < 256; ++i) many["routes"]["r" + std::to_string(i)] = many["routes"]["r"];
  refused(many, "routes: expected at most 256, found 257");
}

TEST(ConfigKeys, the_schema_in_the_tree_is_what_the_table_says) {
  EXPECT_EQ(read_file(fs::path(SPECD_SOURCE_DIR) / "configs/specd.schema.json"), config_schema())
      << "specd schema > configs/specd.schema.json";
  EXPECT_EQ(schema_violation(Json::parse(config_schema()), Json::parse(every_key().dump())), "");
}

TEST(ConfigKeys, the_table_of_the_readme_is_what_the_table_says) {
  const std::string readme = read_file(fs::path(SPECD_SOURCE_DIR) / "configs/README.md");
  EXPECT_NE(readme.find("\n\n" + config_table() + "\n"), std::string::npos)
      << "configs/README.md: the output of `specd schema --table`";
}

TEST(Configs, each_in_the_tree_fits_the_schema_and_names_it) {
  const Json schema = Json::parse(config_schema());
  int count = 0;
  for (const auto& entry : fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs")) {
    if (entry.path().extension() != ".yaml") continue;
    ++count;
    const std::string text = read_file(entry.path());
    EXPECT_TRUE(text.starts_with("# yaml-language-server: $schema=specd.schema.json\n"))
        << entry.path();
    const auto node = parse_yaml(text, entry.path().string());
    ASSERT_TRUE(node.ok()) << node.status().text();
    const auto json = yaml_to_json({.node = node.value(), .file = entry.path().string()});
    ASSERT_TRUE(json.ok()) << json.status().text();
    EXPECT_EQ(schema_violation(schema, json.value()), "") << entry.path();
  }
  EXPECT_GE(count, 2);
}

// The block of text under the key, which a line with less space before it ends.
std::string block_of(const std::string& text, const std::string& key) {
  const size_t at = text.find("\n  " + key + ": |\n");
  if (at == std::string::npos) return "";
  std::istringstream lines(text.substr(text.find('\n', at + 1) + 1));
  std::string block;
  for (std::string line; std::getline(lines, line) && line.starts_with("    ");) {
    block += line.substr(4) + "\n";
  }
  return block;
}

TEST(Configs, those_for_kubernetes_fit_the_schema) {
  const Json schema = Json::parse(config_schema());
  int count = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs/kubernetes")) {
    ++count;
    const std::string manifest = read_file(entry.path());
    const auto node = parse_yaml(block_of(manifest, "specd.yaml"), entry.path().string());
    ASSERT_TRUE(node.ok()) << node.status().text();
    const auto json = yaml_to_json({.node = node.value(), .file = entry.path().string()});
    ASSERT_TRUE(json.ok()) << json.status().text();
    EXPECT_EQ(schema_violation(schema, json.value()), "") << entry.path();
    // mpirun starts as many ranks as are configured.
    const Json engine = json.value().value("engine", Json::object());
    const int ranks = engine.value("tensor_parallel_size", 1);
    EXPECT_EQ(manifest.find("mpirun, -n, \"" + std::to_string(ranks) + "\"") != std::string::npos,
              ranks > 1)
        << entry.path();
  }
  EXPECT_EQ(count, 2);
}

TEST(Configs, those_for_kubernetes_can_be_applied_together) {
  std::set<std::string> objects, names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(SPECD_SOURCE_DIR) / "configs/kubernetes")) {
    std::istringstream lines(read_file(entry.path()));
    std::string kind;
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("kind: ")) kind = line.substr(6);
      if (!line.starts_with("  name: ")) continue;
      EXPECT_TRUE(objects.insert(kind + line).second) << line << " in " << entry.path();
      // The operator makes a Service with the name of the job.
      if (kind == "Service" || kind == "MPIJob") {
        EXPECT_TRUE(names.insert(line).second) << line << " in " << entry.path();
      }
    }
  }
  EXPECT_EQ(objects.size(), 6U);
}

}  // namespace
}  // namespace specd::host
