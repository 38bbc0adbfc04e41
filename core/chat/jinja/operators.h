// Python's operators and jinja2's ways into objects, on values.
#pragma once

#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/syntax.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

Result<bool> equal(const Value& a, const Value& b, Budget& budget);
// -1, 0, 1; kInvalidArgument where Python raises TypeError. `op` names the operator in it.
Result<int> order(const Value& a, const Value& b, const char* op, Budget& budget);
Result<bool> compare(CompareOp op, const Value& a, const Value& b, Budget& budget);
Result<bool> contains(const Value& container, const Value& item, Budget& budget);

Result<Value> binary(BinaryOp op, const Value& a, const Value& b, Budget& budget);
Result<Value> negate(const Value& value);
Result<Value> plus(const Value& value);

// value.name and value[key] as jinja2's sandbox looks them up: the undefined value where there is
// nothing. kUnsupported for attributes of Python's types that have no meaning here.
Result<Value> get_attribute(const Value& value, std::string_view name, Budget& budget);
Result<Value> get_item(const Value& value, const Value& key, Budget& budget);
// value[start:stop:step]; each may be None.
Result<Value> get_slice(const Value& value, const Value& start, const Value& stop,
                        const Value& step, Budget& budget);
// "a.b.0" of selectattr, map and sort; `fallback` (may be null) stands for every part that is not
// there.
Result<Value> get_path(const Value& value, const Value& path, const Value* fallback,
                       Budget& budget);

Result<int64_t> length(const Value& value);
// The error of whoever uses an undefined value.
Status undefined_error(const Value& value);
Status type_error(const std::string& text);

}  // namespace specd::jinja
