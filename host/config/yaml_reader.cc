#include "host/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <map>
#include <new>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd::host {
namespace {

using Kind = YamlNode::Kind;

YamlPlace place_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1, nullptr}; }

// What we refuse and yaml-cpp does not. Never leaves this file.
struct Refused : YAML::Exception {
  using Exception::Exception;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }
  bool has_document() const { return has_document_; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (std::exchange(has_document_, true))
      throw Refused(mark, "a second document; a configuration is one document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(Kind::kNull, mark, "?", anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused(mark, "aliases (*name) are not supported; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(Kind::kScalar, mark, tag, anchor, value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { levels_.pop_back(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { levels_.pop_back(); }

 private:
  // A list or mapping that is not closed yet.
  struct Level {
    YamlNode* node;
    bool want_key;                                       // in a map: the next event is a key
    std::map<std::string, int, std::less<>> lines = {};  // of the keys of a map
  };

  void open(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (levels_.size() >= kYamlDepthMax)
      throw Refused(mark, "nested deeper than " + std::to_string(kYamlDepthMax) + " levels");
    YamlNode* node = add(kind, mark, tag, anchor);
    levels_.push_back({.node = node, .want_key = kind == Kind::kMap});
  }

  // Null for a key.
  YamlNode* add(Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value = "") {
    if (anchor != YAML::NullAnchor)
      throw Refused(mark, "anchors (&name) are not supported; write the value out");
    // yaml-cpp says "?" for a plain node, "!" for a quoted one, "" for a collection without a tag.
    if (!tag.empty() && tag != "?" && tag != "!")
      throw Refused(mark, "tags (" + tag + ") are not supported; remove it");
    // yaml-cpp turns these two into single bytes.
    if (utf8_error_offset(value) != std::string_view::npos)
      throw Refused(mark, "the escapes \\_ and \\N are not supported; write \\u00a0 and \\u0085");
    Level* level = levels_.empty() ? nullptr : &levels_.back();
    if (level != nullptr && level->want_key) {
      add_key(*level, kind, mark, tag, value);
      return nullptr;
    }
    YamlNode* node = &root_;
    if (level != nullptr && level->node->kind == Kind::kSequence) {
      node = &level->node->items.emplace_back();
      node->key_place = place_of(mark);
    } else if (level != nullptr) {
      node = &level->node->items.back();
      level->want_key = true;
    }
    node->kind = kind;
    // An absent value has no place of its own: the reader looks at its key.
    const bool is_absent = kind == Kind::kNull && level != nullptr;
    node->place = is_absent ? node->key_place : place_of(mark);
    node->plain = tag == "?" || tag.empty();
    node->value = value;
    return node;
  }

  static void add_key(Level& level, Kind kind, const YAML::Mark& mark, const std::string& tag,
                      const std::string& key) {
    if (kind == Kind::kNull) throw Refused(mark, "a key must be a word; found nothing");
    if (kind != Kind::kScalar)
      throw Refused(mark,
                    "a key must be a word; found a collection; is a bracket or brace left open?");
    if (key.size() > kYamlKeyMax)
      throw Refused(mark, "expected a key of at most " + std::to_string(kYamlKeyMax) +
                              " bytes, found " + quote(key, 40));
    const auto [first, is_new] = level.lines.emplace(key, mark.line + 1);
    if (!is_new)
      throw Refused(mark, "duplicate key " + quote(key) + "; first given at line " +
                              std::to_string(first->second));
    if (key == "<<" && tag == "?")
      throw Refused(mark, "merge keys (<<) are not supported; write the values out");
    YamlNode& node = level.node->items.emplace_back();
    node.key = key;
    node.key_place = place_of(mark);
    level.want_key = false;
  }

  YamlNode root_;
  std::vector<Level> levels_;
  bool has_document_ = false;
};

bool all_in(std::string_view text, std::string_view set) {
  return !text.empty() && text.find_first_not_of(set) == std::string_view::npos;
}

constexpr std::string_view kDigits = "0123456789";

// Of a whole text: whether it is a number, and one that fits the type.
struct Parsed {
  bool is_number, fits;
};
template <typename T, typename... Base>
Parsed parse_number(std::string_view text, T& number, Base... base) {
  const char* const text_end = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), text_end, number, base...);
  return {error != std::errc::invalid_argument && end == text_end, error == std::errc()};
}

Result<Json> scalar_to_json(const Value& scalar) {
  const std::string& text = scalar.node.value;
  if (!scalar.node.plain) return Json(text);
  if (text == "true" || text == "True" || text == "TRUE") return Json(true);
  if (text == "false" || text == "False" || text == "FALSE") return Json(false);
  const auto too_large = [&] {
    return scalar.error("expected a smaller number, found " + quote(text) +
                        ", which does not fit 64 bits; quote it if it is text");
  };

  std::string_view body = text;  // without the sign
  const bool is_negative = body.starts_with('-');
  if (is_negative || body.starts_with('+')) body.remove_prefix(1);
  if (all_in(body, kDigits)) {
    if (body.size() > 1 && body[0] == '0')
      return scalar.error("expected a number, found " + quote(text) +
                          ", which begins with 0: YAML readers disagree about its value; drop the "
                          "zero, or quote it if it is text");
    int64_t negative = 0;
    uint64_t number = 0;
    if (!(is_negative ? parse_number(text, negative) : parse_number(body, number)).fits)
      return too_large();
    return is_negative ? Json(negative) : Json(number);
  }
  // In the core schema, hexadecimal and octal numbers have no sign.
  for (const auto& [prefix, digits, base] :
       {std::tuple("0x", "0123456789abcdefABCDEF", 16), std::tuple("0o", "01234567", 8)}) {
    if (!text.starts_with(prefix) || !all_in(text.substr(2), digits)) continue;
    uint64_t number = 0;
    if (!parse_number(std::string_view(text).substr(2), number, base).fits) return too_large();
    return Json(number);
  }
  // from_chars reads the floats of the core schema, and also "inf" and a second sign.
  if (all_in(body.substr(0, 1), "0123456789.")) {
    double number = 0;
    const auto [is_number, fits] = parse_number(body, number);
    if (is_number && !fits) return too_large();
    if (is_number) return Json(is_negative ? -number : number);
  }
  if (body == ".inf" || body == ".Inf" || body == ".INF" || text == ".nan" || text == ".NaN" ||
      text == ".NAN")
    return scalar.error("expected a number, found " + text + ", which is not a finite number");
  return Json(text);
}

// The place of a byte of the text.
YamlPlace place_of_offset(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, offset);
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 = 0
  YamlPlace place;
  place.line += static_cast<int>(std::count(before.begin(), before.end(), '\n'));
  place.column += static_cast<int>(offset - line_start);
  return place;
}

// What may be meant by the line that yaml-cpp refuses.
std::string hint_at(std::string_view text, const YamlPlace& place) {
  for (int line = 1; line < place.line; ++line) text.remove_prefix(text.find('\n') + 1);
  text = text.substr(0, text.find('\n'));
  const size_t first = text.find_first_not_of(' ');
  if (first != std::string_view::npos && text[first] == '\t')
    return "; indent with spaces, YAML takes no tabs";
  // The bracket of an IPv6 address begins a list.
  if (text.find("[::") != std::string_view::npos)
    return "; quote an address with brackets: '[::]:9090'";
  return "";
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view wanted) const {
  for (const YamlNode& item : items)
    if (item.key == wanted) return &item;
  return nullptr;
}

std::string place_text(const std::string& file, const YamlPlace& place) {
  if (place.source != nullptr) return *place.source;
  return file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

std::string error_front(const std::string& file, const YamlPlace& place, const std::string& path) {
  const std::string text = place_text(file, place);
  // A key may hold anything; an error is one line.
  if (path.size() > 2 * kYamlKeyMax || std::any_of(path.begin(), path.end(), is_control))
    return text + ": " + quote(path, 2 * kYamlKeyMax) + ": ";
  if (path.empty() || (place.source != nullptr && text.ends_with(" " + path))) return text + ": ";
  return text + ": " + path + ": ";
}

Value Value::at(std::string_view name) const {
  const YamlNode* found = node.find(name);
  return {found != nullptr ? *found : node, file, this, name};
}

std::string Value::path() const {
  if (parent == nullptr) return "";
  const std::string front = parent->path();
  if (parent->node.kind == Kind::kSequence) return front + "[" + std::to_string(index) + "]";
  return front + (front.empty() ? "" : ".") + std::string(key);
}

std::string Value::found() const {
  if (node.kind == Kind::kNull) return "nothing";
  if (node.kind == Kind::kSequence) return "a list";
  if (node.kind == Kind::kMap) return "a mapping";
  return (node.plain ? "" : "text ") + quote(node.value, 60);
}

Status Value::error_at(const YamlPlace& place, const std::string& text) const {
  return Status(Code::kInvalidArgument, error_front(file, place, path()) + text);
}

Status Value::not_expected(const std::string& expected) const {
  return error("expected " + expected + ", found " + found());
}

Result<YamlNode> parse_yaml(std::string_view text, const std::string& file) {
  const auto refuse = [&](const YamlPlace& place, const std::string& why) {
    return Status(Code::kInvalidArgument, place_text(file, place) + ": " + why);
  };
  if (text.size() > kYamlBytesMax)
    return refuse({}, std::to_string(text.size()) + " bytes; a configuration has at most " +
                          std::to_string(kYamlBytesMax));
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return refuse(place_of_offset(text, zero), "a zero byte; not a text file");
  if (const size_t bad = utf8_error_offset(text); bad != std::string_view::npos)
    return refuse(
        place_of_offset(text, bad),
        "expected UTF-8, found the byte " + std::to_string(static_cast<unsigned char>(text[bad])));
  // yaml-cpp counts it as a line, other readers do not.
  for (size_t at = text.find('\r'); at != std::string_view::npos; at = text.find('\r', at + 1))
    if (text.substr(at, 2) != "\r\n")
      return refuse(place_of_offset(text, at),
                    "a carriage return without a line feed; end lines with \\n or \\r\\n");
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    while (parser.HandleNextDocument(builder)) {
    }
    if (!builder.has_document()) return refuse({}, "the file is empty");
    return builder.take();
  } catch (const Refused& error) {
    return refuse(place_of(error.mark), error.msg);
  } catch (const YAML::Exception& error) {
    const bool has_place = !error.mark.is_null();
    const YamlPlace place = has_place ? place_of(error.mark) : YamlPlace{};
    return refuse(place, "not YAML: " + error.msg + hint_at(text, place));
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, place_text(file, {}) + ": out of memory while parsing YAML");
  } catch (const std::exception& error) {
    return refuse({}, std::string("not YAML: ") + error.what());
  }
}

Result<Json> yaml_to_json(const Value& value) {
  const YamlNode& node = value.node;
  if (node.kind == Kind::kNull) return Json(nullptr);
  if (node.kind == Kind::kScalar) return scalar_to_json(value);
  Json json = node.kind == Kind::kSequence ? Json::array() : Json::object();
  for (size_t i = 0; i < node.items.size(); ++i) {
    SPECD_TRY(Json item, yaml_to_json(value.item(i)));
    if (node.kind == Kind::kSequence)
      json.push_back(std::move(item));
    else
      json[node.items[i].key] = std::move(item);
  }
  return json;
}

}  // namespace specd::host
