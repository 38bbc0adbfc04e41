// Operations of Python's strings that keep the origin of every byte. Shared by filters and methods.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

// kUnsupported beyond ASCII, where the result depends on the Unicode tables of the Python version.
Result<MarkedText> to_upper(const MarkedText& text);
Result<MarkedText> to_lower(const MarkedText& text);
Result<MarkedText> to_capitalized(const MarkedText& text);
Result<MarkedText> to_filter_title(const MarkedText& text);  // jinja2's filter
Result<MarkedText> to_title(const MarkedText& text);         // str.title()

// `characters`: the characters to strip; None for white space.
Result<Value> strip_text(const MarkedText& text, const Value& characters, bool left, bool right,
                         Budget& budget);
// At most `count` replacements; all when it is negative.
Result<Value> replace_text(const MarkedText& text, std::string_view old, const MarkedText& with,
                           int64_t count, Budget& budget);

}  // namespace specd::jinja
