// Routes that change while the daemon runs, by the socket and by specctl.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/utf8.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

v1::ApplyRouteRequest lookup_route(const std::string& name, int tokens,
                                   const std::string& request_id = "") {
  v1::ApplyRouteRequest request;
  request.set_definition("name: " + name +
                         "\ndrafter:\n  plugin: specd.drafter.prompt_lookup\n"
                         "  config: {num_speculative_tokens: " +
                         std::to_string(tokens) + "}\nverifier: {plugin: specd.verifier.match}\n");
  request.set_source("x.yaml");
  request.set_request_id(request_id);
  return request;
}

std::vector<v1::Route> routes_named(Client& client, const std::string& name) {
  std::vector<v1::Route> found;
  const auto routes = client.routes();
  EXPECT_TRUE(routes.ok());
  for (const v1::Route& route : routes.value().routes())
    if (route.name() == name) found.push_back(route);
  return found;
}

TEST(LiveRoutes, are_applied_replaced_and_deleted_under_a_running_stream) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto plain = client.generate(make_request("off", 1500, 0.8F), {});
  ASSERT_TRUE(plain.ok());
  const auto first = client.apply_route(lookup_route("live", 3));
  ASSERT_TRUE(first.ok()) << first.status().text();
  EXPECT_EQ(first.value().name(), "live");
  EXPECT_EQ(first.value().generation(), 2U);
  EXPECT_FALSE(first.value().unchanged());

  std::atomic<bool> begun{false};
  Result<Generation> running = Status(Code::kInternal, "not run");
  std::thread stream([&] {
    Client own = daemon.client();
    running = own.generate(make_request("live", 1500, 0.8F),
                           [&](const v1::GenerateResponse&) { begun = true; });
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const auto second = client.apply_route(lookup_route("live", 5));
  ASSERT_TRUE(second.ok()) << second.status().text();
  EXPECT_EQ(second.value().generation(), 3U);
  const auto generations = routes_named(client, "live");
  ASSERT_EQ(generations.size(), 2U);
  EXPECT_EQ(generations[0].state(), v1::ROUTE_STATE_LIVE);
  EXPECT_EQ(generations[0].generation(), 3U);
  EXPECT_EQ(generations[0].drafter_sha256().size(), 64U);
  EXPECT_EQ(generations[1].state(), v1::ROUTE_STATE_DRAINING);
  EXPECT_EQ(generations[1].in_use(), 1);
  const auto fresh = client.generate(make_request("live", 64, 0.8F), {});
  ASSERT_TRUE(fresh.ok()) << fresh.status().text();
  EXPECT_TRUE(std::equal(fresh.value().token_ids.begin(), fresh.value().token_ids.end(),
                         plain.value().token_ids.begin()));
  v1::DeleteRouteRequest remove;
  remove.set_name("live");
  ASSERT_TRUE(client.delete_route(remove).ok());
  EXPECT_EQ(client.generate(make_request("live", 4), {}).status().code(), Code::kInvalidArgument);
  stream.join();
  ASSERT_TRUE(running.ok()) << running.status().text();
  EXPECT_EQ(running.value().token_ids, plain.value().token_ids);
  EXPECT_TRUE(eventually([&] { return routes_named(client, "live").empty(); }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

// G30. Call, code and words, in control_errors.txt: where this fails for a good reason, the new
// words are printed.
TEST_F(DaemonTest, a_change_of_routes_that_is_wrong_is_refused_in_words_and_changes_nothing) {
  Client client = daemon_->client();
  const auto before = client.routes();
  ASSERT_TRUE(before.ok());
  std::string told;
  const auto refused = [&told](const char* call, const Status& status) {
    told += std::string(call) + " " + status.to_string() + "\n";
    EXPECT_FALSE(status.ok()) << "the one after these is taken:\n" << told;
  };
  const std::string drafter = "drafter: {plugin: specd.drafter.prompt_lookup}\n";
  const std::string verifier = "verifier: {plugin: specd.verifier.match}\n";
  const auto lookup = [&](const std::string& config) {
    return "name: x\ndrafter:\n  plugin: specd.drafter.prompt_lookup\n  config: " + config + "\n" +
           verifier;
  };
  const auto draft_target = [&](const std::string& config) {
    return "name: x\ndrafter: {plugin: specd.drafter.draft_target, config: " + config + "}\n" +
           verifier;
  };
  const auto cascade = [&](const std::string& parts) {
    return "name: x\ndrafter:\n  plugin: specd.drafter.cascade\n  config:\n    drafters: " + parts +
           "\n" + verifier;
  };
  for (const std::string& definition : std::vector<std::string>{
           "",
           "\xff\xfe{",
           std::string(3 << 20, '['),
           std::string((4 << 20) - 64, 'x'),
           "- name: x\n",
           "name: x\n---\nname: y\n",
           "name: [x\n",
           "name: x\nname: y\n",
           "name: x\ndrafter: &a {plugin: *a}\n" + verifier,
           "name: x\n",
           "name: x\n" + drafter,
           drafter + verifier,
           "name: off\n" + drafter + verifier,
           "name: a b\n" + drafter + verifier,
           "name: " + std::string(200, 'n') + "\n" + drafter + verifier,
           "name: x\ndraftre: {}\n" + drafter + verifier,
           "name: x\ndrafter: specd.drafter.prompt_lookup\n" + verifier,
           "name: x\ndrafter: {}\n" + verifier,
           "name: x\ndrafter: {plugin: ../../etc}\n" + verifier,
           "name: x\ndrafter: {plugin: specd.verifier.match}\n" + verifier,
           "name: x\n" + drafter + "verifier: {plugin: specd.drafter.prompt_lookup}\n",
           "name: x\n" + drafter +
               "verifier: {plugin: specd.drafter.prompt_lookup, factory: ngram}\n",
           "name: x\ndrafter: {plugin: specd.drafter.prompt_lookup, factory: f}\n" + verifier,
           "name: x\nmodel: nobody\n" + drafter + verifier,
           "name: x\nguarantee: most\n" + drafter + verifier,
           "name: x\ndraft_nodes_max: 0\n" + drafter + verifier,
           "name: x\ndraft_nodes_max: 100000\n" + drafter + verifier,
           "name: x\ndraft_nodes_max: 1024\n" + drafter + verifier,
           "name: x\ndisable_by_batch_size: many\n" + drafter + verifier,
           lookup("[]"),
           lookup("{max_ngam: 1}"),
           lookup("{num_speculative_tokens: 0}"),
           lookup("{num_speculative_tokens: 1e3}"),
           lookup("{num_speculative_tokens: five}"),
           lookup("{prompt_lookup_min: 5, prompt_lookup_max: 2}"),
           "name: x\ndrafter: {plugin: specd.drafter.cascade}\n" + verifier,
           cascade("[{plugin: specd.drafter.suffix, config: {max_spec: 1}}, "
                   "{plugin: specd.drafter.prompt_lookup}]"),
           cascade("[{plugin: specd.drafter.suffix}, {plugin: specd.verifier.match}]"),
           cascade("[]"),
           draft_target("{}"),
           draft_target("{model: nobody}"),
       }) {
    v1::ApplyRouteRequest request;
    request.set_definition(definition);
    request.set_source("a.yaml");
    refused("ApplyRoute", client.apply_route(request).status());
  }
  v1::ApplyRouteRequest unknown;  // its words end with all plugins that are built
  unknown.set_source("a.yaml");
  unknown.set_definition("name: x\ndrafter: {plugin: specd.drafter.prompt_lokup}\n" + verifier);
  const Status lokup = client.apply_route(unknown).status();
  refused("ApplyRoute",
          Status(lokup.code(), lokup.text().substr(0, lokup.text().find("? found ") + 1)));
  for (const char* id : {"with space", "\x01"})
    refused("ApplyRoute", client.apply_route(lookup_route("x", 3, id)).status());
  v1::ApplyRouteRequest request = lookup_route("x", 3, std::string(129, 'i'));
  refused("ApplyRoute", client.apply_route(request).status());
  request = lookup_route("x", 3);
  request.set_source(std::string(401, 's'));
  refused("ApplyRoute", client.apply_route(request).status());
  request = lookup_route("off", 3);
  request.set_source("\r\x1b[31m\xc3\xa4");  // what a terminal would obey
  refused("ApplyRoute", client.apply_route(request).status());
  for (const char* name : {"off", "lookup", "nobody", "", "a b"}) {
    v1::DeleteRouteRequest remove;
    remove.set_name(name);
    refused("DeleteRoute", client.delete_route(remove).status());
  }
  v1::StageRouteRequest stage;
  stage.set_definition("name: x\ndraft_nodes_max: 0\n" + drafter + verifier);
  stage.set_source("a.yaml");
  refused("StageRoute", client.stage_route(stage).status());
  const auto named = [&](const char* call, auto of, auto message, const char* name) {
    message.set_name(name);
    refused(call, (client.*of)(message).status());
  };
  for (const char* name : {"off", "lookup", "nobody", "a b"}) {
    named("SetTraffic", &Client::set_traffic, v1::SetTrafficRequest(), name);
    named("PromoteRoute", &Client::promote_route, v1::PromoteRouteRequest(), name);
    named("AbortRoute", &Client::abort_route, v1::AbortRouteRequest(), name);
    named("RollbackRoute", &Client::roll_back_route, v1::RollbackRouteRequest(), name);
  }
  v1::PromoteRouteRequest other;
  other.set_running(static_cast<v1::RunningRequests>(99));
  named("PromoteRoute", &Client::promote_route, other, "lookup");
  v1::SetTrafficRequest traffic;
  traffic.set_share_percent(101);
  named("SetTraffic", &Client::set_traffic, traffic, "lookup");
  traffic.set_share_percent(5);
  traffic.set_shadow(true);
  named("SetTraffic", &Client::set_traffic, traffic, "lookup");
  for (const char* name : {"nobody", "", "a b"})
    refused("GetRoute", client.get_route(name).status());
  EXPECT_EQ(told, read_file(std::string(SPECD_SOURCE_DIR) + "/tests/host/rpc/control_errors.txt"));
  for (const std::string& inner :
       {daemon_->folder().string(), std::string("/tmp"), std::string(SPECD_SOURCE_DIR)}) {
    EXPECT_EQ(told.find(inner), std::string::npos) << inner;
  }

  const auto after = client.routes();
  ASSERT_TRUE(after.ok());
  ASSERT_EQ(after.value().routes_size(), before.value().routes_size());
  for (int i = 0; i < after.value().routes_size(); ++i) {
    EXPECT_EQ(after.value().routes(i).name(), before.value().routes(i).name());
    EXPECT_EQ(after.value().routes(i).generation(), before.value().routes(i).generation());
  }
}

TEST(LiveRoutes, a_repeated_request_gets_the_first_reply_and_what_get_says_changes_nothing) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto first = client.apply_route(lookup_route("live", 3, "id-1"));
  ASSERT_TRUE(first.ok()) << first.status().text();
  const auto again = client.apply_route(lookup_route("live", 3, "id-1"));
  ASSERT_TRUE(again.ok()) << again.status().text();
  EXPECT_EQ(again.value().generation(), first.value().generation());
  EXPECT_EQ(client.apply_route(lookup_route("live", 4, "id-1")).status().code(),
            Code::kInvalidArgument);
  const auto got = client.get_route("live");
  ASSERT_TRUE(got.ok()) << got.status().text();
  EXPECT_EQ(got.value().route().state(), v1::ROUTE_STATE_LIVE);
  v1::ApplyRouteRequest same;
  same.set_definition(got.value().definition());
  const auto unchanged = client.apply_route(same);
  ASSERT_TRUE(unchanged.ok()) << unchanged.status().text() << got.value().definition();
  EXPECT_TRUE(unchanged.value().unchanged());
  EXPECT_EQ(unchanged.value().generation(), first.value().generation());
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, many_operators_at_once_all_get_an_answer_and_streams_go_on) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  const auto plain = client.generate(make_request("off", 48), {});
  ASSERT_TRUE(plain.ok());
  ASSERT_TRUE(client.apply_route(lookup_route("live", 1)).ok());
  std::atomic<int> applied{0}, failed{0}, wrong{0}, generated{0};
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Client own = daemon.client();
      for (int i = 0; i < 10; ++i)
        ++(own.apply_route(lookup_route("live", 1 + (t * 10 + i) % 16)).ok() ? applied : failed);
    });
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      Client own = daemon.client();
      do {
        const auto drafted = own.generate(make_request("live", 48), {});
        wrong += drafted.ok() && drafted.value().token_ids == plain.value().token_ids ? 0 : 1;
        ++generated;
      } while (!done);
    });
  for (int t = 0; t < 3; ++t) threads[static_cast<size_t>(t)].join();
  done = true;
  for (size_t t = 3; t < threads.size(); ++t) threads[t].join();
  EXPECT_EQ(applied, 30);
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(wrong, 0);
  EXPECT_GE(generated, 4);
  EXPECT_TRUE(eventually([&] { return routes_named(client, "live").size() == 1; }));
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, specctl_replaces_a_route_in_steps_and_goes_back) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const fs::path file = daemon.folder() / "r.yaml";
  const auto step = [&](const std::string& command, int code, const std::string& words) {
    expect_specctl(daemon, command, code, words);
  };
  const auto write = [&](int n) {
    std::ofstream(file) << "name: live\nprobation_seconds: 600\ndraft_nodes_max: " << n
                        << "\ndrafter: {plugin: specd.drafter.prompt_lookup}\n"
                           "verifier: {plugin: specd.verifier.match}\n";
  };
  write(5);
  step("route apply -o json -f " + file.string(), 0, R"("change":"applied","generation":2)");
  step("route traffic live --percent 5", 1, "FAILED_PRECONDITION: the route has no candidate");
  write(6);
  step("route stage -o json -f " + file.string(), 0, R"("change":"staged","generation":3)");
  step("route stage -f " + file.string(), 0, "unchanged");
  write(7);
  step("route stage -f " + file.string(), 1, "name: the route has a candidate, generation 3");
  step("route traffic live --shadow -o json", 0, R"("change":"traffic set","generation":3)");
  step("generate --prompt x --max-tokens 4 --route live", 0, "");
  step("routes -o json", 0, R"("state":"shadow")");
  step("events", 0, "generation 3 is a shadow");
  step("route traffic live --percent 30 -o json", 0, R"("change":"traffic set","generation":3)");
  step("routes", 0, "canary (30 %)");
  step("routes -o json", 0, R"("share_percent":30)");
  step("route get live", 0, "draft_nodes_max");
  step("route promote live -o json", 0, R"("change":"promoted","generation":3)");
  step("generate --prompt x --max-tokens 4 --route live", 0, "");
  step("route rollback live -o json", 0, R"("change":"rolled back","generation":2)");
  // What is shown as YAML is YAML, and says the same.
  step("routes -o yaml", 0, "---\nname: \"live\"\n");
  std::ofstream(file) << run_specctl(daemon, "route get live -o yaml").second;
  step("route apply -o yaml -f " + file.string(), 0, "change: \"unchanged\"\ngeneration: 2\n");
  write(7);
  step("route rollback live", 1, "FAILED_PRECONDITION: the route keeps no previous version");
  step("route stage -f " + file.string(), 0, "staged");
  step("route abort live -o json", 0, R"("change":"aborted","generation":4)");
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, specctl_tries_changes_reaches_running_requests_and_shows_what_happened) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const fs::path file = daemon.folder() / "r.yaml";
  const auto step = [&](const std::string& command, int code, const std::string& words) {
    expect_specctl(daemon, command, code, words);
  };
  std::ofstream(file) << "name: live\ndrafter: {plugin: specd.drafter.suffix}\n"
                         "verifier: {plugin: specd.verifier.match}\n";
  const std::string apply = "route apply -f " + file.string();
  std::string followed;
  int followed_code = -1;
  std::thread follower(
      [&] { std::tie(followed_code, followed) = run_specctl(daemon, "events --follow"); });
  step(apply + " --dry-run", 0, "would be applied");
  step(apply + " --dry-run -o json", 0, R"("attached":0,"change":"would be applied","dropped":0)");
  step("events -o json", 0, "");
  step(apply, 0, "applied");
  Client client = daemon.client();
  Result<Generation> running = Status(Code::kInternal, "not run");
  std::atomic<bool> begun{false};
  std::thread stream([&] {
    Client own = daemon.client();
    running = own.generate(make_request("live", 1900),
                           [&](const v1::GenerateResponse&) { begun = true; });
  });
  EXPECT_TRUE(eventually([&] { return begun.load(); }));
  std::ofstream(file) << "name: live\ndrafter: {plugin: specd.drafter.prompt_lookup}\n"
                         "verifier: {plugin: specd.verifier.match}\n";
  step("route stage -f " + file.string(), 0, "staged");
  step("route promote live --generation 2", 1,
       "FAILED_PRECONDITION: generation: the candidate version is 3, expected was 2");
  step("route promote live --generation 3 --running attach --dry-run -o json", 0,
       R"("attached":1,"change":"would be promoted")");
  step("route promote live --generation 3 --running attach --request-id me -o json", 0,
       R"("attached":1,"change":"promoted")");
  stream.join();
  const auto plain = client.generate(make_request("lookup", 1900), {});
  ASSERT_TRUE(running.ok() && plain.ok());
  EXPECT_EQ(running.value().token_ids, plain.value().token_ids);
  step("route delete live --running drop", 0, "deleted");
  step("route stage --running drop -f " + file.string(), 2, "--running is for apply");
  step("route get live --dry-run", 2, "it changes nothing");
  step("route apply --generation 2 -f " + file.string(), 2, "--generation is for traffic");
  step("route promote live --running stop", 2, "expected keep, attach or drop, found 'stop'");
  step("events --after 2", 0, "promoted  route live: generation 3 is live, on probation for 60 s");
  step("events", 0, "(request me)\n4  ");
  step("events -o json --after 3", 0, R"("kind":"deleted")");
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
  follower.join();
  EXPECT_EQ(followed_code, 1) << followed;
  EXPECT_NE(followed.find("applied  route live: generation 2 is live\n"), std::string::npos)
      << followed;
  EXPECT_NE(followed.find("deleted  route live: deleted\n"), std::string::npos) << followed;
  EXPECT_NE(followed.find("UNAVAILABLE: specd stops"), std::string::npos) << followed;
  const auto [code, text] = run_specctl(daemon, "events");
  EXPECT_EQ(code, 4) << text;
}

TEST(LiveRoutes, a_watcher_that_does_not_read_holds_up_nobody_and_too_many_are_refused) {
  Daemon daemon;
  daemon.write_config();
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  std::atomic<bool> let_go{false};
  std::vector<uint64_t> seen;
  std::thread slow([&] {
    Client own = daemon.client();
    v1::WatchEventsRequest follow;
    follow.set_follow(true);
    const Status ended = own.watch_events(follow, [&](const v1::Event& event) {
      eventually([&] { return let_go.load(); });
      seen.push_back(event.number());
      return event.text().find("last") == std::string::npos;
    });
    EXPECT_TRUE(ended.ok()) << ended.text();
  });
  v1::DeleteRouteRequest remove;
  remove.set_name("r");
  for (int i = 0; i < 800; ++i) {
    ASSERT_TRUE(client.apply_route(lookup_route("r", 2)).ok());
    ASSERT_TRUE(client.delete_route(remove).ok());
  }
  ASSERT_TRUE(client.apply_route(lookup_route("last", 2)).ok());
  let_go = true;
  slow.join();
  EXPECT_EQ(seen.back(), 1601U);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end(), std::less_equal<>())) << "none twice";
  const auto [code, text] = run_specctl(daemon, "events");
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(text.substr(0, text.find('\n')), "(577 older events are lost)");
  v1::WatchEventsRequest future;
  future.set_after(1602);
  const Status refused_future = client.watch_events(future, [](const v1::Event&) { return true; });
  EXPECT_NE(refused_future.text().find("after: the last event is 1601, found 1602; has the daemon"),
            std::string::npos)
      << refused_future.text();
  std::vector<std::thread> watchers;
  std::atomic<int> refused{0}, open{0};
  for (int i = 0; i < 33; ++i) {
    watchers.emplace_back([&] {
      Client own = daemon.client();
      v1::WatchEventsRequest follow;
      follow.set_follow(true);
      follow.set_after(1600);
      const Status ended = own.watch_events(follow, [&](const v1::Event&) {
        ++open;
        eventually([&] { return open + refused == 33; });
        return false;
      });
      if (ended.code() == Code::kExhausted) ++refused;
    });
  }
  for (std::thread& each : watchers) each.join();
  EXPECT_GE(refused, 1);  // the slow one may not be forgotten yet
  EXPECT_LE(open, 32);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, a_daemon_that_is_killed_starts_with_the_old_route_or_with_the_new_one) {
  Daemon daemon;
  fs::create_directory(daemon.folder() / "state");
  daemon.write_config("", SPECD_PLUGINS, "state_directory: state\n");
  const int n_rounds = std::getenv("SPECD_NIGHTLY") != nullptr ? 200 : 6;
  int old_nodes = 0, new_nodes = 0;  // of the route before and after the change that was cut
  std::mt19937 random(1);
  for (int round = 0; round < n_rounds; ++round) {
    fs::remove(daemon.folder() / "log");
    ASSERT_TRUE(daemon.start()) << daemon.output();
    Client client = daemon.client();
    const auto routes = routes_named(client, "lookup");
    ASSERT_EQ(routes.size(), 1U);
    const int now = routes[0].draft_nodes_max();
    EXPECT_TRUE(round == 0 || now == old_nodes || now == new_nodes)
        << now << ", not " << old_nodes << " or " << new_nodes << daemon.output();
    EXPECT_TRUE(client.generate(make_request("lookup", 4), {}).ok());
    std::atomic<int> done{now}, wanted{now};
    std::thread changes([&] {
      for (int i = 1; i < 1000; ++i) {
        wanted = 2 + (now + i) % 6;
        v1::ApplyRouteRequest request = lookup_route("lookup", wanted);
        request.set_definition(request.definition() + "draft_nodes_max: " + std::to_string(wanted) +
                               "\n");
        if (!client.apply_route(request).ok()) return;
        done = wanted.load();
      }
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    EXPECT_EQ(daemon.stop(SIGKILL), 1000 + SIGKILL);
    changes.join();
    old_nodes = done;
    new_nodes = wanted;
  }
}

TEST(LiveRoutes, a_bundle_whose_names_are_no_text_is_listed_beside_the_others) {
  Daemon daemon;
  const fs::path more = daemon.folder() / "more";
  fs::create_directories(more / "bad\xff");
  std::ofstream(more / "bad\xff/plugin.json") << "\xff\xff";
  daemon.write_config("", std::string(SPECD_PLUGINS) + ", more");
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto [code, text] = run_specctl(daemon, "plugins");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("bad\\xff"), std::string::npos) << text;
  EXPECT_NE(text.find("malformed JSON"), std::string::npos) << text;
  EXPECT_NE(text.find("specd.verifier.match"), std::string::npos) << text;
  EXPECT_EQ(utf8_error_offset(daemon.output()), std::string::npos);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(LiveRoutes, specctl_applies_shows_and_deletes_a_route_of_a_plugin_that_came_later) {
  Daemon daemon;
  const fs::path more = daemon.folder() / "more";
  fs::create_directories(more);
  daemon.write_config("", std::string(SPECD_PLUGINS) + ", more");
  // A plugin directory that the daemon knows, and a bundle that is not there yet.
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const fs::path file = daemon.folder() / "r.yaml";
  std::ofstream(file) << "name: late\ndrafter:\n  plugin: specd.test.drafter_hang\n"
                         "verifier: {plugin: specd.verifier.match}\n";
  auto [code, text] = run_specctl(daemon, "route apply -f " + file.string());
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("r.yaml:3:3: drafter.plugin: plugin 'specd.test.drafter_hang' is not there"),
            std::string::npos)
      << text;
  fs::copy(fs::path(SPECD_HANG_PLUGINS) / "drafter_hang", more / "late",
           fs::copy_options::recursive);
  std::tie(code, text) = run_specctl(daemon, "route apply -f " + file.string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("applied"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "route apply -o json -f " + file.string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(text, "{\"change\":\"unchanged\",\"generation\":2,\"route\":\"late\"}\n");
  std::tie(code, text) = run_specctl(daemon, "route get late");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("specd.test.drafter_hang"), std::string::npos) << text;
  std::tie(code, text) =
      run_specctl(daemon, "route get late -o json > " + (daemon.folder() / "got.json").string());
  EXPECT_EQ(code, 0) << text;
  std::tie(code, text) =
      run_specctl(daemon, "route apply -f " + (daemon.folder() / "got.json").string());
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("unchanged"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "plugins");
  EXPECT_NE(text.find("specd.test.drafter_hang"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "plugins -o json");
  EXPECT_NE(text.find(R"("kind":"drafter")"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("state":"loaded")"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "routes -o json");
  EXPECT_NE(text.find(R"("guarantee":"identical","state":"live")"), std::string::npos) << text;
  std::tie(code, text) = run_specctl(daemon, "route delete late");
  EXPECT_EQ(code, 0) << text;
  std::tie(code, text) = run_specctl(daemon, "route delete late");
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("NOT_FOUND"), std::string::npos) << text;
  EXPECT_EQ(run_specctl(daemon, "route apply -f /nonexistent").first, 1);
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
