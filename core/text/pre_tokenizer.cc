#include "core/text/pre_tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/text/byte_level.h"
#include "core/text/tokenizer_json.h"

namespace specd {
namespace {

// A flag that the reference requires.
Result<bool> demanded_bool(const Json& object, const char* key, const std::string& where) {
  if (object.is_object() && !object.contains(key)) {
    return Status(Code::kDataLoss, where + ": the key '" + std::string(key) + "' is missing");
  }
  return json_bool_or(object, key, false, where);
}

std::string_view view(const Pieces& pieces, const TextRange& range) {
  return std::string_view(pieces.text.text).substr(range.begin, range.end - range.begin);
}
std::string_view marks(const Pieces& pieces, const TextRange& range) {
  return std::string_view(pieces.text.marks).substr(range.begin, range.end - range.begin);
}

void append_piece(size_t begin, Pieces& pieces) {
  const size_t end = pieces.text.text.size();
  if (begin < end) pieces.ranges.push_back({begin, end});
}

}  // namespace

Result<PreTokenizer> PreTokenizer::from_json(const Json& pre_tokenizer, const std::string& where) {
  PreTokenizer made;
  if (!pre_tokenizer.is_null()) SPECD_OK_OR_RETURN(made.read(pre_tokenizer, where));
  return made;
}

Status PreTokenizer::read(const Json& pre_tokenizer, const std::string& where) {
  SPECD_TRY(const std::string type, json_string(pre_tokenizer, "type", where));
  if (type == "Sequence") {
    const auto list = pre_tokenizer.find("pretokenizers");
    if (list == pre_tokenizer.end() || !list->is_array()) {
      return Status(Code::kDataLoss, where + ".pretokenizers: expected a list");
    }
    int index = 0;
    for (const Json& step : *list) {
      SPECD_OK_OR_RETURN(read(step, where + ".pretokenizers[" + std::to_string(index++) + "]"));
    }
    return Status();
  }
  // Check before compiling the step.
  if (steps_.size() == kStepsMax) {
    return Status(Code::kUnsupported,
                  where + ": more than " + std::to_string(kStepsMax) + " steps");
  }
  if (type == "Split") return read_split(pre_tokenizer, where);
  if (type == "Metaspace") return read_metaspace(pre_tokenizer, where);
  if (type == "Digits") {
    SPECD_TRY(const bool single, demanded_bool(pre_tokenizer, "individual_digits", where));
    steps_.emplace_back(
        Split{Pattern::numeric(), single ? Behavior::kIsolated : Behavior::kContiguous, false});
    return Status();
  }
  if (type == "ByteLevel") {
    SPECD_TRY(const bool prefix, demanded_bool(pre_tokenizer, "add_prefix_space", where));
    SPECD_TRY(const bool use_regex, json_bool_or(pre_tokenizer, "use_regex", true, where));
    if (prefix) steps_.emplace_back(Prefix{" ", false});
    if (use_regex) {
      steps_.emplace_back(Split{Pattern::scanner(gpt2_piece_end), Behavior::kIsolated, false});
    }
    steps_.emplace_back(ToByteLevel());
    return Status();
  }
  return unsupported(where, pre_tokenizer, "null, Split, Digits, ByteLevel, Metaspace, Sequence");
}

Status PreTokenizer::read_split(const Json& split, const std::string& where) {
  static constexpr std::string_view kBehaviors[] = {"Removed", "Isolated", "MergedWithPrevious",
                                                    "MergedWithNext", "Contiguous"};
  const auto pattern = split.find("pattern");
  Split step;
  SPECD_TRY(step.pattern,
            Pattern::from_json(pattern == split.end() ? Json() : *pattern, where + ".pattern"));
  SPECD_TRY(const std::string behavior, json_string(split, "behavior", where));
  const auto* found = std::find(std::begin(kBehaviors), std::end(kBehaviors), behavior);
  if (found == std::end(kBehaviors)) {
    return unsupported(where + ".behavior", behavior,
                       "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
  }
  step.behavior = static_cast<Behavior>(found - std::begin(kBehaviors));
  SPECD_TRY(step.invert, demanded_bool(split, "invert", where));
  steps_.emplace_back(std::move(step));
  return Status();
}

Status PreTokenizer::read_metaspace(const Json& metaspace, const std::string& where) {
  SPECD_TRY(const std::string replacement, json_string(metaspace, "replacement", where));
  if (replacement.empty() || utf8_step(replacement, 0).bytes != replacement.size()) {
    return Status(Code::kDataLoss,
                  where + ".replacement: expected one character, found " + quote(replacement));
  }
  SPECD_TRY(const std::string scheme, json_string_or(metaspace, "prepend_scheme", "always", where));
  if (scheme != "first" && scheme != "always" && scheme != "never") {
    return unsupported(where + ".prepend_scheme", scheme, "first, always, never");
  }
  // The older spelling. Like the reference, refuse it when the two disagree.
  SPECD_TRY(const bool add_prefix, json_bool_or(metaspace, "add_prefix_space", true, where));
  if (!add_prefix && scheme != "never") {
    return Status(Code::kDataLoss, where + ": add_prefix_space is false and prepend_scheme " +
                                       quote(scheme) + ", expected 'never'");
  }
  SPECD_TRY(const bool split, json_bool_or(metaspace, "split", true, where));
  steps_.emplace_back(Replace{replacement});
  if (scheme != "never") steps_.emplace_back(Prefix{replacement, scheme == "first"});
  if (split) {
    steps_.emplace_back(Split{Pattern::literal(replacement), Behavior::kMergedWithNext, false});
  }
  return Status();
}

bool PreTokenizer::ends_in_byte_level() const {
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    if (std::holds_alternative<ToByteLevel>(*step)) return true;
    if (!std::holds_alternative<Split>(*step)) return false;
  }
  return false;
}

bool PreTokenizer::removes() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* split = std::get_if<Split>(&step);
    return split != nullptr && split->behavior == Behavior::kRemoved;
  });
}

bool PreTokenizer::asks_for_first() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    const auto* prefix = std::get_if<Prefix>(&step);
    return prefix != nullptr && prefix->only_first;
  });
}

Status PreTokenizer::apply(Pieces& pieces, StepBudget& budget) const {
  const size_t bytes = pieces.text.text.size();
  const size_t bytes_max = bytes + budget.growth_left();
  for (const Step& step : steps_) {
    if (const auto* split = std::get_if<Split>(&step)) {
      SPECD_OK_OR_RETURN(apply(*split, pieces, budget));
    } else {
      SPECD_OK_OR_RETURN(take_steps(pieces.text.text.size(), budget));
      std::visit(
          [&](const auto& rewriting) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(rewriting)>, Split>) {
              apply(rewriting, pieces);
            }
          },
          step);
    }
    if (pieces.text.text.size() > bytes_max) return grows_too_large("pre_tokenizer");
  }
  budget.take_growth(bytes, pieces.text.text.size());
  return Status();
}

Status PreTokenizer::apply(const Split& split, Pieces& pieces, StepBudget& budget) {
  std::vector<TextRange> cut;
  std::vector<Pattern::Part> parts;
  for (const TextRange& range : pieces.ranges) {
    SPECD_OK_OR_RETURN(split.pattern.cut(view(pieces, range), budget, parts));
    const auto add = [&](size_t begin, size_t end) {
      if (begin < end) cut.push_back({range.begin + begin, range.begin + end});
    };
    // Merge over the parts in order; for MergedWithNext from the end.
    const bool backwards = split.behavior == Behavior::kMergedWithNext;
    const size_t first_cut = cut.size();
    bool previous = false;  // whether the part before was a match
    bool any = false;
    TextRange merged;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Pattern::Part& part = parts[backwards ? parts.size() - 1 - i : i];
      const bool is_match = part.is_match != split.invert;
      bool joins = false;
      switch (split.behavior) {
        case Behavior::kRemoved:
        case Behavior::kIsolated:
          break;
        case Behavior::kMergedWithPrevious:
        case Behavior::kMergedWithNext:
          joins = is_match && !previous;
          break;
        case Behavior::kContiguous:
          joins = is_match == previous;
          break;
      }
      previous = is_match;
      if (split.behavior == Behavior::kRemoved && is_match) continue;
      if (joins && any) {
        (backwards ? merged.begin : merged.end) = backwards ? part.begin : part.end;
        continue;
      }
      if (any) add(merged.begin, merged.end);
      merged = {part.begin, part.end};
      any = true;
    }
    if (any) add(merged.begin, merged.end);
    if (backwards) std::reverse(cut.begin() + static_cast<std::ptrdiff_t>(first_cut), cut.end());
  }
  pieces.ranges = std::move(cut);
  return Status();
}

void PreTokenizer::apply(const Prefix& prefix, Pieces& pieces) {
  Pieces out;
  for (const TextRange& range : pieces.ranges) {
    const size_t begin = out.text.text.size();
    const char first = pieces.text.marks[range.begin];
    const bool wanted = !prefix.only_first || (first & kMarkFirst) != 0;
    if (wanted && !view(pieces, range).starts_with(prefix.prefix)) {
      out.text.append(prefix.prefix, first);
    }
    out.text.append(view(pieces, range), marks(pieces, range));
    append_piece(begin, out);
  }
  pieces = std::move(out);
}

void PreTokenizer::apply(const Replace& replace, Pieces& pieces) {
  Pieces out;
  for (const TextRange& range : pieces.ranges) {
    const size_t begin = out.text.text.size();
    const std::string_view piece = view(pieces, range);
    const std::string_view piece_marks = marks(pieces, range);
    for (size_t at = 0; at < piece.size();) {
      const size_t end = std::min(piece.find(' ', at), piece.size());
      out.text.append(piece.substr(at, end - at), piece_marks.substr(at, end - at));
      if (end < piece.size()) out.text.append(replace.replacement, piece_marks[end]);
      at = end + 1;
    }
    append_piece(begin, out);
  }
  pieces = std::move(out);
}

void PreTokenizer::apply(const ToByteLevel&, Pieces& pieces) {
  Pieces out;
  out.text.text.reserve(pieces.text.text.size() * 2);
  out.text.marks.reserve(pieces.text.text.size() * 2);
  out.ranges.reserve(pieces.ranges.size());
  for (const TextRange& range : pieces.ranges) {
    const size_t begin = out.text.text.size();
    for (size_t at = range.begin; at < range.end; ++at) {
      out.text.append(byte_level_character(static_cast<unsigned char>(pieces.text.text[at])),
                      pieces.text.marks[at]);
    }
    append_piece(begin, out);
  }
  pieces = std::move(out);
}

}  // namespace specd
