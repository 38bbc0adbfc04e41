// Rotation frequencies of a head, from its config.json.
//
// Source: transformers, modeling_rope_utils.py (default, linear, llama3), in float32 as there.
#ifndef SPECD_SDK_ROPE_H
#define SPECD_SDK_ROPE_H

#include <specd/sdk/config.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace specd::sdk {

// [head_dim / 2]. `at`: where the layer's keys are, "" or "transformer_layer_config.". Throws for a
// type of scaling that is none of these.
inline std::vector<float> rope_frequencies(const Config& config, const std::string& at,
                                           int64_t head_dim) {
  const auto key = [&](const char* name) { return at + name; };
  const bool is_new = config.has(key("rope_parameters").c_str());
  const std::string group = key(is_new ? "rope_parameters." : "rope_scaling.");
  const bool is_inside = config.has((group + "rope_theta").c_str());
  const std::string theta_key = is_inside ? group + "rope_theta" : key("rope_theta");
  const double theta = config.f64(theta_key.c_str(), 10000, 1e-3, 1e12);
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    inv_freq.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  std::string type = "default", type_key = "rope_type";
  for (const char* name : {"type", "rope_type"}) {
    if (!config.has((group + name).c_str())) continue;
    type = config.string((group + name).c_str(), type);
    type_key = name;
  }
  if (type == "default") return inv_freq;
  const auto number = [&](const char* name, double otherwise) {
    return static_cast<float>(config.f64((group + name).c_str(), otherwise, 1e-6, 1e12));
  };
  const float factor = number("factor", 1);
  if (type == "linear") {
    for (float& each : inv_freq) each /= factor;
    return inv_freq;
  }
  if (type != "llama3") {
    throw Error(SPECD_E_CONFIG,
                group + type_key + ": '" + type + "', expected default, linear or llama3");
  }
  const float low = number("low_freq_factor", 1), high = number("high_freq_factor", 4),
              length = number("original_max_position_embeddings", 8192);
  for (float& each : inv_freq) {
    const float wave = 2 * static_cast<float>(3.14159265358979323846) / each;
    if (wave < length / high) continue;
    if (wave > length / low) {
      each /= factor;
      continue;
    }
    const float smooth = (length / wave - low) / (high - low);
    each = (1 - smooth) * each / factor + smooth * each;
  }
  return inv_freq;
}

}  // namespace specd::sdk

#endif
