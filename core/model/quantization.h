// How the matrices of a checkpoint are quantized: what config.json says in `quantization_config` or
// `compression_config`, else hf_quant_config.json (ModelOpt), quantize_config.json (GPTQ, AWQ) or
// quant_config.json (AWQ).
//
// Read: compressed-tensors (int-quantized, float-quantized, naive-quantized, pack-quantized, mixed-precision
// of these), ModelOpt (FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO), fbgemm_fp8, fp8 with and without blocks,
// AWQ (gemm), GPTQ (4 and 8 bits), auto-round that is packed as one of the latter two. Everything else is
// kUnsupported: its name, why, and what is read. Values that are wrong in themselves are kDataLoss. Errors
// name the file and the key. README.md in this folder has the layouts and their sources.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

struct QuantizationRules;

// Files beside config.json that may describe it, in the order in which they are asked.
inline constexpr const char* kQuantizationFiles[] = {"hf_quant_config.json", "quantize_config.json",
                                                     "quant_config.json"};

// One matrix, with N outputs and K inputs.
struct MatrixFormat {
  enum class Layout : uint8_t {
    kInt8,    // compressed-tensors: `weight` I8 [N, K]
    kFloat8,  // `weight` F8_E4M3 [N, K]
    kPacked,  // compressed-tensors: `weight_packed` I32 [N, ceil(K * bits / 32)], `weight_shape`
    kGptq,    // `qweight` I32 [K * bits / 32, N], `qzeros`, `scales`, `g_idx`
    kAwq,     // `qweight` I32 [K, N / 8], `qzeros`, `scales`
  };
  // What shares a scale. kChannel: an output, also with a group of -1. kGroup: `group` neighboring k of an
  // output, with act_order those that g_idx says. kBlock: `block_rows` outputs by `group` k.
  enum class Scales : uint8_t { kTensor, kChannel, kGroup, kBlock };
  // How x is rounded where the maker ran it. kDynamic: a scale per row, or with kBlock per `group` k of a row.
  // kStatic: `input_scale` of the file.
  enum class Inputs : uint8_t { kNone, kDynamic, kStatic };

  Layout layout = Layout::kInt8;
  Scales scales = Scales::kChannel;
  Inputs inputs = Inputs::kNone;
  int32_t bits = 8;        // of a code
  int32_t group = 0;       // of kGroup and kBlock
  int32_t block_rows = 0;  // of kBlock
  // Zero points are in the file. Else they are 2^(bits - 1), or 0 where codes are signed; the tensor is
  // there in kGptq and kAwq, and checked in kGptq.
  bool has_zeros = false;
  int32_t zero_add = 0;  // to the zero points of the file: 1 for GPTQ's first format
  // kPacked: `weight_g_idx` is there. GPTQ has g_idx or not, whatever this says.
  bool act_order = false;
  // Name of the scales behind the module's; kGptq and kAwq: always `scales`.
  std::string scale = "weight_scale";
  std::string place;  // file and key that say so, for errors
};

// Scales of the cache in a checkpoint.
struct KvFormat {
  bool is_float8 = false;  // the checkpoint asks for a cache in FP8
  std::string place;
};

class Quantization {
 public:
  // `config`: the parsed config.json of `model_dir`, which read_model_config() accepts. A checkpoint without any
  // of it gives an empty one.
  static Result<Quantization> read(const Json& config, const std::string& model_dir);
  // Of other weights than a model's: `modules` are those that may be quantized.
  static Result<Quantization> read(const Json& config, const std::string& folder,
                                   std::vector<std::string> modules);

  // Of a module such as "model.layers.0.self_attn.q_proj" or "lm_head"; null: not quantized. The pointer is
  // valid while this is or a copy of it. Embeddings and norms are never quantized, nor is an lm_head that is
  // the embedding.
  const MatrixFormat* of(std::string_view module) const;
  // GPTQ with "dynamic" or modules_in_block_to_quantize: whether a matrix is quantized is for its tensors to
  // say; then of() has its format, and a module without `qweight` is not quantized.
  bool tensors_decide() const;

  bool is_empty() const;
  const KvFormat& kv() const;
  // What it is called in reports: "compressed-tensors pack-quantized", "gptq", "modelopt FP8"; "" when empty.
  const std::string& name() const;

 private:
  std::shared_ptr<const QuantizationRules> rules_;  // null: empty
};

}  // namespace specd
