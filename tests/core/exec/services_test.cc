#include "core/exec/services.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "core/plugin/instance/tensor.h"
#include "specd/kernels/draw.h"
#include "specd/plugin_api/services/memory.h"
#include "specd/plugin_api/drafter.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/pool.h"
#include "specd/plugin_api/services/rng.h"

namespace specd {
namespace {

constexpr int32_t kVocab = 37;

specd_tensor host_f32(float* data, std::initializer_list<int64_t> shape) {
  return host_tensor(data, SPECD_DT_FLOAT, 32, shape);
}

class ServicesTest : public testing::Test {
 protected:
  ServicesTest() {
    for (specd_sampling& one : sampling_) one.struct_size = sizeof(one);
    sampling_[0].seed = 11;
    sampling_[1].flags = SPECD_SAMPLE_GREEDY;
    sampling_[1].seed = 12;
    sampling_[2].seed = 13;
    batch_.struct_size = sizeof(batch_);
    batch_.n_seqs = 3;
    batch_.call = &call_;
    call_.batch = &batch_;
    call_.sampling = sampling_ptr_;
    owner_.name = owner_.label = "inst";
    owner_.quota_bytes = 1000;
  }
  template <typename Table>
  const Table& table(const char* id) {
    const auto* found = static_cast<const Table*>(host_->get_service(host_, id));
    EXPECT_NE(found, nullptr) << id;
    EXPECT_EQ(found->struct_size, sizeof(Table));
    return *found;
  }
  void expect_text(const std::string& words) {
    EXPECT_NE(call_.text.find(words), std::string::npos) << call_.text;
    call_.clear();
  }

  std::unique_ptr<CpuDevice> cpu_ = CpuDevice::create("scalar", 3).value();
  Services services_{*cpu_, *cpu_, kVocab};
  const specd_host* host_ = make_host(&services_);
  specd_sampling sampling_[3] = {};
  const specd_sampling* sampling_ptr_[3] = {&sampling_[0], &sampling_[1], &sampling_[2]};
  specd_batch batch_{};
  specd_call call_;
  specd_owner owner_;
};

TEST_F(ServicesTest, memory_is_aligned_counted_and_limited) {
  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  std::string text;
  const PluginScope scope(owner_.label, &text);
  const auto alloc = [&](uint64_t bytes, uint64_t align, void** out,
                         int32_t device = SPECD_DEV_CPU) {
    return memory.alloc(host_, &owner_, device, 0, bytes, align, out);
  };
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(alloc(600, 4096, &a), SPECD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 4096, 0u);
  EXPECT_EQ(owner_.used_bytes, 600u);
  EXPECT_EQ(alloc(401, 1, &b), SPECD_E_EXHAUSTED);
  EXPECT_EQ(b, nullptr);
  EXPECT_NE(text.find("401 bytes asked, 400 of the quota of 1000 are left"), std::string::npos)
      << text;
  EXPECT_EQ(alloc(UINT64_MAX, 1, &b), SPECD_E_EXHAUSTED);
  EXPECT_EQ(alloc(400, 1, &b), SPECD_OK);
  memory.free(host_, &owner_, a);
  EXPECT_EQ(owner_.used_bytes, 400u);
  memory.free(host_, &owner_, &text);  // not ours: ignored
  memory.free(host_, &owner_, nullptr);
  EXPECT_EQ(owner_.used_bytes, 400u);
  memory.free(host_, &owner_, b);
  EXPECT_EQ(owner_.used_bytes, 0u);
  EXPECT_TRUE(owner_.blocks.empty());
  EXPECT_EQ(alloc(8, 3, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 0, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8192, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(0, 8, &a), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(alloc(8, 8, &a, SPECD_DEV_CUDA), SPECD_E_UNSUPPORTED);
  EXPECT_EQ(memory.alloc(host_, nullptr, SPECD_DEV_CPU, 0, 8, 8, &a), SPECD_E_INVALID);
}

TEST_F(ServicesTest, scratch_lives_as_long_as_the_call) {
  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  void *a = nullptr, *b = nullptr;
  ASSERT_EQ(memory.scratch(host_, &call_, 100, 64, &a), SPECD_OK);
  ASSERT_EQ(memory.scratch(host_, &call_, 100, 4096, &b), SPECD_OK);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 4096, 0u);
  std::fill_n(static_cast<char*>(a), 100, 'a');
  std::fill_n(static_cast<char*>(b), 100, 'b');
  EXPECT_EQ(memory.scratch(host_, &call_, uint64_t{256} << 20, 1, &a), SPECD_E_EXHAUSTED);
  EXPECT_EQ(memory.scratch(host_, &call_, UINT64_MAX, 1, &a), SPECD_E_EXHAUSTED);
  EXPECT_EQ(memory.scratch(host_, &call_, 8, 5, &a), SPECD_E_INVALID);
  EXPECT_EQ(memory.scratch(host_, nullptr, 8, 8, &a), SPECD_E_INVALID);
  expect_text("memory.scratch");
  EXPECT_EQ(memory.scratch(host_, &call_, 256, 1, &a), SPECD_OK);
}

TEST_F(ServicesTest, draw_noise_is_that_of_the_draw_and_zero_when_greedy) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {2, 0, 1, 0}, position[] = {5, 0, 5, 9};
  std::vector<float> values(4 * kVocab, -7), expected(kVocab);
  const specd_tensor indices = host_i32(index, {4}), positions = host_i32(position, {4});
  const specd_tensor out = host_f32(values.data(), {4, kVocab});
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &out), SPECD_OK) << call_.text;
  for (size_t i = 0; i < 4; ++i) {
    const specd_sampling& one = sampling_[index[i]];
    std::fill(expected.begin(), expected.end(), 0.0f);
    if (index[i] != 1) {
      kernels::cpu_ops(kernels::Isa::kScalar)
          .draw_noise(cpu_->stream(), {&one.seed, &position[i], expected.data(), 1, kVocab});
    }
    for (size_t t = 0; t < kVocab; ++t)
      EXPECT_EQ(values[i * kVocab + t], expected[t]) << i << " " << t;
  }
  EXPECT_NE(values[0], values[kVocab]);
}

TEST_F(ServicesTest, draw_noise_keeps_to_the_rows_of_a_strided_tensor) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2}, position[] = {5, 6};
  constexpr size_t kStride = kVocab + 3;
  std::vector<float> wide(2 * kStride, -7), dense(2 * kVocab);
  const specd_tensor indices = host_i32(index, {2}), positions = host_i32(position, {2});
  const specd_tensor out = host_f32(dense.data(), {2, kVocab});
  specd_tensor strided = host_f32(wide.data(), {2, kVocab});
  strided.stride[0] = kStride;
  strided.byte_capacity = wide.size() * sizeof(float);
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &out), SPECD_OK);
  ASSERT_EQ(rng.draw_noise(host_, &call_, &indices, &positions, &strided), SPECD_OK) << call_.text;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t t = 0; t < kStride; ++t) {
      EXPECT_EQ(wide[row * kStride + t], t < kVocab ? dense[row * kVocab + t] : -7.0f);
    }
  }
}

TEST_F(ServicesTest, uniform_is_keyed_and_in_range) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2, 1}, position[] = {4, 4, 5};
  constexpr size_t kLanes = 10;
  std::vector<float> values(3 * kLanes), again(3 * kLanes);
  const specd_tensor indices = host_i32(index, {3}), positions = host_i32(position, {3});
  const specd_tensor out = host_f32(values.data(), {3, kLanes});
  const specd_tensor out_again = host_f32(again.data(), {3, kLanes});
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_ACCEPT, 6, &out),
            SPECD_OK);
  for (size_t row = 0; row < 3; ++row) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t counter[4] = {static_cast<uint32_t>(lane / 4),
                                   static_cast<uint32_t>(position[row]), SPECD_PURPOSE_ACCEPT, 6};
      uint32_t words[4];
      kernels::philox4x32(sampling_[index[row]].seed, counter, words);
      const float value = values[row * kLanes + lane];
      EXPECT_EQ(value, std::ldexp(static_cast<float>(words[lane % 4] >> 8), -24));
      EXPECT_GE(value, 0.0f);
      EXPECT_LT(value, 1.0f);
    }
  }
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_ACCEPT, 6, &out_again),
            SPECD_OK);
  EXPECT_EQ(values, again);
  ASSERT_EQ(rng.uniform(host_, &call_, &indices, &positions, SPECD_PURPOSE_DRAFT, 6, &out_again),
            SPECD_OK);
  EXPECT_NE(values, again);
  EXPECT_EQ(rng.uniform(host_, &call_, &indices, &positions, 0, 6, &out), SPECD_E_INVALID);
  expect_text("purpose 0 belongs to the host");
}

TEST_F(ServicesTest, every_bad_tensor_is_refused_in_words) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  int32_t index[] = {0, 2}, position[] = {4, 4};
  std::vector<float> values(2 * kVocab);
  const specd_tensor good_index = host_i32(index, {2}), good_position = host_i32(position, {2});
  const specd_tensor good_out = host_f32(values.data(), {2, kVocab});
  const auto expect = [&](const specd_tensor* i, const specd_tensor* p, const specd_tensor* o,
                          const std::string& words) {
    EXPECT_EQ(rng.draw_noise(host_, &call_, i, p, o), SPECD_E_INVALID);
    expect_text("rng.draw_noise: " + words);
  };
  const auto expect_out = [&](auto edit, const std::string& words) {
    specd_tensor out = good_out;
    edit(out);
    expect(&good_index, &good_position, &out, words);
  };
  expect(nullptr, &good_position, &good_out, "seq_index is null");
  expect(&good_index, nullptr, &good_out, "position is null");
  expect(&good_index, &good_position, nullptr, "out is null");
  expect_out([](specd_tensor& t) { t.struct_size = 1; }, "out.struct_size is 1");
  expect_out([](specd_tensor& t) { t.dtype_code = SPECD_DT_INT; }, "out has dtype 0/32");
  expect_out([](specd_tensor& t) { t.dtype_bits = 16; }, "out has dtype 2/16");
  expect_out([](specd_tensor& t) { t.device_type = SPECD_DEV_CUDA; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.rank = 1; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.rank = 900; }, "out has dtype");
  expect_out([](specd_tensor& t) { t.shape[0] = -1; }, "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.shape[1] = INT64_MAX; },
             "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.stride[0] = -1; }, "out has a size or stride out of range");
  expect_out([](specd_tensor& t) { t.shape[0] = 3; }, "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.shape[0] = t.stride[0] = int64_t{1} << 31; },
             "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.byte_capacity -= 4; }, "out reaches beyond its capacity");
  expect_out([](specd_tensor& t) { t.shape[1] = kVocab - 1; },
             "out has 36 columns, expected vocab_size 37");
  expect_out([](specd_tensor& t) { t.stride[0] = 1; }, "out needs rows that are contiguous");
  expect_out([](specd_tensor& t) { t.data = nullptr; }, "out has no data");
  expect_out([](specd_tensor& t) { t.shape[0] = 1; },
             "seq_index has 2 entries, position 2, out has 1");
  index[1] = 3;
  expect(&good_index, &good_position, &good_out, "seq_index[1] is 3, expected 0..2");
  index[1] = -1;
  expect(&good_index, &good_position, &good_out, "seq_index[1] is -1");
  index[1] = 2;
  position[0] = -3;
  expect(&good_index, &good_position, &good_out, "position[0] is -3");
  position[0] = 1;
  EXPECT_EQ(rng.draw_noise(host_, &call_, &good_index, &good_position, &good_out), SPECD_OK);
  specd_call outside;
  EXPECT_EQ(rng.draw_noise(host_, &outside, &good_index, &good_position, &good_out),
            SPECD_E_INVALID);
  EXPECT_NE(outside.text.find("the call has no batch"), std::string::npos);
}

TEST_F(ServicesTest, metrics_count_and_gauge) {
  const auto& metrics = table<specd_metrics>(SPECD_SERVICE_METRICS);
  specd_metric *hits = nullptr, *same = nullptr, *load = nullptr, *other = nullptr;
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_COUNTER, "hits_2", "how many", &hits),
            SPECD_OK);
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_COUNTER, "hits_2", nullptr, &same),
            SPECD_OK);
  ASSERT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, "a_load", nullptr, &load), SPECD_OK);
  EXPECT_EQ(hits, same);
  EXPECT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, "hits_2", nullptr, &other),
            SPECD_E_INVALID);
  for (const char* name : {"", "Upper", "1x", "a-b", "a b"}) {
    EXPECT_EQ(metrics.define(host_, &owner_, SPECD_METRIC_GAUGE, name, nullptr, &other),
              SPECD_E_INVALID)
        << name;
  }
  EXPECT_EQ(metrics.define(host_, &owner_, 2, "x", nullptr, &other), SPECD_E_INVALID);
  EXPECT_EQ(metrics.define(host_, &owner_, 1, std::string(65, 'a').c_str(), nullptr, &other),
            SPECD_E_INVALID);
  EXPECT_EQ(metrics.define(host_, &owner_, 1, std::string(64, 'a').c_str(), nullptr, &other),
            SPECD_OK);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) metrics.record(host_, hits, 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    metrics.record(host_, hits, bad);
  }
  metrics.record(host_, load, -2.5);
  metrics.record(host_, nullptr, 1);
  const auto all = plugin_metrics(owner_);
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[0].name, "a_load");
  EXPECT_EQ(all[0].value, -2.5);
  EXPECT_EQ(all[2].name, "hits_2");
  EXPECT_EQ(all[2].value, 4000.0);
  EXPECT_TRUE(all[2].counter);
  EXPECT_EQ(all[2].help, "how many");
  EXPECT_EQ(all[2].instance, "inst");
  specd_status last = SPECD_OK;
  for (int i = 0; i < 100 && last == SPECD_OK; ++i) {
    last = metrics.define(host_, &owner_, 1, ("m" + std::to_string(i)).c_str(), nullptr, &other);
  }
  EXPECT_EQ(last, SPECD_E_EXHAUSTED);
}

TEST_F(ServicesTest, pool_runs_every_index_once) {
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  EXPECT_EQ(pool.width(host_), 3u);
  for (const uint32_t n : {0u, 1u, 2u, 3u, 100u}) {
    std::vector<std::atomic<int>> seen(n);
    ASSERT_EQ(
        pool.run(
            host_, &call_, n,
            [](void* ctx, uint32_t i) { ++(*static_cast<std::vector<std::atomic<int>>*>(ctx))[i]; },
            &seen),
        SPECD_OK);
    for (const auto& one : seen) EXPECT_EQ(one, 1);
  }
  EXPECT_EQ(pool.run(host_, &call_, 1, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(pool.run(
                host_, nullptr, 1, [](void*, uint32_t) {}, nullptr),
            SPECD_E_INVALID);
}

TEST_F(ServicesTest, pool_refuses_what_would_wait_for_itself_or_race_with_the_step) {
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  struct Nested {
    const specd_pool* pool;
    const specd_host* host;
    specd_call* call;
    specd_status status;
  } nested{&pool, host_, &call_, SPECD_OK};
  ASSERT_EQ(pool.run(
                host_, &call_, 1,
                [](void* ctx, uint32_t) {
                  auto& mine = *static_cast<Nested*>(ctx);
                  mine.status = mine.pool->run(
                      mine.host, mine.call, 1, [](void*, uint32_t) {}, nullptr);
                },
                &nested),
            SPECD_OK);
  EXPECT_EQ(nested.status, SPECD_E_PRECONDITION);
  specd_call control;  // create(): no batch
  EXPECT_EQ(pool.run(
                host_, &control, 1, [](void*, uint32_t) {}, nullptr),
            SPECD_E_PRECONDITION);
}

TEST_F(ServicesTest, a_walk_takes_the_tensors_it_says_and_no_others) {
  const auto& ops = table<specd_ops>(SPECD_SERVICE_OPS);
  int32_t n_nodes[2] = {3, 2}, token[6] = {5, 6, 7, 5, 9, 0}, parent[6] = {-1, 0, 0, -1, -1, -1};
  int32_t wanted[8] = {5, 7, 1, 2, 9, 3, 4, 4}, flags[6] = {0, 0, 0, 0, 0, 0};
  int32_t n_path[2] = {-7, -7}, path[4] = {-7, -7, -7, -7}, last[2] = {-7, -7};
  specd_tensor n_nodes_t = host_i32(n_nodes, {2}), token_t = host_i32(token, {2, 3});
  specd_tensor parent_t = host_i32(parent, {2, 3}), wanted_t = host_i32(wanted, {2, 4});
  specd_tensor flags_t = host_i32(flags, {2, 3}), n_path_t = host_i32(n_path, {2});
  specd_tensor path_t = host_i32(path, {2, 2}), last_t = host_i32(last, {2});
  const auto walk = [&](auto edit) {
    specd_walk_args args{};
    args.struct_size = sizeof(args);
    args.skip_flags = SPECD_NODE_PROBE;
    args.n_nodes = &n_nodes_t;
    args.token = &token_t;
    args.parent = &parent_t;
    args.flags = &flags_t;
    args.wanted = &wanted_t;
    args.n_path = &n_path_t;
    args.path = &path_t;
    args.last = &last_t;
    edit(args);
    return ops.walk(host_, &call_, &args);
  };
  using Args = specd_walk_args;
  ASSERT_EQ(walk([](Args&) {}), SPECD_OK) << call_.text;
  EXPECT_EQ(std::vector<int32_t>(n_path, n_path + 2), (std::vector<int32_t>{2, 1}));
  EXPECT_EQ(std::vector<int32_t>(path, path + 4), (std::vector<int32_t>{0, 2, 1, -7}));
  EXPECT_EQ(std::vector<int32_t>(last, last + 2), (std::vector<int32_t>{2, 4}));
  EXPECT_EQ(walk([](Args& a) { a.struct_size = 4; }), SPECD_E_INVALID);
  expect_text("ops.walk: args of struct_size");
  EXPECT_EQ(walk([](Args& a) { a.token = nullptr; }), SPECD_E_INVALID);
  expect_text("ops.walk: n_nodes, token or path is null");
  EXPECT_EQ(walk([](Args& a) { a.last = nullptr; }), SPECD_E_INVALID);
  expect_text("ops.walk: last is null");
  EXPECT_EQ(walk([&](Args& a) { a.wanted = &token_t; }), SPECD_E_INVALID);
  expect_text("ops.walk: wanted has another shape than [2, 4], or gaps");
  token_t.stride[0] = 4;
  token_t.byte_capacity = 28;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_INVALID);
  expect_text("ops.walk: token has another shape than [2, 3], or gaps");
  token_t = host_i32(token, {2, 3});
  n_nodes_t.device_type = SPECD_DEV_CUDA;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_INVALID) << "no device but the host";
  call_.clear();
  call_.batch = nullptr;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_PRECONDITION);
  call_.batch = &batch_;
}

}  // namespace
}  // namespace specd
