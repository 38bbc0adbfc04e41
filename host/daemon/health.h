// What /metrics, /health/live and /health/ready answer.
#pragma once

#include <atomic>
#include <string>

#include "core/engine.h"
#include "host/http/http_listener.h"

namespace specd::host {

// Outlives the listener that asks it.
class Health {
 public:
  // A step that takes longer than `stall_seconds` is taken for a hanging one.
  explicit Health(uint32_t stall_seconds) : stall_seconds_(stall_seconds) {}

  // From now on the engine is asked; it outlives the listener. Before, nothing is ready.
  void loaded(const Engine& engine) { engine_ = &engine; }
  void draining() { draining_ = true; }

  // [any]
  //   /metrics       the engine's metrics and the build; 503 while loading
  //   /health/live   503 when a step does not come back
  //   /health/ready  503 while loading and draining
  HttpAnswer answer(const std::string& path) const;

 private:
  HttpAnswer live() const;
  HttpAnswer ready() const;
  HttpAnswer metrics() const;

  uint32_t stall_seconds_;
  std::atomic<const Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
};

}  // namespace specd::host
