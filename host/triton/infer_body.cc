#include "host/triton/infer_body.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/base/quote.h"
#include "host/base/fields.h"
#include "host/triton/tensors.h"

namespace specd::host {
namespace {

using Ordered = nlohmann::ordered_json;

bool has(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

Result<size_t> byte_count(const Json& parameters, const char* name) {
  SPECD_TRY(const int64_t bytes, integer_of(parameters[name], 0, INT32_MAX));
  return static_cast<size_t>(bytes);
}

// One of `inputs`. `tail`: the bytes behind the JSON that no input has taken yet.
Status read_input(const Json& input, const TritonModel& model, std::string_view& tail,
                  Json& values) {
  if (!input.is_object())
    return {Code::kInvalidArgument, "expected an object, found " + shown(input)};
  Fields fields(input);
  TensorHead head{.name = fields.text("name").value_or(""),
                  .datatype = fields.text("datatype").value_or(""),
                  .shape = {}};
  if (const Json* const shape = fields.value("shape"); shape != nullptr && shape->is_array()) {
    for (const Json& each : *shape) {
      Result<int64_t> dim = integer_of(each, 0, INT64_MAX);
      if (!dim.ok()) return std::move(dim).in_field("shape").status();
      head.shape.push_back(dim.value());
    }
  } else {
    fields.fail("shape", "expected a list of integers");
  }
  SPECD_OK_OR_RETURN(fields.status());
  size_t count = 0;
  SPECD_TRY(const TensorSpec* const spec, check_tensor(head, model, count));
  const Json* const data = fields.value("data");
  const Json* const parameters = fields.value("parameters");
  const bool is_binary =
      parameters != nullptr && parameters->is_object() && parameters->contains("binary_data_size");
  if ((data != nullptr) == is_binary)
    return {Code::kInvalidArgument, "data",
            "expected either `data` or the parameter `binary_data_size`"};
  Json list;
  if (is_binary) {
    Result<size_t> bytes = byte_count(*parameters, "binary_data_size");
    if (!bytes.ok()) return std::move(bytes).in_field("binary_data_size").status();
    if (bytes.value() > tail.size())
      return {Code::kInvalidArgument, "binary_data_size",
              "expected at most the " + std::to_string(tail.size()) +
                  " bytes that are left behind the JSON, found " + std::to_string(bytes.value())};
    SPECD_TRY(list, values_of_raw(*spec, count, tail.substr(0, bytes.value())));
    tail.remove_prefix(bytes.value());
  } else {
    if (!data->is_array() || data->size() != count)
      return {Code::kInvalidArgument, "data",
              "expected a list of " + std::to_string(count) + " for shape [" +
                  std::to_string(count) + "], found " +
                  (data->is_array() ? std::to_string(data->size()) : shown(*data))};
    list = *data;
  }
  if (!values.emplace(head.name, std::move(list)).second)
    return {Code::kInvalidArgument, "name", "expected each input once, found " + quote(head.name)};
  return Status();
}

Status read_outputs(const Json& list, InferBody& out) {
  if (!list.is_array())
    return {Code::kInvalidArgument, "outputs", "expected a list, found " + shown(list)};
  const auto known = infer_outputs();
  for (const Json& each : list) {
    if (!each.is_object())
      return {Code::kInvalidArgument, "outputs", "expected objects, found " + shown(each)};
    Fields fields(each, "outputs");
    const std::string name = fields.text("name").value_or("");
    if (std::none_of(known.begin(), known.end(),
                     [&name](const char* output) { return name == output; }))
      fields.fail("name", "expected an output of the model, found " + quote(name));
    bool is_binary = out.is_binary;
    if (const Json* const parameters = fields.value("parameters");
        parameters != nullptr && parameters->is_object()) {
      Fields inner(*parameters, "outputs.parameters");
      is_binary = inner.boolean("binary_data").value_or(is_binary);
      if (inner.value("classification") != nullptr)
        inner.fail("classification", "specd does not support it; leave it out");
      SPECD_OK_OR_RETURN(inner.status());
    }
    SPECD_OK_OR_RETURN(fields.status());
    out.outputs.push_back(name);
    if (is_binary) out.binary.push_back(name);
  }
  return Status();
}

}  // namespace

Result<Json> read_infer_object(std::string_view body) {
  SPECD_TRY(Json json, parse_json(body, "body"));
  if (json.is_object()) return json;
  return Status(Code::kInvalidArgument, "expected a JSON object, found " + shown(json));
}

// The text of `id`, which may be absent; takes it out.
Result<std::string> take_infer_id(Json& object) {
  const auto found = object.find("id");
  if (found == object.end()) return std::string();
  if (!found->is_string())
    return Status(Code::kInvalidArgument, "id", "expected a text, found " + shown(*found));
  std::string id = found->get<std::string>();
  object.erase(found);
  return id;
}

// Moves the members of `parameters` to `values`.
Status take_infer_parameters(Json& object, Json& values) {
  const auto found = object.find("parameters");
  if (found == object.end()) return Status();
  if (!found->is_object())
    return {Code::kInvalidArgument, "parameters", "expected an object, found " + shown(*found)};
  const Json parameters = std::move(*found);
  object.erase(found);
  for (const auto& [name, value] : parameters.items()) {
    const auto [place, is_new] = values.emplace(name, value);
    if (!is_new)
      return {Code::kInvalidArgument, "parameters." + name,
              "expected it once; an input or another value has this name, too"};
  }
  return Status();
}

Result<InferBody> read_infer_body(std::string_view body, std::string_view length,
                                  const TritonModel& model) {
  std::string_view json = body, tail;
  if (!length.empty()) {
    size_t bytes = 0;
    const char* const end = length.data() + length.size();
    const auto [rest, bad] = std::from_chars(length.data(), end, bytes);
    if (bad != std::errc() || rest != end || bytes == 0 || bytes > json.size())
      return Status(Code::kInvalidArgument, "Inference-Header-Content-Length",
                    "expected the bytes of the JSON, from 1 to the body's " +
                        std::to_string(json.size()) + ", found " + quote(length));
    tail = json.substr(bytes);
    json = json.substr(0, bytes);
  }
  SPECD_TRY(Json object, read_infer_object(json));
  InferBody out;
  SPECD_TRY(out.id, take_infer_id(object));
  const auto inputs = object.find("inputs");
  if (inputs == object.end() || !inputs->is_array())
    return Status(Code::kInvalidArgument, "inputs", "expected a list of tensors");
  size_t n = 0;
  for (const Json& each : *inputs) {
    const Status read = read_input(each, model, tail, out.values);
    const std::string place = "inputs[" + std::to_string(n++) + "]";
    if (!read.ok())
      return Status(read.code(), place + (read.field().empty() ? "" : "." + read.field()),
                    read.message());
  }
  if (!tail.empty())
    return Status(Code::kInvalidArgument, "inputs",
                  "expected that the inputs take every byte behind the JSON, found " +
                      std::to_string(tail.size()) + " more");
  SPECD_OK_OR_RETURN(take_infer_parameters(object, out.values));
  if (const auto all = out.values.find("binary_data_output"); all != out.values.end())
    out.is_binary = all->is_boolean() && all->get<bool>();
  if (const auto outputs = object.find("outputs"); outputs != object.end())
    SPECD_OK_OR_RETURN(read_outputs(*outputs, out));
  return out;
}

std::string write_infer_body(const InferBody& asked, const InferOutputs& outputs,
                             const TritonModel& model, size_t& json_bytes) {
  Ordered body = Ordered::object();
  if (!asked.id.empty()) body["id"] = asked.id;
  body["model_name"] = model.name;
  body["model_version"] = model.version;
  Ordered list = Ordered::array();
  std::string tail;
  for (const auto& [name, value] : outputs) {
    if (!asked.outputs.empty() && !has(asked.outputs, name)) continue;
    Ordered output;
    output["name"] = name;
    output["datatype"] = datatype_name(Datatype::kBytes);
    output["shape"] = {1};
    if (asked.outputs.empty() ? asked.is_binary : has(asked.binary, name)) {
      const std::string raw = raw_of_text(value);
      output["parameters"]["binary_data_size"] = raw.size();
      tail += raw;
    } else {
      output["data"] = Ordered::array({value});
    }
    list.push_back(std::move(output));
  }
  body["outputs"] = std::move(list);
  const std::string json = body.dump(-1, ' ', false, Ordered::error_handler_t::replace);
  json_bytes = json.size();
  return json + tail;
}

}  // namespace specd::host
