#include "core/chat/jinja/marked_text.h"

#include <algorithm>

#include "core/chat/jinja/python_text.h"

namespace specd::jinja {

void MarkedText::mark(size_t begin, size_t end) {
  if (begin == end) return;
  if (!marks_.empty() && marks_.back().end == begin) {
    marks_.back().end = end;
  } else {
    marks_.push_back({begin, end});
  }
}

void MarkedText::append(std::string_view text, bool from_request) {
  const size_t begin = bytes_.size();
  bytes_ += text;
  if (from_request) mark(begin, bytes_.size());
}

void MarkedText::append(const MarkedText& other, size_t begin, size_t end) {
  const size_t base = bytes_.size();
  bytes_.append(other.bytes_, begin, end - begin);
  auto each = std::upper_bound(other.marks_.begin(), other.marks_.end(), begin,
                               [](size_t at, const TextRange& range) { return at < range.end; });
  for (; each != other.marks_.end() && each->begin < end; ++each) {
    mark(base + std::max(each->begin, begin) - begin, base + std::min(each->end, end) - begin);
  }
}

MarkedText MarkedText::part(size_t begin, size_t end) const {
  MarkedText result;
  result.append(*this, begin, end);
  return result;
}

MarkedText MarkedText::stripped(bool left, bool right) const {
  const TextRange kept = strip_spaces(bytes_, left, right);
  return part(kept.begin, kept.end);
}

size_t MarkedText::find(std::string_view needle, size_t from) const {
  return find_text(bytes_, needle, from);
}

}  // namespace specd::jinja
