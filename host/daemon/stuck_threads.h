// Says in the log which threads of the daemon are stuck.
#pragma once

#include <set>
#include <string>
#include <utility>

namespace specd::host {

class StuckThreads {
 public:
  // To be called now and then: a line for each thread that is stuck, and another when it is not any more.
  void look();

 private:
  std::set<std::pair<std::string, std::string>> told_;  // thread, work
};

}  // namespace specd::host
