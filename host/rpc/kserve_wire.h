// Converts between the values of Triton's clients and the messages of inference.GRPCInferenceService. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "host/proto/kserve.pb.h"
#include "host/triton/contract.h"
#include "host/triton/infer_call.h"
#include "host/triton/infer_request.h"

namespace specd::host {

struct KserveRequest {
  InferRequest request;
  std::vector<std::string> outputs;  // those that are asked for; empty = all
};

// kNotFound for another model, kInvalidArgument for tensors that contradict themselves or the model. `seed`: of a request
// that names none.
Result<KserveRequest> request_from_kserve(const inference::ModelInferRequest& wire,
                                          const TritonModel& model, uint64_t seed);

void head_to_kserve(inference::ModelInferResponse& response, const TritonModel& model,
                    const std::string& id);
// Those that are `wished`, or all. In raw_output_contents, where clients in C++ look without asking.
void outputs_to_kserve(inference::ModelInferResponse& response, const InferOutputs& outputs,
                       const std::vector<std::string>& wished);

}  // namespace specd::host
