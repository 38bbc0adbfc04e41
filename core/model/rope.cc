#include "core/model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string_view>

#include "core/base/quote.h"

namespace specd {
namespace {

constexpr float kPi = std::numbers::pi_v<float>;

struct Type {
  std::string_view name;
  std::span<const std::string_view> keys;
};
constexpr std::string_view kLinear[] = {"factor"};
constexpr std::string_view kLlama3[] = {"factor", "low_freq_factor", "high_freq_factor",
                                        "original_max_position_embeddings"};
constexpr std::string_view kYarn[] = {"factor",           "original_max_position_embeddings",
                                      "attention_factor", "beta_fast",
                                      "beta_slow",        "mscale",
                                      "mscale_all_dim",   "truncate",
                                      "finetuned"};
constexpr Type kRopeTypes[] = {
    {"default", {}}, {"linear", kLinear}, {"llama3", kLlama3}, {"yarn", kYarn}};
constexpr std::string_view kCommonKeys[] = {"rope_type", "type", "rope_theta",
                                            "partial_rotary_factor"};

template <typename Names>
bool has(const Names& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

Status unsupported(const std::string& where, const Json& found, const std::string& supported) {
  return Status(Code::kUnsupported, where + ": found " + quote(found.dump(-1, ' ', true)) +
                                        ", supported: " + supported);
}

Result<double> required(const Json& block, const char* key, double low, double high,
                        const std::string& where) {
  if (!block.contains(key)) {
    return Status(Code::kDataLoss, where + ": the key " + quote(key) + " is missing");
  }
  return json_double_or(block, key, low - 1, low, high, where);
}

// 1 / frequency i.
float period(double theta, size_t i, int32_t head_dim) {
  return std::pow(static_cast<float>(theta),
                  static_cast<float>(2 * i) / static_cast<float>(head_dim));
}

Status scale_llama3(const Json& block, const std::string& where, Rope& rope) {
  SPECD_TRY(const double factor, required(block, "factor", 1, 1e6, where));
  SPECD_TRY(const double low, required(block, "low_freq_factor", 1e-6, 1e6, where));
  SPECD_TRY(const double high, required(block, "high_freq_factor", 1e-6, 1e6, where));
  if (!(high > low)) {
    return Status(Code::kDataLoss, where +
                                       ": key 'high_freq_factor': expected more than "
                                       "low_freq_factor " +
                                       Json(low).dump() + ", found " + Json(high).dump());
  }
  if (!block.contains("original_max_position_embeddings")) {
    return Status(Code::kDataLoss,
                  where + ": the key 'original_max_position_embeddings' is missing");
  }
  SPECD_TRY(const int64_t original,
            json_int(block, "original_max_position_embeddings", 1, kPositionsMax, where));
  const auto context = static_cast<float>(original);
  const auto f = static_cast<float>(factor), l = static_cast<float>(low),
             h = static_cast<float>(high);
  for (float& inv : rope.inv_freq) {
    const float wavelength = 2 * kPi / inv;
    if (wavelength > context / l) {
      inv /= f;
    } else if (!(wavelength < context / h)) {
      const float smooth = (context / wavelength - l) / (h - l);
      inv = (1 - smooth) * inv / f + smooth * inv;
    }
  }
  return Status();
}

// The dimension that completes `rotations` turns within the original context.
double yarn_dimension(double rotations, int32_t head_dim, double theta, double original) {
  return head_dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
}

double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

Status scale_yarn(const Json& block, const std::string& where, int32_t head_dim, Rope& rope) {
  SPECD_TRY(const double factor, required(block, "factor", 1, 1e6, where));
  SPECD_TRY(const int64_t original, json_int_or(block, "original_max_position_embeddings",
                                                rope.max_positions, 1, kPositionsMax, where));
  SPECD_TRY(const double fast, json_double_or(block, "beta_fast", 32, 1e-6, 1e6, where));
  SPECD_TRY(const double slow, json_double_or(block, "beta_slow", 1, 1e-6, 1e6, where));
  if (fast < slow) {
    return Status(Code::kDataLoss, where + ": key 'beta_fast': expected at least beta_slow " +
                                       Json(slow).dump() + ", found " + Json(fast).dump());
  }
  SPECD_TRY(const double mscale, json_double_or(block, "mscale", 0, 0, 1e3, where));
  SPECD_TRY(const double mscale_all, json_double_or(block, "mscale_all_dim", 0, 0, 1e3, where));
  const double fallback = mscale > 0 && mscale_all > 0
                              ? yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all)
                              : yarn_scale(factor, 1);
  SPECD_TRY(const double attention,
            json_double_or(block, "attention_factor", fallback, 1e-3, 1e3, where));
  SPECD_TRY(const bool truncate, json_bool_or(block, "truncate", true, where));

  const auto context = static_cast<double>(original);
  double low = yarn_dimension(fast, head_dim, rope.theta, context);
  double high = yarn_dimension(slow, head_dim, rope.theta, context);
  if (truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;  // avoids division by zero
  const auto begin = static_cast<float>(low), range = static_cast<float>(high - low);
  for (size_t i = 0; i < rope.inv_freq.size(); ++i) {
    const float ramp = std::clamp((static_cast<float>(i) - begin) / range, 0.0f, 1.0f);
    const float interpolated =
        1.0f / (static_cast<float>(factor) * period(rope.theta, i, head_dim));
    rope.inv_freq[i] = interpolated * ramp + rope.inv_freq[i] * (1 - ramp);
  }
  rope.scale = static_cast<float>(attention);
  const double reach = std::max<double>(rope.max_positions, context * factor);
  rope.max_positions = static_cast<int32_t>(std::min<double>(reach, kPositionsMax));
  return Status();
}

}  // namespace

Result<Rope> read_rope(const Json& config, int32_t head_dim, int32_t max_positions,
                       const std::string& where) {
  const auto given = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && !found->is_null() && *found != Json::object();
  };
  if (given("rope_parameters") && given("rope_scaling") &&
      config["rope_parameters"] != config["rope_scaling"]) {
    return unsupported(where + ": key 'rope_scaling'", config["rope_scaling"],
                       "null beside 'rope_parameters', or the very same");
  }
  const char* key = given("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const std::string place = where + ": key '" + key + "'";
  const Json block = given(key) ? config[key] : Json::object();
  const std::string supported = "rope_type default, linear, llama3 or yarn";
  if (!block.is_object()) return unsupported(place, block, "null, or an object with " + supported);

  Rope rope;
  rope.max_positions = max_positions;
  const Json type = block.value("rope_type", block.value("type", Json("default")));
  const auto known = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                  [&](const Type& each) { return type == std::string(each.name); });
  if (known == std::end(kRopeTypes)) return unsupported(place, block, supported);
  rope.type = known->name;
  for (const auto& [name, value] : block.items()) {
    if (!has(kCommonKeys, name) && !has(known->keys, name) && !value.is_null()) {
      return unsupported(place + ", " + quote(name), value,
                         "this key is unknown for rope_type " + rope.type);
    }
  }
  SPECD_TRY(const double partial, json_double_or(block, "partial_rotary_factor", 1, place));
  if (partial != 1) return unsupported(place + ", 'partial_rotary_factor'", partial, "1");
  SPECD_TRY(rope.theta, json_double_or(config, "rope_theta", 10000.0, 1.001, 1e12, where));
  SPECD_TRY(rope.theta, json_double_or(block, "rope_theta", rope.theta, 1.001, 1e12, place));

  for (size_t i = 0; i < static_cast<size_t>(head_dim) / 2; ++i) {
    rope.inv_freq.push_back(1.0f / period(rope.theta, i, head_dim));
  }
  if (rope.type == "linear") {
    SPECD_TRY(const double factor, required(block, "factor", 1, 1e6, place));
    for (float& inv : rope.inv_freq) inv /= static_cast<float>(factor);
    rope.max_positions = static_cast<int32_t>(
        std::min<double>(max_positions * factor, static_cast<double>(kPositionsMax)));
  } else if (rope.type == "llama3") {
    SPECD_OK_OR_RETURN(scale_llama3(block, place, rope));
  } else if (rope.type == "yarn") {
    SPECD_OK_OR_RETURN(scale_yarn(block, place, head_dim, rope));
  }
  return rope;
}

}  // namespace specd
