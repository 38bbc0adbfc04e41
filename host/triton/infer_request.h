// What Triton's clients ask of a model: inputs and parameters by name, whichever protocol carried them.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/engine.h"

namespace specd::host {

struct InferRequest {
  Request request;
  std::string id;          // as the client gave it; empty = it gave none
  std::string text_input;  // also in `request`
  // A response for each piece of text; absent = as the protocol has it.
  std::optional<bool> is_stream;
  bool excludes_input = false;  // else the text begins with text_input
  bool returns_metrics = false, returns_finish_reason = false, returns_stop_reason = false,
       returns_logprob = false;
  bool cancels = false;  // ends the requests with this id instead
  std::optional<std::chrono::milliseconds> time_left;
  std::vector<std::string> ignored;  // names that mean nothing here
};

// `values`: an object of scalars, and of lists of them; a list of one is a scalar. A name may have `sampling_param_` in
// front, but not be there twice. Without temperature, top_k and top_p the text is greedy, and without max_tokens it has 32
// tokens, as by TensorRT-LLM's SamplingParams. `seed` is for a request that names none. kInvalidArgument
// with the client's name of the value.
Result<InferRequest> read_infer(const Json& values, const std::string& id, uint64_t seed);

// Whether a client may call a request so: at most 96 printable characters, or none.
Status check_infer_id(const std::string& id);

// The name of a value in an error by the engine, as clients know it.
Status in_words_of_infer(const Status& status);

}  // namespace specd::host
