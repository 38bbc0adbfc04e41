#include "core/model/model_config.h"

#include <algorithm>
#include <string_view>

#include "core/base/json.h"
#include "core/base/quote.h"

namespace specd {
namespace {

constexpr uint64_t kConfigBytesMax = 1u << 20;
constexpr int64_t kSizeMax = 1 << 20;
constexpr int64_t kCountMax = 4096;
constexpr int64_t kVocabMax = 1 << 24;

// What modeling_*.py and configuration_*.py of transformers fix for a family.
struct Family {
  enum class Window { kNone, kEveryLayer, kUpperLayers };
  const char* architecture;
  const char* model_type;
  bool qkv_bias;       // always; otherwise `attention_bias` decides for q, k, v and o
  bool may_have_bias;  // `attention_bias` may be true
  bool may_have_mlp_bias;
  bool head_norm;
  int64_t head_dim;  // default; 0 = hidden_size / heads
  Window window;
  bool needs_kv_heads;  // the default of num_key_value_heads fits one model size only
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", false, true, true, false, 0, Family::Window::kNone, false},
    {"MistralForCausalLM", "mistral", false, false, false, false, 0, Family::Window::kEveryLayer,
     true},
    {"Qwen2ForCausalLM", "qwen2", true, false, false, false, 0, Family::Window::kUpperLayers, true},
    {"Qwen3ForCausalLM", "qwen3", false, true, false, true, 128, Family::Window::kUpperLayers,
     true},
};

// Keys that are read below, and keys that do not affect the forward pass. Keys that start with '_'
// are metadata of tools.
constexpr std::string_view kKnownKeys[] = {
    "architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size", "rms_norm_eps",
    "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
    "tie_word_embeddings", "hidden_act", "attention_bias", "mlp_bias", "sliding_window",
    "use_sliding_window", "layer_types", "max_window_layers", "pretraining_tp", "use_mrope",
    "quantization_config", "compression_config", "bos_token_id", "eos_token_id", "rope_interleaved",
    "is_encoder_decoder", "add_cross_attention", "min_length",
    // no effect
    "pad_token_id", "unk_token_id", "attention_dropout", "hidden_dropout", "initializer_range",
    "use_cache", "torch_dtype", "dtype", "transformers_version", "chunk_size_feed_forward",
    "output_attentions", "output_hidden_states", "return_dict", "id2label", "label2id",
    "task_specific_params", "problem_type", "tokenizer_class", "auto_map", "is_decoder",
    "torchscript", "gradient_checkpointing", "max_sequence_length", "max_length", "finetuning_task",
    "sep_token_id", "is_llama_config", "transformers.js_config", "unsloth_fixed", "unsloth_version",
    // of heads in the same folder, see check_tensors()
    "medusa_num_heads", "medusa_num_layers"};

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

Result<const Family*> family_of(const Json& config, const std::string& where) {
  const Json architectures = config.value("architectures", Json());
  std::string names;
  for (const Family& family : kFamilies) {
    if (architectures == Json::array({family.architecture})) {
      SPECD_OK_OR_RETURN(require_value(config, "model_type", family.model_type, where));
      return &family;
    }
    names += (names.empty() ? "" : ", ") + Json::array({family.architecture}).dump();
  }
  return unsupported(where, "architectures", architectures, names);
}

Status check_unsupported(const Json& config, const Family& family, const std::string& where) {
  SPECD_OK_OR_RETURN(require_value(config, "hidden_act", "silu", where));
  if (!family.may_have_bias)
    SPECD_OK_OR_RETURN(require_value(config, "attention_bias", family.qkv_bias, where));
  if (!family.may_have_mlp_bias)
    SPECD_OK_OR_RETURN(require_value(config, "mlp_bias", false, where));
  // Tensor parallelism during training; no effect here.
  SPECD_OK_OR_RETURN(json_int_or(config, "pretraining_tp", 1, 1, kCountMax, where).status());
  SPECD_OK_OR_RETURN(require_value(config, "min_length", 0, where));
  for (const char* key :
       {"use_mrope", "rope_interleaved", "is_encoder_decoder", "add_cross_attention"}) {
    SPECD_OK_OR_RETURN(require_value(config, key, false, where));
  }
  for (const auto& [key, value] : config.items()) {
    const bool known =
        std::find(std::begin(kKnownKeys), std::end(kKnownKeys), key) != std::end(kKnownKeys);
    if (!known && !key.starts_with('_') && !value.is_null()) {
      return unsupported(where, key, value,
                         "this key is unknown for " + std::string(family.architecture) +
                             "; remove it if it changes nothing");
    }
  }
  return Status();
}

// Sets which layers have a window, and its size.
Status fill_window(const Json& config, const Family& family, const std::string& where,
                   ModelConfig& out) {
  const auto n_layers = static_cast<size_t>(out.n_layers);
  out.window.assign(n_layers, 0);
  bool used = family.window != Family::Window::kNone;
  if (family.window == Family::Window::kUpperLayers) {
    SPECD_TRY(used, json_bool_or(config, "use_sliding_window", false, where));
  } else {
    SPECD_OK_OR_RETURN(require_value(config, "use_sliding_window", false, where));
  }
  if (family.window == Family::Window::kNone)
    SPECD_OK_OR_RETURN(require_value(config, "sliding_window", Json(), where));
  int64_t size = 0;
  if (used && !(config.contains("sliding_window") && config["sliding_window"].is_null())) {
    SPECD_TRY(size, json_int_or(config, "sliding_window", 4096, 1, kPositionsMax, where));
  }
  size_t first = 0;  // the layers below attend to everything
  if (family.window == Family::Window::kUpperLayers) {
    SPECD_TRY(const int64_t lower,
              json_int_or(config, "max_window_layers", 28, 0, kCountMax, where));
    first = static_cast<size_t>(lower);
  }
  const Json types = config.value("layer_types", Json());
  if (types.is_null()) {
    for (size_t i = first; i < n_layers; ++i) out.window[i] = static_cast<int32_t>(size);
    return Status();
  }
  const std::string one = size == 0 ? "\"full_attention\""
                          : family.window == Family::Window::kEveryLayer
                              ? "\"sliding_attention\""
                              : "\"full_attention\" or \"sliding_attention\"";
  const std::string expected = "a list of " + std::to_string(n_layers) + " times " + one;
  if (!types.is_array() || types.size() != n_layers)
    return unsupported(where, "layer_types", types, expected);
  for (size_t i = 0; i < n_layers; ++i) {
    const bool sliding = types[i] == "sliding_attention";
    // Mistral's code reads sliding_window only.
    const bool ignored = family.window == Family::Window::kEveryLayer && sliding != (size > 0);
    if ((!(sliding && size > 0) && types[i] != "full_attention") || ignored)
      return unsupported(where, "layer_types", types, expected);
    if (sliding) out.window[i] = static_cast<int32_t>(size);
  }
  return Status();
}

Status fill_sizes(const Json& config, const Family& family, const std::string& where,
                  ModelConfig& out) {
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
  if (family.needs_kv_heads && !config.contains("num_key_value_heads")) {
    return Status(Code::kDataLoss, where + ": the key 'num_key_value_heads' is missing");
  }
  SPECD_TRY(const int64_t kv_heads,
            json_int_or(config, "num_key_value_heads", out.n_heads, 1, kCountMax, where));
  out.n_kv_heads = static_cast<int32_t>(kv_heads);
  if (out.n_heads % out.n_kv_heads != 0) {
    return Status(Code::kDataLoss,
                  where + ": key 'num_attention_heads': " + std::to_string(out.n_heads) +
                      " is not a multiple of num_key_value_heads " +
                      std::to_string(out.n_kv_heads));
  }
  const int64_t fallback = config.contains("head_dim") ? 0 : family.head_dim;
  SPECD_TRY(const int64_t head_dim, json_int_or(config, "head_dim", fallback, 1, kCountMax, where));
  if (head_dim == 0 && out.hidden_size % out.n_heads != 0) {
    return Status(Code::kDataLoss, where + ": key 'head_dim' is missing and hidden_size " +
                                       std::to_string(out.hidden_size) +
                                       " is not a multiple of num_attention_heads " +
                                       std::to_string(out.n_heads));
  }
  out.head_dim = head_dim == 0 ? out.hidden_size / out.n_heads : static_cast<int32_t>(head_dim);
  if (out.head_dim % 16 != 0) {
    return Status(Code::kUnsupported,
                  where +
                      (head_dim == 0 ? ": hidden_size / num_attention_heads" : ": key 'head_dim'") +
                      ": found " + std::to_string(out.head_dim) + ", supported: multiples of 16");
  }
  if (static_cast<int64_t>(out.n_heads) * out.head_dim > kSizeMax) {
    return Status(Code::kDataLoss,
                  where + ": num_attention_heads * head_dim is " +
                      std::to_string(static_cast<int64_t>(out.n_heads) * out.head_dim) +
                      ", expected at most " + std::to_string(kSizeMax));
  }
  return Status();
}

}  // namespace

Status read_eos_tokens(const Json& config, int32_t vocab_size, const std::string& where,
                       std::vector<int32_t>& out) {
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

Result<ModelConfig> load_model_config(const std::string& model_dir) {
  const std::string where = model_dir + "/config.json";
  SPECD_TRY(const Json config, parse_json_file(where, kConfigBytesMax));
  SPECD_TRY(ModelConfig out, read_model_config(config, where));
  SPECD_TRY(out.quantization, Quantization::read(config, model_dir));
  return out;
}

Result<ModelConfig> read_model_config(const Json& config, const std::string& where) {
  if (!config.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  SPECD_TRY(const Family* family, family_of(config, where));
  SPECD_OK_OR_RETURN(check_unsupported(config, *family, where));

  ModelConfig out;
  out.architecture = family->architecture;
  out.is_ballast = config.contains("_specd_ballast");
  SPECD_OK_OR_RETURN(fill_sizes(config, *family, where, out));
  SPECD_TRY(out.rms_norm_eps, json_double_or(config, "rms_norm_eps", 1e-6, where));
  if (!(out.rms_norm_eps > 0 && out.rms_norm_eps < 1)) {
    return Status(Code::kDataLoss,
                  where + ": key 'rms_norm_eps': expected above 0 and below 1, found " +
                      std::to_string(out.rms_norm_eps));
  }
  SPECD_TRY(out.rope, read_rope(config, out.head_dim, out.max_positions, where));
  out.max_positions = out.rope.max_positions;
  SPECD_OK_OR_RETURN(fill_window(config, *family, where, out));
  out.head_norm = family->head_norm;
  out.qkv_bias = family->qkv_bias;
  if (family->may_have_bias) {
    SPECD_TRY(out.o_bias, json_bool_or(config, "attention_bias", false, where));
    out.qkv_bias = out.o_bias;
  }
  SPECD_TRY(out.mlp_bias, json_bool_or(config, "mlp_bias", false, where));
  SPECD_TRY(out.tie_word_embeddings, json_bool_or(config, "tie_word_embeddings", false, where));
  SPECD_TRY(const int64_t bos,
            json_int_or(config, "bos_token_id", -1, 0, out.vocab_size - 1, where));
  out.bos_token = static_cast<int32_t>(bos);
  SPECD_OK_OR_RETURN(read_eos_tokens(config, out.vocab_size, where, out.eos_tokens));
  return out;
}

}  // namespace specd
