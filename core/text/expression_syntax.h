// Parses a regular expression of a tokenizer.json into a tree.
//
// The reference uses Oniguruma. This parser accepts only syntax whose meaning in Oniguruma is
// exactly known; it refuses everything else with its place, even where other engines have an
// obvious answer. It resolves character sets with the reference's own Unicode tables, so the tree
// holds only sets, sequences, choices, repetitions and groups.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"
#include "core/text/unicode.h"

namespace specd {

using CodePointSet = std::vector<CodePointRange>;  // sorted, disjoint, not touching

struct ExpressionNode {
  enum class Kind {
    kSet,       // one character of sets[set]
    kSequence,  // all children in turn; no children: matches the empty text
    kChoice,    // the first child that leads to a match
    kRepeat,    // its child, min to max times
    kLook,      // lookahead: its child matches here (negative: does not); takes no text
    kAtomic,    // the first match of its child, without backtracking into it
  };
  enum class Greed { kGreedy, kLazy, kPossessive };

  Kind kind = Kind::kSequence;
  size_t set = 0;
  int min = 0;
  int max = 0;  // kUnbounded
  Greed greed = Greed::kGreedy;
  bool negative = false;
  std::vector<ExpressionNode> children;
};
constexpr int kUnbounded = -1;

struct ExpressionTree {
  ExpressionNode root;
  std::vector<CodePointSet> sets;
};

// The fewest characters that the node can match.
size_t characters_min(const ExpressionNode& node);

// kUnsupported for other syntax and kDataLoss for malformed expressions, both with the byte in
// `expression`. `where` names the expression in errors.
Result<ExpressionTree> parse_expression(std::string_view expression, const std::string& where);

}  // namespace specd
