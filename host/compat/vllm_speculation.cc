// vLLM's speculative methods (vllm/config/speculative.py, SpeculativeConfig), and the keys that they
// had before there was --speculative-config.
#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/quote.h"
#include "core/base/words.h"
#include "core/engine.h"
#include "host/compat/head_kind.h"
#include "host/compat/speculation.h"

namespace specd::host {
namespace {

struct VllmNames {
  const char *model, *tokens, *draft_ranks, *lookup_min, *lookup_max, *batch_size, *revision;
};
constexpr VllmNames kNames{.model = "model",
                           .tokens = "num_speculative_tokens",
                           .draft_ranks = "draft_tensor_parallel_size",
                           .lookup_min = "prompt_lookup_min",
                           .lookup_max = "prompt_lookup_max",
                           .batch_size = "disable_by_batch_size",
                           .revision = "revision"};
constexpr VllmNames kOldNames{.model = "speculative_model",
                              .tokens = "num_speculative_tokens",
                              .draft_ranks = "speculative_draft_tensor_parallel_size",
                              .lookup_min = "ngram_prompt_lookup_min",
                              .lookup_max = "ngram_prompt_lookup_max",
                              .batch_size = "speculative_disable_by_batch_size",
                              .revision = "speculative_model_revision"};

// Everything that one method reads.
struct VllmMethod {
  TheirMapping& theirs;
  const VllmNames& names;
  YamlPlace told_at;                  // of what says which method
  const std::optional<Value>& model;  // as they name it
  std::string folder;                 // of the model

  Result<Value> read_tokens(int64_t max) const {
    SPECD_TRY(const Value found, theirs.require(names.tokens));
    SPECD_OK_OR_RETURN(read_value(whole_key(names.tokens, 1, max), found));
    return found;
  }
  Result<RouteMaker> chain_of_head(const char* drafter) const;

  Result<RouteMaker> draft_model() const;
  Result<RouteMaker> eagle() const { return chain_of_head("eagle"); }
  Result<RouteMaker> eagle3() const { return chain_of_head("eagle3"); }
  Result<RouteMaker> medusa() const;
  Result<RouteMaker> ngram() const;
  Result<RouteMaker> redrafter() const;
  Result<RouteMaker> suffix() const;
};

Result<RouteMaker> VllmMethod::draft_model() const {
  RouteMaker maker("draft_target", told_at);
  SPECD_TRY(const Value tokens, read_tokens(64));
  YamlNode& draft = maker.use_draft_model(folder, model->node.place);
  SPECD_OK_OR_RETURN(theirs.carry(
      names.draft_ranks, whole_key("tensor_parallel_size", 1, EngineLimits::kRanks), draft));
  maker.set_chain("draft_tokens", tokens);
  return maker;
}

Result<RouteMaker> VllmMethod::chain_of_head(const char* drafter) const {
  RouteMaker maker(drafter, told_at);
  SPECD_TRY(const Value tokens, read_tokens(64));
  theirs.find(names.draft_ranks);  // heads are run where the target is
  maker.use_weights(folder, model->node.place);
  put_node(maker.config(), text_node("mode", "chain", told_at));
  maker.set_chain("draft_tokens", tokens);
  return maker;
}

// One guess of each head, so a chain: [[0], [0, 0], ..].
Result<RouteMaker> VllmMethod::medusa() const {
  RouteMaker maker("medusa", told_at);
  SPECD_TRY(const Value tokens, read_tokens(64));
  const YamlPlace& place = tokens.node.place;
  maker.use_weights(folder, model->node.place);
  YamlNode choices = list_node("choices", place), path = list_node("", place);
  for (int64_t i = 0; i < number_in(tokens); ++i) {
    path.items.push_back(plain_node("", "0", place));
    choices.items.push_back(path);
  }
  put_node(maker.config(), std::move(choices));
  maker.set_nodes_max(number_in(tokens), place);
  return maker;
}

Result<RouteMaker> VllmMethod::ngram() const {
  RouteMaker maker("prompt_lookup", told_at);
  SPECD_TRY(const Value tokens, read_tokens(64));
  maker.set_chain("num_speculative_tokens", tokens);
  for (const auto& [key, ours] :
       {std::pair(names.lookup_min, "prompt_lookup_min"), {names.lookup_max, "prompt_lookup_max"}})
    SPECD_OK_OR_RETURN(theirs.carry(key, whole_key(ours, 1, 64), maker.config()));
  return maker;
}

Result<RouteMaker> VllmMethod::redrafter() const {
  constexpr int64_t kBeams = 5;  // the drafter's default
  RouteMaker maker("redrafter", told_at);
  SPECD_TRY(const Value tokens, read_tokens(16));
  maker.use_weights(folder, model->node.place);
  maker.set_chain("draft_tokens", tokens);
  put_node(maker.config(), plain_node("beams", std::to_string(kBeams), told_at));
  maker.set_nodes_max(kBeams * number_in(tokens), tokens.node.place);
  return maker;
}

Result<RouteMaker> VllmMethod::suffix() const {
  RouteMaker maker("suffix", told_at);
  SPECD_TRY(const std::optional<Value> tokens,
            theirs.find(names.tokens, whole_key(names.tokens, 1, 64)));
  SPECD_TRY(const std::optional<Value> depth,
            theirs.find("suffix_decoding_max_tree_depth", whole_key("depth", 2, 256)));
  const int64_t levels = depth ? number_in(*depth) : 24;  // vLLM's default, and the drafter's
  // As there: without a number of tokens, as many as levels.
  const int64_t nodes = std::min<int64_t>(tokens ? number_in(*tokens) : levels, 64);
  const YamlPlace& place = tokens ? tokens->node.place : told_at;
  put_node(maker.config(), plain_node("max_spec_tokens", std::to_string(nodes), place));
  put_node(maker.config(), plain_node("max_tree_depth", std::to_string(levels),
                                      depth ? depth->node.place : told_at));
  for (const auto& [key, ours] : {std::pair("suffix_decoding_max_spec_factor", "max_spec_factor"),
                                  {"suffix_decoding_min_token_prob", "min_token_prob"}}) {
    const std::optional<Value> found = theirs.find(key);
    if (!found) continue;
    SPECD_TRY(const Json number, yaml_to_json(*found));
    if (!number.is_number()) return found->not_expected("a number");
    put_node(maker.config(), plain_node(ours, found->node.value, found->node.place));
  }
  maker.set_nodes_max(nodes, place);
  return maker;
}

// As vLLM writes it.
constexpr struct {
  const char* name;
  bool has_model;
  Result<RouteMaker> (VllmMethod::*make)() const;
} kVllmMethods[] = {
    {"draft_model", true, &VllmMethod::draft_model},
    {"eagle", true, &VllmMethod::eagle},
    {"eagle3", true, &VllmMethod::eagle3},
    {"medusa", true, &VllmMethod::medusa},
    {"ngram", false, &VllmMethod::ngram},
    {"redrafter", true, &VllmMethod::redrafter},
    {"suffix", false, &VllmMethod::suffix},
};

const char* method_of(HeadKind kind) {
  switch (kind) {
    case HeadKind::kModel:
      return "draft_model";
    case HeadKind::kEagle:
      return "eagle";
    case HeadKind::kEagle3:
      return "eagle3";
    case HeadKind::kMedusa:
      return "medusa";
    case HeadKind::kRedrafter:
      return "redrafter";
    case HeadKind::kUnsupported:
      break;
  }
  return "";
}

Status no_plugin(const Value& value, const std::string& found) {
  std::vector<std::string> names;
  for (const auto& each : kVllmMethods) names.emplace_back(each.name);
  return value.error("expected a method that specd has a plugin for: " + joined(names) +
                     "; found " + quote(found) + did_you_mean(found, names));
}

// `method` is what they say, or none: then the model tells.
Result<Speculation> speculation_in(TheirMapping& theirs, const std::optional<Value>& method,
                                   const VllmNames& names, ModelPlaces& places) {
  const std::optional<Value> model = theirs.find(names.model);
  std::string word;
  if (method) {
    SPECD_TRY(word, read_text(*method));
  } else if (!model) {
    return theirs.value().error("expected `method`, or `model` of which it follows");
  }
  const bool is_ngram = model && (model->node.value == "ngram" || model->node.value == "[ngram]");
  if (word == "[ngram]" || (word.empty() && is_ngram)) word = "ngram";
  const Value& told_by = method ? *method : *model;
  const auto find_method = [&] {
    return std::ranges::find_if(kVllmMethods, [&](const auto& each) { return word == each.name; });
  };
  const auto* known = find_method();
  if (!word.empty() && known == std::end(kVllmMethods)) return no_plugin(told_by, word);
  VllmMethod made{.theirs = theirs,
                  .names = names,
                  .told_at = told_by.node.place,
                  .model = model,
                  .folder = {}};
  if (known == std::end(kVllmMethods) || known->has_model) {
    if (!model) return theirs.require(names.model).status();
    SPECD_TRY(made.folder, model_folder(*model, theirs.find(names.revision), places));
    // vLLM, too, looks whether a head for EAGLE is one for EAGLE-3.
    if (word.empty() || word == "eagle") {
      const Result<Head> head = head_in(made.folder, model->node.value);
      if (!head.ok()) return model->error(head.status().text());
      if (head.value().kind == HeadKind::kUnsupported) return no_plugin(*model, head.value().type);
      if (word.empty() || head.value().kind == HeadKind::kEagle3)
        word = method_of(head.value().kind);
      known = find_method();
    }
  }
  SPECD_TRY(RouteMaker maker, (made.*known->make)());
  // vLLM drafts for fewer than so many requests, specd for at most so many.
  SPECD_TRY(
      const std::optional<Value> batch,
      theirs.find(names.batch_size, whole_key(names.batch_size, 2, EngineLimits::kSequences)));
  if (batch)
    put_node(maker.route(), plain_node("disable_by_batch_size",
                                       std::to_string(number_in(*batch) - 1), batch->node.place));
  return std::move(maker).take();
}

}  // namespace

Result<Speculation> vllm_speculation(const Value& value, ModelPlaces& places,
                                     UnknownKeys& unknown) {
  SPECD_OK_OR_RETURN(TheirMapping::check(value));
  TheirMapping theirs(value);
  const std::optional<Value> method = theirs.find("method");
  SPECD_TRY(Speculation speculation, speculation_in(theirs, method, kNames, places));
  SPECD_OK_OR_RETURN(theirs.finish(unknown));
  return speculation;
}

Result<std::optional<Speculation>> old_vllm_speculation(TheirMapping& all, ModelPlaces& places) {
  if (!all.find(kOldNames.model)) return std::optional<Speculation>();
  SPECD_TRY(Speculation speculation, speculation_in(all, std::nullopt, kOldNames, places));
  return std::optional<Speculation>(std::move(speculation));
}

}  // namespace specd::host
