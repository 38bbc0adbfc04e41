// A template's text as tokens, cut where jinja2 with trim_blocks and lstrip_blocks cuts it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/status.h"

namespace specd::jinja {

// A template's text with the name that errors call it by.
class Source {
 public:
  // Line ends become "\n", and the last one is dropped, as jinja2 does.
  Source(std::string_view text, std::string where);
  const std::string& text() const { return text_; }
  // "chat_template.jinja:3:14" of a byte; columns count bytes from 1.
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
    kData,        // text: as it is printed
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

// kDataLoss with the place for what jinja2 refuses too, kUnsupported for what it takes and we do
// not. The last token is kEnd. REQUIRES UTF-8.
Result<std::vector<Token>> tokenize(const Source& source);

}  // namespace specd::jinja
