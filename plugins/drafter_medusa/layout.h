// What the tensors of a file say: how many heads there are, of how many blocks, and their names.
//
//   {h}.{l}.linear.weight/bias, {h}.{L}.weight       FasterDecoding, v0.1; TGI v1
//   medusa_head.{h}. ..., beside a whole model       FasterDecoding, v1.0
//   {h}.0.linear.weight/bias alone                   TGI v2: the target's output head is shared
//   blocks.{h}.layers.{l}.weight, lm_heads.{h}.weight, token_map      vLLM
//
// config.json is not asked: published ones do not say how many heads there are.
#pragma once

#include <specd/sdk/weights.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace specd::medusa {

struct Layout {
  struct Head {
    std::vector<std::string> weights, biases;  // of the blocks; a bias may be ""
    std::string output;                        // "" = the target's output head
  };
  std::vector<Head> heads;
  std::string token_map;  // "" = the heads know every token
  int64_t columns = 0;    // of the heads' logits

  // Checks every tensor against the target, and accounts for it.
  Layout(sdk::Weights& weights, const specd_target_info& target) {
    const auto vocab = static_cast<int64_t>(target.vocab_size),
               hidden = static_cast<int64_t>(target.hidden_size);
    for (const char* each : {"", "medusa_head.", "medusa_heads."}) {
      const std::string prefix = each;
      if (weights.has(prefix + "0.0.linear.weight")) read_original(weights, prefix);
      if (weights.has(prefix + "blocks.0.layers.0.weight")) read_vllm(weights, prefix);
      if (heads.empty()) continue;
      account_for_others(weights, prefix);
      break;
    }
    if (heads.empty()) {
      weights.fail_without(
          "a head of Medusa ('0.0.linear.weight', 'medusa_head.0.0.linear.weight' or "
          "'blocks.0.layers.0.weight')");
    }
    columns = heads[0].output.empty() ? vocab : weights.rows_of(heads[0].output);
    for (const Head& head : heads) {
      for (std::size_t l = 0; l < head.weights.size(); ++l) {
        weights.expect(head.weights[l], {hidden, hidden});
        if (!head.biases[l].empty()) weights.expect(head.biases[l], {hidden});
      }
      if (!head.output.empty()) weights.expect(head.output, {columns, hidden});
    }
    check_vocabulary(weights, vocab);
    weights.expect_no_others();
  }

 private:
  static std::string text(std::size_t number) { return std::to_string(number); }

  void read_original(const sdk::Weights& weights, const std::string& prefix) {
    while (true) {
      Head head;
      const std::string at = prefix + text(heads.size()) + ".";
      while (weights.has(at + text(head.weights.size()) + ".linear.weight")) {
        const std::string linear = at + text(head.weights.size()) + ".linear.";
        head.weights.push_back(linear + "weight");
        head.biases.push_back(weights.has(linear + "bias") ? linear + "bias" : "");
      }
      if (head.weights.empty()) return;
      const std::string output = at + text(head.weights.size()) + ".weight";
      const bool is_shared = heads.empty() ? !weights.has(output) : heads[0].output.empty();
      if (!is_shared) head.output = output;
      heads.push_back(head);
    }
  }

  void read_vllm(sdk::Weights& weights, const std::string& prefix) {
    const bool is_one = !weights.has(prefix + "lm_heads.1.weight") &&
                        weights.has(prefix + "blocks.1.layers.0.weight");
    while (true) {
      Head head;
      const std::string at = prefix + "blocks." + text(heads.size()) + ".layers.";
      while (weights.has(at + text(head.weights.size()) + ".weight")) {
        const std::string block = at + text(head.weights.size());
        head.weights.push_back(block + ".weight");
        head.biases.push_back(weights.has(block + ".bias") ? block + ".bias" : "");
      }
      if (head.weights.empty()) break;
      head.output = prefix + "lm_heads." + text(is_one ? 0 : heads.size()) + ".weight";
      if (is_one && weights.has(prefix + "lm_head.weight")) head.output = prefix + "lm_head.weight";
      heads.push_back(head);
    }
    if (weights.has(prefix + "token_map")) token_map = prefix + "token_map";
  }

  // A file may hold the model that the heads were trained with.
  static void account_for_others(sdk::Weights& weights, const std::string& prefix) {
    if (prefix.empty()) return;
    for (const std::string& name : weights.names()) {
      if (name.compare(0, prefix.size(), prefix) != 0) weights.ignore(name);
    }
  }

  void check_vocabulary(sdk::Weights& weights, int64_t vocab) const {
    if (token_map.empty()) {
      if (columns == vocab) return;
      weights.fail("tensor '" + heads[0].output + "' has " + std::to_string(columns) +
                   " rows, the target's vocabulary " + std::to_string(vocab) +
                   ", and there is no token_map");
    }
    weights.expect_ids(token_map, columns, vocab);
  }
};

}  // namespace specd::medusa
