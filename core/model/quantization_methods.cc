// The descriptions of ModelOpt, FBGEMM, fp8, AWQ, GPTQ and AutoRound: one format for all matrices, or
// nearly so. README.md has the layouts.
#include <utility>

#include "core/base/quote.h"
#include "core/model/quantization_rules.h"

namespace specd {
namespace {

using Layout = MatrixFormat::Layout;
using Scales = MatrixFormat::Scales;
using Inputs = MatrixFormat::Inputs;
using Rule = NamePattern::Rule;

// `key` must be absent, null or empty.
Status require_none(const Json& block, const char* key, const std::string& where,
                    const std::string& why) {
  const Json& found = at_or_null(block, key);
  if (found.empty()) return Status();  // null counts as empty
  return unsupported_value(where, key, found, "none: " + why);
}

// Gives every module that no pattern excludes the format.
Status assign(QuantizationSource& from, const MatrixFormat& format, bool with_lm_head,
              const std::vector<NamePattern>& excluded, const std::string& where,
              QuantizationRules& out) {
  out.formats = {format};
  for (const std::string& module : from.modules) {
    bool is_excluded = module == "lm_head" && !with_lm_head;
    for (size_t i = 0; i < excluded.size() && !is_excluded; ++i) {
      const Result<bool> matches = excluded[i].matches(module, from.budget);
      if (!matches.ok()) return matches.status().with_context(where);
      is_excluded = matches.value();
    }
    if (!is_excluded) out.format_of.emplace(module, 0);
  }
  return Status();
}

// `first` or else `second` lists the modules that are not quantized.
Status assign_without(QuantizationSource& from, const Json& block, const std::string& where,
                      const char* first, const char* second, Rule rule, bool with_lm_head,
                      const MatrixFormat& format, QuantizationRules& out) {
  const char* key = second == nullptr || !at_or_null(block, first).is_null() ? first : second;
  SPECD_TRY(const auto texts, read_module_names(from, block, key, where));
  std::vector<NamePattern> excluded;
  for (const std::string& text : texts) {
    SPECD_TRY(NamePattern pattern,
              NamePattern::make(rule, text, from.budget, key_place(where, key)));
    excluded.push_back(std::move(pattern));
  }
  return assign(from, format, with_lm_head, excluded, key_place(where, key), out);
}

// Of AWQ and GPTQ: -1 means one group, so a scale per output.
Status fill_group(const Json& block, const char* key, const std::string& where,
                  MatrixFormat& format) {
  SPECD_TRY(const int64_t group, json_int(block, key, -1, kGroupMax, where));
  if (group == 0) {
    return Status(Code::kDataLoss, key_place(where, key) + ": expected -1, or from 1 to " +
                                       std::to_string(kGroupMax) + ", found 0");
  }
  format.scales = group == -1 ? Scales::kChannel : Scales::kGroup;
  format.group = group == -1 ? 0 : static_cast<int32_t>(group);
  return Status();
}

// Fills what `block` says, which may be some of `format` only.
Status fill_gptq(const Json& block, const std::string& where, MatrixFormat& format) {
  SPECD_TRY(const int64_t bits, json_int_or(block, "bits", format.bits, 1, 64, where));
  if (bits != 4 && bits != 8) return unsupported_value(where, "bits", block["bits"], "4, 8");
  format.bits = static_cast<int32_t>(bits);
  if (!at_or_null(block, "group_size").is_null())
    SPECD_OK_OR_RETURN(fill_group(block, "group_size", where, format));
  SPECD_TRY(format.act_order, json_bool_or(block, "desc_act", format.act_order, where));
  SPECD_TRY(const bool is_symmetric, json_bool_or(block, "sym", !format.has_zeros, where));
  format.has_zeros = !is_symmetric;
  return Status();
}

// An entry of GPTQModel's "dynamic".
struct Override {
  std::string key;
  NamePattern pattern;
  bool excludes = false;
  const Json* changes = nullptr;
  size_t format = 0;
};

Result<std::vector<Override>> read_overrides(QuantizationSource& from, const std::string& place,
                                             QuantizationRules& out) {
  std::vector<Override> all;
  const Json& entries = at_or_null(from.block, "dynamic");
  if (entries.is_null()) return all;
  if (!entries.is_object()) {
    return Status(Code::kDataLoss, place + ": expected {expression: {key: value}}, found " +
                                       quote(entries.dump(-1, ' ', true)));
  }
  for (const auto& [key, changes] : entries.items()) {
    const std::string where = key_place(place, key);
    if (!changes.is_object() && !changes.is_null()) {
      return Status(Code::kDataLoss,
                    where + ": expected {key: value}, found " + quote(changes.dump(-1, ' ', true)));
    }
    const bool excludes = key.starts_with("-:");
    const std::string expression = excludes || key.starts_with("+:") ? key.substr(2) : key;
    SPECD_TRY(NamePattern pattern,
              NamePattern::make(Rule::kExpression, expression, from.budget, where));
    all.push_back({key, std::move(pattern), excludes, &changes, out.formats.size()});
    if (excludes || changes.is_null()) {
      all.back().format = 0;
      continue;
    }
    MatrixFormat format = out.formats.front();
    format.place = where;
    SPECD_OK_OR_RETURN(fill_gptq(changes, where, format));
    out.formats.push_back(std::move(format));
  }
  return all;
}

// GPTQModel takes the first entry that matches, and the order of a JSON object is not kept here. So entries
// that say different things of a module are refused.
Result<const Override*> find_override(const std::vector<Override>& all, const std::string& module,
                                      QuantizationSource& from, const std::string& place) {
  const Override* found = nullptr;
  for (const Override& each : all) {
    const Result<bool> matches = each.pattern.matches(module, from.budget);
    if (!matches.ok()) return matches.status().with_context(place);
    if (!matches.value()) continue;
    const bool same = found == nullptr || (found->excludes && each.excludes) ||
                      (found->excludes == each.excludes && *found->changes == *each.changes);
    if (!same) {
      return Status(Code::kUnsupported, place + ": found " + quote(found->key) + " and " +
                                            quote(each.key) + " for " + module +
                                            ", supported: one entry for a module");
    }
    found = &each;
  }
  return found;
}

}  // namespace

// ModelOpt: modelopt/torch/export/convert_hf_config.py, quant_utils.py.
Status read_modelopt(QuantizationSource& from, QuantizationRules& out) {
  // Files of their own, and the first ones in config.json, have it all below "quantization".
  const Json& inner = at_or_null(from.block, "quantization");
  const Json& block = inner.is_null() ? from.block : inner;
  const std::string where = inner.is_null() ? from.where : key_place(from.where, "quantization");
  SPECD_OK_OR_RETURN(json_string(block, "quant_algo", where).status());
  SPECD_TRY(const std::string algorithm, word_or(block, "quant_algo", "", where));
  MatrixFormat format{.layout = Layout::kFloat8, .place = where};
  if (algorithm == "fp8") {
    format.scales = Scales::kTensor;
    format.inputs = Inputs::kStatic;
    out.name = "modelopt FP8";
  } else if (algorithm == "fp8_per_channel_per_token") {
    format.scales = Scales::kChannel;
    format.inputs = Inputs::kDynamic;
    out.name = "modelopt FP8_PER_CHANNEL_PER_TOKEN";
  } else if (algorithm == "fp8_pb_wo") {
    format.scales = Scales::kBlock;
    format.block_rows = format.group = 128;
    out.name = "modelopt FP8_PB_WO";
  } else {
    return unsupported_value(where, "quant_algo", block["quant_algo"],
                             "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO");
  }
  SPECD_OK_OR_RETURN(
      require_none(block, "quantized_layers", where, "one algorithm for all layers"));
  SPECD_TRY(const std::string kv, word_or(block, "kv_cache_quant_algo", "none", where));
  if (kv == "fp8") {
    out.kv = {.is_float8 = true, .place = key_place(where, "kv_cache_quant_algo")};
  } else if (kv == "none") {
    SPECD_TRY(out.kv, read_kv_scheme(block, "FP8", where));
  } else {
    return unsupported_value(where, "kv_cache_quant_algo", block["kv_cache_quant_algo"],
                             "null, \"FP8\"");
  }
  return assign_without(from, block, where, "exclude_modules", "ignore", Rule::kWildcard, true,
                        format, out);
}

// transformers: FbgemmFp8Config, integrations/fbgemm_fp8.py.
Status read_fbgemm(QuantizationSource& from, QuantizationRules& out) {
  out.name = "fbgemm_fp8";
  // The largest |x| that makes a scale of inputs.
  SPECD_OK_OR_RETURN(
      json_double_or(from.block, "activation_scale_ub", 1200, 1e-30, 1e30, from.where).status());
  const MatrixFormat format{.layout = Layout::kFloat8,
                            .scales = Scales::kChannel,
                            .inputs = Inputs::kDynamic,
                            .place = from.where};
  return assign_without(from, from.block, from.where, "modules_to_not_convert", nullptr,
                        Rule::kStartOrEnd, false, format, out);
}

// transformers: FineGrainedFP8Config; without blocks AutoFP8, as vLLM reads it (fp8.py).
Status read_fp8(QuantizationSource& from, QuantizationRules& out) {
  const Json& block = from.block;
  const std::string& where = from.where;
  out.name = "fp8";
  const auto require_word = [&](const char* key, const std::string& only) -> Status {
    SPECD_TRY(const std::string found, word_or(block, key, only, where));
    return found == only ? Status() : unsupported_value(where, key, block[key], only);
  };
  SPECD_OK_OR_RETURN(require_word("fmt", "e4m3"));
  SPECD_OK_OR_RETURN(require_word("scale_fmt", "float"));
  SPECD_OK_OR_RETURN(
      require_none(block, "modules_to_convert", where, "modules_to_not_convert is read"));
  SPECD_TRY(const std::string inputs, word_or(block, "activation_scheme", "dynamic", where));
  if (inputs != "dynamic" && inputs != "static")
    return unsupported_value(where, "activation_scheme", block["activation_scheme"],
                             "dynamic, static");
  MatrixFormat format{.layout = Layout::kFloat8,
                      .scales = Scales::kTensor,
                      .inputs = inputs == "static" ? Inputs::kStatic : Inputs::kDynamic,
                      .place = where};
  if (const Json& sides = at_or_null(block, "weight_block_size"); !sides.is_null()) {
    const auto is_side = [](const Json& side) {
      return side.is_number_integer() && side >= 1 && side <= kGroupMax;
    };
    if (!sides.is_array() || sides.size() != 2 || !is_side(sides[0]) || !is_side(sides[1])) {
      return Status(Code::kDataLoss, key_place(where, "weight_block_size") +
                                         ": expected [outputs, inputs], each from 1 to " +
                                         std::to_string(kGroupMax) + ", found " +
                                         quote(sides.dump(-1, ' ', true)));
    }
    if (inputs == "static")
      return unsupported_value(where, "activation_scheme", block["activation_scheme"],
                               "dynamic with blocks");
    format.scales = Scales::kBlock;
    format.block_rows = sides[0].get<int32_t>();
    format.group = sides[1].get<int32_t>();
    format.scale = "weight_scale_inv";
  }
  SPECD_TRY(out.kv, read_kv_scheme(block, "static", where));
  return assign_without(from, block, where, "modules_to_not_convert", "ignored_layers",
                        Rule::kStartOrEnd, false, format, out);
}

// AutoAWQ: awq/models/_config.py, modules/linear/gemm.py.
Status read_awq(QuantizationSource& from, QuantizationRules& out) {
  const Json& block = from.block;
  const std::string& where = from.where;
  out.name = "awq";
  const char* bits = at_or_null(block, "w_bit").is_null() ? "bits" : "w_bit";
  SPECD_TRY(const int64_t n_bits, json_int(block, bits, 1, 64, where));
  if (n_bits != 4) return unsupported_value(where, bits, block[bits], "4");
  MatrixFormat format{.layout = Layout::kAwq, .bits = 4, .has_zeros = true, .place = where};
  SPECD_OK_OR_RETURN(
      fill_group(block, at_or_null(block, "q_group_size").is_null() ? "group_size" : "q_group_size",
                 where, format));
  // AutoRound says false where all are the middle, and writes them.
  SPECD_OK_OR_RETURN(json_bool_or(block, "zero_point", true, where).status());
  for (const char* key : {"version", "format", "checkpoint_format"}) {
    SPECD_TRY(const std::string word, word_or(block, key, "gemm", where));
    if (word != "gemm") return unsupported_value(where, key, block[key], "gemm");
  }
  SPECD_TRY(const std::string backend, word_or(block, "backend", "autoawq", where));
  if (backend == "llm-awq")
    return unsupported_value(where, "backend", block["backend"], "autoawq: its own layout");
  SPECD_TRY(const bool lm_head, json_bool_or(block, "lm_head", false, where));
  return assign_without(from, block, where, "modules_to_not_convert", nullptr, Rule::kSubstring,
                        lm_head, format, out);
}

// AutoGPTQ: auto_gptq/quantization/config.py, nn_modules/qlinear; GPTQModel's "dynamic" as vLLM reads it
// (gptq_utils.py).
Status read_gptq(QuantizationSource& from, QuantizationRules& out) {
  const Json& block = from.block;
  const std::string& where = from.where;
  SPECD_TRY(std::string layout, word_or(block, "format", "gptq", where));
  SPECD_TRY(layout, word_or(block, "checkpoint_format", layout, where));
  if (layout == "gemm") return read_awq(from, out);
  out.name = layout;
  if (layout != "gptq" && layout != "gptq_v2") {
    const char* key =
        at_or_null(block, "checkpoint_format").is_null() ? "format" : "checkpoint_format";
    return unsupported_value(where, key, block[key], "gptq, gptq_v2, and gemm for AWQ");
  }
  SPECD_TRY(const bool marlin, json_bool_or(block, "is_marlin_format", false, where));
  if (marlin)
    return unsupported_value(where, "is_marlin_format", block["is_marlin_format"],
                             "false: the order of one GPU kernel is not read");
  SPECD_TRY(const std::string words, word_or(block, "pack_dtype", "int32", where));
  if (words != "int32") return unsupported_value(where, "pack_dtype", block["pack_dtype"], "int32");
  for (const char* key : {"adapter", "rotation"}) {
    SPECD_OK_OR_RETURN(require_none(block, key, where, "weights are used as they are"));
  }
  MatrixFormat format{.layout = Layout::kGptq,
                      .has_zeros = true,
                      .zero_add = layout == "gptq" ? 1 : 0,
                      .place = where};
  SPECD_OK_OR_RETURN(json_int(block, "bits", 1, 64, where).status());
  SPECD_OK_OR_RETURN(json_int(block, "group_size", -1, kGroupMax, where).status());
  SPECD_OK_OR_RETURN(fill_gptq(block, where, format));
  SPECD_TRY(const bool lm_head, json_bool_or(block, "lm_head", false, where));
  out.formats = {format};
  const std::string place = key_place(where, "dynamic");
  SPECD_TRY(const std::vector<Override> overrides, read_overrides(from, place, out));
  out.tensors_decide =
      !overrides.empty() || !at_or_null(block, "modules_in_block_to_quantize").empty();
  for (const std::string& module : from.modules) {
    if (module == "lm_head" && !lm_head) continue;
    SPECD_TRY(const Override* found, find_override(overrides, module, from, place));
    if (found != nullptr && found->excludes) continue;
    out.format_of.emplace(module, found == nullptr ? 0 : found->format);
  }
  return Status();
}

// Intel's AutoRound: auto_round's config of what it packed as another tool would.
Status read_auto_round(QuantizationSource& from, QuantizationRules& out) {
  const Json& block = from.block;
  const std::string& where = from.where;
  const char* key = at_or_null(block, "packing_format").is_null() ? "backend" : "packing_format";
  SPECD_TRY(std::string packing, word_or(block, key, "auto_round", where));
  // Older versions name the kernel, of the same layout.
  if (packing == "auto_round:gptq:exllamav2") packing = "auto_round:auto_gptq";
  if (packing != "auto_round:auto_gptq" && packing != "auto_round:auto_awq") {
    return unsupported_value(where, key, at_or_null(block, key),
                             "auto_round:auto_gptq, auto_round:auto_awq");
  }
  SPECD_TRY(const std::string type, word_or(block, "data_type", "int", where));
  if (type != "int") return unsupported_value(where, "data_type", block["data_type"], "int");
  SPECD_TRY(const int64_t act_bits, json_int_or(block, "act_bits", 16, 1, 64, where));
  if (act_bits < 16) return unsupported_value(where, "act_bits", block["act_bits"], "16");
  SPECD_OK_OR_RETURN(
      require_none(block, "extra_config", where, "one way of quantization for all layers"));
  for (const char* blocks : {"block_name_to_quantize", "to_quant_block_names"}) {
    const Json& names = at_or_null(block, blocks);
    if (!names.is_null() && names != "model.layers" && names != Json::array({"model.layers"}))
      return unsupported_value(where, blocks, names, "\"model.layers\"");
  }
  SPECD_OK_OR_RETURN(packing == "auto_round:auto_awq" ? read_awq(from, out) : read_gptq(from, out));
  out.name.insert(0, "auto-round ");
  return Status();
}

}  // namespace specd
