#include "host/ctl/command.h"

#include <google/protobuf/util/json_util.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "host/base/table.h"
#include "host/rpc/proto_text.h"

namespace specd::host {
namespace {

using OrderedJson = nlohmann::ordered_json;  // keeps the order of the .proto

// Replaces the names of enum values by their words.
void name_enums(const google::protobuf::Descriptor& type, OrderedJson& json) {
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor& field = *type.field(i);
    const auto found = json.find(field.name());
    if (found == json.end()) continue;
    if (field.message_type() != nullptr) {
      if (!field.is_repeated()) name_enums(*field.message_type(), *found);
      if (field.is_repeated())
        for (OrderedJson& each : *found) name_enums(*field.message_type(), each);
    } else if (field.enum_type() != nullptr) {
      const auto* value = field.enum_type()->FindValueByName(found->get<std::string>());
      if (value != nullptr) *found = enum_word(*value);
    }
  }
}

}  // namespace

int ctl_fail(const Status& status) {
  std::fprintf(stderr, "specctl: %s: %s\n", code_name(status.code()),
               printable(status.text()).c_str());
  return kCtlFailed;
}

int ctl_usage(const std::string& problem) {
  std::fprintf(stderr, "specctl: %s\nTry: specctl --help\n", printable(problem).c_str());
  return kCtlUsage;
}

std::string to_json(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) return "{}";
  return text;
}

std::string report_to_json(const google::protobuf::Message& message) {
  OrderedJson json = OrderedJson::parse(to_json(message));
  name_enums(*message.GetDescriptor(), json);
  return json.dump();
}

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream stream(list);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  if (list.ends_with(',')) parts.emplace_back();
  return parts;
}

}  // namespace specd::host
