// How a token is shown, whose bytes need not be whole characters.
#pragma once

#include <string>
#include <string_view>

namespace specd::host {

// The bytes of a token as text; "bytes:\xe2\x82" if they are not whole characters.
std::string token_text(std::string_view bytes);

}  // namespace specd::host
