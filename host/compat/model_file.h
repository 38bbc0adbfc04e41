// The file that configures a model in Triton's repository becomes part of our configuration: the
// model's folder, ranks, limits, the cache of keys and values, and a route.
#pragma once

#include "host/compat/model_names.h"
#include "host/compat/their_mapping.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

// model.yaml: the arguments of TensorRT-LLM's LLM(), and `triton_config`. `root` is a mapping.
Status add_llm_api_model(const Value& file, ModelPlaces& places, UnknownKeys& unknown,
                         YamlNode& root);

// model.json: the arguments of vLLM's engine.
Status add_vllm_model(const Value& file, ModelPlaces& places, UnknownKeys& unknown, YamlNode& root);

}  // namespace specd::host
