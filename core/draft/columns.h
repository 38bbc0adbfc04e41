// A session's row as one row of a forward.
#pragma once

#include <cstdint>

#include "core/draft/session.h"
#include "core/model/transformer.h"

namespace specd {

// Appends the row. `table`: where the session's pages begin in rows.pages. A token that the host does
// not know becomes 0.
void add_session_row(const DraftSession& session, int32_t row, int32_t table, ForwardRows& rows);

}  // namespace specd
