#include "core/plugin/beside/call_shape.h"

#include <algorithm>

#include "core/plugin/beside/messages.h"
#include "core/plugin/beside/ring.h"

namespace specd {
namespace {

// Of the rows of one update(): the hidden states of a long prompt come in several.
constexpr uint64_t kRowBytes = uint64_t{4} << 20;

}  // namespace

CallShape shape_of(const specd_drafter_caps& caps, const specd_drafter_grant& grant,
                   uint32_t vocab_size, uint32_t hidden_size) {
  const bool reads_hidden = (grant.needs & SPECD_NEED_HIDDEN) != 0;
  return {.max_batch = grant.max_batch,
          .node_capacity = grant.max_nodes,
          .n_taps = reads_hidden ? caps.n_taps : 0,
          .hidden_size = reads_hidden ? hidden_size : 0,
          .top_k = caps.top_k,
          .vocab_size = vocab_size,
          .sends_parents = caps.tree_mode == SPECD_TREE_VARIABLE,
          .sends_flags = (grant.needs & SPECD_NEED_PROBES) != 0};
}

uint32_t rows_max_of(const specd_drafter_grant& grant, const CallShape& shape) {
  const uint64_t words = 4 + uint64_t{shape.n_taps} * shape.hidden_size;
  const uint64_t most = std::max<uint64_t>(kRowBytes / (words * sizeof(int32_t)), 1);
  return static_cast<uint32_t>(std::min<uint64_t>(most, grant.max_rows));
}

size_t request_capacity(const CallShape& shape, uint32_t rows_max, uint32_t max_positions) {
  const uint32_t cells = shape.max_batch * (shape.node_capacity + 1);
  const MessageHead update{.kind = CallKind::kUpdate,
                           .n_seqs = shape.max_batch,
                           .n_rows = rows_max,
                           .n_top = shape.top_k > 0 ? cells : 0};
  const MessageHead begin{.kind = CallKind::kBegin, .n_seqs = 1, .n_rows = max_positions};
  return 2 * ring_capacity(
                 std::max(MessageLayout(update, shape).bytes, MessageLayout(begin, shape).bytes));
}

size_t reply_capacity(const CallShape& shape) {
  const ReplyHead propose{.kind = CallKind::kPropose,
                          .n_seqs = shape.max_batch,
                          .text_bytes = static_cast<uint32_t>(kReplyTextMax)};
  return 2 * ring_capacity(ReplyLayout(propose, shape).bytes);
}

uint64_t rings_bytes(const CallShape& shape, uint32_t rows_max, uint32_t max_positions) {
  return rings_bytes(request_capacity(shape, rows_max, max_positions), reply_capacity(shape));
}

}  // namespace specd
