#include "core/model/kv_scales.h"

#include <optional>

#include "core/base/quote.h"
#include "core/model/number_at.h"

namespace specd {
namespace {

// Where makers put them, behind "self_attn." (vLLM reads the same names:
// vllm/model_executor/layers/quantization/base_config.py, get_cache_scale_mapper).
struct Name {
  const char* name;
  bool is_k, is_v;
};
constexpr Name kNames[] = {
    {"k_scale", true, false},              // compressed-tensors
    {"v_scale", false, true},              //
    {"attn.k_scale", true, false},         //
    {"attn.v_scale", false, true},         //
    {"k_proj.k_scale", true, false},       // ModelOpt
    {"v_proj.v_scale", false, true},       //
    {"k_proj.output_scale", true, false},  // fp8
    {"v_proj.output_scale", false, true},  //
    {"kv_scale", true, true},              //
    {"q_scale", false, false},             //
    {"prob_scale", false, false},
};

// Far beyond what keys need, so that no product of it overflows.
constexpr float kLeast = 0x1p-64f, kMost = 0x1p64f;

}  // namespace

Result<KvScales> kv_scales(const Checkpoint& checkpoint, const std::string& prefix,
                           const std::function<void(const std::string&)>& on_tensor) {
  std::optional<float> k, v;
  std::string last;  // of the tensors
  for (const Name& each : kNames) {
    const std::string name = prefix + "self_attn." + each.name;
    const auto found = checkpoint.tensors().find(name);
    if (found == checkpoint.tensors().end()) continue;
    on_tensor(name);
    if (!each.is_k && !each.is_v) continue;
    last = name;
    const TensorView& view = *found->second.view;
    const auto bad = [&](const std::string& expected, const std::string& is) {
      return Status(Code::kDataLoss, quote(checkpoint.path_of(name), 400) + ", tensor " +
                                         quote(name) + ": expected " + expected + ", found " + is);
    };
    if (!kernel_dtype(view.type).ok() || view.bytes != tensor_type_bytes(view.type)) {
      return bad(
          "one number, F32, F16 or BF16: a cache has one scale for the keys of a layer and "
          "one for its values",
          std::string(tensor_type_name(view.type)) + " of shape " + shape_text(view.shape));
    }
    const float value = float_at(view, 0);
    if (!(value >= kLeast && value <= kMost)) {
      return bad("a scale from 2^-64 to 2^64", float_text(value));
    }
    for (std::optional<float>* scale : {each.is_k ? &k : nullptr, each.is_v ? &v : nullptr}) {
      if (scale == nullptr) continue;
      if (scale->has_value() && **scale != value) {
        return bad(float_text(**scale) + ", as another tensor of the layer says",
                   float_text(value));
      }
      *scale = value;
    }
  }
  if (k.has_value() != v.has_value()) {
    return Status(Code::kDataLoss, quote(checkpoint.path_of(last), 400) + ", " +
                                       quote(prefix + "self_attn") +
                                       ": expected a scale of the cache " +
                                       "for keys and one for values, found one for " +
                                       (k.has_value() ? "keys alone" : "values alone"));
  }
  return k.has_value() ? KvScales{.k = *k, .v = *v} : KvScales();
}

}  // namespace specd
