#include "core/model/generation_config.h"

#include "core/base/quote.h"
#include "core/model/model_config.h"

namespace specd {
namespace {

constexpr uint64_t kFileBytesMax = 1u << 20;

// A key that GenerationMixin of transformers reads and specd does not, with the value that has
// no effect.
struct Neutral {
  const char* key;
  Json value;
};
const std::vector<Neutral>& unsupported_keys() {
  static const std::vector<Neutral> keys = {{"num_beams", 1},
                                            {"epsilon_cutoff", 0.0},
                                            {"eta_cutoff", 0.0},
                                            {"penalty_alpha", 0.0},
                                            {"top_h", nullptr},
                                            {"encoder_repetition_penalty", 1.0},
                                            {"no_repeat_ngram_size", 0},
                                            {"bad_words_ids", nullptr},
                                            {"sequence_bias", nullptr},
                                            {"suppress_tokens", nullptr},
                                            {"begin_suppress_tokens", nullptr},
                                            {"forced_bos_token_id", nullptr},
                                            {"forced_eos_token_id", nullptr},
                                            {"guidance_scale", 1.0},
                                            {"min_length", 0},
                                            {"min_new_tokens", 0},
                                            {"encoder_no_repeat_ngram_size", 0},
                                            {"watermarking_config", nullptr},
                                            {"stop_strings", nullptr},
                                            {"remove_invalid_values", false},
                                            {"exponential_decay_length_penalty", nullptr},
                                            {"dola_layers", nullptr}};
  return keys;
}

// Shortened for a log line.
std::string shown(const Json& value) {
  const std::string text = value.dump(-1, ' ', true);
  return text.size() <= 80 ? text : text.substr(0, 77) + "...";
}

std::string path_in(const std::string& model_dir) { return model_dir + "/generation_config.json"; }

// Returns null when there is no file.
Result<Json> read_file(const std::string& path) {
  Result<Json> file = parse_json_file(path, kFileBytesMax);
  if (file.status().code() == Code::kNotFound && !path_exists(path)) return Json();
  if (!file.ok() || file.value().is_object()) return file;
  return Status(Code::kDataLoss, path + ": expected a JSON object");
}

}  // namespace

Result<GenerationConfig> load_generation_config(const std::string& model_dir) {
  SPECD_TRY(const Json config, read_file(path_in(model_dir)));
  if (config.is_null()) return GenerationConfig();
  return read_generation_config(config, path_in(model_dir));
}

Status load_eos_tokens(const std::string& model_dir, int32_t vocab_size,
                       std::vector<int32_t>& eos_tokens) {
  SPECD_TRY(const Json config, read_file(path_in(model_dir)));
  if (config.is_null()) return Status();
  return read_eos_tokens(config, vocab_size, path_in(model_dir), eos_tokens);
}

Result<GenerationConfig> read_generation_config(const Json& config, const std::string& where) {
  if (!config.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  GenerationConfig out;
  const auto number = [&](const char* key, double fallback, double low, double high,
                          float& to) -> Status {
    SPECD_TRY(const double value, json_double_or(config, key, fallback, low, high, where));
    to = static_cast<float>(value);
    return Status();
  };
  SPECD_OK_OR_RETURN(number("repetition_penalty", 1, 0.01, 100, out.repetition_penalty));
  SPECD_TRY(const bool sample, json_bool_or(config, "do_sample", false, where));
  if (sample) {
    SPECD_OK_OR_RETURN(number("temperature", 1, 0, 100, out.temperature));
    if (out.temperature < 0.01f) out.temperature = 0;  // softmax at lower temperatures is argmax
  }
  SPECD_OK_OR_RETURN(number("top_p", 1, 0, 1, out.top_p));
  if (out.top_p == 0) out.top_p = 1e-6f;  // keeps only the most likely token
  SPECD_OK_OR_RETURN(number("min_p", 0, 0, 1, out.min_p));
  SPECD_OK_OR_RETURN(number("typical_p", 1, 0, 1, out.typical_p));
  if (out.typical_p == 0) out.typical_p = 1e-6f;  // keeps only the most typical token
  SPECD_TRY(const int64_t top_k, json_int_or(config, "top_k", 0, 0, INT32_MAX, where));
  out.top_k = static_cast<int32_t>(top_k);
  for (const Neutral& each : unsupported_keys()) {
    const auto found = config.find(each.key);
    if (found == config.end() || found->is_null() || *found == each.value) continue;
    out.ignored.push_back(std::string(each.key) + " " + shown(*found));
  }
  return out;
}

}  // namespace specd
