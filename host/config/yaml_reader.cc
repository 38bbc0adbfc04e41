#include "host/config/yaml_reader.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <sstream>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"

namespace specd::host {
namespace {

YamlPlace place_of(const YAML::Mark& mark) { return {mark.line + 1, mark.column + 1, nullptr}; }

// Carries an error out of yaml-cpp's callbacks; never leaves this file.
struct Refused : std::exception {
  Refused(YamlPlace where, std::string what) : place(std::move(where)), text(std::move(what)) {}
  YamlPlace place;
  std::string text;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  YamlNode take() { return std::move(root_); }
  bool has_document() const { return documents_ > 0; }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1)
      throw Refused(place_of(mark), "a second document; a configuration is one document");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(YamlNode::Kind::kNull, mark, "?", anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    throw Refused(place_of(mark), "aliases (*name) are not supported; write the value out");
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    add(YamlNode::Kind::kScalar, mark, tag, anchor, &value);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kSequence, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::kMap, mark, tag, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Level {
    YamlNode* node;
    bool want_key;                                       // in a map: the next event is a key
    std::map<std::string, int, std::less<>> lines = {};  // of the keys of a map
  };

  YamlNode* add(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
                YAML::anchor_t anchor, const std::string* value = nullptr) {
    const YamlPlace place = place_of(mark);
    if (anchor != YAML::NullAnchor)
      throw Refused(place, "anchors (&name) are not supported; write the value out");
    // yaml-cpp says "?" for a plain node, "!" for a quoted one, "" for a collection without a tag.
    if (!tag.empty() && tag != "?" && tag != "!")
      throw Refused(place, "tags (" + tag + ") are not supported; remove it");
    // yaml-cpp makes single bytes of these two.
    if (value != nullptr && utf8_error_offset(*value) != std::string_view::npos)
      throw Refused(place, "the escapes \\_ and \\N are not supported; write \\u00a0 and \\u0085");
    if (levels_.empty()) {
      fill(root_, kind, place, tag, value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.node->kind == YamlNode::Kind::kSequence) {
      fill(level.node->items.emplace_back(), kind, place, tag, value);
      return &level.node->items.back();
    }
    if (level.want_key) {
      if (kind != YamlNode::Kind::kScalar)
        throw Refused(place,
                      "a key must be a word; found " +
                          std::string(kind == YamlNode::Kind::kNull
                                          ? "nothing"
                                          : "a collection; is a bracket or brace left open?"));
      if (value->size() > kYamlKeyMax)
        throw Refused(place, "expected a key of at most " + std::to_string(kYamlKeyMax) +
                                 " bytes, found " + quote(*value, 40));
      const auto [first, is_new] = level.lines.emplace(*value, place.line);
      if (!is_new)
        throw Refused(place, "duplicate key " + quote(*value) + "; first given at line " +
                                 std::to_string(first->second));
      if (*value == "<<" && tag == "?")
        throw Refused(place, "merge keys (<<) are not supported; write the values out");
      level.node->entries.push_back({*value, place, {}});
      level.want_key = false;
      return nullptr;
    }
    level.want_key = true;
    YamlNode::Entry& entry = level.node->entries.back();
    // An absent value has no place of its own: its key is where the reader looks.
    fill(entry.value, kind, kind == YamlNode::Kind::kNull ? entry.place : place, tag, value);
    return &entry.value;
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    if (levels_.size() >= kYamlDepthMax)
      throw Refused(place_of(mark),
                    "nested deeper than " + std::to_string(kYamlDepthMax) + " levels");
    YamlNode* node = add(kind, mark, tag, anchor);
    levels_.push_back({.node = node, .want_key = kind == YamlNode::Kind::kMap});
  }
  void close() { levels_.pop_back(); }

  static void fill(YamlNode& node, YamlNode::Kind kind, YamlPlace place, const std::string& tag,
                   const std::string* value) {
    node.kind = kind;
    node.place = std::move(place);
    node.plain = tag == "?" || tag.empty();
    if (value != nullptr) node.value = *value;
  }

  YamlNode root_;
  std::vector<Level> levels_;
  int documents_ = 0;
};

bool all_in(std::string_view text, std::string_view set) {
  return !text.empty() && text.find_first_not_of(set) == std::string_view::npos;
}

constexpr std::string_view kDigits = "0123456789";

// The float pattern of the core schema: [-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?
bool is_float(std::string_view text) {
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) text.remove_prefix(1);
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view exponent = text.substr(e + 1);
    if (!exponent.empty() && (exponent[0] == '-' || exponent[0] == '+')) exponent.remove_prefix(1);
    if (!all_in(exponent, kDigits)) return false;
    text = text.substr(0, e);
  }
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos) return all_in(text, kDigits);
  const std::string_view whole = text.substr(0, dot), part = text.substr(dot + 1);
  if (whole.empty()) return all_in(part, kDigits);
  return all_in(whole, kDigits) && (part.empty() || all_in(part, kDigits));
}

template <typename T>
bool read_number(std::string_view text, int base, T& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out, base);
  return error == std::errc() && end == text.data() + text.size();
}
bool read_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size();
}

Result<Json> scalar_to_json(const YamlNode& node, const std::function<std::string()>& where) {
  const std::string& text = node.value;
  if (!node.plain) return Json(text);
  if (text == "true" || text == "True" || text == "TRUE") return Json(true);
  if (text == "false" || text == "False" || text == "FALSE") return Json(false);

  std::string_view body = text;
  const bool negative = body[0] == '-';
  if (negative || body[0] == '+') body.remove_prefix(1);
  const auto too_large = [&] {
    return Status(Code::kInvalidArgument, where() + "expected a smaller number, found " +
                                              quote(text) + ", which does not fit 64 bits");
  };
  if (all_in(body, kDigits)) {
    if (body.size() > 1 && body[0] == '0')
      return Status(Code::kInvalidArgument,
                    where() +
                        "expected no number that begins with 0, which YAML readers take for "
                        "different values, found " +
                        quote(text) + "; write it without the zero, or in quotes if it is text");
    if (negative) {
      int64_t value = 0;
      if (!read_number(text, 10, value)) return too_large();
      return Json(value);
    }
    uint64_t value = 0;
    if (!read_number(body, 10, value)) return too_large();
    return Json(value);
  }
  // Radix numbers carry no sign in the core schema.
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'o')) {
    const bool hex = text[1] == 'x';
    const std::string_view digits = std::string_view(text).substr(2);
    if (all_in(digits, hex ? "0123456789abcdefABCDEF" : "01234567")) {
      uint64_t value = 0;
      if (!read_number(digits, hex ? 16 : 8, value)) return too_large();
      return Json(value);
    }
  }
  if (is_float(text)) {
    double value = 0;
    // from_chars takes no plus sign.
    if (!read_number(text[0] == '+' ? std::string_view(text).substr(1) : std::string_view(text),
                     value))
      return too_large();
    return Json(value);
  }
  if (body == ".inf" || body == ".Inf" || body == ".INF" || text == ".nan" || text == ".NaN" ||
      text == ".NAN")
    return Status(Code::kInvalidArgument,
                  where() + "expected a number, found " + text + ", which is not a finite number");
  return Json(text);
}

// A node's path, written out only when an error needs it: there may be half a million nodes, each
// below keys of kYamlKeyMax bytes.
struct NodePath {
  const NodePath* parent;
  std::string_view key;
  size_t index;

  std::string text() const {
    if (parent == nullptr) return std::string(key);
    return parent->text() +
           (key.data() == nullptr ? "[" + std::to_string(index) + "]" : "." + std::string(key));
  }
};

Result<Json> to_json(const YamlNode& node, const std::string& file, const NodePath& path) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return Json(nullptr);
    case YamlNode::Kind::kScalar:
      return scalar_to_json(node, [&] { return error_front(file, node.place, path.text()); });
    case YamlNode::Kind::kSequence: {
      Json array = Json::array();
      for (size_t i = 0; i < node.items.size(); ++i) {
        SPECD_TRY(Json item, to_json(node.items[i], file, {&path, {}, i}));
        array.push_back(std::move(item));
      }
      return array;
    }
    case YamlNode::Kind::kMap: {
      Json object = Json::object();
      for (const YamlNode::Entry& entry : node.entries) {
        SPECD_TRY(Json value, to_json(entry.value, file, {&path, entry.key, 0}));
        object[entry.key] = std::move(value);
      }
      return object;
    }
  }
  return Status(Code::kInternal, "unknown kind of YAML node");
}

YamlPlace place_of_offset(std::string_view text, size_t offset) {
  YamlPlace place;
  for (const char c : text.substr(0, offset)) {
    if (c == '\n') {
      ++place.line;
      place.column = 1;
    } else {
      ++place.column;
    }
  }
  return place;
}

}  // namespace

const YamlNode* YamlNode::find(std::string_view key) const {
  for (const Entry& entry : entries)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

std::string place_text(const std::string& file, const YamlPlace& place) {
  if (place.source != nullptr) return *place.source;
  return file + ":" + std::to_string(place.line) + ":" + std::to_string(place.column);
}

std::string error_front(const std::string& file, const YamlPlace& place, const std::string& path) {
  const std::string text = place_text(file, place);
  // A key may hold anything; an error is one line.
  const auto is_control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (path.size() > 2 * kYamlKeyMax || std::any_of(path.begin(), path.end(), is_control))
    return text + ": " + quote(path, 2 * kYamlKeyMax) + ": ";
  if (path.empty() || (place.source != nullptr && text.ends_with(" " + path))) return text + ": ";
  return text + ": " + path + ": ";
}

Result<YamlNode> parse_yaml(std::string_view text, const std::string& file) {
  if (text.size() > kYamlBytesMax)
    return Status(Code::kInvalidArgument,
                  place_text(file, {}) + ": " + std::to_string(text.size()) +
                      " bytes; a configuration has at most " + std::to_string(kYamlBytesMax));
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos)
    return Status(Code::kInvalidArgument, place_text(file, place_of_offset(text, zero)) +
                                              ": a zero byte at offset " + std::to_string(zero) +
                                              "; not a text file");
  if (const size_t bad = utf8_error_offset(text); bad != std::string_view::npos)
    return Status(Code::kInvalidArgument,
                  place_text(file, place_of_offset(text, bad)) +
                      ": expected UTF-8, found the byte " +
                      std::to_string(static_cast<unsigned char>(text[bad])) + " at offset " +
                      std::to_string(bad));
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    TreeBuilder builder;
    while (parser.HandleNextDocument(builder)) {
    }
    if (!builder.has_document())
      return Status(Code::kInvalidArgument, place_text(file, {}) + ": the file is empty");
    return builder.take();
  } catch (const Refused& error) {
    return Status(Code::kInvalidArgument, place_text(file, error.place) + ": " + error.text);
  } catch (const YAML::Exception& error) {
    const YamlPlace place = error.mark.is_null() ? YamlPlace{} : place_of(error.mark);
    return Status(Code::kInvalidArgument, place_text(file, place) + ": not YAML: " + error.msg);
  } catch (const std::bad_alloc&) {
    return Status(Code::kExhausted, place_text(file, {}) + ": out of memory while parsing YAML");
  } catch (const std::exception& error) {
    return Status(Code::kInvalidArgument, place_text(file, {}) + ": not YAML: " + error.what());
  }
}

Result<Json> yaml_to_json(const YamlNode& node, const std::string& file, const std::string& path) {
  return to_json(node, file, {nullptr, path, 0});
}

}  // namespace specd::host
