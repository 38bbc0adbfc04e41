#include "host/rpc/kserve_wire.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/triton/tensors.h"

namespace specd::host {
namespace {

using inference::ModelInferRequest;
using inference::ModelInferResponse;

constexpr size_t kKserveBytesMax = size_t{8} << 20;

template <typename List>
Json list_of(const List& values) {
  Json list = Json::array();
  for (const auto& each : values) list.push_back(each);
  return list;
}

// The elements of `contents`, which has those of this type alone.
Result<Json> values_of_contents(const TensorSpec& spec, size_t count,
                                const inference::InferTensorContents& contents) {
  const auto wrong = [&spec](const std::string& text) {
    return Status(Code::kInvalidArgument,
                  "inference input " + quote(spec.name) + ": contents: " + text);
  };
  const int n = contents.bool_contents_size() + contents.int_contents_size() +
                contents.int64_contents_size() + contents.uint_contents_size() +
                contents.uint64_contents_size() + contents.fp32_contents_size() +
                contents.fp64_contents_size() + contents.bytes_contents_size();
  if (n < 0 || static_cast<size_t>(n) != count)
    return wrong("expected " + std::to_string(count) + " elements of " + datatype_name(spec.type) +
                 ", found " + std::to_string(n));
  Json values;
  switch (spec.type) {
    case Datatype::kBool:
      values = list_of(contents.bool_contents());
      break;
    case Datatype::kInt32:
      values = list_of(contents.int_contents());
      break;
    case Datatype::kUint64:
      values = list_of(contents.uint64_contents());
      break;
    case Datatype::kFp32:
      if (std::ranges::any_of(contents.fp32_contents(), [](float x) { return !std::isfinite(x); }))
        return wrong("expected finite numbers");
      values = list_of(contents.fp32_contents());
      break;
    case Datatype::kBytes: {
      std::string raw;
      for (const std::string& each : contents.bytes_contents()) raw += raw_of_text(each);
      if (static_cast<size_t>(contents.bytes_contents_size()) == count) {
        SPECD_TRY(values, values_of_raw(spec, count, raw));
      }
      break;
    }
  }
  if (values.size() != count)
    return wrong("expected elements of " + std::string(datatype_name(spec.type)) +
                 ", found those of another type");
  return values;
}

Json parameter_value(const inference::InferParameter& parameter) {
  switch (parameter.parameter_choice_case()) {
    case inference::InferParameter::kBoolParam:
      return parameter.bool_param();
    case inference::InferParameter::kInt64Param:
      return parameter.int64_param();
    case inference::InferParameter::kUint64Param:
      return parameter.uint64_param();
    case inference::InferParameter::kDoubleParam:
      return parameter.double_param();
    case inference::InferParameter::kStringParam:
      return parameter.string_param();
    case inference::InferParameter::PARAMETER_CHOICE_NOT_SET:
      break;
  }
  return nullptr;
}

Result<Json> values_of(const ModelInferRequest& wire, const TritonModel& model) {
  const int n_raw = wire.raw_input_contents_size();
  if (n_raw > 0 && n_raw != wire.inputs_size())
    return Status(Code::kInvalidArgument, "raw_input_contents",
                  "expected one for each of the " + std::to_string(wire.inputs_size()) +
                      " inputs, found " + std::to_string(n_raw));
  Json values = Json::object();
  for (int i = 0; i < wire.inputs_size(); ++i) {
    const auto& input = wire.inputs(i);
    const TensorHead head{.name = input.name(),
                          .datatype = input.datatype(),
                          .shape = {input.shape().begin(), input.shape().end()}};
    size_t count = 0;
    SPECD_TRY(const TensorSpec* const spec, check_tensor(head, model, count));
    if (n_raw > 0 && input.has_contents())
      return Status(Code::kInvalidArgument, "raw_input_contents",
                    "expected none beside contents, which input " + quote(head.name) + " has");
    Result<Json> list = n_raw > 0 ? values_of_raw(*spec, count, wire.raw_input_contents(i))
                                  : values_of_contents(*spec, count, input.contents());
    SPECD_OK_OR_RETURN(list.status());
    if (!values.emplace(head.name, std::move(list).value()).second)
      return Status(Code::kInvalidArgument, "inputs",
                    "expected each input once, found " + quote(head.name) + " again");
  }
  for (const auto& [name, parameter] : wire.parameters()) {
    if (!values.emplace(name, parameter_value(parameter)).second)
      return Status(Code::kInvalidArgument, "parameters",
                    "expected no value beside the input of the same name, found " + quote(name));
  }
  return values;
}

}  // namespace

Result<KserveRequest> request_from_kserve(const ModelInferRequest& wire, const TritonModel& model,
                                          uint64_t seed) {
  // A message can need far more memory than it has bytes: empty tensors take 2 bytes each.
  if (const size_t held = wire.SpaceUsedLong(); held > kKserveBytesMax)
    return Status(Code::kInvalidArgument, "expected a request that takes at most " +
                                              std::to_string(kKserveBytesMax) +
                                              " bytes in memory, found " + std::to_string(held));
  SPECD_OK_OR_RETURN(model.check(wire.model_name(), wire.model_version()));
  SPECD_TRY(const Json values, values_of(wire, model));
  KserveRequest asked;
  SPECD_TRY(asked.request, read_infer(values, wire.id(), seed));
  const auto known = infer_outputs();
  for (const auto& output : wire.outputs()) {
    if (std::ranges::none_of(known, [&](const char* each) { return output.name() == each; }))
      return Status(Code::kInvalidArgument, "unexpected inference output " + quote(output.name()) +
                                                " for model " + quote(model.name));
    asked.outputs.push_back(output.name());
  }
  return asked;
}

void head_to_kserve(ModelInferResponse& response, const TritonModel& model, const std::string& id) {
  response.set_model_name(model.name);
  response.set_model_version(model.version);
  response.set_id(id);
}

void outputs_to_kserve(ModelInferResponse& response, const InferOutputs& outputs,
                       const std::vector<std::string>& wished) {
  for (const auto& [name, value] : outputs) {
    if (!wished.empty() && std::ranges::find(wished, name) == wished.end()) continue;
    auto& tensor = *response.add_outputs();
    tensor.set_name(name);
    tensor.set_datatype(datatype_name(Datatype::kBytes));
    tensor.add_shape(1);
    response.add_raw_output_contents(raw_of_text(value));
  }
}

}  // namespace specd::host
