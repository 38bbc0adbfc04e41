// Python's operators on values.
#pragma once

#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/syntax.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

Result<bool> equal(const Value& a, const Value& b, Budget& budget);
// -1, 0 or 1. kInvalidArgument, naming `op`, where Python raises TypeError.
Result<int> order(const Value& a, const Value& b, const char* op, Budget& budget);
Result<bool> compare(CompareOp op, const Value& a, const Value& b, Budget& budget);
Result<bool> contains(const Value& container, const Value& item, Budget& budget);

Result<Value> binary(BinaryOp op, const Value& a, const Value& b, Budget& budget);
Result<Value> negate(const Value& value);
Result<Value> plus(const Value& value);

// The error for using an undefined value.
Status undefined_error(const Value& value);
Status type_error(const std::string& text);
Status beyond_64_bits();

}  // namespace specd::jinja
