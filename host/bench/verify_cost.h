// V(n): the time of a forward of n rows / that of one row, on the model alone, without engine,
// draws or plugins. A drafter whose guesses are all right gains at most (K + 1) / V(K + 1).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/engine.h"

namespace specd::host {

// Holds a second copy of the model: the engine's belongs to its step thread.
class VerifyCost {
 public:
  // Rows of one sequence that has `kContext` tokens already, with logits of all; n is 2 to 256.
  // `device` is what the measured engine reports: kUnsupported unless it is the CPU.
  static constexpr int32_t kContext = 128;
  static Result<std::unique_ptr<VerifyCost>> create(const EngineOptions& options,
                                                    const std::string& device,
                                                    const std::vector<int>& rows);
  ~VerifyCost();

  // Times n rows and one row alternately, for every n, several times. Nothing else should run.
  void measure();
  // V(n) of the medians so far.
  std::map<int, double> result() const;

 private:
  struct Impl;
  explicit VerifyCost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace specd::host
