// Memory by rank as a table: what is planned, what is held, or both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specd::host {

class MemoryTable {
 public:
  // A column for each rank: "1.2 GiB", and "1.2 GiB, planned 1.1 GiB" where the two differ. `planned`
  // empty = it is not planned. `detail`: goes behind `what`, in parentheses unless empty.
  void add(const std::string& what, const std::string& detail, const std::vector<uint64_t>& bytes,
           const std::vector<uint64_t>& planned);
  std::string text() const;  // with the sums

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<uint64_t> totals_;
};

}  // namespace specd::host
