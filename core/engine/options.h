// The meaning of engine options, and the checks that need no weights.
#pragma once

#include <cstdint>
#include <string>

#include "core/chat/chat_template.h"
#include "core/device/device.h"
#include "core/engine.h"
#include "core/model/split.h"
#include "core/spec/route_builder.h"

namespace specd {

const char* dtype_name(kernels::DType dtype);
const char* kv_dtype_name(KvDType dtype);
RouteTerms route_terms(const EngineOptions& options);
PluginRegistry::Options registry_options(const EngineOptions& options);
Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found);
Status check_range(const std::string& field, int64_t value, int64_t low, int64_t high);
// Error fields, as the configuration names them: "routes.NAME", "draft_models[0]".
std::string route_field(const std::string& name);
std::string draft_model_field(size_t index);
inline constexpr char kModelPath[] = "model.path";
int32_t n_ranks_of(const EngineOptions& options);
// Whether so many ranks with devices like this one can share the target.
Status check_ranks(const EngineOptions& options, const ModelConfig& config, const Device& device);
// Accepts names that logs and terminals can show: printable ASCII without spaces, at most 128
// bytes.
Status check_name(const std::string& field, const std::string& name);

}  // namespace specd
