#include "core/text/normalizer.h"

#include <utility>

#include "core/base/utf8.h"
#include "core/text/nfc.h"
#include "core/text/tokenizer_json.h"

namespace specd {
namespace {

constexpr size_t kContentBytesMax = 256;

void nfc(SourceText& text) {
  SourceText out;
  const std::string_view from = text.text;
  for (size_t at = 0; at < from.size();) {
    size_t ascii_end = at;
    while (ascii_end < from.size() && static_cast<unsigned char>(from[ascii_end]) < 0x80) {
      ++ascii_end;
    }
    // The last ASCII character may combine with what follows.
    if (ascii_end < from.size() && ascii_end > at) --ascii_end;
    if (ascii_end > at) {
      out.append(from.substr(at, ascii_end - at),
                 std::string_view(text.marks).substr(at, ascii_end - at));
      at = ascii_end;
      continue;
    }
    const size_t end = nfc_unit_end(from, at);
    char mark = 0;
    for (size_t i = at; i < end; ++i) mark |= text.marks[i];
    append_nfc(from.substr(at, end - at), out.text);
    out.marks.resize(out.text.size(), mark);
    at = end;
  }
  text = std::move(out);
}

Status too_large() { return grows_too_large("normalizer"); }

Status replace(const Pattern& pattern, const std::string& content, size_t bytes_max,
               SourceText& text, StepBudget& budget) {
  std::vector<Pattern::Part> parts;
  SPECD_OK_OR_RETURN(pattern.cut(text.text, budget, parts));
  SourceText out;
  for (const Pattern::Part& part : parts) {
    const std::string_view marks =
        std::string_view(text.marks).substr(part.begin, part.end - part.begin);
    if (!part.is_match) {
      out.append(std::string_view(text.text).substr(part.begin, marks.size()), marks);
      continue;
    }
    // In the reference the replacement belongs to the last character of the match. It counts as the
    // user's text when any byte of the match does.
    char mark = static_cast<char>(marks.back() & kMarkFirst);
    for (const char c : marks) mark |= static_cast<char>(c & (kMarkPlain | kMarkText));
    out.append(content, mark);
    if (out.text.size() > bytes_max) return too_large();
  }
  text = std::move(out);
  return Status();
}

}  // namespace

Result<std::pair<Pattern, std::string>> read_replace(const Json& replace,
                                                     const std::string& where) {
  const auto found = replace.find("pattern");
  SPECD_TRY(Pattern pattern,
            Pattern::from_json(found == replace.end() ? Json() : *found, where + ".pattern"));
  if (pattern.may_match_nothing()) {
    return Status(Code::kUnsupported,
                  where + ".pattern: may match nothing, and so would match everywhere");
  }
  SPECD_TRY(std::string content, json_string(replace, "content", where));
  if (content.size() > kContentBytesMax) {
    return Status(Code::kUnsupported, where + ".content: found " + std::to_string(content.size()) +
                                          " bytes, supported: " + std::to_string(kContentBytesMax));
  }
  return std::pair(std::move(pattern), std::move(content));
}

Result<Normalizer> Normalizer::from_json(const Json& normalizer, const std::string& where) {
  Normalizer made;
  if (!normalizer.is_null()) SPECD_OK_OR_RETURN(made.read(normalizer, where));
  return made;
}

Status Normalizer::read(const Json& normalizer, const std::string& where) {
  SPECD_TRY(const std::string type_text, json_string(normalizer, "type", where));
  const std::string_view type = type_text;
  if (type == "Sequence") return read_sequence(normalizer, where);
  if (steps_.size() == kStepsMax) {
    return Status(Code::kUnsupported,
                  where + ": more than " + std::to_string(kStepsMax) + " steps");
  }
  if (type == "NFC") {
    steps_.emplace_back(Nfc());
    return Status();
  }
  if (type == "Prepend") return read_prepend(normalizer, where);
  if (type == "Replace") {
    SPECD_TRY(auto parts, read_replace(normalizer, where));
    steps_.emplace_back(Replace{std::move(parts.first), std::move(parts.second)});
    return Status();
  }
  return unsupported(where, normalizer, "null, NFC, Prepend, Replace, Sequence");
}

Status Normalizer::read_sequence(const Json& sequence, const std::string& where) {
  const auto list = sequence.find("normalizers");
  if (list == sequence.end() || !list->is_array()) {
    return Status(Code::kDataLoss, where + ".normalizers: expected a list");
  }
  int index = 0;
  for (const Json& step : *list) {
    SPECD_OK_OR_RETURN(read(step, where + ".normalizers[" + std::to_string(index++) + "]"));
  }
  return Status();
}

Status Normalizer::read_prepend(const Json& prepend, const std::string& where) {
  SPECD_TRY(std::string text, json_string(prepend, "prepend", where));
  if (text.size() > kContentBytesMax) {
    return Status(Code::kUnsupported, where + ".prepend: found " + std::to_string(text.size()) +
                                          " bytes, supported: " + std::to_string(kContentBytesMax));
  }
  steps_.emplace_back(Prepend{std::move(text)});
  return Status();
}

size_t Normalizer::shrinks_at_most() const {
  // Three are known (U+212A is K, three jamo are one syllable); one more to be safe.
  constexpr size_t kNfc = 4;
  size_t most = 1;
  for (const auto& step : steps_) {
    if (std::holds_alternative<Replace>(step)) return 0;
    if (std::holds_alternative<Nfc>(step)) most *= kNfc;
  }
  return most;
}

bool Normalizer::keeps_track_of_first() const {
  for (const auto& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) return false;
  }
  return true;
}

Status Normalizer::apply(SourceText& text, StepBudget& budget) const {
  const size_t bytes = text.text.size();
  const size_t bytes_max = bytes + budget.growth_left();
  for (const auto& step : steps_) {
    if (std::holds_alternative<Nfc>(step)) {
      nfc(text);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (text.text.empty()) continue;
      const char mark = text.marks[0];
      text.text.insert(0, prepend->text);
      text.marks.insert(0, prepend->text.size(), mark);
    } else {
      const auto& [pattern, content] = std::get<Replace>(step);
      SPECD_OK_OR_RETURN(replace(pattern, content, bytes_max, text, budget));
    }
    if (text.text.size() > bytes_max) return too_large();
    SPECD_OK_OR_RETURN(take_steps(text.text.size(), budget));
  }
  budget.take_growth(bytes, text.text.size());
  return Status();
}

}  // namespace specd
