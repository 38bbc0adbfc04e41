// Tokens as the tests of plugins write them.
#pragma once

#include <cstdint>
#include <vector>

namespace specd {

using TokenList = std::vector<int32_t>;

}  // namespace specd
