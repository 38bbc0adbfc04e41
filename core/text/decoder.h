// The decoder of a tokenizer.json: tokens to text, one at a time.
//
//   each token ─ Metaspace, Replace, Strip ─> ByteFallback ─> joined text ─ ByteLevel or Fuse, Strip
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/text/pattern.h"
#include "core/text/step_budget.h"

namespace specd {

// Immutable; const calls are thread-safe.
class Decoder {
 public:
  // Supports the steps above in this order, alone or in a Sequence. kUnsupported and kDataLoss with
  // the place.
  static Result<Decoder> from_json(const Json& decoder, const std::string& where);

  // What one token adds to the text.
  struct Piece {
    std::string bytes;
    bool is_byte = false;  // one byte of ByteFallback
  };
  // `token`: its text in the file. `first`: no token comes before it. kUnsupported when it would
  // grow to more than 16 times its size, or when the budget is spent.
  Result<Piece> piece(std::string_view token, bool first, StepBudget& budget) const;
  // Whether a token's piece can differ when it comes first.
  bool first_differs() const { return !metaspace_.empty() && metaspace_strips_first_; }

 private:
  friend class DecodeStream;

  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {  // from the left, at most `count` times
    std::string content;
    size_t count = 0;
  };
  Status read(const Json& decoder, const std::string& where);

  std::string metaspace_;  // the character; empty: none
  bool metaspace_strips_first_ = false;
  std::vector<std::variant<Replace, Strip>> per_token_;
  bool byte_fallback_ = false;
  bool byte_level_ = false;
  bool fused_ = false;
  std::vector<Strip> after_fuse_;
};

// Turns a stream of pieces into valid UTF-8. Holds back an unfinished character or, with
// ByteFallback, a run of bytes that may still turn out not to be UTF-8: at most kRunBytesMax.
class DecodeStream {
 public:
  // The reference turns such a run into one U+FFFD for each byte, however long it is. We decide
  // after this many bytes, so that text never waits forever.
  static constexpr size_t kRunBytesMax = 128;

  explicit DecodeStream(const Decoder& decoder);  // borrowed for the stream's life

  // The pieces continue an existing text: strip nothing from their left.
  void continue_text() { strips_left_.assign(strips_left_.size(), 0); }
  // Appends the text that the piece completes.
  void push(std::string_view bytes, bool is_byte, std::string& text);
  // Appends what is held back and starts over.
  void flush(std::string& text);

 private:
  void push_byte(char byte, std::string& text);
  void end_run(std::string& text);
  void replace_waiting(std::string& text);  // by one U+FFFD for each byte
  // Appends joined text without what Strip still takes from the left of the whole text.
  void emit(std::string_view joined, std::string& text);

  const Decoder* decoder_;
  std::string waiting_;      // an unfinished character, or a run of bytes
  size_t whole_ = 0;         // how many bytes of the run are whole characters
  bool broken_run_ = false;  // the run is known not to be UTF-8
  std::vector<size_t> strips_left_;
};

}  // namespace specd
