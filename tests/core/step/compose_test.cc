// Composed steps are checked as plain data: no plugin, model or device.
#include "core/step/compose.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "specd/plugin_api/drafter.h"

namespace specd {
namespace {

using Ints = std::vector<int32_t>;

DraftTree tree_of(const Ints& token, const Ints& parent, const Ints& flags = {}) {
  DraftTree tree;
  tree.token = token;
  tree.parent = parent;
  tree.flags = flags.empty() ? Ints(token.size(), 0) : flags;
  for (const int32_t each : parent) {
    tree.depth.push_back(each < 0 ? 1 : tree.depth[static_cast<size_t>(each)] + 1);
  }
  return tree;
}

struct Composed {
  StepInput input;
  std::vector<RowPlace> places;
};
Composed composed(const std::vector<ComposeItem>& items) {
  Composed out;
  compose(items, out.input, out.places);
  return out;
}

const SamplingParams kGreedy;

TEST(Compose, a_prompt_chunk_is_a_causal_span_without_logits) {
  const Ints tokens{10, 11, 12, 13, 14};
  const BlockTable table{.pages = {7}};
  const DraftTree none;
  const Composed step = composed({{.tokens = tokens,
                                   .table = &table,
                                   .tree = &none,
                                   .sampling = &kGreedy,
                                   .n_computed = 1,
                                   .n_rows = 3}});
  EXPECT_EQ(step.input.rows.token, (Ints{11, 12, 13}));
  EXPECT_EQ(step.input.rows.position, (Ints{1, 2, 3}));
  EXPECT_EQ(step.input.rows.slot, (Ints{113, 114, 115}));
  EXPECT_EQ(step.input.rows.span, (Ints{2, 3, 4}));
  EXPECT_EQ(step.input.rows.pages, (Ints{7}));
  EXPECT_TRUE(step.input.rows.logits_rows.empty());
  EXPECT_TRUE(step.input.rows.tap_rows.empty());
  EXPECT_EQ(step.places[0].root_logits, -1);
}

// Rows 1 and 2 of the first sequence are scored; the second one's rows are wanted raw.
TEST(Compose, scored_rows_draw_greedily_and_raw_rows_are_found_among_those_of_others) {
  const Ints tokens{10, 11, 12, 13, 14};
  const BlockTable table{.pages = {0}}, other_table{.pages = {1}};
  const DraftTree none, tree = tree_of({20, 21}, {-1, 0}, {SPECD_NODE_PROBE, 0});
  SamplingParams sampled;
  sampled.temperature = 0.5f;
  const ComposeItem plain{.tokens = tokens,
                          .table = &table,
                          .tree = &none,
                          .sampling = &sampled,
                          .n_computed = 4,
                          .n_rows = 1,
                          .wants_token = true};
  ComposeItem scored = plain, raw = plain;
  scored.n_computed = 0;
  scored.n_rows = 5;
  scored.raw = true;
  scored.first_scored = 1;
  scored.n_scored = 2;
  raw.table = &other_table;
  raw.tree = &tree;
  raw.raw = true;
  const Composed step = composed({plain, scored, raw});
  EXPECT_EQ(step.input.rows.logits_rows, (Ints{0, 2, 3, 5, 6, 8}));
  EXPECT_EQ(step.input.raw_to_host, (Ints{1, 2, 3, 4, 5}));
  for (const size_t i : {1u, 2u}) EXPECT_TRUE(step.input.draws[i].greedy) << i;
  for (const size_t i : {0u, 3u, 4u, 5u}) EXPECT_FALSE(step.input.draws[i].greedy) << i;
  const RowPlace& first = step.places[1];
  EXPECT_EQ(first.first_logits, 1);
  EXPECT_EQ(first.first_raw, 0);
  EXPECT_EQ(first.n_scored, 2);
  EXPECT_EQ(first.root_logits, 3);
  const RowPlace& second = step.places[2];
  EXPECT_EQ(second.first_logits, 4);
  EXPECT_EQ(second.first_raw, 3);
  EXPECT_EQ(second.n_scored, 0);
  EXPECT_EQ(second.logits_of_node, (Ints{-1, 5}));
}

TEST(Compose, a_chain_attends_like_text_and_a_branch_through_the_tail) {
  const Ints tokens{10, 11, 12};
  const BlockTable table{.pages = {0}};
  //  root - 0 - 1
  //       \ 2 - 3
  const DraftTree tree = tree_of({20, 21, 22, 23}, {-1, 0, -1, 2});
  const Composed step = composed({{.tokens = tokens,
                                   .table = &table,
                                   .tree = &tree,
                                   .sampling = &kGreedy,
                                   .n_computed = 2,
                                   .n_rows = 1,
                                   .wants_token = true}});
  EXPECT_EQ(step.input.rows.token, (Ints{12, 20, 21, 22, 23}));
  EXPECT_EQ(step.input.rows.position, (Ints{2, 3, 4, 3, 4}));
  EXPECT_EQ(step.input.rows.slot, (Ints{2, 3, 4, 5, 6}));
  EXPECT_EQ(step.input.rows.span, (Ints{3, 4, 5, 3, 3}));
  EXPECT_EQ(step.input.rows.tail_begin, (Ints{0, 0, 0, 0, 1}));
  EXPECT_EQ(step.input.rows.tail, (Ints{5, 5, 6}));
  EXPECT_EQ(step.input.rows.logits_rows, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(step.places[0].root_logits, 0);
  EXPECT_EQ(step.places[0].logits_of_node, (Ints{1, 2, 3, 4}));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(step.input.draws[i].position, step.input.rows.position[i] + 1);
  }
}

TEST(Compose, a_probe_draws_nothing_unless_its_top_is_wanted) {
  const Ints tokens{10};
  const BlockTable table{.pages = {0}};
  const DraftTree tree = tree_of({20, 21, 22}, {-1, 0, -1},
                                 {0, SPECD_NODE_PROBE, SPECD_NODE_PROBE | SPECD_NODE_WANT_TOP});
  const Composed step = composed({{.tokens = tokens,
                                   .table = &table,
                                   .tree = &tree,
                                   .sampling = &kGreedy,
                                   .n_rows = 1,
                                   .wants_token = true}});
  EXPECT_EQ(step.places[0].logits_of_node, (Ints{1, -1, 2}));
  EXPECT_EQ(step.input.rows.logits_rows, (Ints{0, 1, 3}));
}

TEST(Compose, penalties_see_the_text_and_the_nodes_own_path) {
  const Ints tokens{10, 11};
  const BlockTable table{.pages = {0}};
  const DraftTree tree = tree_of({20, 21, 22}, {-1, 0, -1}), none;
  SamplingParams penalized;
  penalized.repetition_penalty = 1.5f;
  const std::vector<kernels::PenaltySeen> seen{{.token = 10, .count = 0},
                                               {.token = 11, .count = 1}};
  const ComposeItem plain{.tokens = tokens,
                          .table = &table,
                          .tree = &none,
                          .sampling = &kGreedy,
                          .n_computed = 1,
                          .n_rows = 1,
                          .wants_token = true};
  ComposeItem other = plain;
  other.tree = &tree;
  other.sampling = &penalized;
  other.seen = seen;
  EXPECT_TRUE(composed({plain}).input.penalty_row.empty());
  const StepInput input = composed({plain, other, plain}).input;
  ASSERT_EQ(input.penalty_row.size(), 6u);
  for (const size_t row : {size_t{0}, size_t{5}}) {
    EXPECT_EQ(input.penalty_row[row].seen_end, 0) << "a request without penalties is unaffected";
    EXPECT_EQ(input.penalty_row[row].repetition, 1);
  }
  const std::vector<Ints> paths{{}, {2}, {2, 3}, {4}};
  for (size_t i = 0; i < 4; ++i) {
    const kernels::PenaltyRow& row = input.penalty_row[1 + i];
    EXPECT_EQ(row.repetition, 1.5f);
    EXPECT_EQ(row.seen_begin, 0);
    EXPECT_EQ(row.seen_end, 2);
    EXPECT_EQ(Ints(input.penalty_path.begin() + row.path_begin,
                   input.penalty_path.begin() + row.path_end),
              paths[i]);
  }
}

TEST(Compose, stop_tokens_are_masked_at_the_nodes_where_the_text_would_be_too_short) {
  const Ints tokens{10, 11};
  const BlockTable table{.pages = {0}};
  const DraftTree tree = tree_of({20, 21, 22}, {-1, 0, 1});
  const LogitBias bias({{.token = 5, .add = 2}}, {7}, /*min_tokens=*/3);
  ComposeItem item{.tokens = tokens,
                   .table = &table,
                   .tree = &tree,
                   .sampling = &kGreedy,
                   .bias = &bias,
                   .n_output = 1,
                   .n_computed = 1,
                   .n_rows = 1,
                   .wants_token = true};
  ComposeItem plain = item;
  plain.bias = nullptr;
  const StepInput input = composed({plain, item, item}).input;
  ASSERT_EQ(input.penalty_row.size(), 12u);
  EXPECT_TRUE(input.penalty_path.empty()) << "nothing depends on the path";
  const auto entries_of = [&](size_t row) {
    std::vector<std::pair<int32_t, float>> out;
    const kernels::PenaltyRow& each = input.penalty_row[row];
    for (int32_t i = each.bias_begin; i < each.bias_end; ++i) {
      const kernels::TokenBias& entry = input.penalty_bias.at(static_cast<size_t>(i));
      out.emplace_back(entry.token, entry.add);
    }
    return out;
  };
  using Entries = std::vector<std::pair<int32_t, float>>;
  const float never = -std::numeric_limits<float>::infinity();
  for (const size_t first : {size_t{4}, size_t{8}}) {
    EXPECT_EQ(entries_of(first), (Entries{{5, 2}, {7, never}})) << "the second output token";
    EXPECT_EQ(entries_of(first + 1), (Entries{{5, 2}, {7, never}})) << "the third";
    EXPECT_EQ(entries_of(first + 2), (Entries{{5, 2}}));
    EXPECT_EQ(entries_of(first + 3), (Entries{{5, 2}}));
  }
  for (size_t row = 0; row < 4; ++row) EXPECT_EQ(entries_of(row), Entries{});
  // From the least length on a request without a bias has no penalties.
  const LogitBias masks({}, {7}, 3);
  item.bias = &masks;
  EXPECT_FALSE(composed({item}).input.penalty_row.empty());
  item.n_output = 3;
  EXPECT_TRUE(composed({item}).input.penalty_row.empty());
}

TEST(Compose, drafts_of_the_device_are_picked_by_part_and_element) {
  const Ints tokens{10, 11};
  const BlockTable table{.pages = {0}};
  const DraftTree tree = tree_of({0, 0}, {-1, 0});
  ComposeItem item{.tokens = tokens,
                   .table = &table,
                   .tree = &tree,
                   .sampling = &kGreedy,
                   .n_computed = 1,
                   .n_rows = 1,
                   .wants_token = true,
                   .drafted = ComposeItem::Drafted{.part = 1, .first = 0}};
  ComposeItem second = item;
  second.drafted->first = 8;
  const StepInput input = composed({item, second}).input;
  ASSERT_EQ(input.picks.size(), 1u);
  EXPECT_EQ(input.picks[0].part, 1);
  EXPECT_EQ(input.picks[0].from, (Ints{0, 1, 8, 9}));
  EXPECT_EQ(input.picks[0].to, (Ints{1, 2, 4, 5}));
}

// The positions that a row attends to and their slots, computed from the rows alone.
std::vector<std::pair<int32_t, int32_t>> context_of(const ForwardRows& rows, size_t row) {
  std::vector<std::pair<int32_t, int32_t>> context;
  for (int32_t p = 0; p < rows.span[row]; ++p) {
    const auto page = static_cast<size_t>(rows.table[row] + p / kernels::kPageTokens);
    context.emplace_back(p, rows.pages[page] * kernels::kPageTokens + p % kernels::kPageTokens);
  }
  for (int32_t p = rows.span[row]; p <= rows.position[row]; ++p) {
    context.emplace_back(p,
                         rows.tail[static_cast<size_t>(rows.tail_begin[row] + p - rows.span[row])]);
  }
  return context;
}

TEST(Compose, every_row_attends_to_its_own_history_and_nothing_else) {
  std::mt19937 random(11);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  for (int round = 0; round < 300; ++round) {
    const int32_t n = 1 + below(4);
    Ints all_pages(64);
    std::iota(all_pages.begin(), all_pages.end(), 0);
    std::shuffle(all_pages.begin(), all_pages.end(), random);
    std::vector<Ints> tokens(static_cast<size_t>(n));
    std::vector<BlockTable> tables(static_cast<size_t>(n));
    std::vector<DraftTree> trees(static_cast<size_t>(n));
    std::vector<ComposeItem> items;
    for (size_t s = 0; s < static_cast<size_t>(n); ++s) {
      tokens[s].resize(static_cast<size_t>(2 + below(60)));
      for (int32_t& token : tokens[s]) token = below(1000);
      const auto size = static_cast<int32_t>(tokens[s].size());
      const bool decodes = below(2) == 0;
      const int32_t n_computed = decodes ? size - 1 : below(size - 1);
      const int32_t n_rows = decodes ? 1 : 1 + below(size - n_computed);
      const bool wants_token = n_computed + n_rows == size;
      Ints node_tokens, parents;
      for (int32_t node = 0; decodes && node < below(8); ++node) {
        node_tokens.push_back(below(1000));
        parents.push_back(below(node + 1) - 1);
      }
      trees[s] = tree_of(node_tokens, parents);
      const int32_t pages = pages_for(n_computed + n_rows + trees[s].size());
      tables[s].pages.assign(all_pages.end() - pages, all_pages.end());
      all_pages.resize(all_pages.size() - static_cast<size_t>(pages));
      items.push_back({.tokens = tokens[s],
                       .table = &tables[s],
                       .tree = &trees[s],
                       .sampling = &kGreedy,
                       .n_computed = n_computed,
                       .n_rows = n_rows,
                       .wants_token = wants_token,
                       .tapped = below(2) == 0});
    }
    const Composed step = composed(items);
    const StepLimits limits{.rows_max = 1024,
                            .logits_rows_max = 1024,
                            .vocab_size = 1000,
                            .n_pages = 64,
                            .positions_end = 256};
    ASSERT_EQ(step_input_fault(step.input, limits), "");
    const ForwardRows& rows = step.input.rows;
    size_t row = 0, tap = 0;
    for (size_t s = 0; s < items.size(); ++s) {
      const ComposeItem& item = items[s];
      const RowPlace& place = step.places[s];
      ASSERT_EQ(place.first_row, static_cast<int32_t>(row));
      ASSERT_EQ(place.first_tap, item.tapped ? static_cast<int32_t>(tap) : -1);
      const int32_t root = item.n_computed + item.n_rows - 1;
      for (int32_t i = 0; i < item.n_rows + item.tree->size(); ++i, ++row) {
        // The history of the row, from the definition: the text, then the node's ancestors.
        Ints path;
        if (i >= item.n_rows) item.tree->path_to(i - item.n_rows, path);
        const int32_t in_text = i < item.n_rows ? item.n_computed + i : root;
        std::vector<std::pair<int32_t, int32_t>> expected;
        for (int32_t p = 0; p <= in_text; ++p) expected.emplace_back(p, item.table->physical(p));
        for (size_t k = 0; k < path.size(); ++k) {
          expected.emplace_back(root + 1 + static_cast<int32_t>(k),
                                item.table->physical(root + 1 + path[k]));
        }
        ASSERT_EQ(context_of(rows, row), expected);
        ASSERT_EQ(rows.slot[row], expected.back().second) << "its own slot comes last";
        ASSERT_EQ(rows.token[row], i < item.n_rows
                                       ? tokens[s][static_cast<size_t>(item.n_computed + i)]
                                       : item.tree->token[static_cast<size_t>(i - item.n_rows)]);
        if (item.tapped) {
          ASSERT_EQ(rows.tap_rows[tap++], static_cast<int32_t>(row));
        }
      }
    }
    ASSERT_EQ(row, static_cast<size_t>(rows.n_rows()));
    ASSERT_EQ(tap, rows.tap_rows.size());
  }
}

}  // namespace
}  // namespace specd
