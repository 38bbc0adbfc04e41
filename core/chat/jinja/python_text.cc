#include "core/chat/jinja/python_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/base/utf8.h"

namespace specd::jinja {
namespace {

struct CodePointRange {
  char32_t first, last;
};
constexpr CodePointRange kUnprintable[] = {
#include "core/chat/jinja/unprintable.inc"
};

bool is_printable(char32_t c) {
  if (c < 0x80) return c >= 0x20 && c != 0x7F;
  const auto* const found =
      std::lower_bound(std::begin(kUnprintable), std::end(kUnprintable), c,
                       [](const CodePointRange& range, char32_t at) { return range.last < at; });
  return found == std::end(kUnprintable) || c < found->first;
}

void append_hex(char32_t c, int digits, std::string& out) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out += "0123456789abcdef"[c >> shift & 15];
  }
}

// The first byte of the character that ends at `end`.
size_t previous(std::string_view text, size_t end) {
  do {
    --end;
  } while ((static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

template <typename IsStripped>
TextRange strip(std::string_view text, bool left, bool right, IsStripped is_stripped) {
  TextRange kept{0, text.size()};
  while (left && kept.begin < kept.end) {
    const Utf8Step step = utf8_step(text, kept.begin);
    if (!is_stripped(step.code_point)) break;
    kept.begin += step.bytes;
  }
  while (right && kept.begin < kept.end) {
    const size_t at = previous(text, kept.end);
    if (!is_stripped(utf8_step(text, at).code_point)) break;
    kept.end = at;
  }
  return kept;
}

// Removes the underscores that Python allows between digits; absent when one is elsewhere.
std::optional<std::string> without_underscores(std::string_view text) {
  const auto digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || !digit(i - 1) || !digit(i + 1)) {
      return std::nullopt;
    }
  }
  return out;
}

}  // namespace

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 40> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                          std::chars_format::scientific);
  (void)error;  // 40 bytes are enough for every double
  std::string_view text(buffer.data(), static_cast<size_t>(end - buffer.data()));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  std::string digits(text.substr(0, 1));
  if (e > 2) digits += text.substr(2, e - 2);
  int exponent = 0;
  const char* const exponent_text = text.data() + e + (text[e + 1] == '+' ? 2 : 1);
  std::from_chars(exponent_text, text.data() + text.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void append_string_repr(const MarkedText& text, bool quotes_from_request, MarkedText& out) {
  const std::string& all = text.bytes();
  const char quote =
      all.find('\'') != std::string::npos && all.find('"') == std::string::npos ? '"' : '\'';
  const std::string_view quotes(&quote, 1);
  out.append(quotes, quotes_from_request);
  text.each_run([&](std::string_view run, bool from_request) {
    std::string escaped;
    for (size_t at = 0; at < run.size();) {
      const Utf8Step step = utf8_step(run, at);
      const char32_t c = step.code_point;
      if (c == static_cast<unsigned char>(quote) || c == '\\') {
        escaped += '\\';
        escaped += static_cast<char>(c);
      } else if (c == '\n') {
        escaped += "\\n";
      } else if (c == '\r') {
        escaped += "\\r";
      } else if (c == '\t') {
        escaped += "\\t";
      } else if (is_printable(c)) {
        escaped += run.substr(at, step.bytes);
      } else if (c < 0x100) {
        escaped += "\\x";
        append_hex(c, 2, escaped);
      } else if (c < 0x10000) {
        escaped += "\\u";
        append_hex(c, 4, escaped);
      } else {
        escaped += "\\U";
        append_hex(c, 8, escaped);
      }
      at += step.bytes;
    }
    out.append(escaped, from_request);
  });
  out.append(quotes, quotes_from_request);
}

bool is_python_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

TextRange strip_spaces(std::string_view text, bool left, bool right) {
  return strip(text, left, right, is_python_space);
}

TextRange strip_characters(std::string_view text, std::string_view characters, bool left,
                           bool right) {
  std::array<bool, 128> ascii{};
  std::vector<char32_t> set;
  for (size_t at = 0; at < characters.size();) {
    const Utf8Step step = utf8_step(characters, at);
    if (step.code_point < ascii.size()) {
      ascii[step.code_point] = true;
    } else {
      set.push_back(step.code_point);
    }
    at += step.bytes;
  }
  std::sort(set.begin(), set.end());
  return strip(text, left, right, [&](char32_t c) {
    return c < ascii.size() ? ascii[c] : std::binary_search(set.begin(), set.end(), c);
  });
}

bool is_ascii(std::string_view text) {
  return std::none_of(text.begin(), text.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
}
char ascii_upper(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c; }
char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::optional<int64_t> parse_int(std::string_view text, bool& too_large) {
  too_large = false;
  const TextRange kept = strip_spaces(text, true, true);
  const auto clean = without_underscores(text.substr(kept.begin, kept.end - kept.begin));
  if (!clean.has_value()) return std::nullopt;
  const bool has_sign = !clean->empty() && (clean->front() == '+' || clean->front() == '-');
  const std::string_view digits = std::string_view(*clean).substr(has_sign ? 1 : 0);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) {
    return std::nullopt;
  }
  int64_t value = 0;
  const char* const begin = clean->data() + (clean->front() == '+' ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, clean->data() + clean->size(), value);
  too_large = error != std::errc();
  if (too_large) return std::nullopt;
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  const TextRange kept = strip_spaces(text, true, true);
  const auto clean = without_underscores(text.substr(kept.begin, kept.end - kept.begin));
  if (!clean.has_value() || clean->empty()) return std::nullopt;
  std::string word = *clean;
  std::transform(word.begin(), word.end(), word.begin(), ascii_lower);
  const bool has_sign = word.front() == '+' || word.front() == '-';
  const std::string unsigned_word = word.substr(has_sign ? 1 : 0);
  const bool is_word =
      unsigned_word == "inf" || unsigned_word == "infinity" || unsigned_word == "nan";
  // strtod also reads hexadecimal, which Python does not.
  if (!is_word && word.find_first_not_of("0123456789.e+-") != std::string::npos) {
    return std::nullopt;
  }
  char* end = nullptr;
  const double value = std::strtod(word.c_str(), &end);
  if (end != word.c_str() + word.size()) return std::nullopt;
  return value;
}

size_t find_text(std::string_view text, std::string_view needle, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // string_view::find would be quadratic on hostile texts.
  const void* const found =
      memmem(text.data() + from, text.size() - from, needle.data(), needle.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace specd::jinja
