#include "core/chat/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/chat/jinja/budget.h"
#include "core/chat/jinja/python_text.h"

namespace specd::jinja {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_tag_space(char c) { return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20); }

void append_utf8(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | c >> 6);
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | c >> 12);
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | c >> 18);
    out += static_cast<char>(0x80 | (c >> 12 & 0x3F));
    out += static_cast<char>(0x80 | (c >> 6 & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

class Lexer {
 public:
  explicit Lexer(const Source& source) : source_(source), text_(source.text()) {}

  Result<std::vector<Token>> run() {
    while (at_ < text_.size()) {
      SPECD_OK_OR_RETURN(check_number());
      SPECD_OK_OR_RETURN(read_data());
    }
    add(Token::Type::kEnd, text_.size());
    return std::move(tokens_);
  }

 private:
  Token& add(Token::Type type, size_t offset, std::string text = "") {
    tokens_.push_back({.type = type, .text = std::move(text), .offset = offset});
    return tokens_.back();
  }
  // The tree takes a few hundred bytes for each token.
  Status check_number() const {
    if (tokens_.size() < Limits::kTokens) return Status();
    return source_.unsupported(
        at_, "a template of more than " + std::to_string(Limits::kTokens) + " words and signs");
  }
  bool at(std::string_view word) const { return text_.substr(at_, word.size()) == word; }
  size_t skip_spaces(size_t from) const {
    return from + strip_spaces(text_.substr(from), true, false).begin;
  }

  // Reads plain text up to the next tag, then the tag.
  Status read_data() {
    const size_t begin = at_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == text_.size()) {
        at_ = text_.size();
        add(Token::Type::kData, begin, std::string(text_.substr(begin)));
        return Status();
      }
      const char kind = text_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    at_ = tag + 2;
    const char kind = text_[tag + 1];
    const char sign =
        at_ < text_.size() && (text_[at_] == '-' || text_[at_] == '+') ? text_[at_] : 0;
    if (sign != 0) ++at_;
    add_data(begin, tag, sign, kind != '{');
    if (kind == '#') return skip_comment(tag);
    if (kind == '{') {
      add(Token::Type::kPrintBegin, tag);
      return read_tag(tag, Token::Type::kPrintEnd);
    }
    bool is_raw = false;
    SPECD_OK_OR_RETURN(read_raw(tag, is_raw));
    if (is_raw) return Status();
    add(Token::Type::kBlockBegin, tag);
    return read_tag(tag, Token::Type::kBlockEnd);
  }

  // The text before a tag, without what the tag's "-" or lstrip_blocks removes.
  void add_data(size_t begin, size_t end, char sign, bool is_lstripped) {
    const std::string_view data = text_.substr(begin, end - begin);
    size_t kept = data.size();
    if (sign == '-') {
      kept = strip_spaces(data, false, true).end;
    } else if (sign != '+' && is_lstripped) {
      const size_t newline = data.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      if ((line > 0 || line_starting_) && skip_spaces_in(data, line) == data.size()) kept = line;
    }
    if (kept > 0) add(Token::Type::kData, begin, std::string(data.substr(0, kept)));
  }
  static size_t skip_spaces_in(std::string_view data, size_t from) {
    return from + strip_spaces(data.substr(from), true, false).begin;
  }

  // Where the text after a tag begins: "-" removes white space, trim_blocks one line end.
  void end_tag(char sign, size_t end, bool trims) {
    at_ = end;
    if (sign == '-') {
      at_ = skip_spaces(at_);
    } else if (sign == 0 && trims && at_ < text_.size() && text_[at_] == '\n') {
      ++at_;
    }
    line_starting_ = text_[at_ - 1] == '\n';
  }

  Status skip_comment(size_t tag) {
    const size_t end = text_.find("#}", at_);
    if (end == std::string_view::npos)
      return source_.error(tag, "the comment does not end: expected '#}'");
    const char before = end > at_ ? text_[end - 1] : '\0';
    end_tag(before == '-' || before == '+' ? before : '\0', end + 2, true);
    return Status();
  }

  // Reads {% raw %} ... {% endraw %} as text.
  Status read_raw(size_t tag, bool& is_raw) {
    size_t i = skip_spaces(at_);
    if (text_.substr(i, 3) != "raw") return Status();
    i = skip_spaces(i + 3);
    const bool strips = text_.substr(i, 3) == "-%}";
    if (!strips && text_.substr(i, 2) != "%}") return Status();
    is_raw = true;
    const size_t begin = strips ? skip_spaces(i + 3) : i + 2;
    line_starting_ = text_[begin - 1] == '\n';
    for (size_t open = text_.find("{%", begin); open != std::string_view::npos;
         open = text_.find("{%", open + 1)) {
      size_t j = open + 2;
      const char sign = j < text_.size() && (text_[j] == '-' || text_[j] == '+') ? text_[j] : '\0';
      j = skip_spaces(sign != 0 ? j + 1 : j);
      if (text_.substr(j, 6) != "endraw") continue;
      j = skip_spaces(j + 6);
      const char end_sign =
          j < text_.size() && (text_[j] == '-' || text_[j] == '+') ? text_[j] : '\0';
      if (end_sign != 0) ++j;
      if (text_.substr(j, 2) != "%}") continue;
      add_data(begin, open, sign, true);
      end_tag(end_sign, j + 2, true);
      return Status();
    }
    return source_.error(tag, "'raw' does not end: expected '{% endraw %}'");
  }

  // Reads the tokens of one tag and its end.
  Status read_tag(size_t tag, Token::Type end_type) {
    const bool is_print = end_type == Token::Type::kPrintEnd;
    const std::string_view closing = is_print ? "}}" : "%}";
    std::string open_brackets;
    while (at_ < text_.size()) {
      SPECD_OK_OR_RETURN(check_number());
      const size_t offset = at_;
      const char c = text_[at_];
      if (open_brackets.empty()) {
        const char sign = c == '-' || (c == '+' && !is_print) ? c : '\0';
        if (text_.substr(at_ + (sign != 0 ? 1 : 0), 2) == closing) {
          add(end_type, offset);
          end_tag(sign, at_ + (sign != 0 ? 3 : 2), !is_print);
          return Status();
        }
      }
      if (is_tag_space(c)) {
        ++at_;
      } else if (is_digit(c)) {
        SPECD_OK_OR_RETURN(read_number());
      } else if (is_name_start(c)) {
        while (at_ < text_.size() && (is_name_start(text_[at_]) || is_digit(text_[at_]))) ++at_;
        add(Token::Type::kName, offset, std::string(text_.substr(offset, at_ - offset)));
      } else if (c == '"' || c == '\'') {
        SPECD_OK_OR_RETURN(read_string());
      } else {
        SPECD_OK_OR_RETURN(read_operator(open_brackets));
      }
    }
    return source_.error(tag, "the tag does not end: expected '" + std::string(closing) + "'");
  }

  // The end of digits with single underscores between them.
  size_t digits_end(size_t i) const {
    while (i < text_.size() &&
           (is_digit(text_[i]) || (text_[i] == '_' && i > 0 && is_digit(text_[i - 1]) &&
                                   i + 1 < text_.size() && is_digit(text_[i + 1])))) {
      ++i;
    }
    return i;
  }
  bool has_digit(size_t i) const { return i < text_.size() && is_digit(text_[i]); }

  Status read_number() {
    const size_t begin = at_;
    size_t end = digits_end(at_);
    bool is_real = false;
    if (begin == 0 || text_[begin - 1] != '.') {  // x.0.5 is two accesses, not a float
      if (end < text_.size() && text_[end] == '.' && has_digit(end + 1)) {
        end = digits_end(end + 1);
        is_real = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        size_t i = end + 1;
        if (i < text_.size() && (text_[i] == '+' || text_[i] == '-')) ++i;
        if (has_digit(i)) {
          end = digits_end(i);
          is_real = true;
        }
      }
    }
    std::string digits(text_.substr(begin, end - begin));
    std::erase(digits, '_');
    at_ = end;
    const char next = end < text_.size() ? text_[end] : '\0';
    if (is_name_start(next) || (!is_real && digits.size() > 1 && digits[0] == '0')) {
      return source_.unsupported(begin, "expected a decimal number, found " +
                                            quote(text_.substr(begin, end - begin + 1), 40));
    }
    Token& token = add(is_real ? Token::Type::kFloat : Token::Type::kInteger, begin, digits);
    if (is_real) {
      token.real = std::strtod(digits.c_str(), nullptr);
      return Status();
    }
    const auto [stop, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), token.integer);
    (void)stop;
    if (error != std::errc()) {
      return source_.unsupported(begin, "the number " + quote(digits, 40) + " exceeds 64 bits");
    }
    return Status();
  }

  Status read_string() {
    const size_t begin = at_;
    const char mark = text_[at_++];
    std::string out;
    while (at_ < text_.size() && text_[at_] != mark) {
      if (text_[at_] != '\\') {
        out += text_[at_++];
        continue;
      }
      SPECD_OK_OR_RETURN(read_escape(out));
    }
    if (at_ == text_.size()) return source_.error(begin, "the string does not end");
    ++at_;
    add(Token::Type::kString, begin, std::move(out));
    return Status();
  }

  // Python's "unicode-escape".
  Status read_escape(std::string& out) {
    const size_t begin = at_++;
    if (at_ == text_.size()) return source_.error(begin, "the string does not end");
    const char c = text_[at_++];
    constexpr std::string_view kNames = "\\'\"abfnrtv";
    constexpr std::string_view kMeanings = "\\'\"\a\b\f\n\r\t\v";
    if (const size_t known = kNames.find(c); known != std::string_view::npos) {
      out += kMeanings[known];
      return Status();
    }
    if (c == '\n') return Status();
    if (c >= '0' && c <= '7') {
      char32_t code = static_cast<char32_t>(c - '0');
      for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; ++i) {
        code = code * 8 + static_cast<char32_t>(text_[at_++] - '0');
      }
      append_utf8(code, out);
      return Status();
    }
    if (c == 'x' || c == 'u' || c == 'U') {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      uint32_t code = 0;
      const std::string_view hex = text_.substr(at_, digits);
      const auto [end, error] = std::from_chars(hex.data(), hex.data() + hex.size(), code, 16);
      if (error != std::errc() || hex.size() < digits || end != hex.data() + digits) {
        return source_.error(begin, "a truncated \\" + std::string(1, c) + " escape");
      }
      if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
        return source_.unsupported(begin, "the escape is not a character of UTF-8");
      }
      at_ += digits;
      append_utf8(code, out);
      return Status();
    }
    if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) {
      return source_.unsupported(begin, "this escape is not supported; write the character");
    }
    out += '\\';  // Python keeps an unknown escape unchanged
    out += c;
    return Status();
  }

  Status read_operator(std::string& open_brackets) {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ","};
    for (const std::string_view word : kOperators) {
      if (!at(word)) continue;
      const char c = word[0];
      if (c == '(' || c == '[' || c == '{') {
        open_brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      } else if (c == ')' || c == ']' || c == '}') {
        if (open_brackets.empty() || open_brackets.back() != c) {
          return source_.error(
              at_,
              "unexpected '" + std::string(word) + "'" +
                  (open_brackets.empty()
                       ? ""
                       : ", expected '" + open_brackets.substr(open_brackets.size() - 1) + "'"));
        }
        open_brackets.pop_back();
      }
      add(Token::Type::kOperator, at_, std::string(word));
      at_ += word.size();
      return Status();
    }
    return source_.error(
        at_, "unexpected character " + quote(text_.substr(at_, utf8_step(text_, at_).bytes)));
  }

  const Source& source_;
  const std::string_view text_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the last character read ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Source::Source(std::string_view text, std::string where) : where_(std::move(where)) {
  text_.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_pair = text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n';
    if (!is_pair) text_ += text[i] == '\r' ? '\n' : text[i];
  }
  if (!text_.empty() && text_.back() == '\n') text_.pop_back();
  line_starts_.push_back(0);
  for (size_t i = 0; i < text_.size(); ++i) {
    if (text_[i] == '\n') line_starts_.push_back(i + 1);
  }
}

std::string Source::place(size_t offset) const {
  const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  const auto line = static_cast<size_t>(next - line_starts_.begin());
  return where_ + ":" + std::to_string(line) + ":" +
         std::to_string(offset - line_starts_[line - 1] + 1);
}

Result<std::vector<Token>> tokenize(const Source& source) { return Lexer(source).run(); }

}  // namespace specd::jinja
