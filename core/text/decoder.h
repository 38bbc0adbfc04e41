// The decoder of a tokenizer.json: tokens to text, one after the other.
//
//   tokens ─ per token: Metaspace, Replace, Strip ─> ByteFallback ─> joined: ByteLevel or Fuse ─>
//   Strip
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
  // kUnsupported and kDataLoss with the place. Supported are the steps above in their order, in a
  // Sequence or alone.
  static Result<Decoder> from_json(const Json& decoder, const std::string& where);

  // What a token gives to the text, for a decoder that joins bytes: the bytes; is_byte when it is
  // one of a run of ByteFallback.
  struct Piece {
    std::string bytes;
    bool is_byte = false;
  };
  // `token`: its text in the file. `first`: no token is before it. kUnsupported when it grows to
  // more than 16 times its size, or when the budget is spent.
  Result<Piece> piece(std::string_view token, bool first, StepBudget& budget) const;
  // Whether the first token's piece can be another one.
  bool first_differs() const { return !metaspace_.empty() && metaspace_strips_first_; }

 private:
  friend class DecodeStream;

  struct Replace {
    Pattern pattern;
    std::string content;
  };
  struct Strip {  // from the left; not more than `count` times
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

// One stream of pieces to valid UTF-8. Holds back the beginning of a character, or, with
// ByteFallback, a run of bytes that may still turn out to be no UTF-8: at most kRunBytesMax.
class DecodeStream {
 public:
  // Of such a run the reference makes one U+FFFD a byte, however long it is. We decide longer runs
  // after this many bytes, so that text never waits without end.
  static constexpr size_t kRunBytesMax = 128;

  explicit DecodeStream(const Decoder& decoder);  // which must live as long

  // What comes is not the beginning of a text: nothing is stripped from its left.
  void continue_text() { strips_left_.assign(strips_left_.size(), 0); }
  // Appends the text that the piece completes.
  void push(std::string_view bytes, bool is_byte, std::string& text);
  // Appends what waits, and starts anew.
  void flush(std::string& text);

 private:
  void push_byte(char byte, std::string& text);
  void end_run(std::string& text);
  void replace_waiting(std::string& text);  // by one U+FFFD a byte
  // Appends joined text, less what Strip takes from the left of the whole.
  void emit(std::string_view joined, std::string& text);

  const Decoder* decoder_;
  std::string waiting_;      // the beginning of a character, or a run of bytes
  size_t whole_ = 0;         // of a run: the bytes of it that are whole characters
  bool broken_run_ = false;  // the run is known to be no UTF-8
  std::vector<size_t> strips_left_;
};

}  // namespace specd
