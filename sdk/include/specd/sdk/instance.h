// Shared by drafters and verifiers: construction context and access to the host.
#ifndef SPECD_SDK_INSTANCE_H
#define SPECD_SDK_INSTANCE_H

#include <specd/plugin_api/entry.h>
#include <specd/plugin_api/services/memory.h>
#include <specd/plugin_api/services/metrics.h>
#include <specd/sdk/config.h>
#include <specd/sdk/error.h>

#include <cstdint>
#include <string>

namespace specd::sdk {

// Arguments of describe() and of the constructor, borrowed until the call returns. In describe()
// `owner` is null, and `name` and `data_dir` are empty.
struct Context {
  const specd_host* host;
  const specd_target_info* target;
  Config config;
  specd_owner* owner;
  const char* name;
  const char* data_dir;
};

// Returns the table of a service that the caps require. Throws when the host does not have it.
template <class Table>
const Table* require_service(const specd_host* host, const char* id) {
  const auto* table = static_cast<const Table*>(host->get_service(host, id));
  if (table == nullptr) {
    throw Error(SPECD_E_UNSUPPORTED, std::string("the host does not offer the service ") + id);
  }
  return table;
}

// Throws unless a service has done what it was asked for. The host reports the reason itself.
inline void check_service(specd_status status, const char* function) {
  if (status == SPECD_OK) return;
  throw Error(status, std::string("the host refused ") + function + "()");
}

// Base of Drafter and Verifier. Lives from create() to destroy().
class Instance {
 public:
  explicit Instance(const Context& context)
      : host_(context.host),
        owner_(context.owner),
        name_(context.name),
        model_id_(text(context.target->model_id)),
        architecture_(text(context.target->architecture)),
        target_(*context.target) {
    target_.model_id = model_id_.c_str();
    target_.architecture = architecture_.c_str();
    if (context.target->tokenizer_sha256 != nullptr) {
      for (int i = 0; i < 32; ++i) tokenizer_sha256_[i] = context.target->tokenizer_sha256[i];
      target_.tokenizer_sha256 = tokenizer_sha256_;
    }
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  const specd_host* host() const { return host_; }
  specd_owner* owner() const { return owner_; }
  const std::string& name() const { return name_; }
  const specd_target_info& target() const { return target_; }
  int32_t vocab_size() const { return static_cast<int32_t>(target_.vocab_size); }

  // [any] severity is SPECD_LOG_*.
  void log(uint32_t severity, const std::string& message) const {
    if (host_->log != nullptr) host_->log(host_, severity, message.data(), message.size());
  }

 protected:
  ~Instance() = default;

 private:
  static std::string text(const char* s) { return s == nullptr ? std::string() : std::string(s); }

  const specd_host* host_;
  specd_owner* owner_;
  std::string name_;
  std::string model_id_;
  std::string architecture_;
  uint8_t tokenizer_sha256_[32] = {};
  specd_target_info target_;
};

// Standard allocator over the memory service, which charges the instance's quota. Throws
// Error(SPECD_E_EXHAUSTED) beyond the quota.
template <class T>
class HostAllocator {
 public:
  using value_type = T;

  explicit HostAllocator(const Instance& instance)
      : host_(instance.host()),
        owner_(instance.owner()),
        memory_(require_service<specd_memory>(instance.host(), SPECD_SERVICE_MEMORY)) {}
  template <class U>
  HostAllocator(const HostAllocator<U>& other) noexcept
      : host_(other.host_), owner_(other.owner_), memory_(other.memory_) {}

  T* allocate(std::size_t n) {
    if (n > SIZE_MAX / kItemBytes) throw std::bad_alloc();
    void* out = nullptr;
    const specd_status status = memory_->alloc(host_, owner_, SPECD_DEV_CPU, 0, n * kItemBytes,
                                               alignof(T) < 16 ? 16 : alignof(T), &out);
    if (status != SPECD_OK) {
      throw Error(status, "the host refused " + std::to_string(n * kItemBytes) +
                              " bytes: over the memory quota of this instance");
    }
    return static_cast<T*>(out);
  }
  void deallocate(T* p, std::size_t) noexcept { memory_->free(host_, owner_, p); }

  template <class U>
  bool operator==(const HostAllocator<U>& other) const noexcept {
    return owner_ == other.owner_ && memory_ == other.memory_;
  }
  template <class U>
  bool operator!=(const HostAllocator<U>& other) const noexcept {
    return !(*this == other);
  }

  // NOLINTNEXTLINE(bugprone-sizeof-expression): T is a pointer in containers of pointers.
  static constexpr std::size_t kItemBytes = sizeof(T);
  const specd_host* host_;
  specd_owner* owner_;
  const specd_memory* memory_;
};

// A counter or gauge that the host exports with the instance's labels. Does nothing when the
// host has no metrics service. Define it in the instance's constructor ([control]); record from
// any thread.
class Metric {
 public:
  Metric(const Instance& instance, uint32_t kind, const char* name, const char* help)
      : host_(instance.host()),
        table_(
            static_cast<const specd_metrics*>(host_->get_service(host_, SPECD_SERVICE_METRICS))) {
    if (table_ == nullptr) return;
    if (table_->define(host_, instance.owner(), kind, name, help, &metric_) != SPECD_OK) {
      throw Error(SPECD_E_INTERNAL, std::string("the host refused the metric ") + name);
    }
  }
  void record(double value) const noexcept {
    if (metric_ != nullptr) table_->record(host_, metric_, value);
  }

 private:
  const specd_host* host_;
  const specd_metrics* table_;
  specd_metric* metric_ = nullptr;
};

}  // namespace specd::sdk

#endif
