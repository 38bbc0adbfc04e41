// Reads what compressed-tensors writes: groups of modules, each with how its weights and inputs are quantized.
// Keys, defaults and matching as in vllm-project/compressed-tensors (quant_config.py, quant_scheme.py,
// quant_args.py, utils/match.py); README.md has the layouts.
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "core/base/quote.h"
#include "core/model/quantization_rules.h"

namespace specd {
namespace {

using Layout = MatrixFormat::Layout;
using Scales = MatrixFormat::Scales;
using Inputs = MatrixFormat::Inputs;

constexpr const char* kFormats =
    "int-quantized, float-quantized, naive-quantized, pack-quantized, mixed-precision";

Status refusal(const std::string& where, const std::string& what, const std::string& supported) {
  return Status(Code::kUnsupported, where + ": " + what + ", supported: " + supported);
}

Status known_keys(const Json& object, std::initializer_list<std::string_view> known,
                  const std::string& where) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      return unsupported_value(where, key, value, "this key is unknown here");
  }
  return Status();
}

// How one tensor is quantized.
struct Args {
  std::string where;
  int64_t bits = 8;
  bool is_float = false;
  bool symmetric = true;
  bool dynamic = false;
  std::string strategy;
  int64_t group = 0;
  int64_t rows = 0, columns = 0;  // of a block
  bool act_order = false;
};

Status read_block(const Json& object, Args& args) {
  const Json& found = at_or_null(object, "block_structure");
  const std::string where = key_place(args.where, "block_structure");
  Json sides = found;
  if (found.is_string()) {  // "128x128"
    long long rows = 0, columns = 0;
    char rest = 0;
    if (std::sscanf(found.get_ref<const std::string&>().c_str(), "%7lldx%7lld%c", &rows, &columns,
                    &rest) != 2)
      sides = nullptr;
    else
      sides = Json::array({rows, columns});
  }
  const auto side = [](const Json& value) {
    return value.is_number_integer() && value >= 1 && value <= kGroupMax;
  };
  if (!sides.is_array() || sides.size() != 2 || !side(sides[0]) || !side(sides[1])) {
    return Status(Code::kDataLoss, where + ": expected [outputs, inputs], each from 1 to " +
                                       std::to_string(kGroupMax) + ", found " +
                                       quote(found.dump(-1, ' ', true)));
  }
  args.rows = sides[0].get<int64_t>();
  args.columns = sides[1].get<int64_t>();
  return Status();
}

Status read_act_order(const Json& object, Args& args) {
  const Json& order = at_or_null(object, "actorder");
  std::string word;
  if (order.is_string()) {
    SPECD_TRY(word, word_or(object, "actorder", "", args.where));
  }
  if (order.is_null() || order == false || word == "weight" || word == "static") return Status();
  args.act_order = order == true || word == "group" || word == "dynamic";
  if (args.act_order) return Status();
  return unsupported_value(args.where, "actorder", order,
                           "null, \"weight\" and \"group\", or as older files call them");
}

Result<Args> read_args(const Json& object, const std::string& where) {
  Args args;
  args.where = where;
  if (!object.is_object()) {
    return Status(Code::kDataLoss,
                  where + ": expected an object, found " + quote(object.dump(-1, ' ', true)));
  }
  SPECD_OK_OR_RETURN(
      known_keys(object,
                 {"num_bits", "type", "symmetric", "strategy", "group_size", "block_structure",
                  "dynamic", "actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"},
                 where));
  SPECD_TRY(args.bits, json_int_or(object, "num_bits", 8, 1, 64, where));
  SPECD_TRY(const std::string type, word_or(object, "type", "int", where));
  if (type != "int" && type != "float")
    return unsupported_value(where, "type", object["type"], "int, float");
  args.is_float = type == "float";
  SPECD_TRY(args.symmetric, json_bool_or(object, "symmetric", true, where));
  if (at_or_null(object, "dynamic") == "local")
    return unsupported_value(where, "dynamic", object["dynamic"], "true, false");
  SPECD_TRY(args.dynamic, json_bool_or(object, "dynamic", false, where));
  SPECD_TRY(args.strategy, word_or(object, "strategy", "", where));
  SPECD_TRY(int64_t group, json_int_or(object, "group_size", 0, -1, kGroupMax, where));
  const Json& given = at_or_null(object, "group_size");
  if (args.strategy.empty()) {
    args.strategy = given.is_null() ? "tensor" : group == -1 ? "channel" : "group";
  }
  const bool grouped = args.strategy == "group" || args.strategy == "tensor_group";
  if (grouped ? group < 1 : group > 0) {
    return Status(Code::kDataLoss,
                  key_place(where, "group_size") + ": expected " +
                      (grouped ? "from 1 to " + std::to_string(kGroupMax) : std::string("null")) +
                      " with strategy " + quote(args.strategy) + ", found " + given.dump());
  }
  args.group = grouped ? group : 0;
  if (args.strategy == "block") {
    SPECD_OK_OR_RETURN(read_block(object, args));
  } else if (!at_or_null(object, "block_structure").is_null()) {
    return Status(Code::kDataLoss, key_place(where, "block_structure") +
                                       ": expected null with strategy " + quote(args.strategy) +
                                       ", found " +
                                       quote(object["block_structure"].dump(-1, ' ', true)));
  }
  SPECD_OK_OR_RETURN(read_act_order(object, args));
  return args;
}

Result<std::optional<Args>> read_args_or_none(const Json& group, const char* key,
                                              const std::string& where) {
  std::optional<Args> args;
  if (const Json& found = at_or_null(group, key); !found.is_null()) {
    SPECD_TRY(args, read_args(found, key_place(where, key)));
  }
  return args;
}

// The word of a `format` that is one for weights; `word` is what the file has.
Status check_format(const std::string& word, const std::string& where) {
  static constexpr std::pair<std::string_view, const char*> kRefused[] = {
      {"dense", "its weights are not compressed"},
      {"fakequant", "its weights are not compressed"},
      {"nvfp4-pack-quantized", "4-bit floats are not read"},
      {"mxfp4-pack-quantized", "4-bit floats are not read"},
      {"mxfp8-quantized", "scales that are powers of two are not read"},
      {"sparse-bitmask", "sparse weights are not read"},
      {"sparse-24-bitmask", "sparse weights are not read"},
      {"marlin-24", "sparse weights in the order of one GPU kernel are not read"}};
  for (const char* read :
       {"int-quantized", "float-quantized", "naive-quantized", "pack-quantized"}) {
    if (word == read) return Status();
  }
  const char* why = "this word is unknown";
  for (const auto& [refused, reason] : kRefused) {
    if (word == refused) why = reason;
  }
  return Status(Code::kUnsupported, key_place(where, "format") + ": found " + quote(word) + ": " +
                                        why + ", supported: " + kFormats);
}

// What the weights of a group are stored as.
Status fill_weights(const Args& weights, const std::string& format, MatrixFormat& out) {
  const std::string& where = weights.where;
  const auto refuse = [&](const std::string& found, const char* supported) {
    return refusal(where, "found " + found, supported);
  };
  if (weights.dynamic) return refuse("'dynamic' true", "false: weights have scales in the file");
  const std::string strategy = "'strategy' " + quote(weights.strategy);
  out.bits = static_cast<int32_t>(weights.bits);
  if (weights.strategy == "tensor")
    out.scales = Scales::kTensor;
  else if (weights.strategy == "channel")
    out.scales = Scales::kChannel;
  else if (weights.strategy == "group")
    out.scales = Scales::kGroup;
  else if (weights.strategy == "block")
    out.scales = Scales::kBlock;
  else
    return refuse(strategy, "tensor, channel, group and block for weights");
  out.group = static_cast<int32_t>(weights.strategy == "block" ? weights.columns : weights.group);
  out.block_rows = static_cast<int32_t>(weights.rows);
  if (weights.act_order && out.scales != Scales::kGroup) {
    return Status(Code::kDataLoss, key_place(where, "actorder") +
                                       ": expected null or \"weight\" with " + strategy +
                                       ", found that columns are grouped in another order");
  }
  if (format == "pack-quantized") {
    out.layout = Layout::kPacked;
    out.has_zeros = !weights.symmetric;
    out.act_order = weights.act_order;
    if (weights.is_float) return refuse("floats in format 'pack-quantized'", "integers");
    if (weights.bits != 4 && weights.bits != 8)
      return refuse("'num_bits' " + std::to_string(weights.bits),
                    "4 and 8 in format 'pack-quantized'");
    if (out.scales != Scales::kChannel && out.scales != Scales::kGroup)
      return refuse(strategy, "channel and group in format 'pack-quantized'");
    return Status();
  }
  out.layout = weights.is_float ? Layout::kFloat8 : Layout::kInt8;
  if (weights.bits != 8)
    return refuse("'num_bits' " + std::to_string(weights.bits), "8 unless packed");
  if (!weights.symmetric) return refuse("'symmetric' false", "true unless packed");
  if (weights.is_float && out.scales == Scales::kGroup)
    return refuse(strategy, "tensor, channel and block for floats");
  if (!weights.is_float && out.scales != Scales::kTensor && out.scales != Scales::kChannel)
    return refuse(strategy, "tensor and channel for 8-bit integers that are not packed");
  return Status();
}

// How the inputs of a group are rounded.
Status fill_inputs(const Args& inputs, MatrixFormat& out) {
  const auto refuse = [&](const std::string& found, const std::string& supported) {
    return refusal(inputs.where, "found " + found, supported);
  };
  const bool is_float = out.layout == Layout::kFloat8;
  if (out.layout == Layout::kPacked) {
    return refuse("quantized inputs of packed weights (W" + std::to_string(out.bits) + "A" +
                      std::to_string(inputs.bits) + ")",
                  "null in format 'pack-quantized'");
  }
  if (inputs.is_float != is_float)
    return refuse(inputs.is_float ? "'type' float" : "'type' int", "the type of the weights");
  if (inputs.bits != 8) return refuse("'num_bits' " + std::to_string(inputs.bits), "8");
  if (!inputs.symmetric) return refuse("'symmetric' false", "true: inputs have no zero point");
  out.inputs = inputs.dynamic ? Inputs::kDynamic : Inputs::kStatic;
  const std::string strategy = "'strategy' " + quote(inputs.strategy);
  if (!inputs.dynamic) {
    if (inputs.strategy != "tensor") return refuse(strategy, "tensor for static inputs");
    if (out.scales == Scales::kBlock) return refuse("static inputs of blocks", "dynamic ones");
    return Status();
  }
  if (is_float && (inputs.strategy == "tensor" || inputs.strategy == "group")) return Status();
  if (inputs.strategy == "token") return Status();
  return refuse(strategy, is_float ? "token, group and tensor for dynamic inputs in FP8"
                                   : "token for dynamic inputs in 8-bit integers");
}

// `format`: of the whole description, "" when it has none.
Result<MatrixFormat> read_group(const Json& group, const std::string& format,
                                const std::string& where) {
  if (group.is_array()) {
    return refusal(where, "found a preset's name with a list",
                   "an object with 'targets' and 'weights'");
  }
  if (!group.is_object()) {
    return Status(Code::kDataLoss,
                  where + ": expected an object, found " + quote(group.dump(-1, ' ', true)));
  }
  SPECD_OK_OR_RETURN(known_keys(
      group, {"targets", "weights", "input_activations", "output_activations", "format"}, where));
  SPECD_TRY(const std::string own, json_string_or(group, "format", format, where));
  if (own.empty())
    return Status(Code::kDataLoss, where + ": the key 'format' is missing beside mixed-precision");
  SPECD_OK_OR_RETURN(check_format(own, where));
  if (const Json& outputs = at_or_null(group, "output_activations"); !outputs.is_null())
    return unsupported_value(where, "output_activations", outputs, "null");
  SPECD_TRY(const auto weights, read_args_or_none(group, "weights", where));
  SPECD_TRY(const auto inputs, read_args_or_none(group, "input_activations", where));
  if (!weights.has_value()) {
    return refusal(where, "found no 'weights': quantized activations alone are not computed",
                   "groups with weights");
  }
  MatrixFormat made{.place = where};
  SPECD_OK_OR_RETURN(fill_weights(*weights, own, made));
  if (inputs.has_value()) SPECD_OK_OR_RETURN(fill_inputs(*inputs, made));
  return made;
}

// Classes of torch that all our matrices are.
bool is_linear_class(const std::string& name) { return name == "Linear" || name == "Module"; }

enum class Kind { kName, kExpression, kClass };  // in the order in which targets win
Kind kind_of(const std::string& text) {
  if (text.starts_with("re:")) return Kind::kExpression;
  return is_linear_class(text) ? Kind::kClass : Kind::kName;
}

// Names and expressions; a class matches every module, so `everything` says whether there is one.
struct Match {
  Kind kind = Kind::kName;
  NamePattern pattern;
  Result<bool> matches(const std::string& module, QuantizationSource& from,
                       const std::string& where) const {
    if (kind == Kind::kClass) return true;
    Result<bool> found = pattern.matches(module, from.budget);
    if (!found.ok()) return found.status().with_context(where);
    return found;
  }
};

Result<Match> make_match(const std::string& text, QuantizationSource& from,
                         const std::string& where) {
  const Kind kind = kind_of(text);
  const bool expression = kind == Kind::kExpression;
  SPECD_TRY(
      NamePattern pattern,
      NamePattern::make(expression ? NamePattern::Rule::kExpression : NamePattern::Rule::kExact,
                        expression ? text.substr(3) : text, from.budget, where));
  return Match{kind, std::move(pattern)};
}

// `modules`: of the source.
Status check_target(const std::set<std::string_view>& modules, const std::string& text,
                    const std::string& where) {
  if (kind_of(text) != Kind::kName || text == "lm_head" || modules.contains(text)) return Status();
  const std::string what = text.ends_with("Attention")   ? "quantized attention is not computed"
                           : text.ends_with("Embedding") ? "quantized embeddings are not read"
                                                         : "the model has no such matrix";
  return Status(Code::kUnsupported,
                where + ": found " + quote(text) + ": " + what +
                    ", supported: \"Linear\", names such as \"model.layers.0.mlp.up_proj\" and "
                    "\"lm_head\", and expressions for these (\"re:...\")");
}

struct Target {
  std::string text;
  Match match;
  size_t format = 0;
  std::string where;
};

Status read_groups(QuantizationSource& from, QuantizationRules& out, std::vector<Target>& targets) {
  SPECD_TRY(std::string format, json_string_or(from.block, "format", "fakequant", from.where));
  if (format == "mixed-precision") format.clear();
  const Json& groups = at_or_null(from.block, "config_groups");
  const std::string place = key_place(from.where, "config_groups");
  if (!groups.is_object() || groups.empty()) {
    return Status(Code::kDataLoss, place + ": expected groups of modules, found " +
                                       quote(groups.dump(-1, ' ', true)));
  }
  const std::set<std::string_view> modules(from.modules.begin(), from.modules.end());
  for (const auto& [name, group] : groups.items()) {
    const std::string where = key_place(place, name);
    SPECD_TRY(MatrixFormat made, read_group(group, format, where));
    SPECD_TRY(const auto texts, read_module_names(from, group, "targets", where));
    const std::string where_targets = key_place(where, "targets");
    if (texts.empty())
      return Status(Code::kDataLoss, where_targets + ": expected modules, found none");
    for (const std::string& text : texts) {
      SPECD_OK_OR_RETURN(check_target(modules, text, where_targets));
      SPECD_TRY(Match match, make_match(text, from, where_targets));
      targets.push_back({text, std::move(match), out.formats.size(), where_targets});
    }
    out.formats.push_back(std::move(made));
  }
  std::sort(targets.begin(), targets.end(), [](const Target& a, const Target& b) {
    return std::tie(a.match.kind, a.text, a.format) < std::tie(b.match.kind, b.text, b.format);
  });
  for (size_t i = 1; i < targets.size(); ++i) {
    if (targets[i].text != targets[i - 1].text || targets[i].format == targets[i - 1].format)
      continue;
    return Status(Code::kUnsupported, targets[i].where + ": found " + quote(targets[i].text) +
                                          " here and at " + targets[i - 1].where +
                                          ", supported: one group for a target");
  }
  return Status();
}

Status check_arithmetic(const QuantizationSource& from) {
  const Json& transforms = at_or_null(from.block, "transform_config");
  const bool no_transforms =
      transforms.is_null() || transforms == Json::object() ||
      (transforms.is_object() && at_or_null(transforms, "config_groups") == Json::object());
  if (!no_transforms)
    return unsupported_value(from.where, "transform_config", transforms,
                             "none: rotated weights are not computed");
  const Json& sparsity = at_or_null(from.block, "sparsity_config");
  const bool dense = sparsity.is_null() || sparsity == Json::object() ||
                     (sparsity.is_object() && at_or_null(sparsity, "format") == "dense");
  if (!dense)
    return unsupported_value(from.where, "sparsity_config", sparsity,
                             "none: sparse weights are not read");
  return Status();
}

}  // namespace

Result<KvFormat> read_kv_scheme(const Json& object, std::string_view word,
                                const std::string& where) {
  constexpr const char* kKey = "kv_cache_scheme";
  const Json& found = at_or_null(object, kKey);
  KvFormat none;
  if (found.is_null()) return none;
  const KvFormat float8{.is_float8 = true, .place = key_place(where, kKey)};
  const char* supported =
      "null, and FP8 (e4m3) with one static scale for the keys of a layer and one for its values";
  if (found.is_string()) {
    if (found.get_ref<const std::string&>() == word) return float8;
    return unsupported_value(where, kKey, found, supported);
  }
  SPECD_TRY(const Args args, read_args(found, float8.place));
  if (args.bits == 8 && args.is_float && args.symmetric && !args.dynamic &&
      args.strategy == "tensor")
    return float8;
  return unsupported_value(where, kKey, found, supported);
}

Status read_compressed_tensors(QuantizationSource& from, QuantizationRules& out) {
  SPECD_TRY(const std::string format,
            json_string_or(from.block, "format", "fakequant", from.where));
  SPECD_TRY(out.kv, read_kv_scheme(from.block, "", from.where));
  out.name = "compressed-tensors " + format;
  const bool is_cache_alone = out.kv.is_float8 && at_or_null(from.block, "config_groups").empty();
  if (is_cache_alone) return check_arithmetic(from);
  if (format != "mixed-precision") SPECD_OK_OR_RETURN(check_format(format, from.where));
  SPECD_OK_OR_RETURN(check_arithmetic(from));
  std::vector<Target> targets;
  SPECD_OK_OR_RETURN(read_groups(from, out, targets));
  SPECD_TRY(const auto texts, read_module_names(from, from.block, "ignore", from.where));
  const std::string where = key_place(from.where, "ignore");
  std::vector<Match> ignored;
  for (const std::string& text : texts) {
    SPECD_TRY(Match match, make_match(text, from, where));
    ignored.push_back(std::move(match));
  }
  for (const std::string& module : from.modules) {
    bool is_ignored = false;
    for (size_t i = 0; i < ignored.size() && !is_ignored; ++i) {
      SPECD_TRY(is_ignored, ignored[i].matches(module, from, where));
    }
    for (size_t i = 0; i < targets.size() && !is_ignored; ++i) {
      SPECD_TRY(const bool matches, targets[i].match.matches(module, from, targets[i].where));
      if (!matches) continue;
      out.format_of.emplace(module, targets[i].format);
      break;
    }
  }
  return Status();
}

}  // namespace specd
