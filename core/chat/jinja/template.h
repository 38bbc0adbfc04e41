// A Jinja template, as far as chat templates use the language, rendered byte for byte as jinja2
// does in transformers' environment: immutable sandbox, trim_blocks, lstrip_blocks, loop controls,
// {% generation %}, transformers' tojson, namespace, raise_exception and strftime_now.
//
//   SPECD_TRY(const auto made, jinja::Template::parse(text, "chat_template.jinja"));
//   SPECD_TRY(const MarkedText text, made->render({{"messages", messages}}, options));
//
// What cannot be rendered exactly is refused: when the template is parsed where that can be seen
// (a statement, filter, test or method), else when it is met (case beyond ASCII, numbers beyond 64
// bits). Nothing is rendered approximately.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/chat/jinja/evaluator.h"

namespace specd::jinja {

struct RenderOptions {
  std::tm now{};  // what strftime_now() shows
  Limits limits;
};

// Immutable; thread-safe.
class Template {
 public:
  // `where` names the template in errors. kDataLoss for what is no Jinja, kUnsupported for what is
  // not supported, with line and column.
  static Result<std::shared_ptr<const Template>> parse(std::string_view text,
                                                       const std::string& where);
  // kInvalidArgument where jinja2 raises an error, raise_exception() included, or a limit is
  // exceeded; kUnsupported. With the place in the template.
  Result<MarkedText> render(const Variables& variables, const RenderOptions& options) const;

 private:
  explicit Template(std::unique_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
  std::unique_ptr<const Syntax> syntax_;
};

// What all JSON of one request may become: so many values, so many bytes.
inline Budget json_budget() {
  return Budget(Limits{.steps_max = Limits::kJsonValues, .bytes_max = Limits::kJsonBytes});
}
// JSON from the request as a value: keys in their order, every text marked. kInvalidArgument with
// the byte, and `where` as its field, on malformed JSON, on duplicate keys, nesting over 64 levels,
// more values or bytes than `budget` has left and integers of more than 64 bits.
Result<Value> value_from_json(std::string_view text, const std::string& where, Budget& budget);

}  // namespace specd::jinja
