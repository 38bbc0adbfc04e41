// A host for unit tests of plugins: captures what the plugin says, offers the services with switches
// for failure, and guards every struct and output row with canaries. No test framework is needed: what
// a plugin did wrong stands in violations(), which a test expects to be empty.
//
//   FakeHost host;
//   FakeModule module("plugins/drafter_mine/drafter_mine.so");
//   FakeDrafter drafter(host, module.factory("mine"), FakeConfig("{\"k\": 3}").set("k", 3));
//   const int s = drafter.begin({1, 2, 3});
//   drafter.commit(s, {4});
//   FakeDraft draft = drafter.propose(s);
//
// Header-only, C++17; include it from test code only. Link with -ldl where dlopen needs it.
#ifndef SPECD_SDK_FAKE_HOST_H
#define SPECD_SDK_FAKE_HOST_H

#include <dlfcn.h>
#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/metrics.h>
#include <specd/plugin_api/services/pool.h>
#include <specd/plugin_api/services/rng.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace specd::sdk {

// ------------------------------------------------------------------ configuration

// Values by path, and the same as JSON text for plugins that read that.
class FakeConfig {
 public:
  explicit FakeConfig(std::string json = "{}") : json_(std::move(json)) {}

  FakeConfig& set(const std::string& path, int64_t value) { return put(path, value); }
  FakeConfig& set(const std::string& path, int value) { return put(path, int64_t{value}); }
  FakeConfig& set(const std::string& path, double value) { return put(path, value); }
  FakeConfig& set(const std::string& path, bool value) { return put(path, value); }
  FakeConfig& set(const std::string& path, std::string value) {
    return put(path, std::move(value));
  }
  FakeConfig& set(const std::string& path, const char* value) {
    return put(path, std::string(value));
  }
  // Present, but no scalar: a list or an object.
  FakeConfig& set_other(const std::string& path) { return put(path, std::monostate()); }

  // Valid while this object stands and is not changed.
  specd_config view() const {
    specd_config config{};
    config.struct_size = sizeof config;
    config.json = json_.c_str();
    config.json_len = json_.size();
    config.ctx = const_cast<FakeConfig*>(this);
    config.get_i64 = [](const specd_config* c, const char* path, int64_t* out) noexcept {
      return self(c)->get<int64_t>(path, [&](int64_t v) { *out = v; });
    };
    config.get_f64 = [](const specd_config* c, const char* path, double* out) noexcept {
      const specd_status status = self(c)->get<double>(path, [&](double v) { *out = v; });
      if (status != SPECD_E_CONFIG) return status;
      return self(c)->get<int64_t>(path, [&](int64_t v) { *out = static_cast<double>(v); });
    };
    config.get_bool = [](const specd_config* c, const char* path, uint32_t* out) noexcept {
      return self(c)->get<bool>(path, [&](bool v) { *out = v ? 1 : 0; });
    };
    config.get_str = [](const specd_config* c, const char* path, const char** out,
                        uint64_t* len) noexcept {
      return self(c)->get<std::string>(path, [&](const std::string& v) {
        *out = v.c_str();
        *len = v.size();
      });
    };
    return config;
  }

 private:
  using Value = std::variant<std::monostate, int64_t, double, bool, std::string>;

  static const FakeConfig* self(const specd_config* c) {
    return static_cast<const FakeConfig*>(c->ctx);
  }
  template <class T>
  FakeConfig& put(const std::string& path, T value) {
    values_[path] = Value(std::move(value));
    // "tree.nodes" makes "tree" an object.
    for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
      values_.emplace(path.substr(0, dot), Value());
    }
    return *this;
  }
  template <class T, class Take>
  specd_status get(const char* path, Take&& take) const {
    const auto it = values_.find(path);
    if (it == values_.end()) return SPECD_E_PRECONDITION;
    const T* value = std::get_if<T>(&it->second);
    if (value == nullptr) return SPECD_E_CONFIG;
    take(*value);
    return SPECD_OK;
  }

  std::string json_;
  std::map<std::string, Value> values_;
};

// ------------------------------------------------------------------ canaries

inline constexpr unsigned char kCanary = 0xa5;

// A struct with canary bytes after it.
template <class T>
struct Guarded {
  T value{};
  unsigned char canary[64];
  Guarded() { std::memset(canary, kCanary, sizeof canary); }
  bool intact() const {
    for (const unsigned char byte : canary) {
      if (byte != kCanary) return false;
    }
    return true;
  }
};

// A [rows, cols] column with canary cells before and after it. Cells of a row at and past its limit
// are canaries too, so that a row that overflows its budget is found even between other rows.
template <class T>
class GuardedColumn {
 public:
  GuardedColumn(std::size_t rows, std::size_t cols, uint32_t rank = 2)
      : rows_(rows), cols_(cols), limit_(rows, cols), cells_(rows * cols + 2 * kGuard) {
    for (T& cell : cells_) cell = pattern();
    for (std::size_t i = 0; i < rows * cols; ++i) data()[i] = 0;
    tensor_.struct_size = sizeof tensor_;
    tensor_.dtype_code = std::is_floating_point<T>::value ? SPECD_DT_FLOAT : SPECD_DT_INT;
    tensor_.dtype_bits = sizeof(T) * 8;
    tensor_.dtype_lanes = 1;
    tensor_.device_type = SPECD_DEV_CPU;
    tensor_.rank = rank;
    tensor_.data = data();
    tensor_.byte_capacity = rows * cols * sizeof(T);
    tensor_.shape[0] = static_cast<int64_t>(rows);
    tensor_.stride[0] = rank == 1 ? 1 : static_cast<int64_t>(cols);
    tensor_.shape[1] = rank == 1 ? 0 : static_cast<int64_t>(cols);
    tensor_.stride[1] = rank == 1 ? 0 : 1;
  }
  GuardedColumn(const GuardedColumn&) = delete;
  GuardedColumn& operator=(const GuardedColumn&) = delete;

  T* data() { return cells_.data() + kGuard; }
  T& at(std::size_t row, std::size_t col = 0) { return data()[row * cols_ + col]; }
  const specd_tensor* tensor() const { return &tensor_; }

  void limit_row(std::size_t row, std::size_t limit) {
    limit_[row] = limit;
    for (std::size_t c = limit; c < cols_; ++c) at(row, c) = pattern();
  }
  bool intact() {
    for (std::size_t i = 0; i < kGuard; ++i) {
      if (cells_[i] != pattern() || cells_[cells_.size() - 1 - i] != pattern()) return false;
    }
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t c = limit_[r]; c < cols_; ++c) {
        if (at(r, c) != pattern()) return false;
      }
    }
    return true;
  }

 private:
  static constexpr std::size_t kGuard = 16;
  static T pattern() {
    T value;
    std::memset(&value, kCanary, sizeof value);
    return value;
  }

  std::size_t rows_, cols_;
  std::vector<std::size_t> limit_;
  std::vector<T> cells_;
  specd_tensor tensor_{};
};

// ------------------------------------------------------------------ host

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
    h.log = [](const specd_host* host, uint32_t severity, const char* text,
               uint64_t len) noexcept {
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
  }
  ~FakeHost() {
    for (auto& block : blocks_) std::free(block.first);
  }
  FakeHost(const FakeHost&) = delete;
  FakeHost& operator=(const FakeHost&) = delete;

  const specd_host* host() const { return &host_.value; }
  specd_owner* owner() { return reinterpret_cast<specd_owner*>(this); }
  specd_target_info& target() { return target_; }

  // Memory: quota, a failure on the n-th allocation from now (1 = the next; 0 = none), counters.
  void set_memory_quota(uint64_t bytes) { quota_ = bytes; }
  void fail_allocation(uint64_t nth) { fail_at_ = nth == 0 ? 0 : allocations_ + nth; }
  uint64_t allocations() const { return allocations_; }
  uint64_t memory_used() const { return used_; }

  void withhold_service(const std::string& id) { withheld_.insert(id); }

  const std::vector<LogLine>& logs() const { return logs_; }
  const std::vector<Report>& reports() const { return reports_; }
  void clear_reports() { reports_.clear(); }
  const std::map<std::string, double>& metrics() const { return metric_values_; }

  // What the plugin did against the contract: overrun canaries, foreign or unreturned memory, bad
  // arguments to services.
  const std::vector<std::string>& violations() const { return violations_; }
  void violate(const std::string& text) { violations_.push_back(text); }
  void check(bool condition, const std::string& text) {
    if (!condition) violate(text);
  }
  // Call after destroy() of the last instance: what is still held is a leak, and scratch ends.
  void expect_no_memory_held() {
    check(used_ == 0, std::to_string(used_) + " bytes still held at destroy()");
    check_blocks();
  }
  void check_blocks() {
    for (const auto& block : blocks_) {
      check(block_intact(block.first, block.second), "wrote past a block of the memory service");
    }
    check(host_.intact() && memory_.intact() && rng_.intact() && metrics_table_.intact() &&
              pool_.intact(),
          "wrote past a table of the host");
  }

  // One host->plugin call; the drivers below make it.
  struct Call {
    FakeHost* host;
    const specd_sampling* const* sampling;
    uint32_t n_seqs;
    std::vector<void*> scratch;
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
    m.alloc = [](const specd_host* host, specd_owner*, int32_t device_type, int32_t,
                 uint64_t bytes, uint64_t align, void** out) noexcept -> specd_status {
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

  // Not the daemon's numbers, but as deterministic: one hash of the key.
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
    // Backwards, so that a plugin that relies on an order is found out.
    p.run = [](const specd_host*, specd_call*, uint32_t n, specd_pool_task task,
               void* ctx) noexcept -> specd_status {
      for (uint32_t i = n; i-- > 0;) task(ctx, i);
      return SPECD_OK;
    };
  }

  struct Metric {
    std::string name;
    uint32_t kind;
  };

  Guarded<specd_host> host_;
  Guarded<specd_memory> memory_;
  Guarded<specd_rng> rng_;
  Guarded<specd_metrics> metrics_table_;
  Guarded<specd_pool> pool_;
  specd_target_info target_;
  uint8_t sha256_[32] = {};

  std::mutex mutex_;
  std::vector<LogLine> logs_;
  std::vector<Report> reports_;
  std::vector<std::string> violations_;
  std::set<std::string> withheld_;
  std::map<void*, uint64_t> blocks_;
  uint64_t quota_ = UINT64_MAX, used_ = 0, allocations_ = 0, fail_at_ = 0;
  std::map<std::string, std::unique_ptr<Metric>> metric_handles_;
  std::map<std::string, double> metric_values_;
};

// ------------------------------------------------------------------ the plugin's file

// Loads a plugin as the daemon does and calls its entry; throws std::runtime_error when it cannot.
// Never unloaded.
class FakeModule {
 public:
  explicit FakeModule(const std::string& path, const char* layout = SPECD_ABI_LAYOUT) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    entry_ = reinterpret_cast<decltype(&specd_plugin_entry_v0)>(dlsym(handle, SPECD_ENTRY_SYMBOL));
    if (entry_ == nullptr) throw std::runtime_error(path + ": no " SPECD_ENTRY_SYMBOL);
    status_ = entry_(layout, host_.host(), &plugin_);
    if (plugin_ == nullptr) throw std::runtime_error(path + ": the entry stored no table");
    if (status_ == SPECD_OK && plugin_->init != nullptr) status_ = plugin_->init(host_.host());
  }

  specd_status status() const { return status_; }
  const specd_plugin& plugin() const { return *plugin_; }
  const specd_factory& factory(const std::string& id) const {
    for (uint32_t i = 0; i < plugin_->n_factories; ++i) {
      if (id == plugin_->factories[i]->id) return *plugin_->factories[i];
    }
    throw std::runtime_error("no factory " + id);
  }

 private:
  FakeHost host_;
  decltype(&specd_plugin_entry_v0) entry_ = nullptr;
  specd_status status_ = SPECD_OK;
  const specd_plugin* plugin_ = nullptr;
};

// ------------------------------------------------------------------ batches

inline specd_sampling greedy_sampling(uint64_t tokens_left = 1u << 20) {
  specd_sampling s{};
  s.struct_size = sizeof s;
  s.flags = SPECD_SAMPLE_GREEDY;
  s.temperature = 1.0f;
  s.top_p = 1.0f;
  s.tokens_left = tokens_left;
  return s;
}

// A specd_batch over sequences, with everything it points at.
class FakeBatch {
 public:
  struct Item {
    uint64_t id;
    uint32_t slot;
    void* state;
    const specd_sampling* sampling;
  };
  FakeBatch(FakeHost& host, const std::vector<Item>& items)
      : host_(host), slots_(items.size(), 1, 1), status_(items.size(), 1, 1) {
    for (std::size_t i = 0; i < items.size(); ++i) {
      ids_.push_back(items[i].id);
      states_.push_back(items[i].state);
      slot_.push_back(items[i].slot);
      slots_.at(i) = static_cast<int32_t>(items[i].slot);
      sampling_.push_back(items[i].sampling);
    }
    call_.host = &host;
    call_.sampling = sampling_.data();
    call_.n_seqs = static_cast<uint32_t>(items.size());
    specd_batch& b = batch_.value;
    b.struct_size = sizeof b;
    b.n_seqs = call_.n_seqs;
    b.call = call_.handle();
    b.seq_id = ids_.data();
    b.seq_state = states_.data();
    b.seq_status = status_.data();
    b.slot = slot_.data();
    b.slots = slots_.tensor();
  }
  ~FakeBatch() {
    host_.check(batch_.intact() && slots_.intact() && status_.intact(), "wrote past the batch");
  }
  FakeBatch(const FakeBatch&) = delete;
  FakeBatch& operator=(const FakeBatch&) = delete;

  const specd_batch* get() const { return &batch_.value; }
  const specd_sampling* const* sampling() const { return sampling_.data(); }
  void** states() { return states_.data(); }
  specd_status status(std::size_t i) { return status_.at(i); }

 private:
  FakeHost& host_;
  std::vector<uint64_t> ids_;
  std::vector<void*> states_;
  std::vector<uint32_t> slot_;
  std::vector<const specd_sampling*> sampling_;
  GuardedColumn<int32_t> slots_;
  GuardedColumn<specd_status> status_;
  FakeHost::Call call_;
  Guarded<specd_batch> batch_;
};

// ------------------------------------------------------------------ drafter

struct FakeDraft {
  specd_status call_status = SPECD_OK;  // of propose()
  specd_status status = SPECD_OK;       // of the sequence
  int32_t count = 0;                    // as the plugin wrote it
  std::vector<int32_t> token, parent, flags;  // the first min(count, capacity) nodes
};

// Plays the host for one drafter instance: describe, create, activate at construction; destroy at the
// end, where everything must have been given back.
class FakeDrafter {
 public:
  struct Options {
    uint32_t max_nodes = 0;  // 0 = what the caps say
    uint32_t max_batch = 64;
    uint32_t max_rows = 4096;
  };

  FakeDrafter(FakeHost& host, const specd_factory& factory, const FakeConfig& config)
      : FakeDrafter(host, factory, config, Options()) {}
  FakeDrafter(FakeHost& host, const specd_factory& factory, const FakeConfig& config,
              Options options)
      : host_(host), api_(factory.drafter) {
    if (api_ == nullptr) throw std::runtime_error("not a drafter factory");
    const specd_config view = config.view();
    Guarded<specd_drafter_caps> caps;
    caps.value.struct_size = sizeof caps.value;
    status_ = api_->describe(&factory, host.host(), &host.target(), &view, &caps.value);
    host.check(caps.intact(), "describe() wrote past the caps");
    if (status_ != SPECD_OK) return;
    caps_ = caps.value;

    FakeHost::Call call{&host, nullptr, 0, {}};
    Guarded<specd_create_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.target = &host.target();
    args.value.config = &view;
    args.value.owner = host.owner();
    args.value.call = call.handle();
    args.value.instance_name = "fake";
    args.value.data_dir = ".";
    status_ = api_->create(&factory, host.host(), &args.value, &self_);
    if (status_ != SPECD_OK) {
      self_ = nullptr;
      return;
    }
    grant_.struct_size = sizeof grant_;
    grant_.device_type = SPECD_DEV_CPU;
    grant_.max_nodes = options.max_nodes == 0 ? caps_.max_nodes : options.max_nodes;
    grant_.max_depth = caps_.max_depth;
    grant_.max_batch = options.max_batch;
    grant_.max_rows = options.max_rows;
    grant_.needs = caps_.needs;
    grant_.memory_bytes_max = UINT64_MAX;
    status_ = api_->activate(self_, &grant_);
    active_ = status_ == SPECD_OK;
    if (active_ && caps_.tree_mode == SPECD_TREE_STATIC) {
      static_parent_.resize(grant_.max_nodes);
      static_parent_.resize(api_->static_tree(self_, static_parent_.data(), grant_.max_nodes));
    }
  }
  ~FakeDrafter() {
    if (self_ == nullptr) return;
    if (active_) {
      for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) end(s, SPECD_END_CANCELLED);
      api_->deactivate(self_);
    }
    api_->destroy(self_);
    host_.expect_no_memory_held();
  }
  FakeDrafter(const FakeDrafter&) = delete;
  FakeDrafter& operator=(const FakeDrafter&) = delete;

  specd_status status() const { return status_; }  // of describe(), create() or activate()
  const specd_drafter_caps& caps() const { return caps_; }
  const specd_drafter_grant& grant() const { return grant_; }

  // Returns a handle. The last token of `tokens` is the root of a propose() that follows at once.
  int begin(const std::vector<int32_t>& tokens, uint32_t attach_mode = SPECD_ATTACH_FRESH,
            specd_sampling sampling = greedy_sampling()) {
    const int handle = static_cast<int>(sequences_.size());
    sequences_.push_back(std::make_unique<Sequence>(
        Sequence{static_cast<uint64_t>(handle) + 1, nullptr, tokens, sampling, SPECD_OK, true}));
    Sequence& s = *sequences_.back();
    FakeBatch batch(host_, {item(handle)});
    const uint64_t offsets[2] = {0, tokens.size()};
    Guarded<specd_begin_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.attach_mode = attach_mode;
    args.value.batch = batch.get();
    args.value.token_offsets = offsets;
    args.value.tokens = s.tokens.data();
    args.value.sampling = batch.sampling();
    args.value.seq_state = &s.state;
    const specd_status status = api_->begin(self_, &args.value);
    s.status = status != SPECD_OK ? status : batch.status(0);
    if (s.status != SPECD_OK) s.begun = false;
    host_.check(args.intact(), "begin() wrote past its arguments");
    host_.check_blocks();
    return handle;
  }

  // Rows of one update(): the committed tokens after what is known, and the nodes they came from.
  specd_status commit(int handle, const std::vector<int32_t>& tokens,
                      const std::vector<int32_t>& nodes = {}) {
    return commit_batch({{handle, tokens, nodes}});
  }
  struct Commit {
    int handle;
    std::vector<int32_t> tokens;
    std::vector<int32_t> nodes;  // empty: SPECD_NODE_NONE
  };
  specd_status commit_batch(const std::vector<Commit>& commits) {
    std::vector<FakeBatch::Item> items;
    std::size_t max_rows = 1;
    for (const Commit& c : commits) {
      items.push_back(item(c.handle));
      max_rows = std::max(max_rows, c.tokens.size());
    }
    FakeBatch batch(host_, items);
    const std::size_t n = commits.size();
    GuardedColumn<int32_t> count(n, 1, 1), position(n, max_rows), token(n, max_rows),
        next(n, max_rows), node(n, max_rows);
    for (std::size_t i = 0; i < n; ++i) {
      Sequence& s = *sequences_[static_cast<std::size_t>(commits[i].handle)];
      count.at(i) = static_cast<int32_t>(commits[i].tokens.size());
      for (std::size_t r = 0; r < commits[i].tokens.size(); ++r) {
        position.at(i, r) = static_cast<int32_t>(s.tokens.size()) - 1;
        token.at(i, r) = s.tokens.back();
        next.at(i, r) = commits[i].tokens[r];
        node.at(i, r) = commits[i].nodes.empty() ? SPECD_NODE_NONE : commits[i].nodes[r];
        s.tokens.push_back(commits[i].tokens[r]);
        if (s.sampling.tokens_left > 0) --s.sampling.tokens_left;
      }
    }
    Guarded<specd_update_args> args;
    specd_update_args& a = args.value;
    a.struct_size = sizeof a;
    a.max_rows = static_cast<uint32_t>(max_rows);
    a.batch = batch.get();
    a.count = count.tensor();
    a.position = position.tensor();
    a.token = token.tensor();
    a.next_token = next.tensor();
    a.node = node.tensor();
    a.host_count = count.data();
    a.host_position = position.data();
    a.host_token = token.data();
    a.host_next_token = next.data();
    a.host_node = node.data();
    const specd_status status = api_->update(self_, &a);
    for (std::size_t i = 0; i < n; ++i) {
      sequences_[static_cast<std::size_t>(commits[i].handle)]->status =
          status != SPECD_OK ? status : batch.status(i);
    }
    host_.check(args.intact() && count.intact() && position.intact() && token.intact() &&
                    next.intact() && node.intact(),
                "update() wrote past its arguments");
    host_.check_blocks();
    return status;
  }

  FakeDraft propose(int handle, int32_t budget = -1) {
    return propose_batch({handle}, {budget})[0];
  }
  // Budget -1 = all of the capacity.
  std::vector<FakeDraft> propose_batch(const std::vector<int>& handles,
                                       std::vector<int32_t> budgets = {}) {
    const std::size_t n = handles.size(), capacity = grant_.max_nodes;
    budgets.resize(n, -1);
    std::vector<FakeBatch::Item> items;
    for (const int handle : handles) items.push_back(item(handle));
    FakeBatch batch(host_, items);
    GuardedColumn<int32_t> root_token(n, 1, 1), root_position(n, 1, 1), node_budget(n, 1, 1),
        n_nodes(n, 1, 1), token(n, capacity), parent(n, capacity), flags(n, capacity);
    const bool variable = caps_.tree_mode == SPECD_TREE_VARIABLE;
    for (std::size_t i = 0; i < n; ++i) {
      const Sequence& s = *sequences_[static_cast<std::size_t>(handles[i])];
      const std::size_t budget =
          budgets[i] < 0 ? capacity : std::min(capacity, static_cast<std::size_t>(budgets[i]));
      root_token.at(i) = s.tokens.back();
      root_position.at(i) = static_cast<int32_t>(s.tokens.size()) - 1;
      node_budget.at(i) = static_cast<int32_t>(budget);
      token.limit_row(i, budget);
      flags.limit_row(i, budget);
      if (variable) {
        parent.limit_row(i, budget);
        continue;
      }
      for (std::size_t c = 0; c < capacity; ++c) parent.at(i, c) = preset_parent(c);
    }
    const bool probes = (grant_.needs & SPECD_NEED_PROBES) != 0;
    Guarded<specd_proposal> out;
    out.value.struct_size = sizeof out.value;
    out.value.node_capacity = static_cast<uint32_t>(capacity);
    out.value.n_nodes = n_nodes.tensor();
    out.value.token = token.tensor();
    out.value.parent = parent.tensor();
    out.value.flags = probes ? flags.tensor() : nullptr;
    Guarded<specd_propose_args> args;
    specd_propose_args& a = args.value;
    a.struct_size = sizeof a;
    a.batch = batch.get();
    a.root_token = root_token.tensor();
    a.root_position = root_position.tensor();
    a.node_budget = node_budget.tensor();
    a.host_root_token = root_token.data();
    a.host_root_position = root_position.data();
    a.host_node_budget = node_budget.data();
    a.sampling = batch.sampling();
    a.out = &out.value;
    const specd_status status = api_->propose(self_, &a);
    host_.check(args.intact() && out.intact() && root_token.intact() && root_position.intact() &&
                    node_budget.intact() && n_nodes.intact(),
                "propose() wrote past its arguments");
    host_.check(token.intact() && parent.intact() && flags.intact(),
                "propose() wrote past the budget of a row");
    host_.check_blocks();
    std::vector<FakeDraft> drafts(n);
    for (std::size_t i = 0; i < n; ++i) {
      FakeDraft& d = drafts[i];
      d.call_status = status;
      d.status = batch.status(i);
      d.count = n_nodes.at(i);
      for (std::size_t c = 0; c < capacity; ++c) {
        if (!variable && parent.at(i, c) != preset_parent(c)) {
          host_.violate("propose() changed a preset parent");
        }
        if (static_cast<int64_t>(c) >= d.count) continue;
        d.token.push_back(token.at(i, c));
        d.parent.push_back(parent.at(i, c));
        d.flags.push_back(flags.at(i, c));
      }
    }
    return drafts;
  }

  void end(int handle, uint32_t reason = SPECD_END_FINISHED) {
    Sequence& s = *sequences_[static_cast<std::size_t>(handle)];
    if (!s.begun) return;
    s.begun = false;
    FakeBatch batch(host_, {item(handle)});
    Guarded<specd_end_args> args;
    args.value.struct_size = sizeof args.value;
    args.value.reason = reason;
    args.value.batch = batch.get();
    api_->end(self_, &args.value);
    s.state = nullptr;
    host_.check_blocks();
  }

  // Of the sequence in the last begin() or commit().
  specd_status sequence_status(int handle) const {
    return sequences_[static_cast<std::size_t>(handle)]->status;
  }
  const std::vector<int32_t>& tokens(int handle) const {
    return sequences_[static_cast<std::size_t>(handle)]->tokens;
  }

 private:
  struct Sequence {
    uint64_t id;
    void* state;
    std::vector<int32_t> tokens;
    specd_sampling sampling;
    specd_status status;
    bool begun;
  };
  FakeBatch::Item item(int handle) const {
    const Sequence& s = *sequences_[static_cast<std::size_t>(handle)];
    return {s.id, static_cast<uint32_t>(handle), s.state, &s.sampling};
  }
  int32_t preset_parent(std::size_t node) const {
    if (caps_.tree_mode == SPECD_TREE_STATIC && node < static_parent_.size()) {
      return static_parent_[node];
    }
    return static_cast<int32_t>(node) - 1;
  }

  FakeHost& host_;
  const specd_drafter_api* api_;
  specd_status status_ = SPECD_OK;
  specd_drafter* self_ = nullptr;
  specd_drafter_caps caps_{};
  specd_drafter_grant grant_{};
  bool active_ = false;
  std::vector<int32_t> static_parent_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
};

// ------------------------------------------------------------------ verifier

// One sequence's proposal and what the target says: row_token[0] after the root, [i + 1] after node i.
struct FakeTree {
  std::vector<int32_t> token, parent, flags, row_token;
  int64_t state = 0;
};
struct FakeVerdict {
  specd_status call_status = SPECD_OK;
  specd_status status = SPECD_OK;
  int32_t n_accepted = 0;     // as the plugin wrote it
  std::vector<int32_t> path;  // the first min(n_accepted, capacity) entries
  int32_t next_token = 0;
  int64_t state = 0;
};

// Plays the host for one verifier instance.
class FakeVerifier {
 public:
  FakeVerifier(FakeHost& host, const specd_factory& factory, const FakeConfig& config)
      : host_(host), api_(factory.verifier) {
    if (api_ == nullptr) throw std::runtime_error("not a verifier factory");
    const specd_config view = config.view();
    Guarded<specd_verifier_caps> caps;
    caps.value.struct_size = sizeof caps.value;
    status_ = api_->describe(&factory, host.host(), &host.target(), &view, &caps.value);
    host.check(caps.intact(), "describe() wrote past the caps");
    if (status_ != SPECD_OK) return;
    caps_ = caps.value;
    FakeHost::Call call{&host, nullptr, 0, {}};
    specd_create_args args{};
    args.struct_size = sizeof args;
    args.target = &host.target();
    args.config = &view;
    args.owner = host.owner();
    args.call = call.handle();
    args.instance_name = "fake";
    args.data_dir = ".";
    status_ = api_->create(&factory, host.host(), &args, &self_);
    if (status_ != SPECD_OK) {
      self_ = nullptr;
      return;
    }
    specd_verifier_grant grant{};
    grant.struct_size = sizeof grant;
    grant.device_type = SPECD_DEV_CPU;
    grant.max_nodes = SPECD_MAX_TREE_NODES;
    grant.max_depth = SPECD_MAX_TREE_DEPTH;
    grant.max_batch = 64;
    status_ = api_->activate(self_, &grant);
    active_ = status_ == SPECD_OK;
  }
  ~FakeVerifier() {
    if (self_ == nullptr) return;
    if (active_) api_->deactivate(self_);
    api_->destroy(self_);
    host_.expect_no_memory_held();
  }
  FakeVerifier(const FakeVerifier&) = delete;
  FakeVerifier& operator=(const FakeVerifier&) = delete;

  specd_status status() const { return status_; }
  const specd_verifier_caps& caps() const { return caps_; }

  FakeVerdict verify(const FakeTree& tree) { return verify_batch({tree})[0]; }
  std::vector<FakeVerdict> verify_batch(const std::vector<FakeTree>& trees) {
    const std::size_t n = trees.size();
    std::size_t capacity = 1;
    for (const FakeTree& t : trees) capacity = std::max(capacity, t.token.size());
    const specd_sampling sampling = greedy_sampling();
    std::vector<FakeBatch::Item> items;
    for (std::size_t i = 0; i < n; ++i) {
      items.push_back({i + 1, static_cast<uint32_t>(i), nullptr, &sampling});
    }
    FakeBatch batch(host_, items);
    GuardedColumn<int32_t> n_nodes(n, 1, 1), token(n, capacity), parent(n, capacity),
        flags(n, capacity), row_token(n, capacity + 1), root_token(n, 1, 1),
        root_position(n, 1, 1), n_accepted(n, 1, 1), path(n, capacity), next_token(n, 1, 1);
    GuardedColumn<int64_t> state(n, 1, 1);
    for (std::size_t i = 0; i < n; ++i) {
      const FakeTree& t = trees[i];
      n_nodes.at(i) = static_cast<int32_t>(t.token.size());
      for (std::size_t c = 0; c < t.token.size(); ++c) {
        token.at(i, c) = t.token[c];
        parent.at(i, c) = t.parent[c];
        flags.at(i, c) = t.flags.empty() ? 0 : t.flags[c];
      }
      for (std::size_t c = 0; c < t.row_token.size(); ++c) row_token.at(i, c) = t.row_token[c];
      root_position.at(i) = 10;
      state.at(i) = t.state;
      path.limit_row(i, t.token.size());
    }
    specd_proposal proposal{};
    proposal.struct_size = sizeof proposal;
    proposal.node_capacity = static_cast<uint32_t>(capacity);
    proposal.n_nodes = n_nodes.tensor();
    proposal.token = token.tensor();
    proposal.parent = parent.tensor();
    proposal.flags = flags.tensor();
    Guarded<specd_verdict> out;
    out.value.struct_size = sizeof out.value;
    out.value.path_capacity = static_cast<uint32_t>(capacity);
    out.value.n_accepted = n_accepted.tensor();
    out.value.path = path.tensor();
    out.value.next_token = next_token.tensor();
    Guarded<specd_verify_args> args;
    specd_verify_args& a = args.value;
    a.struct_size = sizeof a;
    a.batch = batch.get();
    a.proposal = &proposal;
    a.root_token = root_token.tensor();
    a.root_position = root_position.tensor();
    a.row_token = row_token.tensor();
    a.state = state.tensor();
    a.sampling = batch.sampling();
    a.out = &out.value;
    const specd_status status = api_->verify(self_, &a);
    host_.check(args.intact() && out.intact() && n_accepted.intact() && path.intact() &&
                    next_token.intact() && state.intact() && token.intact() && parent.intact() &&
                    flags.intact() && row_token.intact() && n_nodes.intact() &&
                    root_token.intact() && root_position.intact(),
                "verify() wrote past its arguments");
    std::vector<FakeVerdict> verdicts(n);
    for (std::size_t i = 0; i < n; ++i) {
      FakeVerdict& v = verdicts[i];
      v.call_status = status;
      v.status = batch.status(i);
      v.n_accepted = n_accepted.at(i);
      for (std::size_t c = 0; c < capacity && static_cast<int64_t>(c) < v.n_accepted; ++c) {
        v.path.push_back(path.at(i, c));
      }
      v.next_token = next_token.at(i);
      v.state = state.at(i);
    }
    return verdicts;
  }

 private:
  FakeHost& host_;
  const specd_verifier_api* api_;
  specd_status status_ = SPECD_OK;
  specd_verifier* self_ = nullptr;
  specd_verifier_caps caps_{};
  bool active_ = false;
};

}  // namespace specd::sdk

#endif
