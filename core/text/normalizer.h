// The normalizer of a tokenizer.json: NFC, Prepend, Replace and Sequences of them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/text/pattern.h"
#include "core/text/source_text.h"

namespace specd {

// Immutable; const calls are thread-safe.
class Normalizer {
 public:
  // null means no normalizer. kUnsupported and kDataLoss with the place.
  static Result<Normalizer> from_json(const Json& normalizer, const std::string& where);

  // Normalises in place. kUnsupported when the text would grow more, or take more steps, than
  // `budget` has left.
  Status apply(SourceText& text, StepBudget& budget) const;

  bool empty() const { return steps_.empty(); }
  // The most bytes that may become one byte; 0 = no bound.
  size_t shrinks_at_most() const;
  // False with NFC, which loses track of which output comes from the first character.
  bool keeps_track_of_first() const;

 private:
  struct Nfc {};
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string content;
  };
  Status read(const Json& normalizer, const std::string& where);
  Status read_sequence(const Json& sequence, const std::string& where);
  Status read_prepend(const Json& prepend, const std::string& where);

  std::vector<std::variant<Nfc, Prepend, Replace>> steps_;
};

// Reads a Replace step of a normalizer or decoder.
Result<std::pair<Pattern, std::string>> read_replace(const Json& replace, const std::string& where);

}  // namespace specd
