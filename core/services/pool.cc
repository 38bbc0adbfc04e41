// pool/1: the host's worker threads for the duration of one call.
#include "core/base/fp_environment.h"
#include "core/base/last_words.h"
#include "core/base/thread.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {
namespace {

uint32_t pool_width(const specd_host* host) noexcept {
  ServiceState* state = ServiceState::of(host);
  return state == nullptr ? 1 : static_cast<uint32_t>(state->step.cpu.stream().pool().n_threads());
}

struct PoolRun {
  specd_pool_task task;
  void* ctx;
  uint32_t n;
  Activity activity;  // of the caller, whose code runs on all threads
};

specd_status pool_run(const specd_host* host, specd_call* call, uint32_t n, specd_pool_task task,
                      void* ctx) {
  if (call == nullptr || task == nullptr) {
    return refuse(call, SPECD_E_INVALID, "pool.run: call or task is null");
  }
  if (call->batch == nullptr) {
    return refuse(call, SPECD_E_PRECONDITION, "pool.run: allowed only inside begin() to verify()");
  }
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr) return refuse(call, SPECD_E_PRECONDITION, "pool.run: unknown host");
  ServiceLane& lane = state->lane(*call);
  const PoolTurn turn(lane);
  if (!turn.is_mine()) {
    return refuse(call, SPECD_E_PRECONDITION, "pool.run: called from a pool task");
  }
  PoolRun run{task, ctx, n, current_activity()};
  lane.cpu.stream().pool().run(
      // An exception of a task must not leave while other threads still run it.
      [](void* context, int part, int parts) noexcept {
        const PoolRun& mine = *static_cast<const PoolRun*>(context);
        const FpEnvironment fp_environment;
        // Once a thread, since those of the pool have none: a task may use up its stack.
        thread_local const AlternateStack alternate_stack;
        const Activity before = set_activity(mine.activity);
        // 64 bits, because i + parts may exceed 2^32 - 1.
        for (uint64_t i = static_cast<uint64_t>(part); i < mine.n;
             i += static_cast<uint64_t>(parts)) {
          mine.task(mine.ctx, static_cast<uint32_t>(i));
        }
        set_activity(before);
      },
      &run);
  return SPECD_OK;
}

}  // namespace

const specd_pool kPoolService = {sizeof(specd_pool), 0, pool_width, or_exhausted<pool_run>};

}  // namespace specd
