// C++ wrapper of the service pool/1: the host's worker threads, within one call. Name
// SPECD_SERVICE_POOL in the caps.
#ifndef SPECD_SDK_POOL_H
#define SPECD_SDK_POOL_H

#include <specd/plugin_api/batch.h>
#include <specd/plugin_api/services/pool.h>
#include <specd/sdk/instance.h>

#include <atomic>
#include <cstdint>
#include <exception>

namespace specd::sdk {

class Pool {
 public:
  explicit Pool(const Instance& instance)
      : host_(instance.host()), table_(require_service<specd_pool>(host_, SPECD_SERVICE_POOL)) {}

  // [any] Number of workers, including the calling thread.
  uint32_t width() const { return table_->width(host_); }

  // [step] Calls task(i) once for every i in [0, n) on any of the workers, and returns when all are
  // done. Tasks must not block. Of exceptions the first is thrown again here; the other tasks run.
  template <class Task>
  void run(const specd_batch& batch, uint32_t n, Task&& task) const {
    struct Shared {
      Task& task;
      std::atomic<bool> has_failed{false};
      std::exception_ptr failure;
    } shared{task, {}, {}};
    const auto one = [](void* context, uint32_t index) noexcept {
      auto& all = *static_cast<Shared*>(context);
      try {
        all.task(index);
      } catch (...) {
        if (!all.has_failed.exchange(true)) all.failure = std::current_exception();
      }
    };
    check_service(table_->run(host_, batch.call, n, one, &shared), "pool.run");
    if (shared.failure) std::rethrow_exception(shared.failure);
  }

 private:
  const specd_host* host_;
  const specd_pool* table_;
};

}  // namespace specd::sdk

#endif
