// tojson: writes values as Python's json.dumps does, and keeps the origin of every byte.
#include <algorithm>
#include <bit>
#include <cmath>

#include "core/base/json.h"
#include "core/chat/jinja/builtins.h"
#include "core/chat/jinja/operators.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {
namespace {

// The JSON string without its quotes. nlohmann escapes the same characters as Python.
std::string escaped(std::string_view run, bool ensure_ascii) {
  const std::string quoted = Json(run).dump(-1, ' ', ensure_ascii, Json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

class JsonWriter {
 public:
  JsonWriter(const JsonStyle& style, MarkedText& out, Budget& budget)
      : style_(style), out_(out), budget_(budget) {}

  Status write(const Value& value) {
    SPECD_JINJA_STEPS(budget_, 1);
    const bool origin = value.from_request();
    switch (value.kind()) {
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        out_.append(scalar(value), origin);
        return Status();
      case Kind::kString:
        return write_string(value);
      case Kind::kList:
      case Kind::kTuple:
        return write_list(value);
      case Kind::kDict:
        return write_dict(value);
      default:
        return type_error(std::string("Object of type ") + value.type_name() +
                          " is not JSON serializable");
    }
  }

 private:
  static std::string scalar(const Value& value) {
    if (value.is(Kind::kNone)) return "null";
    if (value.is(Kind::kBool)) return value.as_int() != 0 ? "true" : "false";
    if (value.is(Kind::kInt)) return std::to_string(value.as_int());
    const double number = value.as_double();
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
    return float_repr(number);
  }

  Status write_string(const Value& value) {
    SPECD_JINJA_BYTES(budget_, cost_of(value.text()) * 4);
    const bool origin = !value.text().marks().empty();
    const size_t begin = out_.size();
    out_.append("\"", origin);
    value.text().each_run([&](std::string_view run, bool from_request) {
      out_.append(escaped(run, style_.ensure_ascii), from_request);
    });
    out_.append("\"", origin);
    const size_t n_written = out_.size() - begin;
    const size_t n_for_escapes = n_written - std::min(n_written, value.text().size());
    SPECD_JINJA_BYTES(budget_, n_written + 3 * n_for_escapes);  // an escape takes more time
    return Status();
  }

  Status new_line(bool origin) {
    if (!style_.has_indent) return Status();
    SPECD_JINJA_BYTES(budget_, (style_.indent.size() + 16) * static_cast<size_t>(level_) + 1);
    out_.append("\n", origin);
    for (int i = 0; i < level_; ++i)
      out_.append(style_.indent, origin || style_.indent_from_request);
    return Status();
  }

  void separate(const std::string& separator, bool origin) {
    out_.append(separator, origin || style_.separators_from_request);
  }

  Status write_list(const Value& value) {
    const bool origin = value.from_request();
    if (value.items().empty()) {
      out_.append("[]", origin);
      return Status();
    }
    // Before anything is copied, so that a text that is too large takes no memory.
    SPECD_JINJA_BYTES(budget_, (value.items().size() - 1) * style_.item_separator.size());
    out_.append("[", origin);
    ++level_;
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (i > 0) separate(style_.item_separator, origin);
      SPECD_OK_OR_RETURN(new_line(origin));
      SPECD_OK_OR_RETURN(write(value.items()[i]));
    }
    --level_;
    SPECD_OK_OR_RETURN(new_line(origin));
    out_.append("]", origin);
    return Status();
  }

  Status write_dict(const Value& value) {
    const bool origin = value.from_request();
    SPECD_JINJA_BYTES(budget_, value.dict().entries().size() * sizeof(DictObject::Entry*));
    std::vector<const DictObject::Entry*> entries;
    for (const DictObject::Entry& entry : value.dict().entries()) entries.push_back(&entry);
    if (entries.empty()) {
      out_.append("{}", origin);
      return Status();
    }
    if (style_.sort_keys) SPECD_OK_OR_RETURN(sort(entries));
    SPECD_JINJA_BYTES(budget_, (entries.size() - 1) * style_.item_separator.size() +
                                   entries.size() * style_.key_separator.size());
    out_.append("{", origin);
    ++level_;
    bool is_first = true;
    for (const DictObject::Entry* const entry : entries) {
      if (!is_first) separate(style_.item_separator, origin);
      is_first = false;
      SPECD_OK_OR_RETURN(new_line(origin));
      const Value& key = entry->first;
      if (key.is_string()) {
        SPECD_OK_OR_RETURN(write_string(key));
      } else {
        out_.append("\"" + scalar(key) + "\"", key.from_request());
      }
      separate(style_.key_separator, origin);
      SPECD_OK_OR_RETURN(write(entry->second));
    }
    --level_;
    SPECD_OK_OR_RETURN(new_line(origin));
    out_.append("}", origin);
    return Status();
  }

  Status sort(std::vector<const DictObject::Entry*>& entries) {
    for (const DictObject::Entry* const entry : entries) {
      if (!entry->first.is_string()) {
        return Status(Code::kUnsupported,
                      "sort_keys with keys that are not strings is not supported");
      }
      SPECD_JINJA_BYTES(budget_,
                        (entry->first.text().size() + 16) * std::bit_width(entries.size()));
    }
    std::sort(entries.begin(), entries.end(),
              [](const auto* a, const auto* b) { return a->first.bytes() < b->first.bytes(); });
    return Status();
  }

  const JsonStyle& style_;
  MarkedText& out_;
  Budget& budget_;
  int level_ = 0;
};

}  // namespace

Status append_json(const Value& value, const JsonStyle& style, MarkedText& out, Budget& budget) {
  return JsonWriter(style, out, budget).write(value);
}

}  // namespace specd::jinja
