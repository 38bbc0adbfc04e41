// A method of speculation as TensorRT-LLM and vLLM write it becomes a route, and for a draft model
// an item of `draft_models`. The tokens are those of plain decoding: the verifier is
// specd.verifier.match, whatever the method.
#pragma once

#include <optional>
#include <string>

#include "host/compat/model_names.h"
#include "host/compat/their_mapping.h"
#include "host/config/yaml_reader.h"

namespace specd::host {

struct Speculation {
  YamlNode route;  // its key is its name
  std::optional<YamlNode> draft_model = {};
};

// `speculative_config` of the LLM API: decoding_type, max_draft_len, speculative_model, and what
// the method has beside them. kInvalidArgument, with the place, for a method without a plugin
// (naming those that have one), a wrong type or range, and a model that is not there.
Result<Speculation> llm_api_speculation(const Value& value, ModelPlaces& places,
                                        UnknownKeys& unknown);

// vLLM's --speculative-config, and `speculative_config` of the vLLM backend's model.json.
Result<Speculation> vllm_speculation(const Value& value, ModelPlaces& places, UnknownKeys& unknown);
// The older form: keys such as speculative_model among those of the engine, in `all`. None where
// they name no model. What it does not know stays unknown in `all`.
Result<std::optional<Speculation>> old_vllm_speculation(TheirMapping& all, ModelPlaces& places);

// The route is the default one from here on, and replaces one of the same name.
void add_speculation(Speculation speculation, YamlNode& root);

// ---- for the two dialects -----------------------------------------------------------------------

// A route under the plugin's own name, "eagle3" for specd.drafter.eagle3. `place` is that of the
// method.
class RouteMaker {
 public:
  RouteMaker(const std::string& drafter, const YamlPlace& place);

  YamlNode& route() { return route_; }
  YamlNode& config();  // of the drafter
  void set_nodes_max(int64_t nodes, const YamlPlace& place);
  // An item of `draft_models` with this folder; the drafter uses it.
  YamlNode& use_draft_model(const std::string& folder, const YamlPlace& place);
  void use_weights(const std::string& folder, const YamlPlace& place);
  // A chain of as many guesses as `value`, a whole number, says; `key` is the drafter's.
  void set_chain(const char* key, const Value& value);

  Speculation take() && {
    return {.route = std::move(route_), .draft_model = std::move(draft_model_)};
  }

 private:
  YamlPlace place_;
  YamlNode route_;
  std::optional<YamlNode> draft_model_;
};

// A whole number that was checked.
int64_t number_in(const Value& value);

// The word as methods are compared: lower case, without '_' and '-'.
std::string plain_word(const std::string& word);

}  // namespace specd::host
