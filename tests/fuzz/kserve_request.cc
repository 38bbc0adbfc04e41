// The bytes of a ModelInferRequest: refused in words that fit on a line, or a request with the prompt that was sent.
#include "host/rpc/kserve_wire.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  inference::ModelInferRequest wire;
  if (!wire.ParseFromArray(data, static_cast<int>(size))) return 0;
  wire.set_model_name("m");
  const auto read = host::request_from_kserve(wire, {.name = "m", .version = "1"}, 1);
  fuzz::check_message(read.status(), "");
  if (!read.ok()) return 0;
  const host::InferRequest& request = read.value().request;
  if (request.text_input != request.request.prompt && !request.cancels)
    fuzz::fail("a prompt that nobody sent");
  inference::ModelInferResponse response;
  host::outputs_to_kserve(response, {{"text_output", request.text_input}}, read.value().outputs);
  if (response.outputs_size() != response.raw_output_contents_size())
    fuzz::fail("an output without bytes");
  return 0;
}
