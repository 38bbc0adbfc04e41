#include "core/step/compose.h"

#include <algorithm>

#include "core/base/to_size.h"
#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

template <typename T>
int32_t size_of(const std::vector<T>& column) {
  return static_cast<int32_t>(column.size());
}

class Composer {
 public:
  explicit Composer(StepInput& input) : input_(input), rows_(input.rows) {}

  void add(const ComposeItem& item, RowPlace& place) {
    place.first_row = rows_.n_rows();
    place.first_tap = item.tapped ? size_of(rows_.tap_rows) : -1;
    place.first_law = item.law_to_host ? size_of(input_.law_to_host) : -1;
    place.root_logits = -1;
    place.first_logits = size_of(rows_.logits_rows);
    place.first_raw = size_of(input_.raw_to_host);
    place.n_scored = item.n_scored;
    place.logits_of_node.clear();
    table_ = size_of(rows_.pages);
    rows_.pages.insert(rows_.pages.end(), item.table->pages.begin(), item.table->pages.end());
    for (int32_t i = 0; i < item.n_rows; ++i) {
      const int32_t position = item.n_computed + i;
      add_row(item, item.tokens[to_size(position)], position, position, position + 1);
      const bool is_scored = i >= item.first_scored && i < item.first_scored + item.n_scored;
      if (is_scored) add_logits(item, {});
    }
    if (!item.wants_token) return;
    place.root_logits = draw(item);
    add_nodes(item, place);
    const bool is_biased = item.bias != nullptr && item.bias->applies_from(item.n_output);
    if (item.sampling->penalizes() || is_biased) penalize(item, place);
  }

  // Other logits rows get a neutral PenaltyRow.
  void finish() {
    if (!input_.penalty_row.empty()) input_.penalty_row.resize(input_.draws.size());
  }

 private:
  void add_row(const ComposeItem& item, int32_t token, int32_t position, int32_t slot,
               int32_t span) {
    if (item.tapped) rows_.tap_rows.push_back(rows_.n_rows());
    rows_.token.push_back(token);
    rows_.position.push_back(position);
    rows_.slot.push_back(item.table->physical(slot));
    rows_.span.push_back(span);
    rows_.table.push_back(table_);
    rows_.tail_begin.push_back(size_of(rows_.tail));
  }

  // The row added last draws a token; returns the index of its logits row.
  int32_t draw(const ComposeItem& item) {
    kernels::DrawRow row = item.sampling->draw_row(rows_.position.back() + 1);
    row.law = item.law;
    const int32_t logits = add_logits(item, row);
    if (item.law_to_host) input_.law_to_host.push_back(logits);
    return logits;
  }

  // The same for any draw.
  int32_t add_logits(const ComposeItem& item, const kernels::DrawRow& row) {
    const int32_t logits = size_of(rows_.logits_rows);
    rows_.logits_rows.push_back(rows_.n_rows() - 1);
    input_.draws.push_back(row);
    if (item.raw) input_.raw_to_host.push_back(logits);
    return logits;
  }

  void add_nodes(const ComposeItem& item, RowPlace& place) {
    const DraftTree& tree = *item.tree;
    const int32_t root = item.n_computed + item.n_rows - 1;
    if (item.drafted.has_value() && tree.size() > 0) pick(item, rows_.n_rows());
    for (int32_t node = 0; node < tree.size(); ++node) {
      const int32_t token = item.drafted.has_value() ? 0 : tree.token[to_size(node)];
      const int32_t position = root + tree.depth[to_size(node)];
      if (tree.in_place(node)) {
        add_row(item, token, position, position, position + 1);
      } else {
        add_row(item, token, position, root + 1 + node, root + 1);
        tree.path_to(node, path_);
        for (const int32_t each : path_) {
          rows_.tail.push_back(item.table->physical(root + 1 + each));
        }
      }
      const int32_t flags = tree.flags[to_size(node)];
      const bool silent = (flags & SPECD_NODE_PROBE) != 0 && (flags & SPECD_NODE_WANT_TOP) == 0;
      place.logits_of_node.push_back(silent ? -1 : draw(item));
    }
  }

  void pick(const ComposeItem& item, int32_t first_row) {
    auto found = std::find_if(input_.picks.begin(), input_.picks.end(), [&](const TokenPick& each) {
      return each.part == item.drafted->part;
    });
    if (found == input_.picks.end()) {
      found = input_.picks.insert(found, {.part = item.drafted->part, .from = {}, .to = {}});
    }
    for (int32_t node = 0; node < item.tree->size(); ++node) {
      found->from.push_back(item.drafted->first + node);
      found->to.push_back(first_row + node);
    }
  }

  void penalize(const ComposeItem& item, const RowPlace& place) {
    const SamplingParams& sampling = *item.sampling;
    kernels::PenaltyRow each{.repetition = sampling.repetition_penalty,
                             .frequency = sampling.frequency_penalty,
                             .presence = sampling.presence_penalty,
                             .seen_begin = size_of(input_.penalty_seen)};
    input_.penalty_seen.insert(input_.penalty_seen.end(), item.seen.begin(), item.seen.end());
    each.seen_end = size_of(input_.penalty_seen);
    const int32_t first_bias = size_of(input_.penalty_bias);
    if (item.bias != nullptr) {
      const std::vector<kernels::TokenBias>& all = item.bias->entries();
      input_.penalty_bias.insert(input_.penalty_bias.end(), all.begin(), all.end());
    }
    const auto set_bias = [&](int32_t depth) {
      if (item.bias == nullptr) return;
      const auto [first, last] = item.bias->range(item.n_output + depth);
      each.bias_begin = first_bias + static_cast<int32_t>(first);
      each.bias_end = first_bias + static_cast<int32_t>(last);
    };
    path_.clear();
    set_bias(0);
    input_.penalty_row.resize(input_.draws.size());
    input_.penalty_row[to_size(place.root_logits)] = each;
    for (int32_t node = 0; node < item.tree->size(); ++node) {
      const int32_t logits = place.logits_of_node[to_size(node)];
      if (logits < 0) continue;
      each.path_begin = size_of(input_.penalty_path);
      if (sampling.penalizes()) item.tree->path_to(node, path_);
      for (const int32_t on_path : path_) {
        input_.penalty_path.push_back(place.first_row + item.n_rows + on_path);
      }
      each.path_end = size_of(input_.penalty_path);
      set_bias(item.tree->depth[to_size(node)]);
      input_.penalty_row[to_size(logits)] = each;
    }
  }

  StepInput& input_;
  ForwardRows& rows_;
  int32_t table_ = 0;  // where the item's pages begin
  std::vector<int32_t> path_;
};

}  // namespace

void compose(std::span<const ComposeItem> items, StepInput& input, std::vector<RowPlace>& places) {
  input.clear();
  places.resize(items.size());
  Composer composer(input);
  for (size_t i = 0; i < items.size(); ++i) composer.add(items[i], places[i]);
  composer.finish();
}

}  // namespace specd
