// Error handling of the C++ wrapper, and the fake host that plugin tests rely on.
#include <gtest/gtest.h>
#include <specd/sdk/fake_host.h>

#define SPECD_PLUGIN_ID "specd.test.sdk"
#define SPECD_PLUGIN_VERSION "0.0.1"
#define SPECD_PLUGIN_VENDOR ""
#define SPECD_PLUGIN_LICENSE "Apache-2.0"
#include <specd/sdk/every_way.h>
#include <specd/sdk/plugin.h>
#include <specd/sdk/pool.h>
#include <specd/sdk/rng.h>

#include <map>
#include <set>

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDraft;
using sdk::FakeDrafter;
using sdk::FakeHost;

// Throws where and what its configuration says; `victim` limits it to one sequence id.
class Thrower final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = nullptr;

  static void describe(const sdk::Context& context, specd_drafter_caps& caps) {
    caps.max_nodes = caps.max_depth = 4;
    if (context.config.boolean("tree", false)) caps.tree_mode = SPECD_TREE_VARIABLE;
    act(context.config.string("describe", ""));
  }
  explicit Thrower(const sdk::Context& context)
      : Drafter(context),
        begin_(context.config.string("begin", "")),
        update_(context.config.string("update", "")),
        propose_(context.config.string("propose", "")),
        activate_(context.config.string("activate", "")),
        victim_(context.config.i64("victim", 0, 0, 1000)) {
    act(context.config.string("create", ""));
  }
  ~Thrower() { ++destroyed; }
  void activated() { act(activate_); }

  struct Sequence {
    explicit Sequence(Thrower&) { ++alive; }
    ~Sequence() { --alive; }
    uint64_t id = 0;
    int32_t rows = 0;
  };
  void begin(Sequence& s, const sdk::Begin& in) {
    s.id = in.seq_id;
    act_for(s, begin_);
  }
  void update(Sequence& s, const sdk::Rows& rows) {
    act_for(s, update_);
    s.rows += rows.size();
  }
  void propose(Sequence& s, sdk::Proposal& out) {
    out.push(1);
    act_for(s, propose_);
    while (out.push(2)) {
    }
  }
  static int alive, destroyed;

 private:
  static void act(const std::string& what) {
    if (what == "error") throw sdk::Error(SPECD_E_DATA, "planned");
    if (what == "ok") throw sdk::Error(SPECD_OK, "an error that says OK");
    if (what == "memory") throw std::bad_alloc();
    if (what == "standard") throw std::runtime_error("standard");
    if (what == "other") throw 7;
  }
  void act_for(const Sequence& s, const std::string& what) {
    if (victim_ == 0 || s.id == static_cast<uint64_t>(victim_)) act(what);
  }
  std::string begin_, update_, propose_, activate_;
  int64_t victim_;
};
int Thrower::alive = 0;
int Thrower::destroyed = 0;

constexpr specd_factory kThrower = sdk::drafter<Thrower>("thrower", "throws");

struct Expected {
  const char* what;
  specd_status status;
  const char* text;
};
constexpr Expected kExpected[] = {{"error", SPECD_E_DATA, "planned"},
                                  {"ok", SPECD_E_INTERNAL, "an error that says OK"},
                                  {"memory", SPECD_E_EXHAUSTED, "out of memory"},
                                  {"standard", SPECD_E_INTERNAL, "standard"},
                                  {"other", SPECD_E_INTERNAL, "unknown type"}};

TEST(Border, exception_of_any_kind_becomes_a_status_and_a_report) {
  for (const char* where : {"describe", "create", "activate"}) {
    for (const Expected& expected : kExpected) {
      FakeHost host;
      FakeDrafter drafter(host, kThrower, FakeConfig().set(where, expected.what));
      EXPECT_EQ(drafter.status(), expected.status) << where << " " << expected.what;
      ASSERT_EQ(host.reports().size(), 1u);
      EXPECT_EQ(host.reports()[0].seq_index, -1);
      EXPECT_NE(host.reports()[0].text.find(expected.text), std::string::npos);
    }
  }
}

TEST(Border, failing_sequence_leaves_the_others_alone_and_then_stays_silent) {
  for (const char* where : {"begin", "update", "propose"}) {
    for (const Expected& expected : kExpected) {
      FakeHost host;
      {
        FakeDrafter drafter(host, kThrower,
                            FakeConfig().set(where, expected.what).set("victim", 2));
        const int a = drafter.begin({1}), b = drafter.begin({1}), c = drafter.begin({1});
        if (std::string(where) == "begin") {
          EXPECT_EQ(drafter.sequence_status(b), expected.status);
          EXPECT_EQ(Thrower::alive, 2);
          EXPECT_EQ(host.reports().size(), 1u);
          continue;
        }
        drafter.commit_batch({{a, {1}, {}}, {b, {1}, {}}, {c, {1}, {}}});
        auto drafts = drafter.propose_batch({a, b, c});
        EXPECT_EQ(drafts[0].token, (std::vector<int32_t>{1, 2, 2, 2}));
        EXPECT_EQ(drafts[1].count, 0);
        EXPECT_EQ(drafts[2].token, (std::vector<int32_t>{1, 2, 2, 2}));
        EXPECT_EQ(std::string(where) == "update" ? drafter.sequence_status(b) : drafts[1].status,
                  expected.status);
        ASSERT_EQ(host.reports().size(), 1u);
        EXPECT_EQ(host.reports()[0].seq_index, 1);
        // Not called again, and no second report.
        drafter.commit(b, {1});
        EXPECT_EQ(drafter.propose(b).count, 0);
        EXPECT_EQ(host.reports().size(), 1u);
      }
      EXPECT_EQ(Thrower::alive, 0);
      EXPECT_TRUE(host.violations().empty());
    }
  }
}

TEST(Border, instances_and_sequences_are_destroyed_once) {
  FakeHost host;
  const int before = Thrower::destroyed;
  {
    FakeDrafter drafter(host, kThrower, FakeConfig());
    drafter.begin({1});
    drafter.end(drafter.begin({1}));
    EXPECT_EQ(Thrower::alive, 1);
  }
  EXPECT_EQ(Thrower::alive, 0);
  EXPECT_EQ(Thrower::destroyed, before + 1);
}

TEST(Border, push_with_a_parent_needs_a_variable_tree) {
  FakeHost host;
  FakeDrafter chain(host, kThrower, FakeConfig());
  const FakeDraft draft = chain.propose(chain.begin({1}), 2);
  EXPECT_EQ(draft.token, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(draft.parent, (std::vector<int32_t>{-1, 0}));  // preset, untouched
  EXPECT_TRUE(host.violations().empty());
}

TEST(Entry, stores_the_table_always_and_compares_the_whole_layout) {
  static constexpr specd_plugin table{};
  const specd_plugin* out = nullptr;
  const std::string mine = SPECD_ABI_LAYOUT;
  EXPECT_EQ(sdk::enter(mine.c_str(), &table, &out), SPECD_OK);
  for (const std::string& other :
       {mine + "0", mine.substr(1), std::string(), "v1" + mine.substr(2)}) {
    out = nullptr;
    EXPECT_EQ(sdk::enter(other.c_str(), &table, &out), SPECD_E_ABI) << other;
    EXPECT_EQ(out, &table);
  }
  EXPECT_EQ(sdk::enter(nullptr, &table, &out), SPECD_E_ABI);
  EXPECT_EQ(sdk::enter(mine.c_str(), &table, nullptr), SPECD_E_INVALID);
}

TEST(Config, getters_give_defaults_check_ranges_and_name_the_key) {
  const FakeConfig fake = FakeConfig().set("a.b", 5).set("x", 0.5).set("s", "text").set("f", true);
  const specd_config view = fake.view();
  const sdk::Config config(&view);
  EXPECT_EQ(config.i64("a.b", 1, 0, 9), 5);
  EXPECT_EQ(config.i64("none", 1, 0, 9), 1);
  EXPECT_EQ(config.f64("x", 1, 0, 1), 0.5);
  EXPECT_EQ(config.f64("a.b", 1, 0, 9), 5.0);
  EXPECT_EQ(config.string("s", ""), "text");
  EXPECT_TRUE(config.boolean("f", false));
  EXPECT_TRUE(config.has("a"));
  EXPECT_TRUE(config.has("s"));
  EXPECT_FALSE(config.has("b"));
  const auto refusal = [](auto&& read) {
    try {
      read();
    } catch (const sdk::Error& error) {
      EXPECT_EQ(error.status(), SPECD_E_CONFIG);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal([&] { config.i64("a.b", 1, 6, 9); }),
            "a.b: expected an integer from 6 to 9, found 5");
  EXPECT_EQ(refusal([&] { config.i64("s", 1, 6, 9); }), "s: expected an integer");
  EXPECT_NE(refusal([&] { config.f64("x", 1, 0.6, 9); }).find("x: expected a number"),
            std::string::npos);
  EXPECT_NE(refusal([&] { config.required_string("t"); }).find("t: this key is required"),
            std::string::npos);
}

// ---------------------------------------------------------------- the fake host detects errors

// Writes out of bounds as its mode says, through the C tables.
struct Overrun {
  static inline std::string mode;
  static specd_status describe(const specd_factory*, const specd_host*, const specd_target_info*,
                               const specd_config*, specd_drafter_caps* out) noexcept {
    out->struct_size = sizeof *out;
    out->max_nodes = out->max_depth = 4;
    out->needs = SPECD_NEED_HOST_TOKENS;
    if (mode == "caps") reinterpret_cast<char*>(out + 1)[3] = 0;
    return SPECD_OK;
  }
  static specd_status create(const specd_factory*, const specd_host* host,
                             const specd_create_args* args, specd_drafter** out) noexcept {
    const auto* memory =
        static_cast<const specd_memory*>(host->get_service(host, SPECD_SERVICE_MEMORY));
    void* block = nullptr;
    memory->alloc(host, args->owner, SPECD_DEV_CPU, 0, 8, mode == "align" ? 3 : 8, &block);
    if (mode == "block") static_cast<char*>(block)[8] = 0;
    if (mode == "twice") memory->free(host, args->owner, block);
    if (mode != "leak") memory->free(host, args->owner, block);
    static int dummy;
    *out = reinterpret_cast<specd_drafter*>(&dummy);
    return SPECD_OK;
  }
  static specd_status activate(specd_drafter*, const specd_drafter_grant*) noexcept {
    return SPECD_OK;
  }
  static specd_status begin(specd_drafter*, const specd_begin_args*) noexcept { return SPECD_OK; }
  static specd_status update(specd_drafter*, const specd_update_args*) noexcept { return SPECD_OK; }
  static specd_status propose(specd_drafter*, const specd_propose_args* args) noexcept {
    auto* token = static_cast<int32_t*>(args->out->token->data);
    auto* parent = static_cast<int32_t*>(args->out->parent->data);
    if (mode == "row") token[args->host_node_budget[0]] = 1;
    if (mode == "end") token[4] = 1;
    if (mode == "parent") parent[1] = -1;
    return SPECD_OK;
  }
  static void end(specd_drafter*, const specd_end_args*) noexcept {}
  static void deactivate(specd_drafter*) noexcept {}
  static void destroy(specd_drafter*) noexcept {}
};
constexpr specd_drafter_api kOverrunApi = {sizeof(specd_drafter_api), 0,
                                           &Overrun::describe,        &Overrun::create,
                                           &Overrun::activate,        nullptr,
                                           &Overrun::begin,           &Overrun::update,
                                           &Overrun::propose,         &Overrun::end,
                                           &Overrun::deactivate,      &Overrun::destroy};
constexpr specd_factory kOverrun = {sizeof(specd_factory), 0,      "overrun", "", nullptr,
                                    &kOverrunApi,          nullptr};

TEST(FakeHost, finds_overruns_and_misuse_of_memory) {
  for (const char* mode :
       {"none", "caps", "align", "block", "twice", "leak", "row", "end", "parent"}) {
    Overrun::mode = mode;
    FakeHost host;
    {
      FakeDrafter drafter(host, kOverrun, FakeConfig());
      drafter.propose(drafter.begin({1}), std::string(mode) == "row" ? 2 : 4);
    }
    EXPECT_EQ(host.violations().empty(), std::string(mode) == "none") << mode;
  }
}

TEST(FakeHost, noise_is_keyed_and_zero_when_greedy) {
  FakeHost host;
  specd_sampling greedy = sdk::greedy_sampling(), drawn = sdk::greedy_sampling();
  drawn.flags = 0;
  drawn.seed = 3;
  sdk::FakeBatch batch(host, {{1, 0, nullptr, &greedy}, {2, 1, nullptr, &drawn}});
  sdk::GuardedColumn<int32_t> index(2, 1, 1), position(2, 1, 1);
  index.at(1) = 1;
  position.at(0) = position.at(1) = 9;
  sdk::GuardedColumn<float> first(2, 50), second(2, 50);
  const auto* rng =
      static_cast<const specd_rng*>(host.host()->get_service(host.host(), SPECD_SERVICE_RNG));
  for (auto* out : {&first, &second}) {
    EXPECT_EQ(rng->draw_noise(host.host(), batch.get()->call, index.tensor(), position.tensor(),
                              out->tensor()),
              SPECD_OK);
  }
  int distinct = 0;
  for (std::size_t i = 0; i < 50; ++i) {
    EXPECT_EQ(first.at(0, i), 0.0f);
    EXPECT_EQ(first.at(1, i), second.at(1, i));
    EXPECT_TRUE(std::isfinite(first.at(1, i)));
    distinct += i == 0 || first.at(1, i) != first.at(1, i - 1);
  }
  EXPECT_GT(distinct, 45);
  EXPECT_EQ(rng->uniform(host.host(), batch.get()->call, index.tensor(), position.tensor(), 0,
                         first.tensor()),
            SPECD_E_INVALID);
}

// An instance that has no other purpose than to reach services.
struct Probe final : sdk::Instance {
  explicit Probe(FakeHost& host) : Instance(context_of(host)) {}
  static sdk::Context context_of(FakeHost& host) {
    static const FakeConfig none;
    static const specd_config view = none.view();
    return {host.host(), &host.target(), sdk::Config(&view), host.owner(), "probe", ""};
  }
};

TEST(Noise, decides_as_often_as_asked_and_anew_for_every_root_and_sequence) {
  FakeHost host;
  const Probe probe(host);
  const sdk::Rng rng(probe);
  specd_sampling one = sdk::greedy_sampling(), two = sdk::greedy_sampling();
  one.flags = two.flags = 0;
  one.seed = 3, two.seed = 4;
  const sdk::FakeBatch batch(host, {{1, 0, nullptr, &one}, {2, 1, nullptr, &two}});
  const auto bits_of = [&](uint32_t sequence, int32_t root) {
    sdk::Noise noise(rng, *batch.get(), sequence, root);
    std::vector<bool> bits;
    for (int i = 0; i < 200; ++i) bits.push_back(noise.bernoulli(0.5));  // more than come at once
    return bits;
  };
  EXPECT_EQ(bits_of(0, 7), bits_of(0, 7));
  EXPECT_EQ((std::set<std::vector<bool>>{bits_of(0, 7), bits_of(0, 8), bits_of(1, 7)}.size()), 3u);
  double taken = 0, index[4] = {};
  constexpr int kRoots = 4000;
  for (int32_t root = 0; root < kRoots; ++root) {
    sdk::Noise noise(rng, *batch.get(), 0, root);
    EXPECT_FALSE(noise.bernoulli(0));
    EXPECT_TRUE(noise.bernoulli(1));
    taken += noise.bernoulli(0.3) ? 1 : 0;
    const double weight[4] = {0, 2, 6, 0};
    ++index[noise.categorical(weight, 4)];
  }
  // Four standard errors.
  EXPECT_NEAR(taken, 0.3 * kRoots, 4 * std::sqrt(0.21 * kRoots));
  EXPECT_EQ(index[0] + index[3], 0);
  EXPECT_NEAR(index[1], 0.25 * kRoots, 4 * std::sqrt(0.1875 * kRoots));
  std::vector<float> noise(50), again(50);
  rng.draw_noise(*batch.get(), 1, 9, noise.data(), 50);
  rng.draw_noise(*batch.get(), 1, 9, again.data(), 50);
  EXPECT_EQ(noise, again);
}

TEST(EveryWay, takes_each_way_once_with_its_probability) {
  std::map<std::vector<int>, double> law;
  sdk::EveryWay noise;
  do {
    std::vector<int> way;
    if (noise.bernoulli(0.25)) {
      const double weight[3] = {1, 0, 3};
      way.push_back(static_cast<int>(noise.categorical(weight, 3)));
    }
    way.push_back(noise.bernoulli(1) ? 7 : 8);
    EXPECT_TRUE(law.emplace(way, noise.probability()).second) << "once";
  } while (noise.next());
  EXPECT_EQ(law, (std::map<std::vector<int>, double>{
                     {{7}, 0.75}, {{0, 7}, 0.25 * 0.25}, {{2, 7}, 0.25 * 0.75}}));
  sdk::EveryWay none;
  const double nothing[2] = {0, 0};
  EXPECT_THROW((void)none.categorical(nothing, 2), std::logic_error);
}

TEST(Pool, runs_every_task_once_and_throws_what_one_threw) {
  FakeHost host;
  const Probe probe(host);
  const sdk::Pool pool(probe);
  const specd_sampling greedy = sdk::greedy_sampling();
  const sdk::FakeBatch batch(host, {{1, 0, nullptr, &greedy}});
  EXPECT_GE(pool.width(), 1u);
  std::vector<int> ran(20);
  EXPECT_THROW(pool.run(*batch.get(), 20,
                        [&](uint32_t i) {
                          ++ran[i];
                          if (i == 5) throw sdk::Error(SPECD_E_DATA, "task 5");
                        }),
               sdk::Error);
  EXPECT_EQ(ran, std::vector<int>(20, 1));
}

// Sees the text, its index and the laws.
class Reader final : public sdk::Verifier {
 public:
  static constexpr const char* kSchema = nullptr;
  static void describe(const sdk::Context&, specd_verifier_caps& caps) {
    caps.needs = SPECD_NEED_LAW;
  }
  explicit Reader(const sdk::Context& context) : Verifier(context) {}
  void verify(const sdk::Nodes& nodes, sdk::Verdict& verdict) {
    const sdk::Law law = nodes.law(-1);
    int32_t likeliest = 0;
    for (int32_t token = 1; token < law.vocab_size(); ++token) {
      if (law.p(token) > law.p(likeliest)) likeliest = token;
    }
    if (!nodes.can_draw(0)) throw sdk::Error(SPECD_E_DATA, "node 0 can draw nothing");
    nodes.state() = nodes.index() * 100 + nodes.text_len() * 10 +
                    static_cast<uint32_t>(nodes.text()[nodes.text_len() - 1]);
    verdict.next_token(likeliest);
  }
};

TEST(Verifier, of_one_sequence_sees_its_text_its_index_and_its_laws) {
  static const specd_factory factory = sdk::verifier<Reader>("reader", "");
  FakeHost host;
  sdk::FakeVerifier verifier(host, factory, FakeConfig());
  sdk::FakeTree tree;
  tree.token = {1};
  tree.parent = {-1};
  tree.row_token = {2, 0};
  tree.law = {{-3, -INFINITY, -1}, {0, 0, 0}};
  tree.text = {5, 6, 4};
  sdk::FakeTree other = tree;
  other.law[0] = {7, 5, 6};
  other.text = {9, 8};
  sdk::FakeTree silent = tree;
  silent.law[1] = {-INFINITY, -INFINITY, -INFINITY};
  sdk::FakeTree lawless = tree;
  lawless.law[1] = {};
  const auto verdicts = verifier.verify_batch({tree, other, silent, lawless});
  EXPECT_EQ(verdicts[0].next_token, 2);
  EXPECT_EQ(verdicts[0].state, 34);
  EXPECT_EQ(verdicts[1].next_token, 0);
  EXPECT_EQ(verdicts[1].state, 128);
  EXPECT_EQ(verdicts[2].status, SPECD_E_DATA);
  EXPECT_EQ(verdicts[3].status, SPECD_E_INVALID);
}

TEST(FakeHost, metrics_and_pool_do_what_the_headers_say) {
  FakeHost host;
  const Probe probe(host);
  const sdk::Metric counter(probe, SPECD_METRIC_COUNTER, "hits", "hits");
  const sdk::Metric gauge(probe, SPECD_METRIC_GAUGE, "level", "level");
  counter.record(2);
  counter.record(3);
  counter.record(-1);
  gauge.record(7);
  gauge.record(4);
  EXPECT_EQ(host.metrics().at("hits"), 5);
  EXPECT_EQ(host.metrics().at("level"), 4);
  EXPECT_THROW(sdk::Metric(probe, SPECD_METRIC_GAUGE, "Bad Name", ""), sdk::Error);
  EXPECT_EQ(host.violations().size(), 1u);

  const auto* pool =
      static_cast<const specd_pool*>(host.host()->get_service(host.host(), SPECD_SERVICE_POOL));
  std::vector<int> seen(5, 0);
  pool->run(
      host.host(), nullptr, 5,
      [](void* ctx, uint32_t i) { ++(*static_cast<std::vector<int>*>(ctx))[i]; }, &seen);
  EXPECT_EQ(seen, std::vector<int>(5, 1));
  host.withhold_service(SPECD_SERVICE_POOL);
  EXPECT_EQ(host.host()->get_service(host.host(), SPECD_SERVICE_POOL), nullptr);
}

}  // namespace
}  // namespace specd
