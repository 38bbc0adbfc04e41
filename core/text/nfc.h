// Unicode normalisation form C as the reference computes it, by libutf8proc.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace specd {

// The end of the unit that begins at `at`: a character and whatever may combine with it. The NFC of
// a text is the NFC of its units, one after the other. REQUIRES well-formed UTF-8, at < text.size()
size_t nfc_unit_end(std::string_view text, size_t at);

// Appends the NFC of one unit. O(n log n), even for a million accents on one letter, which
// libutf8proc alone would sort for hours.
void append_nfc(std::string_view unit, std::string& out);

}  // namespace specd
