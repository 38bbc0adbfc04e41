#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/services/model.h"
#include "specd/plugin_api/drafter.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/pool.h"
#include "specd/plugin_api/services/rng.h"
#include "tests/core/services/services_rig.h"

namespace specd {
namespace {

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
  expect_text("ops.walk: wanted is not contiguous with shape [2, 4]");
  token_t.stride[0] = 4;
  token_t.byte_capacity = 28;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_INVALID);
  expect_text("ops.walk: token is not contiguous with shape [2, 3]");
  token_t = host_i32(token, {2, 3});
  n_nodes_t.device_type = SPECD_DEV_CUDA;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_INVALID) << "no device but the host";
  call_.clear();
  call_.batch = nullptr;
  EXPECT_EQ(walk([](Args&) {}), SPECD_E_PRECONDITION);
  call_.batch = &batch_;
}

std::vector<float> some_floats(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-3, 3);
  std::vector<float> all(n);
  for (float& each : all) each = values(random);
  return all;
}

class Ops : public ServicesTest {
 protected:
  const specd_ops& ops() { return table<specd_ops>(SPECD_SERVICE_OPS); }
  void expect_refused(specd_status status, const std::string& words) {
    EXPECT_EQ(status, SPECD_E_INVALID);
    expect_text(words);
  }
};

TEST_F(Ops, embed_looks_tokens_up_and_gives_zeros_for_those_without_a_row) {
  std::vector<float> table_values = some_floats(5 * 8, 1), out(4 * 8, -1);
  std::vector<int32_t> token = {4, -1, 5, 0};
  specd_tensor table_t = host_f32(table_values.data(), {5, 8});
  const specd_tensor token_t = host_i32(token.data(), {4}), out_t = host_f32(out.data(), {4, 8});
  ASSERT_EQ(ops().embed(host_, &call_, &table_t, &token_t, &out_t), SPECD_OK) << call_.text;
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(out[i], table_values[4 * 8 + i]);
    EXPECT_EQ(out[8 + i], 0);
    EXPECT_EQ(out[16 + i], 0);
    EXPECT_EQ(out[24 + i], table_values[i]);
  }
  table_t.dtype_bits = 64;
  expect_refused(ops().embed(host_, &call_, &table_t, &token_t, &out_t), "table: expected float32");
  table_t = host_f32(table_values.data(), {6, 8});
  table_t.byte_capacity = 5 * 8 * 4;
  expect_refused(ops().embed(host_, &call_, &table_t, &token_t, &out_t), "beyond its capacity");
  table_t = host_f32(table_values.data(), {5, 7});
  expect_refused(ops().embed(host_, &call_, &table_t, &token_t, &out_t),
                 "out has shape [4, 8], expected [4, 7]");
}

TEST_F(Ops, rmsnorm_divides_by_the_root_mean_square) {
  std::vector<float> x = some_floats(3 * 20, 2), weight = some_floats(20, 3), out(3 * 20);
  const specd_tensor x_t = host_f32(x.data(), {3, 20}), weight_t = host_f32(weight.data(), {20}),
                     out_t = host_f32(out.data(), {3, 20});
  ASSERT_EQ(ops().rmsnorm(host_, &call_, &x_t, &weight_t, 1e-5, &out_t), SPECD_OK) << call_.text;
  for (size_t r = 0; r < 3; ++r) {
    double square = 0;
    for (size_t i = 0; i < 20; ++i) square += static_cast<double>(x[r * 20 + i]) * x[r * 20 + i];
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_NEAR(out[r * 20 + i], x[r * 20 + i] / std::sqrt(square / 20 + 1e-5) * weight[i], 1e-5);
    }
  }
  expect_refused(ops().rmsnorm(host_, &call_, &x_t, &weight_t, -1, &out_t), "eps is -1");
  expect_refused(ops().rmsnorm(host_, &call_, &x_t, &weight_t, std::nan(""), &out_t), "eps is");
  expect_refused(ops().rmsnorm(host_, &call_, &x_t, &weight_t, 1e-5, &x_t), "x and out overlap");
}

TEST_F(Ops, maps_work_on_rows_of_any_stride_and_in_place) {
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const std::vector<std::function<double(double, double)>> formula = {
      [](double x, double y) { return x + y; }, [](double x, double y) { return x * y; },
      [&](double x, double) { return silu(x); }, [&](double x, double y) { return silu(x) + y; },
      [&](double x, double y) { return silu(x) * y; }};
  for (uint32_t map = 0; map < 5; ++map) {
    for (const bool is_row : {false, true}) {
      // gate and up in one matrix; the result takes the place of the gate
      std::vector<float> both = some_floats(3 * 14, map), row = some_floats(7, 9);
      const std::vector<float> before = both;
      specd_tensor x = host_f32(both.data(), {3, 7}), y = host_f32(both.data() + 7, {3, 7});
      x.stride[0] = y.stride[0] = 14;
      x.byte_capacity = 42 * 4, y.byte_capacity = 35 * 4;
      if (is_row) y = host_f32(row.data(), {7});
      const specd_tensor* with = map == SPECD_MAP_SILU ? nullptr : &y;
      ASSERT_EQ(ops().map(host_, &call_, map, &x, with, &x), SPECD_OK) << call_.text;
      for (size_t r = 0; r < 3; ++r) {
        for (size_t i = 0; i < 7; ++i) {
          const double other = is_row ? row[i] : before[r * 14 + 7 + i];
          const double wanted = formula[map](before[r * 14 + i], other);
          EXPECT_NEAR(both[r * 14 + i], wanted, 1e-5) << map;
          EXPECT_EQ(both[r * 14 + 7 + i], before[r * 14 + 7 + i]);
        }
      }
    }
  }
  std::vector<float> values(12);
  const specd_tensor x = host_f32(values.data(), {3, 4}), y = host_f32(values.data(), {2, 4});
  expect_refused(ops().map(host_, &call_, 5, &x, &x, &x), "map 5");
  expect_refused(ops().map(host_, &call_, SPECD_MAP_ADD, &x, nullptr, &x), "y must be null for");
  expect_refused(ops().map(host_, &call_, SPECD_MAP_SILU, &x, &x, &x), "y must be null for");
  expect_refused(ops().map(host_, &call_, SPECD_MAP_ADD, &x, &y, &x),
                 "y has shape [2, 4], expected [3, 4]");
}

TEST_F(Ops, copies_gather_scatter_join_columns_and_look_up) {
  std::vector<float> from = some_floats(4 * 3, 4), to(3 * 5, -9);
  std::vector<int32_t> from_row = {3, -1, 0}, to_row = {2, 0, 1};
  const specd_tensor from_t = host_f32(from.data(), {4, 3}),
                     from_row_t = host_i32(from_row.data(), {3}),
                     to_row_t = host_i32(to_row.data(), {3});
  specd_tensor to_t = host_f32(to.data() + 2, {3, 3});  // columns 2 to 4
  to_t.stride[0] = 5;
  to_t.byte_capacity = 13 * 4;
  ASSERT_EQ(ops().copy(host_, &call_, &from_t, &from_row_t, &to_t, &to_row_t), SPECD_OK)
      << call_.text;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to[2 * 5 + 2 + i], from[3 * 3 + i]);
    EXPECT_EQ(to[0 * 5 + 2 + i], -9) << "skipped";
    EXPECT_EQ(to[1 * 5 + 2 + i], from[i]);
  }
  EXPECT_EQ(to[0], -9);
  // d2t: a table of ids, indexed by what a draw gave.
  std::vector<int32_t> table_values = {10, 20, 30}, drawn = {2, 2, 0}, ids(3, -1);
  const specd_tensor ids_t = host_i32(ids.data(), {3, 1}), drawn_t = host_i32(drawn.data(), {3}),
                     table_t = host_i32(table_values.data(), {3, 1});
  ASSERT_EQ(ops().copy(host_, &call_, &table_t, &drawn_t, &ids_t, nullptr), SPECD_OK) << call_.text;
  EXPECT_EQ(ids, (std::vector<int32_t>{30, 30, 10}));
  expect_refused(ops().copy(host_, &call_, &table_t, &drawn_t, &to_t, nullptr), "to has dtype");
  expect_refused(ops().copy(host_, &call_, &from_t, &drawn_t, &ids_t, nullptr), "to has dtype");
}

TEST_F(Ops, topk_gives_the_largest_and_their_log_probabilities_over_the_whole_row) {
  constexpr size_t kRows = 3, kWidth = 50, kTop = 4;
  std::vector<float> logits = some_floats(kRows * kWidth, 7), logprob(kRows * 6, 1);
  logits[7] = logits[9] = logits[30] = 5;  // equals: the lower index first
  std::vector<int32_t> index(kRows * 5, -1);
  const specd_tensor logits_t = host_f32(logits.data(), {kRows, kWidth});
  specd_tensor index_t = host_i32(index.data(), {kRows, kTop}),
               logprob_t = host_f32(logprob.data(), {kRows, kTop});
  index_t.stride[0] = 5, index_t.byte_capacity = (5 * kRows - 1) * 4;
  logprob_t.stride[0] = 6, logprob_t.byte_capacity = (6 * kRows - 2) * 4;
  ASSERT_EQ(ops().topk(host_, &call_, &logits_t, &index_t, &logprob_t), SPECD_OK) << call_.text;
  for (size_t r = 0; r < kRows; ++r) {
    const float* row = logits.data() + r * kWidth;
    std::vector<int32_t> order(kWidth);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return row[a] > row[b]; });
    double sum = 0;
    for (size_t i = 0; i < kWidth; ++i) sum += std::exp(static_cast<double>(row[i]));
    for (size_t i = 0; i < kTop; ++i) {
      EXPECT_EQ(index[r * 5 + i], order[i]);
      EXPECT_NEAR(logprob[r * 6 + i], row[order[i]] - std::log(sum), 1e-5);
    }
    EXPECT_EQ(index[r * 5 + 4], -1);
  }
  index_t = host_i32(index.data(), {kRows, 0});
  expect_refused(ops().topk(host_, &call_, &logits_t, &index_t, nullptr),
                 "k is 0, expected 1 to 50");
  std::vector<int32_t> many(kRows * 65);
  std::vector<float> wide(kRows * 100);
  const specd_tensor wide_t = host_f32(wide.data(), {kRows, 100});
  index_t = host_i32(many.data(), {kRows, 65});
  expect_refused(ops().topk(host_, &call_, &wide_t, &index_t, nullptr),
                 "k is 65, expected 1 to 64");
}

// On the stand-in device, whose memory the host cannot touch.
class OpsOnDevice : public Ops {
 protected:
  OpsOnDevice() {
    setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
    unsetenv("SPECD_FAKE_CUDA");
    cuda_ = open_cuda_device(0, {}).value();
    both_ = std::make_unique<Services>(*cpu_, *cuda_, kVocab);
    models_ = std::make_unique<ModelService>(*cuda_, pool_);
    both_->set_models(models_.get());
    host_ = make_host(both_.get());
    call_.owner = &owner_;
  }
  template <typename T>
  specd_tensor on_device(const std::vector<T>& values, std::initializer_list<int64_t> shape) {
    buffers_.push_back(cuda_->allocate(values.size() * sizeof(T), "a test").value());
    cuda_->copy_in(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    const uint8_t code = std::is_same_v<T, float> ? SPECD_DT_FLOAT : SPECD_DT_INT;
    specd_tensor tensor = host_tensor(buffers_.back().data(), code, 32, shape);
    tensor.device_type = SPECD_DEV_CUDA;
    return tensor;
  }
  template <typename T>
  std::vector<T> values_of(const specd_tensor& tensor) {
    std::vector<T> values(tensor.byte_capacity / sizeof(T));
    cuda_->copy_out(values.data(), tensor.data, tensor.byte_capacity);
    EXPECT_TRUE(cuda_->synchronize().ok());
    return values;
  }

  std::unique_ptr<Device> cuda_;
  PagePool pool_{4};
  std::unique_ptr<ModelService> models_;
  std::unique_ptr<Services> both_;
  std::vector<Buffer> buffers_;
};

TEST_F(OpsOnDevice, every_op_gives_what_it_gives_in_host_memory) {
  const std::vector<float> x = some_floats(3 * 20, 1), y = some_floats(3 * 20, 2),
                           weight = some_floats(20, 3), logits = some_floats(3 * 50, 4);
  const std::vector<int32_t> rows = {2, -1, 0};
  std::vector<float> host_out[4], x_copy = x;
  for (std::vector<float>& each : host_out) each.assign(60, -5);
  std::vector<int32_t> host_index(12, -1);
  std::vector<float> host_logprob(12, -1);
  const auto view = [](auto& values, std::initializer_list<int64_t> shape) {
    using T = std::remove_cvref_t<decltype(values[0])>;
    return host_tensor(const_cast<T*>(values.data()),
                       std::is_same_v<T, float> ? SPECD_DT_FLOAT : SPECD_DT_INT, 32, shape);
  };
  const specd_tensor there[] = {view(x, {3, 20}),
                                view(y, {3, 20}),
                                view(weight, {20}),
                                view(logits, {3, 50}),
                                view(rows, {3}),
                                view(host_out[0], {3, 20}),
                                view(host_out[1], {3, 20}),
                                view(host_out[2], {3, 20}),
                                view(host_out[3], {3, 20}),
                                view(host_index, {3, 4}),
                                view(host_logprob, {3, 4})};
  const std::vector<float> old(60, -5);
  const specd_tensor here[] = {on_device(x, {3, 20}),
                               on_device(y, {3, 20}),
                               on_device(weight, {20}),
                               on_device(logits, {3, 50}),
                               on_device(rows, {3}),
                               on_device(old, {3, 20}),
                               on_device(old, {3, 20}),
                               on_device(old, {3, 20}),
                               on_device(old, {3, 20}),
                               on_device(std::vector<int32_t>(12, -1), {3, 4}),
                               on_device(std::vector<float>(12, -1), {3, 4})};
  for (const specd_tensor* t : {there, here}) {
    ASSERT_EQ(ops().rmsnorm(host_, &call_, &t[0], &t[2], 1e-5, &t[5]), SPECD_OK) << call_.text;
    ASSERT_EQ(ops().map(host_, &call_, SPECD_MAP_SILU_ADD, &t[0], &t[1], &t[6]), SPECD_OK)
        << call_.text;
    ASSERT_EQ(ops().embed(host_, &call_, &t[0], &t[4], &t[7]), SPECD_OK) << call_.text;
    ASSERT_EQ(ops().copy(host_, &call_, &t[1], &t[4], &t[8], nullptr), SPECD_OK) << call_.text;
    ASSERT_EQ(ops().topk(host_, &call_, &t[3], &t[9], &t[10]), SPECD_OK) << call_.text;
  }
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(values_of<float>(here[5 + i]), host_out[i]) << i;
  EXPECT_EQ(values_of<int32_t>(here[9]), host_index);
  EXPECT_EQ(values_of<float>(here[10]), host_logprob);
  EXPECT_EQ(ops().map(host_, &call_, SPECD_MAP_ADD, &here[0], &there[1], &here[6]),
            SPECD_E_INVALID);
  expect_text("y has dtype");
  specd_tensor odd = here[0];
  odd.data = static_cast<char*>(odd.data) + 1;
  odd.byte_capacity -= 20 * 4;
  odd.shape[0] = 2;
  EXPECT_EQ(ops().embed(host_, &call_, &odd, &here[4], &here[7]), SPECD_E_INVALID);
  expect_text("expected elements that are aligned");
}

TEST_F(OpsOnDevice, copy_may_bring_values_from_host_memory_but_not_into_a_graph) {
  std::vector<int32_t> values = {7, 8, 9, 10};
  const specd_tensor from = host_i32(values.data(), {2, 2});
  specd_tensor to = on_device(std::vector<int32_t>(6, -1), {2, 3});
  to.shape[1] = 2;
  ModelRecord record;
  models_->watch(&record, false);
  ASSERT_EQ(ops().copy(host_, &call_, &from, nullptr, &to, nullptr), SPECD_OK) << call_.text;
  EXPECT_FALSE(record.repeatable);
  values.assign(4, 0);  // they were taken
  EXPECT_EQ(values_of<int32_t>(to), (std::vector<int32_t>{7, 8, -1, 9, 10, -1}));
  models_->watch(&record, true);
  EXPECT_EQ(ops().copy(host_, &call_, &from, nullptr, &to, nullptr), SPECD_E_INVALID);
  expect_text("from host memory is not allowed while propose() is captured");
  models_->watch(nullptr, false);
  const specd_tensor rows = on_device(std::vector<int32_t>{0, 1}, {2});
  EXPECT_EQ(ops().copy(host_, &call_, &from, &rows, &to, nullptr), SPECD_E_INVALID);
  expect_text("from has dtype");
}

TEST_F(OpsOnDevice, topk_may_bring_its_results_to_host_memory_but_not_into_a_graph) {
  const std::vector<float> logits = some_floats(3 * 50, 4);
  std::vector<int32_t> index(12, -1), expected(12);
  std::vector<float> logprob(15, -7), expected_logprob(12);
  const specd_tensor logits_t = on_device(logits, {3, 50}),
                     index_t = host_i32(index.data(), {3, 4});
  specd_tensor logprob_t = host_f32(logprob.data(), {3, 4});
  logprob_t.stride[0] = 5, logprob_t.byte_capacity = 14 * 4;
  std::vector<float> logits_copy = logits;
  const specd_tensor in_host = host_f32(logits_copy.data(), {3, 50}),
                     expected_t = host_i32(expected.data(), {3, 4}),
                     expected_logprob_t = host_f32(expected_logprob.data(), {3, 4});
  ASSERT_EQ(ops().topk(host_, &call_, &in_host, &expected_t, &expected_logprob_t), SPECD_OK);
  ModelRecord record;
  models_->watch(&record, false);
  ASSERT_EQ(ops().topk(host_, &call_, &logits_t, &index_t, &logprob_t), SPECD_OK) << call_.text;
  EXPECT_FALSE(record.repeatable) << "what comes next may depend on the values";
  EXPECT_EQ(index, expected);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(logprob[i / 4 * 5 + i % 4], expected_logprob[i]);
  EXPECT_EQ(logprob[4], -7);
  models_->watch(&record, true);
  EXPECT_EQ(ops().topk(host_, &call_, &logits_t, &index_t, nullptr), SPECD_E_INVALID);
  expect_text("not allowed while propose() is captured");
  models_->watch(nullptr, false);
}

TEST_F(OpsOnDevice, uniform_numbers_are_those_of_the_host) {
  const auto& rng = table<specd_rng>(SPECD_SERVICE_RNG);
  std::vector<int32_t> seq_index = {2, 0, 1, 2}, position = {40, 40, 60, 41};
  std::vector<float> numbers(4 * 7, -1);
  specd_tensor there[] = {host_i32(seq_index.data(), {4}), host_i32(position.data(), {4}),
                          host_f32(numbers.data(), {4, 6})};
  specd_tensor here[] = {on_device(seq_index, {4}), on_device(position, {4}),
                         on_device(numbers, {4, 6})};
  for (specd_tensor* t : {there, here}) {
    t[2].stride[0] = 7;
    t[2].byte_capacity = numbers.size() * sizeof(float);
    ASSERT_EQ(rng.uniform(host_, &call_, &t[0], &t[1], SPECD_PURPOSE_ACCEPT, &t[2]), SPECD_OK)
        << call_.text;
  }
  EXPECT_EQ(values_of<float>(here[2]), numbers);
  EXPECT_EQ(numbers[6], -1) << "between the rows";
  const specd_tensor elsewhere[] = {on_device(std::vector<int32_t>{0, 3, -1, 1}, {4}), here[1]};
  ASSERT_EQ(rng.uniform(host_, &call_, &elsewhere[0], &here[1], SPECD_PURPOSE_ACCEPT, &here[2]),
            SPECD_OK);
  const std::vector<float> of_none = values_of<float>(here[2]);
  for (size_t row = 0; row < 4; ++row) {
    for (size_t lane = 0; lane < 6; ++lane) {
      EXPECT_EQ(std::isnan(of_none[row * 7 + lane]), row == 1 || row == 2) << row << " " << lane;
    }
  }
  const auto refused = [&](const specd_tensor* index, const specd_tensor* at,
                           const specd_tensor* out, const std::string& words) {
    EXPECT_EQ(rng.uniform(host_, &call_, index, at, SPECD_PURPOSE_ACCEPT, out), SPECD_E_INVALID);
    expect_text("rng.uniform: " + words);
  };
  refused(&there[0], &here[1], &here[2], "seq_index has dtype");
  refused(&here[0], &here[1], &there[2], "seq_index has dtype");
  refused(&here[0], nullptr, &here[2], "seq_index or position is null");
  specd_tensor shorter = here[1];
  shorter.shape[0] = 3;
  refused(&here[0], &shorter, &here[2], "position has shape [3], expected [4], dense");
  specd_tensor over_index = here[0];
  over_index.dtype_code = SPECD_DT_FLOAT;
  over_index.rank = 2;
  over_index.shape[1] = over_index.stride[0] = over_index.stride[1] = 1;
  specd_tensor overlapping = here[2];
  overlapping.stride[0] = 5;
  refused(&here[0], &here[1], &overlapping, "out needs rows that are contiguous");
  refused(&here[0], &here[0], &over_index, "seq_index and out overlap");
  specd_tensor flat = here[2], empty = here[2];
  flat.rank = 1;
  refused(&here[0], &here[1], &flat, "out has 0 columns, expected 1 to 1048576");
  empty.shape[1] = 0;
  refused(&here[0], &here[1], &empty, "out has 0 columns");
  empty.shape[1] = (1 << 20) + 1;
  refused(&here[0], &here[1], &empty, "out has 1048577 columns");
  overlapping.shape[0] = 65536;
  refused(&here[0], &here[1], &overlapping, "65536 rows, expected at most 65535");
  EXPECT_EQ(rng.uniform(host_, &call_, &here[0], &here[1], 0, &here[2]), SPECD_E_INVALID);
  expect_text("purpose 0 belongs to the host");
  call_.sampling = nullptr;
  refused(&here[0], &here[1], &here[2], "the call has no sampling parameters");
}

// Against the op of the kernels with rows of its own, which kernels_test compares with an oracle.
TEST_F(OpsOnDevice, draw_is_the_targets_draw_for_the_sequence_of_a_row) {
  sampling_[0].temperature = 0.7f;
  sampling_[2].temperature = 1.3f;
  sampling_[2].top_k = 8;
  std::vector<float> logits = some_floats(5 * 30, 6), score(5 * 30, 3);
  std::vector<int32_t> seq_index = {2, 0, 1, 3, 0}, position = {40, 50, 60}, id(30), index(5, -7);
  for (int32_t t = 0; t < 30; ++t) id[static_cast<size_t>(t)] = 3 * t + 1;
  const specd_tensor there[] = {host_f32(logits.data(), {5, 30}), host_i32(seq_index.data(), {5}),
                                host_i32(position.data(), {3}),   host_i32(id.data(), {30}),
                                host_i32(index.data(), {5}),      host_f32(score.data(), {5, 30})};
  const specd_tensor here[] = {on_device(logits, {5, 30}), on_device(seq_index, {5}),
                               on_device(position, {3}),   on_device(id, {30}),
                               on_device(index, {5}),      on_device(score, {5, 30})};
  const auto args_of = [](const specd_tensor* t) {
    specd_draw_args args{};
    args.struct_size = sizeof(args);
    args.position_offset = 2;
    args.logits = &t[0], args.seq_index = &t[1], args.position = &t[2], args.token_id = &t[3];
    args.out_index = &t[4], args.out_score = &t[5];
    return args;
  };
  for (const specd_tensor* t : {there, here}) {
    const specd_draw_args args = args_of(t);
    ASSERT_EQ(ops().draw(host_, &call_, &args), SPECD_OK) << call_.text;
  }
  EXPECT_EQ(values_of<int32_t>(here[4]), index);
  EXPECT_EQ(values_of<float>(here[5]), score);
  EXPECT_EQ(index[3], -1) << "there are three sequences";
  for (const size_t r : {0, 1, 2, 4}) {
    const auto s = static_cast<size_t>(seq_index[r]);
    std::vector<float> noise(90);
    const int32_t at = position[s] + 2;
    cpu_->ops().draw_noise(cpu_->stream(), {.seed = &sampling_[s].seed,
                                            .position = &at,
                                            .out = noise.data(),
                                            .n_rows = 1,
                                            .vocab = 90});
    int32_t best = -1;
    for (int32_t t = 0; t < 30; ++t) {
      const size_t cell = r * 30 + static_cast<size_t>(t);
      const bool greedy = s == 1;
      const float expected =
          greedy ? logits[cell]
                 : logits[cell] / sampling_[s].temperature + noise[static_cast<size_t>(3 * t + 1)];
      if (score[cell] >= -1e30f) {
        EXPECT_EQ(score[cell], expected) << r << " " << t;
      }
      if (best < 0 || score[cell] > score[r * 30 + static_cast<size_t>(best)]) best = t;
    }
    EXPECT_EQ(index[r], best);
  }
  const auto refused = [&](const std::string& words,
                           const std::function<void(specd_draw_args&)>& edit) {
    specd_draw_args args = args_of(here);
    edit(args);
    EXPECT_EQ(ops().draw(host_, &call_, &args), SPECD_E_INVALID) << words;
    expect_text(words);
  };
  using Args = specd_draw_args;
  refused("ops.draw: args of struct_size", [](Args& a) { a.struct_size = 8; });
  refused("seq_index or position is null", [](Args& a) { a.position = nullptr; });
  refused("position has shape [5], expected [3]", [&](Args& a) { a.position = &here[1]; });
  refused("token_id has shape [5], expected [30]", [&](Args& a) { a.token_id = &here[1]; });
  refused("logits and out_score overlap", [&](Args& a) { a.out_score = &here[0]; });
  refused("position_offset is 4000000000", [](Args& a) { a.position_offset = 4000000000u; });
}

TEST_F(Ops, no_op_runs_outside_of_a_step_on_a_null_or_in_a_pool_task) {
  std::vector<float> values(4);
  const specd_tensor x = host_f32(values.data(), {2, 2});
  EXPECT_EQ(ops().map(host_, &call_, SPECD_MAP_SILU, nullptr, nullptr, &x), SPECD_E_INVALID);
  EXPECT_EQ(ops().copy(host_, &call_, &x, nullptr, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(ops().topk(host_, &call_, nullptr, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(ops().linear(host_, &call_, nullptr, &x, nullptr, &x), SPECD_E_INVALID);
  EXPECT_EQ(ops().embed(host_, &call_, nullptr, nullptr, nullptr), SPECD_E_INVALID);
  EXPECT_EQ(ops().rmsnorm(host_, &call_, &x, nullptr, 0, nullptr), SPECD_E_INVALID);
  call_.clear();
  EXPECT_EQ(ops().map(host_, nullptr, SPECD_MAP_SILU, &x, nullptr, &x), SPECD_E_PRECONDITION);
  const auto& pool = table<specd_pool>(SPECD_SERVICE_POOL);
  struct Task {
    const specd_ops& ops;
    const specd_host* host;
    specd_call* call;
    const specd_tensor& x;
    specd_status status;
  } task{ops(), host_, &call_, x, SPECD_OK};
  const auto body = [](void* ctx, uint32_t) {
    auto& t = *static_cast<Task*>(ctx);
    t.status = t.ops.map(t.host, t.call, SPECD_MAP_SILU, &t.x, nullptr, &t.x);
  };
  ASSERT_EQ(pool.run(host_, &call_, 1, body, &task), SPECD_OK);
  EXPECT_EQ(task.status, SPECD_E_PRECONDITION);
  expect_text("ops.map: called from a pool task");
}

}  // namespace
}  // namespace specd
