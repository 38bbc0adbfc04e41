// Unicode normalisation form C, as the reference has it: libutf8proc behind one function.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace specd {

// The end of the unit that begins at `at`: a character and what may combine with it. The NFC of a
// text is that of its units in turn. REQUIRES well-formed UTF-8 and at < text.size()
size_t nfc_unit_end(std::string_view text, size_t at);

// Appends the NFC of one unit. O(n log n), also for a million accents on one letter, where
// libutf8proc alone would sort for hours.
void append_nfc(std::string_view unit, std::string& out);

}  // namespace specd
