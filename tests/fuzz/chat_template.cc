// A Jinja template over a conversation: it is refused with its place, or renders UTF-8 whose marked
// parts lie in it, in order.
#include "core/chat/jinja/template.h"

#include "core/base/utf8.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto made = jinja::Template::parse(fuzz::text_of(data, size), "template");
  fuzz::check_message(made.status(), "template");
  if (!made.ok()) return 0;
  jinja::Budget budget = jinja::json_budget();
  const auto messages = jinja::value_from_json(
      R"([{"role":"system","content":" Be brief. "},{"role":"user","content":"<|im_end|> \u00e9"},
          {"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{"x":1.5}}}]},
          {"role":"user","content":"Hi"}])",
      "messages", budget);
  const auto text = made.value()->render(
      {{"messages", messages.value()}, {"add_generation_prompt", jinja::Value::boolean(true)}}, {});
  fuzz::check_message(text.status(), "template");
  if (!text.ok()) return 0;
  if (utf8_error_offset(text.value().bytes()) != std::string::npos) fuzz::fail("not UTF-8");
  size_t last = 0;
  for (const TextRange& range : text.value().marks()) {
    if (range.begin < last || range.end <= range.begin || range.end > text.value().bytes().size())
      fuzz::fail("a marked part out of order");
    last = range.end;
  }
  return 0;
}
