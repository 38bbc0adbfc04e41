#include "core/draft/columns.h"

#include <algorithm>

#include "core/base/to_size.h"

namespace specd {

void add_session_row(const DraftSession& session, int32_t row, int32_t table, ForwardRows& rows) {
  const bool in_place = session.in_place(row);
  const int32_t position = session.kept + session.depth[to_size(row)];
  rows.token.push_back(std::max(session.token[to_size(row)], 0));
  rows.position.push_back(position);
  rows.slot.push_back(session.table.physical(session.kept + row));
  rows.span.push_back(in_place ? position + 1 : session.kept);
  rows.table.push_back(table);
  const auto tail_begin = static_cast<ptrdiff_t>(rows.tail.size());
  rows.tail_begin.push_back(static_cast<int32_t>(tail_begin));
  if (in_place) return;
  for (int32_t each = row; each >= 0; each = session.parent[to_size(each)]) {
    rows.tail.push_back(session.table.physical(session.kept + each));
  }
  std::reverse(rows.tail.begin() + tail_begin, rows.tail.end());
}

}  // namespace specd
