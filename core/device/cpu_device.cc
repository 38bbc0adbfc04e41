#include <sched.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "core/base/check.h"
#include "core/device/device.h"

namespace specd {

int32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

namespace {

void release_pages(void* data, uint64_t bytes) { munmap(data, bytes); }

}  // namespace

Result<std::unique_ptr<CpuDevice>> CpuDevice::create(const std::string& isa, int32_t threads,
                                                     bool bf16) {
  if (threads < 0 || threads > 256) {
    return Status(Code::kInvalidArgument, "engine.threads",
                  "expected 0 (one per core) to 256, found " + std::to_string(threads));
  }
  kernels::Isa chosen = kernels::best_isa();
  if (!isa.empty()) {
    bool known = false;
    for (const kernels::Isa candidate :
         {kernels::Isa::kScalar, kernels::Isa::kAvx2, kernels::Isa::kAvx512}) {
      if (isa != kernels::isa_name(candidate)) continue;
      known = true;
      chosen = candidate;
    }
    if (!known) {
      return Status(Code::kInvalidArgument, "engine.isa",
                    "expected auto, scalar, avx2 or avx512, found '" + isa + "'");
    }
    if (!kernels::isa_available(chosen)) {
      return Status(Code::kUnsupported, "engine.isa",
                    "this processor cannot run " + isa + "; its best is " +
                        kernels::isa_name(kernels::best_isa()));
    }
  }
  if (bf16 && (chosen != kernels::Isa::kAvx512 || !kernels::bf16_available())) {
    const bool asked = !isa.empty() && kernels::bf16_available();
    return Status(Code::kUnsupported, "engine.numerics",
                  std::string("bf16 needs a processor with AVX-512 BF16, ") +
                      (asked ? "and engine.isa auto or avx512, found " + isa
                             : "this one lacks it; use strict"));
  }
  const int n_threads = threads == 0 ? usable_cores() : threads;
  try {
    return std::unique_ptr<CpuDevice>(
        new CpuDevice(bf16 ? kernels::cpu_bf16_ops() : kernels::cpu_ops(chosen), n_threads));
  } catch (const std::system_error& error) {
    return Status(Code::kExhausted, "engine.threads",
                  "cannot start " + std::to_string(n_threads) +
                      " threads: " + error.code().message() +
                      "; lower engine.threads, or raise the limit of threads (ulimit -u, pids.max "
                      "of the control group) or of memory");
  }
}

Result<std::unique_ptr<Device>> CpuDevice::open_beside() {
  return std::unique_ptr<Device>(open_for_thread());
}

std::unique_ptr<CpuDevice> CpuDevice::open_for_thread() const {
  return std::unique_ptr<CpuDevice>(new CpuDevice(ops_, 1));  // starts no thread
}

Result<Buffer> CpuDevice::allocate(uint64_t bytes, const std::string& what) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kExhausted, what + ": needs " + std::to_string(bytes) + " bytes, " +
                                        memory_.limit + " " + std::to_string(memory_.bytes) + why);
  };
  if (bytes > memory_.bytes) return refuse("");
  if (bytes == 0) bytes = 1;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return refuse(std::string(" (") + std::strerror(errno) + ")");
  // Weights and KV are read sequentially, so huge pages save TLB misses. If madvise fails, only
  // speed is lost.
  if (bytes >= (uint64_t{2} << 20)) madvise(data, bytes, MADV_HUGEPAGE);
  return Buffer(data, bytes, release_pages);
}

void CpuDevice::copy_in(void* device, const void* host, uint64_t bytes) {
  if (bytes > 0 && device != host) std::memcpy(device, host, bytes);
}
void CpuDevice::copy_out(void* host, const void* device, uint64_t bytes) {
  copy_in(host, device, bytes);
}

namespace {
Status no_graphs() {
  return Status(Code::kUnsupported, "the CPU runs work immediately and has no graphs");
}
}  // namespace
Status CpuDevice::begin_capture() { return no_graphs(); }
Result<int32_t> CpuDevice::end_capture() { return no_graphs(); }
void CpuDevice::launch(int32_t) { SPECD_CHECK(false, "the CPU has no graphs"); }
void CpuDevice::release_graph(int32_t) { SPECD_CHECK(false, "the CPU has no graphs"); }

}  // namespace specd
