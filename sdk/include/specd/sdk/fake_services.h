// The host's side of the boundary for unit tests: log, report, and services with switches that make
// them fail. See fake_host.h.
#ifndef SPECD_SDK_FAKE_SERVICES_H
#define SPECD_SDK_FAKE_SERVICES_H

#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/metrics.h>
#include <specd/plugin_api/services/ops.h>
#include <specd/plugin_api/services/parts.h>
#include <specd/plugin_api/services/pool.h>
#include <specd/plugin_api/services/rng.h>
#include <specd/sdk/canary.h>
#include <specd/sdk/fake_config.h>
#include <specd/sdk/fake_model.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace specd::sdk {

class FakeHost {
 public:
  struct LogLine {
    uint32_t severity;
    std::string text;
  };
  struct Report {
    int32_t seq_index;  // -1: the whole call
    std::string text;
  };

  FakeHost() {
    std::memset(&target_, 0, sizeof target_);
    target_.struct_size = sizeof target_;
    target_.vocab_size = 1000;
    target_.hidden_size = 64;
    target_.n_layers = 2;
    target_.n_heads = 4;
    target_.n_kv_heads = 2;
    target_.head_dim = 16;
    target_.max_positions = 4096;
    target_.bos_token = target_.eos_token = -1;
    target_.norm_eps = 1e-5f;
    target_.model_id = "fake";
    target_.architecture = "FakeForCausalLM";
    target_.tokenizer_sha256 = sha256_;

    specd_host& h = host_.value;
    h.struct_size = sizeof h;
    h.ctx = this;
    h.name = "fake_host";
    h.version = "0";
    h.log = [](const specd_host* host, uint32_t severity, const char* text, uint64_t len) noexcept {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      self->logs_.push_back({severity, std::string(text, len)});
    };
    h.report = [](const specd_host* host, specd_call*, int32_t seq_index, const char* text,
                  uint64_t len) noexcept {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      self->reports_.push_back({seq_index, std::string(text, len)});
    };
    h.get_service = [](const specd_host* host, const char* id) noexcept -> const void* {
      FakeHost* self = of(host);
      if (self->withheld_.count(id) != 0) return nullptr;
      const std::string wanted = id;
      if (wanted == SPECD_SERVICE_MEMORY) return &self->memory_.value;
      if (wanted == SPECD_SERVICE_RNG) return &self->rng_.value;
      if (wanted == SPECD_SERVICE_METRICS) return &self->metrics_table_.value;
      if (wanted == SPECD_SERVICE_POOL) return &self->pool_.value;
      if (wanted == SPECD_SERVICE_MODEL) return &self->models_.value;
      if (wanted == SPECD_SERVICE_OPS) return &self->ops_.value;
      if (wanted == SPECD_SERVICE_PARTS) return &self->parts_table_.value;
      return nullptr;
    };
    h.now_ns = [](const specd_host*) noexcept -> uint64_t {
      return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                       std::chrono::steady_clock::now().time_since_epoch())
                                       .count());
    };
    make_memory();
    make_rng();
    make_metrics();
    make_pool();
    make_models();
    make_ops();
    make_parts();
  }
  ~FakeHost() {
    for (auto& block : blocks_) std::free(block.first);
  }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  const specd_host* host() const { return &host_.value; }
  specd_owner* owner() { return reinterpret_cast<specd_owner*>(this); }
  specd_target_info& target() { return target_; }

  // Memory: a quota, failure of the n-th allocation from now (1 = the next, 0 = none), counters.
  void set_memory_quota(uint64_t bytes) { quota_ = bytes; }
  void fail_allocation(uint64_t nth) { fail_at_ = nth == 0 ? 0 : allocations_ + nth; }
  uint64_t allocations() const { return allocations_; }
  uint64_t memory_used() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return used_;
  }

  // The model that model/1 serves.
  FakeModel& model() { return model_; }

  // Sets what parts/1 finds at `path`, regardless of the configuration.
  void set_part(const std::string& path, const specd_factory& factory,
                FakeConfig config = FakeConfig()) {
    auto part = std::make_unique<Part>(Part{std::move(config), {}, &factory});
    part->view = part->config.view();
    parts_[path] = std::move(part);
  }

  void withhold_service(const std::string& id) { withheld_.insert(id); }

  const std::vector<LogLine>& logs() const { return logs_; }
  const std::vector<Report>& reports() const { return reports_; }
  void clear_reports() { reports_.clear(); }
  const std::map<std::string, double>& metrics() const { return metric_values_; }

  // Contract violations by the plugin: overwritten canaries, foreign or unreturned memory, bad
  // arguments to services.
  const std::vector<std::string>& violations() const { return violations_; }
  void violate(const std::string& text) { violations_.push_back(text); }
  void check(bool condition, const std::string& text) {
    if (!condition) violate(text);
  }
  // Call after destroy() of the last instance. Memory still held is a leak; scratch memory
  // is released.
  void expect_no_memory_held() {
    check(used_ == 0, std::to_string(used_) + " bytes still held at destroy()");
    check(model_.open == 0, "a model is still open at destroy()");
    check_blocks();
  }
  void check_blocks() {
    const std::lock_guard<std::mutex> lock(mutex_);  // the plugin's threads may allocate too
    for (const auto& block : blocks_) {
      check(block_intact(block.first, block.second), "wrote past a block of the memory service");
    }
    check(host_.intact() && memory_.intact() && rng_.intact() && metrics_table_.intact() &&
              pool_.intact() && models_.intact() && ops_.intact(),
          "wrote past a table of the host");
  }

  // One host-to-plugin call. FakeBatch and the fake drafter and verifier create it.
  struct Call {
    FakeHost* host;
    const specd_sampling* const* sampling;
    uint32_t n_seqs;
    std::vector<void*> scratch;
    const uint64_t* seq_id = nullptr;
    std::vector<const std::vector<int32_t>*> text = {};  // committed texts; set in propose() only
    specd_call* handle() { return reinterpret_cast<specd_call*>(this); }
    ~Call() {
      for (void* block : scratch) std::free(block);
    }
  };

 private:
  static FakeHost* of(const specd_host* host) { return static_cast<FakeHost*>(host->ctx); }

  static bool block_intact(const void* block, uint64_t bytes) {
    const auto* tail = static_cast<const unsigned char*>(block) + bytes;
    for (int i = 0; i < 16; ++i) {
      if (tail[i] != kCanary) return false;
    }
    return true;
  }
  static void* aligned(uint64_t bytes, uint64_t align) {
    void* block = nullptr;
    if (posix_memalign(&block, align < sizeof(void*) ? sizeof(void*) : align, bytes + 16) != 0) {
      return nullptr;
    }
    std::memset(static_cast<unsigned char*>(block) + bytes, kCanary, 16);
    return block;
  }
  static bool good_align(uint64_t align) {
    return align != 0 && align <= 4096 && (align & (align - 1)) == 0;
  }

  void make_memory() {
    specd_memory& m = memory_.value;
    m.struct_size = sizeof m;
    m.alloc = [](const specd_host* host, specd_owner*, int32_t device_type, int32_t, uint64_t bytes,
                 uint64_t align, void** out) noexcept -> specd_status {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      if (device_type != SPECD_DEV_CPU) return SPECD_E_UNSUPPORTED;
      if (!good_align(align)) {
        self->violate("alloc(): align is not a power of two of at most 4096");
        return SPECD_E_INVALID;
      }
      ++self->allocations_;
      if (self->allocations_ == self->fail_at_) return SPECD_E_EXHAUSTED;
      if (bytes > self->quota_ || self->used_ > self->quota_ - bytes) return SPECD_E_EXHAUSTED;
      void* block = aligned(bytes, align);
      if (block == nullptr) return SPECD_E_EXHAUSTED;
      self->blocks_[block] = bytes;
      self->used_ += bytes;
      *out = block;
      return SPECD_OK;
    };
    m.free = [](const specd_host* host, specd_owner*, void* block) noexcept {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      if (block == nullptr) return;
      const auto it = self->blocks_.find(block);
      if (it == self->blocks_.end()) {
        self->violate("free(): not a block of this host, or freed twice");
        return;
      }
      self->check(block_intact(block, it->second), "wrote past a block of the memory service");
      self->used_ -= it->second;
      self->blocks_.erase(it);
      std::free(block);
    };
    m.scratch = [](const specd_host* host, specd_call* call, uint64_t bytes, uint64_t align,
                   void** out) noexcept -> specd_status {
      if (call == nullptr || !good_align(align)) {
        of(host)->violate("scratch(): bad call or align");
        return SPECD_E_INVALID;
      }
      void* block = aligned(bytes, align);
      if (block == nullptr) return SPECD_E_EXHAUSTED;
      reinterpret_cast<Call*>(call)->scratch.push_back(block);
      *out = block;
      return SPECD_OK;
    };
  }

  // Not the daemon's numbers, but just as deterministic: a hash of the key.
  static uint64_t hash(std::initializer_list<uint64_t> key) {
    uint64_t x = 0x243f6a8885a308d3u;
    for (const uint64_t part : key) {
      x += part + 0x9e3779b97f4a7c15u;
      x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
      x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
      x ^= x >> 31;
    }
    return x;
  }
  static float unit(uint64_t bits) { return static_cast<float>(bits >> 40) * 0x1p-24f; }

  template <class Fill>
  static specd_status fill_rows(const specd_host* host, specd_call* call,
                                const specd_tensor* seq_index, const specd_tensor* position,
                                const specd_tensor* out, Fill&& fill) {
    const auto* c = reinterpret_cast<const Call*>(call);
    if (c == nullptr || seq_index == nullptr || position == nullptr || out == nullptr ||
        out->rank != 2 || seq_index->shape[0] != out->shape[0] ||
        position->shape[0] != out->shape[0]) {
      of(host)->violate("rng: tensors of the wrong shape");
      return SPECD_E_INVALID;
    }
    for (int64_t r = 0; r < out->shape[0]; ++r) {
      const int32_t s = static_cast<const int32_t*>(seq_index->data)[r * seq_index->stride[0]];
      const int32_t p = static_cast<const int32_t*>(position->data)[r * position->stride[0]];
      if (s < 0 || static_cast<uint32_t>(s) >= c->n_seqs) {
        of(host)->violate("rng: seq_index outside of the batch");
        return SPECD_E_INVALID;
      }
      for (int64_t i = 0; i < out->shape[1]; ++i) {
        static_cast<float*>(out->data)[r * out->stride[0] + i * out->stride[1]] =
            fill(*c->sampling[s], static_cast<uint64_t>(p), static_cast<uint64_t>(i));
      }
    }
    return SPECD_OK;
  }

  void make_rng() {
    specd_rng& r = rng_.value;
    r.struct_size = sizeof r;
    r.draw_noise = [](const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                      const specd_tensor* position, const specd_tensor* out) noexcept {
      return fill_rows(host, call, seq_index, position, out,
                       [](const specd_sampling& s, uint64_t p, uint64_t token) {
                         if ((s.flags & SPECD_SAMPLE_GREEDY) != 0) return 0.0f;
                         const float u = unit(hash({s.seed, p, 0, token})) + 0x1p-25f;
                         return -std::log(-std::log(u));
                       });
    };
    r.uniform = [](const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                   const specd_tensor* position, uint32_t purpose, uint32_t round,
                   const specd_tensor* out) noexcept {
      if (purpose == 0) {
        of(host)->violate("rng.uniform: purpose 0 belongs to the host");
        return static_cast<specd_status>(SPECD_E_INVALID);
      }
      return fill_rows(host, call, seq_index, position, out,
                       [&](const specd_sampling& s, uint64_t p, uint64_t lane) {
                         return unit(hash({s.seed, p, purpose, round, lane}));
                       });
    };
  }

  void make_metrics() {
    specd_metrics& m = metrics_table_.value;
    m.struct_size = sizeof m;
    m.define = [](const specd_host* host, specd_owner*, uint32_t kind, const char* name,
                  const char*, specd_metric** out) noexcept -> specd_status {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      std::string id = name;
      bool good = !id.empty() && id.size() <= 64 && id[0] >= 'a' && id[0] <= 'z';
      for (const char c : id) {
        good = good && ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_');
      }
      if (!good || kind > SPECD_METRIC_GAUGE) {
        self->violate("metrics.define: bad name or kind: " + id);
        return SPECD_E_INVALID;
      }
      auto& metric = self->metric_handles_[id];
      if (metric == nullptr) metric = std::make_unique<Metric>(Metric{id, kind});
      self->metric_values_.emplace(id, 0.0);
      *out = reinterpret_cast<specd_metric*>(metric.get());
      return SPECD_OK;
    };
    m.record = [](const specd_host* host, specd_metric* metric, double value) noexcept {
      FakeHost* self = of(host);
      const std::lock_guard<std::mutex> lock(self->mutex_);
      const auto* m2 = reinterpret_cast<const Metric*>(metric);
      double& now = self->metric_values_[m2->name];
      if (m2->kind == SPECD_METRIC_GAUGE) {
        now = value;
      } else if (std::isfinite(value) && value >= 0) {
        now += value;
      }
    };
  }

  void make_pool() {
    specd_pool& p = pool_.value;
    p.struct_size = sizeof p;
    p.width = [](const specd_host*) noexcept -> uint32_t { return 1; };
    // Runs backwards, to expose plugins that rely on an order.
    p.run = [](const specd_host*, specd_call*, uint32_t n, specd_pool_task task,
               void* ctx) noexcept -> specd_status {
      for (uint32_t i = n; i-- > 0;) task(ctx, i);
      return SPECD_OK;
    };
  }

  // Follows the definition in ops.h: walks from the root down, not in one pass over the nodes.
  void make_ops() {
    specd_ops& o = ops_.value;
    o.struct_size = sizeof o;
    // This host walks only: a drafter with layers of its own is tested with the daemon.
    using AnyHost = const specd_host*;
    using AnyCall = specd_call*;
    using Tensor = const specd_tensor*;
    o.linear = [](AnyHost, AnyCall, const specd_matrix*, Tensor, Tensor, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.embed = [](AnyHost, AnyCall, Tensor, Tensor, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.rmsnorm = [](AnyHost, AnyCall, Tensor, Tensor, double, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.map = [](AnyHost, AnyCall, uint32_t, Tensor, Tensor, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.copy = [](AnyHost, AnyCall, Tensor, Tensor, Tensor, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.topk = [](AnyHost, AnyCall, Tensor, Tensor, Tensor) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
    };
    o.walk = [](const specd_host* host, specd_call*, const specd_walk_args* a) noexcept {
      // Dense int32 [n] counts and [n, columns] columns, as the host requires.
      const auto fits = [](const specd_tensor* t, int64_t n, int64_t columns) {
        const bool typed = t != nullptr && t->dtype_code == SPECD_DT_INT && t->dtype_bits == 32;
        return typed && t->shape[0] == n &&
               (columns == 0 ? t->rank == 1 && t->stride[0] == 1
                             : t->rank == 2 && t->shape[1] == columns && t->stride[0] == columns &&
                                   t->stride[1] == 1);
      };
      bool good = a != nullptr && a->struct_size == sizeof *a && a->n_nodes != nullptr &&
                  a->token != nullptr && a->path != nullptr;
      if (good) {
        const int64_t n = a->n_nodes->shape[0], capacity = a->token->shape[1];
        good = fits(a->n_nodes, n, 0) && fits(a->token, n, capacity) &&
               fits(a->parent, n, capacity) && fits(a->wanted, n, capacity + 1) &&
               (a->flags == nullptr || fits(a->flags, n, capacity)) && fits(a->n_path, n, 0) &&
               fits(a->path, n, a->path->shape[1]) && fits(a->last, n, 0);
      }
      if (!good) {
        of(host)->violate("ops.walk: arguments");
        return specd_status{SPECD_E_INVALID};
      }
      const auto at = [](const specd_tensor* t, int64_t s, int64_t i) -> int32_t& {
        return static_cast<int32_t*>(t->data)[s * t->stride[0] + i];
      };
      for (int64_t s = 0; s < a->n_nodes->shape[0]; ++s) {
        int32_t node = -1, n = 0;
        while (n < a->path->shape[1]) {
          int32_t child = node + 1;
          const int32_t end = at(a->n_nodes, s, 0);
          const auto is_next = [&] {
            const bool skip = a->flags != nullptr &&
                              (static_cast<uint32_t>(at(a->flags, s, child)) & a->skip_flags) != 0;
            return !skip && at(a->parent, s, child) == node &&
                   at(a->token, s, child) == at(a->wanted, s, node + 1);
          };
          while (child < end && !is_next()) ++child;
          if (child >= end) break;
          at(a->path, s, n++) = node = child;
        }
        at(a->n_path, s, 0) = n;
        at(a->last, s, 0) = at(a->wanted, s, node + 1);
      }
      return specd_status{SPECD_OK};
    };
  }

  // The handle of the only model.
  specd_model* handle() { return reinterpret_cast<specd_model*>(&model_); }

  static specd_status model_step(const specd_host* host, specd_call* call, const specd_model* model,
                                 const std::function<std::string(FakeHost*, const Call*)>& body) {
    FakeHost* self = of(host);
    const auto* c = reinterpret_cast<const Call*>(call);
    std::string fault = "model: a call outside of a batch, or another model";
    if (c != nullptr && c->seq_id != nullptr && model == self->handle()) fault = body(self, c);
    if (fault.empty()) return SPECD_OK;
    self->violate(fault);
    return SPECD_E_INVALID;
  }

  void make_models() {
    specd_models& m = models_.value;
    m.struct_size = sizeof m;
    m.open = [](const specd_host* host, specd_owner*, const char* name,
                specd_model** out) noexcept -> specd_status {
      FakeHost* self = of(host);
      if (name == nullptr || self->model_.name != name) return SPECD_E_PRECONDITION;
      ++self->model_.open;
      *out = self->handle();
      return SPECD_OK;
    };
    m.info = [](const specd_host* host, specd_owner*, specd_model* model,
                specd_target_info* out) noexcept -> specd_status {
      FakeHost* self = of(host);
      if (model != self->handle() || out->struct_size != sizeof *out) return SPECD_E_INVALID;
      *out = self->target_;
      out->max_positions = self->model_.max_positions;
      return SPECD_OK;
    };
    m.close = [](const specd_host* host, specd_owner*, specd_model* model) noexcept {
      FakeHost* self = of(host);
      self->check(model == self->handle(), "model.close() of another model");
      --self->model_.open;
    };
    m.length = [](const specd_host* host, specd_call* call, specd_model* model,
                  uint32_t* out) noexcept -> specd_status {
      return model_step(host, call, model, [&](FakeHost* self, const Call* c) {
        for (uint32_t s = 0; s < c->n_seqs; ++s) {
          const auto found = self->model_.session.find(c->seq_id[s]);
          out[s] = found == self->model_.session.end()
                       ? 0
                       : static_cast<uint32_t>(found->second.kept.size());
        }
        return std::string();
      });
    };
    m.forward = [](const specd_host* host, specd_call* call, specd_model* model,
                   const specd_forward_args* args) noexcept -> specd_status {
      return model_step(host, call, model, [&](FakeHost* self, const Call* c) {
        return self->model_.forward(c->seq_id, c->n_seqs, args);
      });
    };
    m.follow = [](const specd_host* host, specd_call* call, specd_model* model,
                  const specd_forward_args* args) noexcept -> specd_status {
      return model_step(host, call, model, [&](FakeHost* self, const Call* c) {
        if (c->text.size() != c->n_seqs) return std::string("model.follow: not in propose()");
        return self->model_.follow(c->seq_id, c->text, args);
      });
    };
    m.keep = [](const specd_host* host, specd_call* call, specd_model* model, const uint32_t* kept,
                const uint32_t* row_offsets, const uint32_t* rows) noexcept -> specd_status {
      return model_step(host, call, model, [&](FakeHost* self, const Call* c) {
        return self->model_.keep(c->seq_id, c->n_seqs, kept, row_offsets, rows);
      });
    };
  }

  void make_parts() {
    specd_parts& p = parts_table_.value;
    p.struct_size = sizeof p;
    p.find = [](const specd_host* host, const specd_config*, const char* path,
                specd_part* out) noexcept -> specd_status {
      FakeHost* self = of(host);
      const auto part = self->parts_.find(path);
      if (part == self->parts_.end()) return SPECD_E_PRECONDITION;
      *out = {sizeof *out, 0, part->second->factory, &part->second->view, "."};
      return SPECD_OK;
    };
  }

  struct Metric {
    std::string name;
    uint32_t kind;
  };
  struct Part {
    FakeConfig config;
    specd_config view;  // of config
    const specd_factory* factory;
  };

  Guarded<specd_host> host_;
  Guarded<specd_memory> memory_;
  Guarded<specd_rng> rng_;
  Guarded<specd_metrics> metrics_table_;
  Guarded<specd_pool> pool_;
  Guarded<specd_models> models_;
  Guarded<specd_ops> ops_;
  Guarded<specd_parts> parts_table_;
  FakeModel model_;
  specd_target_info target_;
  uint8_t sha256_[32] = {};

  mutable std::mutex mutex_;
  std::vector<LogLine> logs_;
  std::vector<Report> reports_;
  std::vector<std::string> violations_;
  std::set<std::string> withheld_;
  std::map<void*, uint64_t> blocks_;
  uint64_t quota_ = UINT64_MAX, used_ = 0, allocations_ = 0, fail_at_ = 0;
  std::map<std::string, std::unique_ptr<Metric>> metric_handles_;
  std::map<std::string, double> metric_values_;
  std::map<std::string, std::unique_ptr<Part>> parts_;  // by path
};

}  // namespace specd::sdk

#endif
