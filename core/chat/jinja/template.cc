#include "core/chat/jinja/template.h"

#include <utility>

#include "core/chat/jinja/evaluator.h"
#include "core/chat/jinja/parser.h"

namespace specd::jinja {

Template::Template(std::unique_ptr<const Syntax> syntax) : syntax_(std::move(syntax)) {}
Template::~Template() = default;

Result<std::shared_ptr<const Template>> Template::parse(std::string_view text,
                                                        const std::string& where) {
  SPECD_TRY(auto syntax, jinja::parse(text, where));
  return std::shared_ptr<const Template>(new Template(std::move(syntax)));
}

Result<MarkedText> Template::render(const Variables& variables,
                                    const RenderOptions& options) const {
  Budget budget(options.limits);
  return Evaluator(*syntax_, options.now, budget).run(variables);
}

}  // namespace specd::jinja
