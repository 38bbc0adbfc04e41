// A CUDA library without CUDA: the contract of kernels/cuda.h, implemented with the CPU's ops, with
// everything recorded. It is loaded in place of libspecd_cuda, so that tests without a GPU can run
// the loader, the worker's streams and graphs, and the daemon on `devices: [cuda:0]`. It does not
// test the kernels or the driver.
//
// Stricter than a GPU:
//   * Nothing submitted runs before synchronize() (or a copy of unpinned memory), so that reading a
//     result or changing a column too early is detected.
//   * Host code cannot access device memory (PROT_NONE) except while work runs: it crashes.
//   * Every pointer of an op and of a copy must be in live memory of its kind, or the stream fails.
// A device that is opened again is another stream with the same memory; the streams take turns.
//
// Environment: SPECD_FAKE_CUDA, words separated by commas, read at open():
//   no_driver, old_driver, no_device, old_gpu   count() or open() fail as the real one does
//   bytes=N            device memory
//   fail_after=N       the N-th synchronize() fails, and everything after it
//   fail_capture       end_capture() fails
//   open               host code may access device memory: faster, where that is no question of a test
//   devices=N          how many there are; 1 by default
//   no_nccl            ranks cannot join
// SPECD_STRICT_NCCL: how ranks fail, see strict_nccl/group.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specd::fake_cuda {

// One line of the record: "matmul", "copy_in", "copy_out", "begin_capture", "end_capture",
// "launch", "synchronize", "wait" (a copy that had to wait), "allocate".
struct Record {
  std::vector<std::string> calls;
  uint64_t n_graphs = 0;            // not released
  uint64_t n_launched_ops = 0;      // run by graphs
  std::vector<std::string> faults;  // mistakes of the device's caller, as text
};

// The symbols exported in addition to specd_cuda_library.
inline constexpr char kTakeRecord[] = "specd_fake_cuda_take_record";
using TakeRecordFn = void (*)(Record*);  // of all devices, since the last call
inline constexpr char kNote[] = "specd_fake_cuda_note";
using NoteFn = void (*)(const char*);  // adds a line of the caller to the record

}  // namespace specd::fake_cuda
