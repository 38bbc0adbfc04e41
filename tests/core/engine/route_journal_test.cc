// What a start takes of routes that were changed while an engine ran. The journal is compared with a map
// that is kept beside it, an engine with the definitions that it is to have after a restart.
#include "core/engine/routes/journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/core/engine/route_rig.h"
#include "tests/file_size_limit.h"

namespace specd {
namespace {

class RouteJournals : public RouteRig {
 protected:
  std::string path() const { return folder_ + "/routes.journal"; }
  std::string bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  std::unique_ptr<RouteJournal> open(const std::vector<RouteOptions>& configured) {
    auto opened = RouteJournal::open(folder_, configured);
    EXPECT_TRUE(opened.ok()) << opened.status().to_string();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  static EngineEvent event(const RouteOptions& of) {
    return {.kind = EventKind::kApplied, .route = of.name, .generation = 2, .text = "is live"};
  }
  void keep(RouteJournal& journal, const RouteOptions& route) {
    ASSERT_TRUE(journal.write(journal.entry(event(route), route_to_json(route))).ok());
  }

  // An engine with this folder for its state.
  void start_here(std::vector<RouteOptions> configured, EngineOptions o = options()) {
    engine_.reset();
    o.state_directory = folder_;
    start_with(std::move(configured), std::move(o));
  }
  int32_t nodes_of(const std::string& name) {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == name && each.state == RouteState::kLive)
        return each.options.draft_nodes_max;
    }
    return 0;
  }
};

TEST_F(RouteJournals, every_value_of_a_definition_is_kept) {
  RouteOptions all = lookup("r", 4);
  all.model = "m";
  all.guarantee = Guarantee::kLaw;
  all.disable_by_batch_size = 3;
  all.call_ms_max = 7;
  all.probation_seconds = 9;
  all.replace = Replace::kStopFirst;
  all.isolation = Isolation::kGuarded;
  all.step_budget_us = 77;
  all.drafter.factory = "f";
  all.verifier.config = {{"a", {1, 2.5, nullptr, "x\n"}}};
  const auto back = route_from_json(route_to_json(all));
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back.value(), all);
  keep(*open({}), all);
  ASSERT_EQ(open({})->routes().size(), 1u);
  EXPECT_EQ(open({})->routes()[0], all);
}

TEST_F(RouteJournals, a_definition_that_is_none_is_refused) {
  const Json good = route_to_json(lookup("r", 4));
  for (const auto& [change, words] :
       {std::pair(Json{{"name", 1}}, "name"), std::pair(Json{{"new_key", 1}}, "unknown key"),
        std::pair(Json{{"drafter", "x"}}, "drafter: expected an object"),
        std::pair(Json{{"drafter", {{"plugin", "x"}, {"more", 1}}}}, "unknown key 'more'"),
        std::pair(Json{{"verifier", Json::object()}}, "plugin"),
        std::pair(Json{{"call_ms_max", 4294967297}}, "call_ms_max"),
        std::pair(Json{{"guarantee", "most"}}, "expected none, law or identical")}) {
    Json bad = good;
    bad.update(change);
    const auto read = route_from_json(bad);
    ASSERT_FALSE(read.ok()) << bad;
    EXPECT_NE(read.status().text().find(words), std::string::npos) << read.status().text();
  }
}

TEST_F(RouteJournals, a_start_takes_exactly_what_was_on_disk_wherever_the_file_is_cut) {
  const std::vector<RouteOptions> configured{lookup("a", 1), lookup("b", 1)};
  // After each line: what the routes a, b, c have, 0 = there is none.
  struct Step {
    const char* route;
    int32_t nodes;
  };
  const std::vector<Step> steps{{"a", 2}, {"c", 3}, {"b", 0}, {"a", 4},
                                {"b", 5}, {"c", 0}, {"a", 6}, {"c", 7}};
  std::vector<std::map<std::string, int32_t>> after{{{"a", 1}, {"b", 1}}};
  std::vector<size_t> ends{0};
  for (const Step& step : steps) {
    const auto journal = open(configured);
    const RouteOptions route = lookup(step.route, step.nodes);
    const Json kept = step.nodes == 0 ? Json() : route_to_json(route);
    ASSERT_TRUE(journal->write(journal->entry(event(route), kept)).ok());
    // A change after which a start takes the same.
    ASSERT_TRUE(journal->write(journal->entry(event(route), std::nullopt)).ok());
    after.push_back(after.back());
    after.back()[step.route] = step.nodes;
    if (step.nodes == 0) after.back().erase(step.route);
    const std::string all = bytes();
    ends.push_back(all.substr(0, all.size() - 1).rfind('\n') + 1);
  }
  const std::string whole = bytes();
  // LineFiles cuts at every byte.
  for (size_t n = 0; n <= whole.size(); n += 1 + n % 7) {
    write(whole.substr(0, n));
    size_t i = 0;
    while (i + 1 < ends.size() && ends[i + 1] <= n) ++i;
    std::map<std::string, int32_t> found;
    for (const RouteOptions& each : open(configured)->routes()) {
      found[each.name] = each.draft_nodes_max;
    }
    ASSERT_EQ(found, after[i]) << n;
  }
}

TEST_F(RouteJournals, a_garbled_line_leaves_its_route_as_it_was_and_the_file_is_kept_aside) {
  const std::vector<RouteOptions> configured{lookup("a", 1), lookup("b", 1)};
  std::string before;
  {
    const auto journal = open(configured);
    keep(*journal, lookup("a", 2));
    before = bytes();
    keep(*journal, lookup("a", 3));
    keep(*journal, lookup("b", 4));
  }
  std::string garbled = bytes();
  garbled[before.size() + 40] ^= 1;
  write(garbled);
  for (int i = 0; i < 2; ++i) {
    const auto journal = open(configured);
    EXPECT_EQ(journal->routes()[0].draft_nodes_max, 2);
    EXPECT_EQ(journal->routes()[1].draft_nodes_max, 4);
  }
  std::ifstream in(path() + ".damaged", std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), garbled);
}

TEST_F(RouteJournals, a_route_whose_configuration_was_edited_since_is_that_of_the_configuration) {
  keep(*open({lookup("a", 1), lookup("b", 1)}), lookup("a", 2));
  EXPECT_EQ(open({lookup("a", 1)})->routes()[0].draft_nodes_max, 2) << "b does not matter";
  EXPECT_EQ(open({lookup("a", 3)})->routes()[0].draft_nodes_max, 3);
  EXPECT_EQ(open({lookup("a", 1)})->routes()[0].draft_nodes_max, 1) << "it was dropped for good";
  EXPECT_TRUE(open({lookup("b", 1)})->routes().size() == 1) << "a was removed";
  // A route of its own that the configuration has since is the configuration's.
  keep(*open({}), lookup("own", 5));
  EXPECT_EQ(open({})->routes()[0].draft_nodes_max, 5);
  EXPECT_EQ(open({lookup("own", 6)})->routes()[0].draft_nodes_max, 6);
}

TEST_F(RouteJournals, routes_that_come_and_go_leave_nothing) {
  const std::vector<RouteOptions> configured{lookup("a", 1)};
  const auto journal = open(configured);
  for (int i = 0; i < 50; ++i) {
    const RouteOptions passing = lookup("passing-" + std::to_string(i), 2);
    keep(*journal, passing);
    ASSERT_TRUE(journal->write(journal->entry(event(passing), Json())).ok());
    keep(*journal, lookup("a", 2));
    keep(*journal, lookup("a", 1));
  }
  ASSERT_TRUE(journal->configure(journal->configuration(configured)).ok());
  EXPECT_LT(bytes().size(), 100u) << bytes();
  EXPECT_EQ(journal->generation(), 2u);
}

TEST_F(RouteJournals, a_long_file_is_rewritten_with_what_counts) {
  RouteOptions large = lookup("large", 3);
  large.drafter.config["text"] = std::string(1 << 20, 'x');
  const auto journal = open({});
  keep(*journal, lookup("small", 2));
  for (int i = 0; i < 17; ++i) keep(*journal, large);
  EXPECT_LT(bytes().size(), size_t{5} << 20);
  keep(*journal, lookup("last", 1));
  std::vector<std::string> names;
  for (const RouteOptions& each : journal->routes()) names.push_back(each.name);
  EXPECT_EQ(names, (std::vector<std::string>{"large", "last", "small"}));
}

TEST_F(RouteJournals, an_engine_takes_up_the_last_route_that_passed_its_probation) {
  start_here({lookup("r", 4)});
  stage(lookup("r", 2));
  promote();
  EXPECT_EQ(nodes_of("r"), 2);
  start_here({lookup("r", 4)});
  EXPECT_EQ(nodes_of("r"), 4) << "it was on probation";
  const uint64_t passing = stage(lookup("r", 2, 1));
  EXPECT_EQ(passing, 4u) << "numbers go on over a restart";
  promote();
  expect_versions("live 4");
  start_here({lookup("r", 4)});
  EXPECT_EQ(nodes_of("r"), 2) << "it has passed";
  stage(lookup("r", 3, 0));
  promote();
  stage(lookup("r", 5));
  promote();
  roll_back();
  start_here({lookup("r", 4)});
  EXPECT_EQ(nodes_of("r"), 3) << "without probation it counts at once";
  ASSERT_TRUE(engine_->apply_route(lookup("r", 6)).ok());
  ASSERT_TRUE(engine_->apply_route(lookup("other", 7)).ok());
  stage(lookup("r", 8));
  start_here({lookup("r", 4)});
  EXPECT_EQ(nodes_of("r"), 6);
  EXPECT_EQ(nodes_of("other"), 7);
  ASSERT_TRUE(engine_->delete_route("r").ok());
  start_here({lookup("r", 4)});
  EXPECT_EQ(versions(), "") << "deleted";
  EXPECT_EQ(nodes_of("other"), 7);
  start_here({lookup("r", 1)});
  EXPECT_EQ(nodes_of("r"), 1) << "the configuration was edited";
}

TEST_F(RouteJournals, what_the_journal_has_and_cannot_be_served_is_the_configurations) {
  std::vector<RouteOptions> configured{lookup("r", 4), lookup("s", 5)};
  for (RouteOptions& each : configured) each.model = options().model.name;
  {
    RouteOptions wrong = lookup("r", 2);
    wrong.call_ms_max = -1;
    keep(*open(configured), wrong);
    keep(*open(configured), broken("s", "no such mode"));
    keep(*open(configured), broken("absent", "no such mode"));
  }
  EngineOptions with_default = options();
  with_default.default_route = "s";
  start_here(configured, with_default);
  EXPECT_EQ(nodes_of("r"), 4);
  EXPECT_EQ(nodes_of("s"), 5);
  EXPECT_EQ(report("absent").state, RouteState::kRefused);
  const auto second = Engine::create(
      [&] {
        EngineOptions o = options();
        o.state_directory = folder_;
        o.plugin_cache_directory = folder_ + "/cache";
        return o;
      }(),
      {});
  EXPECT_EQ(second.status().field(), "state_directory");
  EXPECT_NE(second.status().text().find("another process has this folder"), std::string::npos);
}

TEST_F(RouteJournals, a_change_that_cannot_be_recorded_is_refused_but_for_the_way_back) {
  start_here({lookup("r", 4)});
  stage(lookup("r", 2));
  promote();
  stage(lookup("r", 3));
  // Plugins were copied before.
  std::optional<FileSizeLimit> limit(std::in_place, bytes().size() + 10);
  const std::string there = versions();
  const std::string refused = "cannot be recorded, so nothing was changed";
  for (const auto& change :
       {engine_->promote_route("r"), engine_->set_traffic("r", {10}), engine_->delete_route("r"),
        engine_->apply_route(lookup("more", 2)), engine_->stage_route(lookup("more", 2))}) {
    EXPECT_NE(refusal(change).find(refused), std::string::npos) << refusal(change);
    EXPECT_EQ(change.status().code(), Code::kUnavailable);
  }
  EXPECT_EQ(versions(), there);
  expect_versions("", "more");
  abort();
  roll_back();
  limit.reset();
  expect_versions("live 1");
  int n_unrecorded = 0;
  for (const EngineEvent& each : engine_->events(0, 1000)) {
    n_unrecorded += each.kind == EventKind::kNotRecorded ? 1 : 0;
  }
  EXPECT_EQ(n_unrecorded, 2);
  start_here({lookup("r", 4)});
  EXPECT_EQ(nodes_of("r"), 4);
}

}  // namespace
}  // namespace specd
