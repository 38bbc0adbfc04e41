// What a verifier has decided about one sequence's draft, after validation.
#pragma once

#include <cstdint>
#include <vector>

namespace specd {

struct Verdict {
  std::vector<int32_t> accepted;  // nodes of the draft tree from the root down, increasing
  int32_t next_token = -1;        // follows the last of them, or the root
};

}  // namespace specd
