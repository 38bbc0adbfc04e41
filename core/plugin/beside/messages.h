// The calls of a drafter as messages of a ring, and the answers. The step writes one message per call, with
// everything that the call says; the host's side of the drafter's thread makes the plugin's arguments of it.
//
//   begin    one sequence: head, sequence, its tokens
//   update   head, sequences, the columns of their rows in the order of the sequences, hidden states, top
//            tokens
//   propose  head, sequences
//   end      head, sequences
//
// A shadow answers nothing. Others answer every call but end(): propose() with a tree for each sequence that the drafter still has, the
// others with the sequences that failed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/plugin/beside/call_shape.h"
#include "core/plugin/beside/ring.h"
#include "specd/plugin_api/batch.h"
#include "specd/plugin_api/drafter.h"

namespace specd {

enum class CallKind : uint32_t { kBegin = 1, kUpdate, kPropose, kEnd };

struct MessageHead {
  CallKind kind = CallKind::kEnd;
  uint32_t epoch = 0;
  uint32_t n_seqs = 0;
  uint32_t argument = 0;  // begin: its attach mode. end: the reason
  uint32_t n_rows = 0;    // begin: tokens. update: rows
  uint32_t n_top = 0;     // update: rows of top tokens
  uint64_t number = 0;    // of the call, from 1
  uint64_t step_id = 0;
  uint64_t deadline_ns = 0;
};

struct MessageSequence {
  uint64_t seq_id = 0;
  uint32_t slot = 0;
  uint32_t n_rows = 0;                                    // update
  int32_t root_token = 0, root_position = 0, budget = 0;  // propose
  uint32_t reserved0 = 0;
  specd_sampling sampling = {};  // begin, propose
  uint64_t tenant = 0;           // begin
};

// Where the parts of a message begin.
struct MessageLayout {
  size_t sequences, token, position, next_token, node, hidden, top_row, top_token, bytes;

  MessageLayout(const MessageHead& head, const CallShape& shape) {
    const bool is_update = head.kind == CallKind::kUpdate;
    const size_t seqs = head.n_seqs, rows = head.n_rows;
    const size_t columns = is_update ? rows : 0;
    size_t end = 0;
    const auto next = [&end](size_t n, size_t element) {
      const size_t start = end;
      end += (n * element + kMessageAlign - 1) / kMessageAlign * kMessageAlign;
      return start;
    };
    next(1, sizeof(MessageHead));
    sequences = next(seqs, sizeof(MessageSequence));
    token = next(rows, sizeof(int32_t));
    position = next(columns, sizeof(int32_t));
    next_token = next(columns, sizeof(int32_t));
    node = next(columns, sizeof(int32_t));
    hidden = next(columns * shape.n_taps * shape.hidden_size, sizeof(float));
    // Of each sequence: the root, then its nodes.
    const bool has_top = is_update && shape.top_k > 0;
    top_row = next(has_top ? seqs * (size_t{shape.node_capacity} + 1) : 0, sizeof(int32_t));
    top_token = next(size_t{head.n_top} * shape.top_k, sizeof(int32_t));
    bytes = end;
  }
};

struct ReplyHead {
  CallKind kind = CallKind::kEnd;
  uint32_t code = 0;  // a Code: how the whole call ended
  uint64_t number = 0;
  uint64_t took_ns = 0;
  uint32_t was_called = 0;  // whether the drafter had any of the sequences
  uint32_t n_seqs = 0;
  uint32_t reserved0 = 0;
  uint32_t text_bytes = 0;  // why the call, or the first sequence of it that failed, did
};
struct ReplySequence {
  uint64_t seq_id = 0;
  uint32_t slot = 0;
  int32_t status = 0;   // a specd_status
  int32_t n_nodes = 0;  // propose
  uint32_t reserved0 = 0;
};
inline constexpr size_t kReplyTextMax = 512;
// What an answer may say that its call took.
inline constexpr uint64_t kTookNsMax = uint64_t{3600} * 1'000'000'000;

struct ReplyLayout {
  size_t sequences, token, parent, flags, text, bytes;

  ReplyLayout(const ReplyHead& head, const CallShape& shape) {
    const size_t cells = head.kind == CallKind::kPropose && head.code == 0
                             ? size_t{head.n_seqs} * shape.node_capacity
                             : 0;
    sequences = sizeof(ReplyHead);
    token = sequences + head.n_seqs * sizeof(ReplySequence);
    parent = token + cells * sizeof(int32_t);
    flags = parent + (shape.sends_parents ? cells * sizeof(int32_t) : 0);
    text = flags + (shape.sends_flags ? cells * sizeof(int32_t) : 0);
    bytes = text + head.text_bytes;
  }
};

}  // namespace specd
