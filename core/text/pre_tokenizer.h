// The pre_tokenizer of a tokenizer.json: cuts a text into pieces, which the model encodes one by
// one. Supports Split, Digits, ByteLevel, Metaspace and Sequences of them.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/base/text_range.h"
#include "core/text/pattern.h"
#include "core/text/source_text.h"

namespace specd {

// A text and its pieces in order. Text outside every piece is dropped.
struct Pieces {
  SourceText text;
  std::vector<TextRange> ranges;  // none of them empty
};

// Immutable; const calls are thread-safe.
class PreTokenizer {
 public:
  // null keeps a text in one piece. kUnsupported and kDataLoss with the place.
  static Result<PreTokenizer> from_json(const Json& pre_tokenizer, const std::string& where);

  // Cuts every piece further. kUnsupported when the text would grow more, or take more steps, than
  // `budget` has left.
  Status apply(Pieces& pieces, StepBudget& budget) const;

  // Whether it leaves all pieces in GPT-2's alphabet.
  bool ends_in_byte_level() const;
  // Whether it drops parts of the text.
  bool removes() const;
  // Whether it treats the first piece of the text differently.
  bool asks_for_first() const;

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Scheme { kFirst, kAlways, kNever };
  struct Split {
    Pattern pattern;
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };
  // Puts `prefix` before every piece that lacks it, or only before the first of the text.
  struct Prefix {
    std::string prefix;
    bool only_first = false;
  };
  struct Replace {  // every space
    std::string replacement;
  };
  struct ToByteLevel {};
  using Step = std::variant<Split, Prefix, Replace, ToByteLevel>;

  Status read(const Json& pre_tokenizer, const std::string& where);
  Status read_split(const Json& split, const std::string& where);
  Status read_metaspace(const Json& metaspace, const std::string& where);
  static Status apply(const Split& split, Pieces& pieces, StepBudget& budget);
  static void apply(const Prefix& prefix, Pieces& pieces);
  static void apply(const Replace& replace, Pieces& pieces);
  static void apply(const ToByteLevel& to, Pieces& pieces);

  std::vector<Step> steps_;
};

}  // namespace specd
