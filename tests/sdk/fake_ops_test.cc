// The fake host's ops, weights, KV and hidden states. What it computes is compared with the daemon's
// own services, on the same values.
#include <gtest/gtest.h>
#include <specd/sdk/drafter.h>
#include <specd/sdk/fake_host.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/core/services/kv_rig.h"

namespace specd {
namespace {

using sdk::FakeConfig;
using sdk::FakeDrafter;
using sdk::FakeHost;
using Paths = std::vector<std::vector<uint32_t>>;

std::vector<float> some_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-2, 2);
  std::vector<float> all(n);
  for (float& each : all) each = values(random);
  return all;
}
template <typename T>
specd_tensor view(std::vector<T>& values, std::initializer_list<int64_t> shape) {
  const uint8_t code = std::is_same_v<T, float> ? SPECD_DT_FLOAT : SPECD_DT_INT;
  return host_tensor(values.data(), code, sizeof(T) * 8, shape);
}
std::vector<int32_t> rows(size_t n) { return std::vector<int32_t>(n); }

constexpr uint32_t kHeads = 4, kGroups = 2, kDim = 32, kPositions = 30;

// One call of rows() and what follows it.
struct Round {
  KvRows rows;
  uint32_t window = 0;
  std::vector<specd_status> status = std::vector<specd_status>(3);
};

// A host, and the handles of an instance.
struct Side {
  const specd_host* host;
  specd_owner* owner;
  specd_call* call;
  specd_weights* weights;
  specd_kv* kv;

  template <typename Table>
  const Table& table(const char* id) const {
    return *static_cast<const Table*>(host->get_service(host, id));
  }
  const specd_ops& ops() const { return table<specd_ops>(SPECD_SERVICE_OPS); }
  const specd_kv_api& kvs() const { return table<specd_kv_api>(SPECD_SERVICE_KV); }

  // The results of a round in both layers, in the second one those of its queries.
  std::vector<float> attended(const Round& round, uint32_t seed) const {
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> parent;
    for (const auto& each : round.rows.token) {
      offsets.push_back(offsets.back() + static_cast<uint32_t>(each.size()));
    }
    for (const auto& each : round.rows.parent) {
      parent.insert(parent.end(), each.begin(), each.end());
    }
    std::vector<specd_status> of(3, -1);
    const std::vector<uint32_t>& queries = round.rows.queries;
    specd_kv_rows_args add{};
    add.struct_size = sizeof add, add.flags = round.rows.flags, add.n_rows = offsets[3];
    add.row_offsets = offsets.data(), add.parent = parent.empty() ? nullptr : parent.data();
    add.n_queries = static_cast<uint32_t>(queries.size()), add.query_rows = queries.data();
    add.seq_status = of.data();
    EXPECT_EQ(kvs().rows(host, call, kv, &add), SPECD_OK);
    EXPECT_EQ(of, round.status);
    const int64_t width = (kHeads + 2 * kGroups) * kDim, n = offsets[3];
    std::vector<float> all, q_norm = some_floats(kDim, 1), k_norm = some_floats(kDim, 2);
    const specd_tensor q_norm_t = view(q_norm, {kDim}), k_norm_t = view(k_norm, {kDim});
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const bool is_picked = layer == 1 && !queries.empty();
      const int64_t n_out = is_picked ? static_cast<int64_t>(queries.size()) : n;
      std::vector<float> qkv = some_floats(static_cast<size_t>(n * width), 10 * seed + layer), some,
                         out(static_cast<size_t>(n_out) * kHeads * kDim, -1);
      const specd_tensor qkv_t = view(qkv, {n, width}), out_t = view(out, {n_out, kHeads * kDim});
      specd_kv_append_args append{};
      append.struct_size = sizeof append, append.layer = layer, append.n_heads = kHeads;
      append.norm_eps = 1e-5, append.qkv = &qkv_t;
      if (layer == 0) append.q_norm = &q_norm_t, append.k_norm = &k_norm_t;
      EXPECT_EQ(kvs().append(host, call, kv, &append), SPECD_OK);
      for (const uint32_t row : queries) {
        some.insert(some.end(), qkv.begin() + row * width, qkv.begin() + (row + 1) * width);
      }
      const specd_tensor some_t = view(some, {n_out, width});
      specd_kv_attend_args attend{};
      attend.struct_size = sizeof attend, attend.layer = layer, attend.n_heads = kHeads;
      attend.queries = is_picked ? SPECD_ATTEND_QUERIES : SPECD_ATTEND_ALL;
      attend.window = round.window, attend.scale = 0.2;
      attend.qkv = is_picked ? &some_t : &qkv_t, attend.out = &out_t;
      EXPECT_EQ(kvs().attend(host, call, kv, &attend), SPECD_OK);
      all.insert(all.end(), out.begin(), out.end());
      // What append() leaves in the rows of a sequence that has failed means nothing.
      if (of == std::vector<specd_status>(3)) all.insert(all.end(), qkv.begin(), qkv.end());
    }
    return all;
  }
  void keep(const std::vector<uint32_t>& kept, const Paths& paths = {{}, {}, {}}) const {
    std::vector<uint32_t> offsets{0}, path, length(3);
    for (const std::vector<uint32_t>& each : paths) {
      path.insert(path.end(), each.begin(), each.end());
      offsets.push_back(static_cast<uint32_t>(path.size()));
    }
    EXPECT_EQ(kvs().keep(host, call, kv, kept.data(), offsets.data(), path.data()), SPECD_OK);
    EXPECT_EQ(kvs().length(host, call, kv, length.data()), SPECD_OK);
    for (size_t s = 0; s < 3; ++s) EXPECT_EQ(length[s], kept[s] + paths[s].size());
  }
};

// Two hosts with the same batch of three sequences, of which the second is greedy, the weights of a
// model of the zoo, and KV of the same shape.
class FakeServices : public testing::Test {
 protected:
  FakeServices() {
    specd_tensor t{};
    const char* name = nullptr;
    const auto& api = fake_.table<specd_weights_api>(SPECD_SERVICE_WEIGHTS);
    for (uint32_t i = 0; api_.find(rig_.host_, rig_.weights_, nullptr, i, &name, &t) == 0; ++i) {
      const auto* bytes = static_cast<const char*>(t.data);
      host_.weights("weights").add(name, {t.shape, t.shape + t.rank}, t.dtype_code, t.dtype_bits,
                                   std::vector<char>(bytes, bytes + t.byte_capacity));
    }
    const specd_config view = config_.view();
    EXPECT_EQ(api.open(fake_.host, fake_.owner, &view, "weights", &fake_.weights), SPECD_OK);
    host_.set_active(true);
    std::vector<float> inv_freq(kDim / 2, 1);
    for (size_t i = 1; i < inv_freq.size(); ++i) inv_freq[i] = 0.6f * inv_freq[i - 1];
    const specd_kv_open_args args{sizeof args, 2,          kGroups,         kDim,
                                  40,          kPositions, inv_freq.data(), 1.1};
    EXPECT_EQ(rig_.open(args, &daemon_.kv).first, SPECD_OK);
    EXPECT_EQ(fake_.kvs().open(fake_.host, fake_.owner, &args, &fake_.kv), SPECD_OK);
    EXPECT_EQ(host_.memory_used(), 40 * kDim * 4);
    next_call();
  }
  ~FakeServices() override {
    batch_.reset();
    host_.set_active(false);
    for (const uint64_t id : rig_.ids_) host_.end_sequence(id);
    host_.expect_no_memory_held();
    EXPECT_TRUE(host_.violations().empty()) << host_.violations()[0];
  }
  void next_call() {
    rig_.next_call();
    std::vector<sdk::FakeBatch::Item> items;
    for (uint32_t s = 0; s < 3; ++s) {
      items.push_back({rig_.ids_[s], s, nullptr, rig_.sampling_ptr_[s]});
    }
    batch_ = std::make_unique<sdk::FakeBatch>(host_, items);
    fake_.call = batch_->call().handle();
  }
  // Both give the same values.
  void same(const std::function<std::vector<float>(const Side&)>& compute) {
    const std::vector<float> theirs = compute(daemon_), ours = compute(fake_);
    ASSERT_EQ(theirs.size(), ours.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      if (theirs[i] == ours[i] || (std::isnan(theirs[i]) && std::isnan(ours[i]))) continue;
      ASSERT_NEAR(theirs[i], ours[i], 1e-4) << i;
    }
  }
  void compare(const Round& round) {
    ++seed_;
    same([&](const Side& on) { return on.attended(round, seed_); });
  }
  void keep(const std::vector<uint32_t>& kept, const Paths& paths = {{}, {}, {}}) {
    daemon_.keep(kept, paths);
    fake_.keep(kept, paths);
    next_call();
  }

  KvRig rig_{false};
  const specd_weights_api& api_ = *rig_.weights_api_;
  FakeHost host_;
  FakeConfig config_ = FakeConfig().set("weights", "somewhere");
  std::unique_ptr<sdk::FakeBatch> batch_;
  Side daemon_{rig_.host_, &rig_.owner_, &rig_.call_, rig_.weights_, nullptr};
  Side fake_{host_.host(), host_.owner(), nullptr, nullptr, nullptr};
  uint32_t seed_ = 0;
};

TEST_F(FakeServices, every_op_gives_what_the_daemon_gives) {
  same([](const Side& on) {
    const auto& api = on.table<specd_weights_api>(SPECD_SERVICE_WEIGHTS);
    const char* const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                 "model.layers.0.self_attn.k_proj.weight",
                                 "model.layers.0.self_attn.v_proj.weight"};
    specd_matrix* matrix = nullptr;
    specd_tensor norm{}, table{};
    const int64_t hidden = 192;
    EXPECT_EQ(api.matrix(on.host, on.owner, on.weights, names, 3, 320, hidden, &matrix), SPECD_OK);
    EXPECT_EQ(api.tensor(on.host, on.owner, on.weights, "model.norm.weight", 1, &hidden,
                         SPECD_DT_FLOAT, 32, &norm),
              SPECD_OK);
    EXPECT_EQ(api.find(on.host, on.weights, "model.embed_tokens.weight", 0, nullptr, &table), 0);
    std::vector<int32_t> token = {5, -1, 4095, 4096}, from = {3, -1, 0}, to = {2, 0, 1}, index(12);
    std::vector<float> x(4 * 192), y(4 * 192), z(4 * 320), bias = some_floats(320, 1), w(3 * 100),
                                                           logprob(12);
    const specd_tensor token_t = view(token, {4}), x_t = view(x, {4, hidden}),
                       y_t = view(y, {4, hidden}), z_t = view(z, {4, 320}),
                       bias_t = view(bias, {320}), from_t = view(from, {3}), to_t = view(to, {3}),
                       w_t = view(w, {3, 100}), index_t = view(index, {3, 4}),
                       logprob_t = view(logprob, {3, 4});
    EXPECT_EQ(on.ops().embed(on.host, on.call, &table, &token_t, &x_t), SPECD_OK);
    EXPECT_EQ(on.ops().rmsnorm(on.host, on.call, &x_t, &norm, 1e-5, &y_t), SPECD_OK);
    EXPECT_EQ(on.ops().linear(on.host, on.call, matrix, &y_t, &bias_t, &z_t), SPECD_OK);
    // The maps on columns of one matrix, in place, and with a row for all rows.
    const specd_tensor a = KvRig::columns(z_t, 0, 60), b = KvRig::columns(z_t, 60, 60);
    for (uint32_t map = 0; map < 5; ++map) {
      const specd_tensor* other = map == SPECD_MAP_SILU ? nullptr : &b;
      const specd_tensor out = KvRig::columns(z_t, 120 + 60 * (map % 2), 60);
      EXPECT_EQ(on.ops().map(on.host, on.call, map, &a, other, map < 2 ? &out : &a), 0) << map;
    }
    EXPECT_EQ(on.ops().map(on.host, on.call, SPECD_MAP_MUL, &z_t, &bias_t, &z_t), SPECD_OK);
    const specd_tensor first = KvRig::columns(z_t, 0, 100);
    EXPECT_EQ(on.ops().copy(on.host, on.call, &first, &from_t, &w_t, &to_t), SPECD_OK);
    std::fill_n(w.begin() + 250, 3, 7.0f);  // equal ones
    EXPECT_EQ(on.ops().topk(on.host, on.call, &w_t, &index_t, &logprob_t), SPECD_OK);
    std::vector<float> all(index.begin(), index.end());
    for (const auto& each : {x, y, z, w, logprob}) all.insert(all.end(), each.begin(), each.end());
    return all;
  });
  for (const uint8_t code : {SPECD_DT_FLOAT, SPECD_DT_BFLOAT}) {
    same([&](const Side& on) {  // every short float
      std::vector<int16_t> bits(65536);
      std::iota(bits.begin(), bits.end(), INT16_MIN);
      std::vector<int32_t> token(256);
      std::iota(token.begin(), token.end(), 0);
      std::vector<float> out(65536);
      const specd_tensor table = host_tensor(bits.data(), code, 16, {256, 256}),
                         token_t = view(token, {256}), out_t = view(out, {256, 256});
      EXPECT_EQ(on.ops().embed(on.host, on.call, &table, &token_t, &out_t), SPECD_OK);
      return out;
    });
  }
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    if ((i & 0x7fff) > 0x7c00) continue;
    ASSERT_EQ(sdk::fake_to_f16(sdk::fake_from_f16(bits)), bits);
    ASSERT_EQ(sdk::fake_to_bf16(sdk::fake_from_bf16(bits)), bits);
  }
}

TEST_F(FakeServices, draws_are_the_daemons_draws_and_so_are_their_scores) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    for (specd_sampling& each : rig_.sampling_) {
      each.seed = (seed + 1) * 0x123456789abcdefu;
      each.temperature = 0.5f + 0.1f * static_cast<float>(seed % 9);
      each.top_k = static_cast<int32_t>(seed % 4) * 7;
      each.top_p = seed % 3 == 0 ? 1 : 0.9f;
      each.min_p = seed % 5 == 0 ? 0.05f : 0;
      each.typical_p = seed % 4 == 1 ? 0.7f : 1;
    }
    same([&](const Side& on) {
      std::vector<float> logits = some_floats(6 * 50, seed), score(6 * 50);
      for (size_t i = 0; i < 50; ++i) logits[i] = std::round(logits[i]);  // equal ones
      logits[150] = std::nanf("");
      logits[200] = -INFINITY;
      std::vector<int32_t> seq = {0, 1, 2, 0, 2, 3}, position = {7, 70, 700}, id(50), index(6);
      for (int32_t i = 0; i < 50; ++i) id[static_cast<size_t>(i)] = 49 * i % 53;
      const specd_tensor t[] = {view(logits, {6, 50}), view(seq, {6}),   view(position, {3}),
                                view(id, {50}),        view(index, {6}), view(score, {6, 50})};
      specd_draw_args args{};
      args.struct_size = sizeof args, args.position_offset = seed;
      args.logits = &t[0], args.seq_index = &t[1], args.position = &t[2];
      args.token_id = seed % 2 == 0 ? nullptr : &t[3];
      args.out_index = &t[4], args.out_score = &t[5];
      EXPECT_EQ(on.ops().draw(on.host, on.call, &args), SPECD_OK);
      EXPECT_EQ(index[3], -1);
      EXPECT_EQ(index[5], -1);
      score.insert(score.end(), index.begin(), index.end());
      return score;
    });
  }
}

TEST_F(FakeServices, chains_trees_windows_and_blocks_attend_as_in_the_daemon) {
  compare({{{rows(6), rows(3), {}}}});
  keep({0, 0, 0}, {KvRig::upto(6), KvRig::upto(3), {}});
  // A tree in two calls, in the last of which some rows attend.
  compare({{{rows(6), rows(3), rows(1)}, {{-1, -1, 0, 0, 1, 3}, {-1, -1, 0}, {-1}}}});
  compare({{{rows(2), rows(1), {}}, {{5, 2}, {2}, {}}, {0, 2}}, 4});
  keep({6, 3, 0}, {{0, 3, 5, 6}, {1}, {0}});
  compare({{{rows(5), rows(2), rows(2)}}, 3});
  keep({10, 2, 1}, {{0, 1}, {}, {0}});
  // Blocks, also behind a branch and in a window.
  compare({{{rows(4), rows(2), rows(3)}, {}, {1, 2, 8}, SPECD_KV_BLOCK}});
  keep({12, 2, 2});
  compare({{{rows(2), {}, rows(1)}, {{-1, -1}, {}, {-1}}}});
  compare({{{rows(3), rows(4), rows(2)}, {}, {}, SPECD_KV_BLOCK}});
  compare({{{rows(3), {}, {}}, {}, {}, SPECD_KV_BLOCK}, 3});
  keep({12, 2, 2});
  // A sequence that fails is alone in it.
  compare({{{rows(19), rows(4), {}}}, 0, {SPECD_E_UNSUPPORTED, SPECD_OK, SPECD_OK}});
  keep({11, 2, 1}, {{}, {0, 1}, {}});
}

TEST_F(FakeServices, sessions_are_reclaimed_and_fail_as_a_test_wants) {
  fake_.attended({{{rows(4), rows(2), {}}}}, 1);
  fake_.keep({0, 0, 0}, {KvRig::upto(4), KvRig::upto(2), {}});
  EXPECT_EQ(host_.kv_kept(1), 4u);
  host_.kv_reclaim(1);
  host_.kv_fail_rows(2, SPECD_E_EXHAUSTED);
  const std::vector<float> out =
      fake_.attended({{{rows(1), rows(1), {}}}, 0, {SPECD_OK, SPECD_E_EXHAUSTED, SPECD_OK}}, 2);
  EXPECT_NE(out[0], 0);
  EXPECT_EQ(out[kHeads * kDim], 0) << "it attends to nothing";
  fake_.keep({0, 2, 0}, {{0}, {}, {}});
  host_.kv_fail_rows(2, SPECD_OK);
  fake_.attended({{{{}, rows(1), {}}}}, 3);
}

TEST(FakeHostMisuse, is_a_violation_and_what_a_plugin_must_expect_is_none) {
  FakeHost host;
  const specd_sampling sampling = sdk::greedy_sampling();
  auto batch = std::make_unique<sdk::FakeBatch>(
      host, std::vector<sdk::FakeBatch::Item>{{1, 0, nullptr, &sampling}});
  Side on{host.host(), host.owner(), batch->call().handle(), nullptr, nullptr};
  const auto& weights = on.table<specd_weights_api>(SPECD_SERVICE_WEIGHTS);
  size_t n = 0;
  const auto violates = [&](specd_status got, specd_status status, const std::string& words) {
    EXPECT_EQ(got, status) << words;
    ASSERT_EQ(host.violations().size(), ++n) << words;
    EXPECT_NE(host.violations().back().find(words), std::string::npos) << host.violations().back();
  };
  const FakeConfig config = FakeConfig().set("weights", "x").set("other", "x").set("number", 3);
  const specd_config view_of = config.view();
  host.weights("weights")
      .config(FakeConfig().set("layers", 2))
      .add_f16("a", {2, 3}, {1, 2, 3, 4, 5, 0.1f})
      .add_f16("b", {1, 3}, {7, 8, 9})
      .add_bf16("c", {1, 3}, {7, 8, 9})
      .add_ints<int64_t>("ids", {2}, {-5, 1})
      .add_ints<uint64_t>("far", {1}, {uint64_t{1} << 63})
      .add_bools("flags", {3}, {true, false, true});
  const auto open = [&](const char* key) {
    return weights.open(on.host, on.owner, &view_of, key, &on.weights);
  };
  EXPECT_EQ(open("absent"), SPECD_E_PRECONDITION);
  EXPECT_EQ(open("number"), SPECD_E_CONFIG);
  EXPECT_EQ(open("other"), SPECD_E_CONFIG);
  EXPECT_EQ(host.reports().back().text, "other: no FakeHost::weights()");
  ASSERT_EQ(open("weights"), SPECD_OK);
  int64_t layers = 0;
  const specd_config* json = weights.config(on.host, on.weights);
  EXPECT_EQ(json->get_i64(json, "layers", &layers), SPECD_OK);

  specd_matrix *both = nullptr, *head = nullptr;
  specd_tensor t{};
  const auto matrix = [&](std::vector<const char*> names, int64_t n_out) {
    return weights.matrix(on.host, on.owner, on.weights, names.data(),
                          static_cast<uint32_t>(names.size()), n_out, 3, &both);
  };
  const auto tensor = [&](const char* name, int64_t size, uint8_t code) {
    return weights.tensor(on.host, on.owner, on.weights, name, 1, &size, code, 32, &t);
  };
  violates(matrix({"a"}, 2), SPECD_E_PRECONDITION, "weights.matrix: before activate()");
  host.set_active(true);
  EXPECT_EQ(matrix({"a", "c"}, 3), SPECD_E_DATA) << "of two types";
  EXPECT_EQ(matrix({"a", "b"}, 4), SPECD_E_DATA);
  host.set_memory_quota(17);
  EXPECT_EQ(matrix({"a", "b"}, 3), SPECD_E_EXHAUSTED);
  host.set_memory_quota(1000);
  ASSERT_EQ(matrix({"a", "b"}, 3), SPECD_OK);
  ASSERT_EQ(matrix({"a", "b"}, 3), SPECD_OK);
  EXPECT_EQ(host.memory_used(), 18u) << "once";
  EXPECT_EQ(tensor("far", 1, SPECD_DT_INT), SPECD_E_DATA);
  EXPECT_EQ(tensor("ids", 2, SPECD_DT_FLOAT), SPECD_E_DATA);
  ASSERT_EQ(tensor("flags", 3, SPECD_DT_INT), SPECD_OK);
  EXPECT_EQ(static_cast<int32_t*>(t.data)[2], 1);
  ASSERT_EQ(tensor("ids", 2, SPECD_DT_INT), SPECD_OK);
  EXPECT_EQ(static_cast<int32_t*>(t.data)[0], -5);
  EXPECT_EQ(host.memory_used(), 18u + 12 + 8);
  ASSERT_EQ(weights.find(on.host, on.weights, nullptr, 2, nullptr, &t), SPECD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data) % 2, 1u) << "not aligned";

  host.target().vocab_size = 5, host.target().hidden_size = 3;
  const auto& target = on.table<specd_target_api>(SPECD_SERVICE_TARGET);
  ASSERT_EQ(target.head(on.host, on.owner, &head), SPECD_OK);
  std::vector<float> x = {1, 0, 0}, out(5), qkv(48), mixed(16);
  const specd_tensor x_t = view(x, {1, 3}), out_t = view(out, {1, 5}), qkv_t = view(qkv, {1, 48}),
                     mixed_t = view(mixed, {1, 16});
  EXPECT_EQ(on.ops().linear(on.host, on.call, head, &x_t, nullptr, &out_t), SPECD_OK);
  EXPECT_NE(out[4], 0);
  violates(on.ops().linear(on.host, on.call, both, &x_t, nullptr, &out_t), SPECD_E_INVALID,
           "ops.linear: out is [1, 5], expected [1, 3]");
  violates(on.ops().map(on.host, nullptr, SPECD_MAP_SILU, &x_t, nullptr, &x_t),
           SPECD_E_PRECONDITION, "ops.map: outside of a step");

  const specd_kv_open_args args{sizeof args, 2, 1, 16, 4, 4, nullptr, 1};
  ASSERT_EQ(on.kvs().open(on.host, on.owner, &args, &on.kv), SPECD_OK);
  specd_kv_attend_args attend{};
  attend.struct_size = sizeof attend, attend.n_heads = 1, attend.scale = 1;
  attend.qkv = &qkv_t, attend.out = &mixed_t;
  const auto attends = [&] { return on.kvs().attend(on.host, on.call, on.kv, &attend); };
  violates(attends(), SPECD_E_PRECONDITION, "kv.attend: rows() comes first");
  const uint32_t offsets[] = {0, 1}, kept = 0, path = 1;
  const int32_t parent = 0;
  specd_status of = SPECD_OK;
  specd_kv_rows_args add{};
  add.struct_size = sizeof add, add.n_rows = 1, add.row_offsets = offsets, add.seq_status = &of;
  add.parent = &parent;
  violates(on.kvs().rows(on.host, on.call, on.kv, &add), SPECD_OK, "kv.rows: the parent of row 0");
  EXPECT_EQ(of, SPECD_E_INVALID);
  add.parent = nullptr;
  EXPECT_EQ(on.kvs().rows(on.host, on.call, on.kv, &add), SPECD_OK);
  violates(attends(), SPECD_E_INVALID, "kv.attend: a row without append() in this layer");
  violates(on.kvs().keep(on.host, on.call, on.kv, &kept, offsets, &path), SPECD_E_INVALID,
           "kv.keep: rows are not a path");
  batch.reset();
  host.set_active(false);
  host.expect_no_memory_held();
  violates(0, 0, "KV is still open with rows of sequences that have ended");
  EXPECT_EQ(host.memory_used(), 0u);
}

// Keeps what it is told.
class Listener final : public sdk::Drafter {
 public:
  static constexpr const char* kSchema = nullptr;
  static void describe(const sdk::Context&, specd_drafter_caps& caps) {
    caps.max_nodes = caps.max_depth = 1;
    caps.needs |= SPECD_NEED_HIDDEN;
    caps.n_taps = 2;
    caps.taps[0] = 1, caps.taps[1] = 3;
  }
  using Drafter::Drafter;
  struct Sequence {
    explicit Sequence(Listener&) {}
  };
  void begin(Sequence&, const sdk::Begin&) {}
  void update(Sequence&, const sdk::Rows& rows) {
    const specd_update_args& a = rows.args();
    calls.push_back(rows.size());
    for (int32_t r = 0; r < rows.size(); ++r) {
      position.push_back(rows[r].position);
      next_token.push_back(rows[r].next_token);
      for (uint32_t t = 0; t < 2; ++t) {
        state[t].emplace_back(rows.hidden(t, r), rows.hidden(t, r) + 8);
      }
      EXPECT_TRUE(std::isnan(static_cast<const float*>(a.hidden[0]->data)[8 * r])) << "not row r";
    }
    const auto last = static_cast<const int32_t*>(a.last_row->data)[rows.seq_index()];
    EXPECT_EQ(static_cast<const int32_t*>(a.last_hidden_row->data)[rows.seq_index()],
              a.host_hidden_row[last]);
  }
  void propose(Sequence&, sdk::Proposal&) {}
  static inline std::vector<int32_t> calls, position, next_token;
  static inline std::vector<std::vector<float>> state[2];
};
constexpr specd_factory kListener = sdk::drafter<Listener>("listener", "listens");

TEST(FakeDrafter, passes_hidden_states_of_the_prompt_and_of_what_follows_it) {
  FakeHost host;
  host.target().hidden_size = 8;
  FakeDrafter::Options options;
  options.max_rows = 3;
  FakeDrafter drafter(host, kListener, FakeConfig(), options);
  const int s = drafter.begin({4, 5, 6, 7, 8, 9});
  EXPECT_EQ(drafter.prefill(s), SPECD_OK);
  EXPECT_EQ(drafter.commit(s, {10, 11}), SPECD_OK);
  EXPECT_EQ(Listener::calls, (std::vector<int32_t>{3, 2, 2}));
  EXPECT_EQ(Listener::position, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(Listener::next_token, (std::vector<int32_t>{5, 6, 7, 8, 9, 10, 11}));
  const std::vector<int32_t>& text = drafter.tokens(s);
  for (ptrdiff_t p = 0; p < 7; ++p) {
    const std::vector<int32_t> upto(text.begin(), text.begin() + p + 1);
    EXPECT_EQ(Listener::state[0][static_cast<size_t>(p)], drafter.hidden(1, upto));
    EXPECT_EQ(Listener::state[1][static_cast<size_t>(p)], drafter.hidden(3, upto));
  }
  drafter.set_hidden([](uint32_t tap, const std::vector<int32_t>& tokens) {
    return std::vector<float>(8,
                              static_cast<float>(tap) + 0.5f * static_cast<float>(tokens.back()));
  });
  const int a = drafter.begin({1, 2}), b = drafter.begin({3});
  drafter.commit_batch({{a, {3}}, {b, {4}}});
  EXPECT_EQ(Listener::calls, (std::vector<int32_t>{3, 2, 2, 1, 1, 1})) << "the prompt comes first";
  EXPECT_EQ(Listener::state[1].back(), std::vector<float>(8, 4.5f));
  drafter.commit(drafter.begin({1, 2, 3}, SPECD_ATTACH_COLD), {7});
  EXPECT_EQ(Listener::calls.size(), 7u) << "hidden states only from now on";
  EXPECT_TRUE(host.violations().empty());
}

}  // namespace
}  // namespace specd
