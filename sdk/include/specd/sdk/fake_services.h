// The host's side of the boundary for unit tests: log, report, and services with switches that make
// them fail. See fake_host.h.
#ifndef SPECD_SDK_FAKE_SERVICES_H
#define SPECD_SDK_FAKE_SERVICES_H

#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/metrics.h>
#include <specd/plugin_api/services/parts.h>
#include <specd/plugin_api/services/pool.h>
#include <specd/plugin_api/services/rng.h>
#include <specd/plugin_api/services/target.h>
#include <specd/sdk/canary.h>
#include <specd/sdk/fake_config.h>
#include <specd/sdk/fake_kv.h>
#include <specd/sdk/fake_model.h>
#include <specd/sdk/fake_ops.h>
#include <specd/sdk/fake_tensor.h>
#include <specd/sdk/fake_weights.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
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
      if (wanted == SPECD_SERVICE_WEIGHTS) return &self->weights_table_.value;
      if (wanted == SPECD_SERVICE_TARGET) return &self->target_table_.value;
      if (wanted == SPECD_SERVICE_KV) return &self->kv_table_.value;
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
    make_weights();
    make_target();
    make_kv();
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
  // Copies of weights and the tables of open KV count as allocations, too.
  void set_memory_quota(uint64_t bytes) { quota_ = bytes; }
  void fail_allocation(uint64_t nth) { fail_at_ = nth == 0 ? 0 : allocations_ + nth; }
  uint64_t allocations() const { return allocations_; }
  uint64_t memory_used() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return used_;
  }
  // Calls of a function of ops/1 or kv/1 in steps: "ops.linear", "kv.rows".
  uint64_t calls(const std::string& function) const {
    const auto found = calls_.find(function);
    return found == calls_.end() ? 0 : found->second;
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

  // What weights/1 finds behind `key`, when the plugin's configuration has it.
  FakeWeights& weights(const std::string& key) { return weights_[key]; }

  // What target/1 gives: [vocab_size, hidden_size]; small random numbers unless set.
  void set_target_embedding(std::vector<float> values) { embedding_ = sized(std::move(values)); }
  void set_target_head(std::vector<float> values) { head_.value = sized(std::move(values)); }

  // Takes the rows that a sequence has in open KV, as a host does that is short of pages.
  void kv_reclaim(uint64_t seq_id) {
    for (const auto& kv : kvs_) kv->drop(seq_id);
  }
  // Makes rows() of kv/1 fail for a sequence; SPECD_OK lets it work again.
  void kv_fail_rows(uint64_t seq_id, specd_status status) {
    kv_fails_.erase(seq_id);
    if (status != SPECD_OK) kv_fails_[seq_id] = status;
  }
  // Rows that all open KV keeps of a sequence.
  uint32_t kv_kept(uint64_t seq_id) const {
    uint32_t n = 0;
    for (const auto& kv : kvs_) n += kv->kept(seq_id);
    return n;
  }

  // Called by FakeDrafter and FakeVerifier, or by a test that uses the services itself: before
  // activate() and after destroy(); after the end of a sequence.
  void set_active(bool active) { n_active_ += active ? 1 : -1; }
  void end_sequence(uint64_t seq_id) { kv_reclaim(seq_id); }

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
  // is released, and what lives as long as an instance.
  void expect_no_memory_held() {
    if (n_active_ == 0) release();
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
              pool_.intact() && models_.intact() && ops_.intact() && parts_table_.intact() &&
              weights_table_.intact() && target_table_.intact() && kv_table_.intact(),
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
    uint64_t serial = next_serial();
    specd_call* handle() { return reinterpret_cast<specd_call*>(this); }
    ~Call() {
      for (void* block : scratch) std::free(block);
    }
    static uint64_t next_serial() {
      static std::atomic<uint64_t> last{0};
      return ++last;
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
      if (!self->charge(bytes)) return SPECD_E_EXHAUSTED;
      void* block = aligned(bytes, align);
      if (block == nullptr) {
        self->used_ -= bytes;
        return SPECD_E_EXHAUSTED;
      }
      self->blocks_[block] = bytes;
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

  // uniform() gives not the daemon's numbers, but just as deterministic ones.
  void make_rng() {
    specd_rng& r = rng_.value;
    r.struct_size = sizeof r;
    r.draw_noise = [](const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                      const specd_tensor* position, const specd_tensor* out) noexcept {
      return fill_rows(host, call, seq_index, position, out,
                       [](const specd_sampling& s, uint64_t p, uint64_t token) {
                         if ((s.flags & SPECD_SAMPLE_GREEDY) != 0) return 0.0f;
                         return fake_ops::noise(s.seed, static_cast<int32_t>(p),
                                                static_cast<int32_t>(token));
                       });
    };
    r.uniform = [](const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                   const specd_tensor* position, uint32_t purpose,
                   const specd_tensor* out) noexcept {
      if (purpose == 0) {
        of(host)->violate("rng.uniform: purpose 0 belongs to the host");
        return static_cast<specd_status>(SPECD_E_INVALID);
      }
      if (purpose != SPECD_PURPOSE_DRAFT && purpose <= SPECD_PURPOSE_RESIDUAL && call != nullptr &&
          !reinterpret_cast<const Call*>(call)->text.empty()) {
        of(host)->violate("rng.uniform: in propose() with the purpose of a verifier");
        return static_cast<specd_status>(SPECD_E_INVALID);
      }
      return fill_rows(host, call, seq_index, position, out,
                       [&](const specd_sampling& s, uint64_t p, uint64_t lane) {
                         return fake_unit(fake_hash({s.seed, p, purpose, lane}));
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
    p.run = [](const specd_host* host, specd_call*, uint32_t n, specd_pool_task task,
               void* ctx) noexcept -> specd_status {
      of(host)->in_task_ = true;
      for (uint32_t i = n; i-- > 0;) task(ctx, i);
      of(host)->in_task_ = false;
      return SPECD_OK;
    };
  }

  // ---- results of services

  specd_status finish(const char* function, const FakeResult& result) {
    const std::string text = std::string(function) + ": " + result.text;
    if (result.is_violation()) {
      violate(text);
    } else if (!result.text.empty()) {
      reports_.push_back({-1, text});
    }
    return result.status;
  }
  // A [step] function.
  template <class Body>
  static specd_status step(const specd_host* host, specd_call* call, const char* function,
                           Body&& body) {
    const auto* c = reinterpret_cast<const Call*>(call);
    if (c == nullptr || c->seq_id == nullptr || of(host)->in_task_) {
      return of(host)->finish(function, {SPECD_E_PRECONDITION, "outside of a step, or in a task"});
    }
    ++of(host)->calls_[function];
    return of(host)->finish(function, body(*of(host), *c));
  }
  // A [control & active] function.
  template <class Body>
  static specd_status control(const specd_host* host, specd_owner* owner, const char* function,
                              Body&& body) {
    FakeHost& self = *of(host);
    const std::lock_guard<std::mutex> lock(self.mutex_);
    if (owner != self.owner() || self.n_active_ == 0) {
      return self.finish(function, {SPECD_E_PRECONDITION, "before activate(), or another owner"});
    }
    return self.finish(function, body(self));
  }

  // With mutex_ held. False: the allocation is refused.
  bool charge(uint64_t bytes) {
    if (++allocations_ == fail_at_ || bytes > quota_ || used_ > quota_ - bytes) return false;
    used_ += bytes;
    return true;
  }
  // What lives as long as an instance.
  void release() {
    for (const auto& kv : kvs_) {
      check(!kv->holds_rows(), "KV is still open with rows of sequences that have ended");
      used_ -= kv->charged_bytes();
    }
    kvs_.clear();
    used_ -= copied_bytes_;
    copied_bytes_ = 0;
    matrices_.clear();
    tensors_.clear();
    for (const auto& each : opened_) each->is_owned = false;
  }

  void make_ops() {
    specd_ops& o = ops_.value;
    o.struct_size = sizeof o;
    o.walk = [](const specd_host* host, specd_call* call, const specd_walk_args* args) noexcept {
      return step(host, call, "ops.walk",
                  [&](FakeHost&, const Call&) -> FakeResult { return fake_ops::walk(args); });
    };
    o.linear = [](const specd_host* host, specd_call* call, const specd_matrix* matrix,
                  const specd_tensor* x, const specd_tensor* bias,
                  const specd_tensor* out) noexcept {
      return step(host, call, "ops.linear", [&](FakeHost& self, const Call&) -> FakeResult {
        const auto* m = reinterpret_cast<const FakeMatrix*>(matrix);
        if (!self.has_matrix(m)) return std::string("not a matrix of this instance");
        return fake_ops::linear(*m, x, bias, out);
      });
    };
    o.embed = [](const specd_host* host, specd_call* call, const specd_tensor* table,
                 const specd_tensor* token, const specd_tensor* out) noexcept {
      return step(host, call, "ops.embed", [&](FakeHost&, const Call&) -> FakeResult {
        return fake_ops::embed(table, token, out);
      });
    };
    o.rmsnorm = [](const specd_host* host, specd_call* call, const specd_tensor* x,
                   const specd_tensor* weight, double eps, const specd_tensor* out) noexcept {
      return step(host, call, "ops.rmsnorm", [&](FakeHost&, const Call&) -> FakeResult {
        return fake_ops::rmsnorm(x, weight, eps, out);
      });
    };
    o.map = [](const specd_host* host, specd_call* call, uint32_t map, const specd_tensor* x,
               const specd_tensor* y, const specd_tensor* out) noexcept {
      return step(host, call, "ops.map", [&](FakeHost&, const Call&) -> FakeResult {
        return fake_ops::map(map, x, y, out);
      });
    };
    o.copy = [](const specd_host* host, specd_call* call, const specd_tensor* from,
                const specd_tensor* from_row, const specd_tensor* to,
                const specd_tensor* to_row) noexcept {
      return step(host, call, "ops.copy", [&](FakeHost&, const Call&) -> FakeResult {
        return fake_ops::copy(from, from_row, to, to_row);
      });
    };
    o.topk = [](const specd_host* host, specd_call* call, const specd_tensor* logits,
                const specd_tensor* out_index, const specd_tensor* out_logprob) noexcept {
      return step(host, call, "ops.topk", [&](FakeHost&, const Call&) -> FakeResult {
        return fake_ops::topk(logits, out_index, out_logprob);
      });
    };
    o.draw = [](const specd_host* host, specd_call* call, const specd_draw_args* args) noexcept {
      return step(host, call, "ops.draw", [&](FakeHost&, const Call& c) -> FakeResult {
        return fake_ops::draw(args, c.sampling, c.n_seqs);
      });
    };
  }

  // ---- weights/1 and target/1

  // A handle: the files, and whether an instance has opened them.
  struct Opened {
    FakeWeights* files;
    bool is_owned;
  };
  // Null when there is no such handle.
  Opened* find_opened(const specd_weights* handle) {
    for (const auto& each : opened_) {
      if (reinterpret_cast<const specd_weights*>(each.get()) == handle) return each.get();
    }
    return nullptr;
  }
  bool has_matrix(const FakeMatrix* matrix) const {
    return matrix != nullptr &&
           (matrix == &head_ || std::any_of(matrices_.begin(), matrices_.end(), [&](auto& each) {
              return each.second.get() == matrix;
            }));
  }
  FakeResult copied(FakeResult made, uint64_t bytes) {
    if (made.status != SPECD_OK) return made;
    if (!charge(bytes)) return {SPECD_E_EXHAUSTED, "beyond the quota"};
    copied_bytes_ += bytes;
    return made;
  }

  void make_weights() {
    specd_weights_api& w = weights_table_.value;
    w.struct_size = sizeof w;
    w.open = [](const specd_host* host, specd_owner* owner, const specd_config* config,
                const char* key, specd_weights** out) noexcept -> specd_status {
      FakeHost& self = *of(host);
      const std::lock_guard<std::mutex> lock(self.mutex_);
      if (config == nullptr || key == nullptr || out == nullptr) {
        return self.finish("weights.open", std::string("an argument is null"));
      }
      const char* path = nullptr;
      const specd_status found = config->get_str(config, key, &path, nullptr);
      if (found == SPECD_E_PRECONDITION) return found;
      const auto files = self.weights_.find(key);
      if (found != SPECD_OK || files == self.weights_.end()) {
        const char* why = found != SPECD_OK ? ": expected a path" : ": no FakeHost::weights()";
        self.reports_.push_back({-1, key + std::string(why)});
        return SPECD_E_CONFIG;
      }
      self.opened_.push_back(std::make_unique<Opened>(Opened{&files->second, owner != nullptr}));
      *out = reinterpret_cast<specd_weights*>(self.opened_.back().get());
      return SPECD_OK;
    };
    w.config = [](const specd_host* host, specd_weights* weights) noexcept -> const specd_config* {
      const Opened* opened = of(host)->find_opened(weights);
      of(host)->check(opened != nullptr, "weights.config: not open");
      return opened == nullptr ? nullptr : opened->files->config();
    };
    w.find = [](const specd_host* host, specd_weights* weights, const char* name, uint32_t number,
                const char** out_name, specd_tensor* out) noexcept {
      const Opened* opened = of(host)->find_opened(weights);
      const bool good = opened != nullptr && out != nullptr;
      return of(host)->finish("weights.find",
                              good ? opened->files->find(name, number, out_name, out)
                                   : FakeResult(std::string("not open, or out is null")));
    };
    w.matrix = [](const specd_host* host, specd_owner* owner, specd_weights* weights,
                  const char* const* names, uint32_t n, int64_t n_out, int64_t n_in,
                  specd_matrix** out) noexcept {
      return control(host, owner, "weights.matrix", [&](FakeHost& self) -> FakeResult {
        const Opened* opened = self.find_opened(weights);
        if (opened == nullptr || !opened->is_owned) return std::string("not open in this instance");
        if (names == nullptr || n == 0 || out == nullptr) return std::string("no names, or no out");
        const std::vector<std::string> list(names, names + n);
        auto& held = self.matrices_[{opened->files, list, n_out, n_in}];
        if (held == nullptr) {
          auto made = std::make_unique<FakeMatrix>();
          uint64_t bytes = 0;
          const FakeResult result = opened->files->matrix(list, n_out, n_in, made.get(), &bytes);
          const FakeResult charged = self.copied(result, bytes);
          if (charged.status != SPECD_OK) return charged;
          held = std::move(made);
        }
        *out = reinterpret_cast<specd_matrix*>(held.get());
        return SPECD_OK;
      });
    };
    w.tensor = [](const specd_host* host, specd_owner* owner, specd_weights* weights,
                  const char* name, uint32_t rank, const int64_t* shape, uint8_t dtype_code,
                  uint8_t dtype_bits, specd_tensor* out) noexcept {
      return control(host, owner, "weights.tensor", [&](FakeHost& self) -> FakeResult {
        const Opened* opened = self.find_opened(weights);
        if (opened == nullptr || !opened->is_owned) return std::string("not open in this instance");
        if (name == nullptr || shape == nullptr || rank > SPECD_MAX_RANK || out == nullptr) {
          return std::string("no name, shape or out, or more than 4 axes");
        }
        const FakeWeights::Shape wanted(shape, shape + rank);
        std::vector<char> made;
        FakeResult result = opened->files->tensor(name, wanted, dtype_code, dtype_bits, &made);
        const std::tuple<const FakeWeights*, std::string, int, int> id(opened->files, name,
                                                                       dtype_code, dtype_bits);
        const bool is_held = self.tensors_.count(id) != 0;
        if (!is_held) result = self.copied(result, made.size());
        if (result.status != SPECD_OK) return result;
        if (!is_held) self.tensors_[id] = std::move(made);
        *out = FakeWeights::view(self.tensors_[id].data(), dtype_code, dtype_bits, wanted);
        return result;
      });
    };
  }

  std::vector<float> sized(std::vector<float> values) const {
    if (values.size() == std::size_t{target_.vocab_size} * target_.hidden_size) return values;
    throw std::invalid_argument("a matrix of the target is [vocab_size, hidden_size]");
  }
  // Random numbers, unless there are some.
  void fill(std::vector<float>& values, uint64_t seed) const {
    const std::size_t n = std::size_t{target_.vocab_size} * target_.hidden_size;
    while (values.size() < n) values.push_back(fake_unit(fake_hash({seed, values.size()})) - 0.5f);
  }
  void make_target() {
    specd_target_api& t = target_table_.value;
    t.struct_size = sizeof t;
    t.embedding = [](const specd_host* host, specd_owner* owner, specd_tensor* out) noexcept {
      return control(host, owner, "target.embedding", [&](FakeHost& self) -> FakeResult {
        if (out == nullptr) return std::string("out is null");
        self.fill(self.embedding_, 1);
        *out = FakeWeights::view(self.embedding_.data(), SPECD_DT_FLOAT, 32,
                                 {self.target_.vocab_size, self.target_.hidden_size});
        return SPECD_OK;
      });
    };
    t.head = [](const specd_host* host, specd_owner* owner, specd_matrix** out) noexcept {
      return control(host, owner, "target.head", [&](FakeHost& self) -> FakeResult {
        if (out == nullptr) return std::string("out is null");
        self.fill(self.head_.value, 2);
        self.head_.n_out = self.target_.vocab_size;
        self.head_.n_in = self.target_.hidden_size;
        *out = reinterpret_cast<specd_matrix*>(&self.head_);
        return SPECD_OK;
      });
    };
  }

  // ---- kv/1

  std::vector<std::unique_ptr<FakeKv>>::iterator find_kv(const specd_kv* kv) {
    return std::find_if(kvs_.begin(), kvs_.end(), [&](const auto& each) {
      return reinterpret_cast<const specd_kv*>(each.get()) == kv;
    });
  }
  template <class Body>
  static specd_status kv_step(const specd_host* host, specd_call* call, const specd_kv* kv,
                              const char* function, Body&& body) {
    return step(host, call, function, [&](FakeHost& self, const Call& c) -> FakeResult {
      const auto found = self.find_kv(kv);
      if (found == self.kvs_.end()) return std::string("not KV that is open");
      return body(**found, FakeKv::Batch{c.serial, c.seq_id, c.n_seqs});
    });
  }
  void make_kv() {
    specd_kv_api& k = kv_table_.value;
    k.struct_size = sizeof k;
    k.open = [](const specd_host* host, specd_owner* owner, const specd_kv_open_args* args,
                specd_kv** out) noexcept {
      return control(host, owner, "kv.open", [&](FakeHost& self) -> FakeResult {
        const std::string fault = FakeKv::open_fault(args);
        if (!fault.empty() || out == nullptr) return "an argument: " + fault;
        auto kv = std::make_unique<FakeKv>(*args);
        if (!self.charge(kv->charged_bytes())) return {SPECD_E_EXHAUSTED, "beyond the quota"};
        *out = reinterpret_cast<specd_kv*>(kv.get());
        self.kvs_.push_back(std::move(kv));
        return SPECD_OK;
      });
    };
    k.close = [](const specd_host* host, specd_owner*, specd_kv* kv) noexcept {
      FakeHost& self = *of(host);
      const std::lock_guard<std::mutex> lock(self.mutex_);
      const auto found = self.find_kv(kv);
      self.check(found != self.kvs_.end(), "kv.close: not KV that is open");
      if (found == self.kvs_.end()) return;
      self.used_ -= (*found)->charged_bytes();
      self.kvs_.erase(found);
    };
    k.length = [](const specd_host* host, specd_call* call, specd_kv* kv, uint32_t* out) noexcept {
      return kv_step(host, call, kv, "kv.length", [&](FakeKv& one, const FakeKv::Batch& batch) {
        return out == nullptr ? FakeResult(std::string("out is null")) : one.length(batch, out);
      });
    };
    k.rows = [](const specd_host* host, specd_call* call, specd_kv* kv,
                const specd_kv_rows_args* args) noexcept {
      return kv_step(host, call, kv, "kv.rows", [&](FakeKv& one, const FakeKv::Batch& batch) {
        return one.rows(batch, args, of(host)->kv_fails_);
      });
    };
    k.append = [](const specd_host* host, specd_call* call, specd_kv* kv,
                  const specd_kv_append_args* args) noexcept {
      return kv_step(host, call, kv, "kv.append", [&](FakeKv& one, const FakeKv::Batch& batch) {
        return one.append(batch, args);
      });
    };
    k.attend = [](const specd_host* host, specd_call* call, specd_kv* kv,
                  const specd_kv_attend_args* args) noexcept {
      return kv_step(host, call, kv, "kv.attend", [&](FakeKv& one, const FakeKv::Batch& batch) {
        return one.attend(batch, args);
      });
    };
    k.keep = [](const specd_host* host, specd_call* call, specd_kv* kv, const uint32_t* kept,
                const uint32_t* row_offsets, const uint32_t* rows) noexcept {
      return kv_step(host, call, kv, "kv.keep", [&](FakeKv& one, const FakeKv::Batch& batch) {
        return one.keep(batch, kept, row_offsets, rows);
      });
    };
    // There are no pages to be seen.
    k.view = [](const specd_host*, specd_call*, specd_kv*, uint32_t, specd_kv_view*) noexcept {
      return specd_status{SPECD_E_UNSUPPORTED};
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
  Guarded<specd_weights_api> weights_table_;
  Guarded<specd_target_api> target_table_;
  Guarded<specd_kv_api> kv_table_;
  FakeModel model_;
  specd_target_info target_;
  uint8_t sha256_[32] = {};

  mutable std::mutex mutex_;
  std::map<std::string, uint64_t> calls_;
  std::vector<LogLine> logs_;
  std::vector<Report> reports_;
  std::vector<std::string> violations_;
  std::set<std::string> withheld_;
  std::map<void*, uint64_t> blocks_;
  uint64_t quota_ = UINT64_MAX, used_ = 0, allocations_ = 0, fail_at_ = 0;
  std::map<std::string, std::unique_ptr<Metric>> metric_handles_;
  std::map<std::string, double> metric_values_;
  std::map<std::string, std::unique_ptr<Part>> parts_;  // by path

  bool in_task_ = false;                        // of the pool
  int32_t n_active_ = 0;                        // instances
  std::map<std::string, FakeWeights> weights_;  // by key
  std::vector<std::unique_ptr<Opened>> opened_;
  // Copies for instances, and what they are charged.
  std::map<std::tuple<const FakeWeights*, std::vector<std::string>, int64_t, int64_t>,
           std::unique_ptr<FakeMatrix>>
      matrices_;
  std::map<std::tuple<const FakeWeights*, std::string, int, int>, std::vector<char>> tensors_;
  uint64_t copied_bytes_ = 0;
  std::vector<float> embedding_;
  FakeMatrix head_;
  std::vector<std::unique_ptr<FakeKv>> kvs_;
  std::map<uint64_t, specd_status> kv_fails_;  // by seq_id
};

}  // namespace specd::sdk

#endif
