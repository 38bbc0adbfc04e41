#include "host/base/memory_table.h"

#include <algorithm>

#include "host/base/table.h"

namespace specd::host {

void MemoryTable::add(const std::string& what, const std::string& detail,
                      const std::vector<uint64_t>& bytes, const std::vector<uint64_t>& planned) {
  totals_.resize(std::max(totals_.size(), bytes.size()));
  std::vector<std::string>& row = rows_.emplace_back();
  row.push_back(what + (detail.empty() ? "" : " (" + detail + ")"));
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    totals_[rank] += bytes[rank];
    std::string cell = bytes_text(bytes[rank]);
    if (rank < planned.size() && planned[rank] != bytes[rank])
      cell += ", planned " + bytes_text(planned[rank]);
    row.push_back(std::move(cell));
  }
}

std::string MemoryTable::text() const {
  const size_t n_ranks = totals_.size();
  std::vector<std::string> head{"memory"}, totals{"total"};
  for (size_t rank = 0; rank < n_ranks; ++rank) {
    head.push_back(n_ranks == 1 ? "bytes" : "rank " + std::to_string(rank));
    totals.push_back(bytes_text(totals_[rank]));
  }
  Table table(head);
  for (const std::vector<std::string>& row : rows_) table.add(row);
  table.add(totals);
  return table.text();
}

}  // namespace specd::host
