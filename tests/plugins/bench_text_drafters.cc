// Cost of the drafters that copy text, through the plugin's table, at contexts of 1k and 128k
// tokens. Run bench_text_drafters; it prints a table. Goals: propose() of up to 16 tokens <= 0.4
// us, at 128k <= 1.5 times that at 1k; update() <= 0.2 us a token.
//
//   propose    the same call repeatedly, at the end of a known passage: 16 tokens
//   proposing  one call after every update() of 4 tokens: the cost in a step, with caches as the
//              update left them; mean over all places of the text, drafts of any length
//   update     per token, in calls of 4
//
// Figures are CPU time of this thread, the median of several runs, which other load affects least.
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>

namespace {

using specd::sdk::FakeConfig;
using specd::sdk::FakeHost;
using specd::sdk::GuardedColumn;

// The tables of one instance and one sequence, without the checks of the fake host's drivers.
class Rig {
 public:
  Rig(const std::string& plugin, const std::string& id, const FakeConfig& config, uint32_t vocab,
      std::size_t context, std::size_t more)
      : module_(SPECD_TEST_BUNDLES "/" + plugin + "/" + plugin + ".so") {
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
      text_.push_back(left > 0 ? (--left, text_[copy++]) : static_cast<int32_t>(random() % vocab));
    }
    const specd_factory& factory = module_.factory(id);
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
    const uint64_t tenant = 0;
    begin.tenant = &tenant;
    api_->begin(self_, &begin);
    n_ = context;
  }
  ~Rig() {
    specd_end_args end{};
    end.struct_size = sizeof end;
    end.batch = &batch_;
    api_->end(self_, &end);
    api_->deactivate(self_);
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
    const uint32_t row_offsets[2] = {0, static_cast<uint32_t>(rows)};
    a.n_rows = row_offsets[1];
    a.batch = &batch_;
    a.row_offsets = row_offsets;
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

struct Case {
  const char* name;
  const char* plugin;
  const char* id;
  FakeConfig config;
  uint32_t vocab = 32000;  // 1: one token repeated
};

std::vector<Case> cases() {
  const auto pool = [](bool oldest, bool shared) {
    return FakeConfig()
        .set("max_draft_len", 16)
        .set("max_matching_ngram_size", 2)
        .set("is_use_oldest", oldest)
        .set("is_public_pool", shared);
  };
  const char* const lookup = "drafter_prompt_lookup";
  const char* const suffix = "drafter_suffix";
  return {{"lookup, suffix 2..4", lookup, "ngram",
           FakeConfig()
               .set("num_speculative_tokens", 16)
               .set("prompt_lookup_min", 2)
               .set("prompt_lookup_max", 4)},
          {"lookup, pool 1..2, oldest", lookup, "ngram", pool(true, false)},
          {"lookup, public pool, oldest", lookup, "ngram", pool(true, true)},
          {"lookup, pool 1..2, newest", lookup, "ngram", pool(false, false)},
          {"suffix", suffix, "suffix", FakeConfig().set("max_spec_factor", 4)},
          {"suffix, 4 branches", suffix, "suffix",
           FakeConfig().set("max_spec_factor", 4).set("max_branches", 4)},
          {"suffix, one token", suffix, "suffix", FakeConfig(), 1}};
}

double cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Figures {
  double propose, proposing, update;
  double drafted, drafted_in_steps;
};

Figures measure(const Case& c, std::size_t context) {
  // Enough text that the context grows by at most an eighth at 128k.
  const std::size_t more = std::max<std::size_t>(1024, context / 8);
  const int runs = context > 4096 ? 9 : 101;
  std::vector<double> propose, update, step;
  Figures figures{};
  for (int run = 0; run < runs; ++run) {
    double drafted = 0, steps = 0;
    Rig updates(c.plugin, c.id, c.config, c.vocab, context, more);
    double from = cpu_ns();
    for (; !updates.done(); ++steps) updates.update(4);
    update.push_back((cpu_ns() - from) / steps);

    Rig both(c.plugin, c.id, c.config, c.vocab, context, more);
    from = cpu_ns();
    while (!both.done()) {
      both.update(4);
      drafted += both.propose();
    }
    step.push_back((cpu_ns() - from) / steps);
    figures.drafted_in_steps = drafted / steps;

    Rig again(c.plugin, c.id, c.config, c.vocab, context, more);
    while (!again.done() && again.propose() < 16) again.update(1);
    constexpr int kCalls = 20000;
    from = cpu_ns();
    for (int i = 0; i < kCalls / runs; ++i) figures.drafted = again.propose();
    propose.push_back((cpu_ns() - from) / (kCalls / runs));
  }
  figures.propose = median(propose);
  figures.update = median(update) / 4;
  figures.proposing = std::max(0.0, median(step) - median(update));
  return figures;
}

}  // namespace

// An argument selects the cases whose names contain it.
int main(int argc, char** argv) {
  std::printf("%-28s %8s | %10s %10s %10s | %8s %8s\n", "ns", "context", "propose", "proposing",
              "update", "drafted", "in steps");
  for (const Case& c : cases()) {
    if (argc > 1 && std::string(c.name).find(argv[1]) == std::string::npos) continue;
    Figures figures[2];
    int at = 0;
    for (const std::size_t context : {std::size_t{1024}, std::size_t{131072}}) {
      const Figures f = figures[at++] = measure(c, context);
      std::printf("%-28s %8zu | %10.0f %10.0f %10.0f | %8.1f %8.1f\n", c.name, context, f.propose,
                  f.proposing, f.update, f.drafted, f.drafted_in_steps);
    }
    std::printf("%-28s %8s | %10.2f %10.2f %10.2f |\n", "", "ratio",
                figures[1].propose / figures[0].propose,
                figures[1].proposing / figures[0].proposing, figures[1].update / figures[0].update);
  }
}
