// What a model looks like to Triton's clients: its name and version, and the tensors it takes and gives. One table for
// metadata, configuration and requests, over HTTP and gRPC. The names are those of the LLM API backend of TensorRT-LLM
// (triton_backend/all_models/llmapi/tensorrt_llm/config.pbtxt), the same without `sampling_param_` as vLLM's backend has
// them, and those that genai-perf sends (perf_analyzer refuses an input that the model does not declare).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace specd::host {

enum class Datatype { kBool, kInt32, kUint64, kFp32, kBytes };

// In tensors ("BYTES"), and in a model's configuration ("TYPE_STRING").
const char* datatype_name(Datatype type);
const char* datatype_config_name(Datatype type);

struct TensorSpec {
  const char* name;
  Datatype type;
  bool is_list = false;  // shape [-1], else [1]

  int64_t dim() const { return is_list ? -1 : 1; }
};

inline constexpr char kTextInput[] = "text_input";  // the only input that a request needs
std::span<const TensorSpec> infer_inputs();
// Every output is one text, as the LLM API backend writes even its numbers: BYTES [1].
std::span<const char* const> infer_outputs();

// Nothing when the model has no such input.
const TensorSpec* find_input(std::string_view name);

inline constexpr char kTritonBackend[] = "specd";
// Of the protocol; perf_analyzer asks for statistics only where they are listed.
std::span<const char* const> triton_extensions();

// How the model is called.
struct TritonModel {
  std::string name, version;

  // kNotFound in Triton's words. An empty version is the only one there is.
  Status check(std::string_view name, std::string_view version) const;
};

}  // namespace specd::host
