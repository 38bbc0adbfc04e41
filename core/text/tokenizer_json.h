// What the readers of the parts of a tokenizer.json share.
#pragma once

#include <cstddef>
#include <string>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/status.h"

namespace specd {

inline constexpr size_t kStepsMax = 32;  // of a normalizer, a pre-tokenizer or a decoder

inline Status unsupported(const std::string& where, const Json& found,
                          const std::string& supported) {
  return Status(Code::kUnsupported, where + ": found " + quote(found.dump(-1, ' ', true)) +
                                        ", supported: " + supported);
}

}  // namespace specd
