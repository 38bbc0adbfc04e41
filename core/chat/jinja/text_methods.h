// What Python's strings can do, with the origin of every byte kept. Shared by filters and methods.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

// kUnsupported beyond ASCII, where case is a matter of tables that differ between Pythons.
Result<MarkedText> to_upper(const MarkedText& text);
Result<MarkedText> to_lower(const MarkedText& text);
Result<MarkedText> to_capitalized(const MarkedText& text);
Result<MarkedText> to_filter_title(const MarkedText& text);  // jinja2's filter
Result<MarkedText> to_title(const MarkedText& text);         // str.title()

// `characters`: None = white space.
Result<Value> strip_text(const MarkedText& text, const Value& characters, bool left, bool right,
                         Budget& budget);
// At most `count` replacements, all when negative.
Result<Value> replace_text(const MarkedText& text, std::string_view old, const MarkedText& with,
                           int64_t count, Budget& budget);

}  // namespace specd::jinja
