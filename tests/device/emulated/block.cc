#include "tests/device/emulated/block.h"

#include "core/base/sanitizer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>
#if SPECD_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#include "tests/device/emulated/symbols.h"

namespace specd::emulated {
namespace {

#if SPECD_ASAN
constexpr size_t kStackBytes = 256 << 10;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif
constexpr size_t kGuardBytes = 4096;
// Stacks begin at different places of a page; else those of all threads share a few lines of the cache.
constexpr size_t kStaggerBytes = 64, kStaggers = 48;

bool same(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() && a.file_name() == b.file_name();
}
std::string triple(const uint3& p) {
  return "(" + std::to_string(p.x) + "," + std::to_string(p.y) + "," + std::to_string(p.z) + ")";
}

// The emulator's own accesses are not those of device code, which its inline functions may be compiled
// like.
struct Outside {
  bool& in_device_code;
  explicit Outside(bool& in) : in_device_code(in) { in_device_code = false; }
  ~Outside() { in_device_code = true; }
};

// What boost::context allocates a stack with: memory that the worker owns.
struct OwnStack {
  using traits_type = boost::context::stack_traits;
  char* bottom;
  size_t bytes;
  boost::context::stack_context allocate() {
    boost::context::stack_context made;
    made.sp = bottom + bytes;
    made.size = bytes;
    return made;
  }
  void deallocate(boost::context::stack_context&) {}
};

}  // namespace

Coordinates now{};

std::string Block::place() const {
  return std::string("kernel ") + kernel_ + ", block " + triple(now.block) + ", thread " +
         triple(now.thread);
}

std::string Block::run(const char* kernel, const dim3& grid, const dim3& size, const uint3& index,
                       size_t dynamic_bytes, size_t shared_max, const Accessor& accessor,
                       std::minstd_rand& random, const std::function<void()>& thread) {
  const auto n = static_cast<int>(size.x * size.y * size.z);
  kernel_ = kernel;
  body_ = &thread;
  random_ = &random;
  dynamic_bytes_ = dynamic_bytes;
  shared_max_ = shared_max;
  threads_.assign(static_cast<size_t>(n), Thread());
  warps_.assign(static_cast<size_t>((n + kWarp - 1) / kWarp), Warp());
  ready_.resize(static_cast<size_t>(n));
  std::iota(ready_.begin(), ready_.end(), 0);
  n_done_ = n_arrived_ = n_predicates_ = 0;
  accessor_ = accessor;
  for (Thread& each : threads_) each.early = accessor.early;
  now = {{}, index, size, grid};
  memory_.begin_block(random());
  report_.clear();
  in_device_code_ = false;
  const int first = take_any();
  switch_to(worker_for(first));
  current_ = -1;
  if (report_.empty() && n_done_ < n) {
    report_ = "emulated CUDA: kernel " + std::string(kernel_) + ", block " + triple(now.block) +
              ": nothing can go on: " + waiting();
  }
  if (!report_.empty()) {
    // The fibers stand in the middle of something. They are left there and not unwound, because device
    // code has no exceptions.
    static auto* left = new std::vector<boost::context::fiber>();
    for (Worker& each : workers_) left->push_back(std::move(each.fiber));
    workers_.clear();
    free_workers_.clear();
  }
  return std::exchange(report_, "");
}

std::string Block::waiting() const {
  std::string text;
  int n_named = 0;
  for (size_t t = 0; t < threads_.size(); ++t) {
    const Thread& each = threads_[t];
    if (each.state != State::kWaiting) continue;
    // One for each place.
    const bool named = std::any_of(
        threads_.begin(), threads_.begin() + static_cast<ptrdiff_t>(t), [&](const Thread& other) {
          return other.state == State::kWaiting && same(other.where, each.where);
        });
    if (named || ++n_named > 4) continue;
    text += "thread " + std::to_string(t) + " waits in " + each.what + " at " +
            line_of(each.where) + "; ";
  }
  return text + std::to_string(n_done_) + " of " + std::to_string(threads_.size()) +
         " threads have returned";
}

void Block::fail(const std::string& what, const std::string& where) {
  report_ = "emulated CUDA: " + place() + ", " + where + ": " + what;
  switch_to(kMain);
  std::abort();  // run() forgets this fiber
}

// ---- fibers ------------------------------------------------------------------------------------

void Block::make_worker() {
  // Owned by the process, like the fibers.
  auto* memory = static_cast<char*>(mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (memory == MAP_FAILED) {
    std::perror("emulated CUDA: a stack");
    std::abort();
  }
  mprotect(memory, kGuardBytes, PROT_NONE);
  const int me = static_cast<int>(workers_.size());
  Worker made;
  made.stack = memory + kGuardBytes;
  const size_t unused = static_cast<size_t>(me) * 5 % kStaggers * kStaggerBytes;
  made.fiber = boost::context::fiber(std::allocator_arg, OwnStack{made.stack, kStackBytes - unused},
                                     [this, me](boost::context::fiber&& by) {
                                       resumed(std::move(by), nullptr);
                                       work(me);
                                       return boost::context::fiber();
                                     });
  workers_.push_back(std::move(made));
  free_workers_.push_back(me);
}

boost::context::fiber& Block::fiber_of(int worker) {
  return worker == kMain ? main_ : workers_[static_cast<size_t>(worker)].fiber;
}

void Block::switch_to(int worker) {
  suspended_worker_ = std::exchange(current_worker_, worker);
  void* fake_stack = nullptr;
#if SPECD_ASAN
  if (worker == kMain) {
    __sanitizer_start_switch_fiber(&fake_stack, main_stack_, main_stack_bytes_);
  } else {
    __sanitizer_start_switch_fiber(&fake_stack, workers_[static_cast<size_t>(worker)].stack,
                                   kStackBytes);
  }
#endif
  resumed(std::move(fiber_of(worker)).resume(), fake_stack);
}

void Block::resumed(boost::context::fiber by, [[maybe_unused]] void* fake_stack) {
#if SPECD_ASAN
  const void* bottom = nullptr;
  size_t bytes = 0;
  __sanitizer_finish_switch_fiber(fake_stack, &bottom, &bytes);
  if (suspended_worker_ == kMain) {
    main_stack_ = const_cast<void*>(bottom);
    main_stack_bytes_ = bytes;
  }
#endif
  fiber_of(suspended_worker_) = std::move(by);
}

int Block::take_any() {
  if (ready_.empty()) return -1;
  const size_t i = (*random_)() % ready_.size();
  const int t = ready_[i];
  ready_[i] = ready_.back();
  ready_.pop_back();
  return t;
}

int Block::worker_for(int t) {
  Thread& thread = threads_[static_cast<size_t>(t)];
  if (thread.worker < 0) {
    if (free_workers_.empty()) make_worker();
    thread.worker = free_workers_.back();
    free_workers_.pop_back();
    workers_[static_cast<size_t>(thread.worker)].thread = t;
  }
  return thread.worker;
}

void Block::show(int t) {
  current_ = t;
  const auto i = static_cast<unsigned>(t);
  now.thread = {i % now.block_size.x, i / now.block_size.x % now.block_size.y,
                i / now.block_size.x / now.block_size.y};
  accessor_.thread = i;
  accessor_.warp_barrier = warps_[i / kWarp].barrier_stamp;
  accessor_.early = threads_[i].early;
}

void Block::run_thread(int t) {
  show(t);
  (*body_)();
  in_device_code_ = false;
  if (!threads_[static_cast<size_t>(t)].copies.empty()) {
    fail("has not waited for its asynchronous copies", "at its end");
  }
  if (threads_[static_cast<size_t>(t)].early) {
    fail("has not waited for the kernels before it", "at its end");
  }
  threads_[static_cast<size_t>(t)].state = State::kDone;
  ++n_done_;
}

void Block::work(int me) {
  for (;;) {
    run_thread(workers_[static_cast<size_t>(me)].thread);
    const int next = take_any();
    if (next >= 0 && threads_[static_cast<size_t>(next)].worker < 0) {
      threads_[static_cast<size_t>(next)].worker = me;
      workers_[static_cast<size_t>(me)].thread = next;
      continue;  // a new thread needs no other fiber
    }
    free_workers_.push_back(me);
    switch_to(next < 0 ? kMain : worker_for(next));
  }
}

void Block::wait() {
  const int t = current_;
  threads_[static_cast<size_t>(t)].state = State::kWaiting;
  const int next = take_any();
  switch_to(next < 0 ? kMain : worker_for(next));
  show(t);
}

void Block::go_on(int t) {
  threads_[static_cast<size_t>(t)].state = State::kReady;
  ready_.push_back(t);
}

// ---- device code -------------------------------------------------------------------------------

void Block::enter(const char* kernel, int threads_max) {
  kernel_ = kernel;
  if (threads_max > 0 && threads_.size() > static_cast<size_t>(threads_max)) {
    fail(std::to_string(threads_.size()) + " threads, __launch_bounds__ allows " +
             std::to_string(threads_max),
         "at its start");
  }
  in_device_code_ = true;
}

int Block::barrier(int predicate, Where where) {
  const Outside outside(in_device_code_);
  Thread& mine = threads_[static_cast<size_t>(current_)];
  if (n_arrived_ > 0 && !same(where, barrier_where_)) {
    fail("is at another __syncthreads() than the others, which wait at " + line_of(barrier_where_),
         line_of(where));
  }
  barrier_where_ = mine.where = where;
  mine.what = "__syncthreads";
  n_predicates_ += predicate != 0 ? 1 : 0;
  if (++n_arrived_ < static_cast<int>(threads_.size())) {
    wait();
    return barrier_result_;
  }
  n_arrived_ = 0;
  // Nobody reaches the next barrier before everybody has read this.
  barrier_result_ = std::exchange(n_predicates_, 0);
  accessor_.block_barrier = next_stamp(where);
  for (int t = 0; t < static_cast<int>(threads_.size()); ++t) {
    if (t != current_) go_on(t);
  }
  return barrier_result_;
}

uint32_t Block::next_stamp(Where where) {
  if (accessor_.stamp == kStampMax) fail("more barriers than the emulator counts", line_of(where));
  return ++accessor_.stamp;
}

void Block::warp_barrier(const char* what, uint32_t mask, void* mine, Together together,
                         const void* context, bool orders, Where where) {
  const Outside outside(in_device_code_);
  const int first = current_ / kWarp * kWarp, lane = current_ - first;
  Warp& warp = warps_[static_cast<size_t>(current_ / kWarp)];
  Thread& thread = threads_[static_cast<size_t>(current_)];
  if ((mask >> lane & 1) == 0)
    fail(std::string(what) + ": its mask leaves this lane out", line_of(where));
  if (warp.arrived != 0 && (warp.what != what || !same(where, warp.where))) {
    fail(std::string("is in ") + what + ", other lanes of its warp in " + warp.what + " at " +
             line_of(warp.where),
         line_of(where));
  }
  if (warp.arrived != 0 && warp.mask != mask) {
    fail(std::string(what) + ": another mask than other lanes of its warp", line_of(where));
  }
  for (int i = 0; i < kWarp; ++i) {
    const auto other = static_cast<size_t>(first + i);
    if ((mask >> i & 1) == 0) continue;
    if (other >= threads_.size() || threads_[other].state == State::kDone) {
      fail(std::string(what) + ": lane " + std::to_string(i) + " of its mask " +
               (other >= threads_.size() ? "does not exist" : "has returned"),
           line_of(where));
    }
  }
  warp.what = what;
  warp.where = thread.where = where;
  thread.what = what;
  warp.mask = mask;
  warp.lanes[lane] = mine;
  warp.arrived |= 1u << lane;
  if (warp.arrived != mask) return wait();
  for (int i = 0; i < kWarp; ++i) {
    if ((mask >> i & 1) == 0) warp.lanes[i] = nullptr;
  }
  if (together != nullptr) together(warp.lanes, context);
  warp.arrived = 0;
  if (orders && mask == 0xffffffffu) {
    accessor_.warp_barrier = warp.barrier_stamp = next_stamp(where);
  }
  for (int i = 0; i < kWarp; ++i) {
    if ((mask >> i & 1) != 0 && i != lane) go_on(first + i);
  }
}

void Block::touch(const void* data, size_t bytes, [[maybe_unused]] bool write,
                  [[maybe_unused]] bool atomic, Where where) {
  if (reinterpret_cast<uintptr_t>(data) % bytes != 0) {
    misaligned(data, static_cast<unsigned>(bytes), line_of(where));
  }
#if !SPECD_ASAN  // there nothing tells which bytes are defined
  access(data, bytes, write, atomic, nullptr, &where);
#endif
}

void Block::copy_async(void* to, const void* from, size_t bytes, Where where) {
  const Outside outside(in_device_code_);
  if (!memory_.is_device(from) || !memory_.is_shared(to, bytes)) {
    fail("an asynchronous copy that is not from device memory into shared memory", line_of(where));
  }
  touch(from, bytes, false, false, where);
  touch(to, bytes, true, false, where);
  memory_.undefined(to, bytes);
  Thread& thread = threads_[static_cast<size_t>(current_)];
  Copy& copy = thread.copies.emplace_back();
  copy.to = to, copy.from = from, copy.n = bytes, copy.group = thread.group, copy.where = where;
  std::memcpy(copy.bytes, from, bytes);
}

void Block::commit_copies() { ++threads_[static_cast<size_t>(current_)].group; }

void Block::wait_for_groups(int pending) {
  const Outside outside(in_device_code_);
  Thread& thread = threads_[static_cast<size_t>(current_)];
  auto at = thread.copies.begin();
  for (; at != thread.copies.end() && at->group < thread.group - pending; ++at) arrive(*at);
  thread.copies.erase(thread.copies.begin(), at);
}

void Block::wait_for_previous() {
  threads_[static_cast<size_t>(current_)].early = accessor_.early = false;
}

void Block::wait_for_copies() {
  const Outside outside(in_device_code_);
  for (const Copy& each : std::exchange(threads_[static_cast<size_t>(current_)].copies, {})) {
    arrive(each);
  }
}

void Block::arrive(const Copy& copy) {
  if (std::memcmp(copy.from, copy.bytes, copy.n) != 0) {
    fail("its source changed while a copy was on its way", line_of(copy.where));
  }
  if (!memory_.is_undefined(copy.to, copy.n)) {
    fail("somebody wrote to where a copy was on its way", line_of(copy.where));
  }
  std::memcpy(copy.to, copy.bytes, copy.n);
  touch(copy.to, copy.n, true, false, copy.where);
}

void* Block::shared_at(const char* key, size_t bytes, size_t align) {
  const Outside outside(in_device_code_);
  void* data = memory_.shared_at(key, bytes, align);
  if (data == nullptr || memory_.shared_bytes() > shared_max_) {
    fail("more shared memory than the " + std::to_string(shared_max_) + " bytes of a block",
         std::string("at ") + key);
  }
  return data;
}

void Block::misaligned(const void* data, unsigned align, const std::string& at) {
  in_device_code_ = false;
  char text[64];
  std::snprintf(text, sizeof(text), "an access at %p: not aligned to %u bytes", data, align);
  fail(text, at);
}

void Block::not_allowed(const char* wrong, const void* data, size_t bytes, bool write, bool atomic,
                        const void* pc, const Where* where) {
  if (wrong == Memory::kElsewhere) {
    const auto* stack = workers_[static_cast<size_t>(current_worker_)].stack;
    const auto* byte = static_cast<const char*>(data);
    if (byte >= stack && byte < stack + kStackBytes) return;
    const auto* coordinates = reinterpret_cast<const char*>(&now);
    if (!write && byte >= coordinates && byte < coordinates + sizeof(now)) return;
    if (!write && is_constant(data)) return;
  }
  in_device_code_ = false;
  char text[64];
  std::snprintf(text, sizeof(text), "%s of %zu bytes at %p: ",
                atomic  ? "an atomic"
                : write ? "a write"
                        : "a read",
                bytes, data);
  fail(std::string(text) + wrong, where != nullptr ? line_of(*where) : line_of(pc));
}

}  // namespace specd::emulated
