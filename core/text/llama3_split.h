// The split expression of Llama 3, as a hand-written scanner: linear time, no recursion.
//
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}
//   | ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
#pragma once

#include <string_view>

namespace specd {

// Exactly as tokenizer.json spells it.
extern const std::string_view kLlama3SplitPattern;

// The end of the piece that starts at `begin`; pieces follow each other without gaps.
// REQUIRES well-formed UTF-8 and begin < text.size()
size_t llama3_piece_end(std::string_view text, size_t begin);

}  // namespace specd
