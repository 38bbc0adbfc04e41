#include "core/text/expression.h"

#include <algorithm>
#include <map>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd {
namespace {

using Node = ExpressionNode;
using Kind = ExpressionNode::Kind;
using Greed = ExpressionNode::Greed;

constexpr size_t kInstructionsMax = 4096;
constexpr uint32_t kMemosMax = 256;
constexpr size_t kStackPerCharacter = 4;
constexpr size_t kStackMin = 10'000;
constexpr uint64_t kStepsOfAllocation = 16;  // the price of an allocation, which short texts notice

}  // namespace

// Turns the tree into instructions. Counted repetitions are unrolled.
class ExpressionCompiler {
 public:
  explicit ExpressionCompiler(Expression& made) : made_(made) {}

  bool fits() const {
    return made_.program_.size() <= kInstructionsMax && made_.memos_ <= kMemosMax;
  }

  void emit(const Node& node) {
    if (!fits()) return;
    switch (node.kind) {
      case Kind::kSet:
        add(Op::kSet, node.set);
        return;
      case Kind::kSequence:
        for (const Node& child : node.children) emit(child);
        return;
      case Kind::kChoice:
        emit_choice(node);
        return;
      case Kind::kRepeat:
        if (node.greed == Greed::kPossessive) return emit_possessive(node);
        return emit_repeat(node, node.greed == Greed::kLazy);
      case Kind::kLook:
      case Kind::kAtomic: {
        const uint32_t at = add(node.kind == Kind::kLook ? Op::kLook : Op::kAtomic);
        made_.program_[at].negative = node.negative;
        emit(node.children[0]);
        add(Op::kEnd);
        made_.program_[at].a = here();
        return;
      }
    }
  }

  uint32_t add(Expression::Op op, size_t set = 0) {
    Expression::Instruction instruction;
    instruction.op = op;
    instruction.set = static_cast<uint32_t>(set);
    if (op == Op::kSplit || op == Op::kRun) instruction.memo = made_.memos_++;
    made_.program_.push_back(instruction);
    return here() - 1;
  }

 private:
  using Op = Expression::Op;

  uint32_t here() const { return static_cast<uint32_t>(made_.program_.size()); }

  // The split at `at` prefers what follows it, or (lazy) `other`.
  void point(uint32_t at, uint32_t other, bool lazy) {
    made_.program_[at].a = lazy ? other : at + 1;
    made_.program_[at].b = lazy ? at + 1 : other;
  }

  void emit_choice(const Node& node) {
    std::vector<uint32_t> jumps;
    for (size_t i = 0; i < node.children.size() && fits(); ++i) {
      const bool last = i + 1 == node.children.size();
      const uint32_t split = last ? 0 : add(Op::kSplit);
      emit(node.children[i]);
      if (last) break;
      jumps.push_back(add(Op::kJump));
      point(split, here(), false);
    }
    for (const uint32_t jump : jumps) made_.program_[jump].a = here();
  }

  void emit_possessive(const Node& node) {
    const Node& child = node.children[0];
    if (child.kind == Kind::kSet && node.max == kUnbounded) {
      for (int i = 0; i < node.min && fits(); ++i) emit(child);
      add(Op::kRunAtomic, child.set);
      return;
    }
    const uint32_t at = add(Op::kAtomic);
    emit_repeat(node, false);
    add(Op::kEnd);
    made_.program_[at].a = here();
  }

  void emit_repeat(const Node& node, bool lazy) {
    const Node& child = node.children[0];
    for (int i = 0; i < node.min && fits(); ++i) emit(child);
    if (node.max == kUnbounded) {
      if (child.kind == Kind::kSet && !lazy) {
        add(Op::kRun, child.set);
        return;
      }
      const uint32_t split = add(Op::kSplit);
      emit(child);
      made_.program_[add(Op::kJump)].a = split;
      point(split, here(), lazy);
      return;
    }
    std::vector<uint32_t> splits;
    for (int i = node.min; i < node.max && fits(); ++i) {
      splits.push_back(add(Op::kSplit));
      emit(child);
    }
    for (const uint32_t split : splits) point(split, here(), lazy);
  }

  Expression& made_;
};

// The search of one text.
class ExpressionRun {
 public:
  ExpressionRun(const Expression& expression, std::string kinds, uint64_t steps)
      : expression_(expression),
        kinds_(std::move(kinds)),
        steps_left_(steps),
        stack_max_(kStackMin + kStackPerCharacter * kinds_.size()) {}

  size_t size() const { return kinds_.size(); }
  bool exhausted() const { return exhausted_; }
  uint64_t steps_left() const { return steps_left_; }

  // Whether the program matches at `at`, and where the match ends. Meaningless once exhausted().
  bool match(uint32_t at, uint32_t& end) { return run(0, at, end); }

 private:
  using Op = Expression::Op;
  using Instruction = Expression::Instruction;

  // What to do when something fails.
  struct Entry {
    enum Kind : uint32_t {
      kTry,     // go on at instruction `pc`, character `at`
      kRun,     // the kRun at `pc`, which went from `at` to `top`, may still end before `below`
      kFailed,  // both ways of the split at `pc` have failed
    };
    Kind kind : 2;
    uint32_t pc : 30;
    uint32_t at;
    uint32_t below;
    uint32_t top;
  };

  bool has(const Instruction& instruction, uint32_t at) const {
    return at < kinds_.size() &&
           expression_.sets_[instruction.set][static_cast<uint8_t>(kinds_[at])];
  }
  bool failed(const Instruction& instruction, uint32_t at) const {
    return !failed_.empty() && failed_[instruction.memo * (kinds_.size() + 1) + at];
  }
  void mark_failed(const Instruction& instruction, uint32_t at) {
    if (failed_.empty()) {
      step(kStepsOfAllocation);
      failed_.resize((kinds_.size() + 1) * expression_.memos_);
    }
    failed_[instruction.memo * (kinds_.size() + 1) + at] = true;
  }
  void push(const Entry& entry) {
    if (stack_.capacity() == 0) step(kStepsOfAllocation);
    stack_.push_back(entry);
  }
  void step(uint64_t count) {
    if (steps_left_ < count || stack_.size() > stack_max_) {
      exhausted_ = true;
    } else {
      steps_left_ -= count;
    }
  }

  // Runs from `pc` to the kEnd of its body. Whether a state (pc, at) fails does not depend on what
  // came before, so a failure holds for the whole text. Recurses once per nested lookahead or
  // atomic group.
  bool run(uint32_t pc, uint32_t at, uint32_t& end) {
    const size_t base = stack_.size();
    while (!exhausted_) {
      step(1);
      const Instruction& now = expression_.program_[pc];
      bool goes_on = true;
      uint32_t body_end = 0;
      switch (now.op) {
        case Op::kSet:
          goes_on = has(now, at);
          ++at;
          ++pc;
          break;
        case Op::kRun:
          goes_on = !failed(now, at);
          if (goes_on) at = start_run(now, pc, at);
          ++pc;
          break;
        case Op::kRunAtomic: {
          const uint32_t begin = at;
          while (has(now, at)) ++at;
          step(at - begin);
          ++pc;
          break;
        }
        case Op::kSplit:
          goes_on = !failed(now, at);
          if (goes_on) {
            push({Entry::kFailed, pc, at, 0, 0});
            push({Entry::kTry, now.b, at, 0, 0});
            pc = now.a;
          }
          break;
        case Op::kJump:
          pc = now.a;
          break;
        case Op::kLook:
          goes_on = run(pc + 1, at, body_end) != now.negative;
          pc = now.a;
          break;
        case Op::kAtomic:
          goes_on = run(pc + 1, at, body_end);
          at = body_end;
          pc = now.a;
          break;
        case Op::kEnd:
          end = at;
          stack_.resize(base);
          return true;
      }
      if (!goes_on && !go_back(base, pc, at)) break;
    }
    stack_.resize(base);
    return false;
  }

  // Where the run ends at first: before any place from which the rest is known to fail.
  uint32_t start_run(const Instruction& run, uint32_t pc, uint32_t begin) {
    uint32_t at = begin;
    while (has(run, at) && !failed(run, at + 1)) ++at;
    step(at - begin);
    push({Entry::kRun, pc, begin, at, at});
    return at;
  }

  bool go_back(size_t base, uint32_t& pc, uint32_t& at) {
    while (stack_.size() > base) {
      step(1);
      Entry& last = stack_.back();
      const Instruction& instruction = expression_.program_[last.pc];
      if (last.kind == Entry::kTry) {
        pc = last.pc;
        at = last.at;
        stack_.pop_back();
        return true;
      }
      if (last.kind == Entry::kFailed) {
        mark_failed(instruction, last.at);
      } else if (last.below > last.at) {
        pc = last.pc + 1;
        at = --last.below;
        return true;
      } else {
        for (uint32_t i = last.at; i <= last.top; ++i) mark_failed(instruction, i);
      }
      stack_.pop_back();
    }
    return false;
  }

  const Expression& expression_;
  const std::string kinds_;   // of the text's characters
  std::vector<bool> failed_;  // by memo and character; empty until the first failure
  std::vector<Entry> stack_;
  uint64_t steps_left_;
  size_t stack_max_;
  bool exhausted_ = false;
};

Result<Expression> Expression::compile(std::string_view expression, const std::string& where) {
  SPECD_TRY(const ExpressionTree tree, parse_expression(expression, where));
  Expression made;
  // Without the path of the file: clients may see this.
  made.where_ = "expression " + quote(expression);
  made.may_match_nothing_ = characters_min(tree.root) == 0;
  ExpressionCompiler compiler(made);
  compiler.emit(tree.root);
  compiler.add(Op::kEnd);
  if (!compiler.fits()) {
    return Status(Code::kUnsupported,
                  where + ": " + made.where_ +
                      ": too large: with its repetitions unrolled, supported are " +
                      std::to_string(kInstructionsMax) + " steps and " + std::to_string(kMemosMax) +
                      " choices");
  }
  if (const Status status = made.group_characters(tree.sets); !status.ok())
    return status.with_context(where);
  return made;
}

Status Expression::group_characters(const std::vector<CodePointSet>& sets) {
  // Sweeps over the borders of all sets and tracks which sets contain the current character.
  std::map<char32_t, std::vector<size_t>> toggles;
  for (size_t i = 0; i < sets.size(); ++i) {
    for (const CodePointRange& range : sets[i]) {
      toggles[range.first].push_back(i);
      toggles[range.last + 1].push_back(i);
    }
  }
  toggles[0];
  std::map<std::vector<bool>, uint8_t> kinds;
  std::vector<bool> inside(sets.size());
  sets_.resize(sets.size());
  for (auto border = toggles.begin(); border != toggles.end(); ++border) {
    if (border->first > kLastCodePoint) break;
    for (const size_t set : border->second) inside[set] = !inside[set];
    const auto next = std::next(border);
    const char32_t last = next == toggles.end() ? kLastCodePoint : next->first - 1;
    if (kinds.size() == 256 && kinds.find(inside) == kinds.end()) {
      return Status(Code::kUnsupported,
                    where_ + ": distinguishes more than 256 kinds of characters");
    }
    const auto [kind, added] = kinds.emplace(inside, static_cast<uint8_t>(kinds.size()));
    if (added) {
      for (size_t i = 0; i < sets.size(); ++i) sets_[i][kind->second] = inside[i];
    }
    kinds_.push_back({last, kind->second});
  }
  kinds_.back().last = kLastCodePoint;
  for (char32_t c = 0; c < ascii_kinds_.size(); ++c) {
    ascii_kinds_[c] =
        std::lower_bound(kinds_.begin(), kinds_.end(), c, [](const KindRange& r, char32_t v) {
          return r.last < v;
        })->kind;
  }
  return Status();
}

uint8_t Expression::kind_of(char32_t c) const {
  if (c < ascii_kinds_.size()) return ascii_kinds_[c];
  return std::lower_bound(kinds_.begin(), kinds_.end(), c,
                          [](const KindRange& r, char32_t v) { return r.last < v; })
      ->kind;
}

Status Expression::find_all(std::string_view text, StepBudget& budget,
                            std::vector<Match>& matches) const {
  std::string kinds;  // a string, since a short one needs no allocation
  kinds.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    kinds.push_back(static_cast<char>(kind_of(step.code_point)));
    at += step.bytes;
  }
  ExpressionRun run(*this, std::move(kinds), budget.left());
  size_t byte = 0;  // the offset of `character`
  uint32_t character = 0;
  const auto byte_of = [&](uint32_t target) {
    for (; character < target; ++character) byte += utf8_step(text, byte).bytes;
    return byte;
  };
  bool after_match = false;  // a match ended at `at`, where an empty one would not count
  for (uint32_t at = 0; at <= run.size();) {
    uint32_t end = 0;
    const bool found = run.match(at, end);
    if (run.exhausted()) {
      return Status(Code::kUnsupported, where_ + ": matching at byte " +
                                            std::to_string(byte_of(at)) + " of a text of " +
                                            std::to_string(text.size()) +
                                            " bytes takes too many steps");
    }
    if (!found || (end == at && after_match)) {
      after_match = false;
      ++at;
      continue;
    }
    Match match;
    match.begin = byte_of(at);
    match.end = byte_of(end);
    matches.push_back(match);
    after_match = true;
    at = end;
  }
  (void)budget.take(budget.left() - run.steps_left());
  return Status();
}

}  // namespace specd
