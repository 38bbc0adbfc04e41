#include "host/rpc/proto_text.h"

#include <google/protobuf/descriptor.h>

#include <vector>

#include "core/base/quote.h"

namespace specd::host {

using google::protobuf::EnumDescriptor;
using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void make_utf8(Message& message) {
  const Reflection& fields = *message.GetReflection();
  std::vector<const FieldDescriptor*> present;
  fields.ListFields(message, &present);
  for (const FieldDescriptor* field : present) {
    const int n = field->is_repeated() ? fields.FieldSize(message, field) : 1;
    for (int i = 0; i < n; ++i) {
      if (field->type() == FieldDescriptor::TYPE_MESSAGE) {
        make_utf8(field->is_repeated() ? *fields.MutableRepeatedMessage(&message, field, i)
                                       : *fields.MutableMessage(&message, field));
      } else if (field->type() == FieldDescriptor::TYPE_STRING) {
        const std::string text = field->is_repeated() ? fields.GetRepeatedString(message, field, i)
                                                      : fields.GetString(message, field);
        if (utf8_error_offset(text) == std::string_view::npos) continue;
        if (field->is_repeated()) {
          fields.SetRepeatedString(&message, field, i, escaped(text));
        } else {
          fields.SetString(&message, field, escaped(text));
        }
      }
    }
  }
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

}  // namespace specd::host
