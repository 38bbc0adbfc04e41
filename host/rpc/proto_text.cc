#include "host/rpc/proto_text.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/quote.h"

namespace specd::host {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

namespace {

using OrderedJson = nlohmann::ordered_json;  // keeps the order of the .proto

// Replaces the names of enum values by their words.
void name_enums(const google::protobuf::Descriptor& type, OrderedJson& json) {
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const auto found = json.find(field.name());
    if (found == json.end()) continue;
    if (field.message_type() != nullptr) {
      if (!field.is_repeated()) name_enums(*field.message_type(), *found);
      if (field.is_repeated())
        for (OrderedJson& each : *found) name_enums(*field.message_type(), each);
    } else if (field.enum_type() != nullptr) {
      // protobuf prints the number of a value that only a newer daemon knows.
      const EnumValueDescriptor* value =
          found->is_string() ? field.enum_type()->FindValueByName(found->get<std::string>())
                             : nullptr;
      *found = value == nullptr ? "unknown" : enum_word(*value);
    }
  }
}

}  // namespace

std::string make_utf8(Message& message) {
  std::string first;
  const Reflection& fields = *message.GetReflection();
  std::vector<const FieldDescriptor*> present;
  fields.ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    const int n = field->is_repeated() ? fields.FieldSize(message, field) : 1;
    for (int i = 0; i < n; ++i) {
      const auto note = [&](const std::string& inner) {
        if (!first.empty()) return;
        first = field->name() + (field->is_repeated() ? "[" + std::to_string(i) + "]" : "") + inner;
      };
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        const std::string inner =
            make_utf8(field->is_repeated() ? *fields.MutableRepeatedMessage(&message, field, i)
                                           : *fields.MutableMessage(&message, field));
        if (!inner.empty()) note("." + inner);
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = field->is_repeated() ? fields.GetRepeatedString(message, field, i)
                                                      : fields.GetString(message, field);
        if (utf8_error_offset(text) == std::string_view::npos) continue;
        note("");
        if (field->is_repeated()) {
          fields.SetRepeatedString(&message, field, i, escaped(text));
        } else {
          fields.SetString(&message, field, escaped(text));
        }
      }
    }
  }
  return first;
}

std::string enum_word(const EnumValueDescriptor& value) {
  if (value.number() == 0) return "";
  // All values of a type have the prefix of its first one: "ROUTE_STATE_UNSPECIFIED".
  const size_t front =
      value.type()->FindValueByNumber(0)->name().size() - std::string_view("UNSPECIFIED").size();
  std::string word = value.name().substr(front);
  for (char& c : word)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return word;
}

int enum_number(const EnumDescriptor& type, std::string_view word) {
  for (int i = 0; i < type.value_count(); ++i)
    if (enum_word(*type.value(i)) == word) return type.value(i)->number();
  return 0;
}

std::string to_json(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

std::string report_to_json(const Message& message) {
  OrderedJson json = OrderedJson::parse(to_json(message));
  name_enums(*message.GetDescriptor(), json);
  return json.dump();
}

}  // namespace specd::host
