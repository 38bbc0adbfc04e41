#include "core/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "core/base/json.h"
#include "core/base/quote.h"

namespace specd {
namespace {

constexpr uint64_t kConfigBytesMax = 16u << 20;
constexpr int64_t kSizeMax = 1 << 20;
constexpr int64_t kCountMax = 4096;
constexpr int64_t kVocabMax = 1 << 24;
constexpr int64_t kPositionsMax = 1 << 28;
constexpr const char* kArchitecture = "LlamaForCausalLM";

// Read below, or without influence on the forward pass. Keys that start with '_' are notes of
// tools.
constexpr std::string_view kKnownKeys[] = {
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
    "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "layer_types", "pretraining_tp", "bos_token_id", "eos_token_id",
    // without influence
    "pad_token_id", "unk_token_id", "attention_dropout", "hidden_dropout", "initializer_range",
    "use_cache", "torch_dtype", "dtype", "transformers_version", "max_window_layers",
    "chunk_size_feed_forward", "output_attentions", "output_hidden_states", "return_dict",
    "id2label", "label2id", "task_specific_params", "problem_type", "tokenizer_class", "auto_map"};

Status unsupported(const std::string& where, std::string_view key, const Json& found,
                   const std::string& supported) {
  return Status(Code::kUnsupported, where + ": key " + quote(key) + ": found " +
                                        quote(found.dump(-1, ' ', true)) +
                                        ", supported: " + supported);
}

// The key must be absent, null or equal to `only`.
Status require_value(const Json& config, const char* key, const Json& only,
                     const std::string& where) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null() || *found == only) return Status();
  return unsupported(where, key, *found, only.is_null() ? "null" : only.dump());
}

Status check_unsupported(const Json& config, const std::string& where) {
  const auto architectures = config.find("architectures");
  if (architectures == config.end() || *architectures != Json::array({kArchitecture})) {
    return unsupported(where, "architectures",
                       architectures == config.end() ? Json() : *architectures,
                       Json::array({kArchitecture}).dump());
  }
  SPECD_OK_OR_RETURN(require_value(config, "model_type", "llama", where));
  SPECD_OK_OR_RETURN(require_value(config, "hidden_act", "silu", where));
  SPECD_OK_OR_RETURN(require_value(config, "attention_bias", false, where));
  SPECD_OK_OR_RETURN(require_value(config, "mlp_bias", false, where));
  SPECD_OK_OR_RETURN(require_value(config, "sliding_window", Json(), where));
  SPECD_OK_OR_RETURN(require_value(config, "use_sliding_window", false, where));
  SPECD_OK_OR_RETURN(require_value(config, "pretraining_tp", 1, where));
  if (const auto types = config.find("layer_types"); types != config.end() && !types->is_null()) {
    const bool full =
        types->is_array() && std::all_of(types->begin(), types->end(),
                                         [](const Json& type) { return type == "full_attention"; });
    if (!full)
      return unsupported(where, "layer_types", *types, "\"full_attention\" in every layer");
  }
  for (const auto& [key, value] : config.items()) {
    const bool known =
        std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    if (!known && !key.starts_with('_') && !value.is_null()) {
      return unsupported(where, key, value,
                         "this key is unknown for " + std::string(kArchitecture) +
                             "; remove it if it changes nothing");
    }
  }
  return Status();
}

// A rope block ("rope_scaling", "rope_parameters") that scales nothing; theta may stand in it.
Result<double> rope_theta_of(const Json& config, const char* key, double fallback,
                             const std::string& where) {
  const auto block = config.find(key);
  if (block == config.end() || block->is_null()) return fallback;
  const std::string supported = "null, or {\"rope_type\": \"default\", \"rope_theta\": ...}";
  if (!block->is_object()) return unsupported(where, key, *block, supported);
  for (const auto& [name, value] : block->items()) {
    const bool type_key = name == "rope_type" || name == "type";
    if (type_key ? value != "default" : name != "rope_theta") {
      return unsupported(where, key, *block, supported);
    }
  }
  return json_double_or(*block, "rope_theta", fallback, where + ", " + key);
}

Status fill_sizes(const Json& config, const std::string& where, ModelConfig& out) {
  const auto size = [&](const char* key, int64_t max, int32_t& to) -> Status {
    SPECD_TRY(const int64_t value, json_int(config, key, 1, max, where));
    to = static_cast<int32_t>(value);
    return Status();
  };
  SPECD_OK_OR_RETURN(size("hidden_size", kSizeMax, out.hidden_size));
  SPECD_OK_OR_RETURN(size("intermediate_size", kSizeMax, out.intermediate_size));
  SPECD_OK_OR_RETURN(size("num_hidden_layers", kCountMax, out.n_layers));
  SPECD_OK_OR_RETURN(size("num_attention_heads", kCountMax, out.n_heads));
  SPECD_OK_OR_RETURN(size("vocab_size", kVocabMax, out.vocab_size));
  SPECD_OK_OR_RETURN(size("max_position_embeddings", kPositionsMax, out.max_positions));
  SPECD_TRY(const int64_t kv_heads,
            json_int_or(config, "num_key_value_heads", out.n_heads, 1, kCountMax, where));
  out.n_kv_heads = static_cast<int32_t>(kv_heads);
  if (out.n_heads % out.n_kv_heads != 0) {
    return Status(Code::kDataLoss,
                  where + ": key 'num_attention_heads': " + std::to_string(out.n_heads) +
                      " is not a multiple of num_key_value_heads " +
                      std::to_string(out.n_kv_heads));
  }
  SPECD_TRY(const int64_t head_dim, json_int_or(config, "head_dim", 0, 1, kCountMax, where));
  if (head_dim == 0 && out.hidden_size % out.n_heads != 0) {
    return Status(Code::kDataLoss, where + ": key 'head_dim' is missing and hidden_size " +
                                       std::to_string(out.hidden_size) +
                                       " is not a multiple of num_attention_heads " +
                                       std::to_string(out.n_heads));
  }
  out.head_dim = head_dim == 0 ? out.hidden_size / out.n_heads : static_cast<int32_t>(head_dim);
  if (out.head_dim % 16 != 0) {
    return Status(Code::kUnsupported, where + ": key 'head_dim': found " +
                                          std::to_string(out.head_dim) +
                                          ", supported: multiples of 16");
  }
  if (static_cast<int64_t>(out.n_heads) * out.head_dim > kSizeMax) {
    return Status(Code::kDataLoss,
                  where + ": num_attention_heads * head_dim is " +
                      std::to_string(static_cast<int64_t>(out.n_heads) * out.head_dim) +
                      ", expected at most " + std::to_string(kSizeMax));
  }
  return Status();
}

// Puts the ids of an integer or a list in `out`; leaves it alone when the key is absent or null.
Status fill_eos(const Json& config, int32_t vocab_size, const std::string& where,
                std::vector<int32_t>& out) {
  if (!config.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  const auto found = config.find("eos_token_id");
  if (found == config.end() || found->is_null()) return Status();
  const Json list = found->is_array() ? *found : Json::array({*found});
  out.clear();
  for (const Json& id : list) {
    SPECD_TRY(const int64_t value,
              json_int(Json{{"eos_token_id", id}}, "eos_token_id", 0, vocab_size - 1, where));
    out.push_back(static_cast<int32_t>(value));
  }
  return Status();
}

}  // namespace

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  const std::string where = model_dir + "/config.json";
  SPECD_TRY(const Json config, parse_json_file(where, kConfigBytesMax));
  if (!config.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  SPECD_OK_OR_RETURN(check_unsupported(config, where));

  ModelConfig out;
  out.architecture = kArchitecture;
  out.is_ballast = config.contains("_specd_ballast");
  SPECD_OK_OR_RETURN(fill_sizes(config, where, out));
  SPECD_TRY(out.rms_norm_eps, json_double_or(config, "rms_norm_eps", 1e-6, where));
  if (!(out.rms_norm_eps > 0 && out.rms_norm_eps < 1)) {
    return Status(Code::kDataLoss,
                  where + ": key 'rms_norm_eps': expected above 0 and below 1, found " +
                      std::to_string(out.rms_norm_eps));
  }
  SPECD_TRY(double theta, json_double_or(config, "rope_theta", 10000.0, where));
  SPECD_TRY(theta, rope_theta_of(config, "rope_scaling", theta, where));
  SPECD_TRY(theta, rope_theta_of(config, "rope_parameters", theta, where));
  if (!(theta >= 1 && theta <= 1e12)) {
    return Status(Code::kDataLoss, where + ": key 'rope_theta': expected from 1 to 1e12, found " +
                                       std::to_string(theta));
  }
  out.rope_theta = theta;
  SPECD_TRY(out.tie_word_embeddings, json_bool_or(config, "tie_word_embeddings", false, where));
  SPECD_TRY(const int64_t bos,
            json_int_or(config, "bos_token_id", -1, 0, out.vocab_size - 1, where));
  out.bos_token = static_cast<int32_t>(bos);
  SPECD_OK_OR_RETURN(fill_eos(config, out.vocab_size, where, out.eos_tokens));

  const std::string generation_path = model_dir + "/generation_config.json";
  const Result<Json> generation = parse_json_file(generation_path, kConfigBytesMax);
  if (generation.ok()) {
    SPECD_OK_OR_RETURN(
        fill_eos(generation.value(), out.vocab_size, generation_path, out.eos_tokens));
  } else if (generation.status().code() != Code::kNotFound) {
    return generation.status();
  }
  return out;
}

}  // namespace specd
