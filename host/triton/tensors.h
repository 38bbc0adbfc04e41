// The values of tensors, as KServe's protocol carries them. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/base/json.h"
#include "core/base/status.h"
#include "host/triton/contract.h"

namespace specd::host {

// The head of an input tensor.
struct TensorHead {
  std::string name, datatype;
  std::vector<int64_t> shape;
};

// The input of the model that `head` is about; kInvalidArgument naming the input when there is none, or when type or shape
// are others than the model's. `count`: how many elements it has.
Result<const TensorSpec*> check_tensor(const TensorHead& head, const TritonModel& model,
                                       size_t& count);

// The elements of `count`, little-endian and one after the other; those of BYTES behind their length in 4 bytes each,
// and UTF-8. A list in JSON, kInvalidArgument naming the input and the byte.
Result<Json> values_of_raw(const TensorSpec& spec, size_t count, std::string_view raw);

// Such bytes of one element of BYTES.
std::string raw_of_text(std::string_view text);

}  // namespace specd::host
