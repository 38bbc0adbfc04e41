// An index or count that is known to be at least 0, as the library's size type.
#pragma once

#include <cstddef>
#include <cstdint>

namespace specd {

constexpr size_t to_size(int64_t n) { return static_cast<size_t>(n); }

}  // namespace specd
