// The arithmetic of a comparison on a backend whose times are made up, and the whole on an engine.
#include "host/bench/measure.h"

#include <gtest/gtest.h>

#include <mutex>
#include <set>

#include "core/base/json.h"
#include "host/bench/engine_backend.h"
#include "host/bench/report.h"
#include "host/bench/verify_cost.h"
#include "tests/core/engine_rig.h"

namespace specd::host {
namespace {

constexpr uint64_t kMs = 1'000'000;

// Answers at once with times and tokens from a rule, and writes down who asked.
class FakeBackend final : public Backend {
 public:
  using Rule = std::function<Result<Answer>(const Request&, int call)>;
  explicit FakeBackend(Rule rule) : rule_(std::move(rule)) {}
  Result<Answer> run(const Request& request, bool with_prompt_tokens,
                     const std::atomic<bool>&) override {
    const std::lock_guard lock(mutex_);
    calls_.push_back(request.route + " " + request.prompt);
    EXPECT_TRUE(salts_.insert(request.cache_salt).second) << "a prefix could be found again";
    auto answer = rule_(request, static_cast<int>(calls_.size()));
    if (answer.ok() && with_prompt_tokens) answer.value().prompt_tokens = {1, 2};
    return answer;
  }
  Result<ModelReport> model() override { return ModelReport(); }
  Result<bool> renew_drafter(const std::string& route, const std::atomic<bool>&) override {
    renewed_.push_back(route + " after " + std::to_string(calls_.size()));
    return renews_;
  }
  // As if others had used the route before: only what is added in between counts.
  Result<DraftCounts> draft_counts(const std::string& route) override {
    const auto calls = static_cast<uint64_t>(
        std::count_if(calls_.begin(), calls_.end(),
                      [&](const std::string& c) { return c.starts_with(route + " "); }));
    if (route == "off") return DraftCounts();
    return DraftCounts{
        guarantee, 1000 + 10 * calls, {700 + 8 * calls, 600 + 4 * calls}, 5000 + 100 * calls};
  }
  const std::vector<std::string>& calls() const { return calls_; }
  const std::vector<std::string>& renewed() const { return renewed_; }
  void renew_nothing() { renews_ = false; }

  Guarantee guarantee = Guarantee::kIdentical;

 private:
  std::mutex mutex_;
  Rule rule_;
  std::vector<std::string> calls_, renewed_;
  bool renews_ = true;
  std::set<std::string> salts_;
};

// n tokens: the first after 5 ms, the others at ms_each; `per_step` tokens a decode step.
Answer answer_of(int n, double ms_each, int per_step, int32_t first_token = 0) {
  Answer answer;
  for (int i = 0; i < n; ++i) answer.tokens.push_back(first_token + i);
  answer.start_ns = 1000 * kMs;
  answer.first_ns = answer.start_ns + 5 * kMs;
  answer.end_ns = answer.first_ns + static_cast<uint64_t>((n - 1) * ms_each * 1e6);
  answer.usage.prompt_tokens = 12;
  answer.usage.steps = 1 + (n - 1) / per_step;
  answer.usage.draft_tokens = per_step > 1 ? 2 * (n - 1) : 0;
  answer.usage.accepted_tokens = per_step > 1 ? n - 1 - (n - 1) / per_step : 0;
  return answer;
}

const std::atomic<bool> kNoStop = false;
const std::vector<Prompt> kTwo = {{"a", "a", std::nullopt, 0}, {"b", "b", std::nullopt, 0}};

MeasureOptions two_routes(int repeat) {
  MeasureOptions options;
  options.routes = {"off", "fast"};
  options.with_control = true;
  options.max_tokens = 41;
  options.repeat = repeat;
  return options;
}

TEST(Measure, routes_take_turns_in_alternating_order_with_the_control_at_the_end) {
  FakeBackend backend([](const Request&, int) { return answer_of(41, 10, 1); });
  const Measurement got = measure(backend, kTwo, two_routes(2), kNoStop, {});
  ASSERT_TRUE(got.status.ok());
  const std::vector<std::string> expected = {
      "off a", "fast a",           // untimed
      "off a", "fast a", "off a",  // round 1: a in order, b in the opposite one
      "off b", "fast b", "off b",  //
      "off a", "fast a", "off a",  // round 2: the other way round
      "off b", "fast b", "off b"};
  EXPECT_EQ(backend.calls(), expected);
  ASSERT_EQ(got.cells.size(), 3u);
  EXPECT_TRUE(got.cells[2].is_control);
  for (const Cell& cell : got.cells) EXPECT_EQ(cell.runs.size(), 4u);
}

TEST(Measure, each_arm_goes_first_as_often_as_last_on_every_prompt) {
  std::vector<std::string> order;
  FakeBackend backend([](const Request&, int) { return answer_of(41, 10, 1); });
  MeasureOptions options = two_routes(4);
  options.with_control = false;
  ASSERT_TRUE(measure(backend, kTwo, options, kNoStop, {}).status.ok());
  int first_on_a = 0, first_on_b = 0;
  const auto& calls = backend.calls();
  for (size_t i = 2; i < calls.size(); i += 2) {
    first_on_a += calls[i] == "fast a" ? 1 : 0;
    first_on_b += calls[i] == "fast b" ? 1 : 0;
  }
  EXPECT_EQ(first_on_a, 2);
  EXPECT_EQ(first_on_b, 2);
}

TEST(Measure, speed_tau_and_eta_are_those_of_the_made_up_times) {
  // fast: 4 tokens a step of 16 ms, where off needs 10 ms a token: S = 2.5, eta = 0.625.
  FakeBackend backend([](const Request& request, int) {
    return request.route == "fast" ? answer_of(41, 4, 4) : answer_of(41, 10, 1);
  });
  const Measurement measured = measure(backend, kTwo, two_routes(3), kNoStop, {});
  const std::vector<Row> rows = summarize(measured, false);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_NEAR(rows[1].drafting, 6 * 100e-9 / measured.cells[1].busy_s, 1e-9);
  EXPECT_EQ(rows[0].drafting, 0);
  EXPECT_NEAR(rows[1].speedup, 2.5, 1e-9);
  EXPECT_NEAR(rows[1].tau, 4, 1e-9);
  EXPECT_NEAR(rows[1].eta, 0.625, 1e-9);
  EXPECT_NEAR(rows[1].tpot_ms.p50, 4, 1e-9);
  EXPECT_NEAR(rows[1].ttft_ms.p99, 5, 1e-9);
  EXPECT_NEAR(rows[1].decode_tokens_per_s, 250, 1e-6);
  EXPECT_EQ(rows[1].input_tokens, 12);
  EXPECT_EQ(rows[1].requests, 6);
  EXPECT_EQ(rows[1].drafted, 6 * 80);
  EXPECT_EQ(rows[1].accepted, 6 * 30);
  EXPECT_EQ(rows[1].accepted_at, (std::vector<double>{0.8, 0.4}));
  EXPECT_TRUE(rows[0].accepted_at.empty());
  EXPECT_NEAR(rows[0].speedup, 1, 1e-9);
  EXPECT_NEAR(rows[0].tau, 1, 1e-9);
  EXPECT_NEAR(rows[2].speedup, 1, 1e-9);
  EXPECT_TRUE(rows[2].is_control);
}

TEST(Measure, the_control_shows_the_noise) {
  // The machine runs at half the speed on every third call.
  FakeBackend backend(
      [](const Request&, int call) { return answer_of(41, call % 3 == 0 ? 20 : 10, 1); });
  std::vector<Prompt> prompts;
  for (int i = 0; i < 20; ++i) prompts.push_back({"p", std::to_string(i), std::nullopt, 0});
  const std::vector<Row> rows =
      summarize(measure(backend, prompts, two_routes(1), kNoStop, {}), false);
  EXPECT_LT(rows[2].speedup_interval.low, 0.6);
  EXPECT_GT(rows[2].speedup_interval.high, rows[2].speedup_interval.low);
}

TEST(Measure, a_text_that_differs_is_named_by_prompt_and_token) {
  FakeBackend backend([](const Request& request, int) {
    Answer answer = answer_of(41, 10, 1);
    if (request.route == "fast" && request.prompt == "b") answer.tokens[17] = 99;
    return answer;
  });
  const std::vector<Row> rows =
      summarize(measure(backend, kTwo, two_routes(1), kNoStop, {}), false);
  EXPECT_TRUE(rows[0].identical);
  EXPECT_FALSE(rows[1].identical);
  EXPECT_EQ(rows[1].first_difference, "b: token 17");
  EXPECT_TRUE(rows[2].identical);
}

TEST(Measure, a_text_may_differ_where_the_route_does_not_promise_it) {
  FakeBackend backend([](const Request& request, int) {
    return answer_of(41, 10, 1, request.route == "fast" ? 1 : 0);
  });
  MeasureOptions options = two_routes(1);
  options.temperatures = {0, 0.8f};
  const auto promises = [&](Guarantee guarantee) {
    backend.guarantee = guarantee;
    const std::vector<Row> rows = summarize(measure(backend, kTwo, options, kNoStop, {}), false);
    std::vector<bool> of_fast;
    for (const Row& row : rows) {
      EXPECT_EQ(row.identical, row.route != "fast");
      if (row.route == "fast") of_fast.push_back(row.promises_text);
      if (row.route == "off") {
        EXPECT_TRUE(row.promises_text);
      }
    }
    return of_fast;
  };
  EXPECT_EQ(promises(Guarantee::kIdentical), (std::vector<bool>{true, true}));
  EXPECT_EQ(promises(Guarantee::kLaw), (std::vector<bool>{true, false}));
  EXPECT_EQ(promises(Guarantee::kNone), (std::vector<bool>{false, false}));
}

TEST(Measure, a_text_that_only_ends_early_differs_too) {
  FakeBackend backend([](const Request& request, int) {
    return answer_of(request.route == "fast" ? 40 : 41, 10, 1);
  });
  const std::vector<Row> rows =
      summarize(measure(backend, kTwo, two_routes(1), kNoStop, {}), false);
  EXPECT_EQ(rows[1].first_difference, "a: token 40");
}

TEST(Measure, prompts_that_loop_are_left_out_on_request) {
  FakeBackend backend([](const Request& request, int) {
    Answer answer = answer_of(80, request.route == "fast" && request.prompt == "b" ? 1 : 10, 1);
    if (request.prompt == "b") std::fill(answer.tokens.begin(), answer.tokens.end(), 3);
    return answer;
  });
  const Measurement got = measure(backend, kTwo, two_routes(1), kNoStop, {});
  const std::vector<Row> all = summarize(got, false), kept = summarize(got, true);
  EXPECT_EQ(all[1].requests, 2);
  EXPECT_EQ(all[1].loops, 1);
  EXPECT_GT(all[1].speedup, 2);
  EXPECT_EQ(kept[1].requests, 1);
  EXPECT_EQ(kept[1].loops, 0);
  EXPECT_NEAR(kept[1].speedup, 1, 1e-9);
}

TEST(Measure, what_ends_early_keeps_what_is_known) {
  FakeBackend backend([](const Request&, int call) -> Result<Answer> {
    if (call == 9) return Status(Code::kUnavailable, "gone");
    return answer_of(41, 10, 1);
  });
  const Measurement got = measure(backend, kTwo, two_routes(5), kNoStop, {});
  EXPECT_EQ(got.status.code(), Code::kUnavailable);
  EXPECT_NE(got.status.text().find("on route"), std::string::npos) << got.status.text();
  const std::vector<Row> rows = summarize(got, false);
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_GE(rows[0].requests, 2);
  EXPECT_NEAR(rows[1].speedup, 1, 1e-9);
}

TEST(Measure, more_at_once_asks_every_prompt_for_two_waves_together) {
  FakeBackend backend([](const Request&, int) { return answer_of(41, 10, 1); });
  MeasureOptions options = two_routes(1);
  options.concurrencies = {1, 4};
  const Measurement got = measure(backend, kTwo, options, kNoStop, {});
  ASSERT_TRUE(got.status.ok());
  ASSERT_EQ(got.cells.size(), 6u);
  EXPECT_EQ(got.cells[3].concurrency, 4);
  EXPECT_EQ(got.cells[3].runs.size(), 8u);
}

TEST(Measure, each_temperature_has_its_own_seed_and_its_own_texts) {
  std::map<float, uint64_t> seeds;
  FakeBackend backend([&](const Request& request, int) {
    seeds[*request.sampling.temperature] = *request.sampling.seed;
    return answer_of(41, 10, 1, *request.sampling.temperature > 0 ? 500 : 0);
  });
  MeasureOptions options = two_routes(1);
  options.temperatures = {0, 0.8f};
  options.seed = 7;
  for (const Row& row : summarize(measure(backend, kTwo, options, kNoStop, {}), false))
    EXPECT_TRUE(row.identical) << row.first_difference;
  EXPECT_EQ(seeds[0], 7u);
  EXPECT_EQ(seeds[0.8f], 8u);
}

TEST(Measure, every_pass_over_the_prompts_begins_with_fresh_drafters) {
  FakeBackend backend([](const Request&, int) { return answer_of(41, 10, 1); });
  MeasureOptions options = two_routes(2);
  options.with_control = false;
  options.temperatures = {0, 0.8f};
  const Measurement got = measure(backend, kTwo, options, kNoStop, {});
  EXPECT_TRUE(got.fresh_drafters);
  const std::vector<std::string> expected = {
      "off after 2",  "fast after 2",   // after the untimed ones; 4 requests a pass
      "off after 6",  "fast after 6",   //
      "off after 10", "fast after 10",  // round 2
      "off after 14", "fast after 14"};
  EXPECT_EQ(backend.renewed(), expected);
  backend.renew_nothing();
  RunFacts facts;
  EXPECT_EQ(findings(facts, {}), "");
  facts.fresh_drafters = measure(backend, kTwo, options, kNoStop, {}).fresh_drafters;
  EXPECT_TRUE(findings(facts, {}).starts_with("drafters: those of the daemon, which keep what "));
}

class MeasureEngine : public EngineTest {};

// A drafter with one pool for all sequences: it learns from every request.
TEST_F(MeasureEngine, a_drafter_that_learns_across_requests_begins_every_round_anew) {
  EngineOptions o = options();
  o.routes = {route(
      "learner",
      plugin("specd.drafter.prompt_lookup", {{"max_draft_len", 4}, {"max_matching_ngram_size", 2}}),
      4)};
  start(o);
  EngineBackend backend(*engine_);
  // Without a new drafter the second request finds the text of the first.
  const Request asked = request(prompts()[0], "learner", 48);
  const auto first = backend.run(asked, false, kNoStop),
             second = backend.run(asked, false, kNoStop);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ(first.value().tokens, second.value().tokens);
  EXPECT_LT(second.value().usage.steps, first.value().usage.steps) << "it learns nothing";

  MeasureOptions run;
  run.routes = {"off", "learner"};
  run.temperatures = {0, 0.8f};
  run.max_tokens = 48;
  run.ignore_eos = true;
  run.repeat = 3;
  const Measurement got =
      measure(backend, {{"p", prompts()[0], std::nullopt, 0}}, run, kNoStop, {});
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  EXPECT_TRUE(got.fresh_drafters);
  EXPECT_EQ(got.cells.at(1).runs.front().answer.usage.steps, first.value().usage.steps);
  for (const size_t learner : {size_t{1}, size_t{3}}) {
    const Cell& cell = got.cells.at(learner);
    ASSERT_EQ(cell.route, "learner");
    ASSERT_EQ(cell.runs.size(), 3u);
    for (const Cell::Run& each : cell.runs)
      EXPECT_EQ(each.answer.usage.steps, cell.runs.front().answer.usage.steps) << each.round;
  }
}

TEST_F(MeasureEngine, a_replay_of_the_recording_accepts_all_at_every_concurrency) {
  EngineOptions o = options();
  start(o);
  std::vector<Prompt> asked;
  for (size_t i = 0; i < 3; ++i)
    asked.push_back({"p" + std::to_string(i), prompts()[i], std::nullopt, 0});
  MeasureOptions run;
  run.routes = {"off"};
  run.temperatures = {0, 0.8f};
  run.max_tokens = 33;
  run.ignore_eos = true;
  run.concurrencies = {1, 3};
  {
    EngineBackend backend(*engine_);
    const auto text = host::record(backend, asked, run, kNoStop);
    ASSERT_TRUE(text.ok()) << text.status().to_string();
    std::ofstream(folder_ + "/replay.json") << text.value();
  }
  o.routes = {
      route(
          "all",
          plugin("specd.drafter.replay", {{"file", folder_ + "/replay.json"}, {"draft_tokens", 3}}),
          3),
      route("none",
            plugin("specd.drafter.replay",
                   {{"file", folder_ + "/replay.json"}, {"draft_tokens", 3}, {"acceptance", 0.0}}),
            3)};
  start(o);
  EngineBackend backend(*engine_);
  run.routes = {"off", "all", "none"};
  run.with_control = true;
  const Measurement got = measure(backend, asked, run, kNoStop, {});
  ASSERT_TRUE(got.status.ok()) << got.status.to_string();
  const std::vector<Row> rows = summarize(got, false);
  ASSERT_EQ(rows.size(), 2u * 2 * 4);
  for (const Cell& cell : got.cells)
    for (const Cell::Run& each : cell.runs) EXPECT_EQ(each.answer.usage.cached_prompt_tokens, 0);
  for (const Row& row : rows) {
    EXPECT_TRUE(row.identical) << row.route << row.first_difference;
    EXPECT_GT(row.tokens_per_s, 0);
    EXPECT_GT(row.speedup, 0);
    EXPECT_GT(row.ttft_ms.p50, 0);
    const std::vector<double> places = row.route == "all"    ? std::vector<double>{1, 1, 1}
                                       : row.route == "none" ? std::vector<double>{0, 0, 0}
                                                             : std::vector<double>();
    EXPECT_EQ(row.accepted_at, places) << row.route;
    EXPECT_NEAR(row.tau, row.route == "all" ? 4.0 : 1.0, 1e-9) << row.route;  // 32 = 8 steps of 4
  }
}

TEST_F(MeasureEngine, a_stop_ends_the_request_that_runs) {
  start(options());
  EngineBackend backend(*engine_);
  std::atomic<bool> stop = true;
  const auto answer = backend.run(request(prompts()[0], "off", 1500), false, stop);
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.status().code(), Code::kCancelled) << answer.status().to_string();
}

TEST_F(MeasureEngine, verify_cost_grows_from_one_row_on_and_refuses_what_does_not_fit) {
  const EngineOptions o = options();
  const auto cost = VerifyCost::create(o, "cpu (avx2)", {2, 200});
  ASSERT_TRUE(cost.ok()) << cost.status().to_string();
  cost.value()->measure();
  const std::map<int, double> v = cost.value()->result();
  ASSERT_EQ(v.size(), 2u);
  EXPECT_GT(v.at(2), 0.5);
  EXPECT_GT(v.at(200), 4 * v.at(2)) << "200 rows are far more work than 2";
  const auto too_long = VerifyCost::create(o, "cpu (avx2)", {2000});
  ASSERT_FALSE(too_long.ok());
  EXPECT_NE(too_long.status().text().find("--verify-cost: expected a context"), std::string::npos);
  const auto other = VerifyCost::create(o, "cuda:0 (some GPU)", {2});
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.status().text().find("expected devices: [cpu], the engine runs on cuda:0"),
            std::string::npos)
      << other.status().to_string();
}

}  // namespace
}  // namespace specd::host
