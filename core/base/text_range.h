// A range of bytes in a text.
#pragma once

#include <cstddef>

namespace specd {

struct TextRange {
  size_t begin = 0;
  size_t end = 0;  // one past the last byte

  bool operator==(const TextRange&) const = default;
};

}  // namespace specd
