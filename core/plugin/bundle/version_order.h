// Which of two versions is newer: the precedence of semver.org 2.0.0, for versions with any number of parts.
#pragma once

#include <string_view>

namespace specd {

// "1.10.0" > "1.9", "1.0.0" > "1.0.0-rc.1"; what comes behind "+" does not count. Parts that are no numbers are
// compared as text.
bool is_newer(std::string_view version, std::string_view other);

}  // namespace specd
