// Splits a template into tokens exactly as jinja2 does with trim_blocks and lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace specd::jinja {

// The text of a template, and its name for errors.
class Source {
 public:
  // Like jinja2, turns line ends into "\n" and drops the last one.
  Source(std::string_view text, std::string where);
  const std::string& text() const { return text_; }
  // "chat_template.jinja:3:14" for a byte offset; columns count bytes from 1.
  std::string place(size_t offset) const;
  Status error(size_t offset, const std::string& what) const {
    return Status(Code::kDataLoss, place(offset) + ": " + what);
  }
  Status unsupported(size_t offset, const std::string& what) const {
    return Status(Code::kUnsupported, place(offset) + ": " + what);
  }

 private:
  std::string text_;
  std::string where_;
  std::vector<size_t> line_starts_;
};

struct Token {
  enum class Type {
    kData,        // text: printed as it is
    kPrintBegin,  // {{
    kPrintEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // text: unescaped
    kInteger,
    kFloat,
    kOperator,  // text: "+", "//", ...
    kEnd,
  };
  Type type = Type::kEnd;
  std::string text;
  size_t offset = 0;
  int64_t integer = 0;
  double real = 0;
};

// The last token is kEnd. kDataLoss where jinja2 raises an error, too, kUnsupported for what only
// jinja2 accepts; both with the place. REQUIRES UTF-8.
Result<std::vector<Token>> tokenize(const Source& source);

}  // namespace specd::jinja
