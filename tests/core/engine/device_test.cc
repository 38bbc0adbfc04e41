// The engine on a device that is not the host: the fake CUDA library in the place of the real one
// (tests/device/fake_cuda.h). What its steps submit, in which order, and when they wait; that texts
// are those of the CPU; and what happens when the device is not there, is too small, or fails.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "specd/kernels/draw.h"
#include "specd/plugin_api/services/rng.h"
#include "core/device/cuda_device.h"
#include "tests/core/engine_rig.h"
#include "tests/device/fake_cuda.h"

namespace specd {
namespace {

class OnDevice : public EngineTest {
 protected:
  void SetUp() override {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    EngineTest::SetUp();
    record();
  }
  void TearDown() override {
    EngineTest::TearDown();
    const fake_cuda::Record left = record();
    EXPECT_EQ(left.n_graphs, 0u) << "graphs of engines that are gone";
  }

  static fake_cuda::Record record() {
    static void* library = dlopen(SPECD_TEST_FAKE_CUDA, RTLD_NOW);
    const auto take =
        reinterpret_cast<fake_cuda::TakeRecordFn>(dlsym(library, fake_cuda::kTakeRecord));
    fake_cuda::Record record;
    take(&record);
    EXPECT_EQ(record.faults, std::vector<std::string>());
    return record;
  }

  static EngineOptions on(const std::string& device) {
    EngineOptions o = options("pico-draft");
    o.devices = {device};
    o.draft_models = {{.name = "draft",
                       .path = std::string(SPECD_TEST_ZOO) + "/pico-draft",
                       .kv_dtype = KvDType::kF32}};
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.routes = {
        route("lookup", plugin("specd.drafter.prompt_lookup"), 4),
        draft_route("draft", 3, Json::object()),
        draft_route("careful", 3, {{"p_min", 0.5}}),
        draft_route("own_choice", 3, {{"draw", "most_likely"}}),
    };
    return o;
  }
  static RouteOptions draft_route(const std::string& name, int32_t k, Json more) {
    more["model"] = "draft";
    more["draft_tokens"] = k;
    return route(name, plugin("specd.drafter.draft_target", std::move(more)), k);
  }
  static std::vector<Request> requests(const std::string& route_name) {
    std::vector<Request> all;
    for (const std::string& prompt : prompts()) {
      all.push_back(request(prompt, route_name, 24));
      all.push_back(request(prompt, route_name, 24, 0.8f, 77));
    }
    return all;
  }
  static uint64_t count_of(const fake_cuda::Record& record, const std::string& call) {
    return static_cast<uint64_t>(std::count(record.calls.begin(), record.calls.end(), call));
  }
  // The calls between two waits, without the waits.
  static std::vector<std::vector<std::string>> steps_of(const fake_cuda::Record& record) {
    std::vector<std::vector<std::string>> steps(1);
    for (const std::string& call : record.calls) {
      if (call == "synchronize") {
        steps.emplace_back();
      } else {
        steps.back().push_back(call);
      }
    }
    return steps;
  }
};

TEST_F(OnDevice, the_text_is_that_of_the_cpu_on_every_route) {
  std::map<std::string, std::vector<std::vector<int32_t>>> texts;
  for (const std::string device : {"cpu", "cuda:0"}) {
    start(on(device));
    for (const std::string route_name : {"off", "lookup", "draft", "careful", "own_choice"}) {
      for (const Outcome& each : run_all(requests(route_name))) {
        texts[device + " " + route_name].push_back(each.tokens);
      }
      EXPECT_EQ(texts[device + " " + route_name], texts["cpu off"]) << device << " " << route_name;
      if (route_name == "off") continue;
      EXPECT_GT(report(route_name).counts.accepted, 0u) << device << " " << route_name;
      EXPECT_EQ(report(route_name).counts.cut, 0u) << report(route_name).last_problem;
    }
    EXPECT_EQ(engine_->status().device.find(device), 0u) << engine_->status().device;
    audit();
    EXPECT_EQ(engine_->draft_models().at(0).kv_pages_held, 0);
  }
}

// Sixteen sequences draft twelve nodes each where laws stay in place; 128 rows are copied from a device.
TEST_F(OnDevice, laws_for_a_verifier_on_the_host_are_copied_within_the_limit) {
  double drafted[2] = {};
  std::vector<std::vector<int32_t>> texts[2];
  for (const int device : {0, 1}) {
    EngineOptions o = on(device == 0 ? "cpu" : "cuda:0");
    o.max_sequences = 16;
    o.routes = {draft_route("law", 12, Json::object())};
    o.routes[0].verifier = plugin("specd.verifier.rejection");
    o.routes[0].guarantee = Guarantee::kLaw;
    start(o);
    const std::vector<Request> same(16, request(prompts()[0], "law", 60));
    for (const Outcome& each : run_all(same)) texts[device].push_back(each.tokens);
    const RouteReport seen = report("law");
    EXPECT_EQ(seen.counts.cut, 0u) << seen.last_problem;
    drafted[device] =
        static_cast<double>(seen.counts.drafted) / static_cast<double>(seen.counts.drafts);
    audit();
  }
  EXPECT_GT(drafted[0], 9);
  EXPECT_LT(drafted[1], 9);
  EXPECT_EQ(texts[0], texts[1]);
}

// The model drafts for itself: every draft stands, and on the device nothing was asked in between.
TEST_F(OnDevice, drafts_made_in_the_stream_stand_as_those_of_the_cpu_do) {
  uint64_t accepted[2] = {}, steps[2] = {};
  for (const int device : {0, 1}) {
    start(on(device == 0 ? "cpu" : "cuda:0"));
    run(request(prompts()[0], "draft", 48));
    run(request(prompts()[3], "draft", 48, 0.7f, 5));
    accepted[device] = report("draft").counts.accepted;
    steps[device] = report("draft").counts.steps;
    EXPECT_EQ(report("draft").counts.rejected, 0u) << "it drafts for itself";
    audit();
  }
  EXPECT_EQ(accepted[0], accepted[1]);
  EXPECT_EQ(steps[0], steps[1]);
}

TEST_F(OnDevice, a_steady_step_is_one_submission_and_one_wait) {
  for (const std::string route_name : {"off", "draft"}) {
    start(on("cuda:0"));
    run(request(prompts()[0], route_name, 8));
    record();
    run(request(prompts()[0], route_name, 96));
    const fake_cuda::Record seen = record();
    EXPECT_EQ(count_of(seen, "wait"), 0u) << "a copy that waited by itself";
    EXPECT_EQ(count_of(seen, "allocate"), 0u) << "memory taken in the middle";
    // Each step asks whether it may be captured only when it is new; then it waits once.
    uint64_t single = 0, all = 0;
    for (const std::vector<std::string>& step : steps_of(seen)) {
      if (step.empty()) continue;
      ++all;
      single += step == std::vector<std::string>{"launch"} ? 1 : 0;
    }
    const uint64_t decode_steps = route_name == std::string("off") ? 96 : 24;
    EXPECT_GE(all, decode_steps) << route_name;
    EXPECT_GE(single, decode_steps * 2 / 3) << route_name << ": " << all << " steps";
    EXPECT_GT(seen.n_launched_ops, 0u);
  }
}

TEST_F(OnDevice, texts_go_out_while_the_next_step_is_computed) {
  static const auto note = reinterpret_cast<fake_cuda::NoteFn>(
      dlsym(dlopen(SPECD_TEST_FAKE_CUDA, RTLD_NOW), fake_cuda::kNote));
  start(on("cuda:0"));
  record();
  Pending pending;
  const auto ticket = engine_->submit(request(prompts()[0], "off", 40),
                                      [sink = pending.sink()](const Event& event) {
                                        note("text");
                                        sink(event);
                                      });
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(pending.wait().events, 40);
  const std::vector<std::string> calls = record().calls;
  int beside = 0;
  for (size_t i = 1; i + 1 < calls.size(); ++i) {
    if (calls[i] == "text" && calls[i - 1] != "synchronize" && calls[i + 1] == "synchronize") {
      ++beside;
    }
  }
  EXPECT_EQ(beside, 39) << "all but the last, which ends the request";
}

TEST_F(OnDevice, what_is_submitted_piece_by_piece_keeps_the_order_of_the_step) {
  start(on("cuda:0"));
  record();
  run(request(prompts()[4], "draft", 12));
  const std::vector<std::vector<std::string>> steps = steps_of(record());
  // The first: prefill, and the draft model is not asked yet; the second drafts.
  const auto position = [&](const std::vector<std::string>& step, const std::string& call,
                            int nth) {
    auto at = step.begin();
    for (int i = 0; at != step.end(); ++at) {
      if (*at == call && i++ == nth) break;
    }
    return at - step.begin();
  };
  const auto drafting = std::find_if(steps.begin(), steps.end(), [](const auto& step) {
    return std::count(step.begin(), step.end(), "pick_tokens") > 0;
  });
  ASSERT_NE(drafting, steps.end());
  const std::vector<std::string>& step = *drafting;
  // follow, two more draft forwards that pick, then the target's own.
  EXPECT_EQ(std::count(step.begin(), step.end(), "embed"), 4);
  EXPECT_EQ(std::count(step.begin(), step.end(), "draw"), 4);
  EXPECT_EQ(std::count(step.begin(), step.end(), "pick_tokens"), 4) << "and what was drawn";
  EXPECT_LT(position(step, "copy_in", 0), position(step, "embed", 0));
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(position(step, "embed", i), position(step, "draw", i));
    EXPECT_LT(position(step, "draw", i), position(step, "pick_tokens", i));
    EXPECT_LT(position(step, "pick_tokens", i), position(step, "embed", i + 1));
  }
  EXPECT_LT(position(step, "draw", 3), position(step, "pick_tokens", 3));
  EXPECT_LT(position(step, "pick_tokens", 3), position(step, "clamp_nodes", 0));
  EXPECT_LT(position(step, "clamp_nodes", 0), position(step, "walk_tree", 0)) << "the verdict";
  EXPECT_EQ(step.back(), "copy_out") << "what the step waits for comes last";
}

TEST_F(OnDevice, a_captured_propose_finds_its_sequences_by_slot_and_draws_new_numbers) {
  EngineOptions o = on("cuda:0");
  const std::string file = folder_ + "/slots";
  o.routes.push_back(route(
      "slots",
      plugin("specd.test.drafter_slots", {{"file", file}, {"library", SPECD_TEST_FAKE_CUDA}}), 3));
  start(o);
  ASSERT_EQ(report("slots").state, RouteState::kLive) << report("slots").refused.to_string();
  // Texts of lengths that do not overlap tell the sequences apart. They end at different times, so
  // that batches of one size have other slots than those that were captured.
  std::map<uint64_t, std::pair<int32_t, int32_t>> positions;  // of a sequence: first and last
  std::map<uint64_t, uint64_t> seeds;
  std::vector<Pending> pending;
  for (int32_t i = 0; i < 8; ++i) {
    Request r = request("", "slots", 60 + 13 * (i % 4));
    r.prompt_tokens.emplace(static_cast<size_t>(10 + 120 * i), 300 + i);
    r.sampling.seed = 1000 + static_cast<uint64_t>(i);
    Pending each;
    const auto ticket = engine_->submit(r, each.sink());
    ASSERT_TRUE(ticket.ok());
    const auto n = static_cast<int32_t>(r.prompt_tokens->size());
    positions[ticket.value().number] = {n - 1, n + r.max_tokens};
    seeds[ticket.value().number] = *r.sampling.seed;
    if (i % 3 == 2) each.wait();
    pending.push_back(each);
  }
  for (Pending& each : pending) EXPECT_EQ(each.wait().finish, FinishReason::kLength);
  double calls = 0;
  for (const PluginMetricReport& metric : report("slots").counts.of_plugins) {
    if (metric.name == "calls") calls = metric.value;
  }
  audit();
  engine_.reset();
  std::ifstream lines(file);
  uint64_t number = 0;
  int32_t position = 0, n_lines = 0;
  std::string uniform;
  while (lines >> number >> position >> uniform) {
    ++n_lines;
    ASSERT_TRUE(positions.contains(number)) << "line " << n_lines << ": nobody's state";
    EXPECT_GE(position, positions[number].first) << "line " << n_lines;
    EXPECT_LT(position, positions[number].second) << "line " << n_lines;
    uint32_t words[4];
    const uint32_t counter[4] = {0, static_cast<uint32_t>(position), SPECD_PURPOSE_DRAFT, 0};
    kernels::philox4x32(seeds[number], counter, words);
    EXPECT_EQ(std::strtof(uniform.c_str(), nullptr),
              std::ldexp(static_cast<float>(words[0] >> 8), -24))
        << "line " << n_lines;
  }
  EXPECT_GT(n_lines, 200);
  EXPECT_LT(calls, n_lines / 4) << "its host code does not run for what is captured";
  EXPECT_GT(calls, 0);
}

TEST_F(OnDevice, a_drafter_for_devices_alone_is_refused_where_there_is_none) {
  EngineOptions o = on("cpu");
  o.routes.push_back(route("slots",
                           plugin("specd.test.drafter_slots", {{"file", folder_ + "/slots"},
                                                               {"library", SPECD_TEST_FAKE_CUDA}}),
                           3));
  start(o);
  EXPECT_EQ(report("slots").state, RouteState::kRefused);
  EXPECT_NE(report("slots").refused.to_string().find(
                "drafter specd.test.drafter_slots cannot work in the memory"),
            std::string::npos)
      << report("slots").refused.to_string();
}

TEST_F(OnDevice, what_update_brings_is_where_the_drafter_works_and_the_same_everywhere) {
  std::map<std::string, std::vector<std::string>> lines;
  std::map<std::string, double> updates;
  for (const std::string device : {"cpu", "cuda:0"}) {
    for (const auto& [rows_max, is_variable] :
         std::vector<std::pair<int32_t, bool>>{{0, false}, {512, false}, {512, true}}) {
      const std::string name =
          device + " " + std::to_string(rows_max) + (is_variable ? " tree" : "");
      const std::string file = folder_ + "/" + name;
      EngineOptions o = on(device);
      o.routes.push_back(
          route("states",
                plugin("specd.test.drafter_states", {{"file", file},
                                                     {"library", SPECD_TEST_FAKE_CUDA},
                                                     {"variable", is_variable},
                                                     {"rows_max", rows_max}}),
                3));
      o.max_sequences = 2;
      start(o);
      ASSERT_EQ(report("states").state, RouteState::kLive) << report("states").refused.to_string();
      std::vector<Request> all;
      for (int32_t i = 0; i < 3; ++i) {
        all.push_back(request("", "states", 12));
        all.back().prompt_tokens.emplace(static_cast<size_t>(60 + i), 300 + i);
      }
      run_all(all);
      EXPECT_EQ(report("states").counts.lost, 0u) << report("states").last_problem;
      for (const PluginMetricReport& metric : report("states").counts.of_plugins) {
        if (metric.name == "updates") updates[name] = metric.value;
      }
      audit();
      engine_.reset();
      std::ifstream in(file);
      for (std::string line; std::getline(in, line);) lines[name].push_back(line);
      std::sort(lines[name].begin(), lines[name].end());
    }
  }
  const auto n_of = [&](const std::string& prefix) {
    return std::ranges::count_if(lines["cpu 0"],
                                 [&](const std::string& line) { return line.starts_with(prefix); });
  };
  EXPECT_GE(n_of("row "), 3 * 60);
  EXPECT_GT(n_of("top "), 3 * 11) << "after the root of every step, and after nodes";
  // At the end of a text a tree is given more nodes than a chain.
  for (const auto& [name, its] : lines) {
    EXPECT_EQ(its, lines[name.ends_with("tree") ? "cpu 512 tree" : "cpu 0"]) << name;
  }
  // A prompt in one call, or in calls of what two sequences of three nodes can commit in a step.
  EXPECT_GT(updates["cpu 0"], updates["cpu 512"] + 3 * (60 / 8 - 1) - 1);
}

// The head of the last hidden state says the root token again, so that the drafts are known. Weights
// are its own or the target's, in the memory where it works.
TEST_F(OnDevice, a_head_of_one_matrix_drafts_the_same_everywhere) {
  std::map<std::string, std::vector<uint64_t>> counts;
  std::vector<std::vector<int32_t>> plain;
  for (const std::string device : {"cpu", "cuda:0"}) {
    EngineOptions o = on(device);
    const Json own = {{"weights", o.model.path}, {"tensor", "model.embed_tokens.weight"}};
    o.routes.push_back(route("own", plugin("specd.test.drafter_head", own), 1));
    o.routes.push_back(route("again", plugin("specd.test.drafter_head", own), 1));
    o.routes.push_back(route("target", plugin("specd.test.drafter_head"), 1));
    o.routes.push_back(
        route("nowhere", plugin("specd.test.drafter_head", {{"weights", folder_ + "/none"}}), 1));
    o.max_sequences = 4;
    start(o);
    EXPECT_EQ(report("nowhere").refused.field(), "drafter.config.weights");
    EXPECT_NE(report("nowhere").refused.message().find("/none"), std::string::npos)
        << report("nowhere").refused.to_string();
    for (const char* name : {"off", "own", "again", "target"}) {
      std::vector<std::vector<int32_t>> texts;
      for (const Outcome& each : run_all(requests(name))) texts.push_back(each.tokens);
      if (plain.empty()) plain = texts;
      EXPECT_EQ(texts, plain) << device << " " << name;
      if (name == std::string("off")) continue;
      ASSERT_EQ(report(name).state, RouteState::kLive) << report(name).refused.to_string();
      const RouteCounts& seen = report(name).counts;
      EXPECT_EQ(seen.lost, 0u) << report(name).last_problem;
      EXPECT_EQ(seen.cut, 0u) << report(name).last_problem;
      counts[device + " " + name] = {seen.drafted, seen.accepted};
    }
    audit();
  }
  EXPECT_GT(counts["cpu own"][1], 0u) << "texts repeat themselves now and then";
  for (const auto& [name, its] : counts) EXPECT_EQ(its, counts["cpu own"]) << name;
}

TEST_F(OnDevice, few_pages_cost_drafts_and_no_token) {
  start(on("cuda:0"));
  std::vector<std::vector<int32_t>> plain;
  for (const Outcome& each : run_all(requests("draft"))) plain.push_back(each.tokens);
  const uint64_t drafted = report("draft").counts.drafted;
  EngineOptions o = on("cuda:0");
  o.model.kv_bytes_max = 0;
  o.model.kv_pages = 9;
  start(o);
  std::vector<std::vector<int32_t>> starved;
  for (const Outcome& each : run_all(requests("draft"))) starved.push_back(each.tokens);
  EXPECT_EQ(starved, plain);
  EXPECT_LT(report("draft").counts.drafted, drafted) << "nobody went short";
}

TEST_F(OnDevice, a_step_that_cannot_be_captured_goes_piece_by_piece) {
  start(on("cuda:0"));
  const std::vector<int32_t> plain = run(request(prompts()[1], "draft", 40)).tokens;
  setenv("SPECD_FAKE_CUDA", "fail_capture", 1);
  start(on("cuda:0"));
  record();
  EXPECT_EQ(run(request(prompts()[1], "draft", 40)).tokens, plain);
  EXPECT_EQ(run(request(prompts()[1], "off", 40)).tokens, plain);
  const fake_cuda::Record seen = record();
  EXPECT_GT(count_of(seen, "end_capture"), 0u);
  EXPECT_EQ(count_of(seen, "launch"), 0u);
}

TEST_F(OnDevice, what_is_not_there_is_named_with_what_is_needed) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"no_driver", "devices[0]: cuda:0: no CUDA driver is installed"},
      {"old_driver",
       "devices[0]: cuda:0: the CUDA driver is for CUDA 11.4, this library is built with"},
      {"no_device", "devices[0]: cuda:0: this machine has 0 CUDA devices"},
      {"old_gpu", "devices[0]: cuda:0: Fake GPU has compute capability 6.1, needed is 8.0"},
      {"bytes=100000", "the models need "},
      {"bytes=9000000", "), cuda:0 has 9000000; "},
  };
  for (const auto& [setting, words] : cases) {
    setenv("SPECD_FAKE_CUDA", setting.c_str(), 1);
    EngineOptions o = on("cuda:0");
    o.plugin_cache_directory = folder_ + "/cache";
    const auto made = Engine::create(o, {});
    ASSERT_FALSE(made.ok()) << setting;
    EXPECT_NE(made.status().text().find(words), std::string::npos)
        << setting << ": " << made.status().text();
  }
  const auto device = open_cuda_device(0, {}).value();
  const std::string full = device->allocate(10'000'000, "a test").status().text();
  EXPECT_NE(full.find("cuda:0 needs 10000000 bytes"), std::string::npos) << full;
  EXPECT_NE(full.find(" free of 9000000"), std::string::npos) << full;
  unsetenv("SPECD_FAKE_CUDA");
  EngineOptions o = on("cuda:7");
  o.plugin_cache_directory = folder_ + "/cache";
  const auto made = Engine::create(o, {});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().text().find("devices[0]: cuda:7: this machine has 1 CUDA devices"),
            std::string::npos)
      << made.status().text();
}

// Of the target: two ranks can share its heads.
EngineOptions with_two_devices(EngineOptions o) {
  o.model.name = "pico-target";
  o.model.path = std::string(SPECD_TEST_ZOO) + "/pico-target";
  o.draft_models.clear();
  o.routes.resize(1);
  o.devices = {"cuda:0", "cuda:1"};
  o.tensor_parallel_size = 2;
  return o;
}

// Its drafts are those that it makes beside the target, whoever asks for them and wherever he works.
TEST_F(OnDevice, a_draft_model_elsewhere_drafts_the_same) {
  setenv("SPECD_FAKE_CUDA", "devices=2", 1);
  std::vector<Outcome> plain;
  std::map<std::string, std::vector<uint64_t>> counts;
  for (const auto& [target, draft] : std::vector<std::pair<std::string, std::string>>{
           {"cpu", ""}, {"cpu", "cuda:1"}, {"cuda:0", "cpu"}, {"cuda:0", "cuda:1"}}) {
    EngineOptions o = on(target);
    o.draft_models.front().device = draft;
    o.routes.push_back(draft_route("tree", 8, {{"tree", {{"branches", 3}, {"nodes", 8}}}}));
    start(o);
    for (const std::string route_name : {"draft", "careful", "own_choice", "tree"}) {
      const std::string what = route_name + " on " + target + " with " + draft;
      std::vector<Outcome>
          texts;  // one after the other, so that counts do not depend on how they meet
      for (const Request& each : requests(route_name)) texts.push_back(run(each));
      if (plain.empty()) plain = texts;
      expect_identical(texts, plain, what);
      const RouteReport seen = report(route_name);
      EXPECT_EQ(seen.counts.lost, 0u) << what << ": " << seen.last_problem;
      EXPECT_GT(seen.counts.accepted, 0u) << what;
      const std::vector<uint64_t> now = {seen.counts.drafted, seen.counts.accepted};
      EXPECT_EQ(counts.emplace(route_name, now).first->second, now) << what;
    }
    audit();
    const ModelReport model = engine_->draft_models().at(0);
    EXPECT_EQ(model.kv_pages_held, 0);
    EXPECT_EQ(model.kv_pages_total, draft.empty() ? 0 : engine_->model().kv_pages_total);
    const std::vector<MemoryLine> held = engine_->memory();
    const std::string wanted = "weights of draft" + (draft.empty() ? "" : " on " + draft);
    const auto line = std::find_if(held.begin(), held.end(),
                                   [&](const MemoryLine& each) { return each.what == wanted; });
    ASSERT_NE(line, held.end());
    EXPECT_EQ(line->held, line->planned);
    // Drafters that read values work on the host.
    o.plugin_cache_directory = folder_ + "/cache";
    const Result<MemoryPlan> plan = check_options(o);
    ASSERT_TRUE(plan.ok()) << plan.status().to_string();
    std::map<std::string, std::string> where;
    for (const MemoryPlan::Line& each : plan.value().lines) where[each.what] = each.elsewhere;
    EXPECT_EQ(where.at("drafter of route draft (limit)"), "");
    const std::string host = target == "cpu" ? "" : "cpu", on = target == "cpu" ? "" : " on cpu";
    EXPECT_EQ(where.at("drafter of route careful" + on + " (limit)"), host);
    for (const MemoryLine& each : engine_->memory()) {
      if (each.what.starts_with("drafter")) {
        EXPECT_EQ(each.held, each.planned) << each.what;
      }
    }
  }
  engine_.reset();
  unsetenv("SPECD_FAKE_CUDA");
}

TEST_F(OnDevice, a_draft_model_has_no_device_of_a_rank_and_none_without_room) {
  EngineOptions o = on("cuda:0");
  o.plugin_cache_directory = folder_ + "/cache";
  const auto why = [&](const std::string& device) {
    o.draft_models.front().device = device;
    return Engine::create(o, {}).status().to_string();
  };
  EXPECT_EQ(why("gpu"),
            "INVALID_ARGUMENT: draft_models[0].device: expected cpu or cuda:N (N as CUDA numbers "
            "devices), found 'gpu'");
  EXPECT_NE(why("cuda:1").find("draft_models[0].device: cuda:1: this machine has 1 CUDA devices"),
            std::string::npos);
  o.draft_models.front().tensor_parallel_size = 1;
  o.devices = {"cpu"};
  setenv("SPECD_FAKE_CUDA", "bytes=1000000", 1);
  EXPECT_NE(why("cuda:0").find("draft_models[0].device: draft models and drafters need "),
            std::string::npos)
      << why("cuda:0");
  EXPECT_NE(why("cuda:0").find("cuda:0 has 1000000; "), std::string::npos);
  unsetenv("SPECD_FAKE_CUDA");
  o = with_two_devices(on("cuda:0"));
  o.draft_models = {{.name = "draft",
                     .path = std::string(SPECD_TEST_ZOO) + "/pico-draft",
                     .kv_dtype = KvDType::kF32}};
  EXPECT_EQ(
      why("cuda:1"),
      "INVALID_ARGUMENT: draft_models[0].device: expected a device that no rank has (devices: "
      "has cuda:1), found cuda:1");
}

TEST_F(OnDevice, ranks_that_cannot_join_are_refused) {
  EngineOptions o = with_two_devices(on("cuda:0"));
  o.plugin_cache_directory = folder_ + "/cache";
  for (const auto& [setting, words] : std::vector<std::pair<std::string, std::string>>{
           {"devices=2,no_nccl", "rank 0: cuda:0: ranks need NCCL"},
           {"devices=1", "devices[1]: cuda:1: this machine has 1 CUDA devices"},
           {"devices=2,bytes=9000000", "), cuda:0 has 9000000; "},
       }) {
    setenv("SPECD_FAKE_CUDA", setting.c_str(), 1);
    const Status status = Engine::create(o, {}).status();
    EXPECT_NE(status.text().find(words), std::string::npos) << setting << ": " << status.text();
  }
  unsetenv("SPECD_FAKE_CUDA");
}

// The second stage's ranks cannot join each other, which the first's do not see.
TEST_F(OnDevice, a_stage_that_cannot_join_ends_the_start_for_all) {
  setenv("SPECD_FAKE_CUDA", "devices=4", 1);
  setenv("SPECD_STRICT_NCCL", "fail_join=8", 1);  // four joined all, and three their stage
  EngineOptions o = with_two_devices(on("cuda:0"));
  o.plugin_cache_directory = folder_ + "/cache";
  o.pipeline_parallel_size = 2;
  o.devices = {"cuda:0", "cuda:1", "cuda:2", "cuda:3"};
  const auto begin = std::chrono::steady_clock::now();
  const Status status = Engine::create(o, {}).status();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  EXPECT_NE(status.text().find("this join fails, as asked for"), std::string::npos)
      << status.text();
  unsetenv("SPECD_STRICT_NCCL");
  unsetenv("SPECD_FAKE_CUDA");
}

TEST_F(OnDevice, steps_of_ranks_are_launched_as_graphs_by_each) {
  setenv("SPECD_FAKE_CUDA", "devices=2", 1);
  start(with_two_devices(on("cuda:0")));
  record();
  constexpr int32_t kTokens = 40;
  EXPECT_EQ(run(request(prompts()[0], "off", kTokens)).tokens.size(), static_cast<size_t>(kTokens));
  EXPECT_GT(count_of(record(), "launch"), 2 * uint64_t{kTokens} - 20);
  engine_.reset();
  unsetenv("SPECD_FAKE_CUDA");
}

TEST_F(OnDevice, a_rank_whose_device_hangs_ends_every_request_with_the_ranks_that_wait) {
  setenv("SPECD_FAKE_CUDA", "devices=2", 1);
  setenv("SPECD_STRICT_NCCL", "hang_rank=1,hang_after=300", 1);
  EngineOptions o = with_two_devices(on("cuda:0"));
  o.rank_timeout_seconds = 1;
  start(o);
  unsetenv("SPECD_STRICT_NCCL");
  unsetenv("SPECD_FAKE_CUDA");
  const auto begin = std::chrono::steady_clock::now();
  for (const Outcome& each :
       run_all({request(prompts()[0], "off", 200), request(prompts()[1], "lookup", 200)})) {
    EXPECT_EQ(each.finish, FinishReason::kError);
    EXPECT_EQ(each.error.code(), Code::kUnavailable) << each.error.to_string();
    EXPECT_NE(each.error.message().find("its device has waited 1000 ms for an exchange with rank "),
              std::string::npos)
        << each.error.to_string();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(6));
  EXPECT_FALSE(engine_->submit(request("x", "off", 1), [](const Event&) {}).ok());
  engine_.reset();
}

TEST_F(OnDevice, fast_numerics_promise_no_identical_text) {
  EngineOptions o = on("cuda:0");
  o.numerics = Numerics::kFast;
  o.routes[0].guarantee = Guarantee::kLaw;
  start(o);
  EXPECT_EQ(report("lookup").state, RouteState::kLive);
  EXPECT_EQ(report("draft").state, RouteState::kRefused);
  EXPECT_NE(report("draft").refused.to_string().find(
                "reaches guarantee 'law', the route asks for 'identical'"),
            std::string::npos)
      << report("draft").refused.to_string();
  o.devices = {"cpu"};
  const auto made = Engine::create(o, {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().text(),
            "engine.numerics: expected strict or bf16 on cpu (fast is for cuda:N), found fast");
}

TEST_F(OnDevice, numerics_bf16_are_for_a_cpu_that_has_them) {
  EngineOptions o = on("cuda:0");
  o.numerics = Numerics::kBf16;
  EXPECT_EQ(Engine::create(o, {}).status().text(),
            "engine.numerics: expected strict or fast on cuda:0 (bf16 is for cpu), found bf16");
  o.devices = {"cpu"};
  o.isa = "scalar";
  const Status status = Engine::create(o, {}).status();
  EXPECT_EQ(status.code(), Code::kUnsupported);
  EXPECT_EQ(status.text().find("engine.numerics: bf16 needs a processor with AVX-512 BF16, "), 0u)
      << status.text();
}

TEST_F(OnDevice, auto_is_the_cpu_where_there_is_no_driver) {
  setenv("SPECD_FAKE_CUDA", "no_driver", 1);
  start(on("auto"));
  EXPECT_EQ(engine_->status().device.find("cpu ("), 0u) << engine_->status().device;
  EXPECT_EQ(run(request(prompts()[0], "draft", 4)).finish, FinishReason::kLength);
  unsetenv("SPECD_FAKE_CUDA");
  start(on("auto"));
  EXPECT_EQ(engine_->status().device, "cuda:0 (Fake GPU)");
}

TEST_F(OnDevice, a_device_that_fails_ends_every_request_with_the_reason) {
  // The waits while it loads are not counted from outside: far enough behind them.
  setenv("SPECD_FAKE_CUDA", "fail_after=150", 1);
  EngineOptions o = on("cuda:0");
  o.max_sequences = 4;
  start(o);
  std::vector<Request> many;
  for (int i = 0; i < 3; ++i) {
    for (const Request& each : requests(i == 1 ? "draft" : "off")) many.push_back(each);
  }
  for (Request& each : many) each.max_tokens = 60;
  int failed = 0, completed = 0;
  for (const Outcome& each : run_all(many)) {
    completed += each.finish == FinishReason::kLength ? 1 : 0;
    if (each.finish != FinishReason::kError) continue;
    ++failed;
    EXPECT_EQ(each.error.code(), Code::kUnavailable);
    EXPECT_NE(each.error.message().find(
                  "no step can run any more: cuda:0 (Fake GPU): unspecified launch"),
              std::string::npos)
        << each.error.message();
  }
  EXPECT_GT(failed, 0);
  EXPECT_EQ(failed + completed, static_cast<int>(many.size()));
  EXPECT_FALSE(engine_->failure().ok());
  EXPECT_EQ(engine_->status().state, EngineState::kFailed);
  const auto refused = engine_->submit(request(prompts()[0], "off", 4), Pending().sink());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  // Nothing is held by what is gone.
  EXPECT_TRUE(engine_->wait_idle(1000));
  EXPECT_EQ(engine_->status().running, 0);
  const ModelReport model = engine_->model();
  EXPECT_EQ(model.kv_pages_free + model.kv_pages_cached, model.kv_pages_total);
}

TEST_F(OnDevice, a_device_that_fails_while_choices_wait_ends_their_request_once) {
  setenv("SPECD_FAKE_CUDA", "fail_after=150", 1);
  EngineOptions o = on("cuda:0");
  o.max_sequences = 2;
  start(o);
  Request r = request(prompts()[0], "off", 200, 0.9f, 7);
  r.n = 6;  // 600 steps by twos
  std::map<int32_t, size_t> tokens;
  std::atomic<int> n_last(0);
  Pending end;
  const auto ticket = engine_->submit(r, [&, sink = end.sink()](const Event& event) {
    tokens[event.index] += event.tokens.size();
    if (!event.done) return;
    ++n_last;
    sink({.done = true, .finish = event.finish, .error = event.error});
  });
  ASSERT_TRUE(ticket.ok());
  const Outcome outcome = end.wait();
  EXPECT_EQ(outcome.finish, FinishReason::kError);
  EXPECT_EQ(outcome.error.code(), Code::kUnavailable);
  EXPECT_TRUE(engine_->wait_idle(1000));
  engine_.reset();
  EXPECT_EQ(n_last, 1);
  EXPECT_GT(tokens[0], 0u);
  EXPECT_EQ(tokens[5], 0u) << "the last choice must still wait";
}

TEST_F(OnDevice, batches_of_every_size_become_graphs) {
  EngineOptions o = on("cuda:0");
  o.max_sequences = 8;
  start(o);
  for (int round = 0; round < 2; ++round) {
    for (size_t n = 1; n <= 8; ++n) {
      std::vector<Request> batch = requests("draft");
      batch.resize(n);
      for (size_t i = 0; i < n; ++i) batch[i].max_tokens = static_cast<int32_t>(8 + 3 * i);
      run_all(batch);
    }
  }
  const fake_cuda::Record seen = record();
  EXPECT_GT(seen.n_graphs, 8u);
  EXPECT_LE(seen.n_graphs, 256u);
}

}  // namespace
}  // namespace specd
