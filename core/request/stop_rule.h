// When a request's text ends: stop token ids, stop strings, length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace specd {

// Finds stop strings in a text that arrives in pieces. The one that ends first wins, the longest of
// those that end together: so the cut does not depend on where pieces end. Text that could still
// become a stop string is held back, so that no part of one is ever emitted, wherever pieces are
// cut. Cost: O(piece * longest stop string) in the worst case, bounded by request limits.
class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece; returns the text that may be emitted. After found() nothing more comes.
  std::string push(std::string_view piece);
  // The end came another way: what was held back.
  std::string flush();
  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace specd
