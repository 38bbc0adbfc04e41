#include "core/model/weight_summary.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <utility>

#include "core/model/layer_matrices.h"
#include "core/model/quantized_matrix.h"

namespace specd {
namespace {

std::string words_of(const MatrixFormat& format) {
  if (format.layout == MatrixFormat::Layout::kFloat8) {
    if (format.scales != MatrixFormat::Scales::kBlock) return "FP8";
    return "FP8 " + std::to_string(format.block_rows) + "x" + std::to_string(format.group);
  }
  const bool is_int8 = format.layout == MatrixFormat::Layout::kInt8;
  std::string words = "W" + std::to_string(format.bits);
  words += is_int8 && format.inputs != MatrixFormat::Inputs::kNone ? "A8" : "A16";
  if (is_int8) words += " int8";
  if (format.scales == MatrixFormat::Scales::kGroup) words += " g" + std::to_string(format.group);
  return words;
}

std::string words_of(TensorType type) {
  std::string words = tensor_type_name(type);
  std::ranges::transform(words, words.begin(), [](unsigned char c) { return std::tolower(c); });
  return words;
}

}  // namespace

std::string WeightSummary::text() const {
  char number[32];
  std::snprintf(number, sizeof(number), "%.2f", bits);
  return format + ", " + number + " bits a weight";
}

WeightSummary summary_of(const Checkpoint& checkpoint, const ModelConfig& c) {
  std::map<std::string, uint64_t> bytes_in;  // each format
  uint64_t bytes = 0, weights = 0;
  const auto add = [&](const LayerMatrix& matrix) {
    uint64_t stored = 0;
    const auto count = [&](const std::string& name) { stored += checkpoint.at(name).bytes; };
    std::string words;
    if (is_quantized(checkpoint, c, matrix.module)) {
      const MatrixFormat& format = *c.quantization.of(matrix.module);
      (void)QuantizedMatrix::open(checkpoint, matrix.module, matrix.n_out, matrix.n_in, format,
                                  count);
      words = words_of(format);
    } else {
      count(matrix.module + ".weight");
      words = words_of(checkpoint.at(matrix.module + ".weight").type);
    }
    bytes_in[words] += stored;
    bytes += stored;
    weights += static_cast<uint64_t>(matrix.n_out) * static_cast<uint64_t>(matrix.n_in);
  };
  for (int32_t i = 0; i < c.n_layers; ++i) {
    for (const LayerMatrix& each : layer_matrices(c, i)) add(each);
  }
  const auto most = std::ranges::max_element(
      bytes_in, {}, [](const std::pair<const std::string, uint64_t>& each) { return each.second; });
  return {.format = most->first + (bytes_in.size() > 1 ? ", mixed" : ""),
          .bits = 8 * static_cast<double>(bytes) / static_cast<double>(weights)};
}

Result<WeightSummary> weight_summary(const std::string& model_dir, const ModelConfig& config) {
  SPECD_TRY(const Checkpoint files, Checkpoint::open(model_dir));
  SPECD_OK_OR_RETURN(check_tensors(files, config));
  return summary_of(files, config);
}

}  // namespace specd
