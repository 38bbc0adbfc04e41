// The tensors of a recurrent drafter, by their names.
//
//   rnn_u, rnn_w                                     the recurrence; without them it adds
//   input_proj, or input_projs                       only when the exit is not twice the hidden size
//   lm_head.{l}.linear, lm_head.{L}.weight           the blocks and the output
//   lm_heads. ..., 0.{l}.linear, 0.{L}.weight        the same, as TensorRT-LLM reads them too
//
// Sources: apple/ml-recurrent-drafter, modeling_drafter.py; TensorRT-LLM, models/redrafter.
#pragma once

#include <specd/sdk/layers.h>

#include <cstdint>
#include <string>
#include <vector>

namespace specd::redrafter {

struct Layout {
  bool is_recurrent = false;
  std::string input;  // "" = none
  std::vector<std::string> blocks;
  std::string output;
  int64_t exit = 0;  // width of the blocks

  // Checks every tensor against the target, and accounts for it.
  Layout(sdk::Weights& weights, const specd_target_info& target) {
    const auto vocab = static_cast<int64_t>(target.vocab_size),
               hidden = static_cast<int64_t>(target.hidden_size);
    std::string head;
    for (const char* each : {"lm_head.", "lm_heads.", "0."}) {
      const std::string prefix = each;
      if (weights.has(prefix + "0.linear.weight") || weights.has(prefix + "0.weight"))
        head = prefix;
    }
    if (head.empty()) {
      weights.fail_without(
          "a head of ReDrafter ('lm_head.0.linear.weight', 'lm_heads.0.linear.weight' or "
          "'0.0.linear.weight')");
    }
    while (weights.has(head + std::to_string(blocks.size()) + ".linear.weight")) {
      blocks.push_back(head + std::to_string(blocks.size()) + ".linear.");
    }
    output = head + std::to_string(blocks.size()) + ".weight";
    const specd_tensor stored = weights.stored(output);
    exit = stored.rank == 2 ? stored.shape[1] : 0;
    weights.expect(output, {vocab, exit});
    for (const std::string& block : blocks) {
      sdk::ResidualBlock::check(weights, block + "weight", block + "bias", exit);
    }
    if (exit != 2 * hidden) {
      input = weights.has("input_projs.weight") ? "input_projs." : "input_proj.";
      weights.expect(input + "weight", {exit, 2 * hidden});
      weights.expect(input + "bias", {exit});
    }
    is_recurrent = weights.has("rnn_u.weight") || weights.has("rnn_w.weight");
    if (is_recurrent) {
      weights.expect("rnn_u.weight", {hidden, hidden});
      weights.expect("rnn_u.bias", {hidden});
      weights.expect("rnn_w.weight", {hidden, hidden});
    }
    weights.ignore("emb_norm.weight");  // stored by the MLX port, which does not apply it
    weights.expect_no_others();
  }
};

}  // namespace specd::redrafter
