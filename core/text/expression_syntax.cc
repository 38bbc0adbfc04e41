#include "core/text/expression_syntax.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd {
namespace {

using Node = ExpressionNode;
using Kind = ExpressionNode::Kind;
using Greed = ExpressionNode::Greed;

constexpr size_t kBytesMax = 4096;
constexpr size_t kSetsMax = 512;
constexpr int kDepthMax = 32;
constexpr int kRepeatMax = 1000;

CodePointSet tidy(CodePointSet ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
  CodePointSet set;
  for (const CodePointRange& range : ranges) {
    if (!set.empty() && range.first <= set.back().last + 1) {
      set.back().last = std::max(set.back().last, range.last);
    } else {
      set.push_back(range);
    }
  }
  return set;
}

CodePointSet complement(const CodePointSet& set) {
  CodePointSet others;
  char32_t next = 0;
  for (const CodePointRange& range : set) {
    if (next < range.first) others.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) others.push_back({next, kLastCodePoint});
  return others;
}

bool is_letter_or_digit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  Result<ExpressionTree> parse() {
    if (text_.empty()) return Status(Code::kDataLoss, where_ + ": the expression is empty");
    if (text_.size() > kBytesMax) {
      return Status(Code::kUnsupported, where_ + ": an expression of " +
                                            std::to_string(text_.size()) +
                                            " bytes, supported: " + std::to_string(kBytesMax));
    }
    SPECD_TRY(tree_.root, choice(0));
    if (at_ < text_.size()) return malformed("')' without '('");
    return std::move(tree_);
  }

 private:
  std::string place() const {
    return where_ + ": expression " + quote(text_) + ": byte " + std::to_string(at_) + ": ";
  }
  Status unsupported(const std::string& what) const {
    return Status(Code::kUnsupported, place() + what);
  }
  Status malformed(const std::string& what) const {
    return Status(Code::kDataLoss, place() + what);
  }

  bool next_is(std::string_view token) const {
    return text_.compare(at_, token.size(), token) == 0;
  }
  bool take(std::string_view token) {
    if (!next_is(token)) return false;
    at_ += token.size();
    return true;
  }
  bool at_end() const { return at_ >= text_.size(); }

  Result<Node> set_node(CodePointSet set) {
    auto& sets = tree_.sets;
    const auto same = std::find_if(sets.begin(), sets.end(), [&](const CodePointSet& other) {
      return std::equal(set.begin(), set.end(), other.begin(), other.end(),
                        [](const CodePointRange& a, const CodePointRange& b) {
                          return a.first == b.first && a.last == b.last;
                        });
    });
    Node node;
    node.kind = Kind::kSet;
    node.set = static_cast<size_t>(same - sets.begin());
    if (same == sets.end()) sets.push_back(std::move(set));
    if (sets.size() > kSetsMax) {
      return unsupported("more than " + std::to_string(kSetsMax) + " different sets");
    }
    return node;
  }

  Result<Node> choice(int depth) {
    std::vector<Node> branches;
    do {
      SPECD_TRY(Node branch, sequence(depth));
      branches.push_back(std::move(branch));
    } while (take("|"));
    if (branches.size() == 1) return std::move(branches[0]);
    Node node;
    node.kind = Kind::kChoice;
    node.children = std::move(branches);
    return node;
  }

  Result<Node> sequence(int depth) {
    Node node;
    while (!at_end() && !next_is("|") && !next_is(")")) {
      SPECD_TRY(Node item, this->item(depth));
      SPECD_TRY(item, quantified(std::move(item)));
      node.children.push_back(std::move(item));
    }
    return node;
  }

  Result<Node> item(int depth) {
    const char c = text_[at_];
    if (c == '(') return group(depth);
    if (c == '[') {
      SPECD_TRY(CodePointSet set, bracket());
      return set_node(std::move(set));
    }
    if (c == '\\') {
      SPECD_TRY(Escape escape, this->escape());
      return set_node(std::move(escape.set));
    }
    if (take(".")) return set_node(complement({{'\n', '\n'}}));
    if (c == '^' || c == '$') {
      return unsupported(std::string("the anchor '") + c + "' is not supported");
    }
    if (c == '*' || c == '+' || c == '?') return malformed("nothing to repeat");
    if (c == '{' || c == '}' || c == ']') {
      return unsupported(std::string("write '") + c + "' as '\\" + c + "'");
    }
    const char32_t literal = character();
    return set_node({{literal, literal}});
  }

  char32_t character() {
    const Utf8Step step = utf8_step(text_, at_);
    at_ += step.bytes;
    return step.code_point;
  }

  Result<Node> group(int depth) {
    if (depth == kDepthMax) {
      return unsupported("groups nested deeper than " + std::to_string(kDepthMax));
    }
    Node node;
    if (take("(?i:")) return folded();
    if (take("(?=")) {
      node.kind = Kind::kLook;
    } else if (take("(?!")) {
      node.kind = Kind::kLook;
      node.negative = true;
    } else if (take("(?>")) {
      node.kind = Kind::kAtomic;
    } else if (!take("(?:")) {
      if (next_is("(?")) {
        return unsupported("only (?: ), (?i: ), (?= ), (?! ) and (?> ) are supported");
      }
      take("(");  // its capture is not used
    }
    SPECD_TRY(Node body, choice(depth + 1));
    if (!take(")")) return malformed("a group without ')'");
    node.children.push_back(std::move(body));
    return node;  // a plain group is a sequence of one
  }

  // (?i: ): each ASCII letter matches what Oniguruma's case folding makes equal to it. Pairs that
  // it folds to one character are refused.
  Result<Node> folded() {
    Node choices;
    choices.kind = Kind::kChoice;
    Node branch;
    char previous = 0;
    for (; !at_end() && !next_is(")"); ++at_) {
      const char c = text_[at_];
      if (c == '|') {
        choices.children.push_back(std::exchange(branch, Node()));
        previous = 0;
        continue;
      }
      const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
      if (static_cast<unsigned char>(c) >= 0x80 ||
          std::string_view("()[]{}*+?.^$\\").find(c) != std::string_view::npos) {
        return unsupported("only plain ASCII characters and '|' inside (?i: )");
      }
      for (const std::string_view pair : {"ss", "st", "ff", "fi", "fl"}) {
        if (previous == pair[0] && lower == pair[1]) {
          return unsupported("the pair '" + std::string(pair) +
                             "' inside (?i: ) is also one character");
        }
      }
      previous = lower;
      CodePointSet set = {{static_cast<char32_t>(lower), static_cast<char32_t>(lower)}};
      if (lower >= 'a' && lower <= 'z') {
        const auto upper = static_cast<char32_t>(lower - 32);
        set.push_back({upper, upper});
        if (lower == 's') set.push_back({0x17F, 0x17F});    // long s
        if (lower == 'k') set.push_back({0x212A, 0x212A});  // Kelvin sign
      }
      SPECD_TRY(Node node, set_node(tidy(std::move(set))));
      branch.children.push_back(std::move(node));
    }
    if (!take(")")) return malformed("a group without ')'");
    choices.children.push_back(std::move(branch));
    Node node;
    node.children.push_back(std::move(choices));
    return node;
  }

  struct Escape {
    CodePointSet set;
    bool single = false;  // a single character, so it may begin or end a range
  };

  Result<Escape> escape() {
    const size_t begin = at_++;
    if (at_end()) {
      at_ = begin;
      return malformed("'\\' at the end");
    }
    const char c = text_[at_++];
    const auto one = [](char32_t code_point) { return Escape{{{code_point, code_point}}, true}; };
    switch (c) {
      case 'n':
        return one('\n');
      case 'r':
        return one('\r');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 's':
        return Escape{space_ranges()};
      case 'S':
        return Escape{complement(space_ranges())};
      case 'd':
        return Escape{category_ranges("Nd")};
      case 'D':
        return Escape{complement(category_ranges("Nd"))};
      case 'p':
      case 'P': {
        const size_t end = text_.find('}', at_);
        if (!take("{") || end == std::string_view::npos) {
          at_ = begin;
          return malformed("expected \\p{name}");
        }
        const bool negative = take("^") != (c == 'P');
        CodePointSet set = category_ranges(text_.substr(at_, end - at_));
        if (set.empty()) {
          return unsupported("unknown property " + quote(text_.substr(at_, end - at_), 40) +
                             "; supported: general categories as 'L' or 'Lu'");
        }
        at_ = end + 1;
        return Escape{negative ? complement(set) : std::move(set)};
      }
      case 'u': {
        std::optional<char32_t> code_point = hexadecimal(4);
        if (!code_point || (*code_point >= 0xD800 && *code_point <= 0xDFFF)) {
          at_ = begin;
          return malformed("expected \\u and four hexadecimal digits of a character");
        }
        return one(*code_point);
      }
      default:
        break;
    }
    if (static_cast<unsigned char>(c) >= 0x80 || c <= ' ' || is_letter_or_digit(c) || c == 0x7F) {
      at_ = begin;
      return unsupported(
          "this escape; supported: \\n \\r \\t \\f \\v \\s \\S \\d \\D \\p{..} \\P{..} "
          "\\uHHHH and escaped punctuation");
    }
    return one(static_cast<char32_t>(c));
  }

  std::optional<char32_t> hexadecimal(size_t digits) {
    char32_t value = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      if (at_end()) return std::nullopt;
      const char c = text_[at_];
      const size_t digit = std::string_view("0123456789abcdef")
                               .find(c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c);
      if (digit == std::string_view::npos) return std::nullopt;
      value = value * 16 + static_cast<char32_t>(digit);
    }
    return value;
  }

  Result<CodePointSet> bracket() {
    take("[");
    const bool negative = take("^");
    CodePointSet set;
    for (bool first = true; !next_is("]") || first; first = false) {
      if (at_end()) return malformed("'[' without ']'");
      if (next_is("]")) return unsupported("an empty set; write ']' as '\\]'");
      if (next_is("[")) return unsupported("'[' inside a set; write it as '\\['");
      if (next_is("&&")) return unsupported("'&&' inside a set");
      if (next_is("-") && !first && !next_is("-]")) {
        return unsupported("'-' in the middle of a set; write it as '\\-'");
      }
      SPECD_TRY(Escape from, bracket_character());
      if (next_is("-") && !next_is("-]")) {
        take("-");
        if (at_end()) return malformed("'[' without ']'");
        if (next_is("[") || next_is("&&") || next_is("-")) return unsupported("this range");
        SPECD_TRY(const Escape to, bracket_character());
        if (!from.single || !to.single) return unsupported("a range between sets");
        if (from.set[0].first > to.set[0].first) return malformed("a range that runs backwards");
        from.set[0].last = to.set[0].first;
      }
      set.insert(set.end(), from.set.begin(), from.set.end());
    }
    take("]");
    set = tidy(std::move(set));
    if (negative) set = complement(set);
    return set;
  }

  Result<Escape> bracket_character() {
    if (next_is("\\")) return escape();
    const char32_t literal = character();
    return Escape{{{literal, literal}}, true};
  }

  // Reads {n}, {n,} or {n,m} at `at_`. Otherwise returns false and takes nothing.
  bool take_braces(Node& repeat) {
    size_t at = at_ + 1;
    const auto number = [&](int& value) {
      const size_t begin = at;
      for (value = 0; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
        value = std::min(value * 10 + (text_[at] - '0'), kRepeatMax + 1);
      }
      return at > begin;
    };
    const auto is = [&](char c) { return at < text_.size() && text_[at] == c; };
    if (!number(repeat.min)) return false;
    repeat.max = repeat.min;
    if (is(',')) {
      ++at;
      if (!number(repeat.max)) repeat.max = kUnbounded;
    }
    if (!is('}')) return false;
    at_ = at + 1;
    return true;
  }

  Result<Node> quantified(Node child) {
    const size_t begin = at_;
    Node repeat;
    repeat.kind = Kind::kRepeat;
    repeat.max = kUnbounded;
    const bool braces = next_is("{");
    if (take("+")) {
      repeat.min = 1;
    } else if (take("?")) {
      repeat.max = 1;
    } else if (braces) {
      if (!take_braces(repeat)) return unsupported("expected {n}, {n,} or {n,m}");
      if (repeat.max == 0 || repeat.min > kRepeatMax || repeat.max > kRepeatMax ||
          (repeat.max != kUnbounded && repeat.max < repeat.min)) {
        at_ = begin;
        return unsupported("expected counts in order, from 1 to " + std::to_string(kRepeatMax));
      }
    } else if (!take("*")) {
      return child;
    }
    if (braces && (next_is("+") || (next_is("?") && repeat.min == repeat.max))) {
      return unsupported("a sign after braces means different things in different engines");
    }
    if (take("?"))
      repeat.greed = Greed::kLazy;
    else if (take("+"))
      repeat.greed = Greed::kPossessive;
    if (next_is("*") || next_is("+") || next_is("?") || next_is("{")) {
      return unsupported("a repetition of a repetition; put (?: ) around the first");
    }
    at_ = begin;  // errors about the repeated part point here
    if (child.kind == Kind::kLook) return unsupported("a lookahead cannot be repeated");
    if (characters_min(child) == 0) return unsupported("what is repeated may match nothing");
    const Node* inner = &child;
    while (inner->kind == Kind::kSequence && inner->children.size() == 1) {
      inner = &inner->children[0];
    }
    if (inner->kind == Kind::kRepeat &&
        (inner->greed != Greed::kGreedy || repeat.greed != Greed::kGreedy)) {
      return unsupported("repetitions of repetitions must be greedy");
    }
    at_ = end_of_quantifier(begin);
    repeat.children.push_back(std::move(child));
    return repeat;
  }

  size_t end_of_quantifier(size_t begin) const {
    size_t end = text_[begin] == '{' ? text_.find('}', begin) + 1 : begin + 1;
    if (end < text_.size() && (text_[end] == '?' || text_[end] == '+')) ++end;
    return end;
  }

  std::string_view text_;
  const std::string& where_;
  size_t at_ = 0;
  ExpressionTree tree_;
};

}  // namespace

size_t characters_min(const ExpressionNode& node) {
  switch (node.kind) {
    case Kind::kSet:
      return 1;
    case Kind::kLook:
      return 0;
    case Kind::kRepeat:
      return std::min<size_t>(characters_min(node.children[0]) * static_cast<size_t>(node.min),
                              kBytesMax);
    case Kind::kChoice: {
      size_t least = kBytesMax;
      for (const Node& child : node.children) least = std::min(least, characters_min(child));
      return least;
    }
    case Kind::kAtomic:
    case Kind::kSequence: {
      size_t sum = 0;
      for (const Node& child : node.children) sum += characters_min(child);
      return std::min(sum, kBytesMax);
    }
  }
  return 0;
}

Result<ExpressionTree> parse_expression(std::string_view expression, const std::string& where) {
  return Parser(expression, where).parse();
}

}  // namespace specd
