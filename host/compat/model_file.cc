#include "host/compat/model_file.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/engine.h"
#include "host/compat/speculation.h"

namespace specd::host {
namespace {

using L = EngineLimits;

constexpr int64_t kPageTokens = 16;  // of `model.kv.pages`

YamlNode& section(YamlNode& root, const char* name) {
  return mapping_below(root, name, root.place);
}
YamlNode& kv_of(YamlNode& root) { return mapping_below(section(root, "model"), "kv", root.place); }

Status add_model(TheirMapping& theirs, ModelPlaces& places, YamlNode& root) {
  SPECD_TRY(const Value model, theirs.require("model"));
  SPECD_TRY(std::string folder, model_folder(model, theirs.find("revision"), places));
  put_node(section(root, "model"), text_node("path", std::move(folder), model.node.place));
  return Status();
}

// Several ranks have a GPU each, in both programs.
Status add_ranks(TheirMapping& theirs, YamlNode& root) {
  int64_t n_ranks = 1;
  std::optional<YamlPlace> place;
  const std::pair<const char*, int64_t> sizes[] = {{"tensor_parallel_size", L::kRanks},
                                                   {"pipeline_parallel_size", L::kStages}};
  for (const auto& [name, max] : sizes) {
    const Key key = whole_key(name, 1, max);
    SPECD_TRY(const std::optional<Value> size, theirs.find(name, key));
    if (!size) continue;
    SPECD_OK_OR_RETURN(theirs.carry(name, key, section(root, "engine")));
    n_ranks *= number_in(*size);
    if (number_in(*size) > 1) place = size->node.place;
  }
  if (!place) return Status();
  YamlNode devices = list_node("devices", *place);
  for (int64_t i = 0; i < n_ranks; ++i)
    devices.items.push_back(text_node("", "cuda:" + std::to_string(i), *place));
  put_node(root, std::move(devices));
  return Status();
}

// A value that is none of `words`, of a key whose meaning specd takes from elsewhere.
Status skip_value(const Value& found, const std::string& words, UnknownKeys& unknown) {
  if (unknown.are_errors) return found.error("expected " + words + ", found " + found.found());
  unknown.add(found, found.node.key_place);
  return Status();
}

// `auto` is what specd does without the key.
Status skip_auto(TheirMapping& theirs, const char* key, UnknownKeys& unknown) {
  const std::optional<Value> found = theirs.find(key);
  if (!found || found->node.value == "auto") return Status();
  return skip_value(*found, "auto, because specd takes it from the model", unknown);
}

// The type of the cache.
Status add_kv_dtype(TheirMapping& theirs, const char* key, UnknownKeys& unknown, YamlNode& root) {
  constexpr std::pair<std::string_view, const char*> kTypes[] = {
      {"fp8", "f8e4m3"}, {"fp8_e4m3", "f8e4m3"}, {"bfloat16", "bf16"}, {"float16", "f16"}};
  const std::optional<Value> found = theirs.find(key);
  if (!found || found->node.value == "auto") return Status();
  for (const auto& [word, ours] : kTypes) {
    if (found->node.value != word) continue;
    put_node(kv_of(root), text_node("dtype", ours, found->node.place));
    return Status();
  }
  return skip_value(*found, "auto, fp8, fp8_e4m3, bfloat16 or float16", unknown);
}

// How a checkpoint is quantized stands in its files. Other words of vLLM quantize while it loads.
Status skip_quantization(TheirMapping& theirs, UnknownKeys& unknown) {
  constexpr std::string_view kOfFiles[] = {"awq",         "awq_marlin", "gptq",
                                           "gptq_marlin", "auto-round", "compressed-tensors",
                                           "modelopt",    "fbgemm_fp8"};
  const std::optional<Value> found = theirs.find("quantization");
  if (!found || std::ranges::find(kOfFiles, found->node.value) != std::end(kOfFiles))
    return Status();
  return skip_value(*found, "the method of a checkpoint, which specd reads from its files",
                    unknown);
}

Status add_kv_cache(const Value& value, UnknownKeys& unknown, YamlNode& root) {
  SPECD_OK_OR_RETURN(TheirMapping::check(value));
  TheirMapping theirs(value);
  YamlNode& kv = kv_of(root);
  SPECD_TRY(const std::optional<Value> tokens,
            theirs.find("max_tokens", whole_key("max_tokens", 1, L::kKvPages * kPageTokens)));
  // The smaller of the two counts there; here only one may be given.
  const std::optional<Value> share = theirs.find("free_gpu_memory_fraction");
  if (tokens) {
    const int64_t pages = (number_in(*tokens) + kPageTokens - 1) / kPageTokens;
    put_node(kv, plain_node("pages", std::to_string(pages), tokens->node.place));
  } else if (share) {
    SPECD_OK_OR_RETURN(theirs.carry("free_gpu_memory_fraction", share_key("memory_share"), kv));
  }
  SPECD_OK_OR_RETURN(theirs.carry("enable_block_reuse", boolean_key("prefix_cache"), kv));
  SPECD_OK_OR_RETURN(add_kv_dtype(theirs, "dtype", unknown, root));
  return theirs.finish(unknown);
}

// The shapes of requests there; here both kinds are served.
Status check_triton(const Value& value, UnknownKeys& unknown) {
  SPECD_OK_OR_RETURN(TheirMapping::check(value));
  TheirMapping theirs(value);
  SPECD_OK_OR_RETURN(
      theirs.find("max_batch_size", whole_key("max_batch_size", 0, INT32_MAX)).status());
  SPECD_OK_OR_RETURN(theirs.find("decoupled", boolean_key("decoupled")).status());
  return theirs.finish(unknown);
}

}  // namespace

Status add_llm_api_model(const Value& file, ModelPlaces& places, UnknownKeys& unknown,
                         YamlNode& root) {
  SPECD_OK_OR_RETURN(TheirMapping::check(file));
  TheirMapping theirs(file);
  SPECD_OK_OR_RETURN(add_model(theirs, places, root));
  SPECD_OK_OR_RETURN(theirs.find("backend", text_key("backend")).status());  // theirs alone
  SPECD_OK_OR_RETURN(add_ranks(theirs, root));
  YamlNode& engine = section(root, "engine");
  SPECD_OK_OR_RETURN(
      theirs.carry("max_batch_size", whole_key("max_sequences", 1, L::kSequences), engine));
  SPECD_OK_OR_RETURN(
      theirs.carry("max_num_tokens", whole_key("step_tokens_max", 1, L::kStepTokens), engine));
  SPECD_OK_OR_RETURN(skip_auto(theirs, "dtype", unknown));
  if (const std::optional<Value> kv = theirs.find("kv_cache_config"))
    SPECD_OK_OR_RETURN(add_kv_cache(*kv, unknown, root));
  if (const std::optional<Value> triton = theirs.find("triton_config"))
    SPECD_OK_OR_RETURN(check_triton(*triton, unknown));
  if (const std::optional<Value> config = theirs.find("speculative_config")) {
    SPECD_TRY(Speculation speculation, llm_api_speculation(*config, places, unknown));
    add_speculation(std::move(speculation), root);
  }
  return theirs.finish(unknown);
}

Status add_vllm_model(const Value& file, ModelPlaces& places, UnknownKeys& unknown,
                      YamlNode& root) {
  SPECD_OK_OR_RETURN(TheirMapping::check(file));
  TheirMapping theirs(file);
  SPECD_OK_OR_RETURN(add_model(theirs, places, root));
  SPECD_OK_OR_RETURN(add_ranks(theirs, root));
  YamlNode& engine = section(root, "engine");
  SPECD_OK_OR_RETURN(
      theirs.carry("max_num_seqs", whole_key("max_sequences", 1, L::kSequences), engine));
  SPECD_OK_OR_RETURN(theirs.carry("max_num_batched_tokens",
                                  whole_key("step_tokens_max", 1, L::kStepTokens), engine));
  SPECD_OK_OR_RETURN(
      theirs.carry("enable_prefix_caching", boolean_key("prefix_cache"), kv_of(root)));
  SPECD_OK_OR_RETURN(add_kv_dtype(theirs, "kv_cache_dtype", unknown, root));
  SPECD_OK_OR_RETURN(skip_auto(theirs, "dtype", unknown));
  SPECD_OK_OR_RETURN(skip_quantization(theirs, unknown));
  const std::optional<Value> config = theirs.find("speculative_config");
  SPECD_TRY(std::optional<Speculation> speculation, old_vllm_speculation(theirs, places));
  if (config && speculation)
    return config->error("expected speculative_config or speculative_model, not both");
  if (config) {
    SPECD_TRY(speculation, [&]() -> Result<std::optional<Speculation>> {
      SPECD_TRY(Speculation made, vllm_speculation(*config, places, unknown));
      return std::optional<Speculation>(std::move(made));
    }());
  }
  if (speculation) add_speculation(std::move(*speculation), root);
  return theirs.finish(unknown);
}

}  // namespace specd::host
