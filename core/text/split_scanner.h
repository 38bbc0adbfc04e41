// Hand-written scanners for the split expressions that nearly every byte-level tokenizer uses:
// linear time, no recursion.
#pragma once

#include <cstddef>
#include <string_view>

namespace specd {

// The end of the piece that starts at `begin`. The next piece starts there.
// REQUIRES well-formed UTF-8 and begin < text.size()
using PieceEnd = size_t (*)(std::string_view text, size_t begin);

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
size_t llama3_piece_end(std::string_view text, size_t begin);
// The same, with \p{N} in place of \p{N}{1,3}.
size_t qwen2_piece_end(std::string_view text, size_t begin);
// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
size_t gpt2_piece_end(std::string_view text, size_t begin);

// The scanner for an expression spelled exactly as in tokenizer.json, or null.
PieceEnd find_scanner(std::string_view expression);

extern const std::string_view kLlama3Expression;
extern const std::string_view kQwen2Expression;
extern const std::string_view kGpt2Expression;

}  // namespace specd
