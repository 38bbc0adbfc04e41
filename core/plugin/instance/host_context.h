// The host's side of the opaque handles of the plugin boundary.
//
// `specd_call` lives for one host->plugin call and collects what the plugin reports; `specd_owner`
// lives as long as an instance and carries its quota and metrics. core/services reads both.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "core/base/fp_environment.h"
#include "core/base/last_words.h"
#include "core/base/log.h"
#include "core/base/mutex.h"
#include "core/device/device.h"
#include "specd/plugin_api/batch.h"
#include "specd/plugin_api/host.h"
#include "specd/plugin_api/services/kv.h"
#include "specd/plugin_api/services/metrics.h"
#include "specd/plugin_api/services/model.h"

namespace specd {

// Whether a configuration has, or may have, a key at this path ("tree.nodes", "sizes[1]").
using HasConfigKey = std::function<bool(std::string_view path)>;

// Where a thread runs the ops and the pool tasks of the plugin that it calls.
struct ServiceLane {
  CpuDevice& cpu;
  std::atomic<bool> pool_is_busy{false};
  Buffer linear_scratch{};  // of ops.linear() with codes; of whoever made the pool busy
};

struct OwnedBlock {
  uint64_t bytes = 0;
  Buffer memory;
};

}  // namespace specd

struct specd_call {
  uint64_t serial = next_serial();     // a number of this call alone
  specd_owner* owner = nullptr;        // of the instance that is called; set for every [step] call
  specd::ServiceLane* lane = nullptr;  // of a call beside the step; null = the step's own
  // Set by the caller before the call; null outside [step].
  const specd_batch* batch = nullptr;
  const specd_sampling* const* sampling = nullptr;                   // [n_seqs]
  const std::vector<std::span<const int32_t>>* committed = nullptr;  // [n_seqs]; in propose()
  // Filled by report(), cut at 4096 bytes each: text for the whole call, and for single sequences.
  std::string text;
  std::unordered_map<int32_t, std::string> sequence_text;
  // Blocks handed out by scratch(), freed when the call is over.
  std::vector<std::unique_ptr<char[]>> scratch;
  uint64_t scratch_bytes = 0;

  // Ready for the next call on the same batch: another one, without text and scratch.
  void clear() {
    serial = next_serial();
    text.clear();
    sequence_text.clear();
    scratch.clear();
    scratch_bytes = 0;
  }

 private:
  static uint64_t next_serial() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }
};

struct specd_metric {
  std::string name, help;
  bool counter = false;
  std::atomic<double> value{0};
};

struct specd_owner {
  std::string name;                     // instance name, for metrics
  std::string label;                    // for logs: plugin and instance; the name when empty
  std::string plugin;                   // exact_name(); in a process what its route names
  std::string build;                    // for last words: build_text() and the instance
  std::shared_ptr<const void> module;   // see hold_module()
  specd::HasConfigKey has_config_key;   // of the instance's configuration
  std::atomic<int32_t> device_type{0};  // SPECD_DEV_*, where it works; 0 before activate()
  mutable specd::Mutex mutex;
  uint64_t quota_bytes SPECD_GUARDED_BY(mutex) = 0;
  std::unordered_map<void*, specd::OwnedBlock> blocks SPECD_GUARDED_BY(mutex);
  uint64_t used_bytes SPECD_GUARDED_BY(mutex) = 0;
  std::unordered_map<std::string, std::unique_ptr<specd_metric>> metrics SPECD_GUARDED_BY(mutex);
  // The open models.
  std::unordered_map<const specd_model*, std::shared_ptr<specd_model>> models
      SPECD_GUARDED_BY(mutex);
  std::unordered_map<const specd_kv*, std::shared_ptr<specd_kv>> kvs SPECD_GUARDED_BY(mutex);
  std::unordered_map<const specd_matrix*, std::shared_ptr<const specd_matrix>> matrices
      SPECD_GUARDED_BY(mutex);
  // Opened weights, and dense copies of their tensors.
  std::unordered_set<std::shared_ptr<const void>> weights SPECD_GUARDED_BY(mutex);
};

namespace specd {

inline constexpr size_t kMetricsMax = 64;  // of one instance
inline constexpr size_t kMetricHelpBytesMax = 512;
// [a-z][a-z0-9_]{0,63}
bool is_metric_name(const char* name);

// A service that the host offers.
struct ServiceTable {
  const char* id;  // SPECD_SERVICE_*: name, version, '#', layout
  const void* table;
};

// All services of a host. Implemented by core/services; must outlive every plugin.
class ServiceDirectory {
 public:
  virtual ~ServiceDirectory() = default;
  // [any] Never changes.
  virtual std::span<const ServiceTable> services() const = 0;
};

// [any] The table of the service `id`, or null. When the host has another layout of that service,
// the reason goes to report_text(). Plugins that do not ask for the service are not affected.
const void* find_service(const ServiceDirectory& directory, const char* id);

// The specd_host for `services`; the same pointer for the same services. Never freed, since plugin
// code is never unmapped and a module keeps the host of its init(). A process has one host, except
// in tests that make several engines: after retire_host() the hosts of `services` use the newest
// living directory, or none.
const specd_host* make_host(const ServiceDirectory* services);
// Call before `services` is destroyed, after the last instance that uses it.
void retire_host(const ServiceDirectory* services);
// The directory behind `host`, or null.
const ServiceDirectory* host_services(const specd_host* host);

// Names the plugin that runs on this thread, for log lines and last words, and collects what it
// reports without a call (describe, init, entry). Scopes nest. All arguments must outlive it. With a
// null `text` such reports are logged.
class PluginScope {
 public:
  PluginScope(const std::string& name, std::string* text, const Activity& activity = {});
  ~PluginScope();
  PluginScope(const PluginScope&) = delete;
  PluginScope& operator=(const PluginScope&) = delete;

  const std::string& name() const { return name_; }
  std::string* text() const { return text_; }

 private:
  const std::string& name_;
  std::string* const text_;
  const PluginScope* const outer_;
  const Activity outer_activity_;
  FpEnvironment fp_environment_;
};

// Runs code of a plugin. The boundary is noexcept, so an exception that leaves the code ends the
// process, here, where last words can still name the plugin.
template <typename Call>
auto without_exceptions(Call&& call) noexcept {
  return call();
}

// "ID@VERSION": one version of a plugin, which others of it may stand beside.
std::string exact_name(const std::string& id, const std::string& version);

// "plugin ID, version VERSION, sha256:HASH", for last words.
std::string build_text(const std::string& id, const std::string& version,
                       const std::string& sha256);

// [any] Logs a line that a plugin causes, as one of those that it may log in a second: it could cause
// such lines without end. `plugin`: its id, or exact_name().
void log_because_of(const std::string& plugin, LogLevel level, std::string_view text);
// [any] Logs how many lines of plugins were dropped. Otherwise a later line of any plugin does.
void log_dropped_lines();

// Attaches text to `call`, else to the scope of this thread, else logs it: what host->report()
// does, for services that refuse an argument.
void report_text(specd_call* call, int32_t seq_index, std::string_view text);

}  // namespace specd
