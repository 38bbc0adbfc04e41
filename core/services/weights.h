// weights/1 and target/1: checks what plugins ask of weights, and makes copies of them where the
// instance works.
//
//   path ──open──> WeightFile (mapped once) ──matrix, tensor──> copies (made once) ──> ops/1
//
// Every argument comes from a plugin and is checked, but for the handle of find() and config();
// report() says what was refused.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "core/base/mutex.h"
#include "core/device/device.h"
#include "core/model/lead.h"
#include "core/model/transformer.h"
#include "core/model/weight_file.h"
#include "core/plugin/instance/host_context.h"
#include "core/plugin/instance/plugin_config.h"
#include "specd/plugin_api/services/weights.h"

// A plugin's handle. Its owner keeps it, or in describe() the configuration.
struct specd_weights {
  std::shared_ptr<const specd::WeightFile> file;
  std::unique_ptr<specd::PluginConfig> config;  // null when there is no config.json
};

namespace specd {

// The output head of a target that ranks share.
struct SharedHead {
  Transformer* target = nullptr;
  Lead* lead = nullptr;
};

}  // namespace specd

// A matrix where an instance works. Shared by all owners that asked for it.
struct specd_matrix {
  specd::kernels::PackedMatrix packed;
  specd::SharedHead* shared = nullptr;        // then `packed` has no data
  bool on_device = false;                     // of the models, if that is not the host
  std::shared_ptr<specd::PlacedOrder> order;  // of codes; null when it is the target's
  specd::Buffer memory;                       // empty when it is the target's
};

namespace specd {

// Values that are made once and shared by all who want them, as long as one of them keeps it. Whoever
// makes a value keeps only those waiting that want the same one.
template <typename T>
class MadeOnce {
 public:
  // The value of `id` if there is one that is_good(), else what make() gives.
  template <typename IsGood, typename Make>
  Result<std::shared_ptr<T>> get(const std::string& id, IsGood&& is_good, Make&& make) {
    const std::shared_ptr<Entry> entry = entry_of(id);
    const MutexLock turn(entry->turn);
    if (std::shared_ptr<T> known = entry->value.lock(); known != nullptr && is_good(*known))
      return known;
    SPECD_TRY(std::shared_ptr<T> made, make());
    entry->value = made;
    return made;
  }

  // The value of `id` if somebody keeps it.
  std::shared_ptr<T> find(const std::string& id) {
    const std::shared_ptr<Entry> entry = entry_of(id);
    const MutexLock turn(entry->turn);
    return entry->value.lock();
  }

 private:
  struct Entry {
    bool is_left() {
      const MutexLock lock(turn);
      return value.expired();
    }
    Mutex turn;
    std::weak_ptr<T> value SPECD_GUARDED_BY(turn);
  };
  std::shared_ptr<Entry> entry_of(const std::string& id) {
    const MutexLock lock(mutex_);
    // One that somebody else holds has, or waits for, its turn.
    std::erase_if(entries_, [](const auto& each) {
      return each.second.use_count() == 1 && each.second->is_left();
    });
    std::shared_ptr<Entry>& entry = entries_[id];
    if (entry == nullptr) entry = std::make_shared<Entry>();
    return entry;
  }
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_ SPECD_GUARDED_BY(mutex_);
};

class WeightService final {
 public:
  // Both must outlive this, and `device` every copy.
  WeightService(CpuDevice& cpu, Device& device) : cpu_(cpu), device_(device) {}

  // [control] Null = none; `lead` as in Worker. A plugin that runs beside it has the target before or after.
  // Null REQUIRES that no plugin is running.
  void set_target(Transformer* target, Lead* lead = nullptr);
  // [control] Until then, tables of this shape without memory.
  void plan_target(const ModelConfig& config);

  // [control] The functions of specd_weights_api and specd_target_api.
  specd_status open(specd_owner* owner, const specd_config* config, const char* key,
                    specd_weights** out);
  specd_status matrix(specd_owner* owner, const specd_weights* weights, const char* const* names,
                      uint32_t n, int64_t n_out, int64_t n_in, specd_matrix** out);
  specd_status tensor(specd_owner* owner, const specd_weights* weights, const char* name,
                      std::span<const int64_t> shape, uint8_t dtype_code, uint8_t dtype_bits,
                      specd_tensor* out);
  specd_status embedding(specd_owner* owner, specd_tensor* out);
  specd_status head(specd_owner* owner, specd_matrix** out) const;

  // What matrix() charges for a quantized tensor: what it would take alone, in host memory or on the device,
  // whichever is more.
  uint64_t code_bytes(const WeightFile::Coded& coded) const;

 private:
  // What matrix() charges, 0 when a tensor is missing.
  uint64_t charge_of(const specd_weights& weights, std::span<const std::string> names,
                     int64_t n_out, int64_t n_in) const;
  Result<std::shared_ptr<const WeightFile>> file_at(const std::string& path);
  Result<std::shared_ptr<specd_matrix>> make_matrix(const specd_weights& weights,
                                                    std::span<const std::string> names,
                                                    int64_t n_out, int64_t n_in, bool on_device);
  Result<std::shared_ptr<specd_matrix>> make_coded_matrix(const specd_weights& weights,
                                                          std::span<const std::string> names,
                                                          int64_t n_out, int64_t n_in,
                                                          bool on_device);
  Result<std::shared_ptr<Buffer>> make_tensor(const specd_weights& weights, const std::string& name,
                                              uint8_t code, uint8_t bits, bool on_device);
  Result<std::shared_ptr<Buffer>> copy_of(const void* source, uint64_t bytes, Device& where);
  // Where copies are made, and what makes them: a stream of its own.
  Device& place(bool on_device) const { return on_device ? device_ : static_cast<Device&>(cpu_); }

  CpuDevice& cpu_;
  Device& device_;
  std::atomic<const Transformer*> target_{nullptr};  // set last
  const ModelConfig* planned_ = nullptr;
  std::shared_ptr<const specd_matrix> planned_head_, head_;  // before and with target_
  SharedHead shared_head_;
  MadeOnce<const WeightFile> files_;  // by path
  MadeOnce<specd_matrix> matrices_;   // by file, names and memory
  MadeOnce<Buffer> tensors_;          // by file, name, type and memory
};

}  // namespace specd
