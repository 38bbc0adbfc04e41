// No combination of drafter, draft length, concurrency, memory, prefix cache and sampling changes a
// token. Every pair of settings meets in `every_pair_of_settings`; the full product runs when
// SPECD_NIGHTLY is set, over more prompts.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "core/base/sanitizer.h"
#include "tests/core/engine_rig.h"
#include "specd/kernels/cpu.h"
#include "tests/core/family_models.h"
#include "tests/core/quantized_zoo.h"
#include "tests/core/ranks/step_record.h"

namespace specd {
namespace {

#if SPECD_HAS_SANITIZER
// Slow, and about memory and threads rather than tokens: one case of each drafter.
constexpr bool kSanitized = true;
constexpr size_t kPrompts = 3;
std::vector<std::string> matrix_families() { return {"mistral"}; }
#else
constexpr bool kSanitized = false;
constexpr size_t kPrompts = 8;
std::vector<std::string> matrix_families() { return families(); }
#endif

constexpr int32_t kMatrixTokens = 48;
enum Factor { kDrafter, kLength, kConcurrency, kMemory, kPrefix, kSampling, kFactors };
using Case = std::array<int, kFactors>;  // of each factor its level

const std::vector<std::string> kDrafters = {"off",          "prompt_lookup", "suffix",  "lookahead",
                                            "draft_target", "draft_tree",    "cascade", "replay0",
                                            "replay50",     "replay100",     "garbage"};
const std::vector<int32_t> kLengths = {1, 4, 8};
const std::vector<size_t> kConcurrencies = {1, 3, 16};
const std::vector<std::string> kSamplings = {"greedy", "seeded", "penalized"};
const Case kLevels = {static_cast<int>(kDrafters.size()), 3, 3, 2, 2, 3};

std::vector<Case> full_product() {
  std::vector<Case> all{Case{}};
  for (size_t f = 0; f < kFactors; ++f) {
    std::vector<Case> next;
    for (const Case& each : all) {
      for (int level = 0; level < kLevels[f]; ++level) {
        next.push_back(each);
        next.back()[f] = level;
      }
    }
    all = std::move(next);
  }
  return all;
}

// Pairs alone would let it be chance whether a tree, random numbers and pages that are short meet.
std::vector<Case> trees_that_are_starved() {
  std::vector<Case> cases;
  for (const Case& c : full_product()) {
    const std::string& drafter = kDrafters[static_cast<size_t>(c[kDrafter])];
    const bool tree = drafter == "suffix" || drafter == "lookahead" || drafter == "draft_tree" ||
                      drafter == "cascade";
    if (tree && kLengths[static_cast<size_t>(c[kLength])] == 4 &&
        kConcurrencies[static_cast<size_t>(c[kConcurrency])] == 16 && c[kMemory] == 1 &&
        c[kPrefix] == 0 && kSamplings[static_cast<size_t>(c[kSampling])] == "seeded") {
      cases.push_back(c);
    }
  }
  return cases;
}

// A covering array that begins with these: always the case that covers the most pairs of levels not
// seen yet.
std::vector<Case> every_pair() {
  const std::vector<Case> all = full_product();
  std::map<std::array<int, 4>, bool> seen;  // factor, level, factor, level
  const auto pairs_of = [](const Case& c, auto&& fn) {
    for (int f = 0; f < kFactors; ++f) {
      for (int g = f + 1; g < kFactors; ++g) {
        fn(std::array<int, 4>{f, c[static_cast<size_t>(f)], g, c[static_cast<size_t>(g)]});
      }
    }
  };
  for (const Case& each : all) pairs_of(each, [&](const auto& pair) { seen[pair] = false; });
  std::vector<Case> chosen = trees_that_are_starved();
  for (const Case& each : chosen) pairs_of(each, [&](const auto& pair) { seen[pair] = true; });
  while (true) {
    const Case* best = nullptr;
    int most = 0;
    for (const Case& each : all) {
      int fresh = 0;
      pairs_of(each, [&](const auto& pair) { fresh += seen[pair] ? 0 : 1; });
      if (fresh > most) {
        most = fresh;
        best = &each;
      }
    }
    if (best == nullptr) return chosen;
    chosen.push_back(*best);
    pairs_of(*best, [&](const auto& pair) { seen[pair] = true; });
  }
}

// Short of memory, and as many at once as there is a case.
std::vector<Case> hardest_of_each_drafter(const std::vector<Case>& cases) {
  const auto hard = [](const Case& c) { return std::pair(c[kMemory], c[kConcurrency]); };
  std::map<int, Case> hardest;
  for (const Case& each : cases) {
    Case& best = hardest.try_emplace(each[kDrafter], each).first->second;
    if (hard(best) < hard(each)) best = each;
  }
  std::vector<Case> chosen;
  for (const auto& [drafter, each] : hardest) chosen.push_back(each);
  return chosen;
}

std::string name_of(const Case& c) {
  return kDrafters[static_cast<size_t>(c[kDrafter])] + " k" +
         std::to_string(kLengths[static_cast<size_t>(c[kLength])]) + " concurrency " +
         std::to_string(kConcurrencies[static_cast<size_t>(c[kConcurrency])]) +
         (c[kMemory] == 1 ? " starved" : " ample") + (c[kPrefix] == 1 ? " prefix-hit" : "") + " " +
         kSamplings[static_cast<size_t>(c[kSampling])];
}

// A target, what drafts for it, and how much of the prompts fits.
struct Subject {
  std::string target, draft;
  size_t prompt_bytes;
  int32_t starved_pages;  // about three requests' worth
  Numerics numerics = Numerics::kStrict;
  int32_t n_ranks = 1, n_stages = 1;  // what plain decoding does on one
  KvDType kv_dtype = KvDType::kF32;
};

class IdentityMatrix : public EngineTest {
 protected:
  EngineOptions base() const {
    EngineOptions o = options();
    o.model.name = "target";
    o.model.path = subject_.target;
    o.numerics = subject_.numerics;
    o.plugin_directories.push_back(SPECD_TEST_BAD_PLUGINS);
    o.model.kv_dtype = subject_.kv_dtype;
    o.draft_models = {{.name = "draft", .path = subject_.draft, .kv_dtype = subject_.kv_dtype}};
    return o;
  }

  // At least two pages each, so that a prefix can hit.
  std::vector<std::string> long_prompts(size_t n) const {
    const std::vector<std::string> parts = prompts();
    std::vector<std::string> out;
    for (size_t i = 0; out.size() < n; ++i) {
      const size_t round = i / parts.size();
      std::string text = parts[i % parts.size()] + parts[(i + 1 + round) % parts.size()];
      if (round > 7) text += parts[(i + round / 7) % parts.size()];
      out.push_back(text.substr(0, subject_.prompt_bytes));
    }
    return out;
  }

  Request request_of(size_t prompt, int sampling, const std::string& route_name) const {
    Request r = request(prompts_[prompt], route_name, kMatrixTokens, sampling > 0 ? 0.8f : 0,
                        sampling > 0 ? 77 + prompt : 0);
    if (sampling == 2) {
      r.sampling.top_k = 100;
      r.sampling.min_p = 0.01f;
      r.sampling.repetition_penalty = 1.2f;
      r.sampling.frequency_penalty = 0.4f;
      r.sampling.presence_penalty = -0.3f;
      r.sampling.typical_p = 0.95f;
      r.min_tokens = kMatrixTokens / 2;
      for (int32_t token = 100; token < 140; ++token) {  // every family has them
        r.logit_bias.push_back({.token = token, .add = token % 2 == 0 ? 1.5f : -4.0f});
      }
    }
    return r;
  }

  // Plain decoding of everything, one at a time, on an engine that has nothing else.
  void plain() {
    EngineOptions o = base();
    o.draft_models.clear();
    o.model.prefix_cache = false;
    start(o);
    plain_.clear();
    for (int sampling = 0; sampling < kLevels[kSampling]; ++sampling) {
      std::vector<Request> requests;
      for (size_t i = 0; i < prompts_.size(); ++i)
        requests.push_back(request_of(i, sampling, "off"));
      for (const Request& each : requests) plain_[sampling].push_back(run(each));
      recording_[sampling] = record(requests, plain_[sampling]);
    }
    audit();
  }

  void start_matrix(bool starved) {
    EngineOptions o = base();
    o.tensor_parallel_size = subject_.n_ranks;
    o.pipeline_parallel_size = subject_.n_stages;
    o.max_sequences = 16;
    if (starved) {
      o.model.kv_bytes_max = 0;
      o.model.kv_pages = subject_.starved_pages;
    }
    for (const int32_t k : kLengths) {
      const std::string suffix = "_k" + std::to_string(k);
      o.routes.push_back(route("prompt_lookup" + suffix,
                               plugin("specd.drafter.prompt_lookup", {{"num_speculative_tokens", k},
                                                                      {"prompt_lookup_min", 1},
                                                                      {"prompt_lookup_max", 5}}),
                               k));
      o.routes.push_back(route(
          "draft_target" + suffix,
          plugin("specd.drafter.draft_target", {{"model", "draft"}, {"draft_tokens", k}}), k));
      // Trees: k is their depth, the window's columns, the tokens of a copy.
      const Json suffix_config = {{"max_spec_tokens", 2 * k}, {"max_branches", 2}};
      const Json lookahead_config = {{"window", k}, {"ngram", 3}, {"guesses", 2}};
      o.routes.push_back(
          route("suffix" + suffix, plugin("specd.drafter.suffix", suffix_config), 2 * k));
      o.routes.push_back(route("lookahead" + suffix,
                               plugin("specd.drafter.lookahead", lookahead_config), 2 * (k + 2)));
      o.routes.push_back(route(
          "draft_tree" + suffix,
          plugin("specd.drafter.draft_target", {{"model", "draft"},
                                                {"draft_tokens", k},
                                                {"tree", {{"branches", 3}, {"nodes", 2 * k + 2}}}}),
          2 * k + 2));
      o.routes.push_back(
          route("cascade" + suffix,
                plugin("specd.drafter.cascade",
                       {{"drafters",
                         {{{"plugin", "specd.drafter.suffix"}, {"config", suffix_config}},
                          {{"plugin", "specd.drafter.lookahead"}, {"config", lookahead_config}}}},
                        {"min_nodes", {2}}}),
                2 * (k + 2)));
      o.routes.push_back(route(
          "garbage" + suffix,
          {.plugin = "specd.test.drafter_bad", .factory = "bad", .config = {{"mode", "garbage"}}},
          k));
      for (const int percent : {0, 50, 100}) {
        for (int sampling = 0; sampling < kLevels[kSampling]; ++sampling) {
          o.routes.push_back(route("replay" + std::to_string(percent) + suffix + "_" +
                                       kSamplings[static_cast<size_t>(sampling)],
                                   plugin("specd.drafter.replay", {{"file", recording_[sampling]},
                                                                   {"acceptance", percent / 100.0},
                                                                   {"draft_tokens", k},
                                                                   {"seed", 5}}),
                                   k));
        }
      }
    }
    if (records_steps_) {
      o.routes.push_back(
          route("taps", plugin("specd.test.drafter_taps", {{"file", folder_ + "/taps"}}), 2));
    }
    start(o);
    if (records_steps_) {
      recorder_.reset();
      recorder_ = std::make_unique<StepRecorder>(folder_ + "/steps");
      const int32_t n_layers = load_model_config(subject_.target).value().n_layers;
      // The taps of drafter_taps.
      replay_arguments_ = " " + subject_.target + " " + o.devices.front() + " 1 " +
                          std::to_string(o.step_tokens_max) + " " +
                          std::to_string(engine_->model().kv_pages_total) + " " +
                          std::to_string(n_layers + 1) + " 1";
    }
    for (const RouteOptions& each : o.routes) {
      ASSERT_EQ(report(each.name).state, RouteState::kLive)
          << each.name << ": " << report(each.name).refused.to_string();
    }
  }

  static std::string route_of(const Case& c) {
    const std::string& drafter = kDrafters[static_cast<size_t>(c[kDrafter])];
    if (drafter == "off") return drafter;
    return drafter + "_k" + std::to_string(kLengths[static_cast<size_t>(c[kLength])]) +
           (drafter.starts_with("replay") ? "_" + kSamplings[static_cast<size_t>(c[kSampling])]
                                          : "");
  }

  void run_case(const Case& c, size_t number) {
    const std::string what = name_of(c);
    const int sampling = c[kSampling];
    const size_t concurrency = kConcurrencies[static_cast<size_t>(c[kConcurrency])];
    const std::string salt = "case " + std::to_string(number);
    std::vector<Request> requests;
    std::vector<size_t> prompt_of;
    // Every prompt twice where there is room for it, so that sixteen run side by side.
    const size_t n = std::max(prompts_.size(), concurrency);
    for (size_t i = 0; i < n; ++i) {
      prompt_of.push_back(i % prompts_.size());
      requests.push_back(request_of(prompt_of.back(), sampling, route_of(c)));
      requests.back().cache_salt = c[kPrefix] == 1 ? salt : salt + "/" + std::to_string(i);
    }
    if (c[kPrefix] == 1) {
      for (const Request& each : requests) {
        Request first = each;
        first.route = "off";
        first.max_tokens = 1;
        first.min_tokens = 0;
        run(first);
      }
    }
    int64_t hits = 0;
    for (size_t begin = 0; begin < n; begin += concurrency) {
      const size_t end = std::min(n, begin + concurrency);
      const std::vector<Outcome> outcomes =
          run_all({requests.begin() + static_cast<ptrdiff_t>(begin),
                   requests.begin() + static_cast<ptrdiff_t>(end)});
      for (size_t i = begin; i < end; ++i) {
        const Outcome& got = outcomes[i - begin];
        const Outcome& expected = plain_[sampling][prompt_of[i]];
        ASSERT_EQ(got.tokens, expected.tokens) << what << ", prompt " << prompt_of[i];
        ASSERT_EQ(got.text, expected.text) << what << ", prompt " << prompt_of[i];
        ASSERT_EQ(got.finish, expected.finish) << what << ", prompt " << prompt_of[i];
        hits += got.usage.cached_prompt_tokens;
      }
    }
    if (c[kPrefix] == 1 && c[kMemory] == 0) {
      EXPECT_GT(hits, 0) << what;
    }
    if (c[kPrefix] == 0 && c[kMemory] == 0) {
      EXPECT_EQ(hits, 0) << what << ": another salt was hit";
    }
  }

  void run_cases(const Subject& subject, std::vector<Case> cases, size_t n_prompts) {
    if (kSanitized) cases = hardest_of_each_drafter(cases);
    subject_ = subject;
    prompts_ = long_prompts(n_prompts);
    plain();
    std::map<std::string, uint64_t> accepted;
    for (const bool starved : {false, true}) {
      const auto is_elsewhere = [&](const Case& c) { return (c[kMemory] == 1) != starved; };
      if (std::all_of(cases.begin(), cases.end(), is_elsewhere)) continue;
      start_matrix(starved);
      if (records_steps_) run_taps();  // first, so that changes of its outputs are replayed soon
      std::set<std::string> drafters;
      for (size_t i = 0; i < cases.size(); ++i) {
        if (is_elsewhere(cases[i])) continue;
        run_case(cases[i], i);
        if (HasFatalFailure()) return;
        drafters.insert(kDrafters[static_cast<size_t>(cases[i][kDrafter])]);
      }
      audit();
      if (records_steps_) compute_again();
      const EngineReport status = engine_->status();
      if (starved) {
        EXPECT_GT(status.preemptions, 0u);
      } else {
        EXPECT_EQ(status.preemptions, 0u);
      }
      std::map<std::string, uint64_t> drafted, here, discarded;
      for (const RouteReport& each : engine_->routes()) {
        const std::string drafter = each.name().substr(0, each.name().find("_k"));
        drafted[drafter] += each.counts.drafted;
        here[drafter] += each.counts.accepted;
        accepted[drafter] += each.counts.accepted;
        discarded[drafter] += each.counts.discarded;
      }
      for (const std::string& each : drafters) {
        if (each != "off" && each != "garbage") {
          EXPECT_GT(drafted[each], 0u) << each;
        }
      }
      if (drafters.contains("cascade")) {
        EXPECT_GT(discarded["cascade"], 0u) << "no window of lookahead, so it never proposed";
      }
      EXPECT_EQ(drafted["replay100"], here["replay100"]);
      EXPECT_EQ(here["replay0"], 0u);
    }
    // Too few tokens for something to be sure of acceptance.
    if (kSanitized || subject.n_ranks * subject.n_stages > 1) return;
    for (const Case& c : cases) {
      const std::string& each = kDrafters[static_cast<size_t>(c[kDrafter])];
      if (each != "off" && each != "garbage" && each != "replay0") {
        EXPECT_GT(accepted[each], 0u) << each;
      }
    }
  }

  // A drafter that reads taps and asks for the target's most likely tokens.
  void run_taps() {
    for (int sampling = 0; sampling < kLevels[kSampling]; ++sampling) {
      std::vector<Request> requests;
      for (size_t i = 0; i < prompts_.size(); ++i) {
        requests.push_back(request_of(i, sampling, "taps"));
      }
      expect_identical(run_all(requests), plain_[sampling], "taps");
    }
    EXPECT_EQ(report("taps").counts.lost, 0u);
  }

  // What the engine's worker computed, by a worker of another process.
  void compute_again() {
    const StepRecordCounts counts = recorder_->close();
    EXPECT_EQ(replay(folder_ + "/steps"), std::to_string(counts.runs));
    EXPECT_GT(engine_->status().kv_moves, 0u);
    EXPECT_GE(counts.moved_slots, engine_->status().kv_moves);
    EXPECT_GT(counts.penalized, 0u);
    EXPECT_GT(counts.top, 0u);
    EXPECT_GT(counts.tap_rows, 0u);
    if (options().devices.front() != "cpu") {
      EXPECT_GT(counts.picked, 0u);
    }
    expect_sensitive();
  }

  // What step_replay prints, until its first complaint.
  std::string replay(const std::string& record) const {
    const std::string command =
        std::string(SPECD_TEST_STEP_REPLAY) + " " + record + replay_arguments_ + " 2>&1";
    FILE* out = popen(command.c_str(), "r");
    if (out == nullptr) return "popen failed";
    char line[256] = "nothing";
    const bool has_line = std::fgets(line, sizeof(line), out) != nullptr;
    const bool is_good = pclose(out) == 0;
    const std::string text(line, has_line ? std::strcspn(line, "\n") : std::strlen(line));
    return is_good ? text : "failed: " + text;
  }

  // The control: the replay notices one changed bit of every kind of output, a token that no
  // vocabulary has, and KV that was not moved.
  void expect_sensitive() {
    const auto with_change = [this](const auto& change) {
      const std::string path = folder_ + "/changed";
      StepRecordReader reader(folder_ + "/steps");
      StepRecordWriter writer(path);
      bool is_changed = false;
      for (StepRecordEntry entry; !is_changed && reader.next(entry);) {
        is_changed = entry.kind == StepRecordKind::kRun && change(entry);
        writer.add(entry);
      }
      EXPECT_TRUE(is_changed);
      writer.close();
      return replay(path);
    };
    const auto flip = [](auto& column) {
      if (column.empty()) return false;
      unsigned char first = 0;
      std::memcpy(&first, column.data(), 1);
      first ^= 1;
      std::memcpy(column.data(), &first, 1);
      return true;
    };
    const auto expect = [](const std::string& replayed, const std::string& complaint) {
      EXPECT_TRUE(replayed.starts_with("failed: " + complaint)) << replayed;
    };
    expect(with_change([&](StepRecordEntry& e) { return flip(e.output.drawn); }), "drawn of run ");
    expect(with_change([&](StepRecordEntry& e) { return flip(e.top); }), "top of run ");
    for (const size_t tap : {0u, 1u}) {
      expect(with_change([&](StepRecordEntry& e) { return flip(e.taps.at(tap)); }),
             "tap " + std::to_string(tap) + " of run ");
    }
    const auto damage = [](StepRecordEntry& e) {
      e.input.rows.token[0] = INT32_MAX;
      return true;
    };
    expect(with_change(damage), "run 0: rows.token[0] is 2147483647, expected 0..");

    StepRecordReader reader(folder_ + "/steps");
    StepRecordWriter writer(folder_ + "/unmoved");
    for (StepRecordEntry entry; reader.next(entry);) {
      if (entry.kind == StepRecordKind::kRun) writer.add(entry);
    }
    writer.close();
    expect(replay(folder_ + "/unmoved"), "");
  }

  bool records_steps_ = false;
  std::unique_ptr<StepRecorder> recorder_;
  std::string replay_arguments_;  // after the record
  std::vector<std::string> prompts_;
  Subject subject_;
  std::map<int, std::vector<Outcome>> plain_;  // by sampling
  std::map<int, std::string> recording_;
};

TEST(CoveringArray, every_pair_of_levels_meets) {
  const std::vector<Case> cases = every_pair();
  for (size_t f = 0; f < kFactors; ++f) {
    for (size_t g = f + 1; g < kFactors; ++g) {
      for (int a = 0; a < kLevels[f]; ++a) {
        for (int b = 0; b < kLevels[g]; ++b) {
          EXPECT_TRUE(std::any_of(cases.begin(), cases.end(),
                                  [&](const Case& c) { return c[f] == a && c[g] == b; }))
              << f << "=" << a << " with " << g << "=" << b;
        }
      }
    }
  }
  EXPECT_LT(cases.size(), 70u);
}

const Subject kPico = {std::string(SPECD_TEST_ZOO) + "/pico-target",
                       std::string(SPECD_TEST_ZOO) + "/pico-draft", 4096, 16};

TEST_F(IdentityMatrix, every_pair_of_settings) { run_cases(kPico, every_pair(), kPrompts); }

// One thread there, two here.
TEST_F(IdentityMatrix, recorded_steps_give_the_same_bits_in_another_process) {
  records_steps_ = true;
  run_cases(kPico, hardest_of_each_drafter(every_pair()), 3);
}

// The steps that two ranks computed together, by one.
TEST_F(IdentityMatrix, two_ranks_are_one) {
  if (!has_devices(4)) GTEST_SKIP() << "ranks need a device each";
  records_steps_ = true;
  Subject two = kPico;
  two.n_ranks = 2;
  run_cases(two, hardest_of_each_drafter(every_pair()), 3);
}

TEST_F(IdentityMatrix, two_stages_of_two_ranks_are_one) {
  if (!has_devices(4)) GTEST_SKIP() << "ranks need a device each";
  if (kSanitized) GTEST_SKIP() << "slow; RankThreads has stages too";
  Subject stages = kPico;
  stages.n_ranks = stages.n_stages = 2;
  run_cases(stages, hardest_of_each_drafter(every_pair()), 2);
}

TEST_F(IdentityMatrix, every_pair_of_settings_with_numerics_bf16) {
  if (kSanitized) GTEST_SKIP() << "the same way as with float32, and slow";
  if (!kernels::bf16_available()) GTEST_SKIP() << "this processor has no AVX-512 BF16";
  if (options().devices.front() != "cpu") GTEST_SKIP() << "bf16 is for the CPU";
  Subject bf16 = kPico;
  bf16.numerics = Numerics::kBf16;
  run_cases(bf16, every_pair(), 3);
}

// Over a cache of 8 bits. Trained heads are in heads_test.cc.
class QuantizedMatrix : public IdentityMatrix,
                        public testing::WithParamInterface<QuantizedSubject> {};

TEST_P(QuantizedMatrix, every_pair_of_settings) {
  if (kSanitized) GTEST_SKIP() << "slow; forwards over codes run in core_model_test too";
  if (!has_numpy()) GTEST_SKIP() << "python3-numpy is missing";
  Subject quantized_pico = kPico;
  quantized_pico.target = quantized("pico-target", GetParam().options, folder_);
  quantized_pico.draft = quantized("pico-draft", GetParam().options, folder_);
  quantized_pico.kv_dtype = GetParam().kv_dtype;
  run_cases(quantized_pico, every_pair(), 2);
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizedMatrix,
                         testing::Values(QuantizedSubject{"w8a8", "w8a8", KvDType::kInt8},
                                         QuantizedSubject{"w4a16", "w4a16 --group 64",
                                                          KvDType::kF8E4M3},
                                         QuantizedSubject{"fp8", "fp8", KvDType::kF8E4M3}),
                         [](const auto& subject) { return subject.param.name; });

// Each drafts for itself: the smallest there is with its tokens.
class FamilyMatrix : public IdentityMatrix, public testing::WithParamInterface<std::string> {};

TEST_P(FamilyMatrix, every_pair_of_settings) {
  const std::string folder = family_folder(folder_, GetParam());
  run_cases({folder, folder, 140, 30}, every_pair(), kPrompts);
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyMatrix, testing::ValuesIn(matrix_families()),
                         [](const auto& family) { return family.param; });

// Biases, windows and norms of heads; the draft model is shared too.
class RankMatrix : public IdentityMatrix, public testing::WithParamInterface<std::string> {};

TEST_P(RankMatrix, four_ranks_are_one) {
  if (!has_devices(4)) GTEST_SKIP() << "ranks need a device each";
  const std::string folder = family_folder(folder_, GetParam());
  run_cases({folder, folder, 140, 30, Numerics::kStrict, 4}, hardest_of_each_drafter(every_pair()),
            kPrompts);
}

INSTANTIATE_TEST_SUITE_P(
    Families, RankMatrix,
    testing::ValuesIn(kSanitized ? std::vector<std::string>{"mistral"}
                                 : std::vector<std::string>{"llama_bias", "mistral", "qwen3"}),
    [](const auto& family) { return family.param; });

// One test for each drafter: they run side by side, and what fails is run again alone.
class FullProduct : public IdentityMatrix, public testing::WithParamInterface<std::string> {};

TEST_P(FullProduct, every_setting_with_every_other) {
  if (std::getenv("SPECD_NIGHTLY") == nullptr) GTEST_SKIP() << "SPECD_NIGHTLY is not set";
  std::vector<Case> cases = full_product();
  std::erase_if(cases, [](const Case& c) {
    return kDrafters[static_cast<size_t>(c[kDrafter])] != GetParam();
  });
  run_cases(kPico, cases, 100);
}

INSTANTIATE_TEST_SUITE_P(Drafters, FullProduct, testing::ValuesIn(kDrafters),
                         [](const auto& drafter) { return drafter.param; });

}  // namespace
}  // namespace specd
