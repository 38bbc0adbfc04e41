// Byte-level byte-pair encoding: vocabulary, merges and the encoding of one piece.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"

namespace specd {

// Immutable after from_json(); const calls are thread-safe.
class ByteBpe {
 public:
  // `model` is the "model" object of a tokenizer.json; ids must lie below id_end, so that a lying
  // file cannot make us allocate. kUnsupported where the encoding could not be exact.
  static Result<ByteBpe> from_json(const Json& model, int64_t id_end, const std::string& where);

  // Appends the ids of one piece (any bytes, fewer than 2^31). O(n log n).
  void encode_piece(std::string_view piece, std::vector<int32_t>& ids) const;

  // Bytes by id, holes empty: handed out once, to whoever decodes.
  std::vector<std::string> take_token_bytes() { return std::move(token_bytes_); }

 private:
  struct Merge {
    int32_t rank;
    int32_t result;
  };

  bool ignore_merges_ = false;
  int32_t byte_ids_[256] = {};
  std::vector<std::string> token_bytes_;
  std::unordered_map<std::string, int32_t> whole_pieces_;  // by bytes; only with ignore_merges_
  std::unordered_map<uint64_t, Merge> merges_;             // by left << 32 | right
};

// The bytes that a token's text stands for: GPT-2's alphabet character by character, or, when one
// character is outside it, the text itself. As Hugging Face's ByteLevel decoder has it.
std::string byte_level_bytes(std::string_view token_text);

}  // namespace specd
