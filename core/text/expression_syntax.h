// Reads a regular expression of tokenizer.json into a tree.
//
// The reference reads expressions with Oniguruma. What is accepted here has one meaning in it that
// this file knows to the letter; everything else is refused with its place, also where other
// engines have an obvious answer. Sets of characters are worked out here from the reference's own
// tables, so a tree holds nothing but sets, order, choice, repetition and lookahead.
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
    kSequence,  // all children in turn; without children: nothing
    kChoice,    // the first child that leads to a match
    kRepeat,    // its child min to max times
    kLook,      // its child matches here (negative: does not), and nothing is taken
    kAtomic,    // its child's first match, never another
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

// The fewest characters that the node takes.
size_t characters_min(const ExpressionNode& node);

// kUnsupported with the byte of `expression` for what is not in the list above, kDataLoss where it
// is malformed. `where` names the expression in errors.
Result<ExpressionTree> parse_expression(std::string_view expression, const std::string& where);

}  // namespace specd
