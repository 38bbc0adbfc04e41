// Calls of services with the first, second, third .. allocation failing, until one passes untouched:
// the plugin is told, and what it may believe afterwards is true. See nth_failure_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "core/plugin/instance/plugin_config.h"
#include "core/services/metrics.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/memory.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/weights.h"
#include "tests/core/services/model_rig.h"
#include "tests/failing_new.h"

namespace specd {
namespace {

class ServicesNthFailure : public ModelServiceTest {
 protected:
  template <typename Table>
  const Table& table(const char* id) {
    return *static_cast<const Table*>(host_->get_service(host_, id));
  }

  // Calls `prepare`, then `service` with its n-th allocation failing, then `check` with what it
  // returned, for every n. Returns how many failed.
  template <typename Prepare, typename Service, typename Check>
  long until_untouched(Prepare&& prepare, Service&& service, Check&& check) {
    for (long n = 1;; ++n) {
      prepare();
      g_failed = false;
      g_allocations_left = n;
      const specd_status status = service();
      g_allocations_left = 0;
      if (!g_failed) {
        EXPECT_EQ(status, SPECD_OK) << call_.text;
        return n - 1;
      }
      check(status);
      if (HasFailure()) return n;
      call_.clear();
    }
  }

  // Sequence 0 has kept `text`, sequence 1 nothing.
  void start(const std::vector<int32_t>& text) {
    for (const uint64_t id : ids_) models_->end(id);
    feed(text);
  }
  // Sequence 0 has its session or none, and goes on with the bits of the model alone.
  void expect_usable(const std::vector<int32_t>& text) {
    const uint32_t kept = lengths()[0];
    EXPECT_TRUE(kept == 0 || kept == text.size()) << kept;
    const std::vector<int32_t> missing(text.begin() + static_cast<ptrdiff_t>(kept), text.end());
    if (!missing.empty()) feed(missing);
    const Result next = forward({{{17}, {}, {}}, {}});
    ASSERT_EQ(next.status, SPECD_OK) << call_.text;
    std::vector<int32_t> longer = text;
    longer.push_back(17);
    EXPECT_EQ(next.logits[0], plain(longer).back());
    for (const uint64_t id : ids_) models_->end(id);
    EXPECT_EQ(pool_->n_free(), kPages);
    EXPECT_EQ(models_->models()[0]->kv.pages_held, 0);
  }

  // Copies two matrices as one, and a vector, of the weights in `path`, with every allocation failing once.
  void copy_weights_of(const std::string& path) {
    const auto& api = table<specd_weights_api>(SPECD_SERVICE_WEIGHTS);
    const auto config = PluginConfig::make({{"weights", path}}, nullptr).value();
    owner_.plugin = owner_.label = "inst";
    owner_.device_type = SPECD_DEV_CPU;
    {
      const MutexLock lock(owner_.mutex);
      owner_.quota_bytes = 1 << 24;
    }
    specd_weights* weights = nullptr;
    ASSERT_EQ(api.open(host_, &owner_, config->get(), "weights", &weights), SPECD_OK);
    const char* const names[] = {"model.layers.0.self_attn.q_proj.weight",
                                 "model.layers.0.self_attn.k_proj.weight"};
    specd_tensor q{}, k{}, copy{};
    ASSERT_EQ(api.find(host_, weights, names[0], 0, nullptr, &q), SPECD_OK);
    ASSERT_EQ(api.find(host_, weights, names[1], 0, nullptr, &k), SPECD_OK);
    const auto forget = [&] {
      const MutexLock lock(owner_.mutex);
      owner_.matrices.clear();
      while (owner_.weights.size() > 1) {
        const auto is_copy = [&](const auto& each) { return each.get() != weights; };
        owner_.weights.erase(std::find_if(owner_.weights.begin(), owner_.weights.end(), is_copy));
      }
      owner_.used_bytes = 0;
    };
    const auto expect_nothing = [&](specd_status status) {
      // What reads the limits of the machine does without them.
      if (status == SPECD_OK) return;
      EXPECT_EQ(status, SPECD_E_EXHAUSTED);
      const MutexLock lock(owner_.mutex);
      EXPECT_EQ(owner_.used_bytes, 0u);
      EXPECT_TRUE(owner_.matrices.empty());
      EXPECT_EQ(owner_.weights.size(), 1u);
    };
    specd_matrix* matrix = nullptr;
    EXPECT_GT(until_untouched(
                  forget,
                  [&] {
                    return api.matrix(host_, &owner_, weights, names, 2, q.shape[0] + k.shape[0],
                                      q.shape[1], &matrix);
                  },
                  expect_nothing),
              5);
    EXPECT_GT(until_untouched(
                  forget,
                  [&] {
                    return api.tensor(host_, &owner_, weights, "model.norm.weight", 1, &q.shape[1],
                                      SPECD_DT_FLOAT, 32, &copy);
                  },
                  expect_nothing),
              5);
  }

  const std::vector<int32_t> text_ = some_tokens(40, 1);
};

TEST_F(ServicesNthFailure, of_allocations_in_forward_empties_sessions_and_no_more) {
  const std::vector<int32_t> tree = some_tokens(9, 2), parent = {-1, 0, 0, 1, -1, 4, 2, 2, 7};
  std::vector<int32_t> token = tree;
  token.insert(token.end(), tree.begin(), tree.end());
  std::vector<int32_t> parents = parent;
  parents.insert(parents.end(), parent.begin(), parent.end());
  const std::vector<uint32_t> offsets = {0, 9, 18, 18}, outputs = {3, 8, 12};
  std::vector<int32_t> drawn(3), top(3 * 4);
  std::vector<specd_status> of(3);
  const specd_tensor token_t = host_i32(token.data(), {18}), drawn_t = host_i32(drawn.data(), {3}),
                     top_t = host_i32(top.data(), {3, 4});
  specd_forward_args args{};
  args.struct_size = sizeof(args);
  args.n_rows = 18;
  args.n_outputs = 3;
  args.row_offsets = offsets.data();
  args.parent = parents.data();
  args.output_rows = outputs.data();
  args.token = &token_t;
  args.out_token = &drawn_t;
  args.out_topk_token = &top_t;  // its memory is taken on every worker thread
  args.seq_status = of.data();
  const long n = until_untouched([&] { start(text_); },
                                 [&] { return table_->forward(host_, &call_, model_, &args); },
                                 [&](specd_status status) {
                                   EXPECT_EQ(status, SPECD_E_EXHAUSTED);
                                   EXPECT_EQ(lengths()[0], 0u);
                                   expect_usable(text_);
                                 });
  EXPECT_GT(n, 10);
}

TEST_F(ServicesNthFailure, of_allocations_in_follow_empties_sessions_and_no_more) {
  std::vector<int32_t> longer = text_;
  longer.push_back(5);
  longer.push_back(6);
  const std::vector<int32_t> other = some_tokens(20, 3);
  const std::vector<std::span<const int32_t>> committed = {longer, other, other};
  const std::vector<uint32_t> outputs = {0, 1, 2};
  std::vector<int32_t> drawn(3);
  std::vector<specd_status> of(3);
  const specd_tensor drawn_t = host_i32(drawn.data(), {3});
  specd_forward_args args{};
  args.struct_size = sizeof(args);
  args.n_rows = 100;
  args.n_outputs = 3;
  args.output_rows = outputs.data();
  args.out_token = &drawn_t;
  args.seq_status = of.data();
  const long n = until_untouched(
      [&] {
        start(text_);
        call_.committed = &committed;
      },
      [&] { return table_->follow(host_, &call_, model_, &args); },
      [&](specd_status status) {
        call_.committed = nullptr;
        EXPECT_EQ(status, SPECD_E_EXHAUSTED);
        EXPECT_EQ(lengths()[0], 0u);
        expect_usable(text_);
      });
  call_.committed = nullptr;
  EXPECT_GT(n, 10);
}

TEST_F(ServicesNthFailure, of_allocations_in_keep_empties_sessions_and_no_more) {
  const std::vector<uint32_t> kept = {static_cast<uint32_t>(text_.size()), 0, 0};
  const std::vector<uint32_t> offsets = {0, 2, 2, 2}, rows = {1, 3};
  const long n = until_untouched(
      [&] {
        start(text_);
        const std::vector<int32_t> round = {7, 8, 9, 10};
        ASSERT_EQ(forward({{round, {}, {}}, {{-1, -1, 0, 1}, {}, {}}}).of[0], SPECD_OK);
      },
      [&] { return table_->keep(host_, &call_, model_, kept.data(), offsets.data(), rows.data()); },
      [&](specd_status status) {
        EXPECT_EQ(status, SPECD_E_EXHAUSTED);
        EXPECT_EQ(lengths()[0], 0u);
        expect_usable(text_);
      });
  EXPECT_GT(n, 2);
}

// kv/1 in the same pages: rows and keep, with a session that had rows before.
TEST_F(ServicesNthFailure, of_allocations_in_rows_and_keep_of_kv_empties_sessions_and_no_more) {
  models_.reset();
  models_ = std::make_unique<ModelService>(*device_, *pool_, KvPages{kv_.get(), 2048});
  services_->set_models(models_.get());
  owner_.plugin = owner_.label = "inst";
  owner_.device_type = SPECD_DEV_CPU;
  {
    const MutexLock lock(owner_.mutex);
    owner_.quota_bytes = 1 << 20;
  }
  const auto& api = table<specd_kv_api>(SPECD_SERVICE_KV);
  specd_kv_open_args open{};
  open.struct_size = sizeof(open);
  open.n_layers = open.n_kv_heads = 1;
  open.head_dim = 16;
  open.rows_max = 100;
  open.positions_max = 1000;
  specd_kv* kv = nullptr;
  EXPECT_GT(until_untouched([&] {}, [&] { return api.open(host_, &owner_, &open, &kv); },
                            [&](specd_status status) {
                              if (status == SPECD_OK) {  // what reads the machine does without
                                api.close(host_, &owner_, kv);
                                return;
                              }
                              EXPECT_EQ(status, SPECD_E_EXHAUSTED);
                              EXPECT_EQ(kv, nullptr);
                              const MutexLock lock(owner_.mutex);
                              EXPECT_EQ(owner_.used_bytes, 0u);
                            }),
            3);
  const std::vector<uint32_t> offsets = {0, 40, 60, 60}, tree_offsets = {0, 3, 5, 5},
                              kept = {40, 20, 0}, none = {0, 0, 0};
  const std::vector<int32_t> parent = {-1, -1, 1, -1, -1};
  std::vector<uint32_t> all(60), path = {1, 2, 1}, path_offsets = {0, 2, 3, 3};
  for (uint32_t i = 0; i < 60; ++i) all[i] = i < 40 ? i : i - 40;
  std::vector<specd_status> of(3);
  const auto rows = [&](const std::vector<uint32_t>& row_offsets, const int32_t* parents) {
    specd_kv_rows_args args{};
    args.struct_size = sizeof(args);
    args.n_rows = row_offsets.back();
    args.row_offsets = row_offsets.data();
    args.parent = parents;
    args.seq_status = of.data();
    return api.rows(host_, &call_, kv, &args);
  };
  std::vector<uint32_t> length(3);
  const auto begin = [&] {
    for (const uint64_t id : ids_) models_->end(id);
    call_.clear();
    ASSERT_EQ(rows(offsets, nullptr), SPECD_OK) << call_.text;
    ASSERT_EQ(api.keep(host_, &call_, kv, none.data(), offsets.data(), all.data()), SPECD_OK);
    call_.clear();
  };
  const auto expect_kept_or_empty = [&](specd_status status) {
    EXPECT_EQ(status, SPECD_E_EXHAUSTED);
    ASSERT_EQ(api.length(host_, &call_, kv, length.data()), SPECD_OK);
    EXPECT_EQ(length, none);
    call_.clear();
    EXPECT_EQ(rows(offsets, nullptr), SPECD_OK) << call_.text;
    for (const uint64_t id : ids_) models_->end(id);
    EXPECT_EQ(pool_->n_free(), kPages);
  };
  EXPECT_GT(until_untouched(
                begin, [&] { return rows(tree_offsets, parent.data()); }, expect_kept_or_empty),
            2);
  EXPECT_GT(until_untouched(
                [&] {
                  begin();
                  ASSERT_EQ(rows(tree_offsets, parent.data()), SPECD_OK);
                },
                [&] {
                  return api.keep(host_, &call_, kv, kept.data(), path_offsets.data(), path.data());
                },
                expect_kept_or_empty),
            0);
  api.close(host_, &owner_, kv);
}

TEST_F(ServicesNthFailure, of_allocations_where_handles_are_made_leaves_none) {
  specd_model* opened = nullptr;
  EXPECT_GT(until_untouched([&] {}, [&] { return table_->open(host_, &owner_, "second", &opened); },
                            [&](specd_status status) {
                              EXPECT_EQ(status, SPECD_E_EXHAUSTED);
                              EXPECT_EQ(opened, nullptr);
                            }),
            2);
  table_->close(host_, &owner_, opened);

  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  owner_.plugin = owner_.label = "inst";
  {
    const MutexLock lock(owner_.mutex);
    owner_.quota_bytes = 1000;
  }
  void* block = nullptr;
  EXPECT_GT(
      until_untouched(
          [&] {}, [&] { return memory.alloc(host_, &owner_, SPECD_DEV_CPU, 0, 100, 64, &block); },
          [&](specd_status status) {
            EXPECT_EQ(status, SPECD_E_EXHAUSTED);
            EXPECT_EQ(block, nullptr);
            const MutexLock lock(owner_.mutex);
            EXPECT_EQ(owner_.used_bytes, 0u);
          }),
      0);
  memory.free(host_, &owner_, block);
  void* scratch = nullptr;
  EXPECT_GT(until_untouched([&] { std::vector<std::unique_ptr<char[]>>().swap(call_.scratch); },
                            [&] { return memory.scratch(host_, &call_, 100, 64, &scratch); },
                            [&](specd_status status) {
                              EXPECT_EQ(status, SPECD_E_EXHAUSTED);
                              EXPECT_EQ(scratch, nullptr);
                            }),
            0);
  call_.clear();

  const auto& metrics = table<specd_metrics>(SPECD_SERVICE_METRICS);
  specd_metric* metric = nullptr;
  EXPECT_GT(until_untouched([&] {},
                            [&] {
                              return metrics.define(host_, &owner_, SPECD_METRIC_GAUGE,
                                                    "a_name_that_does_not_fit_into_a_string",
                                                    nullptr, &metric);
                            },
                            [&](specd_status status) {
                              EXPECT_EQ(status, SPECD_E_EXHAUSTED);
                              EXPECT_EQ(metric, nullptr);
                              EXPECT_TRUE(plugin_metrics(owner_).empty());
                            }),
            1);
}

// A refusal whose text finds no memory is a refusal all the same.
TEST_F(ServicesNthFailure, of_allocations_in_refusals_ends_no_process) {
  const auto& memory = table<specd_memory>(SPECD_SERVICE_MEMORY);
  set_log_level(LogLevel::kOff);
  int stranger = 0, n_failed = 0;
  for (long n = 1; n < 40; ++n) {
    void* block = &stranger;
    specd_model* opened = nullptr;
    const auto failing = [&](auto&& service) {
      g_failed = false;
      g_allocations_left = n;
      const specd_status status = service();
      g_allocations_left = 0;
      n_failed += g_failed.exchange(false) ? 1 : 0;
      return status;
    };
    EXPECT_NE(
        failing([&] { return memory.alloc(host_, &owner_, SPECD_DEV_CUDA, 7, 100, 64, &block); }),
        SPECD_OK);
    EXPECT_EQ(block, nullptr);
    EXPECT_NE(failing([&] { return table_->open(host_, &owner_, "absent", &opened); }), SPECD_OK);
    EXPECT_NE(
        failing([&] { return table_->keep(host_, &call_, nullptr, nullptr, nullptr, nullptr); }),
        SPECD_OK);
    failing([&] {
      memory.free(host_, &owner_, &stranger);
      return host_->get_service(host_, "specd.host.model/1#another") == nullptr ? SPECD_OK : 1;
    });
    call_.clear();
  }
  set_log_level(LogLevel::kInfo);
  EXPECT_GT(n_failed, 10);
}

TEST_F(ServicesNthFailure, of_allocations_where_weights_are_copied_costs_nothing) {
  copy_weights_of(std::string(SPECD_TEST_ZOO) + "/pico-draft");
}

TEST_F(ServicesNthFailure, of_allocations_where_matrices_of_codes_are_packed_costs_nothing) {
  copy_weights_of(SPECD_TEST_REFERENCE "/quantized/ct_int4_llama");
}

}  // namespace
}  // namespace specd
