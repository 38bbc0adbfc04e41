// A body for /v1/completions or /v1/chat/completions: refused with the field in words that fit on a line, or requests
// with one prompt each and no more texts than allowed.
#include "host/openai/generation_request.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto body = parse_json(fuzz::text_of(data, size), "body");
  fuzz::check_message(body.status(), "body:");
  if (!body.ok()) return 0;
  constexpr int64_t kChoicesMax = 64;
  for (const auto kind : {host::GenerationKind::kCompletion, host::GenerationKind::kChat}) {
    const auto read = host::read_generation(body.value(), kind, {.choices_max = kChoicesMax});
    fuzz::check_message(read.status(), "");
    if (!read.ok()) continue;
    const host::GenerationRequest& request = read.value();
    int64_t n_choices = 0;
    for (const Request& each : request.requests) {
      n_choices += each.n_choices();
      const int n_prompts = (each.prompt.empty() ? 0 : 1) +
                            (each.prompt_tokens.has_value() ? 1 : 0) +
                            (each.chat.has_value() ? 1 : 0);
      if (n_prompts != 1) fuzz::fail("a request without one prompt");
      if (each.max_tokens < 0 || (each.fills_context && each.max_tokens != 0))
        fuzz::fail("a length that nobody asked for");
    }
    if (n_choices < 1 || n_choices > kChoicesMax) fuzz::fail("too many texts");
    if (request.includes_usage && !request.is_stream) fuzz::fail("options of no stream");
  }
  return 0;
}
