// What engine options mean, and what can be said about them without loading weights.
#pragma once

#include <cstdint>
#include <string>

#include "core/chat/chat_template.h"
#include "core/device/device.h"
#include "core/engine.h"
#include "core/spec/route_builder.h"

namespace specd {

kernels::DType kernel_dtype(KvDType dtype);
const char* dtype_name(kernels::DType dtype);
RouteTerms route_terms(const EngineOptions& options);
Status out_of_range(const std::string& field, const std::string& expected,
                    const std::string& found);
// Fields of errors, as the configuration names them: "routes.NAME", "draft_models[0]".
std::string route_field(const std::string& name);
std::string draft_model_field(size_t index);
inline constexpr char kModelPath[] = "model.path";
// Pages that the options ask for. `useful`: enough for full contexts of all sequences.
Result<int32_t> kv_pages_of(const ModelOptions& model, const Device& device, uint64_t page_bytes,
                            uint64_t useful);
// What logs and terminals can show: printable ASCII without spaces, at most 128 bytes.
Status check_name(const std::string& field, const std::string& name);

}  // namespace specd
