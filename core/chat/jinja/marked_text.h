// Text that remembers which of its bytes came from the request. Bytes keep their origin when a
// template joins, cuts or replaces text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/text_range.h"

namespace specd::jinja {

class MarkedText {
 public:
  MarkedText() = default;
  MarkedText(std::string_view text, bool from_request) { append(text, from_request); }

  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  // The parts from the request: sorted, not touching each other, none empty.
  const std::vector<TextRange>& marks() const { return marks_; }

  void append(std::string_view text, bool from_request);
  void append(const MarkedText& other) { append(other, 0, other.size()); }
  // Appends the bytes [begin, end) of `other`, which must be another object. O(log(marks of
  // `other`) + bytes and marks copied)
  void append(const MarkedText& other, size_t begin, size_t end);
  MarkedText part(size_t begin, size_t end) const;
  // The text without Python's white space at the chosen ends.
  MarkedText stripped(bool left, bool right) const;
  // The first place of `needle` at or after `from`, or npos. O(size()) whatever the needle.
  size_t find(std::string_view needle, size_t from = 0) const;

  // Calls visit(bytes, from_request) for each run of bytes of one origin, in order.
  template <typename Visit>
  void each_run(Visit visit) const {
    const std::string_view all = bytes_;
    size_t at = 0;
    for (const TextRange& mark : marks_) {
      if (mark.begin > at) visit(all.substr(at, mark.begin - at), false);
      visit(all.substr(mark.begin, mark.end - mark.begin), true);
      at = mark.end;
    }
    if (at < all.size()) visit(all.substr(at), false);
  }

 private:
  void mark(size_t begin, size_t end);

  std::string bytes_;
  std::vector<TextRange> marks_;
};

}  // namespace specd::jinja
