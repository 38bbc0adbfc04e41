// A body of /v2/models/{model}/infer, and the length of its JSON in the first two bytes: refused in words that fit on a
// line, or values that mean a request. What is written for it can be cut where the length says.
#include "host/triton/infer_body.h"

#include <string>

#include "host/triton/infer_request.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  if (size < 2) return 0;
  const unsigned length = data[0] + 256U * data[1];
  const host::TritonModel model{.name = "m", .version = "1"};
  const auto body = host::read_infer_body(fuzz::text_of(data + 2, size - 2),
                                          length == 0 ? "" : std::to_string(length), model);
  fuzz::check_message(body.status(), "");
  if (!body.ok()) return 0;
  const auto request = host::read_infer(body.value().values, body.value().id, 1);
  fuzz::check_message(request.status(), "");
  if (!request.ok()) return 0;
  if (request.value().text_input != request.value().request.prompt && !request.value().cancels)
    fuzz::fail("a prompt that nobody sent");
  size_t json_bytes = 0;
  const std::string answer =
      host::write_infer_body(body.value(), {{"text_output", "a"}}, model, json_bytes);
  if (!parse_json(answer.substr(0, json_bytes), "answer").ok()) fuzz::fail("an answer cut wrongly");
  return 0;
}
