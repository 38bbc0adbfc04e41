// What a step of n rows costs by one of a single row, V(n), on the model alone: no engine, no
// draws, no plugins. A drafter whose guesses are all right gains at most (K + 1) / V(K + 1).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"

namespace specd::host {

// Holds the model a second time: the engine's own belongs to its step thread.
class VerifyCost {
 public:
  // Rows of one sequence with `kContext` tokens behind it, logits of all; n in 2 to 256. `device`
  // is what the engine that is measured reports: kUnsupported beside another one than the CPU.
  static constexpr int32_t kContext = 128;
  static Result<std::unique_ptr<VerifyCost>> create(const EngineOptions& options,
                                                    const std::string& device,
                                                    const std::vector<int>& rows);
  ~VerifyCost();

  // Times every n and the single row between them, some times over. Nothing else should run.
  void measure();
  // V(n) of the medians so far.
  std::map<int, double> result() const;

 private:
  struct Impl;
  explicit VerifyCost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
