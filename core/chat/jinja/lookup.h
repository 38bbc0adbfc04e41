// How jinja2 finds the parts of a value: attributes, items, slices, paths.
#pragma once

#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

// value.name and value[key] as jinja2's sandbox looks them up; the undefined value when nothing is
// found. kUnsupported for other attributes of Python's types.
Result<Value> get_attribute(const Value& value, std::string_view name, Budget& budget);
Result<Value> get_item(const Value& value, const Value& key, Budget& budget);
// value[start:stop:step]; each may be None.
Result<Value> get_slice(const Value& value, const Value& start, const Value& stop,
                        const Value& step, Budget& budget);
// The value at a path like "a.b.0" of selectattr, map and sort. `fallback` (may be null) replaces
// every part that is not found.
Result<Value> get_path(const Value& value, const Value& path, const Value* fallback,
                       Budget& budget);

Result<int64_t> length(const Value& value);
}  // namespace specd::jinja
