// Between quantization.cc, which finds the description of a checkpoint, and the readers of each maker's keys.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/model/name_pattern.h"
#include "core/model/quantization.h"
#include "core/text/step_budget.h"

namespace specd {

struct QuantizationRules {
  std::string name;
  std::vector<MatrixFormat> formats;
  std::map<std::string, size_t, std::less<>> format_of;  // by module: its place in `formats`
  bool tensors_decide = false;
  KvFormat kv;
};

// A description, and the modules that it may quantize.
struct QuantizationSource {
  Json block;
  std::string where;  // file and keys
  int64_t n_layers = 0;
  // Of a model: the layers' seven each, and lm_head unless it is the embedding. Of other files: what they have.
  std::vector<std::string> modules;
  // Of all patterns on all modules, 40 million steps: at most a third of a second.
  StepBudget budget{192 << 10};
};

constexpr int64_t kGroupMax = 1 << 20;

// The value of a key, null when it is absent.
const Json& at_or_null(const Json& object, const char* key);
// The string of a key in small letters, `fallback` when it is absent or null.
Result<std::string> word_or(const Json& block, const char* key, const std::string& fallback,
                            const std::string& where);
// where + ": key 'x'": the place of a value inside an object.
std::string key_place(const std::string& where, std::string_view key);
// "key 'x': found 'y', supported: z"
Status unsupported_value(const std::string& where, std::string_view key, const Json& found,
                         const std::string& supported);
// The strings of a list; none when it is absent or null. Fails with kDataLoss on one that names a layer behind
// the model's last one.
Result<std::vector<std::string>> read_module_names(const QuantizationSource& from,
                                                   const Json& object, const char* key,
                                                   const std::string& where);
// Each reads the description of one maker. quantization_methods.cc, and compressed_tensors.cc:
Status read_modelopt(QuantizationSource& from, QuantizationRules& out);
Status read_fbgemm(QuantizationSource& from, QuantizationRules& out);
Status read_fp8(QuantizationSource& from, QuantizationRules& out);
Status read_awq(QuantizationSource& from, QuantizationRules& out);
Status read_gptq(QuantizationSource& from, QuantizationRules& out);
Status read_auto_round(QuantizationSource& from, QuantizationRules& out);
Status read_compressed_tensors(QuantizationSource& from, QuantizationRules& out);
// The arguments that compressed-tensors writes as kv_cache_scheme, or `word`; absent or null: none.
Result<KvFormat> read_kv_scheme(const Json& object, std::string_view word,
                                const std::string& where);

}  // namespace specd
