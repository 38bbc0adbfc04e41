// decoding_type of TensorRT-LLM's LLM API (tensorrt_llm/llmapi/llm_args.py, *DecodingConfig).
#include <algorithm>
#include <utility>

#include "core/base/quote.h"
#include "core/base/words.h"
#include "core/engine.h"
#include "host/compat/head_kind.h"
#include "host/compat/speculation.h"

namespace specd::host {
namespace {

constexpr char kLength[] = "max_draft_len";
constexpr char kEngineTakes[] = "what the engine takes";

// Everything that one method reads.
struct LlmApiMethod {
  TheirMapping& theirs;
  const Value& type;
  ModelPlaces& places;

  const YamlPlace& place() const { return type.node.place; }

  // How many tokens or levels; older files give it other names.
  Result<Value> read_length(int64_t min, int64_t max, const char* old = kLength) const {
    const std::optional<Value> found = theirs.find_any({kLength, old});
    if (!found) return theirs.require(kLength);
    SPECD_OK_OR_RETURN(read_value(whole_key(kLength, min, max), *found));
    return *found;
  }
  struct Model {
    Value value;
    std::string folder;
  };
  Result<Model> read_model() const {
    const std::optional<Value> found =
        theirs.find_any({"speculative_model", "speculative_model_dir", "pytorch_weights_path"});
    if (!found) return theirs.require("speculative_model").status();
    SPECD_TRY(std::string folder, model_folder(*found, theirs.find("revision"), places));
    return Model{.value = *found, .folder = std::move(folder)};
  }
  // A tree that grows, as in EAGLE-2.
  Status set_growing_tree(RouteMaker& maker) const;
  Result<RouteMaker> eagle_of(bool is_eagle3) const;

  Result<RouteMaker> draft_target() const;
  Result<RouteMaker> eagle() const { return eagle_of(false); }
  Result<RouteMaker> eagle3() const { return eagle_of(true); }
  Result<RouteMaker> lookahead() const;
  Result<RouteMaker> medusa() const;
  Result<RouteMaker> ngram() const;
  Result<RouteMaker> redrafter() const;
};

Result<RouteMaker> LlmApiMethod::draft_target() const {
  RouteMaker maker("draft_target", place());
  SPECD_TRY(const Value length, read_length(1, 64));
  SPECD_TRY(const LlmApiMethod::Model model, read_model());
  maker.use_draft_model(model.folder, model.value.node.place);
  maker.set_chain("draft_tokens", length);
  return maker;
}

// A tree of fixed paths, as many nodes as paths and at most `nodes_max`, which `said_by` says.
Status set_choices(const Value& choices, int64_t nodes_max, const std::string& said_by,
                   RouteMaker& maker) {
  if (choices.node.kind != YamlNode::Kind::kSequence || choices.node.items.empty())
    return choices.not_expected("a list of paths such as [[0], [0, 0], [1]]");
  const int64_t nodes = std::ssize(choices.node.items);
  if (nodes > nodes_max)
    return choices.error("expected at most " + std::to_string(nodes_max) + " paths, " + said_by +
                         ", found " + std::to_string(nodes) + "; leave out the least likely");
  YamlNode node = choices.node;
  node.key = "choices";
  put_node(maker.config(), std::move(node));
  maker.set_nodes_max(nodes, choices.node.place);
  return Status();
}

Status LlmApiMethod::set_growing_tree(RouteMaker& maker) const {
  constexpr int64_t kNodesMax = EngineLimits::kDraftNodes;
  SPECD_TRY(const Value length, read_length(2, 64));
  SPECD_OK_OR_RETURN(theirs.require("dynamic_tree_max_topK").status());
  SPECD_OK_OR_RETURN(
      theirs.carry("dynamic_tree_max_topK", whole_key("top_k", 1, 64), maker.config()));
  SPECD_TRY(const Value nodes, theirs.require("max_total_draft_tokens"));
  SPECD_OK_OR_RETURN(read_value(whole_key("nodes", 1, kNodesMax), nodes));
  // The drafter counts the levels behind the first, and the root as a node.
  const auto set = [&](const char* key, int64_t number, const Value& from) {
    put_node(maker.config(), plain_node(key, std::to_string(number), from.node.place));
  };
  put_node(maker.config(), text_node("mode", "dynamic", place()));
  set("depth", number_in(length) - 1, length);
  set("total_token", number_in(nodes) + 1, nodes);
  maker.set_nodes_max(number_in(nodes), nodes.node.place);
  return Status();
}

Result<RouteMaker> LlmApiMethod::eagle_of(bool is_eagle3) const {
  SPECD_TRY(const LlmApiMethod::Model model, read_model());
  if (!is_eagle3) {  // TensorRT-LLM gives both names to EAGLE-3
    auto head = head_in(model.folder, model.value.node.value);
    if (!head.ok()) return model.value.error(head.status().text());
    is_eagle3 = head.value().kind == HeadKind::kEagle3;
  }
  RouteMaker maker(is_eagle3 ? "eagle3" : "eagle", place());
  maker.use_weights(model.folder, model.value.node.place);
  theirs.find("eagle3_one_model");  // how it runs there
  SPECD_TRY(const std::optional<Value> dynamic,
            theirs.find("use_dynamic_tree", boolean_key("use_dynamic_tree")));
  const std::optional<Value> choices = theirs.find("eagle_choices");
  SPECD_TRY(const bool is_dynamic, [&]() -> Result<bool> {
    if (!dynamic) return false;
    SPECD_TRY(const Json json, yaml_to_json(*dynamic));
    return json.get<bool>();
  }());
  if (is_dynamic && choices)
    return choices->error("expected no fixed tree beside use_dynamic_tree");
  if (is_dynamic) {
    SPECD_OK_OR_RETURN(set_growing_tree(maker));
  } else if (choices) {
    theirs.find(kLength);  // the paths say it
    put_node(maker.config(), text_node("mode", "static", place()));
    SPECD_OK_OR_RETURN(set_choices(*choices, EngineLimits::kDraftNodes, kEngineTakes, maker));
  } else {
    theirs.find("max_total_draft_tokens");  // that of a chain is its length
    SPECD_TRY(const Value length, read_length(1, 64));
    put_node(maker.config(), text_node("mode", "chain", place()));
    maker.set_chain("draft_tokens", length);
  }
  if (const auto layers = theirs.find("eagle3_layers_to_capture"); is_eagle3 && layers) {
    YamlNode node = layers->node;
    node.key = "layer_ids";
    put_node(maker.config(), std::move(node));
    put_node(maker.config(), text_node("layer_ids_are", "outputs", layers->node.place));
  }
  return maker;
}

Result<RouteMaker> LlmApiMethod::medusa() const {
  constexpr int64_t kPublishedTree = 63;  // nodes of mc_sim_7b_63, the drafter's own
  RouteMaker maker("medusa", place());
  SPECD_TRY(const LlmApiMethod::Model model, read_model());
  maker.use_weights(model.folder, model.value.node.place);
  SPECD_TRY(const std::optional<Value> nodes,
            theirs.find(kLength, whole_key(kLength, 1, EngineLimits::kDraftNodes)));
  const std::optional<Value> choices = theirs.find("medusa_choices");
  if (choices) {
    SPECD_OK_OR_RETURN(
        nodes ? set_choices(*choices, number_in(*nodes), "which max_draft_len says", maker)
              : set_choices(*choices, EngineLimits::kDraftNodes, kEngineTakes, maker));
  } else {
    maker.set_nodes_max(nodes ? number_in(*nodes) : kPublishedTree,
                        nodes ? nodes->node.place : place());
  }
  return maker;
}

Result<RouteMaker> LlmApiMethod::lookahead() const {
  RouteMaker maker("lookahead", place());
  // The drafter's keys have the same names; as many nodes as its settings.h says.
  const std::pair<const char*, int64_t> sizes[] = {
      {"max_window_size", 4}, {"max_ngram_size", 3}, {"max_verification_set_size", 4}};
  int64_t size[3] = {};
  for (size_t i = 0; i < std::size(sizes); ++i) {
    const auto& [key, otherwise] = sizes[i];
    SPECD_TRY(const std::optional<Value> found, theirs.find(key, whole_key(key, 1, 65)));
    size[i] = found ? number_in(*found) : otherwise;
    put_node(maker.config(),
             plain_node(key, std::to_string(size[i]), found ? found->node.place : place()));
  }
  theirs.find(kLength);  // follows from the sizes
  const int64_t levels = size[1] - 1;
  int64_t nodes = (size[0] + size[2]) * levels - 1;
  for (int64_t filled = 1; filled <= levels; ++filled)
    nodes = std::max(nodes, filled * (size[0] + levels - filled) - 1);
  maker.set_nodes_max(std::clamp<int64_t>(nodes, 1, EngineLimits::kDraftNodes), place());
  return maker;
}

Result<RouteMaker> LlmApiMethod::ngram() const {
  RouteMaker maker("prompt_lookup", place());
  SPECD_TRY(const Value length, read_length(1, 64, "prompt_lookup_num_tokens"));
  maker.set_chain("max_draft_len", length);
  SPECD_OK_OR_RETURN(theirs.carry("max_matching_ngram_size",
                                  whole_key("max_matching_ngram_size", 1, 16), maker.config()));
  for (const char* key : {"is_keep_all", "is_use_oldest", "is_public_pool"})
    SPECD_OK_OR_RETURN(theirs.carry(key, boolean_key(key), maker.config()));
  return maker;
}

Result<RouteMaker> LlmApiMethod::redrafter() const {
  constexpr int64_t kBeams = 5;  // the drafter's default
  RouteMaker maker("redrafter", place());
  SPECD_TRY(const Value length, read_length(1, 16));
  SPECD_TRY(const LlmApiMethod::Model model, read_model());
  maker.use_weights(model.folder, model.value.node.place);
  maker.set_chain("draft_tokens", length);
  put_node(maker.config(), plain_node("beams", std::to_string(kBeams), place()));
  maker.set_nodes_max(kBeams * number_in(length), length.node.place);
  return maker;
}

// As plain_word() has it, and as the LLM API writes it.
constexpr struct {
  const char *word, *written;
  Result<RouteMaker> (LlmApiMethod::*make)() const;
} kLlmApiMethods[] = {
    {"drafttarget", "Draft_Target", &LlmApiMethod::draft_target},
    {"eagle", "Eagle", &LlmApiMethod::eagle},
    {"eagle3", "Eagle3", &LlmApiMethod::eagle3},
    {"lookahead", "Lookahead", &LlmApiMethod::lookahead},
    {"medusa", "Medusa", &LlmApiMethod::medusa},
    {"ngram", "NGram", &LlmApiMethod::ngram},
    {"redrafter", "ReDrafter", &LlmApiMethod::redrafter},
};

}  // namespace

Result<Speculation> llm_api_speculation(const Value& value, ModelPlaces& places,
                                        UnknownKeys& unknown) {
  SPECD_OK_OR_RETURN(TheirMapping::check(value));
  TheirMapping theirs(value);
  SPECD_TRY(const Value type, theirs.require("decoding_type"));
  SPECD_TRY(const std::string word, read_text(type));
  const auto* const known = std::ranges::find_if(
      kLlmApiMethods, [&](const auto& each) { return plain_word(word) == each.word; });
  if (known == std::end(kLlmApiMethods)) {
    std::vector<std::string> words;
    for (const auto& each : kLlmApiMethods) words.emplace_back(each.written);
    return type.error("expected a method that specd has a plugin for: " + joined(words) +
                      "; found " + quote(word) + did_you_mean(word, words));
  }
  const LlmApiMethod method{.theirs = theirs, .type = type, .places = places};
  SPECD_TRY(RouteMaker maker, (method.*known->make)());
  SPECD_OK_OR_RETURN(theirs.carry("max_concurrency",
                                  whole_key("disable_by_batch_size", 0, EngineLimits::kSequences),
                                  maker.route()));
  SPECD_OK_OR_RETURN(theirs.finish(unknown));
  return std::move(maker).take();
}

}  // namespace specd::host
