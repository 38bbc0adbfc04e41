// The members that keys fill. A function keys_of(Fields&, struct&) names every key of a struct with
// its member, once; Fields goes over it in one of three ways:
//
//   Fields::table(f)          the keys, with what fresh structs hold as their defaults
//   Fields::load(values, f)   fills the members from values in normal form (read_value())
//   Fields::save(f)           gives the members back as such values
#pragma once

#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/json.h"
#include "host/config/config_key.h"

namespace specd::host {

template <typename V>
using Choices = std::vector<std::pair<std::string, V>>;

class Fields {
 public:
  static std::vector<Key> table(auto keys_of) {
    Fields fields(nullptr, true);
    keys_of(fields);
    return std::move(fields.keys_);
  }
  static void load(const Json& values, auto keys_of) {
    Fields fields(&values, false);
    keys_of(fields);
  }
  static Json save(auto keys_of) {
    Fields fields(nullptr, false);
    keys_of(fields);
    return std::move(fields.saved_);
  }

  // A number, true or false, a text, a list of texts, anything.
  template <typename T>
  void value(Key key, T& member) {
    if (is_loading()) return given(key, [&](const Json& json) { member = json.get<T>(); });
    Json json = shown(key, member);
    put(std::move(key), std::move(json));
  }
  template <typename V>
  void choice(Key key, V& member, const Choices<V>& choices) {
    Json word;
    for (const auto& [each, meant] : choices) {
      key.choices.push_back(each);
      if (meant == member) word = each;
    }
    if (!is_loading()) return put(std::move(key), std::move(word));
    given(key, [&](const Json& json) {
      for (const auto& [each, meant] : choices)
        if (json == each) member = meant;
    });
  }
  // A text that members stand for: set(text), get() -> text.
  void text(Key key, auto set, auto get) {
    std::string text = get();
    value(std::move(key), text);
    if (is_loading() && !text.empty()) set(text);
  }
  // A mapping whose keys `keys_of(fields)` names.
  void section(Key key, auto keys_of) {
    if (is_loading()) return given(key, [&](const Json& json) { load(json, keys_of); });
    if (!is_table_) return put(std::move(key), save(keys_of));
    key.keys = table(keys_of);
    keys_.push_back(std::move(key));
  }
  // The same of a struct that is there only when the mapping is: keys_of(fields, struct).
  template <typename U>
  void section_if(Key key, std::optional<U>& member, auto keys_of) {
    U fresh;
    if (is_loading() || member) {
      section(std::move(key),
              [&](Fields& in) { keys_of(in, member ? *member : member.emplace()); });
    } else if (is_table_) {
      section(std::move(key), [&](Fields& in) { keys_of(in, fresh); });
    }
  }
  // A list of structs, or a mapping of names to them, where `label` takes the name.
  template <typename U>
  void each(Key key, std::vector<U>& members, auto keys_of, std::string U::*label = nullptr) {
    const auto of = [&](U& one) { return [&](Fields& in) { keys_of(in, one); }; };
    if (is_loading()) {
      return given(key, [&](const Json& values) {
        for (const Json& value : values) {
          U& one = members.emplace_back();
          if (label != nullptr) one.*label = value[0].get<std::string>();
          load(label != nullptr ? value[1] : value, of(one));
        }
      });
    }
    if (is_table_) {
      U fresh;
      Key item;
      item.type = Key::Type::kSection;
      item.keys = table(of(fresh));
      key.keys = {std::move(item)};
      keys_.push_back(std::move(key));
      return;
    }
    Json all = Json::array();
    for (U& one : members) {
      Json& saved = all.emplace_back(save(of(one)));
      if (label == nullptr) continue;
      // Not an initializer list: GCC 12 destroys a part of it twice when a later part throws.
      Json pair = Json::array();
      pair.push_back(one.*label);
      pair.push_back(std::move(saved));
      saved = std::move(pair);
    }
    put(std::move(key), std::move(all));
  }

 private:
  Fields(const Json* given, bool is_table) : given_(given), is_table_(is_table) {}

  bool is_loading() const { return given_ != nullptr; }
  void given(const Key& key, auto use) {
    if (const auto found = given_->find(key.name); found != given_->end()) use(*found);
  }
  void put(Key key, Json json) {
    if (is_table_) {
      if (!key.is_required) key.fallback = std::move(json);
      keys_.push_back(std::move(key));
    } else if (!json.is_null()) {
      saved_[key.name] = std::move(json);
    }
  }
  // A member that means "not given" becomes null: an empty text, a number below its key's range.
  template <typename T>
  static Json shown(const Key& key, const T& member) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (member.empty()) return nullptr;
    } else if constexpr (std::is_floating_point_v<T>) {
      if (member <= 0) return nullptr;
    } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
      if (static_cast<int64_t>(member) < key.min) return nullptr;
    }
    return member;
  }

  const Json* given_;  // null unless loading
  bool is_table_;
  std::vector<Key> keys_;
  Json saved_ = Json::object();
};

}  // namespace specd::host
