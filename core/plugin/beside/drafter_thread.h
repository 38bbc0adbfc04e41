// A drafter's own thread, beside the step: the rings, both of their ends, and where its services work.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <semaphore>
#include <thread>

#include "core/device/device.h"
#include "core/plugin/beside/call_shape.h"
#include "core/plugin/beside/client.h"
#include "core/plugin/beside/drafter_beside.h"
#include "core/plugin/beside/server.h"

namespace specd {

class DrafterThread final : public DrafterBeside {
 public:
  // `drafter` is active, in host memory, and must outlive this, as must `observer`, of a shadow; one that is not
  // a shadow has none. `cpu` is of its thread alone. kExhausted when there can be no more threads or no more
  // memory. [control]
  static Result<std::unique_ptr<DrafterThread>> start(Drafter& drafter, const BesideTerms& terms,
                                                      std::unique_ptr<CpuDevice> cpu,
                                                      ShadowObserver* observer);
  // Waits for the call that runs, however long that takes. [control] No [step] call may follow, as after stop().
  ~DrafterThread() override;

  DrafterCalls& calls() override { return *client_; }
  uint32_t rows_max() const override { return rows_max_; }
  bool stop(std::chrono::milliseconds limit) override;
  void abandon() override;

 private:
  DrafterThread(Drafter& drafter, const BesideTerms& terms, std::unique_ptr<CpuDevice> cpu,
                ShadowObserver* observer);

  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  struct Block {
    explicit Block(size_t capacity);
    size_t capacity;
    std::unique_ptr<void, Free> memory;
    RingHeader& header() const { return *static_cast<RingHeader*>(memory.get()); }
  };
  const CallShape shape_;
  const uint32_t rows_max_;
  Block requests_, replies_;
  const CountedRings counted_;
  const std::unique_ptr<CpuDevice> cpu_;
  ServiceLane lane_;
  RingWriter reply_writer_;
  RingReader reply_reader_;
  std::unique_ptr<ProposalScore> score_;
  std::unique_ptr<DrafterClient> client_;
  std::unique_ptr<DrafterServer> server_;
  std::atomic<bool> stop_{false}, abandoned_{false};
  std::binary_semaphore has_ended_{0};
  std::thread thread_;
};

}  // namespace specd
