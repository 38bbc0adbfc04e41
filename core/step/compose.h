// Turns sequences into the rows of a step. Pure: tokens, pages, drafts and sampling in, StepInput
// out; no device, plugin or model.
//
//   a decoding sequence   root row, then one row per draft node; each draws a token
//   a prefilling one      a chunk of its prompt; the last row of the prompt draws a token. Rows whose
//                         logits are wanted draw one too, which tells only whether they are finite
//
// Node i of a tree is in slot root + 1 + i. A node that is in place (draft_tree.h) attends to a
// plain span, like a row of a prompt. Any other node attends to the text up to the root and,
// through the tail, to its path.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/kv/block_table.h"
#include "core/ranks/step_input.h"
#include "core/request/logit_bias.h"
#include "core/request/sampling.h"
#include "core/spec/draft_tree.h"

namespace specd {

// One sequence's share of a step. Borrowed until compose() returns.
struct ComposeItem {
  std::span<const int32_t> tokens;    // committed, [0, n_computed + n_rows) at least
  const BlockTable* table = nullptr;  // pages for the rows and the tree's nodes
  const DraftTree* tree = nullptr;    // after the last row; empty unless wants_token
  const SamplingParams* sampling = nullptr;
  std::span<const kernels::PenaltySeen> seen = {};  // for sampling that penalizes
  const LogitBias* bias = nullptr;                  // null = none
  int32_t n_output = 0;                             // committed tokens of the output
  int32_t n_computed = 0;                           // positions whose KV is final
  int32_t n_rows = 0;                               // >= 1
  bool wants_token = false;                         // the last row draws a token
  bool tapped = false;                              // the taps of its rows are wanted
  bool law = false;                                 // the laws of its rows are wanted,
  bool law_to_host = false;                         // and in host memory
  // Its logits are wanted in host memory as the model gives them, also of the n_scored rows from
  // first_scored on, which decide no token.
  bool raw = false;
  int32_t first_scored = 0, n_scored = 0;
  // For drafts on the device: the part of the step that writes the tree's tokens, and the element
  // of its column for node 0. The tokens in `tree` are then ignored.
  struct Drafted {
    int32_t part = 0;
    int32_t first = 0;
  };
  std::optional<Drafted> drafted = {};
};

// Where an item's rows are in the step: its own rows, then one row per node.
struct RowPlace {
  int32_t first_row = 0;
  int32_t root_logits = -1;             // logits row of its last own row, -1 = none
  std::vector<int32_t> logits_of_node;  // [nodes] logits rows, -1 = none
  int32_t first_tap = -1;               // index of its first row among the tap rows, -1 = none
  int32_t first_law = -1;               // the same among the laws for host memory
  // Its first logits row and the copy of that row as the model gives it. The scored rows are the
  // first ones.
  int32_t first_logits = 0, first_raw = 0, n_scored = 0;
};

// Overwrites `input` and `places` (one per item); both keep their capacity.
void compose(std::span<const ComposeItem> items, StepInput& input, std::vector<RowPlace>& places);

}  // namespace specd
