#include "tests/device/emulated/machine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "tests/device/emulated/symbols.h"

namespace specd::emulated {

int mma_order = 0;
__attribute__((tls_model("initial-exec"))) thread_local Block* t_block = nullptr;

namespace {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

Settings read_settings() {
  Settings settings;
  settings.seed = static_cast<uint64_t>(now_ns());
  const char* text = std::getenv("SPECD_EMULATED_CUDA");
  std::string words = text == nullptr ? "" : text;
  while (!words.empty()) {
    const size_t end = std::min(words.find(','), words.size());
    const std::string word = words.substr(0, end);
    words.erase(0, end + 1);
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    char* rest = nullptr;
    const std::string digits = equals == std::string::npos ? "" : word.substr(equals + 1);
    const uint64_t value = std::strtoull(digits.c_str(), &rest, 10);
    const bool is_number = !digits.empty() && *rest == '\0';
    if (is_number && name == "seed") {
      settings.seed = value;
    } else if (is_number && name == "bytes") {
      settings.bytes = value;
    } else if (is_number && name == "devices") {
      settings.devices = static_cast<int>(value);
    } else if (is_number && name == "multiprocessors") {
      settings.multiprocessors = static_cast<int>(value);
    } else if (is_number && name == "architecture" &&
               (value == 80 || value == 90 || value == 100)) {
      settings.architecture = static_cast<int>(value);
    } else if (is_number && name == "mma_order" && value <= 1) {
      mma_order = static_cast<int>(value);
    } else if (is_number && name == "seconds") {
      settings.seconds = static_cast<int>(value);
    } else {
      std::fprintf(stderr, "SPECD_EMULATED_CUDA: '%s' is no setting; see emulator.h\n",
                   word.c_str());
      std::abort();
    }
  }
  return settings;
}

std::string size_of(const dim3& d) {
  return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " + std::to_string(d.z);
}

// "" or what no device allows.
std::string refusal_of(const Launch& launch, size_t dynamic_shared_max) {
  const dim3 &grid = launch.grid, &block = launch.block;
  if (uint64_t{grid.x} * grid.y * grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535) {
    return "a grid of " + size_of(grid) + " blocks; 1 to 2147483647 x 65535 x 65535 are allowed";
  }
  if (uint64_t{block.x} * block.y * block.z == 0 || uint64_t{block.x} * block.y * block.z > 1024 ||
      block.x > 1024 || block.y > 1024 || block.z > 64) {
    return "a block of " + size_of(block) + " threads; 1 to 1024, z up to 64, are allowed";
  }
  if (launch.shared_bytes > dynamic_shared_max) {
    return std::to_string(launch.shared_bytes) + " bytes of dynamic shared memory; " +
           std::to_string(dynamic_shared_max) +
           " are allowed, more if the device has them and "
           "cudaFuncSetAttribute() asks for them";
  }
  if (launch.stream == nullptr) return "the NULL stream, which is not emulated";
  return "";
}

}  // namespace

Machine& Machine::get() {
  // Never destroyed: kernels of static objects may still run at the end.
  static Machine* machine = new Machine();
  return *machine;
}

Machine::Machine()
    : settings(read_settings()),
      memory(settings.bytes),
      random(static_cast<uint32_t>(settings.seed ^ settings.seed >> 32)) {
  std::thread([this] { watch(); }).detach();
}

// A kernel that never ends cannot be left: ends the process, with a report.
void Machine::watch() {
  for (;;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    const int64_t began = launch_began_.load();
    if (began == 0 || now_ns() - began < int64_t{settings.seconds} * 1'000'000'000) continue;
    std::fprintf(stderr, "emulated CUDA: %s: its launch runs for more than %d seconds\n",
                 block.place().c_str(), settings.seconds);
    _exit(70);
  }
}

size_t Machine::dynamic_shared_max(const Launch& launch) const {
  size_t most = kUnaskedSharedMax;
  for (const auto& [kernel, bytes] : asked) {
    if (launch.kernel == nullptr || launch.kernel == kernel) most = std::max(most, bytes);
  }
  return most;
}

cudaError_t Machine::submit(cudaStream_t stream, EmulatedWork work) {
  if (streams.count(stream) == 0) return cudaErrorInvalidResourceHandle;
  if (stream->device != t_device) {
    std::fprintf(stderr,
                 "emulated CUDA: work for a stream of device %d, and the current one is %d\n",
                 stream->device, t_device);
    return cudaErrorInvalidResourceHandle;
  }
  if (error != cudaSuccess) return error;
  if (stream->capture != nullptr) {
    stream->capture->work.push_back(std::move(work));
  } else {
    stream->work.push_back(std::move(work));
  }
  return cudaSuccess;
}

cudaError_t Machine::drain(cudaStream_t stream) {
  cudaError_t result = cudaSuccess;
  while ((result = advance(stream)) == cudaSuccess && !stream->work.empty()) {
    mutex.unlock();
    std::this_thread::yield();
    mutex.lock();
  }
  return result;
}

cudaError_t Machine::advance(cudaStream_t stream) {
  if (streams.count(stream) == 0) return cudaErrorInvalidResourceHandle;
  memory.open();
  std::set<EmulatedStream*> waiting;
  while (error == cudaSuccess && !stream->work.empty()) {
    std::vector<EmulatedStream*> busy;
    for (EmulatedStream* each : streams) {
      if (!each->work.empty() && waiting.count(each) == 0) busy.push_back(each);
    }
    if (busy.empty()) break;
    EmulatedStream& next = *busy[random() % busy.size()];
    const int result = next.work.front()();
    if (result == kWaits) {
      waiting.insert(&next);
      continue;
    }
    next.work.pop_front();
    waiting.clear();  // they may have waited for it
    error = static_cast<cudaError_t>(result);
  }
  memory.close();
  n_settled = n_blocks;
  if (error != cudaSuccess) {
    for (EmulatedStream* each : streams) each->work.clear();
  }
  return error;
}

int Machine::run_grid(const char* name, const Launch& launch, const std::function<void()>& thread) {
  const dim3& grid = launch.grid;
  std::vector<uint32_t> order(size_t{grid.x} * grid.y * grid.z);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  const uint32_t begin = n_blocks + 1;
  // A block's variables and what was asked for must fit together, even if this launch needs less.
  const size_t dynamic_max = dynamic_shared_max(launch);
  const size_t shared_max =
      launch.shared_bytes > 0 && dynamic_max > kUnaskedSharedMax
          ? shared_max_of(settings.architecture) - (dynamic_max - launch.shared_bytes)
          : kUnaskedSharedMax;
  launch_began_.store(now_ns());
  t_block = &block;
  std::string report;
  for (const uint32_t i : order) {
    const uint3 index = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    const Accessor accessor = {
        .launch_begin = begin, .block = ++n_blocks, .settled = n_settled, .early = launch.early};
    report = block.run(name, grid, launch.block, index, launch.shared_bytes, shared_max, accessor,
                       random, thread);
    if (!report.empty()) break;
  }
  t_block = nullptr;
  launch_began_.store(0);
  if (report.empty()) return cudaSuccess;
  std::fprintf(stderr, "%s (launched at %s; seed=%llu)\n", report.c_str(),
               line_of(launch.where).c_str(), static_cast<unsigned long long>(settings.seed));
  return cudaErrorLaunchFailure;
}

// ---- called by translated code -----------------------------------------------------------------

void enqueue_kernel(const char* name, const Launch& launch, std::function<void()> thread) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  const std::string refusal = refusal_of(launch, machine.dynamic_shared_max(launch));
  if (!refusal.empty()) {
    std::fprintf(stderr, "emulated CUDA: kernel %s, launched at %s: %s\n", name,
                 line_of(launch.where).c_str(), refusal.c_str());
    note_error(cudaErrorInvalidConfiguration);
    return;
  }
  note_error(machine.submit(launch.stream, [name, launch, body = std::move(thread)] {
    return Machine::get().run_grid(name, launch, body);
  }));
}

int device_of(cudaStream_t stream) { return stream->device; }
int current_device() { return t_device; }

void enqueue(cudaStream_t stream, std::function<int()> work) {
  Machine& machine = Machine::get();
  const std::lock_guard lock(machine.mutex);
  note_error(machine.submit(stream, std::move(work)));
}

void enter_kernel(const char* name, int threads_max) {
  Machine::get().block.enter(name, threads_max);
}

void fail(const char* what, Where where) { Machine::get().block.fail(what, line_of(where)); }
void* shared_at(const char* key, size_t bytes, size_t align) {
  return Machine::get().block.shared_at(key, bytes, align);
}
void* dynamic_shared() { return Machine::get().block.dynamic_shared(); }
int block_barrier(int predicate, Where where) {
  return Machine::get().block.barrier(predicate, where);
}
void warp_barrier(const char* what, uint32_t mask, void* mine, Together together,
                  const void* context, bool orders, Where where) {
  Machine::get().block.warp_barrier(what, mask, mine, together, context, orders, where);
}
void copy_async(void* to, const void* from, size_t bytes, Where where) {
  Machine::get().block.copy_async(to, from, bytes, where);
}
void commit_copies() { Machine::get().block.commit_copies(); }
void wait_for_groups(int pending) { Machine::get().block.wait_for_groups(pending); }
void wait_for_previous() { Machine::get().block.wait_for_previous(); }
void wait_for_copies() { Machine::get().block.wait_for_copies(); }
void touch(const void* data, size_t bytes, bool write, bool atomic, Where where) {
  Machine::get().block.touch(data, bytes, write, atomic, where);
}

void misaligned(const void* data, unsigned align, const char* file, unsigned line) {
  if (t_block == nullptr || !t_block->in_device_code()) return;
  t_block->misaligned(data, align, file + (":" + std::to_string(line)));
}

}  // namespace specd::emulated
