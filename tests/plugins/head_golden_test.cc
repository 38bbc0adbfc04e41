// Trained heads against the authors' own code, and for layouts that it does not run against a plain
// reference: what these drafted is in tests/reference/heads, with weights and hidden states that a
// hash makes. Also what a plugin says of files that do not fit.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/head_files.h"
#include "tests/plugins/token_list.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

constexpr size_t kGroupMax = 5;  // sequences of a batch
constexpr size_t kPositionsMax = 128;
constexpr uint32_t kRowsMax = 32;    // of an update: longer contexts come in two
constexpr double kMarginMin = 1e-4;  // closer decisions may be taken otherwise in float32

// "specd.drafter.eagle" is the only factory of drafter_eagle.so.
const specd_factory& factory_of(const std::string& plugin) {
  static std::map<std::string, sdk::FakeModule> loaded;
  const std::string name = "drafter_" + plugin.substr(plugin.rfind('.') + 1);
  const std::string path = std::string(SPECD_TEST_BUNDLES "/") + name + "/" + name + ".so";
  return *loaded.try_emplace(plugin, path).first->second.plugin().factories[0];
}

void put(FakeConfig& out, const std::string& at, const Json& value) {
  if (value.is_structured()) {
    if (!at.empty()) out.set_other(at);
    for (const auto& [key, each] : value.items()) put(out, at.empty() ? key : at + "." + key, each);
  } else if (value.is_boolean()) {
    out.set(at, value.get<bool>());
  } else if (value.is_number_integer()) {
    out.set(at, value.get<int64_t>());
  } else if (value.is_number()) {
    out.set(at, value.get<double>());
  } else if (value.is_string()) {
    out.set(at, value.get<std::string>());
  }
}
FakeConfig config_of(const Json& values) {
  FakeConfig out(values.dump());
  put(out, "", values);
  return out;
}

// [scale] or [scale, offset]
std::vector<float> hashed(const std::string& name, size_t n, const Json& range) {
  std::vector<float> values = head_values(name, n, range[0]);
  if (range.size() > 1) {
    for (float& each : values) each += range[1].get<float>();
  }
  return values;
}

// [name, "F32" or "quantized", shape, scale, offset], or with integers [name, type, shape, values]. `quantized`:
// all matrices that are not embeddings, with the same values.
void add_tensor(sdk::FakeWeights& weights, const Json& row, bool quantized) {
  const std::string name = row[0], type = row[1];
  const std::vector<int64_t> shape = row[2];
  if (type == "F32" || type == "quantized") {
    size_t n = 1;
    for (const int64_t size : shape) n *= static_cast<size_t>(size);
    const std::vector<float> values = hashed(name, n, Json(row.begin() + 3, row.end()));
    const bool is_table = name.find("embed") != std::string::npos;
    if (type == "quantized" || (quantized && shape.size() == 2 && !is_table)) {
      weights.add_quantized(name, shape, values);
    } else {
      weights.add_f32(name, shape, values);
    }
  } else if (type == "I64") {
    weights.add_ints(name, shape, row[3].get<std::vector<int64_t>>());
  } else if (type == "BOOL") {
    std::vector<bool> values;
    for (const Json& each : row[3]) values.push_back(each != 0);
    weights.add_bools(name, shape, values);
  } else {
    throw std::runtime_error(name + ": type " + type);
  }
}

// The host of a case: its target, and the files behind the key "weights".
void set_up(FakeHost& host, const Json& given, bool quantized = false) {
  const Json& target = given["target"];
  host.target().vocab_size = target["vocab_size"];
  host.target().hidden_size = target["hidden_size"];
  host.target().n_layers = target["n_layers"];
  const auto n = static_cast<size_t>(host.target().vocab_size) * host.target().hidden_size;
  host.set_target_embedding(hashed("target.embedding", n, given["embedding"]));
  host.set_target_head(hashed("target.head", n, given["head"]));
  if (given.contains("config") && !given["config"].is_null()) {
    host.weights("weights").config(config_of(given["config"]));
  }
  for (const Json& row : given["tensors"]) add_tensor(host.weights("weights"), row, quantized);
}
FakeConfig settings_of(const Json& given) {
  Json settings = given["settings"];
  settings["weights"] = "anywhere";
  return config_of(settings);
}

std::multiset<TokenList> paths_of(const TokenList& token, const TokenList& parent) {
  std::vector<TokenList> paths;
  for (size_t i = 0; i < token.size(); ++i) {
    paths.push_back(parent[i] < 0 ? TokenList() : paths[static_cast<size_t>(parent[i])]);
    paths.back().push_back(token[i]);
  }
  return {paths.begin(), paths.end()};
}

// A round whose draft is another one than the golden's.
struct Difference {
  std::string text;
  double margin;
};
// Drafts the rounds of a case, several contexts at a time. `shift`: every row gets the state of so
// many rows later.
std::vector<Difference> differences(const Json& given, size_t shift = 0, bool quantized = false) {
  FakeHost host;
  set_up(host, given, quantized);
  std::vector<Difference> found;
  FakeDrafter::Options options;
  options.max_rows = kRowsMax;
  FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given), options);
  if (drafter.status() != SPECD_OK) {
    ADD_FAILURE() << (host.reports().empty() ? "refused" : host.reports()[0].text);
    return found;
  }
  // The states that it reads, as in the caps; by default what the target's output head gets.
  const Json final_state = {host.target().n_layers + 1};
  const std::vector<uint32_t> taps = given.value("taps", final_state);
  EXPECT_EQ(taps, std::vector<uint32_t>(drafter.caps().taps,
                                        drafter.caps().taps + drafter.caps().n_taps));
  std::vector<const Json*> asked;  // rounds whose states may be asked for
  const size_t width = host.target().hidden_size;
  std::map<std::string, std::vector<float>> states;
  drafter.set_hidden([&](uint32_t tap, const TokenList& text) {
    std::string name;
    for (const Json* each : asked) {
      const TokenList tokens = (*each)["tokens"];
      if (text.size() > tokens.size() || !std::equal(text.begin(), text.end(), tokens.begin())) {
        continue;
      }
      if (!name.empty()) throw std::runtime_error("two contexts begin alike");
      const auto number = std::find(taps.begin(), taps.end(), tap) - taps.begin();
      name = "hidden." + std::to_string(number) + "." + (*each)["context"].dump();
    }
    if (name.empty()) throw std::runtime_error("the state of an unknown text");
    std::vector<float>& rows = states[name];
    if (rows.empty()) rows = hashed(name, kPositionsMax * width, given.value("hidden", Json{1}));
    const auto first =
        rows.begin() + static_cast<std::ptrdiff_t>((text.size() - 1 + shift) * width);
    return std::vector<float>(first, first + static_cast<std::ptrdiff_t>(width));
  });

  // The first round of every context, the second ones, ...
  std::vector<std::vector<const Json*>> by_number;
  std::map<int, size_t> n_rounds;  // by context
  for (const Json& round : given["rounds"]) {
    const size_t number = n_rounds[round["context"].get<int>()]++;
    by_number.resize(std::max(by_number.size(), number + 1));
    by_number[number].push_back(&round);
  }
  // 1, 2, ... 5, 1, 2, ... of them at a time.
  std::vector<std::vector<const Json*>> groups;
  for (const std::vector<const Json*>& all : by_number) {
    size_t size = 0;
    for (size_t first = 0; first < all.size(); first += size) {
      size = std::min(size % kGroupMax + 1, all.size() - first);
      groups.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(first),
                          all.begin() + static_cast<std::ptrdiff_t>(first + size));
    }
  }
  std::map<int, int> handle;  // by context
  for (std::vector<const Json*>& group : groups) {
    std::vector<FakeDrafter::Commit> commits;
    std::vector<int> handles;
    for (const Json* round : group) {
      const TokenList tokens = (*round)["tokens"];
      const int context = (*round)["context"], rows_from = (*round)["rows_from"];
      asked = {round};
      if (rows_from == 0) {
        handle[context] = drafter.begin({tokens.begin(), tokens.end() - 1});
        EXPECT_EQ(drafter.prefill(handle[context]), SPECD_OK);
      }
      const size_t known = drafter.tokens(handle[context]).size();
      EXPECT_TRUE(rows_from == 0 || known == static_cast<size_t>(rows_from) + 1);
      handles.push_back(handle[context]);
      commits.push_back(
          {handles.back(), {tokens.begin() + static_cast<std::ptrdiff_t>(known), tokens.end()}});
    }
    asked = group;
    EXPECT_EQ(drafter.commit_batch(commits), SPECD_OK);
    // In another order than that of the rows.
    std::reverse(handles.begin(), handles.end());
    std::reverse(group.begin(), group.end());
    const std::vector<FakeDraft> drafts = drafter.propose_batch(handles);
    for (size_t i = 0; i < group.size(); ++i) {
      const Json& round = *group[i];
      EXPECT_EQ(drafts[i].status, SPECD_OK);
      const auto expected = paths_of(round["token"], round["parent"]);
      const auto got = paths_of(drafts[i].token, drafts[i].parent);
      if (got == expected) continue;
      std::vector<TokenList> missing;
      std::set_difference(expected.begin(), expected.end(), got.begin(), got.end(),
                          std::back_inserter(missing));
      const double margin = round["margin"];
      found.push_back(
          {"'" + given["name"].get<std::string>() + "', context " + round["context"].dump() +
               ", rows from " + round["rows_from"].dump() + ": " + std::to_string(got.size()) +
               " nodes, expected " + std::to_string(expected.size()) +
               "; not proposed: " + Json(missing).dump() + "; margin " + round["margin"].dump(),
           margin});
    }
  }
  for (const auto& each : handle) drafter.end(each.second);
  for (const std::string& violation : host.violations()) ADD_FAILURE() << violation;
  return found;
}

Json golden(const std::string& name) {
  return Json::parse(std::ifstream(SPECD_TEST_REFERENCE "/heads/" + name + ".json"));
}
// All files with cases; those that record steps on the zoo have contexts.
std::vector<std::string> golden_files() {
  std::vector<std::string> names;
  for (const auto& each : std::filesystem::directory_iterator(SPECD_TEST_REFERENCE "/heads")) {
    if (each.path().extension() != ".json") continue;
    const std::string name = each.path().stem();
    if (golden(name).contains("cases")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

class HeadGolden : public testing::TestWithParam<std::string> {};

// What the host reads as codes is a matrix like any other.
TEST_P(HeadGolden, drafts_do_not_depend_on_how_matrices_are_stored) {
  for (const Json& given : golden(GetParam())["cases"]) {
    SCOPED_TRACE(given["name"].get<std::string>());
    const std::vector<Difference> plain = differences(given),
                                  of_codes = differences(given, 0, true);
    EXPECT_TRUE(std::equal(plain.begin(), plain.end(), of_codes.begin(), of_codes.end(),
                           [](const auto& a, const auto& b) { return a.text == b.text; }));
  }
}

TEST_P(HeadGolden, drafts_are_those_of_the_reference) {
  const Json file = golden(GetParam());
  size_t n_rounds = 0, n_nodes = 0, n_differ = 0;
  for (const Json& given : file["cases"]) {
    SCOPED_TRACE(given["name"].get<std::string>());
    n_rounds += given["rounds"].size();
    for (const Json& round : given["rounds"]) n_nodes += round["token"].size();
    for (const Difference& each : differences(given)) {
      ++n_differ;
      std::cout << each.text << "\n";
      EXPECT_LT(each.margin, kMarginMin) << each.text;
    }
  }
  std::cout << GetParam() << ": " << n_rounds << " rounds, " << n_nodes << " nodes, " << n_differ
            << " rounds differ\n";
  EXPECT_GE(file["cases"].size(), 4u);
  EXPECT_GE(n_rounds, 80u);
  EXPECT_LE(100 * n_differ, n_rounds) << "more than 1 %";
}

// Negative control: with the states of other rows, the comparison finds most rounds different.
TEST_P(HeadGolden, states_of_the_next_row_draft_something_else) {
  const Json given = golden(GetParam())["cases"][0];
  EXPECT_GT(2 * differences(given, 1).size(), given["rounds"].size());
}

INSTANTIATE_TEST_SUITE_P(, HeadGolden, testing::ValuesIn(golden_files()),
                         [](const auto& name) { return name.param; });

// ---- what concerns one sequence, and budgets -------------------------------------------------

// The golden with `name` in its name.
Json case_of(const std::string& name) {
  for (const std::string& file : golden_files()) {
    const Json all = golden(file);
    for (const Json& given : all["cases"]) {
      if (given["name"].get<std::string>().find(name) != std::string::npos) return given;
    }
  }
  throw std::runtime_error("no case " + name);
}

// Three sequences that draft three times. `prepare` is called before each commit and each propose,
// with the number of the round and whether it is the propose.
std::vector<std::vector<FakeDraft>> three_rounds(
    const Json& given, const std::function<void(FakeHost&, int, bool)>& prepare) {
  FakeHost host;
  set_up(host, given);
  std::vector<std::vector<FakeDraft>> rounds;
  FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given));
  if (drafter.status() != SPECD_OK) {
    ADD_FAILURE() << host.reports()[0].text;
    return rounds;
  }
  const std::vector<int> handles = drafter.begin_batch({{1, 2, 3}, {4, 5, 6, 7}, {8, 9}});
  for (int round = 0; round < 3; ++round) {
    prepare(host, round, false);
    std::vector<FakeDrafter::Commit> commits;
    for (const int handle : handles) commits.push_back({handle, {10 * handle + round, 50 + round}});
    EXPECT_EQ(drafter.commit_batch(commits), SPECD_OK);
    prepare(host, round, true);
    rounds.push_back(drafter.propose_batch(handles));
    for (const FakeDraft& each : rounds.back()) EXPECT_EQ(each.status, SPECD_OK);
  }
  for (const std::string& violation : host.violations()) ADD_FAILURE() << violation;
  return rounds;
}
std::multiset<TokenList> paths_of(const FakeDraft& draft) {
  return paths_of(draft.token, draft.parent);
}
size_t depth_of(const FakeDraft& draft) {
  size_t depth = 0;
  for (const TokenList& each : paths_of(draft)) depth = std::max(depth, each.size());
  return depth;
}

// A drafter with one text that it has not drafted for yet, and the text's handle.
std::pair<std::unique_ptr<FakeDrafter>, int> with_one_text(FakeHost& host, const Json& given) {
  set_up(host, given);
  auto drafter =
      std::make_unique<FakeDrafter>(host, factory_of(given["plugin"]), settings_of(given));
  EXPECT_EQ(drafter->status(), SPECD_OK);
  const int text = drafter->begin({1, 2, 3});
  EXPECT_EQ(drafter->commit(text, {4}), SPECD_OK);
  return {std::move(drafter), text};
}

class HeadRooms : public testing::TestWithParam<const char*> {};

TEST_P(HeadRooms, a_sequence_without_room_costs_its_own_drafts_only) {
  const Json given = case_of(GetParam());
  const auto good = three_rounds(given, [](FakeHost&, int, bool) {});
  ASSERT_EQ(good.size(), 3u);
  for (const FakeDraft& each : good[0]) EXPECT_GT(depth_of(each), 1u);
  const uint64_t middle = FakeDrafter::seq_id(1);
  for (const bool in_propose : {false, true}) {
    SCOPED_TRACE(in_propose ? "no room in propose()" : "no room in update()");
    const auto seen = three_rounds(given, [&](FakeHost& host, int round, bool is_propose) {
      const bool fails = round == 1 && is_propose == in_propose;
      host.kv_fail_rows(middle, fails ? SPECD_E_EXHAUSTED : SPECD_OK);
    });
    ASSERT_EQ(seen.size(), 3u);
    for (size_t round = 0; round < 3; ++round) {
      EXPECT_EQ(paths_of(seen[round][0]), paths_of(good[round][0])) << round;
      EXPECT_EQ(paths_of(seen[round][2]), paths_of(good[round][2])) << round;
    }
    EXPECT_EQ(paths_of(seen[0][1]), paths_of(good[0][1]));
    EXPECT_GT(seen[1][1].count, 0);
    if (in_propose) {
      EXPECT_EQ(depth_of(seen[1][1]), 1u) << "what the last feature gives needs no room";
      EXPECT_EQ(paths_of(seen[2][1]), paths_of(good[2][1])) << "its rows are kept";
    } else {
      EXPECT_NE(paths_of(seen[1][1]), paths_of(good[0][1])) << "the feature before is another's";
    }
  }
}

// Levels that no budget has nodes for are not run.
TEST_P(HeadRooms, a_budget_of_one_runs_no_level) {
  const Json given = case_of(GetParam());
  FakeHost host;
  const auto [drafter, s] = with_one_text(host, given);
  const uint64_t before = host.calls("kv.rows");
  const FakeDraft one = drafter->propose(s, 1);
  EXPECT_EQ(one.count, 1);
  EXPECT_EQ(host.calls("kv.rows"), before);
  EXPECT_EQ(drafter->propose(s).token[0], one.token[0]);
  EXPECT_GT(host.calls("kv.rows"), before);
}

INSTANTIATE_TEST_SUITE_P(, HeadRooms,
                         testing::Values("reduced vocabulary, the defaults", "a chain, two layers",
                                         "Llama 3, a chain", "a fixed tree", "ModelOpt: two layers",
                                         "the authors' fixed tree", "biased, the defaults"),
                         [](const auto& param) { return "case_" + std::to_string(param.index); });

TEST(HeadBudgets, states_without_numbers_draft_nothing_where_the_head_chooses) {
  for (const std::string name : {"eagle3", "eagle2", "redrafter"}) {
    SCOPED_TRACE(name);
    const Json given = golden(name)["cases"][0];
    FakeHost host;
    set_up(host, given);
    FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given));
    ASSERT_EQ(drafter.status(), SPECD_OK);
    const int bad = drafter.begin({1, 2, 3}), good = drafter.begin({4, 5, 6});
    const size_t width = host.target().hidden_size;
    drafter.set_hidden([&](uint32_t, const TokenList& text) {
      return std::vector<float>(width, text[0] == 1 ? std::nanf("") : 0.25f);
    });
    EXPECT_EQ(drafter.commit_batch({{bad, {7}, {}, {}}, {good, {7}, {}, {}}}), SPECD_OK);
    const std::vector<FakeDraft> drafts = drafter.propose_batch({bad, good});
    EXPECT_EQ(drafts[0].count, 0);
    EXPECT_GT(drafts[1].count, 1);
  }
}

TEST(HeadBudgets, redrafter_searches_no_deeper_than_its_nodes_reach) {
  const Json given = golden("redrafter")["cases"][0];
  FakeHost host;
  const auto [drafter, s] = with_one_text(host, given);
  uint64_t calls = host.calls("ops.topk");
  EXPECT_EQ(drafter->propose(s, 1).count, 1);
  EXPECT_EQ(host.calls("ops.topk"), calls + 1);
  calls = host.calls("ops.topk");
  EXPECT_GT(depth_of(drafter->propose(s)), 1u);
  EXPECT_GT(host.calls("ops.topk"), calls + 1);
}

TEST(HeadBudgets, a_chain_is_announced_as_one) {
  for (const auto& [name, mode] : {std::pair("a chain, two layers", SPECD_TREE_CHAIN),
                                   std::pair("the authors' fixed tree", SPECD_TREE_STATIC),
                                   std::pair("ModelOpt: no fc", SPECD_TREE_VARIABLE)}) {
    const Json given = case_of(name);
    FakeHost host;
    set_up(host, given);
    const FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given));
    EXPECT_EQ(drafter.caps().tree_mode, static_cast<uint32_t>(mode)) << name;
  }
}

// The nodes of a level are copied in one call, which has a limit.
TEST(HeadBudgets, a_fixed_tree_too_wide_for_the_batch_is_refused_when_it_is_activated) {
  Json given = case_of("reduced vocabulary, the defaults");
  Json choices = Json::array();
  for (int i = 0; i < 64; ++i) choices.push_back({i});
  for (int i = 0; i < 16; ++i) choices.push_back({i, 0});
  given["settings"] = {{"mode", "static"}, {"choices", choices}};
  for (const uint32_t n : {63u, 64u}) {
    FakeHost host;
    set_up(host, given);
    FakeDrafter::Options options;
    options.max_batch = n;
    const FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given), options);
    ASSERT_EQ(drafter.status(), n == 63 ? SPECD_OK : SPECD_E_CONFIG) << n;
    if (n == 64) {
      EXPECT_NE(host.reports()[0].text.find("at most 65535"), std::string::npos);
    }
  }
}

// ---- files and configurations that do not fit ------------------------------------------------

Json& tensor(Json& given, const std::string& name) {
  for (Json& row : given["tensors"]) {
    if (row[0] == name) return row;
  }
  throw std::runtime_error("no tensor " + name);
}
using Change = std::function<void(Json&)>;
Change without(const std::string& name) {
  return [name](Json& given) {
    Json kept = Json::array();
    for (const Json& row : given["tensors"]) {
      if (row[0] != name) kept.push_back(row);
    }
    ASSERT_LT(kept.size(), given["tensors"].size()) << name;
    given["tensors"] = kept;
  };
}
Change with(const std::string& name, const std::vector<int64_t>& shape) {
  return [=](Json& given) { given["tensors"].push_back({name, "F32", shape, 0.125, 0}); };
}
Change shaped(const std::string& name, const std::vector<int64_t>& shape) {
  return [=](Json& given) { tensor(given, name)[2] = shape; };
}
Change element(const std::string& name, size_t i, int64_t value) {
  return [=](Json& given) { tensor(given, name)[3][i] = value; };
}
// "config.rope_scaling" and the like.
Change value(const std::string& path, const Json& to) {
  const auto dot = path.find('.');
  return [=](Json& given) { given[path.substr(0, dot)][path.substr(dot + 1)] = to; };
}
// The settings instead of those of the case.
Change settings(const Json& to) {
  return [=](Json& given) { given["settings"] = to; };
}

struct Wrong {
  Change change;
  std::vector<std::string> words;  // in the report, in this order
};
void expect_refused(const Json& given, const std::vector<Wrong>& all) {
  FakeHost good;
  set_up(good, given);
  const FakeDrafter drafter(good, factory_of(given["plugin"]), settings_of(given));
  ASSERT_EQ(drafter.status(), SPECD_OK) << good.reports()[0].text;
  for (const Wrong& each : all) {
    Json changed = given;
    each.change(changed);
    FakeHost host;
    set_up(host, changed);
    const FakeDrafter refused(host, factory_of(given["plugin"]), settings_of(changed));
    EXPECT_EQ(refused.status(), SPECD_E_CONFIG) << Json(each.words).dump();
    EXPECT_EQ(host.memory_used(), 0u) << "describe() refuses, before there is an instance";
    const std::string text = host.reports().empty() ? "no report" : host.reports()[0].text;
    size_t at = 0;
    for (const std::string& word : each.words) {
      at = text.find(word, at);
      EXPECT_NE(at, std::string::npos) << "'" << word << "' is not said: " << text;
      if (at == std::string::npos) break;
      at += word.size();
    }
    for (const std::string& violation : host.violations()) ADD_FAILURE() << violation;
  }
}

// Of the drafters whose trees are FeatureTreeShape.
const std::vector<Wrong> kWrongTrees = {
    {value("settings.top_k", 0), {"top_k", "from 1 to", "found 0"}},
    {value("settings.top_k", 65), {"top_k", "from 1 to 64", "found 65"}},
    {value("settings.depth", 0), {"depth", "from 1 to", "found 0"}},
    {value("settings.depth", 64), {"depth", "found 64"}},
    {value("settings.total_token", 0), {"total_token", "from 2 to", "found 0"}},
    {value("settings.total_token", 1), {"total_token", "from 2 to", "found 1"}},
    {value("settings.total_token", "60"), {"total_token", "expected an integer"}},
    {value("settings.max_positions", 0), {"max_positions", "found 0"}},
    {value("settings.mode", "tree"), {"mode", "'tree'", "expected dynamic, static or chain"}},
    {value("settings.draft_tokens", 4), {"draft_tokens", "not a key of mode 'dynamic'"}},
    {value("settings.mode", "chain"), {"not a key of mode 'chain'"}},
    {settings({{"mode", "chain"}, {"draft_tokens", 0}}), {"draft_tokens", "from 1", "found 0"}},
    {settings({{"mode", "static"}, {"choices", {{0}, {0}}}}), {"choices", "[0] is there twice"}},
    {settings({{"mode", "static"}, {"choices", {{0}, {0, 0}, {1, 1}}}}),
     {"choices", "[1, 1] is there without [1]"}},
    {settings({{"mode", "static"}, {"choices", {{0}, {64}}}}), {"choices", "[64]", "0 to 63"}},
    {settings({{"mode", "static"}, {"choices", {{0}, {-1}}}}), {"choices", "[-1]", "0 to 63"}}};

TEST(HeadFiles, of_eagle_that_do_not_fit_are_refused) {
  const Json given = golden("eagle2")["cases"][0];  // 64 wide, 4 heads, with fc.bias
  const std::string attention = "layers.0.self_attn.";
  expect_refused(
      given,
      {{without("fc.weight"), {"weights: ", "'fc.weight' is missing"}},
       {without(attention + "k_proj.weight"), {"'layers.0.self_attn.k_proj.weight' is missing"}},
       {without(attention + "q_proj.weight"), {"'layers.0.self_attn.q_proj.weight' is missing"}},
       {without("layers.0.post_attention_layernorm.weight"), {"post_attention_layernorm.weight'"}},
       {without("fc.bias"), {"bias true", "no tensor 'fc.bias'"}},
       {value("config.bias", false), {"bias false", "'fc.bias'"}},
       {with("norm.weight", {64}), {"'norm.weight' is not part of such a head"}},
       {with("layers.0.input_layernorm.weight", {64}), {"layernorm.weight' is not part of"}},
       {with(attention + "q_proj.bias", {64}), {"q_proj.bias' is not part of"}},
       {value("config.qkv_bias", true), {"'layers.0.self_attn.q_proj.bias' is missing"}},
       {shaped("fc.weight", {128, 64}), {"'fc.weight'", "[128, 64]", "expected [64, 128]"}},
       {shaped("fc.weight", {8192}), {"'fc.weight'", "[8192]", "expected [64, 128]"}},
       {shaped(attention + "o_proj.weight", {32, 128}), {"o_proj.weight'", "expected [64, 64]"}},
       {with("embed_tokens.weight", {250, 64}),
        {"'embed_tokens.weight'", "[250, 64]", "[256, 64]"}},
       {value("target.hidden_size", 48), {"'fc.weight'", "[64, 128]", "expected [48, 96]"}},
       {value("config.num_key_value_heads", 2), {"k_proj.weight'", "expected [32, 64]"}},
       {value("config.num_attention_heads", 0), {"num_attention_heads", "found 0"}},
       {value("config.hidden_act", "gelu"), {"hidden_act: found 'gelu'", "'silu'"}},
       {value("config.head_dim", 272), {"head_dim", "from 1 to 256"}},
       {value("config.head_dim", 32), {"q_proj.weight'", "[64, 64]", "expected [128, 64]"}},
       {value("config.rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}),
        {"'yarn'", "expected default, linear or llama3"}},
       {[](Json& changed) { changed.erase("config"); }, {"weights: ", "no config.json"}}});
  expect_refused(given, kWrongTrees);
}

TEST(HeadFiles, of_eagle3_that_do_not_fit_are_refused) {
  const Json given = golden("eagle3")["cases"][0];  // 64 wide, 160 of 400 ids, 8 layers
  expect_refused(
      given,
      {{without("norm.weight"), {"weights: ", "'norm.weight' is missing"}},
       {without("midlayer.hidden_norm.weight"), {"'midlayer.hidden_norm.weight' is missing"}},
       {without("midlayer.self_attn.q_proj.weight"),
        {"layer of EAGLE-3", "midlayer.self_attn.q_proj", "found 14 tensors: 'd2t', 'fc.weight'"}},
       {without("lm_head.weight"), {"'lm_head.weight' is missing"}},
       {with("midlayer.self_attn.rotary_emb.inv_freq", {8}), {"inv_freq' is not part of"}},
       {with("layers.0.hidden_norm.weight", {64}), {"norm.weight' is not part of"}},
       {[](Json& changed) {
          changed["tensors"].push_back({"embed_tokens.weight", "quantized", {400, 64}, 0.125, 0});
        },
        {"'embed_tokens.weight' is quantized", "expected float32"}},
       {[](Json& changed) { tensor(changed, "midlayer.self_attn.k_proj.weight")[1] = "quantized"; },
        {"k_proj.weight' has type opaque8", "q_proj.weight' has type float32", "one type"}},
       {[](Json& changed) { tensor(changed, "midlayer.mlp.up_proj.weight")[1] = "quantized"; },
        {"up_proj.weight' has type opaque8", "gate_proj.weight' has type float32", "one type"}},
       {shaped("fc.weight", {192, 64}), {"'fc.weight'", "[192, 64]", "expected [64, 64]"}},
       {shaped("midlayer.self_attn.q_proj.weight", {128, 64}),
        {"q_proj.weight'", "[128, 64]", "expected [64, 128]"}},
       {shaped("lm_head.weight", {64, 160}), {"'lm_head.weight'", "[64, 160]", "[64, 64]"}},
       {value("target.hidden_size", 80), {"'fc.weight' has 192 columns", "80"}},
       {value("target.hidden_size", 96), {"hidden size 64", "96", "'embed_tokens.weight'"}},
       {value("target.vocab_size", 300), {"'d2t'[", "below 300"}},
       {element("d2t", 159, 1000), {"'d2t'[159] is 1000", "below 400"}},
       {element("d2t", 0, -1), {"'d2t'[0] is -1", "below 400"}},
       {element("d2t", 7, INT64_MAX), {"'d2t'[7] is 9223372036854775807", "below 400"}},
       {[](Json& changed) {
          Json& ids = tensor(changed, "d2t")[3];
          ids[5] = ids[4].get<int64_t>() - 1;
        },
        {"'d2t'[5]", "different ids"}},
       {[](Json& changed) {
          Json& row = tensor(changed, "d2t");
          row[2] = {159};
          row[3].erase(159);
        },
        {"'d2t'", "[159]", "[160]"}},
       {without("d2t"), {"'lm_head.weight' has 160 rows", "400", "no 'd2t'"}},
       {[](Json& changed) {
          Json& seen = tensor(changed, "t2d")[3][17];
          seen = 1 - seen.get<int>();
        },
        {"'t2d'[17]", "'d2t' says the opposite"}},
       {[](Json& changed) {
          Json& row = tensor(changed, "t2d");
          row[2] = {399};
          row[3].erase(399);
        },
        {"'t2d'", "[399]", "[400]"}},
       {value("settings.layer_ids", {2, 4}), {"'fc.weight' is for 3 states", "2 are named"}},
       {value("settings.layer_ids", {2, 4, 20}), {"layer_ids: found 20", "0 to 9", "8 layers"}},
       {[](Json& changed) {
          changed["settings"]["layer_ids"] = {2, 4, 9};
          changed["settings"]["layer_ids_are"] = "outputs";
        },
        {"layer_ids: found 9", "0 to 8, outputs"}},
       {with("fc_norm.3.weight", {64}), {"'fc_norm.3.weight' is not part of"}},
       {[](Json& changed) {
          for (const char* each : {"input_norm.weight", "fc_norm.0.weight"}) {
            changed["tensors"].push_back({each, "F32", {192}, 0.125, 0});
          }
        },
        {"'fc_norm.0.weight' is not part of"}},
       {value("config.norm_before_fc", true), {"'input_norm.weight'", "norm_before_fc"}},
       {value("config.hidden_act", "gelu"), {"hidden_act: found 'gelu'", "'silu'"}},
       {value("config.head_dim", 1 << 28), {"head_dim", "from 1 to 256"}},
       {value("config.num_attention_heads", 5000), {"num_attention_heads", "from 1 to 4096"}},
       {value("config.rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}}),
        {"'dynamic'", "expected default, linear or llama3"}},
       {[](Json& changed) { changed.erase("config"); }, {"weights: ", "no config.json"}}});
  expect_refused(given, kWrongTrees);
}

Json plain_case(const std::string& plugin, const Json& tensors) {
  return {{"plugin", plugin},
          {"settings", Json::object()},
          {"target", {{"vocab_size", 100}, {"hidden_size", 64}, {"n_layers", 8}}},
          {"tensors", tensors},
          {"embedding", {1}},
          {"head", {0.5}}};
}
Json row(const std::string& name, const std::vector<int64_t>& shape) {
  return {name, "F32", shape, 0.125, 0};
}

TEST(HeadFiles, of_medusa_that_do_not_fit_are_refused) {
  Json tensors;
  for (const std::string head : {"0.", "1."}) {
    tensors.push_back(row(head + "0.linear.weight", {64, 64}));
    tensors.push_back(row(head + "0.linear.bias", {64}));
    tensors.push_back(row(head + "1.weight", {100, 64}));
  }
  const auto choices = [](const Json& paths) { return settings({{"choices", paths}}); };
  expect_refused(
      plain_case("specd.drafter.medusa", tensors),
      {{without("1.1.weight"), {"weights: ", "'1.1.weight' is missing"}},
       {without("0.0.linear.weight"),
        {"a head of Medusa", "'0.0.linear.weight'", "found 5 tensors"}},
       {with("2.1.weight", {100, 64}), {"'2.1.weight' is not part of such a head"}},
       {with("0.1.bias", {100}), {"'0.1.bias' is not part of"}},
       {shaped("0.1.weight", {64, 100}), {"'0.1.weight'", "[64, 100]", "expected [64, 64]"}},
       {shaped("1.0.linear.weight", {128, 32}), {"'1.0.linear.weight'", "expected [64, 64]"}},
       {value("target.hidden_size", 48), {"'0.0.linear.weight'", "[64, 64]", "[48, 48]"}},
       {value("target.vocab_size", 120), {"100", "120"}},
       {value("settings.tree", "mine"), {"tree", "mine"}},
       {settings({{"tree", "mc_sim_7b_63"}, {"choices", {{0}}}}), {"tree", "choices"}},
       {choices({{0}, {0}}), {"choices", "[0] is there twice"}},
       {choices({{0}, {0, 0}, {1, 1}}), {"choices", "[1, 1] is there without [1]"}},
       {choices({{0}, {0, 64}}), {"choices", "[0, 64]", "expected 0 to 63"}},
       {choices({{0, 0, 0}}), {"choices", "3", "2"}}});
}

TEST(HeadFiles, of_redrafter_that_do_not_fit_are_refused) {
  const Json tensors = {row("lm_head.0.linear.weight", {128, 128}),
                        row("lm_head.0.linear.bias", {128}),
                        row("lm_head.1.weight", {100, 128}),
                        row("rnn_u.weight", {64, 64}),
                        row("rnn_u.bias", {64}),
                        row("rnn_w.weight", {64, 64})};
  expect_refused(
      plain_case("specd.drafter.redrafter", tensors),
      {{without("rnn_w.weight"), {"weights: ", "'rnn_w.weight' is missing"}},
       {without("lm_head.1.weight"), {"'lm_head.1.weight' is missing"}},
       {without("lm_head.0.linear.weight"), {"weights: "}},
       {with("rnn_w.bias", {64}), {"'rnn_w.bias' is not part of such a head"}},
       {with("input_proj.weight", {128, 128}), {"'input_proj.weight' is not part of"}},
       {shaped("lm_head.1.weight", {128, 100}), {"'lm_head.1.weight'", "[128, 100]", "[100, 100]"}},
       {shaped("rnn_u.weight", {128, 32}), {"'rnn_u.weight'", "[128, 32]", "expected [64, 64]"}},
       {value("target.hidden_size", 48), {"weights: tensor '"}},
       {value("target.vocab_size", 120), {"'lm_head.1.weight'", "[100, 128]", "[120, 128]"}},
       {value("settings.beams", 0), {"beams", "from 1 to", "found 0"}},
       {value("settings.beams", 51), {"beams", "from 1 to 50", "found 51"}},
       {value("settings.draft_tokens", 0), {"draft_tokens", "from 1 to", "found 0"}},
       {value("settings.draft_tokens", 17), {"draft_tokens", "found 17"}}});
}

// Creates and activates the head of a case on a host that `limit` has been told of. Returns the memory
// that it took, or 0 if it was refused for want of memory.
uint64_t memory_of(const Json& given, const std::function<void(FakeHost&)>& limit) {
  FakeHost host;
  set_up(host, given);
  limit(host);
  uint64_t taken = 0;
  {
    const FakeDrafter drafter(host, factory_of(given["plugin"]), settings_of(given));
    taken = drafter.status() == SPECD_OK ? host.memory_used() : 0;
    if (taken == 0) {
      EXPECT_EQ(drafter.status(), SPECD_E_EXHAUSTED);
      EXPECT_FALSE(host.reports().empty());
    } else {
      EXPECT_LE(taken, drafter.caps().bytes_fixed +
                           drafter.grant().max_batch * drafter.caps().bytes_per_seq);
    }
  }
  EXPECT_EQ(host.memory_used(), 0u);
  for (const std::string& violation : host.violations()) ADD_FAILURE() << violation;
  return taken;
}

TEST(HeadFiles, for_which_memory_is_short_are_refused_and_nothing_is_leaked) {
  for (const std::string name : {"eagle2", "eagle3", "medusa", "redrafter"}) {
    SCOPED_TRACE(name);
    const Json given = golden(name)["cases"][0];
    uint64_t nth = 1, taken = 0;
    for (; nth < 1000 && taken == 0; ++nth) {
      taken = memory_of(given, [nth](FakeHost& host) { host.fail_allocation(nth); });
      if (HasFailure()) return;
    }
    EXPECT_GT(nth, 5u);
    EXPECT_EQ(memory_of(given, [&](FakeHost& host) { host.set_memory_quota(taken - 1); }), 0u);
    EXPECT_EQ(memory_of(given, [&](FakeHost& host) { host.set_memory_quota(taken); }), taken);
  }
}

}  // namespace
}  // namespace specd
