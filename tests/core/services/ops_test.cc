#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "specd/plugin_api/drafter.h"
#include "specd/plugin_api/services/ops.h"
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

}  // namespace
}  // namespace specd
