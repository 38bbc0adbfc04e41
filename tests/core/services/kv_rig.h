// The layers of the zoo's draft model as a plugin computes them: weights/1, kv/1 and ops/1, in host
// memory or on the stand-in device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "core/device/cuda_device.h"
#include "core/model/split.h"
#include "core/plugin/instance/plugin_config.h"
#include "core/plugin/instance/tensor.h"
#include "core/services/directory.h"
#include "core/services/model.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/weights.h"
#include "tests/core/model/forward_rig.h"

namespace specd {

using Logits = std::vector<std::vector<float>>;

// Rows of a call, by sequence.
struct KvRows {
  std::vector<std::vector<int32_t>> token, parent = {};  // parent empty = chains
  std::vector<uint32_t> queries = {};                    // of the last layer; empty = all rows
  uint32_t flags = 0;
};

class KvRig {
 public:
  static constexpr int32_t kPages = 24;

  // `split`: what this rank has of the target.
  explicit KvRig(bool on_device, kernels::KvDType kv_dtype = kernels::KvDType::kF32,
                 Split split = {})
      : on_device_(on_device) {
    cpu_ = CpuDevice::create("", 2).value();
    if (on_device) {
      setenv("SPECD_CUDA_LIBRARY", SPECD_TEST_FAKE_CUDA, 1);
      unsetenv("SPECD_FAKE_CUDA");
      cuda_ = open_cuda_device(0, {.rows_max = 512, .positions_max = 2112}).value();
    }
    const std::string path = std::string(SPECD_TEST_ZOO) + "/pico-draft";
    config_ = load_model_config(path).value();
    const ModelConfig target =
        load_model_config(std::string(SPECD_TEST_ZOO) + "/pico-target").value();
    kv_ = std::make_unique<KvStore>(
        KvStore::create(device(), part_of(target, split), kv_dtype, kPages).value());
    services_ = std::make_unique<Services>(*cpu_, device(), config_.vocab_size);
    models_ = std::make_unique<ModelService>(
        device(), pool_,
        KvPages{.store = kv_.get(),
                .positions_max = 2048 + 64,
                .page_bytes = KvStore::page_bytes(target, kv_dtype)});
    services_->set_models(models_.get());
    host_ = make_host(services_.get());
    api_ = table<specd_kv_api>(SPECD_SERVICE_KV);
    ops_ = table<specd_ops>(SPECD_SERVICE_OPS);
    owner_.name = owner_.label = "inst";
    owner_.device_type = on_device ? SPECD_DEV_CUDA : SPECD_DEV_CPU;
    owner_.quota_bytes = 1 << 30;
    plugin_config_ = PluginConfig::make({{"weights", path}}, nullptr, "").value();
    weights_api_ = table<specd_weights_api>(SPECD_SERVICE_WEIGHTS);
    EXPECT_EQ(weights_api_->open(host_, &owner_, plugin_config_->get(), "weights", &weights_),
              SPECD_OK);
    load();
    for (size_t s = 0; s < 3; ++s) {
      sampling_[s].struct_size = sizeof(specd_sampling);
      sampling_[s].seed = 100 + s;
      sampling_[s].temperature = 0.8f;
      sampling_[s].top_p = 0.95f;
      sampling_[s].typical_p = 1;
      sampling_ptr_[s] = &sampling_[s];
    }
    sampling_[1].flags = SPECD_SAMPLE_GREEDY;
    batch_.struct_size = sizeof(batch_);
    batch_.n_seqs = 3;
    batch_.step_id = 1;
    batch_.seq_id = ids_;
    batch_.call = &call_;
    call_.batch = &batch_;
    call_.sampling = sampling_ptr_;
    call_.owner = &owner_;
  }
  ~KvRig() {
    EXPECT_TRUE(device().synchronize().ok());
    for (specd_kv* each : opened_) api_->close(host_, &owner_, each);
    EXPECT_EQ(owner_.used_bytes, used_before_) << "what open() charged is given back";
    for (const uint64_t id : ids_) models_->end(id);
    EXPECT_EQ(pool_.n_free(), kPages);
    services_.reset();
  }

  Device& device() { return on_device_ ? *cuda_ : static_cast<Device&>(*cpu_); }
  template <typename Table>
  const Table* table(const char* id) {
    const auto* found = static_cast<const Table*>(host_->get_service(host_, id));
    EXPECT_NE(found, nullptr) << id;
    return found;
  }

  specd_kv_open_args open_args() const {
    specd_kv_open_args args{};
    args.struct_size = sizeof(args);
    args.n_layers = static_cast<uint32_t>(config_.n_layers);
    args.n_kv_heads = static_cast<uint32_t>(config_.n_kv_heads);
    args.head_dim = static_cast<uint32_t>(config_.head_dim);
    args.rows_max = 300;
    args.positions_max = static_cast<uint32_t>(config_.max_positions);
    args.inv_freq = config_.rope.inv_freq.data();
    args.rope_scale = 1;
    return args;
  }
  // The status, and what was reported.
  std::pair<specd_status, std::string> open(const specd_kv_open_args& args, specd_kv** out) {
    std::string text;
    const PluginScope scope(owner_.label, &text);
    const specd_status status = api_->open(host_, &owner_, &args, out);
    if (status == SPECD_OK) opened_.push_back(*out);
    return {status, text};
  }
  specd_kv* opened() {
    specd_kv* kv = nullptr;
    const auto [status, text] = open(open_args(), &kv);
    EXPECT_EQ(status, SPECD_OK) << text;
    return kv;
  }
  void next_call() { call_.clear(); }

  template <typename T>
  specd_tensor tensor(std::vector<T> values, std::initializer_list<int64_t> shape) {
    buffers_.push_back(device().allocate(values.size() * sizeof(T), "a test").value());
    device().copy_in(buffers_.back().data(), values.data(), values.size() * sizeof(T));
    const uint8_t code = std::is_same_v<T, float> ? SPECD_DT_FLOAT : SPECD_DT_INT;
    const specd_tensor made = host_tensor(buffers_.back().data(), code, 32, shape);
    return on_device_ ? in_device_memory(made, 0) : made;
  }
  specd_tensor floats(int64_t rows, int64_t columns) {
    return tensor(std::vector<float>(static_cast<size_t>(rows * columns)), {rows, columns});
  }
  template <typename T>
  std::vector<T> values_of(const specd_tensor& of) {
    std::vector<T> values(of.byte_capacity / sizeof(T));
    device().copy_out(values.data(), of.data, of.byte_capacity);
    EXPECT_TRUE(device().synchronize().ok());
    return values;
  }
  static specd_tensor columns(specd_tensor of, int64_t first, int64_t n) {
    of.data = static_cast<float*>(of.data) + first;
    of.byte_capacity -= static_cast<uint64_t>(first) * 4;
    of.shape[1] = n;
    return of;
  }

  specd_status rows(specd_kv* kv, const KvRows& rows) {
    std::vector<uint32_t> offsets{0};
    std::vector<int32_t> parent;
    for (size_t s = 0; s < rows.token.size(); ++s) {
      offsets.push_back(offsets.back() + static_cast<uint32_t>(rows.token[s].size()));
      if (rows.parent.empty()) continue;
      parent.insert(parent.end(), rows.parent[s].begin(), rows.parent[s].end());
    }
    specd_kv_rows_args args{};
    args.struct_size = sizeof(args);
    args.flags = rows.flags;
    args.n_rows = offsets.back();
    args.row_offsets = offsets.data();
    args.parent = rows.parent.empty() ? nullptr : parent.data();
    args.n_queries = static_cast<uint32_t>(rows.queries.size());
    args.query_rows = rows.queries.data();
    of_.assign(batch_.n_seqs, -1);
    args.seq_status = of_.data();
    return api_->rows(host_, &call_, kv, &args);
  }
  specd_status append(specd_kv* kv, uint32_t layer, uint32_t n_heads, const specd_tensor& qkv) {
    specd_kv_append_args args{};
    args.struct_size = sizeof(args);
    args.layer = layer;
    args.n_heads = n_heads;
    args.qkv = &qkv;
    return api_->append(host_, &call_, kv, &args);
  }
  specd_status attend(specd_kv* kv, uint32_t layer, uint32_t n_heads, const specd_tensor& qkv,
                      const specd_tensor& out, uint32_t queries = SPECD_ATTEND_ALL,
                      uint32_t window = 0) {
    specd_kv_attend_args args{};
    args.struct_size = sizeof(args);
    args.layer = layer;
    args.n_heads = n_heads;
    args.queries = queries;
    args.window = window;
    args.scale = 1 / std::sqrt(static_cast<float>(config_.head_dim));
    args.qkv = &qkv;
    args.out = &out;
    return api_->attend(host_, &call_, kv, &args);
  }
  specd_tensor linear(specd_matrix* matrix, const specd_tensor& x, int64_t n_out) {
    const specd_tensor out = floats(x.shape[0], n_out);
    EXPECT_EQ(ops_->linear(host_, &call_, matrix, &x, nullptr, &out), SPECD_OK) << call_.text;
    return out;
  }
  specd_tensor norm(const specd_tensor& x, const specd_tensor& weight) {
    const specd_tensor out = floats(x.shape[0], x.shape[1]);
    EXPECT_EQ(ops_->rmsnorm(host_, &call_, &x, &weight, config_.rms_norm_eps, &out), SPECD_OK);
    return out;
  }
  specd_tensor picked(const specd_tensor& x, const specd_tensor& which) {
    const specd_tensor out = floats(which.shape[0], x.shape[1]);
    EXPECT_EQ(ops_->copy(host_, &call_, &x, &which, &out, nullptr), SPECD_OK) << call_.text;
    return out;
  }
  // All layers: logits of the queries, or of every row. Sequences that failed stay among them.
  Logits forward(specd_kv* kv, const KvRows& what) {
    EXPECT_EQ(rows(kv, what), SPECD_OK) << call_.text;
    std::vector<int32_t> tokens;
    for (const std::vector<int32_t>& each : what.token) {
      tokens.insert(tokens.end(), each.begin(), each.end());
    }
    const auto n = static_cast<int64_t>(tokens.size());
    const int64_t hidden = config_.hidden_size, q = config_.n_heads * config_.head_dim,
                  qkv_width = q + 2 * config_.n_kv_heads * config_.head_dim,
                  ffn = config_.intermediate_size;
    const auto heads = static_cast<uint32_t>(config_.n_heads);
    const specd_tensor token = tensor(tokens, {n});
    specd_tensor x = floats(n, hidden);
    EXPECT_EQ(ops_->embed(host_, &call_, &embedding_, &token, &x), SPECD_OK) << call_.text;
    for (uint32_t i = 0; i < layers_.size(); ++i) {
      const Layer& layer = layers_[i];
      specd_tensor qkv = linear(layer.qkv, norm(x, layer.attention_norm), qkv_width);
      EXPECT_EQ(append(kv, i, heads, qkv), SPECD_OK) << call_.text;
      const bool is_picked = i + 1 == layers_.size() && !what.queries.empty();
      if (is_picked) {
        const auto n_queries = static_cast<int64_t>(what.queries.size());
        const specd_tensor which =
            tensor(std::vector<int32_t>(what.queries.begin(), what.queries.end()), {n_queries});
        qkv = picked(qkv, which);
        x = picked(x, which);
      }
      const specd_tensor mixed = floats(x.shape[0], q);
      EXPECT_EQ(
          attend(kv, i, heads, qkv, mixed, is_picked ? SPECD_ATTEND_QUERIES : SPECD_ATTEND_ALL),
          SPECD_OK)
          << call_.text;
      add(x, linear(layer.o, mixed, hidden));
      const specd_tensor both = linear(layer.gate_up, norm(x, layer.mlp_norm), 2 * ffn);
      const specd_tensor gate = columns(both, 0, ffn), up = columns(both, ffn, ffn);
      const specd_tensor act = floats(x.shape[0], ffn);
      EXPECT_EQ(ops_->map(host_, &call_, SPECD_MAP_SILU_MUL, &gate, &up, &act), SPECD_OK);
      add(x, linear(layer.down, act, hidden));
    }
    const specd_tensor logits = linear(head_, norm(x, final_norm_), config_.vocab_size);
    const std::vector<float> all = values_of<float>(logits);
    Logits out;
    const auto width = static_cast<size_t>(config_.vocab_size);
    for (size_t r = 0; r * width < all.size(); ++r) {
      out.emplace_back(all.begin() + static_cast<ptrdiff_t>(r * width),
                       all.begin() + static_cast<ptrdiff_t>((r + 1) * width));
    }
    return out;
  }
  specd_status keep(specd_kv* kv, const std::vector<uint32_t>& kept,
                    const std::vector<std::vector<uint32_t>>& paths = {}) {
    std::vector<uint32_t> offsets{0}, path;
    for (const std::vector<uint32_t>& each : paths) {
      path.insert(path.end(), each.begin(), each.end());
      offsets.push_back(static_cast<uint32_t>(path.size()));
    }
    return api_->keep(host_, &call_, kv, kept.data(), paths.empty() ? nullptr : offsets.data(),
                      path.data());
  }
  std::vector<uint32_t> lengths(specd_kv* kv) {
    std::vector<uint32_t> out(batch_.n_seqs, 99);
    EXPECT_EQ(api_->length(host_, &call_, kv, out.data()), SPECD_OK) << call_.text;
    return out;
  }
  static std::vector<uint32_t> upto(uint32_t n) {
    std::vector<uint32_t> all(n);
    for (uint32_t i = 0; i < n; ++i) all[i] = i;
    return all;
  }
  void expect_words(const std::string& words) {
    std::string all = call_.text;
    for (const auto& [s, text] : call_.sequence_text) all += text;
    EXPECT_NE(all.find(words), std::string::npos) << words << " not in: " << all;
    call_.text.clear();
    call_.sequence_text.clear();
  }

  struct Layer {
    specd_matrix *qkv, *o, *gate_up, *down;
    specd_tensor attention_norm, mlp_norm;
  };

  const bool on_device_;
  std::unique_ptr<CpuDevice> cpu_;
  std::unique_ptr<Device> cuda_;
  ModelConfig config_;
  std::unique_ptr<KvStore> kv_;
  PagePool pool_{kPages};
  std::unique_ptr<ModelService> models_;
  std::unique_ptr<Services> services_;
  const specd_host* host_ = nullptr;
  const specd_kv_api* api_ = nullptr;
  const specd_ops* ops_ = nullptr;
  const specd_weights_api* weights_api_ = nullptr;
  std::unique_ptr<PluginConfig> plugin_config_;
  std::vector<Buffer> buffers_;
  specd_owner owner_;
  specd_weights* weights_ = nullptr;
  std::vector<Layer> layers_;
  specd_tensor embedding_{}, final_norm_{};
  specd_matrix* head_ = nullptr;
  uint64_t ids_[3] = {1, 2, 3};
  specd_sampling sampling_[3] = {};
  const specd_sampling* sampling_ptr_[3] = {};
  specd_batch batch_{};
  specd_call call_;
  std::vector<specd_status> of_;
  std::vector<specd_kv*> opened_;
  uint64_t used_before_ = 0;

 private:
  void add(const specd_tensor& x, const specd_tensor& y) {
    EXPECT_EQ(ops_->map(host_, &call_, SPECD_MAP_ADD, &x, &y, &x), SPECD_OK) << call_.text;
  }
  specd_matrix* matrix(const std::vector<std::string>& names, int64_t n_out, int64_t n_in) {
    std::vector<const char*> list;
    for (const std::string& name : names) list.push_back(name.c_str());
    specd_matrix* out = nullptr;
    EXPECT_EQ(weights_api_->matrix(host_, &owner_, weights_, list.data(),
                                   static_cast<uint32_t>(list.size()), n_out, n_in, &out),
              SPECD_OK)
        << names[0];
    return out;
  }
  specd_tensor vector(const std::string& name, int64_t n) {
    specd_tensor out{};
    EXPECT_EQ(weights_api_->tensor(host_, &owner_, weights_, name.c_str(), 1, &n, SPECD_DT_FLOAT,
                                   32, &out),
              SPECD_OK)
        << name;
    return out;
  }
  void load() {
    const int64_t hidden = config_.hidden_size, q = config_.n_heads * config_.head_dim,
                  k = config_.n_kv_heads * config_.head_dim, ffn = config_.intermediate_size,
                  vocab = config_.vocab_size;
    for (int32_t i = 0; i < config_.n_layers; ++i) {
      const std::string at = "model.layers." + std::to_string(i) + ".";
      const std::string attention = at + "self_attn.", mlp = at + "mlp.";
      layers_.push_back(
          {.qkv = matrix({attention + "q_proj.weight", attention + "k_proj.weight",
                          attention + "v_proj.weight"},
                         q + 2 * k, hidden),
           .o = matrix({attention + "o_proj.weight"}, hidden, q),
           .gate_up = matrix({mlp + "gate_proj.weight", mlp + "up_proj.weight"}, 2 * ffn, hidden),
           .down = matrix({mlp + "down_proj.weight"}, hidden, ffn),
           .attention_norm = vector(at + "input_layernorm.weight", hidden),
           .mlp_norm = vector(at + "post_attention_layernorm.weight", hidden)});
    }
    final_norm_ = vector("model.norm.weight", hidden);
    head_ = matrix({"model.embed_tokens.weight"}, vocab, hidden);
    const int64_t shape[] = {vocab, hidden};
    EXPECT_EQ(weights_api_->tensor(host_, &owner_, weights_, "model.embed_tokens.weight", 2, shape,
                                   SPECD_DT_BFLOAT, 16, &embedding_),
              SPECD_OK);
    used_before_ = owner_.used_bytes;
  }
};

}  // namespace specd
