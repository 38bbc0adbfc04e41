// Jinja templates: the part of the language that chat templates use, rendered byte for byte as
// jinja2 renders it in transformers' environment (immutable sandbox, trim_blocks, lstrip_blocks,
// loop controls, {% generation %}, transformers' tojson, namespace, raise_exception, strftime_now).
// This header is the only public header of the folder.
//
//   SPECD_TRY(const auto made, jinja::Template::parse(text, "chat_template.jinja"));
//   SPECD_TRY(const MarkedText text, made->render({{"messages", messages}}, options));
//
// What cannot be rendered exactly is refused, never approximated: an unknown statement, filter,
// test or method when the template is parsed, the rest (changing the case of non-ASCII letters,
// integers beyond 64 bits) when rendering meets it.
#pragma once

#include <ctime>
#include <memory>
#include <string>
#include <string_view>

#include <utility>
#include <vector>

#include "core/base/status.h"
#include "core/chat/jinja/value.h"

namespace specd::jinja {

struct Syntax;

using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
  std::tm now{};  // the time that strftime_now() formats
  Limits limits;
};

// Immutable; thread-safe.
class Template {
 public:
  // `where` names the template in errors, which have the line and column. kDataLoss for malformed
  // Jinja, kUnsupported for what is not supported.
  static Result<std::shared_ptr<const Template>> parse(std::string_view text,
                                                       const std::string& where);
  ~Template();
  // Errors have the place in the template: kInvalidArgument where jinja2 raises an error (that
  // includes raise_exception()) or a limit is exceeded, kUnsupported where the result would not be
  // exact.
  Result<MarkedText> render(const Variables& variables, const RenderOptions& options) const;

 private:
  explicit Template(std::unique_ptr<const Syntax> syntax);
  std::unique_ptr<const Syntax> syntax_;
};

// The limit for all JSON of one request together: values and keys, and the bytes that they take.
inline Budget json_budget() {
  return Budget(Limits{.steps_max = Limits::kJsonValues, .bytes_max = Limits::kJsonBytes});
}
// JSON of the request as a value: keys keep their order, every text is marked. kInvalidArgument
// with the byte, and with `where` as its field, on malformed JSON, duplicate keys, nesting over 64
// levels, integers beyond 64 bits, and more values or bytes than `budget` has left.
Result<Value> value_from_json(std::string_view text, const std::string& where, Budget& budget);

}  // namespace specd::jinja
