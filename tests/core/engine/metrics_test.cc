// The numbers that are measured against what the requests themselves report.
#include <map>
#include <numeric>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

class MetricsTest : public EngineTest {
 protected:
  const MetricFamily& family(const std::string& name) {
    families_ = engine_->metrics();
    for (const MetricFamily& each : families_) {
      if (each.name == name) return each;
    }
    static const MetricFamily kNone;
    ADD_FAILURE() << "no family " << name;
    return kNone;
  }
  // The sum of all series that carry `label`; fails when none does.
  double value(const std::string& name, const std::pair<std::string, std::string>& label) {
    double sum = 0;
    bool found = false;
    for (const MetricSeries& series : family(name).series) {
      for (const auto& each : series.labels) {
        if (each != label) continue;
        sum += series.value;
        found = true;
      }
    }
    EXPECT_TRUE(found) << name << "{" << label.first << "=" << label.second << "}";
    return sum;
  }
  double on(const std::string& route_name, const std::string& name) {
    return value(name, {"route", route_name});
  }
  uint64_t count(const std::string& name) {
    const MetricFamily& histogram = family(name);
    EXPECT_EQ(histogram.type, MetricFamily::Type::kHistogram);
    EXPECT_EQ(histogram.series.size(), 1u);
    const auto& counts = histogram.series.at(0).counts;
    EXPECT_EQ(counts.size(), histogram.bounds.size() + 1);
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  }
  double sum(const std::string& name) { return family(name).series.at(0).sum; }

 private:
  std::vector<MetricFamily> families_;
};

TEST_F(MetricsTest, sums_equal_what_the_requests_report) {
  EngineOptions o = options();
  o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 6),
              route("spare", plugin("specd.drafter.prompt_lookup"), 2)};
  start(o);
  std::vector<Request> requests;
  for (const std::string& prompt : prompts()) {
    requests.push_back(request(prompt, "lookup", 24));
    requests.push_back(request(prompt, "off", 9, 0.8f, 3));
  }
  std::vector<Outcome> outcomes = run_all(requests);
  Request long_one = request(prompts()[0], "off", 400);
  long_one.id = "unwanted";
  Pending pending = submit_slow(long_one);
  pending.wait_for_tokens(1);
  engine_->cancel("unwanted");
  outcomes.push_back(pending.wait());
  ASSERT_EQ(outcomes.back().finish, FinishReason::kCancelled);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(engine_->submit(request("x", "nowhere", 1), {}).ok());
  audit();

  std::map<std::string, double> ended{{"stop", 0}, {"length", 0}, {"cancelled", 0}, {"error", 0}};
  Usage all, routed;
  double queue = 0, prefill = 0, decode = 0;
  uint64_t lookups = 0;
  for (size_t i = 0; i < outcomes.size(); ++i) {
    const Usage& usage = outcomes[i].usage;
    ++ended[finish_reason_name(outcomes[i].finish)];
    all.prompt_tokens += usage.prompt_tokens;
    all.completion_tokens += usage.completion_tokens;
    queue += static_cast<double>(usage.queue_ns) / 1e9;
    prefill += static_cast<double>(usage.prefill_ns) / 1e9;
    decode += static_cast<double>(usage.decode_ns) / 1e9;
    if (i >= requests.size() || requests[i].route != "lookup") continue;
    ++lookups;
    routed.steps += usage.steps;
    routed.draft_tokens += usage.draft_tokens;
    routed.accepted_tokens += usage.accepted_tokens;
    routed.rejected_tokens += usage.rejected_tokens;
    routed.discarded_tokens += usage.discarded_tokens;
  }
  for (const auto& [outcome, n] : ended) {
    EXPECT_EQ(value("specd_requests_total", {"outcome", outcome}), n) << outcome;
  }
  EXPECT_EQ(value("specd_requests_total", {"outcome", "refused"}), 3);
  const std::pair<std::string, std::string> model{"model", "pico-draft"};
  EXPECT_EQ(value("specd_prompt_tokens_total", model), all.prompt_tokens);
  EXPECT_EQ(value("specd_generation_tokens_total", model), all.completion_tokens);
  EXPECT_EQ(value("specd_requests_running", model), 0);
  EXPECT_EQ(value("specd_requests_waiting", model), 0);
  EXPECT_EQ(value("specd_kv_blocks_used", model), 0);
  EXPECT_EQ(value("specd_kv_blocks_free", model) + value("specd_kv_blocks_cached", model),
            value("specd_kv_blocks", model));
  EXPECT_EQ(value("specd_prefix_cache_queries_total", model), all.prompt_tokens);

  EXPECT_GT(routed.accepted_tokens, 0) << "nothing to count";
  EXPECT_GT(routed.rejected_tokens, 0) << "nothing to count";
  EXPECT_EQ(on("lookup", "specd_route_requests_total"), static_cast<double>(lookups));
  EXPECT_EQ(on("off", "specd_route_requests_total"),
            static_cast<double>(outcomes.size() - lookups));
  EXPECT_EQ(report("off").counts.requests, outcomes.size() - lookups);
  EXPECT_EQ(on("lookup", "specd_route_steps_total"), static_cast<double>(routed.steps));
  EXPECT_EQ(on("lookup", "specd_spec_decode_num_draft_tokens_total"),
            static_cast<double>(routed.draft_tokens));
  EXPECT_EQ(on("lookup", "specd_spec_decode_num_accepted_tokens_total"),
            static_cast<double>(routed.accepted_tokens));
  EXPECT_EQ(on("lookup", "specd_spec_decode_num_accepted_tokens_per_pos_total"),
            static_cast<double>(routed.accepted_tokens));
  EXPECT_EQ(on("lookup", "specd_spec_decode_num_rejected_tokens_total"),
            static_cast<double>(routed.rejected_tokens));
  EXPECT_EQ(on("lookup", "specd_spec_decode_num_discarded_tokens_total"),
            static_cast<double>(routed.discarded_tokens));
  const double drafts = on("lookup", "specd_spec_decode_num_drafts_total");
  EXPECT_GT(drafts, 0);
  EXPECT_LE(drafts, static_cast<double>(routed.draft_tokens));
  EXPECT_LE(drafts, static_cast<double>(routed.steps));
  // A chain accepts a place only when it accepted the one before.
  double before = drafts;
  const int32_t positions = 5;  // the plugin's own limit, below the route's
  for (int32_t position = 0; position < positions; ++position) {
    double at = -1;
    for (const MetricSeries& series :
         family("specd_spec_decode_num_accepted_tokens_per_pos_total").series) {
      const Labels wanted{{"model", "pico-draft"},
                          {"route", "lookup"},
                          {"plugin", "specd.drafter.prompt_lookup"},
                          {"position", std::to_string(position)}};
      if (series.labels == wanted) at = series.value;
    }
    EXPECT_GE(at, 0) << position;
    EXPECT_LE(at, before) << position;
    before = at;
  }
  EXPECT_EQ(report("lookup").counts.accepted_at.size(), static_cast<size_t>(positions));
  for (const char* idle : {"specd_route_requests_total", "specd_spec_decode_num_drafts_total",
                           "specd_plugin_calls_total", "specd_route_forward_seconds_total"}) {
    EXPECT_EQ(on("spare", idle), 0) << idle;
  }

  const auto n = static_cast<uint64_t>(outcomes.size());
  EXPECT_EQ(count("specd_e2e_request_latency_seconds"), n);
  EXPECT_EQ(count("specd_request_queue_time_seconds"), n);
  EXPECT_EQ(count("specd_time_to_first_token_seconds"), n);
  EXPECT_EQ(count("specd_request_prefill_time_seconds"), n);
  EXPECT_EQ(count("specd_request_decode_time_seconds"), n);
  EXPECT_EQ(count("specd_inter_token_latency_seconds"),
            static_cast<uint64_t>(all.completion_tokens) - n);
  EXPECT_NEAR(sum("specd_request_queue_time_seconds"), queue, 1e-6);
  EXPECT_NEAR(sum("specd_request_prefill_time_seconds"), prefill, 1e-6);
  EXPECT_NEAR(sum("specd_request_decode_time_seconds"), decode, 1e-6);
  EXPECT_NEAR(sum("specd_e2e_request_latency_seconds"), queue + prefill + decode, 1e-6);

  EXPECT_EQ(count("specd_step_seconds"), engine_->status().steps);
  const double forward = value("specd_step_forward_seconds_total", model);
  EXPECT_GT(forward, 0);
  EXPECT_LT(forward, sum("specd_step_seconds"));
  EXPECT_GT(on("lookup", "specd_route_forward_seconds_total"), 0);
  EXPECT_LT(on("lookup", "specd_route_forward_seconds_total"), forward);
  EXPECT_LT(on("lookup", "specd_plugin_call_seconds_total"), sum("specd_step_seconds"));
  EXPECT_GT(value("specd_plugin_calls_total", {"call", "verify"}), 0);
  EXPECT_GT(value("specd_plugin_calls_total", {"call", "propose"}), 0);
}

TEST_F(MetricsTest, prefix_hits_and_preemptions_equal_what_the_requests_report) {
  EngineOptions o = options();
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = 12;  // of 16 tokens: four long requests cannot all stay
  start(o);
  std::vector<Request> requests;
  for (size_t i = 0; i < 4; ++i) requests.push_back(request(prompts()[i], "off", 90));
  std::vector<Outcome> outcomes = run_all(requests);
  for (int i = 0; i < 2; ++i) outcomes.push_back(run(request(prompts()[0], "off", 4)));
  ASSERT_TRUE(engine_->wait_idle(60'000));  // audit() would empty the cache
  Usage all;
  for (const Outcome& outcome : outcomes) {
    all.cached_prompt_tokens += outcome.usage.cached_prompt_tokens;
    all.preemptions += outcome.usage.preemptions;
  }
  EXPECT_GT(all.cached_prompt_tokens, 0) << "nothing to count";
  EXPECT_GT(all.preemptions, 0) << "nothing to count";
  const std::pair<std::string, std::string> model{"model", "pico-draft"};
  EXPECT_EQ(value("specd_prefix_cache_hits_total", model), all.cached_prompt_tokens);
  EXPECT_EQ(value("specd_preemptions_total", model), all.preemptions);
  EXPECT_EQ(value("specd_kv_blocks", model), 12);
  EXPECT_GT(value("specd_kv_blocks_cached", model), 0);
  EXPECT_EQ(value("specd_kv_blocks_free", model) + value("specd_kv_blocks_cached", model), 12);
  EXPECT_EQ(value("specd_kv_blocks_used", model), 0);
}

TEST_F(MetricsTest, a_scrape_changes_nothing_and_disturbs_nothing) {
  EngineOptions o = options();
  o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 4)};
  start(o);
  const Outcome alone = run(request(prompts()[0], "lookup", 100));
  std::atomic<bool> done{false};
  size_t scrapes = 0;
  double last = 0;
  std::thread scraper([&] {
    while (!done) {
      for (const MetricFamily& each : engine_->metrics()) {
        if (each.name != "specd_generation_tokens_total") continue;
        EXPECT_GE(each.series.at(0).value, last);
        last = each.series.at(0).value;
      }
      ++scrapes;
    }
  });
  const Outcome scraped = run(request(prompts()[0], "lookup", 100));
  done = true;
  scraper.join();
  EXPECT_GT(scrapes, 0u);
  EXPECT_EQ(scraped.tokens, alone.tokens);
  audit();
  const auto without_clock = [&] {
    std::vector<std::pair<std::string, std::vector<double>>> all;
    for (const MetricFamily& each : engine_->metrics()) {
      if (each.name == "specd_uptime_seconds" || each.name == "specd_step_age_seconds" ||
          each.name == "specd_thread_busy_seconds")
        continue;
      all.emplace_back(each.name, std::vector<double>());
      for (const MetricSeries& series : each.series) {
        all.back().second.push_back(series.value);
        all.back().second.push_back(series.sum);
        all.back().second.insert(all.back().second.end(), series.counts.begin(),
                                 series.counts.end());
      }
    }
    return all;
  };
  EXPECT_EQ(without_clock(), without_clock());
}

TEST_F(MetricsTest, what_a_plugin_counts_is_exported_under_a_name_of_its_type) {
  EngineOptions o = options();
  o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
  const std::string file = folder_ + "/taps";
  o.routes = {route("taps", plugin("specd.test.drafter_taps", {{"file", file}}), 2)};
  start(o);
  run(request(prompts()[2], "taps", 12));
  audit();
  std::ifstream taps(file);
  double rows = 0;
  ASSERT_TRUE(taps >> rows) << "the plugin wrote down nothing";
  const MetricFamily seen = family("specd_plugin_metric_rows_total");  // defined as "rows"
  const MetricFamily now = family("specd_plugin_metric_rows");         // as "rows_total"
  EXPECT_EQ(seen.type, MetricFamily::Type::kCounter);
  EXPECT_EQ(now.type, MetricFamily::Type::kGauge);
  const Labels labels{
      {"route", "taps"}, {"plugin", "specd.test.drafter_taps"}, {"kind", "drafter"}};
  ASSERT_EQ(seen.series.size(), 1u);
  EXPECT_EQ(seen.series[0].labels, labels);
  EXPECT_EQ(seen.series[0].value, rows);
  ASSERT_EQ(now.series.size(), 1u);
  EXPECT_EQ(now.series[0].value, 1);  // the root alone: the draft was wrong on purpose
}

TEST_F(MetricsTest, the_pulse_beats_while_there_is_work_and_rests_without) {
  start(options());
  run(request(prompts()[0], "off", 4));
  for (int i = 0; i < 1000 && engine_->status().step_age_ns != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(engine_->status().step_age_ns, 0u);
  // A sink that does not come back is what a hanging step looks like from outside.
  std::atomic<bool> hold{true};
  std::atomic<bool> ended{false};
  ASSERT_TRUE(engine_
                  ->submit(request(prompts()[0], "off", 1),
                           [&](const Event& event) {
                             while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                             if (event.done) ended = true;
                           })
                  .ok());
  for (int i = 0; i < 10'000 && engine_->status().step_age_ns < 50'000'000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GE(engine_->status().step_age_ns, 50'000'000u);
  hold = false;
  audit();
  EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace specd
