// memory/1: blocks that count against their owner's quota, and scratch memory for one call.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <utility>

#include "core/base/log.h"
#include "core/base/bad_alloc.h"
#include "core/services/arguments.h"
#include "core/services/tables.h"

namespace specd {
namespace {

constexpr uint64_t kAlignMax = 4096;
constexpr uint64_t kDeviceAlignMax = 256;                   // guaranteed by kernels/cuda.h
constexpr uint64_t kScratchBytesMax = uint64_t{256} << 20;  // of one call

bool is_alignment(uint64_t align) {
  return align != 0 && align <= kAlignMax && (align & (align - 1)) == 0;
}

// Allocates a block; on failure it is null and `why` has the reason.
OwnedBlock make_block(ServiceState& state, bool on_device, uint64_t bytes, uint64_t align,
                      std::string& why) {
  if (on_device) {
    Result<Buffer> buffer = state.device.allocate(bytes, "memory.alloc");
    if (buffer.ok()) return {bytes, std::move(buffer).value()};
    why = buffer.status().message();
    return {};
  }
  // aligned_alloc needs a multiple of the alignment, and at least that of a pointer.
  const uint64_t unit = std::max<uint64_t>(align, alignof(std::max_align_t));
  void* block = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
  if (block == nullptr) {
    why = "memory.alloc: the machine has no memory for " + std::to_string(bytes) + " bytes";
    return {};
  }
  return {bytes, Buffer(block, bytes, [](void* data, uint64_t) { std::free(data); })};
}

specd_status memory_alloc(const specd_host* host, specd_owner* owner, int32_t device_type,
                          int32_t device_index, uint64_t bytes, uint64_t align, void** out) {
  if (out == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.alloc: out is null");
  *out = nullptr;
  if (owner == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.alloc: owner is null");
  ServiceState* state = ServiceState::of(host);
  if (state == nullptr) return refuse(nullptr, SPECD_E_PRECONDITION, "memory.alloc: unknown host");
  const bool on_device = device_type == SPECD_DEV_CUDA && !state->device.is_host() &&
                         device_index == state->device.index();
  if (!on_device && device_type != SPECD_DEV_CPU) {
    return refuse(nullptr, SPECD_E_UNSUPPORTED,
                  "memory.alloc: device type " + std::to_string(device_type) + " with index " +
                      std::to_string(device_index) +
                      " does not exist; this host has SPECD_DEV_CPU (1)" +
                      (state->device.is_host() ? "" : " and " + state->device.name()));
  }
  if (!is_alignment(align) || bytes == 0) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "memory.alloc: bytes " + std::to_string(bytes) + ", align " +
                      std::to_string(align) +
                      ": expected bytes > 0 and a power of two of at most 4096");
  }
  if (on_device && align > kDeviceAlignMax) {
    return refuse(nullptr, SPECD_E_INVALID,
                  "memory.alloc: align " + std::to_string(align) + " on " + state->device.name() +
                      ", expected at most " + std::to_string(kDeviceAlignMax));
  }
  const MutexLock lock(owner->mutex);
  std::string why = quota_fault(*owner, bytes, "memory.alloc");
  if (!why.empty()) return refuse(nullptr, SPECD_E_EXHAUSTED, why);
  OwnedBlock block = make_block(*state, on_device, bytes, align, why);
  void* data = block.memory.data();
  if (data == nullptr) return refuse(nullptr, SPECD_E_EXHAUSTED, why);
  owner->blocks.emplace(data, std::move(block));
  owner->used_bytes += bytes;
  *out = data;
  return SPECD_OK;
}

void memory_free(const specd_host*, specd_owner* owner, void* block) noexcept {
  if (block == nullptr || owner == nullptr) return;
  decltype(owner->blocks)::node_type freed;  // freed after the lock: large blocks take long
  {
    const MutexLock lock(owner->mutex);
    const auto found = owner->blocks.find(block);
    if (found != owner->blocks.end()) {
      owner->used_bytes -= found->second.bytes;
      freed = owner->blocks.extract(found);
      return;
    }
  }
  or_drop([&] {
    log_because_of(owner->plugin, LogLevel::kWarn,
                   "plugin " + owner->label +
                       ": memory.free() of a pointer that this instance does not hold; ignored");
  });
}

specd_status memory_scratch(const specd_host*, specd_call* call, uint64_t bytes, uint64_t align,
                            void** out) {
  if (out == nullptr) return refuse(call, SPECD_E_INVALID, "memory.scratch: out is null");
  *out = nullptr;
  if (call == nullptr) return refuse(nullptr, SPECD_E_INVALID, "memory.scratch: call is null");
  if (!is_alignment(align) || bytes == 0) {
    return refuse(call, SPECD_E_INVALID,
                  "memory.scratch: bytes " + std::to_string(bytes) + ", align " +
                      std::to_string(align) +
                      ": expected bytes > 0 and a power of two of at most 4096");
  }
  if (bytes > kScratchBytesMax || bytes + align > kScratchBytesMax - call->scratch_bytes) {
    return refuse(call, SPECD_E_EXHAUSTED,
                  "memory.scratch: " + std::to_string(bytes) + " bytes requested, " +
                      std::to_string(kScratchBytesMax - call->scratch_bytes) + " of " +
                      std::to_string(kScratchBytesMax) + " per call are left");
  }
  std::unique_ptr<char[]> block(new (std::nothrow) char[bytes + align]);
  if (block == nullptr) {
    return refuse(
        call, SPECD_E_EXHAUSTED,
        "memory.scratch: the machine has no memory for " + std::to_string(bytes) + " bytes");
  }
  const auto address = reinterpret_cast<uintptr_t>(block.get());
  char* const data = block.get() + ((address + align - 1) / align * align - address);
  call->scratch.push_back(std::move(block));
  call->scratch_bytes += bytes + align;
  *out = data;
  return SPECD_OK;
}

}  // namespace

const specd_memory kMemoryService = {sizeof(specd_memory), 0, or_exhausted<memory_alloc>,
                                     memory_free, or_exhausted<memory_scratch>};

}  // namespace specd
