// Many requests in one engine: pages that are short, prefixes that are shared, priorities,
// deadlines, cancellation. Texts are always compared with those of an engine that has no such
// cares.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "core/engine.h"
#include "tests/core/engine_rig.h"

namespace specd {
namespace {

constexpr int32_t kSchedTokens = 56;
constexpr int32_t kPage = 16;

class Sched : public EngineTest {
 protected:
  // So few pages that a handful of requests cannot run side by side.
  static EngineOptions starved(int32_t pages) {
    EngineOptions o = options();
    o.model.kv_bytes_max = 0;
    o.model.kv_pages = pages;
    return o;
  }
  static std::vector<Request> requests(const std::string& route_name,
                                       int32_t max_tokens = kSchedTokens) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) {
      all.push_back(request(prompt, route_name, max_tokens));
      all.push_back(request(prompt, route_name, max_tokens, 0.8f, 77));
    }
    return all;
  }
  static Request of_ids(std::vector<int32_t> ids, int32_t max_tokens) {
    Request r = request("", "off", max_tokens);
    r.prompt_tokens = std::move(ids);
    return r;
  }
  static std::vector<int32_t> ids(int32_t first, int32_t n) {
    std::vector<int32_t> out;
    for (int32_t i = 0; i < n; ++i) out.push_back(300 + (first + i * 7) % 900);
    return out;
  }
  // What an engine with ample pages and no cache says.
  std::vector<Outcome> plainly(const std::vector<Request>& all) {
    EngineOptions o = options();
    o.model.prefix_cache = false;
    start(o);
    std::vector<Request> plain = all;
    for (Request& each : plain) {
      each.route = "off";
      each.priority = 0;
    }
    return run_all(plain);
  }
  void expect_same(const std::vector<Outcome>& got, const std::vector<Outcome>& expected,
                   const std::string& what) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].tokens, expected[i].tokens) << what << ", request " << i;
      ASSERT_EQ(got[i].text, expected[i].text) << what << ", request " << i;
      ASSERT_EQ(got[i].finish, expected[i].finish) << what << ", request " << i;
      ASSERT_EQ(got[i].usage.completion_tokens, static_cast<int32_t>(got[i].tokens.size()));
    }
  }
  // The outcome of `r`, and the rows that the engine computed for it.
  std::pair<Outcome, uint64_t> run_counting_rows(const Request& r) {
    const uint64_t before = engine_->status().rows;
    const Outcome outcome = run(r);
    return {outcome, engine_->status().rows - before};
  }
  static RouteOptions lookup(int32_t nodes) {
    return route("lookup",
                 plugin("specd.drafter.prompt_lookup", {{"num_speculative_tokens", nodes},
                                                        {"prompt_lookup_min", 1},
                                                        {"prompt_lookup_max", 3}}),
                 nodes);
  }
};

TEST_F(Sched, preemption_changes_no_token_on_any_route) {
  const std::vector<Request> all = requests("off");
  const std::vector<Outcome> expected = plainly(all);
  std::vector<Request> greedy;
  std::vector<Outcome> greedy_out;
  for (size_t i = 0; i < all.size(); i += 2) {
    greedy.push_back(all[i]);
    greedy_out.push_back(expected[i]);
  }
  const std::string file = record(greedy, greedy_out);
  for (const bool with_cache : {true, false}) {
    EngineOptions o = starved(12);
    o.model.prefix_cache = with_cache;
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.routes.push_back(lookup(6));
    o.routes.push_back(route("chain",
                             plugin("specd.drafter.replay",
                                    Json{{"file", file}, {"acceptance", 0.7}, {"draft_tokens", 8}}),
                             8));
    o.routes.push_back(
        route("tree",
              plugin("specd.drafter.replay", Json{{"file", file},
                                                  {"acceptance", 0.5},
                                                  {"draft_tokens", 4},
                                                  {"tree", {{"nodes", 40}, {"probes", 4}}}}),
              40));
    // Reads hidden states: one that must see all of them, one that may begin anywhere.
    o.routes.push_back(
        route("taps", plugin("specd.test.drafter_taps", {{"file", folder_ + "/taps"}}), 2));
    o.routes.push_back(
        route("cold",
              plugin("specd.test.drafter_taps", {{"file", folder_ + "/cold"}, {"cold", true}}), 2));
    start(o);
    for (const char* name : {"off", "lookup", "chain", "tree", "taps", "cold"}) {
      const uint64_t before = engine_->status().preemptions;
      std::vector<Request> routed = requests(name);
      const std::vector<Outcome> outcomes = run_all(routed);
      expect_same(outcomes, expected, std::string(name) + (with_cache ? ", cache" : ""));
      const uint64_t preemptions = engine_->status().preemptions - before;
      EXPECT_GT(preemptions, 0u) << name << ": 16 requests in 12 pages";
      uint64_t told = 0;
      for (const Outcome& each : outcomes) told += static_cast<uint64_t>(each.usage.preemptions);
      EXPECT_EQ(told, preemptions) << name;
      if (std::string(name) != "off") {
        EXPECT_GT(report(name).counts.drafted, 0u) << name;
        EXPECT_EQ(report(name).counts.lost, 0u) << report(name).last_problem;
      }
      audit();
    }
  }
}

TEST_F(Sched, one_that_needs_every_page_runs_beside_others_and_finishes) {
  EngineOptions o = starved(12);
  o.routes.push_back(lookup(30));
  const std::vector<Request> all{of_ids(ids(0, 100), 92), of_ids(ids(3, 20), 60),
                                 of_ids(ids(0, 90), 40), of_ids(ids(9, 33), 159)};
  const std::vector<Outcome> expected = plainly(all);
  start(o);
  std::vector<Request> routed = all;
  for (Request& each : routed) each.route = "lookup";
  expect_same(run_all(routed), expected, "12 pages");
  EXPECT_GT(engine_->status().preemptions, 0u);
  for (const auto& [prompt, max_tokens, field] :
       {std::tuple{192, 1, "prompt"}, {400, 1, "prompt"}, {100, 93, "max_tokens"}}) {
    const auto never = engine_->submit(of_ids(ids(0, prompt), max_tokens), [](const Event&) {});
    ASSERT_FALSE(never.ok());
    EXPECT_EQ(never.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(never.status().text().starts_with(field)) << never.status().to_string();
  }
}

TEST_F(Sched, a_cached_prompt_computes_its_last_rows_only_and_says_the_same) {
  const std::vector<Request> all{of_ids(ids(0, 70), 10), of_ids(ids(0, 64), 10),
                                 of_ids(ids(0, 65), 10), of_ids(ids(5, 64), 10)};
  const std::vector<Outcome> expected = plainly(all);
  start(options());
  std::vector<Outcome> got(4);
  uint64_t rows = 0;
  std::tie(got[0], rows) = run_counting_rows(all[0]);
  EXPECT_EQ(rows, 79u) << "70 and 9 more tokens";
  EXPECT_EQ(got[0].usage.cached_prompt_tokens, 0);
  std::tie(got[0], rows) = run_counting_rows(all[0]);
  EXPECT_EQ(rows, 15u) << "its four full pages are there";
  EXPECT_EQ(got[0].usage.cached_prompt_tokens, 64);
  std::tie(got[1], rows) = run_counting_rows(all[1]);
  EXPECT_EQ(rows, 10u) << "there to its very end: the last row alone, in a copy";
  EXPECT_EQ(got[1].usage.cached_prompt_tokens, 63);
  std::tie(got[2], rows) = run_counting_rows(all[2]);
  EXPECT_EQ(rows, 10u);
  EXPECT_EQ(got[2].usage.cached_prompt_tokens, 64);
  std::tie(got[3], rows) = run_counting_rows(all[3]);
  EXPECT_EQ(rows, 73u) << "another text";
  expect_same(got, expected, "cached");
  // The copy is nobody else's: two at once, again, and the first text is unharmed.
  expect_same(run_all({all[0], all[1], all[1], all[2]}),
              {expected[0], expected[1], expected[1], expected[2]}, "together");
  const ModelReport model = engine_->model();
  EXPECT_EQ(model.prefix_query_tokens, 70u + 70 + 64 + 65 + 64 + 70 + 64 + 64 + 65);
  EXPECT_EQ(model.prefix_hit_tokens, 64u + 63 + 64 + 64 + 63 + 63 + 64);
}

TEST_F(Sched, what_was_written_serves_the_next_turn) {
  start(options());
  const Outcome first = run(of_ids(ids(0, 20), 30));
  std::vector<int32_t> next = ids(0, 20);
  next.insert(next.end(), first.tokens.begin(), first.tokens.end());
  next.push_back(301);
  const Outcome second = run(of_ids(next, 10));
  EXPECT_EQ(second.usage.cached_prompt_tokens, 3 * kPage) << "of 49 tokens with KV";
  audit();
  expect_same({second}, plainly({of_ids(next, 10)}), "next turn");
}

TEST_F(Sched, without_the_cache_nothing_is_kept) {
  EngineOptions o = options();
  o.model.prefix_cache = false;
  start(o);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run_counting_rows(of_ids(ids(0, 64), 10)).second, 73u);
    EXPECT_EQ(engine_->model().kv_pages_cached, 0);
  }
}

TEST_F(Sched, a_salt_shares_with_itself_only) {
  start(options());
  Request r = of_ids(ids(0, 40), 4);
  const Outcome first = run(r);
  for (const std::string& salt :
       {std::string("alice"), std::string("bob"), std::string(256, 'x')}) {
    r.cache_salt = salt;
    Outcome outcome = run(r);
    EXPECT_EQ(outcome.usage.cached_prompt_tokens, 0) << salt;
    EXPECT_EQ(outcome.tokens, first.tokens);
    outcome = run(r);
    EXPECT_EQ(outcome.usage.cached_prompt_tokens, 32) << salt;
    EXPECT_EQ(outcome.tokens, first.tokens);
  }
  r.cache_salt = std::string(257, 'x');
  const auto refused = engine_->submit(r, [](const Event&) {});
  ASSERT_FALSE(refused.ok());
  EXPECT_TRUE(refused.status().text().starts_with("cache_salt"));
}

TEST_F(Sched, a_drafter_that_needs_every_hidden_state_gets_every_row) {
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  o.routes.push_back(
      route("taps", plugin("specd.test.drafter_taps", {{"file", folder_ + "/t"}}), 2));
  o.routes.push_back(route(
      "cold", plugin("specd.test.drafter_taps", {{"file", folder_ + "/c"}, {"cold", true}}), 2));
  const Json part = {{"plugin", "specd.test.drafter_taps"}, {"config", {{"file", folder_ + "/p"}}}};
  o.routes.push_back(
      route("part",
            plugin("specd.drafter.cascade",
                   {{"drafters", {part, {{"plugin", "specd.drafter.prompt_lookup"}}}}}),
            2));
  o.max_sequences = 4;  // a prompt comes in several calls of update()
  start(o);
  Request r = of_ids(ids(0, 40), 8);
  const Outcome first = run(r);
  r.route = "taps";
  Outcome outcome = run(r);
  EXPECT_EQ(outcome.usage.cached_prompt_tokens, 0);
  EXPECT_EQ(outcome.tokens, first.tokens);
  r.route = "part";
  outcome = run(r);
  EXPECT_EQ(outcome.tokens, first.tokens);
  EXPECT_EQ(report("part").counts.lost, 0u) << report("part").last_problem;
  r.route = "cold";
  outcome = run(r);
  EXPECT_EQ(outcome.usage.cached_prompt_tokens, 32);
  EXPECT_EQ(outcome.tokens, first.tokens);
  audit();
  engine_.reset();
  int rows = 0;
  std::ifstream(folder_ + "/t") >> rows;
  EXPECT_EQ(rows, 46) << "40 and the 7 later ones, less the last step's";
  uint64_t hash = 0, hash_of_part = 0;
  std::ifstream(folder_ + "/t") >> rows >> hash;
  std::ifstream(folder_ + "/p") >> rows >> hash_of_part;
  EXPECT_EQ(rows, 46);
  EXPECT_EQ(hash_of_part, hash) << "a part sees the states that it would see alone";
  std::ifstream(folder_ + "/c") >> rows;
  EXPECT_EQ(rows, 46 - 32);
}

TEST_F(Sched, a_short_request_is_answered_while_a_long_prompt_is_read) {
  EngineOptions o = options();
  o.max_sequences = 4;
  o.step_tokens_max = 16;  // the long one takes some 120 steps, the short one three
  start(o);
  std::atomic<bool> long_one_read = false, answered_before = false;
  Pending reading, brief;
  ASSERT_TRUE(engine_
                  ->submit(of_ids(ids(0, 1900), 4),
                           [&, sink = reading.sink()](const Event& event) {
                             if (!event.tokens.empty()) long_one_read = true;
                             sink(event);
                           })
                  .ok());
  ASSERT_TRUE(engine_
                  ->submit(of_ids(ids(11, 20), 1),
                           [&, sink = brief.sink()](const Event& event) {
                             if (event.done) answered_before = !long_one_read;
                             sink(event);
                           })
                  .ok());
  EXPECT_EQ(brief.wait().tokens.size(), 1u);
  EXPECT_EQ(reading.wait().tokens.size(), 4u);
  EXPECT_TRUE(answered_before);
}

TEST_F(Sched, a_higher_priority_goes_first_even_before_what_runs) {
  const std::vector<Request> all{of_ids(ids(0, 20), 300), of_ids(ids(1, 20), 20),
                                 of_ids(ids(2, 20), 20), of_ids(ids(3, 20), 20)};
  const std::vector<Outcome> expected = plainly(all);
  EngineOptions o = options();
  o.max_sequences = 1;
  start(o);
  std::mutex mutex;
  std::vector<size_t> order;
  std::vector<Pending> pending(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    Request r = all[i];
    r.priority = i == 3 ? -900 : static_cast<int32_t>(i);
    const Sink sink = pending[i].sink();
    ASSERT_TRUE(engine_
                    ->submit(r,
                             [&, i, sink](const Event& event) {
                               if (event.done) {
                                 const std::lock_guard lock(mutex);
                                 order.push_back(i);
                               }
                               sink(event);
                             })
                    .ok());
    if (i == 0) pending[0].wait_for_tokens(5);
  }
  std::vector<Outcome> outcomes;
  for (Pending& each : pending) outcomes.push_back(each.wait());
  EXPECT_EQ(order, (std::vector<size_t>{3, 0, 1, 2}));
  EXPECT_EQ(outcomes[0].usage.preemptions, 1);
  expect_same(outcomes, expected, "by priority");
}

TEST_F(Sched, waiting_raises_a_priority_until_it_is_the_highest) {
  EngineOptions o = options();
  o.max_sequences = 1;
  o.priority_aging_ms = 1;
  start(o);
  Pending busy = submit(of_ids(ids(0, 20), 60));
  busy.wait_for_tokens(1);
  Request low = of_ids(ids(1, 20), 20);
  low.priority = 10;  // ten milliseconds
  std::atomic<int> others{0};
  std::atomic<int> before{-1};
  Pending pending_low;
  const Sink sink = pending_low.sink();
  ASSERT_TRUE(engine_
                  ->submit(low,
                           [&, sink](const Event& event) {
                             if (event.done) before = others.load();
                             sink(event);
                           })
                  .ok());
  std::vector<Pending> rest;
  for (int i = 0; i < 40; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    rest.emplace_back();
    const Sink count = rest.back().sink();
    ASSERT_TRUE(engine_
                    ->submit(of_ids(ids(2 + i, 20), 20),
                             [&, count](const Event& event) {
                               if (event.done) ++others;
                               count(event);
                             })
                    .ok());
  }
  pending_low.wait();
  for (Pending& each : rest) each.wait();
  EXPECT_LT(before, 40) << "the last ones came more than ten milliseconds later";
}

TEST_F(Sched, a_deadline_ends_a_request_wherever_it_is) {
  EngineOptions o = options();
  o.max_sequences = 1;
  start(o);
  const Outcome whole = run(of_ids(ids(0, 20), 2000));
  Request r = of_ids(ids(0, 20), 2000);
  r.deadline_ms = 30;
  Pending running = submit(r);
  Pending waiting = submit(r);
  const Outcome cut = running.wait();
  EXPECT_EQ(cut.finish, FinishReason::kError);
  EXPECT_EQ(cut.error.code(), Code::kDeadlineExceeded) << cut.error.to_string();
  EXPECT_LT(cut.tokens.size(), whole.tokens.size());
  EXPECT_TRUE(std::equal(cut.tokens.begin(), cut.tokens.end(), whole.tokens.begin()));
  EXPECT_EQ(waiting.wait().error.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(engine_->status().deadline_misses, 2u);
  EXPECT_EQ(engine_->status().failed, 2u);
  r.max_tokens = 3;
  r.deadline_ms = 600'000;
  EXPECT_EQ(run(r).finish, FinishReason::kLength);
}

TEST_F(Sched, new_fields_out_of_range_are_refused_by_name) {
  start(options());
  const auto refused = [&](const char* field, auto&& change) {
    Request r = of_ids(ids(0, 4), 4);
    change(r);
    const auto ticket = engine_->submit(r, [](const Event&) { FAIL(); });
    ASSERT_FALSE(ticket.ok()) << field;
    EXPECT_EQ(ticket.status().code(), Code::kInvalidArgument);
    EXPECT_TRUE(ticket.status().text().starts_with(field)) << ticket.status().to_string();
  };
  refused("priority", [](Request& r) { r.priority = 1001; });
  refused("priority", [](Request& r) { r.priority = INT32_MIN; });
  refused("deadline_ms", [](Request& r) { r.deadline_ms = -1; });
  refused("deadline_ms", [](Request& r) { r.deadline_ms = INT64_MAX; });
  refused("draft_nodes_max", [](Request& r) { r.draft_nodes_max = -1; });
  refused("draft_nodes_max", [](Request& r) { r.draft_nodes_max = 1025; });
}

TEST_F(Sched, cancelling_works_in_every_state_and_hits_nobody_else) {
  EngineOptions o = starved(12);
  o.max_sequences = 3;
  o.step_tokens_max = 16;
  start(o);
  const Outcome whole = run(of_ids(ids(0, 40), 60));
  ASSERT_EQ(whole.tokens.size(), 60u);
  const auto submit_as = [&](const std::string& id, Pending& pending, int32_t n_prompt = 40) {
    Request r = of_ids(ids(0, n_prompt), 60);
    r.id = id;
    r.cache_salt = id;  // shares no page with the others
    const auto ticket = engine_->submit(r, pending.sink());
    EXPECT_TRUE(ticket.ok()) << ticket.status().to_string();
    return ticket.value();
  };
  const auto expect_cancelled = [&](Pending& pending, const char* state) {
    const Outcome outcome = pending.wait();
    EXPECT_EQ(outcome.finish, FinishReason::kCancelled) << state;
    EXPECT_TRUE(std::equal(outcome.tokens.begin(), outcome.tokens.end(), whole.tokens.begin()));
    return outcome;
  };
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    Pending at_once, prefilling, decoding, others[4], waiting;
    at_once.hold_at(1);
    const Ticket ended = submit_as("same", at_once);
    EXPECT_TRUE(engine_->cancel(ended.number));
    at_once.let_go();
    expect_cancelled(at_once, "just submitted");

    decoding.hold_at(1);
    const Ticket running = submit_as("same", decoding);
    decoding.wait_for_tokens(1);
    submit_as("long", prefilling, 100);
    decoding.hold_at(2);
    decoding.wait_for_tokens(2);
    EXPECT_EQ(engine_->status().running, 2);
    EXPECT_TRUE(engine_->cancel("long"));
    for (int i = 0; i < 4; ++i) submit_as("other" + std::to_string(i), others[i]);
    const Ticket queued = submit_as("queued", waiting);
    EXPECT_FALSE(engine_->cancel(ended.number)) << "its id is another one's now";
    // Three run, in pages that suffice for one to the end.
    const size_t n_tokens = 3 + static_cast<size_t>(round) * 6;
    decoding.hold_at(n_tokens);
    decoding.wait_for_tokens(n_tokens);
    EXPECT_TRUE(expect_cancelled(prefilling, "prefilling").tokens.empty());
    EXPECT_TRUE(engine_->cancel(queued.number));
    EXPECT_TRUE(engine_->cancel(running.number));
    for (int i = 1; i < 4; i += 2) EXPECT_TRUE(engine_->cancel("other" + std::to_string(i)));
    decoding.let_go();
    EXPECT_TRUE(expect_cancelled(waiting, "waiting").tokens.empty());
    EXPECT_GE(expect_cancelled(decoding, "decoding").tokens.size(), n_tokens);
    const Outcome preempted = expect_cancelled(others[1], "running or preempted");
    if (round == kRounds - 1) {
      EXPECT_GT(preempted.usage.preemptions, 0);
    }
    EXPECT_TRUE(expect_cancelled(others[3], "waiting").tokens.empty());
    for (int i = 0; i < 4; i += 2)
      EXPECT_EQ(others[i].wait().tokens, whole.tokens) << "a neighbour";
    EXPECT_FALSE(engine_->cancel("same"));
    audit();
  }
}

TEST_F(Sched, a_route_drafts_up_to_its_batch_size_and_again_below) {
  EngineOptions o = options();
  o.routes.push_back(lookup(4));
  o.routes[0].disable_by_batch_size = 2;
  start(o);
  const Request r = request(prompts()[2], "lookup", kSchedTokens);
  const Outcome alone = run(r);
  EXPECT_GT(alone.usage.draft_tokens, 0);
  EXPECT_FALSE(report("lookup").suspended);
  std::vector<Pending> others;
  std::vector<Ticket> tickets;
  for (int i = 0; i < 2; ++i) {
    others.emplace_back();
    tickets.push_back(engine_->submit(of_ids(ids(i, 20), 1900), others.back().sink()).value());
    others.back().wait_for_tokens(1);
  }
  const Outcome crowded = run(r);
  EXPECT_EQ(crowded.usage.draft_tokens, 0) << "three run";
  EXPECT_EQ(crowded.tokens, alone.tokens);
  // The drafter was kept in step: once it may, it drafts on.
  Pending going = submit_slow(r);
  going.wait_for_tokens(8);
  EXPECT_TRUE(report("lookup").suspended);
  engine_->cancel(tickets[0].number);
  engine_->cancel(tickets[1].number);
  going.slow(false);
  const Outcome relieved = going.wait();
  EXPECT_EQ(relieved.tokens, alone.tokens);
  EXPECT_GT(relieved.usage.draft_tokens, 0);
  for (Pending& each : others) each.wait();
  EXPECT_FALSE(report("lookup").suspended);
}

TEST_F(Sched, a_request_may_ask_for_fewer_drafts) {
  EngineOptions o = options();
  start(o);
  const Request plain = request(prompts()[0], "off", kSchedTokens);
  const Outcome whole = run(plain);
  const std::string file = record({plain}, {whole});
  o.routes.push_back(
      route("full", plugin("specd.drafter.replay", Json{{"file", file}, {"draft_tokens", 8}}), 8));
  start(o);
  for (const int32_t most : {0, 1, 3, 8, 100}) {
    Request r = request(prompts()[0], "full", kSchedTokens);
    r.draft_nodes_max = most;
    const Outcome outcome = run(r);
    EXPECT_EQ(outcome.tokens, whole.tokens);
    const int32_t k = std::min(most, 8);
    EXPECT_EQ(outcome.usage.steps, 1 + (kSchedTokens - 1 + k) / (k + 1)) << most;
  }
}

// Whatever the clients do: every request ends once, the texts are right as far as they go, the
// books balance.
TEST_F(Sched, a_storm_of_clients_leaves_nothing_behind) {
  constexpr int kClients = 4, kEach = 50;
  const std::vector<Request> kinds = requests("off", 30);
  const std::vector<Outcome> expected = plainly(kinds);
  std::vector<Request> greedy;
  std::vector<Outcome> greedy_out;
  for (size_t i = 0; i < kinds.size(); i += 2) {
    greedy.push_back(kinds[i]);
    greedy_out.push_back(expected[i]);
  }
  const std::string file = record(greedy, greedy_out);
  EngineOptions o = starved(13);
  o.max_sequences = 8;
  o.step_tokens_max = 48;
  o.queue_max = 1000;
  o.priority_aging_ms = 20;
  o.routes.push_back(lookup(6));
  o.routes.push_back(
      route("tree",
            plugin("specd.drafter.replay", Json{{"file", file},
                                                {"acceptance", 0.6},
                                                {"draft_tokens", 4},
                                                {"tree", {{"nodes", 16}, {"probes", 2}}}}),
            16));
  start(o);
  std::atomic<int> completed{0}, cut{0}, wrong{0};
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      std::mt19937 random(static_cast<uint32_t>(c));
      std::vector<std::pair<Pending, size_t>> mine;
      std::vector<Ticket> tickets;
      for (int i = 0; i < kEach; ++i) {
        const size_t kind = random() % kinds.size();
        Request r = kinds[kind];
        const char* routes[] = {"off", "lookup", "tree"};
        r.route = routes[random() % 3];
        r.priority = static_cast<int32_t>(random() % 7) - 3;
        r.cache_salt = random() % 4 == 0 ? "salt" : "";
        const bool is_first = i < 4;  // these meet, however slow the clients are
        if (!is_first && random() % 5 == 0)
          r.deadline_ms = 1 + static_cast<int64_t>(random() % 200);
        Pending pending;
        const auto ticket = engine_->submit(r, pending.sink());
        if (!ticket.ok()) {
          ++wrong;
          continue;
        }
        mine.emplace_back(pending, kind);
        tickets.push_back(ticket.value());
        if (is_first) continue;
        if (random() % 4 == 0) (void)engine_->cancel(tickets[random() % tickets.size()].number);
        if (random() % 8 == 0) mine[random() % mine.size()].first.wait_for_tokens(random() % 30);
        if (random() % 50 == 0) engine_->clear_prefix_cache();
        (void)engine_->model();
      }
      for (auto& [pending, kind] : mine) {
        const Outcome outcome = pending.wait();
        const std::vector<int32_t>& right = expected[kind].tokens;
        const bool whole = outcome.finish == FinishReason::kLength;
        if (whole ? outcome.tokens != right
                  : outcome.tokens.size() > right.size() ||
                        !std::equal(outcome.tokens.begin(), outcome.tokens.end(), right.begin()))
          ++wrong;
        ++(whole ? completed : cut);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(completed + cut, kClients * kEach);
  EXPECT_GT(completed, 50);
  EXPECT_GT(cut, 20);
  EXPECT_GT(engine_->status().preemptions, 0u);
  EXPECT_GT(engine_->model().prefix_hit_tokens, 0u);
}

}  // namespace
}  // namespace specd
