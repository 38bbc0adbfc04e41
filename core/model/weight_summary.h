// As what a model's layers are stored, for reports.
#pragma once

#include <string>

#include "core/base/status.h"
#include "core/model/checkpoint.h"
#include "core/model/model_config.h"

namespace specd {

// Of the matrices of the layers: embedding and output head, which stay as they are more often, are left out.
struct WeightSummary {
  // "bf16", "FP8", "FP8 128x128", "W8A8 int8", "W4A16 g128": bits of a weight and of an input as a forward
  // rounds them, and the inputs that share a scale, unless all of an output do. Of several the one
  // with the most bytes, and ", mixed".
  std::string format;
  double bits = 0;  // a weight in the file, with its scales and zero points

  std::string text() const;  // "W4A16 g128, 4.13 bits a weight"
};

// REQUIRES check_tensors().
WeightSummary summary_of(const Checkpoint& checkpoint, const ModelConfig& config);
// The same from the headers of the files, which are checked.
Result<WeightSummary> weight_summary(const std::string& model_dir, const ModelConfig& config);

}  // namespace specd
