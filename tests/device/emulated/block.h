// Runs one block: its threads as fibers, in an order drawn from a seed.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "tests/device/emulated/emulator.h"
#include "tests/device/emulated/memory.h"

namespace specd::emulated {

class Block {
 public:
  explicit Block(Memory& memory) : memory_(memory) {}

  // Runs `thread` once for each thread of the block `index` of the grid. Returns "" or a report.
  // REQUIRES a block size of at most 1024. accessor: of its threads before they do anything.
  std::string run(const char* kernel, const dim3& grid, const dim3& size, const uint3& index,
                  size_t dynamic_bytes, size_t shared_max, const Accessor& accessor,
                  std::minstd_rand& random, const std::function<void()>& thread);

  // The rest is called by the thread that runs.
  void enter(const char* kernel, int threads_max);
  int barrier(int predicate, Where where);
  void warp_barrier(const char* what, uint32_t mask, void* mine, Together together,
                    const void* context, bool orders, Where where);
  void copy_async(void* to, const void* from, size_t bytes, Where where);
  void commit_copies();
  void wait_for_groups(int pending);
  void wait_for_copies();
  void wait_for_previous();
  void* shared_at(const char* key, size_t bytes, size_t align);
  void* dynamic_shared() { return shared_at("dynamic", dynamic_bytes_, 16); }
  // where: of what the compiler does not see as an access; else pc, of the instruction.
  [[gnu::always_inline]] void access(const void* data, size_t bytes, bool write, bool atomic,
                                     const void* pc, const Where* where) {
    const char* wrong = memory_.access(data, bytes, write, atomic, accessor_);
    if (wrong != nullptr) [[unlikely]] {
      not_allowed(wrong, data, bytes, write, atomic, pc, where);
    }
  }
  // The same for what the compiler does not see as one, with its alignment.
  void touch(const void* data, size_t bytes, bool write, bool atomic, Where where);
  [[noreturn]] void misaligned(const void* data, unsigned align, const std::string& at);
  // Reports, and never runs the rest of this block.
  [[noreturn]] void fail(const std::string& what, const std::string& at);

  // "kernel k, block (x,y,z), thread (x,y,z)": of the thread that runs.
  std::string place() const;
  bool in_device_code() const { return in_device_code_; }

 private:
  enum class State : uint8_t { kReady, kWaiting, kDone };
  struct Copy {
    void* to = nullptr;
    const void* from = nullptr;
    size_t n = 0;
    int group = 0;
    Where where;
    char bytes[kCopyBytesMax];
  };
  struct Thread {
    State state = State::kReady;
    int worker = -1;
    const char* what = "";  // and where it waits
    Where where;
    std::vector<Copy> copies;  // on their way, in order
    int group = 0;             // of the next copy
    bool early = false;        // has not waited for the kernels before it
  };
  struct Warp {
    uint32_t arrived = 0;
    uint32_t mask = 0;
    const char* what = "";
    Where where;
    void* lanes[kWarp] = {};
    uint32_t barrier_stamp = 0;
  };
  // A fiber with its stack, which runs threads one after another.
  struct Worker {
    boost::context::fiber fiber;
    char* stack = nullptr;
    int thread = -1;
  };
  static constexpr int kMain = -1;

  // Reports the access, unless it is to its own stack, to its coordinates, or reads a constant.
  void not_allowed(const char* wrong, const void* data, size_t bytes, bool write, bool atomic,
                   const void* pc, const Where* where);
  void arrive(const Copy& copy);
  void work(int me);
  void run_thread(int t);
  // Leaves the running thread, which waits, and returns when it may go on.
  void wait();
  // The next thread: any of those that can run. -1: none.
  int take_any();
  void go_on(int t);
  int worker_for(int t);
  // Suspends the running fiber, or run() for kMain, and continues that one.
  void switch_to(int worker);
  // First thing of a fiber that was continued: keeps the one that continued it.
  void resumed(boost::context::fiber by, void* fake_stack);
  boost::context::fiber& fiber_of(int worker);
  void show(int t);  // sets `now`
  uint32_t next_stamp(Where where);
  std::string waiting() const;
  void make_worker();

  Memory& memory_;
  std::vector<Worker> workers_;
  std::vector<int> free_workers_;
  boost::context::fiber main_;
  void* main_stack_ = nullptr;  // of the processor's thread, for AddressSanitizer
  size_t main_stack_bytes_ = 0;
  int current_worker_ = kMain, suspended_worker_ = kMain;

  // Of the block that runs.
  const std::function<void()>* body_ = nullptr;
  const char* kernel_ = "";
  std::minstd_rand* random_ = nullptr;
  size_t dynamic_bytes_ = 0, shared_max_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<int> ready_;
  int n_done_ = 0;
  int n_arrived_ = 0, n_predicates_ = 0, barrier_result_ = 0;  // of the block's barrier
  Where barrier_where_;
  int current_ = -1;
  bool in_device_code_ = false;
  Accessor accessor_;
  std::string report_;
};

}  // namespace specd::emulated
