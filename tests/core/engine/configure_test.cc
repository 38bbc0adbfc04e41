// Routes of an edited configuration, plugins that are loaded and retired by hand, and the list of requests.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/core/engine/route_rig.h"

namespace specd {
namespace {

class Configure : public RouteRig {
 protected:
  ConfiguredRoutes configure(const std::vector<RouteOptions>& routes,
                             const ChangeOptions& how = {}) {
    const auto done = engine_->configure_routes(routes, how);
    EXPECT_TRUE(done.ok()) << done.status().to_string();
    return done.ok() ? done.value() : ConfiguredRoutes();
  }
  using Names = std::vector<std::string>;
};

TEST_F(Configure, takes_what_was_edited_and_leaves_what_was_changed_since) {
  start_with({lookup("a", 2), lookup("b", 2), lookup("c", 2), lookup("d", 2)});
  ASSERT_TRUE(engine_->apply_route(lookup("a", 3)).ok());
  ASSERT_TRUE(engine_->apply_route(lookup("b", 4)).ok());
  const std::vector<RouteOptions> edited{lookup("a", 2), lookup("b", 4), suffix("c"),
                                         lookup("e", 5)};
  const ConfiguredRoutes tried = configure(edited, {.dry_run = true});
  EXPECT_EQ(tried.added, (Names{"e"}));
  expect_versions("", "e");
  const ConfiguredRoutes done = configure(edited);
  EXPECT_EQ(done.added, (Names{"e"}));
  EXPECT_EQ(done.changed, (Names{"c"})) << "b is already what the file has";
  EXPECT_EQ(done.removed, (Names{"d"}));
  expect_versions("live 2", "a");
  expect_versions("live 3", "b");
  EXPECT_EQ(versions("d").find("live"), std::string::npos);
  EXPECT_EQ(versions("c").substr(0, 6), "live 4");
  expect_versions("live 4", "e");
  EXPECT_EQ(engine_->events(2, 10).at(0).text,
            "the configuration was read again; added e; changed c; removed d");
  const ConfiguredRoutes again = configure(edited);
  EXPECT_TRUE(again.added.empty() && again.changed.empty() && again.removed.empty());
  const Outcome plain = run(request(prompts()[1], "off", 16));
  for (const char* name : {"a", "b", "c", "e"}) {
    EXPECT_EQ(run(request(prompts()[1], name, 16)).tokens, plain.tokens) << name;
  }
}

TEST_F(Configure, takes_all_or_nothing) {
  EngineOptions o = options();
  o.default_route = "a";
  start_with({lookup("a", 2), lookup("b", 2)}, o);
  const size_t n_events = engine_->events(0, 1000).size();
  const auto refused = [&](const std::vector<RouteOptions>& routes, const std::string& field) {
    const auto done = engine_->configure_routes(routes);
    EXPECT_FALSE(done.ok());
    EXPECT_EQ(done.status().field().substr(0, field.size()), field) << done.status().to_string();
  };
  refused({lookup("a", 3), lookup("c", 3), broken("d", "no such mode")}, "routes.d");
  refused({lookup("b", 3)}, "routes.a");
  RouteOptions wrong = lookup("c", 3);
  wrong.draft_nodes_max = 0;
  refused({lookup("a", 3), wrong}, "routes.c.draft_nodes_max");
  ASSERT_TRUE(engine_->stage_route(lookup("b", 5)).ok());
  refused({lookup("a", 3), lookup("b", 3)}, "routes.b");
  expect_versions("live 1", "a");
  expect_versions("live 1, staged 2", "b");
  expect_versions("", "c");
  EXPECT_EQ(engine_->events(0, 1000).size(), n_events + 1);
  ASSERT_TRUE(engine_->abort_route("b").ok());
  EXPECT_EQ(configure({lookup("a", 3), lookup("b", 3)}).changed, (Names{"a", "b"}));
}

TEST_F(Configure, gives_two_routes_with_new_taps_the_hidden_states_that_each_asks_for) {
  const std::string zoo = std::string(SPECD_TEST_ZOO);
  start(options("pico-target"));
  const RouteOptions medusa =
      route("medusa", plugin("specd.drafter.medusa", {{"weights", zoo + "/pico-medusa"}}), 64);
  const RouteOptions eagle =
      route("eagle3", plugin("specd.drafter.eagle3", {{"weights", zoo + "/pico-eagle3"}}), 64);
  EXPECT_EQ(configure({medusa, eagle}).added, (Names{"medusa", "eagle3"}));
  for (const char* name : {"medusa", "eagle3"}) {
    const Outcome plain = run(request(prompts()[0], "off", 48));
    EXPECT_EQ(run(request(prompts()[0], name, 48)).tokens, plain.tokens) << name;
    const RouteReport one = report(name);
    EXPECT_GT(static_cast<double>(one.counts.accepted), 0.2 * static_cast<double>(one.counts.steps))
        << name << " guesses from other states than it was trained on";
  }
}

TEST_F(Configure, the_next_start_takes_the_routes_of_the_file_that_was_read_again) {
  const auto start_here = [&](std::vector<RouteOptions> configured) {
    engine_.reset();
    EngineOptions o = options();
    o.state_directory = folder_;
    start_with(std::move(configured), std::move(o));
  };
  start_here({lookup("r", 2)});
  ASSERT_TRUE(engine_->apply_route(lookup("r", 3)).ok());
  EXPECT_EQ(configure({lookup("r", 4)}).changed, (Names{"r"}));
  start_here({lookup("r", 4)});
  EXPECT_EQ(report("r").draft_nodes_max, 4);
  start_here({lookup("r", 2)});
  EXPECT_EQ(report("r").draft_nodes_max, 2) << "not 3, which was before 4";
}

TEST_F(Configure, a_plugin_that_is_retired_is_refused_until_it_is_loaded) {
  start_with({lookup("r", 2)});
  const auto state = [&](const std::string& id) {
    for (const PluginReport& each : engine_->plugins()) {
      if (each.id == id) return std::string(plugin_state_name(each.state)) + " " + each.reason;
    }
    return std::string("none");
  };
  const std::string used = "specd.drafter.prompt_lookup", other = "specd.drafter.suffix";
  const Status in_use = engine_->retire_plugin(used);
  EXPECT_EQ(in_use.code(), Code::kFailedPrecondition);
  EXPECT_NE(in_use.text().find("plugin: it is used by r; change or delete"), std::string::npos)
      << in_use.text();
  EXPECT_EQ(engine_->retire_plugin("none").code(), Code::kNotFound);
  EXPECT_EQ(engine_->load_plugin("none").status().code(), Code::kNotFound);
  EXPECT_EQ(state(other), "discovered ");
  ASSERT_TRUE(engine_->load_plugin(other, "me").ok());
  EXPECT_EQ(state(other), "loaded ");
  EXPECT_EQ(engine_->events(0, 10).at(0).text, "plugin " + other + " 0.1.0 was loaded");
  EXPECT_EQ(engine_->events(0, 10).at(0).request_id, "me");
  ASSERT_TRUE(engine_->retire_plugin(other).ok());
  const uint64_t n_events = engine_->wait_event(0, 0);
  ASSERT_TRUE(engine_->retire_plugin(other).ok()) << "again";
  EXPECT_EQ(engine_->wait_event(0, 0), n_events) << "which tells nothing";
  const auto refused = engine_->apply_route(suffix("s"));
  EXPECT_NE(refusal(refused).find("it was retired; load it"), std::string::npos)
      << refusal(refused);
  EXPECT_EQ(state(other), "refused it was retired; load it to use it again");
  ASSERT_TRUE(engine_->load_plugin(other).ok());
  EXPECT_TRUE(engine_->apply_route(suffix("s")).ok());
  const Outcome plain = run(request(prompts()[1], "off", 8));
  EXPECT_EQ(run(request(prompts()[1], "s", 8)).tokens, plain.tokens);
}

TEST_F(Configure, two_versions_of_a_plugin_serve_side_by_side_and_the_way_back_is_the_old_one) {
  const std::string newer = read_bytes(fixture("newer")), id = "org.example.fixture";
  start_with({route("r", plugin(id), 4)});
  tree_.add("newer", newer, BundleTree::manifest(newer, "2.0.0"));
  const auto unchanged = engine_->apply_route(route("old", plugin(id + "@1.0.0"), 4));
  ASSERT_TRUE(unchanged.ok()) << unchanged.status().to_string();
  EXPECT_TRUE(engine_->apply_route(route("old", plugin(id + "@1.0.0"), 4)).value().unchanged);
  // The same definition means the newer version now.
  stage(route("r", plugin(id), 4));
  promote();
  const auto version_of = [&](const std::string& name, RouteState state) {
    for (const RouteReport& each : engine_->routes()) {
      if (each.name() == name && each.state == state) return each.drafter.version;
    }
    return std::string("none");
  };
  EXPECT_EQ(version_of("r", RouteState::kLive), "2.0.0");
  EXPECT_EQ(version_of("r", RouteState::kDraining), "1.0.0");
  EXPECT_EQ(version_of("old", RouteState::kLive), "1.0.0");
  const Outcome plain = run(request(prompts()[1], "off", 16));
  for (const char* name : {"r", "old"})
    EXPECT_EQ(run(request(prompts()[1], name, 16)).tokens, plain.tokens) << name;
  EXPECT_NE(engine_->retire_plugin(id + "@1.0.0").text().find("it is used by old, r"),
            std::string::npos);
  EXPECT_NE(engine_->retire_plugin(id).text().find("it is used by r;"), std::string::npos);
  roll_back();
  EXPECT_EQ(version_of("r", RouteState::kLive), "1.0.0");
  expect_versions("live 1");
  EXPECT_TRUE(engine_->retire_plugin(id).ok()) << "the newest, which nobody uses";
  EXPECT_TRUE(engine_->apply_route(route("s", plugin(id), 4)).ok()) << "the newest that is usable";
  EXPECT_EQ(version_of("s", RouteState::kLive), "1.0.0");
  EXPECT_FALSE(engine_->apply_route(route("t", plugin(id + "@2.0.0"), 4)).ok());
}

TEST_F(Configure, the_list_of_requests_has_what_runs_and_what_waits) {
  EngineOptions o = options();
  o.max_sequences = 2;
  start_with({lookup("r", 4)}, o);
  EXPECT_TRUE(engine_->requests(10).value().requests.empty());
  std::vector<Pending> pending;
  for (int i = 0; i < 4; ++i) {
    Request wanted = request(prompts()[0], i < 3 ? "r" : "off", 400);
    wanted.id = "id-" + std::to_string(i);
    wanted.priority = i;
    pending.push_back(submit_slow(wanted));
  }
  pending[0].wait_for_tokens(3);
  pending[1].wait_for_tokens(1);
  const auto list = engine_->requests(3);
  ASSERT_TRUE(list.ok()) << list.status().to_string();
  EXPECT_EQ(list.value().n_running, 2);
  EXPECT_EQ(list.value().n_waiting, 2);
  ASSERT_EQ(list.value().requests.size(), 3u) << "no more were asked for";
  const RequestReport& first = list.value().requests[0];
  EXPECT_EQ(first.id, "id-0");
  EXPECT_TRUE(first.is_running && first.is_drafting);
  EXPECT_EQ(first.route, "r");
  EXPECT_EQ(first.generation, 1u);
  EXPECT_GE(first.output_tokens, 3);
  EXPECT_EQ(first.max_tokens, 400);
  EXPECT_GT(first.kv_pages, 0);
  EXPECT_GT(first.age_ns, 0u);
  EXPECT_GE(first.drafted, first.accepted);
  const RequestReport& waiting = list.value().requests[2];
  EXPECT_FALSE(waiting.is_running || waiting.is_drafting);
  EXPECT_EQ(waiting.output_tokens, 0);
  EXPECT_EQ(waiting.priority, 2);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(engine_->cancel("id-" + std::to_string(i)));
  for (Pending& each : pending) (void)each.wait();
}

}  // namespace
}  // namespace specd
