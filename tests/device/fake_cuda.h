// A CUDA library without CUDA: what kernels/cuda.h promises, kept by the CPU's ops, and everything
// recorded. It is loaded where libspecd_cuda would be, so that the loader, the executor's streams
// and graphs, and the daemon on `devices: [cuda:0]` run in tests without a GPU. It says nothing
// about the kernels and the driver.
//
// Stricter than a GPU:
//   * Nothing submitted runs before synchronize() (or a copy of memory that is not pinned): whoever
//     reads a result too early, or changes a column too early, is found out.
//   * Device memory is closed to the host (PROT_NONE) but while work runs: a touch is a crash.
//   * Every pointer of an op and of a copy must lie in live memory of its kind, else the stream
//   fails.
//
// Environment: SPECD_FAKE_CUDA, words separated by commas, read at open():
//   no_driver, old_driver, no_device, old_gpu   count() or open() fail as the real one does
//   bytes=N            device memory
//   fail_after=N       the N-th synchronize() fails, and so does all that follows
//   fail_capture       end_capture() fails
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specd::fake_cuda {

// One line of the record: "matmul", "copy_in", "copy_out", "begin_capture", "end_capture",
// "launch", "synchronize", "wait" (a copy that had to wait), "allocate".
struct Record {
  std::vector<std::string> calls;
  uint64_t n_graphs = 0;            // alive
  uint64_t n_launched_ops = 0;      // run by graphs
  std::vector<std::string> faults;  // of whoever used the device, in words
};

// The symbols that the fake exports beside specd_cuda_library.
inline constexpr char kTakeRecord[] = "specd_fake_cuda_take_record";
using TakeRecordFn = void (*)(Record*);  // of all devices since the last call
inline constexpr char kNote[] = "specd_fake_cuda_note";
using NoteFn = void (*)(const char*);  // puts a line of the caller's into the record

}  // namespace specd::fake_cuda
