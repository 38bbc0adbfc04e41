#include "core/model/kv_scales.h"

#include <cmath>

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

}  // namespace

Result<KvScales> kv_scales(const Checkpoint& checkpoint, const std::string& prefix,
                           const std::function<void(const std::string&)>& on_tensor) {
  KvScales scales;
  bool has_k = false, has_v = false;
  for (const Name& each : kNames) {
    const std::string name = prefix + "self_attn." + each.name;
    const auto found = checkpoint.tensors().find(name);
    if (found == checkpoint.tensors().end()) continue;
    on_tensor(name);
    if (!each.is_k && !each.is_v) continue;
    const TensorView& view = *found->second.view;
    const auto bad = [&](const std::string& expected, const std::string& is) {
      return Status(Code::kDataLoss, quote(checkpoint.path_of(name), 400) + ", tensor " +
                                         quote(name) + ": expected " + expected + ", found " + is);
    };
    const bool is_number = kernel_dtype(view.type).ok();
    if (!is_number || view.bytes != tensor_type_bytes(view.type)) {
      return bad("one number, F32, F16 or BF16: a cache has one scale for the keys of a layer and "
                 "one for its values",
                 std::string(tensor_type_name(view.type)) + " of shape " + shape_text(view.shape));
    }
    const float value = float_at(view, 0);
    if (!(value > 0) || !std::isfinite(value)) {
      return bad("a number above 0", std::to_string(value));
    }
    if (each.is_k && !has_k) scales.k = value;
    if (each.is_v && !has_v) scales.v = value;
    has_k = has_k || each.is_k;
    has_v = has_v || each.is_v;
  }
  return scales;
}

}  // namespace specd
