// The host's side of the opaque handles of the plugin boundary.
//
// `specd_call` lives for one host->plugin call and collects what the plugin reports; `specd_owner`
// lives as long as an instance and carries its quota. Services (core/exec/services) read both.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "specd/plugin_api/batch.h"
#include "specd/plugin_api/host.h"

namespace specd {

struct OwnedBlock {
  uint64_t bytes = 0;
};

}  // namespace specd

struct specd_call {
  // Set by the caller before the call; null outside [step].
  const specd_batch* batch = nullptr;
  const specd_sampling* const* sampling = nullptr;  // [n_seqs]
  // Filled by report(): text for the whole call, and for single sequences.
  std::string text;
  std::unordered_map<int32_t, std::string> sequence_text;
  // Blocks handed out by scratch(), freed when the call's work is done.
  std::vector<std::unique_ptr<char[]>> scratch;
};

struct specd_owner {
  std::string name;  // instance name, for logs and metrics
  uint64_t quota_bytes = 0;
  std::mutex mutex;
  std::unordered_map<void*, specd::OwnedBlock> blocks;  // guarded by mutex
  uint64_t used_bytes = 0;                               // guarded by mutex
  struct Metric;
  std::unordered_map<std::string, std::unique_ptr<Metric>> metrics;  // guarded by mutex
};

namespace specd {

// What the host offers by id. Implemented by exec; must outlive every plugin.
class ServiceDirectory {
 public:
  virtual ~ServiceDirectory() = default;
  // [any] A const table, or null.
  virtual const void* find(const char* id) const = 0;
};

// The one specd_host of the process, backed by `services`. Reports outside a call are logged.
// Lives until process exit, since plugin code is never unmapped.
const specd_host* make_host(const ServiceDirectory* services);

}  // namespace specd
