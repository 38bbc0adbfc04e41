#include "host/compat/speculation.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace specd::host {
namespace {

constexpr char kDraftModel[] = "speculative_model";

YamlNode plugin_node(std::string key, std::string plugin, const YamlPlace& place) {
  YamlNode node = mapping_node(std::move(key), place);
  node.items.push_back(text_node("plugin", std::move(plugin), place));
  return node;
}

}  // namespace

RouteMaker::RouteMaker(const std::string& drafter, const YamlPlace& place)
    : place_(place), route_(mapping_node(drafter, place)) {
  route_.items.push_back(plugin_node("drafter", "specd.drafter." + drafter, place));
  route_.items.push_back(plugin_node("verifier", "specd.verifier.match", place));
}

YamlNode& RouteMaker::config() {
  return mapping_below(mapping_below(route_, "drafter", place_), "config", place_);
}

void RouteMaker::set_nodes_max(int64_t nodes, const YamlPlace& place) {
  put_node(route_, plain_node("draft_nodes_max", std::to_string(nodes), place));
}

YamlNode& RouteMaker::use_draft_model(const std::string& folder, const YamlPlace& place) {
  put_node(config(), text_node("model", kDraftModel, place));
  YamlNode& model = draft_model_.emplace(mapping_node("", place));
  model.items.push_back(text_node("name", kDraftModel, place));
  model.items.push_back(text_node("path", folder, place));
  return model;
}

void RouteMaker::use_weights(const std::string& folder, const YamlPlace& place) {
  put_node(config(), text_node("weights", folder, place));
}

void RouteMaker::set_chain(const char* key, const Value& value) {
  put_node(config(), plain_node(key, value.node.value, value.node.place));
  set_nodes_max(number_in(value), value.node.place);
}

int64_t number_in(const Value& value) {
  const Result<Json> json = yaml_to_json(value);
  SPECD_CHECK(json.ok() && json.value().is_number_integer(), value.path());
  return json.value().get<int64_t>();
}

std::string plain_word(const std::string& word) {
  std::string plain;
  for (const char c : word)
    if (c != '_' && c != '-') plain += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return plain;
}

void add_speculation(Speculation speculation, YamlNode& root) {
  const YamlPlace place = speculation.route.place;
  if (speculation.draft_model) {
    list_below(root, "draft_models", place).items.push_back(std::move(*speculation.draft_model));
  }
  put_node(root, text_node("default_route", speculation.route.key, place));
  put_node(mapping_below(root, "routes", place), std::move(speculation.route));
}

}  // namespace specd::host
