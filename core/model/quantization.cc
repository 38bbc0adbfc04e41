#include "core/model/quantization.h"

#include <optional>
#include <utility>

#include "core/base/quote.h"
#include "core/model/layer_matrices.h"
#include "core/model/quantization_rules.h"

namespace specd {
namespace {

constexpr uint64_t kDescriptionBytesMax = 1u << 20;
constexpr int64_t kDescribedLayersMax = 4096;
constexpr const char* kRead =
    "compressed-tensors, modelopt, fbgemm_fp8, fp8, awq, gptq, and auto-round packed as one of the last two";

struct Method {
  std::string_view name;
  const char* why;
};
constexpr const char* kFloat4 = "4-bit floats are not read";
constexpr const char* kCodebooks = "codes that stand for entries of a table are not read";
constexpr const char* kOwnLayout = "its own layout of weights is not read";
constexpr const char* kKernelOrder = "weights in the order of one GPU kernel are not read";
constexpr const char* kWhileLoading = "it quantizes while it loads";
constexpr const char* kPowerScales = "scales that are powers of two are not read";
constexpr Method kRefused[] = {
    {"bitsandbytes", "NF4, FP4 and LLM.int8() are not read"},
    {"aqlm", kCodebooks},
    {"vptq", kCodebooks},
    {"quip", kCodebooks},
    {"quip#", kCodebooks},
    {"higgs", kCodebooks},
    {"squeezellm", kCodebooks},
    {"exl2", "different numbers of bits in one matrix are not read"},
    {"exl3", kCodebooks},
    {"spqr", "outliers that are stored apart are not read"},
    {"bitnet", "weights of three values are not read"},
    {"gguf", "blocks of ggml are not read"},
    {"mxfp4", kFloat4},
    {"nvfp4", kFloat4},
    {"fp_quant", kFloat4},
    {"fouroversix", kFloat4},
    {"modelopt_fp4", kFloat4},
    {"petit_nvfp4", kFloat4},
    {"mxfp8", kPowerScales},
    {"modelopt_mxfp8", kPowerScales},
    {"deepseek_v4_fp8", kPowerScales},
    {"modelopt_mixed", "different formats in one model are read from compressed-tensors only"},
    {"marlin", kKernelOrder},
    {"awq_marlin", kKernelOrder},
    {"gptq_marlin", kKernelOrder},
    {"gptq_marlin_24", kKernelOrder},
    {"experts_int8", kWhileLoading},
    {"moe_wna16", "models with experts are not computed"},
    {"deepspeedfp", kWhileLoading},
    {"tpu_int8", kWhileLoading},
    {"eetq", kWhileLoading},
    {"quanto", kOwnLayout},
    {"hqq", kOwnLayout},
    {"torchao", kOwnLayout},
    {"quark", kOwnLayout},
    {"metal", kOwnLayout},
    {"sinq", kOwnLayout},
    {"gemma", kOwnLayout},
    {"ipex", kOwnLayout},
    {"humming", kOwnLayout},
    {"inc", kOwnLayout},
};

constexpr std::pair<std::string_view, Status (*)(QuantizationSource&, QuantizationRules&)>
    kReaders[] = {{"compressed-tensors", read_compressed_tensors},
                  {"modelopt", read_modelopt},
                  {"fbgemm_fp8", read_fbgemm},
                  {"fp8", read_fp8},
                  {"awq", read_awq},
                  {"gptq", read_gptq},
                  {"auto-round", read_auto_round},
                  {"intel/auto-round", read_auto_round}};

// What the description is called, in small letters.
Result<std::string> method_of(const QuantizationSource& from, const std::string& fallback) {
  const Json& block = from.block;
  SPECD_TRY(std::string method, word_or(block, "quant_method", "", from.where));
  if (method == "compressed_tensors") return std::string("compressed-tensors");
  if (!method.empty()) return method;
  const Json& producer = at_or_null(block, "producer");
  if (producer.is_object() && at_or_null(producer, "name") == "modelopt")
    return std::string("modelopt");
  for (const char* key : {"load_in_4bit", "load_in_8bit"}) {
    if (!at_or_null(block, key).is_null()) return std::string("bitsandbytes");
  }
  if (!fallback.empty()) return fallback;
  return Status(Code::kDataLoss, from.where + ": the key 'quant_method' is missing");
}

// Older tools leave the method out of their own files.
std::string method_of_file(const Json& block, const std::string& name) {
  if (name == "hf_quant_config.json") return "modelopt";
  return name == "quant_config.json" || block.contains("w_bit") ? "awq" : "gptq";
}

struct Found {
  QuantizationSource source;
  std::string method;
};

Status check_object(const Json& block, const std::string& where) {
  if (block.is_object()) return Status();
  return Status(Code::kDataLoss,
                where + ": expected an object, found " + quote(block.dump(-1, ' ', true)));
}

Result<std::optional<Found>> find_description(const Json& config, const std::string& model_dir) {
  constexpr const char* kNew = "quantization_config";
  constexpr const char* kOld = "compression_config";
  std::optional<Found> found;
  const std::string config_where = model_dir + "/config.json";
  const Json &now = at_or_null(config, kNew), &before = at_or_null(config, kOld);
  if (!now.is_null() && !before.is_null() && now != before)
    return unsupported_value(config_where, kOld, before,
                             "null beside 'quantization_config', or the very same");
  if (!now.is_null() || !before.is_null()) {
    const char* key = now.is_null() ? kOld : kNew;
    found.emplace();
    found->source.block = now.is_null() ? before : now;
    found->source.where = key_place(config_where, key);
    SPECD_OK_OR_RETURN(check_object(found->source.block, found->source.where));
    // transformers may wrap what compressed-tensors wrote.
    if (Json inner = at_or_null(found->source.block, kNew); !inner.is_null()) {
      found->source.block = std::move(inner);
      found->source.where = key_place(found->source.where, kNew);
      SPECD_OK_OR_RETURN(check_object(found->source.block, found->source.where));
    }
    SPECD_TRY(found->method, method_of(found->source, now.is_null() ? "compressed-tensors" : ""));
    return found;
  }
  for (const char* name : kQuantizationFiles) {
    const std::string path = model_dir + "/" + name;
    if (!path_exists(path)) continue;
    found.emplace();
    SPECD_TRY(found->source.block, parse_json_file(path, kDescriptionBytesMax));
    found->source.where = path;
    SPECD_OK_OR_RETURN(check_object(found->source.block, path));
    SPECD_TRY(found->method, method_of(found->source, method_of_file(found->source.block, name)));
    return found;
  }
  return found;
}

Status fill_modules(const Json& config, const std::string& model_dir, QuantizationSource& out) {
  const std::string where = model_dir + "/config.json";
  SPECD_TRY(out.n_layers, json_int(config, "num_hidden_layers", 1, kDescribedLayersMax, where));
  SPECD_TRY(const bool tied, json_bool_or(config, "tie_word_embeddings", false, where));
  for (int64_t i = 0; i < out.n_layers; ++i) {
    for (const char* matrix : kLayerMatrixNames)
      out.modules.push_back("model.layers." + std::to_string(i) + "." + matrix);
  }
  if (!tied) out.modules.emplace_back("lm_head");
  return Status();
}

Result<std::shared_ptr<const QuantizationRules>> read_method(Found& found) {
  for (const auto& [name, read] : kReaders) {
    if (found.method != name) continue;
    auto rules = std::make_shared<QuantizationRules>();
    SPECD_OK_OR_RETURN(read(found.source, *rules));
    return std::shared_ptr<const QuantizationRules>(std::move(rules));
  }
  const char* why = "this word is unknown";
  for (const Method& refused : kRefused) {
    if (found.method == refused.name) why = refused.why;
  }
  return Status(Code::kUnsupported,
                key_place(found.source.where, "quant_method") + ": found " + quote(found.method) +
                    ": " + why + ", supported: " + kRead +
                    "; use such a checkpoint, or the one that this was made from");
}

}  // namespace

Result<Quantization> Quantization::read(const Json& config, const std::string& model_dir) {
  Quantization made;
  SPECD_TRY(std::optional<Found> found, find_description(config, model_dir));
  if (!found.has_value()) return made;
  SPECD_OK_OR_RETURN(fill_modules(config, model_dir, found->source));
  SPECD_TRY(made.rules_, read_method(*found));
  return made;
}

Result<Quantization> Quantization::read(const Json& config, const std::string& folder,
                                        std::vector<std::string> modules) {
  Quantization made;
  SPECD_TRY(std::optional<Found> found, find_description(config, folder));
  if (!found.has_value()) return made;
  found->source.n_layers = kDescribedLayersMax;  // names of layers say nothing about others' files
  found->source.modules = std::move(modules);
  SPECD_TRY(made.rules_, read_method(*found));
  return made;
}

const MatrixFormat* Quantization::of(std::string_view module) const {
  if (is_empty()) return nullptr;
  const auto found = rules_->format_of.find(module);
  return found == rules_->format_of.end() ? nullptr : &rules_->formats[found->second];
}

bool Quantization::tensors_decide() const { return !is_empty() && rules_->tensors_decide; }

bool Quantization::is_empty() const { return rules_ == nullptr; }

const KvFormat& Quantization::kv() const {
  static const KvFormat kNone;
  return is_empty() ? kNone : rules_->kv;
}

const std::string& Quantization::name() const {
  static const std::string kNone;
  return is_empty() ? kNone : rules_->name;
}

}  // namespace specd
