// This process as one of those that mpirun has started and that share the models: rank 0 leads, has the
// engine and all clients; the others follow. The host includes it beside engine.h.
//
//   mpirun -n 4 specd serve ...      engine.tensor_parallel_size * pipeline_parallel_size = 4
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/engine.h"

namespace specd {

// The values of the configuration by key, to compare them: {"engine.queue_max", "256"}.
using RankSettings = std::vector<std::pair<std::string, std::string>>;

class RankProcess {
 public:
  // [main] Whether mpirun has started this process.
  static bool is_one();
  // [main] Joins the others. Blocked signals stay so on all threads that this starts. `settings` are compared
  // with those of rank 0. kUnsupported: this installation has no libspecd_mpi, or no Open MPI.
  static Result<std::unique_ptr<RankProcess>> join(const EngineOptions& options,
                                                   RankSettings settings);
  // Waits until all others end in the same way.
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  int32_t rank() const;
  // [main] Whether mpirun has started as many ranks as are configured. Rank 0 asks before agree(): another rank that
  // finds the same may give up while agree() still waits.
  Status check_world(const EngineOptions& options) const;
  // [main] Called by all before anything else: ok when it is for each of them, else the first rank's
  // error, which names the rank.
  Status agree(const Status& mine);
  // [any] Why the ranks compute nothing more.
  Status status() const;
  // [main] Of a rank other than 0: loads its part of the models and computes what the lead says. Returns
  // ok when the lead ends, and otherwise why the ranks cannot go on.
  Status follow(const EngineOptions& options);
  // [any] Every request ends with the reason; the ranks compute nothing more. The second: when the process
  // of a rank on this machine is gone, which it names.
  void give_up(const Status& why);
  void give_up_if_gone();
  // [any] Ends all processes.
  [[noreturn]] void abort(int code);

 private:
  friend struct Models;
  struct Impl;
  explicit RankProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd
