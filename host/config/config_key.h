// One key of the configuration: what may stand there, what it means, where it goes. The table of
// all keys (config_keys.cc) is made of these, and everything that knows keys is made of the table:
// the reader, --set and the environment, `specd serve --print-config`, the JSON Schema, the table of
// configs/README.md, completion in shells, and the tests that spoil every key.
//
//   const Keys<EngineOptions> keys{
//       integer("queue_max", &EngineOptions::queue_max, 1, kQueue, "waiting requests"),
//       ...};
//
// A default is what the member holds in a default-made struct; it is written nowhere else.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "host/config/config_value.h"

namespace specd::host {

struct Key {
  enum class Type {
    kText,
    kName,
    kPath,
    kChoice,
    kInteger,
    kShare,
    kBoolean,
    kBytes,
    kSection,  // a mapping of `keys`
    kList,     // of keys[0]
    kNamed,    // a mapping of names that the user gives to keys[0]
    kFree,     // a mapping of anything
  };
  // A struct among those that a key's value fills, and its name or index there.
  using Part = std::pair<std::string, const void*>;

  std::string name;
  Type type = Type::kText;
  std::string meaning;      // what the README says of it
  std::string form;         // kText: what it looks like, in Markdown
  std::string pattern;      // kText: what a regular expression can say about it
  std::string when_absent;  // the default in words, where no value is the default
  Json fallback = nullptr;  // the default as a value; null = none
  bool is_required = false;
  int64_t min = 0, max = 0;          // kInteger: the value; kList, kNamed: how many
  std::vector<std::string> choices;  // kChoice
  std::vector<Key> keys;
  // kSection: of these at most one may stand; `exclusive_what` names what they say.
  std::vector<std::string> exclusive;
  std::string exclusive_what;

  // kNamed: what is named ("a route"), and a name that the engine refuses.
  std::string element, reserved;

  // Of a value, into the struct that the key belongs to.
  std::function<Status(const Value&, void*)> read;
  // And back, as it is written; null = absent.
  std::function<Json(const void*)> show;
  // Of a section, a list or a mapping of structs: makes the struct that a value fills (of a kNamed
  // with its name). None = a section of the very struct it stands in.
  std::function<void*(void*, const std::string&)> make;
  // And those that are there, of a section none or one.
  std::function<std::vector<Part>(const void*)> parts;

  const Key* find(std::string_view key_name) const;  // of `keys`; null when it is not there
  std::string exclusive_words() const;               // "a, b and c"
};

Key make_key(const char* name, Key::Type type, const char* meaning);

// Reads the value of a key into the struct that the key belongs to.
Status read_key(const Key& key, const Value& value, void* target);

// A key of a struct T. The type keeps keys of other structs out of a list.
template <typename T>
struct KeyOf {
  Key key;

  KeyOf required() && {
    key.is_required = true;
    key.fallback = nullptr;
    return std::move(*this);
  }
  KeyOf absent(std::string when) && {
    key.when_absent = std::move(when);
    return std::move(*this);
  }
  KeyOf at_most_one(std::string what, std::vector<std::string> names) && {
    key.exclusive_what = std::move(what);
    key.exclusive = std::move(names);
    return std::move(*this);
  }
};
template <typename T>
using Keys = std::vector<KeyOf<T>>;

// ---- scalars -----------------------------------------------------------------------------------

// Any value: read(value) -> Result<V>, show(member) -> Json.
template <typename T, typename V, typename Read, typename Show>
KeyOf<T> scalar(Key key, V T::*member, Read read, Show show) {
  key.read = [member, read](const Value& value, void* target) -> Status {
    SPECD_TRY(auto result, read(value));
    static_cast<T*>(target)->*member = static_cast<V>(std::move(result));
    return Status();
  };
  key.show = [member, show](const void* target) {
    return show(static_cast<const T*>(target)->*member);
  };
  const T fresh{};
  key.fallback = key.show(&fresh);
  return {std::move(key)};
}

template <typename T, typename N>
KeyOf<T> integer(const char* name, N T::*member, int64_t min, int64_t max, const char* meaning) {
  Key key = make_key(name, Key::Type::kInteger, meaning);
  key.min = min;
  key.max = max;
  // A member below the range stands for "not given".
  return scalar(
      std::move(key), member, [min, max](const Value& v) { return read_integer(v, min, max); },
      [min](N number) { return number < min ? Json() : Json(number); });
}

template <typename T>
KeyOf<T> boolean(const char* name, bool T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kBoolean, meaning), member,
      [](const Value& v) { return read_boolean(v); }, [](bool flag) { return Json(flag); });
}

template <typename T>
KeyOf<T> share(const char* name, double T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kShare, meaning), member,
      [](const Value& v) { return read_share(v); },
      [](double number) { return number > 0 ? Json(number) : Json(); });
}

template <typename T>
KeyOf<T> bytes(const char* name, uint64_t T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kBytes, meaning), member,
      [](const Value& v) { return read_bytes(v); },
      [](uint64_t number) { return number > 0 ? Json(number) : Json(); });
}

inline Json show_text(const std::string& text) { return text.empty() ? Json() : Json(text); }

template <typename T>
KeyOf<T> name(const char* key_name, std::string T::*member, const char* meaning) {
  return scalar(
      make_key(key_name, Key::Type::kName, meaning), member,
      [](const Value& v) { return read_name(v); }, show_text);
}

template <typename T>
KeyOf<T> path(const char* name, std::string T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kPath, meaning), member,
      [](const Value& v) { return read_path(v); }, show_text);
}

// A path of a folder that exists.
template <typename T>
KeyOf<T> folder(const char* name, std::string T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kPath, meaning), member,
      [what = std::string(meaning)](const Value& v) { return read_folder(v, what); }, show_text);
}

template <typename V>
using Choices = std::vector<std::pair<std::string, V>>;

template <typename T, typename V>
KeyOf<T> choice(const char* name, V T::*member, const Choices<V>& choices, const char* meaning) {
  Key key = make_key(name, Key::Type::kChoice, meaning);
  for (const auto& one : choices) key.choices.push_back(one.first);
  return scalar(
      key, member,
      [choices, words = key.choices](const Value& v) -> Result<V> {
        SPECD_TRY(const size_t index, read_choice(v, words));
        return choices[index].second;
      },
      [choices](const V& value) {
        for (const auto& [word, meant] : choices)
          if (meant == value) return Json(word);
        return Json();
      });
}

// Text of a form of its own: read(value) -> Result<V>, show(member) -> Json.
template <typename T, typename V, typename Read, typename Show>
KeyOf<T> text(const char* name, V T::*member, const char* form, const char* pattern,
              const char* meaning, Read read, Show show) {
  Key key = make_key(name, Key::Type::kText, meaning);
  key.form = form;
  key.pattern = pattern;
  return scalar(std::move(key), member, read, show);
}

// ---- lists and mappings ------------------------------------------------------------------------

template <typename T>
std::vector<Key> erased(Keys<T> keys) {
  std::vector<Key> plain;
  for (KeyOf<T>& one : keys) plain.push_back(std::move(one.key));
  return plain;
}

// A list of scalars: read_item(value) -> Result<std::string>.
template <typename T, typename Read>
KeyOf<T> list(const char* name, std::vector<std::string> T::*member, Key item, const char* meaning,
              Read read_item) {
  Key key = make_key(name, Key::Type::kList, meaning);
  key.keys.push_back(std::move(item));
  return scalar(
      std::move(key), member,
      [read_item](const Value& value) -> Result<std::vector<std::string>> {
        if (value.node().kind != YamlNode::Kind::kSequence) return value.not_expected("a list");
        std::vector<std::string> items;
        for (size_t i = 0; i < value.node().items.size(); ++i) {
          SPECD_TRY(std::string one, read_item(value.item(i)));
          items.push_back(std::move(one));
        }
        return items;
      },
      [](const std::vector<std::string>& items) { return Json(items); });
}

// Anything a plugin may take.
template <typename T>
KeyOf<T> free_mapping(const char* name, Json T::*member, const char* meaning) {
  return scalar(
      make_key(name, Key::Type::kFree, meaning), member,
      [](const Value& value) -> Result<Json> {
        if (value.node().kind == YamlNode::Kind::kNull) return Json::object();
        if (value.node().kind != YamlNode::Kind::kMap) return value.not_expected("a mapping");
        return yaml_to_json(value.node(), value.file(), value.path());
      },
      [](const Json& value) { return value; });
}

// A mapping whose keys belong to T itself.
template <typename T>
KeyOf<T> section(const char* name, Keys<T> keys, const char* meaning) {
  Key key = make_key(name, Key::Type::kSection, meaning);
  key.keys = erased(std::move(keys));
  key.parts = [](const void* target) { return std::vector<Key::Part>{{"", target}}; };
  return {std::move(key)};
}

// A mapping whose keys belong to a member.
template <typename T, typename U>
KeyOf<T> section(const char* name, U T::*member, Keys<U> keys, const char* meaning) {
  Key key = make_key(name, Key::Type::kSection, meaning);
  key.keys = erased(std::move(keys));
  key.make = [member](void* target, const std::string&) -> void* {
    return &(static_cast<T*>(target)->*member);
  };
  key.parts = [member](const void* target) {
    return std::vector<Key::Part>{{"", &(static_cast<const T*>(target)->*member)}};
  };
  return {std::move(key)};
}

// The same where the member is there only when the mapping is.
template <typename T, typename U>
KeyOf<T> section(const char* name, std::optional<U> T::*member, Keys<U> keys, const char* meaning) {
  Key key = make_key(name, Key::Type::kSection, meaning);
  key.keys = erased(std::move(keys));
  key.make = [member](void* target, const std::string&) -> void* {
    return &(static_cast<T*>(target)->*member).emplace();
  };
  key.parts = [member](const void* target) {
    const std::optional<U>& part = static_cast<const T*>(target)->*member;
    return part ? std::vector<Key::Part>{{"", &*part}} : std::vector<Key::Part>();
  };
  return {std::move(key)};
}

// A list of mappings, or with `label` a mapping of names to mappings.
template <typename T, typename U>
KeyOf<T> sections(const char* name, std::vector<U> T::*member, std::string U::*label,
                  Key::Type type, Keys<U> keys, const char* meaning) {
  Key key = make_key(name, type, meaning);
  key.keys.push_back(section<U>("", std::move(keys), "").key);
  key.make = [member, label](void* target, const std::string& given) -> void* {
    U& made = (static_cast<T*>(target)->*member).emplace_back();
    if (label != nullptr) made.*label = given;
    return &made;
  };
  key.parts = [member, label](const void* target) {
    std::vector<Key::Part> parts;
    for (const U& one : static_cast<const T*>(target)->*member)
      parts.emplace_back(label != nullptr ? one.*label : std::string(), &one);
    return parts;
  };
  return {std::move(key)};
}
template <typename T, typename U>
KeyOf<T> list(const char* name, std::vector<U> T::*member, Keys<U> keys, const char* meaning) {
  return sections<T, U>(name, member, nullptr, Key::Type::kList, std::move(keys), meaning);
}
template <typename T, typename U>
KeyOf<T> named(const char* name, std::vector<U> T::*member, std::string U::*label, Keys<U> keys,
               const char* meaning) {
  return sections<T, U>(name, member, label, Key::Type::kNamed, std::move(keys), meaning);
}

// Keys of a member of T as keys of T.
template <typename T, typename U>
Keys<T> inside(U T::*member, Keys<U> keys) {
  const auto below = [member](const void* target) -> const void* {
    return &(static_cast<const T*>(target)->*member);
  };
  const auto into = [member](void* target) -> void* { return &(static_cast<T*>(target)->*member); };
  Keys<T> lifted;
  for (KeyOf<U>& one : keys) {
    Key key = std::move(one.key);
    if (key.read)
      key.read = [into, read = key.read](const Value& v, void* t) { return read(v, into(t)); };
    if (key.show) key.show = [below, show = key.show](const void* t) { return show(below(t)); };
    // A section without `make` belongs to U itself.
    key.make = [into, make = key.make](void* t, const std::string& label) {
      return make ? make(into(t), label) : into(t);
    };
    if (key.parts)
      key.parts = [below, parts = key.parts](const void* t) { return parts(below(t)); };
    lifted.push_back({std::move(key)});
  }
  return lifted;
}

template <typename T>
Keys<T> operator+(Keys<T> first, Keys<T> more) {
  for (KeyOf<T>& one : more) first.push_back(std::move(one));
  return first;
}

}  // namespace specd::host
