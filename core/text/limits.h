#pragma once

#include <cstddef>

namespace specd {

inline constexpr size_t kStepsMax = 32;  // of a normalizer, a pre-tokenizer or a decoder

}  // namespace specd
