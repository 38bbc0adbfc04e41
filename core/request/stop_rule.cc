#include "core/request/stop_rule.h"

#include <algorithm>
#include <utility>

namespace specd {

std::string StopStrings::push(std::string_view piece) {
  if (found_) return {};
  held_.append(piece);
  // The earliest match wins; of two that start together it does not matter which.
  size_t match = std::string::npos;
  for (const std::string& stop : stops_) match = std::min(match, held_.find(stop));
  if (match != std::string::npos) {
    found_ = true;
    held_.resize(match);
    return std::exchange(held_, {});
  }
  // Hold back the longest suffix that begins some stop string.
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > keep; --n) {
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) {
        keep = n;
        break;
      }
    }
  }
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::flush() { return found_ ? std::string() : std::exchange(held_, {}); }

}  // namespace specd
