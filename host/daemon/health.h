// What /metrics, /health/live and /health/ready answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/engine.h"
#include "host/http/http_server.h"

namespace specd::host {

// Must outlive the server that calls it.
class Health {
 public:
  // A step that takes longer than `stall_seconds` is assumed to hang.
  explicit Health(uint32_t stall_seconds) : stall_seconds_(stall_seconds) {}

  // Call when the engine is ready; it must outlive the server. Every answer before is "loading".
  void loaded(const Engine& engine) { engine_ = &engine; }
  void draining() { draining_ = true; }

  // GET, on any thread:
  //   /metrics       the engine's metrics and the build; 503 while loading
  //   /health/live   503 when a step takes too long
  //   /health/ready  503 while loading and draining
  std::vector<HttpRoute> routes() const;

 private:
  HttpAnswer live() const;
  HttpAnswer ready() const;
  HttpAnswer metrics() const;

  uint32_t stall_seconds_;
  std::atomic<const Engine*> engine_{nullptr};
  std::atomic<bool> draining_{false};
};

}  // namespace specd::host
