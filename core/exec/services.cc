#include "core/exec/services.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "core/base/fp_environment.h"
#include "core/base/log.h"
#include "core/exec/service_arguments.h"
#include "core/plugin/instance/plugin_config.h"
#include "specd/kernels/draw.h"
#include "specd/plugin_api/services/memory.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/model.h"
#include "specd/plugin_api/services/ops.h"
#include "specd/plugin_api/services/pool.h"
#include "specd/plugin_api/services/rng.h"

namespace specd {

struct Services::Impl {
  CpuDevice& cpu;
  Device& device;
  int32_t vocab_size;
  ModelService* models = nullptr;
  // The pool runs one task at a time; a task that asks for another would wait for itself.
  std::atomic<bool> busy{false};

  static Impl* of(const specd_host* host) {
    const auto* services = dynamic_cast<const Services*>(host_services(host));
    return services == nullptr ? nullptr : services->impl_.get();
  }
};

namespace {

constexpr uint64_t kAlignMax = 4096;
constexpr uint64_t kDeviceAlignMax = 256;                   // what kernels/cuda.h gives
constexpr uint64_t kScratchBytesMax = uint64_t{256} << 20;  // of one call
constexpr uint64_t kAllocBytesMax = uint64_t{1} << 48;  // more is no size; keeps sums from wrapping
constexpr size_t kMetricsMax = 64;                      // of one instance
constexpr size_t kHelpBytesMax = 512;

bool is_alignment(uint64_t align) {
  return align != 0 && align <= kAlignMax && (align & (align - 1)) == 0;
}

// ---- memory/1 --------------------------------------------------------------------------------

// A block, and how it is given back; null and the reason.
OwnedBlock make_block(Services::Impl& impl, bool on_device, uint64_t bytes, uint64_t align,
                      std::string& why) {
  if (on_device) {
    Result<Buffer> buffer = impl.device.allocate(bytes, "memory.alloc");
    if (buffer.ok()) return {bytes, std::move(buffer).value()};
    why = buffer.status().message();
    return {};
  }
  // aligned_alloc wants a multiple of the alignment, and at least that of a pointer.
  const uint64_t unit = std::max<uint64_t>(align, alignof(std::max_align_t));
  void* block = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (block == nullptr) {
    why = "memory.alloc: the machine has no " + std::to_string(bytes) + " bytes";
    return {};
  }
  return {bytes, Buffer(block, bytes, [](void* data, uint64_t) { std::free(data); })};
}

specd_status memory_alloc(const specd_host* host, specd_owner* owner, int32_t device_type,
                          int32_t device_index, uint64_t bytes, uint64_t align,
                          void** out) noexcept {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.alloc: out is null");
  *out = nullptr;
  if (owner == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.alloc: owner is null");
  Services::Impl* impl = Services::Impl::of(host);
  if (impl == nullptr) return refuse(nullptr, SPECD_E_PRECONDITION, "memory.alloc: not this host");
  const bool on_device = device_type == SPECD_DEV_CUDA && !impl->device.is_host() &&
                         device_index == impl->device.index();
  if (!on_device && device_type != SPECD_DEV_CPU) {
    return refuse(nullptr, SPECD_E_UNSUPPORTED,
                  "memory.alloc: device type " + std::to_string(device_type) + " with index " +
                      std::to_string(device_index) +
                      " is not there; this host has SPECD_DEV_CPU (1)" +
                      (impl->device.is_host() ? "" : " and " + impl->device.name()));
  }
  if (!is_alignment(align) || bytes == 0) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "memory.alloc: bytes " + std::to_string(bytes) + ", align " +
                      std::to_string(align) +
                      ": expected bytes > 0 and a power of two of at most 4096");
  }
  if (on_device && align > kDeviceAlignMax) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "memory.alloc: align " + std::to_string(align) + " on " + impl->device.name() +
                      ", expected at most " + std::to_string(kDeviceAlignMax));
  }
  const std::lock_guard<std::mutex> lock(owner->mutex);
  const uint64_t left =
      owner->quota_bytes > owner->used_bytes ? owner->quota_bytes - owner->used_bytes : 0;
  if (bytes > left || bytes > kAllocBytesMax) {
    return refuse(nullptr, SPECD_E_EXHAUSTED,
                  "memory.alloc: " + std::to_string(bytes) + " bytes asked, " +
                      std::to_string(left) + " of the quota of " +
                      std::to_string(owner->quota_bytes) +
                      " are left; caps.bytes_fixed and bytes_per_seq set the quota");
  }
  std::string why;
  OwnedBlock block = make_block(*impl, on_device, bytes, align, why);
  void* data = block.memory.data();
  if (data == nullptr) return refuse(nullptr, SPECD_E_EXHAUSTED, why);
  owner->blocks.emplace(data, std::move(block));
  owner->used_bytes += bytes;
  *out = data;
  return SPECD_OK;
}

void memory_free(const specd_host*, specd_owner* owner, void* block) noexcept {
  if (block == nullptr || owner == nullptr) return;
  decltype(owner->blocks)::node_type freed;  // without the lock: a large block takes its time
  {
    const std::lock_guard<std::mutex> lock(owner->mutex);
    const auto found = owner->blocks.find(block);
    if (found != owner->blocks.end()) {
      owner->used_bytes -= found->second.bytes;
      freed = owner->blocks.extract(found);
      return;
    }
  }
  log(LogLevel::kWarn,
      "plugin " + owner->label +
          ": memory.free() of a pointer that this instance does not hold; ignored");
}

specd_status memory_scratch(const specd_host*, specd_call* call, uint64_t bytes, uint64_t align,
                            void** out) noexcept {
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "memory.scratch: out is null");
  *out = nullptr;
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.scratch: call is null");
  if (!is_alignment(align) || bytes == 0) {
    return refuse(call, SPECD_E_INVALID,
                  "memory.scratch: bytes " + std::to_string(bytes) + ", align " +
                      std::to_string(align) +
                      ": expected bytes > 0 and a power of two of at most 4096");
  }
  if (bytes > kScratchBytesMax || bytes + align > kScratchBytesMax - call->scratch_bytes) {
    return refuse(call, SPECD_E_EXHAUSTED,
                  "memory.scratch: " + std::to_string(bytes) + " bytes asked, " +
                      std::to_string(kScratchBytesMax - call->scratch_bytes) + " of " +
                      std::to_string(kScratchBytesMax) + " per call are left");
  }
  std::unique_ptr<char[]> block(new (std::nothrow) char[bytes + align]);
  if (block == nullptr) {
    return refuse(call, SPECD_E_EXHAUSTED,
                  "memory.scratch: the machine has no " + std::to_string(bytes) + " bytes");
  }
  const auto address = reinterpret_cast<uintptr_t>(block.get());
  *out = block.get() + ((address + align - 1) / align * align - address);
  call->scratch.push_back(std::move(block));
  call->scratch_bytes += bytes + align;
  return SPECD_OK;
}

constexpr specd_memory kMemory = {sizeof(specd_memory), 0, memory_alloc, memory_free,
                                  memory_scratch};

// ---- rng/1 -----------------------------------------------------------------------------------

// Everything that both functions ask of their arguments.
std::string keys_fault(const specd_call* call, const specd_tensor* seq_index,
                       const specd_tensor* position, const specd_tensor* out) {
  if (call->batch == nullptr || call->sampling == nullptr) return "the call has no batch";
  std::string fault = tensor_fault("seq_index", seq_index, SPECD_DT_INT, 1);
  if (fault.empty()) fault = tensor_fault("position", position, SPECD_DT_INT, 1);
  if (fault.empty()) fault = tensor_fault("out", out, SPECD_DT_FLOAT, 2);
  if (!fault.empty()) return fault;
  const int64_t n = out->shape[0];
  if (seq_index->shape[0] != n || position->shape[0] != n) {
    return "seq_index has " + std::to_string(seq_index->shape[0]) + " entries, position " +
           std::to_string(position->shape[0]) + ", out has " + std::to_string(n) + " rows";
  }
  for (int64_t i = 0; i < n; ++i) {
    const int32_t sequence = element(*seq_index, i);
    if (sequence < 0 || static_cast<uint32_t>(sequence) >= call->batch->n_seqs) {
      return "seq_index[" + std::to_string(i) + "] is " + std::to_string(sequence) +
             ", expected 0.." + std::to_string(int64_t{call->batch->n_seqs} - 1);
    }
    if (call->sampling[sequence] == nullptr) {
      return "sequence " + std::to_string(sequence) + " has no sampling parameters";
    }
    if (element(*position, i) < 0) {
      return "position[" + std::to_string(i) + "] is " + std::to_string(element(*position, i)) +
             ", expected at least 0";
    }
  }
  return std::string();
}

bool is_greedy(const specd_sampling& sampling) {
  return (sampling.flags & SPECD_SAMPLE_GREEDY) != 0;
}

specd_status rng_draw_noise(const specd_host* host, specd_call* call, const specd_tensor* seq_index,
                            const specd_tensor* position, const specd_tensor* out) noexcept {
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "rng.draw_noise: call is null");
  Services::Impl* impl = Services::Impl::of(host);
  if (impl == nullptr) return refuse(call, SPECD_E_PRECONDITION, "rng.draw_noise: not this host");
  std::string fault = keys_fault(call, seq_index, position, out);
  if (fault.empty() && out->shape[1] != impl->vocab_size) {
    fault = "out has " + std::to_string(out->shape[1]) + " columns, expected vocab_size " +
            std::to_string(impl->vocab_size);
  }
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "rng.draw_noise: " + fault);
  if (impl->busy.exchange(true, std::memory_order_acquire)) {
    return refuse(call, SPECD_E_PRECONDITION, "rng.draw_noise: called from a pool task");
  }
  // Runs of seeded rows that lie side by side go to the op together.
  constexpr int64_t kRunMax = 64;
  uint64_t seeds[kRunMax];
  int32_t positions[kRunMax];
  const int64_t n = out->shape[0];
  const int64_t run_max = out->stride[0] == out->shape[1] ? kRunMax : 1;
  for (int64_t first = 0; first < n;) {
    int64_t count = 0;
    while (count < run_max && first + count < n) {
      const specd_sampling& sampling = *call->sampling[element(*seq_index, first + count)];
      if (is_greedy(sampling)) break;
      seeds[count] = sampling.seed;
      positions[count] = element(*position, first + count);
      ++count;
    }
    if (count == 0) {
      std::fill_n(row<float>(*out, first), impl->vocab_size, 0.0f);
      ++first;
      continue;
    }
    kernels::DrawNoiseArgs args;
    args.seed = seeds;
    args.position = positions;
    args.out = row<float>(*out, first);
    args.n_rows = static_cast<int32_t>(count);
    args.vocab = impl->vocab_size;
    impl->cpu.ops().draw_noise(impl->cpu.stream(), args);
    first += count;
  }
  impl->busy.store(false, std::memory_order_release);
  return SPECD_OK;
}

specd_status rng_uniform(const specd_host*, specd_call* call, const specd_tensor* seq_index,
                         const specd_tensor* position, uint32_t purpose, uint32_t round,
                         const specd_tensor* out) noexcept {
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "rng.uniform: call is null");
  if (purpose == 0) {
    return refuse(call, SPECD_E_INVALID,
                  "rng.uniform: purpose 0 belongs to the host's own draw; use SPECD_PURPOSE_*");
  }
  const std::string fault = keys_fault(call, seq_index, position, out);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "rng.uniform: " + fault);
  for (int64_t i = 0; i < out->shape[0]; ++i) {
    const uint64_t seed = call->sampling[element(*seq_index, i)]->seed;
    float* values = row<float>(*out, i);
    for (int64_t lane = 0; lane < out->shape[1]; lane += 4) {
      const uint32_t counter[4] = {static_cast<uint32_t>(lane / 4),
                                   static_cast<uint32_t>(element(*position, i)), purpose, round};
      uint32_t words[4];
      kernels::philox4x32(seed, counter, words);
      const int64_t lanes = std::min<int64_t>(4, out->shape[1] - lane);
      // 24 bits are what a float in [0, 1) holds; more would round up to 1.
      for (int64_t k = 0; k < lanes; ++k) {
        values[lane + k] = static_cast<float>(words[k] >> 8) * 0x1p-24f;
      }
    }
  }
  return SPECD_OK;
}

constexpr specd_rng kRng = {sizeof(specd_rng), 0, rng_draw_noise, rng_uniform};

// ---- metrics/1 -------------------------------------------------------------------------------

bool is_metric_name(const char* name) {
  if (name[0] < 'a' || name[0] > 'z') return false;
  size_t length = 1;
  for (; length <= 64 && name[length] != '\0'; ++length) {
    const char c = name[length];
    if (!((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_')) return false;
  }
  return length <= 64;
}

specd_status metrics_define(const specd_host*, specd_owner* owner, uint32_t kind, const char* name,
                            const char* help, specd_metric** out) noexcept {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "metrics.define: out is null");
  *out = nullptr;
  if (owner == nullptr || name == nullptr || !is_metric_name(name) || kind > SPECD_METRIC_GAUGE) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "metrics.define: expected an owner, a name like [a-z][a-z0-9_]{0,63} and a kind "
                  "of SPECD_METRIC_*");
  }
  const bool counter = kind == SPECD_METRIC_COUNTER;
  const std::lock_guard<std::mutex> lock(owner->mutex);
  const auto found = owner->metrics.find(name);
  if (found != owner->metrics.end()) {
    if (found->second->counter != counter) {
      return refuse(nullptr, SPECD_E_INVALID,
                    std::string("metrics.define: ") + name + " was defined with the other kind");
    }
    *out = found->second.get();
    return SPECD_OK;
  }
  if (owner->metrics.size() >= kMetricsMax) {
    return refuse(nullptr, SPECD_E_EXHAUSTED, "metrics.define: an instance has at most 64 metrics");
  }
  auto metric = std::make_unique<specd_metric>();
  metric->name = name;
  if (help != nullptr) metric->help.assign(help, strnlen(help, kHelpBytesMax));
  metric->counter = counter;
  *out = metric.get();
  owner->metrics.emplace(metric->name, std::move(metric));
  return SPECD_OK;
}

void metrics_record(const specd_host*, specd_metric* metric, double value) noexcept {
  if (metric == nullptr) return;
  if (!metric->counter) {
    metric->value.store(value, std::memory_order_relaxed);
  } else if (std::isfinite(value) && value > 0) {
    metric->value.fetch_add(value, std::memory_order_relaxed);
  }
}

constexpr specd_metrics kMetrics = {sizeof(specd_metrics), 0, metrics_define, metrics_record};

// ---- pool/1 ----------------------------------------------------------------------------------

uint32_t pool_width(const specd_host* host) noexcept {
  Services::Impl* impl = Services::Impl::of(host);
  return impl == nullptr ? 1 : static_cast<uint32_t>(impl->cpu.stream().pool().n_threads());
}

struct PoolRun {
  specd_pool_task task;
  void* ctx;
  uint32_t n;
};

specd_status pool_run(const specd_host* host, specd_call* call, uint32_t n, specd_pool_task task,
                      void* ctx) noexcept {
  if (call == nullptr || task == nullptr) {
    return refuse(call, SPECD_E_INVALID, "pool.run: call or task is null");
  }
  if (call->batch == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "pool.run: only inside begin() to verify()");
  }
  Services::Impl* impl = Services::Impl::of(host);
  if (impl == nullptr) return refuse(call, SPECD_E_PRECONDITION, "pool.run: not this host");
  if (impl->busy.exchange(true, std::memory_order_acquire)) {
    return refuse(call, SPECD_E_PRECONDITION, "pool.run: called from a pool task");
  }
  PoolRun run{task, ctx, n};
  impl->cpu.stream().pool().run(
      [](void* state, int part, int parts) {
        const PoolRun& mine = *static_cast<const PoolRun*>(state);
        const FpEnvironment fp_environment;
        // 64 bits: part + parts may pass the last of 2^32 - 1 tasks.
        for (uint64_t i = static_cast<uint64_t>(part); i < mine.n;
             i += static_cast<uint64_t>(parts)) {
          mine.task(mine.ctx, static_cast<uint32_t>(i));
        }
      },
      &run);
  impl->busy.store(false, std::memory_order_release);
  return SPECD_OK;
}

constexpr specd_pool kPool = {sizeof(specd_pool), 0, pool_width, pool_run};

// ---- ops/1 -----------------------------------------------------------------------------------

std::string walk_fault(const specd_walk_args& a, const Device* device) {
  if (a.n_nodes == nullptr || a.token == nullptr || a.path == nullptr) {
    return "n_nodes, token or path is null";
  }
  const int64_t n = a.n_nodes->shape[0], capacity = a.token->shape[1];
  const int64_t path_capacity = a.path->shape[1];
  const auto check = [&](const char* name, const specd_tensor* tensor, uint32_t rank,
                         int64_t columns) {
    std::string fault = tensor_fault(name, tensor, SPECD_DT_INT, rank, device);
    if (!fault.empty()) return fault;
    const bool dense = tensor->stride[rank - 1] == 1 && (rank == 1 || tensor->stride[0] == columns);
    if (tensor->shape[0] != n || (rank == 2 && tensor->shape[1] != columns) || !dense) {
      return std::string(name) + " has another shape than [" + std::to_string(n) +
             (rank == 2 ? ", " + std::to_string(columns) : "") + "], or gaps";
    }
    return std::string();
  };
  std::string fault = check("n_nodes", a.n_nodes, 1, 0);
  if (fault.empty()) fault = check("token", a.token, 2, capacity);
  if (fault.empty()) fault = check("parent", a.parent, 2, capacity);
  if (fault.empty() && a.flags != nullptr) fault = check("flags", a.flags, 2, capacity);
  if (fault.empty()) fault = check("wanted", a.wanted, 2, capacity + 1);
  if (fault.empty()) fault = check("n_path", a.n_path, 1, 0);
  if (fault.empty()) fault = check("path", a.path, 2, path_capacity);
  if (fault.empty()) fault = check("last", a.last, 1, 0);
  return fault;
}

specd_status ops_walk(const specd_host* host, specd_call* call,
                      const specd_walk_args* args) noexcept {
  if (call == nullptr || call->batch == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "ops.walk: only inside begin() to verify()");
  }
  Services::Impl* impl = Services::Impl::of(host);
  if (impl == nullptr) return refuse(call, SPECD_E_PRECONDITION, "ops.walk: not this host");
  if (args == nullptr || args->struct_size != sizeof(specd_walk_args)) {
    return refuse(
        call, SPECD_E_INVALID,
        "ops.walk: args of struct_size " + std::to_string(sizeof(specd_walk_args)) + " expected");
  }
  const bool on_host = args->n_nodes == nullptr || args->n_nodes->device_type == SPECD_DEV_CPU;
  const std::string fault = walk_fault(*args, on_host ? nullptr : &impl->device);
  if (!fault.empty()) return refuse(call, SPECD_E_INVALID, "ops.walk: " + fault);
  const auto data = [](const specd_tensor* tensor) {
    return tensor == nullptr ? nullptr : static_cast<int32_t*>(tensor->data);
  };
  const kernels::WalkTreeArgs walk{.n_nodes = data(args->n_nodes),
                                   .token = data(args->token),
                                   .parent = data(args->parent),
                                   .flags = data(args->flags),
                                   .wanted = data(args->wanted),
                                   .n_path = data(args->n_path),
                                   .path = data(args->path),
                                   .last = data(args->last),
                                   .n = static_cast<int32_t>(args->n_nodes->shape[0]),
                                   .capacity = static_cast<int32_t>(args->token->shape[1]),
                                   .path_capacity = static_cast<int32_t>(args->path->shape[1]),
                                   .skip_flags = static_cast<int32_t>(args->skip_flags)};
  Device& device = on_host ? impl->cpu : impl->device;
  device.ops().walk_tree(device.stream(), walk);
  return SPECD_OK;
}

constexpr specd_ops kOps = {sizeof(specd_ops), 0, ops_walk};

// ---- model/1: checks and sessions are in model_service.cc ------------------------------------

ModelService* models_of(const specd_host* host) {
  Services::Impl* impl = Services::Impl::of(host);
  return impl == nullptr ? nullptr : impl->models;
}

specd_status model_absent(specd_call* call) {
  return refuse(call, SPECD_E_PRECONDITION, "model/1: this host has no models");
}

specd_status model_open(const specd_host* host, specd_owner* owner, const char* name,
                        specd_model** out) noexcept {
  ModelService* models = models_of(host);
  return models == nullptr ? model_absent(nullptr) : models->open(owner, name, out);
}

specd_status model_info(const specd_host* host, specd_owner* owner, specd_model* model,
                        specd_target_info* out) noexcept {
  ModelService* models = models_of(host);
  return models == nullptr ? model_absent(nullptr) : models->info(owner, model, out);
}

void model_close(const specd_host* host, specd_owner* owner, specd_model* model) noexcept {
  if (ModelService* models = models_of(host); models != nullptr) models->close(owner, model);
}

// Runs `body` unless a pool task asks: a forward needs the pool itself.
template <typename Body>
specd_status on_models(const specd_host* host, specd_call* call, Body&& body) {
  Services::Impl* impl = Services::Impl::of(host);
  if (impl == nullptr || impl->models == nullptr) return model_absent(call);
  if (impl->busy.exchange(true, std::memory_order_acquire)) {
    return refuse(call, SPECD_E_PRECONDITION, "model/1: called from a pool task");
  }
  const specd_status status = body(*impl->models);
  impl->busy.store(false, std::memory_order_release);
  return status;
}

specd_status model_length(const specd_host* host, specd_call* call, specd_model* model,
                          uint32_t* out) noexcept {
  return on_models(host, call,
                   [&](ModelService& models) { return models.length(call, model, out); });
}

specd_status model_forward(const specd_host* host, specd_call* call, specd_model* model,
                           const specd_forward_args* args) noexcept {
  return on_models(host, call,
                   [&](ModelService& models) { return models.forward(call, model, args); });
}

specd_status model_keep(const specd_host* host, specd_call* call, specd_model* model,
                        const uint32_t* kept, const uint32_t* row_offsets,
                        const uint32_t* rows) noexcept {
  return on_models(host, call, [&](ModelService& models) {
    return models.keep(call, model, kept, row_offsets, rows);
  });
}

specd_status model_follow(const specd_host* host, specd_call* call, specd_model* model,
                          const specd_forward_args* args) noexcept {
  return on_models(host, call,
                   [&](ModelService& models) { return models.follow(call, model, args); });
}

constexpr specd_models kModels = {sizeof(specd_models),
                                  0,
                                  model_open,
                                  model_info,
                                  model_close,
                                  model_length,
                                  model_forward,
                                  model_follow,
                                  model_keep};

}  // namespace

Services::Services(CpuDevice& cpu, Device& device, int32_t vocab_size)
    : impl_(new Impl{cpu, device, vocab_size}) {}

void Services::set_models(ModelService* models) { impl_->models = models; }

Services::~Services() { retire_host(this); }

const void* Services::find(const char* id) const {
  if (std::strcmp(id, SPECD_SERVICE_MEMORY) == 0) return &kMemory;
  if (std::strcmp(id, SPECD_SERVICE_RNG) == 0) return &kRng;
  if (std::strcmp(id, SPECD_SERVICE_METRICS) == 0) return &kMetrics;
  if (std::strcmp(id, SPECD_SERVICE_POOL) == 0) return &kPool;
  if (std::strcmp(id, SPECD_SERVICE_OPS) == 0) return &kOps;
  if (std::strcmp(id, SPECD_SERVICE_MODEL) == 0) return &kModels;
  if (std::strcmp(id, SPECD_SERVICE_PARTS) == 0) return &kPartsService;
  return nullptr;
}

std::vector<PluginMetric> plugin_metrics(const specd_owner& owner) {
  std::vector<PluginMetric> all;
  const std::lock_guard<std::mutex> lock(owner.mutex);
  for (const auto& [name, metric] : owner.metrics) {
    all.push_back({owner.name, name, metric->help, metric->counter,
                   metric->value.load(std::memory_order_relaxed)});
  }
  std::sort(all.begin(), all.end(),
            [](const PluginMetric& a, const PluginMetric& b) { return a.name < b.name; });
  return all;
}

}  // namespace specd
