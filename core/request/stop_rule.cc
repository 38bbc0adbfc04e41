#include "core/request/stop_rule.h"

#include <algorithm>
#include <utility>

namespace specd {

std::string StopStrings::push(std::string_view piece) {
  if (found()) return {};
  for (const char byte : piece) {
    held_ += byte;
    size_t longest = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      if (stops_[i].size() <= longest || !held_.ends_with(stops_[i])) continue;
      longest = stops_[i].size();
      found_ = static_cast<int32_t>(i);
    }
    if (longest == 0) continue;
    held_.resize(held_.size() - longest);
    return std::exchange(held_, {});
  }
  // Hold back the longest suffix that is a prefix of some stop string.
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

std::string StopStrings::flush() { return found() ? std::string() : std::exchange(held_, {}); }

}  // namespace specd
