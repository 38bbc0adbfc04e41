#include "core/chat/jinja/text_methods.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/chat/jinja/builtins.h"
#include "core/chat/jinja/operators.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {
namespace {

// Applies change(byte, previous byte) to every byte; the first one's previous byte is 0.
template <typename Change>
Result<MarkedText> map_ascii(const MarkedText& text, const char* what, Change change) {
  if (!is_ascii(text.bytes())) {
    return Status(Code::kUnsupported, std::string(what) + " of text beyond ASCII is not supported");
  }
  MarkedText out;
  char previous = '\0';
  text.each_run([&](std::string_view run, bool from_request) {
    std::string changed;
    for (const char c : run) {
      changed += change(c, previous);
      previous = c;
    }
    out.append(changed, from_request);
  });
  return out;
}

bool is_letter(char c) { return ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z'; }

struct MethodArguments {
  std::string_view name;
  std::vector<std::string_view> parameters;
  size_t required;
  bool has_keywords;
};
const MethodArguments kMethods[] = {
    {"capitalize", {}, 0, false},
    {"endswith", {"suffix"}, 1, false},
    {"find", {"sub"}, 1, false},
    {"format", {}, 0, true},
    {"get", {"key", "default"}, 1, false},
    {"items", {}, 0, false},
    {"join", {"iterable"}, 1, false},
    {"keys", {}, 0, false},
    {"lower", {}, 0, false},
    {"lstrip", {"chars"}, 0, false},
    {"removeprefix", {"prefix"}, 1, false},
    {"removesuffix", {"suffix"}, 1, false},
    {"replace", {"old", "new", "count"}, 2, false},
    {"rstrip", {"chars"}, 0, false},
    {"split", {"sep", "maxsplit"}, 0, true},
    {"startswith", {"prefix"}, 1, false},
    {"strip", {"chars"}, 0, false},
    {"title", {}, 0, false},
    {"upper", {}, 0, false},
    {"values", {}, 0, false},
};
// These names parse, so that calling them fails as in jinja2's sandbox; and loop.cycle.
constexpr std::string_view kOthers[] = {"append",  "clear",      "cycle",   "extend",
                                        "insert",  "pop",        "popitem", "remove",
                                        "reverse", "setdefault", "sort",    "update"};

Result<Value> split(const MarkedText& text, const Value& separator, int64_t splits_max,
                    Budget& budget) {
  std::vector<Value> parts;
  const std::string& bytes = text.bytes();
  const auto add = [&](size_t begin, size_t end) -> Status {
    SPECD_JINJA_STEPS(budget, 1);
    SPECD_TRY(Value part, make_string(text.part(begin, end), budget));
    parts.push_back(std::move(part));
    return Status();
  };
  const auto may_split = [&] {
    return splits_max < 0 || parts.size() < static_cast<uint64_t>(splits_max);
  };
  if (!separator.is(Kind::kNone)) {
    if (!separator.is_string()) return type_error("the separator of split is not a string");
    if (separator.bytes().empty()) return Status(Code::kInvalidArgument, "empty separator");
    SPECD_JINJA_BYTES(budget, search_cost(bytes.size(), separator.bytes().size()));
    size_t begin = 0;
    while (may_split()) {
      const size_t found = find_text(bytes, separator.bytes(), begin);
      if (found == std::string::npos) break;
      SPECD_OK_OR_RETURN(add(begin, found));
      begin = found + separator.bytes().size();
    }
    SPECD_OK_OR_RETURN(add(begin, bytes.size()));
    return make_sequence(Kind::kList, std::move(parts), budget);
  }
  SPECD_JINJA_BYTES(budget, 3 * bytes.size());  // walks character by character
  const auto skip = [&](size_t at, bool spaces) {
    while (at < bytes.size()) {
      const Utf8Step step = utf8_step(bytes, at);
      if (is_python_space(step.code_point) != spaces) break;
      at += step.bytes;
    }
    return at;
  };
  size_t at = skip(0, true);
  while (at < bytes.size()) {
    if (!may_split()) {
      SPECD_OK_OR_RETURN(add(at, bytes.size()));
      break;
    }
    const size_t end = skip(at, false);
    SPECD_OK_OR_RETURN(add(at, end));
    at = skip(end, true);
  }
  return make_sequence(Kind::kList, std::move(parts), budget);
}

// '{}'.format() with plain fields only.
Result<Value> format(const MarkedText& text, const std::vector<Value>& arguments,
                     const Keywords& keywords, Budget& budget) {
  const auto unsupported = [] {
    return Status(Code::kUnsupported, "format with anything but plain fields is not supported");
  };
  const std::string& bytes = text.bytes();
  MarkedText out;
  size_t automatic = 0;
  bool has_numbers = false;
  size_t begin = 0;
  for (size_t at = 0; at <= bytes.size(); ++at) {
    if (at < bytes.size() && bytes[at] != '{' && bytes[at] != '}') continue;
    SPECD_JINJA_BYTES(budget, at - begin + 1);
    out.append(text, begin, at);
    if (at == bytes.size()) break;
    SPECD_JINJA_STEPS(budget, 1);
    if (at + 1 < bytes.size() && bytes[at + 1] == bytes[at]) {  // {{ and }}
      out.append(text, at, at + 1);
      begin = ++at + 1;
      continue;
    }
    const size_t end = bytes[at] == '{' ? bytes.find('}', at) : std::string::npos;
    if (end == std::string::npos) {
      return Status(Code::kInvalidArgument, "a single brace in the text of format");
    }
    SPECD_JINJA_BYTES(budget, 8 * (end - at));  // copies the field, and may parse it as a number
    const std::string field = bytes.substr(at + 1, end - at - 1);
    if (field.find_first_of(".[]!:{") != std::string::npos) return unsupported();
    const Value* found = nullptr;
    if (field.empty() || field.find_first_not_of("0123456789") == std::string::npos) {
      has_numbers = has_numbers || !field.empty();
      if (has_numbers && (automatic > 0 || field.empty())) return unsupported();
      bool too_large = false;
      const size_t index = field.empty()
                               ? automatic++
                               : static_cast<size_t>(parse_int(field, too_large).value_or(1 << 30));
      if (index < arguments.size()) found = &arguments[index];
    } else {
      SPECD_JINJA_BYTES(budget, keywords.size() * (8 + field.size()));  // compares with each
      for (const auto& [name, value] : keywords) {
        if (name == field) found = &value;
      }
    }
    if (found == nullptr) {
      return Status(Code::kInvalidArgument, "format has no argument for the field " + quote(field));
    }
    SPECD_OK_OR_RETURN(append_str(*found, out, budget));
    at = end;
    begin = end + 1;
  }
  return make_string(std::move(out), budget);
}

Result<bool> has_affix(const std::string& text, const Value& affix, bool at_start, Budget& budget) {
  if (affix.is(Kind::kTuple)) {
    for (const Value& each : affix.items()) {
      if (!each.is_string()) return type_error("startswith and endswith need strings");
      SPECD_TRY(const bool found, has_affix(text, each, at_start, budget));
      if (found) return true;
    }
    return false;
  }
  if (!affix.is_string()) return type_error("startswith and endswith need a string");
  const std::string& word = affix.bytes();
  SPECD_JINJA_STEPS(budget, 1);
  SPECD_JINJA_BYTES(budget, std::min(word.size(), text.size()));
  return at_start ? text.starts_with(word) : text.ends_with(word);
}

Result<Value> call_dict_method(const Value& dict, const std::string& name,
                               const std::vector<Value>& arguments, Budget& budget) {
  if (name == "get") {
    SPECD_TRY(const Value* found, dict.dict().find(arguments[0], budget));
    return found != nullptr ? *found : arguments[1];
  }
  auto view = std::make_shared<ViewObject>();
  view->of = dict;
  view->which = name == "items"  ? ViewKind::kItems
                : name == "keys" ? ViewKind::kKeys
                                 : ViewKind::kValues;
  return Value::object(Kind::kView, std::move(view));
}

Result<Value> call_text_method(const Value& self, const std::string& name,
                               const std::vector<Value>& arguments, Budget& budget) {
  const MarkedText& text = self.text();
  const auto changed = [&](Result<MarkedText> result) -> Result<Value> {
    SPECD_TRY(MarkedText made, std::move(result));
    return make_string(std::move(made), budget);
  };
  SPECD_JINJA_BYTES(budget, text.size());
  if (name == "upper") return changed(to_upper(text));
  if (name == "lower") return changed(to_lower(text));
  if (name == "title") return changed(to_title(text));
  if (name == "capitalize") return changed(to_capitalized(text));
  if (name == "strip") return strip_text(text, arguments[0], true, true, budget);
  if (name == "lstrip") return strip_text(text, arguments[0], true, false, budget);
  if (name == "rstrip") return strip_text(text, arguments[0], false, true, budget);
  if (name == "split") {
    if (!arguments[1].is(Kind::kNone) && !arguments[1].is_integer()) {
      return type_error("maxsplit is no number");
    }
    return split(text, arguments[0], arguments[1].is(Kind::kNone) ? -1 : arguments[1].as_int(),
                 budget);
  }
  if (name == "startswith" || name == "endswith") {
    SPECD_TRY(const bool found,
              has_affix(text.bytes(), arguments[0], name == "startswith", budget));
    return Value::boolean(found);
  }
  if (name == "join") {
    SPECD_TRY(const std::vector<Value> items, items_of(arguments[0], budget));
    MarkedText out;
    for (size_t i = 0; i < items.size(); ++i) {
      if (!items[i].is_string() || items[i].as_string().is_safe) {
        return type_error("join needs strings, found a " + std::string(items[i].type_name()));
      }
      SPECD_JINJA_BYTES(budget, cost_of(text) + cost_of(items[i].text()));
      if (i > 0) out.append(text);
      out.append(items[i].text());
    }
    return make_string(std::move(out), budget);
  }
  for (size_t i = 0; i < (name == "replace" ? 2 : 1); ++i) {
    if (arguments[i].is_string()) continue;
    return type_error(name + " needs a string, found a " + std::string(arguments[i].type_name()));
  }
  const std::string& word = arguments[0].bytes();
  if (name == "find") {
    SPECD_JINJA_BYTES(budget, search_cost(text.size(), word.size()));
    const size_t found = find_text(text.bytes(), word, 0);
    if (found == std::string::npos) return Value::integer(-1);
    return Value::integer(
        static_cast<int64_t>(count_characters(std::string_view(text.bytes()).substr(0, found))));
  }
  if (name == "removeprefix") {
    return make_string(text.part(text.bytes().starts_with(word) ? word.size() : 0, text.size()),
                       budget);
  }
  if (name == "removesuffix") {
    return make_string(text.part(0, text.size() - (text.bytes().ends_with(word) ? word.size() : 0)),
                       budget);
  }
  const Value& count = arguments[2];  // replace
  if (!count.is(Kind::kNone) && !count.is_integer()) return type_error("count is no number");
  return replace_text(text, word, arguments[1].text(), count.is(Kind::kNone) ? -1 : count.as_int(),
                      budget);
}

}  // namespace

Result<MarkedText> to_upper(const MarkedText& text) {
  return map_ascii(text, "upper", [](char c, char) { return ascii_upper(c); });
}
Result<MarkedText> to_lower(const MarkedText& text) {
  return map_ascii(text, "lower", [](char c, char) { return ascii_lower(c); });
}
Result<MarkedText> to_capitalized(const MarkedText& text) {
  bool is_first = true;
  return map_ascii(text, "capitalize", [&](char c, char) {
    return std::exchange(is_first, false) ? ascii_upper(c) : ascii_lower(c);
  });
}
Result<MarkedText> to_filter_title(const MarkedText& text) {
  bool is_first = true;
  return map_ascii(text, "title", [&](char c, char previous) {
    constexpr std::string_view kBreaks = "-({[<";
    const bool begins = std::exchange(is_first, false) ||
                        kBreaks.find(previous) != std::string_view::npos ||
                        is_python_space(static_cast<unsigned char>(previous));
    return begins ? ascii_upper(c) : ascii_lower(c);
  });
}
Result<MarkedText> to_title(const MarkedText& text) {
  return map_ascii(text, "title", [](char c, char previous) {
    return is_letter(previous) ? ascii_lower(c) : ascii_upper(c);
  });
}

Result<Value> strip_text(const MarkedText& text, const Value& characters, bool left, bool right,
                         Budget& budget) {
  TextRange kept;
  if (characters.is(Kind::kNone)) {
    kept = strip_spaces(text.bytes(), left, right);
  } else if (characters.is_string()) {
    // The characters are sorted, and each stripped character is looked up.
    SPECD_JINJA_BYTES(budget, characters.text().size() * 32);
    if (!characters.as_string().is_ascii) SPECD_JINJA_BYTES(budget, text.size() * 4);
    kept = strip_characters(text.bytes(), characters.bytes(), left, right);
  } else {
    return type_error("strip needs a string, found a " + std::string(characters.type_name()));
  }
  // Walks what it strips character by character, and copies the rest.
  SPECD_JINJA_BYTES(budget, 4 * text.size() - 3 * (kept.end - kept.begin));
  return make_string(text.part(kept.begin, kept.end), budget);
}

Result<Value> replace_text(const MarkedText& text, std::string_view old, const MarkedText& with,
                           int64_t count, Budget& budget) {
  const std::string& bytes = text.bytes();
  // Calls fn(begin, found) for what stands before each match and the match, and returns where the rest
  // begins.
  const auto for_matches = [&](auto&& fn) -> Result<size_t> {
    size_t begin = 0;
    size_t search = 0;
    for (int64_t done = 0; count < 0 || done < count; ++done) {
      const size_t found = find_text(bytes, old, search);
      if (found == std::string::npos) break;
      SPECD_OK_OR_RETURN(fn(begin, found));
      begin = found + old.size();
      search = begin;
      if (old.empty()) {  // matches before every character and after the last
        if (found == bytes.size()) break;
        search = found + utf8_step(bytes, found).bytes;
      }
    }
    return begin;
  };
  // Before anything is copied, so that a text that is too large takes no memory.
  SPECD_JINJA_BYTES(budget, 2 * search_cost(bytes.size(), old.size()));
  SPECD_OK_OR_RETURN(for_matches([&](size_t, size_t) -> Status {
                       SPECD_JINJA_STEPS(budget, 1);
                       SPECD_JINJA_BYTES(budget, cost_of(with));
                       return Status();
                     }).status());
  MarkedText out;
  SPECD_TRY(const size_t rest, for_matches([&](size_t begin, size_t found) {
              out.append(text, begin, found);
              out.append(with);
              return Status();
            }));
  out.append(text, rest, bytes.size());
  return make_string(std::move(out), budget);
}

bool is_method_name(std::string_view name) {
  return std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers) ||
         std::any_of(std::begin(kMethods), std::end(kMethods),
                     [&](const MethodArguments& each) { return each.name == name; });
}

Result<Value> call_method(const MethodObject& method, const std::vector<Value>& arguments,
                          const Keywords& keywords, Budget& budget) {
  const std::string& name = method.name;
  const auto* const known =
      std::find_if(std::begin(kMethods), std::end(kMethods),
                   [&](const MethodArguments& each) { return each.name == name; });
  if (known == std::end(kMethods)) {
    return Status(Code::kUnsupported, "the method '" + name + "' is not supported");
  }
  const Value& self = method.receiver;
  if (self.is_string() && self.as_string().is_safe) {
    return Status(Code::kUnsupported,
                  "the method '" + name + "' of a string marked safe is not supported");
  }
  if (name == "format") return format(self.text(), arguments, keywords, budget);
  if (arguments.size() > known->parameters.size()) {
    return type_error("'" + name + "' takes at most " + std::to_string(known->parameters.size()) +
                      " arguments, found " + std::to_string(arguments.size()));
  }
  std::vector<Value> bound = arguments;
  bound.resize(known->parameters.size());  // None when omitted
  size_t given = arguments.size();
  for (const auto& [keyword, value] : keywords) {
    const auto found =
        std::find(known->parameters.begin(), known->parameters.end(), std::string_view(keyword));
    const auto at = static_cast<size_t>(found - known->parameters.begin());
    if (!known->has_keywords || found == known->parameters.end() || at < arguments.size()) {
      return type_error("'" + name + "' takes no argument named " + quote(keyword, 40));
    }
    bound[at] = value;
    ++given;
  }
  if (given < known->required) {
    return type_error("'" + name + "' needs " + std::to_string(known->required) + " arguments");
  }
  if (self.is(Kind::kDict)) return call_dict_method(self, name, bound, budget);
  return call_text_method(self, name, bound, budget);
}

}  // namespace specd::jinja
