// Helpers for all messages of the wire: strings as UTF-8, enum values as words, JSON.
#pragma once

#include <google/protobuf/generated_enum_reflection.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>

namespace specd::host {

// Escapes every string of the message that is not UTF-8, at any depth: bytes become \xHH. Otherwise
// one folder with such a name would make a reply that no client can read. Returns the first field
// that it changed, "chat.messages[0].role", or "".
std::string make_utf8(google::protobuf::Message& message);

// ROUTE_STATE_LIVE is "live"; *_UNSPECIFIED is "".
std::string enum_word(const google::protobuf::EnumValueDescriptor& value);
template <typename E>
std::string enum_word(E value) {
  const auto* known = google::protobuf::GetEnumDescriptor<E>()->FindValueByNumber(value);
  return known == nullptr ? "unknown" : enum_word(*known);
}

// The number of the enum value with this word; 0, which is *_UNSPECIFIED, when there is none.
int enum_number(const google::protobuf::EnumDescriptor& type, std::string_view word);
template <typename E>
E enum_value(std::string_view word) {
  return static_cast<E>(enum_number(*google::protobuf::GetEnumDescriptor<E>(), word));
}

// One line of JSON with the field names of the .proto.
std::string to_json(const google::protobuf::Message& message);
// The same for a report, with states and kinds as enum_word() names them: "live", not
// "ROUTE_STATE_LIVE".
std::string report_to_json(const google::protobuf::Message& message);

}  // namespace specd::host
