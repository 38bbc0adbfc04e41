// The bodies of /v2/models/{model}/infer: JSON, with the bytes of tensors behind it where the client wants that
// (github.com/triton-inference-server/server, docs/protocol/extension_binary_data.md). Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "host/triton/contract.h"
#include "host/triton/infer_call.h"

namespace specd::host {

struct InferBody {
  std::string id;
  Json values = Json::object();  // of inputs and parameters, for read_infer()
  // The outputs that are asked for; empty = all. Those that go behind the JSON.
  std::vector<std::string> outputs, binary;
  bool is_binary = false;  // all do, where none is asked for
};

// `json_bytes`: the header Inference-Header-Content-Length, empty where there is none. kInvalidArgument with the place in the
// JSON.
Result<InferBody> read_infer_body(std::string_view body, std::string_view json_bytes,
                                  const TritonModel& model);

// `json_bytes`: of the result; all of it where no output is behind the JSON.
std::string write_infer_body(const InferBody& asked, const InferOutputs& outputs,
                             const TritonModel& model, size_t& json_bytes);

// What bodies of generate have in common with these: an object; its `id`, which is taken out, empty where there is
// none; and the members of `parameters`, which move to `values`.
Result<Json> read_infer_object(std::string_view body);
Result<std::string> take_infer_id(Json& object);
Status take_infer_parameters(Json& object, Json& values);

}  // namespace specd::host
