// Cost of prompt lookup through the plugin's table: update() per token and propose() per call, at a
// context of 1k and 128k tokens. Run: bench_prompt_lookup
#include <benchmark/benchmark.h>
#include <specd/sdk/fake_host.h>

#include <random>

namespace {

using specd::sdk::FakeConfig;
using specd::sdk::FakeHost;
using specd::sdk::GuardedColumn;

// The tables of one instance and one sequence, without the checking drivers of the fake host.
class Rig {
 public:
  Rig(const FakeConfig& config, std::size_t context, std::size_t more)
      : module_(SPECD_TEST_BUNDLES "/drafter_prompt_lookup/drafter_prompt_lookup.so") {
    host_.target().vocab_size = 32000;
    host_.target().max_positions = 1u << 20;
    // Prose-like: a third of the tokens continue a copy of an earlier passage.
    std::mt19937 random(1);
    std::size_t copy = 0, left = 0;
    while (text_.size() < context + more) {
      if (left == 0 && text_.size() > 64 && random() % 24 == 0) {
        copy = random() % (text_.size() - 32);
        left = 12;
      }
      text_.push_back(left > 0 ? (--left, text_[copy++]) : static_cast<int32_t>(random() % 32000));
    }
    const specd_factory& factory = module_.factory("ngram");
    api_ = factory.drafter;
    const specd_config view = config.view();
    specd_create_args create{};
    create.struct_size = sizeof create;
    create.target = &host_.target();
    create.config = &view;
    create.owner = host_.owner();
    api_->create(&factory, host_.host(), &create, &self_);
    specd_drafter_grant grant{};
    grant.struct_size = sizeof grant;
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = grant.max_depth = kNodes;
    grant.max_batch = 1;
    grant.max_rows = 16;
    grant.needs = SPECD_NEED_HOST_TOKENS;
    api_->activate(self_, &grant);

    sampling_ = specd::sdk::greedy_sampling();
    batch_.struct_size = sizeof batch_;
    batch_.n_seqs = 1;
    batch_.seq_id = &id_;
    batch_.seq_state = &state_;
    batch_.seq_status = &status_;
    batch_.slot = &slot_;
    specd_begin_args begin{};
    begin.struct_size = sizeof begin;
    begin.attach_mode = SPECD_ATTACH_FRESH;
    begin.batch = &batch_;
    const uint64_t offsets[2] = {0, context};
    begin.token_offsets = offsets;
    begin.tokens = text_.data();
    begin.sampling = &samplings_;
    begin.seq_state = &state_;
    api_->begin(self_, &begin);
    n_ = context;
  }
  ~Rig() {
    specd_end_args end{};
    end.struct_size = sizeof end;
    end.batch = &batch_;
    api_->end(self_, &end);
    api_->destroy(self_);
  }

  bool done() const { return n_ + 4 >= text_.size(); }
  std::size_t size() const { return n_; }

  // One step that committed `rows` tokens.
  void update(int32_t rows) {
    int32_t position[8], node[8];
    for (int32_t r = 0; r < rows; ++r) {
      position[r] = static_cast<int32_t>(n_) - 1 + r;
      node[r] = SPECD_NODE_ROOT;
    }
    specd_update_args a{};
    a.struct_size = sizeof a;
    a.max_rows = static_cast<uint32_t>(rows);
    a.batch = &batch_;
    a.host_count = &rows;
    a.host_position = position;
    a.host_token = &text_[n_ - 1];
    a.host_next_token = &text_[n_];
    a.host_node = node;
    api_->update(self_, &a);
    n_ += static_cast<std::size_t>(rows);
  }

  int32_t propose() {
    const int32_t root = text_[n_ - 1], position = static_cast<int32_t>(n_) - 1, budget = kNodes;
    specd_proposal out{};
    out.struct_size = sizeof out;
    out.node_capacity = kNodes;
    out.n_nodes = count_.tensor();
    out.token = token_.tensor();
    out.parent = parent_.tensor();
    specd_propose_args a{};
    a.struct_size = sizeof a;
    a.batch = &batch_;
    a.host_root_token = &root;
    a.host_root_position = &position;
    a.host_node_budget = &budget;
    a.sampling = &samplings_;
    a.out = &out;
    api_->propose(self_, &a);
    return count_.at(0);
  }

 private:
  static constexpr uint32_t kNodes = 16;
  specd::sdk::FakeModule module_;
  FakeHost host_;
  std::vector<int32_t> text_;
  const specd_drafter_api* api_;
  specd_drafter* self_ = nullptr;
  std::size_t n_ = 0;
  specd_sampling sampling_;
  const specd_sampling* samplings_ = &sampling_;
  uint64_t id_ = 1;
  void* state_ = nullptr;
  specd_status status_ = SPECD_OK;
  uint32_t slot_ = 0;
  specd_batch batch_{};
  GuardedColumn<int32_t> count_{1, 1, 1}, token_{1, kNodes}, parent_{1, kNodes};
};

FakeConfig config_of(int family) {
  if (family == 0) {
    return FakeConfig()
        .set("num_speculative_tokens", 16)
        .set("prompt_lookup_min", 2)
        .set("prompt_lookup_max", 4);
  }
  return FakeConfig()
      .set("max_draft_len", 16)
      .set("max_matching_ngram_size", 2)
      .set("is_use_oldest", family == 1)
      .set("is_public_pool", false);
}
const char* const kFamilies[] = {"suffix 2..4", "pool oldest 1..2", "pool newest 1..2"};

// The time is per step of 4 committed tokens.
void update_4_tokens(benchmark::State& state) {
  const auto context = static_cast<std::size_t>(state.range(1));
  const FakeConfig config = config_of(static_cast<int>(state.range(0)));
  auto rig = std::make_unique<Rig>(config, context, 65536);
  for (auto _ : state) {
    if (rig->done()) {
      state.PauseTiming();
      rig = std::make_unique<Rig>(config, context, 65536);
      state.ResumeTiming();
    }
    rig->update(4);
  }
  state.SetLabel(kFamilies[state.range(0)]);
  state.SetItemsProcessed(state.iterations() * 4);
}

// A whole step: update of 4 tokens, then propose; the time is per step.
void step(benchmark::State& state) {
  const auto context = static_cast<std::size_t>(state.range(1));
  const FakeConfig config = config_of(static_cast<int>(state.range(0)));
  auto rig = std::make_unique<Rig>(config, context, 65536);
  int64_t drafted = 0;
  for (auto _ : state) {
    if (rig->done()) {
      state.PauseTiming();
      rig = std::make_unique<Rig>(config, context, 65536);
      state.ResumeTiming();
    }
    rig->update(4);
    drafted += rig->propose();
  }
  state.SetLabel(kFamilies[state.range(0)]);
  state.counters["drafted_per_step"] =
      static_cast<double>(drafted) / static_cast<double>(state.iterations());
}

// propose() alone, where the text ends in a known passage.
void propose(benchmark::State& state) {
  Rig rig(config_of(static_cast<int>(state.range(0))), static_cast<std::size_t>(state.range(1)),
          65536);
  while (!rig.done() && rig.propose() < 16) rig.update(1);
  int64_t drafted = 0;
  for (auto _ : state) drafted += rig.propose();
  state.SetLabel(kFamilies[state.range(0)]);
  state.counters["drafted_per_call"] =
      static_cast<double>(drafted) / static_cast<double>(state.iterations());
}

const std::vector<std::vector<int64_t>> kCases = {{0, 1, 2}, {1024, 131072}};
BENCHMARK(propose)->ArgsProduct(kCases);
BENCHMARK(update_4_tokens)->ArgsProduct(kCases);
BENCHMARK(step)->ArgsProduct(kCases);

}  // namespace

BENCHMARK_MAIN();
