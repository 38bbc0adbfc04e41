// What a client asks for, and what it gets back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/status.h"
#include "core/request/sampling.h"
#include "core/chat/chat_prompt.h"

namespace specd {

struct Request {
  std::string prompt;                                 // text, or
  std::optional<std::vector<int32_t>> prompt_tokens;  // ids as they are, no BOS added, or
  std::optional<ChatPrompt> chat;                     // messages for the model's template
  // Of text: special tokens spelled in it become tokens; the tokenizer's BOS goes before it.
  bool parse_special_tokens = true;
  bool add_bos = true;
  SamplingRequest sampling;
  int32_t max_tokens = 0;            // >= 1
  std::vector<std::string> stop;     // never part of the text
  std::vector<int32_t> stop_tokens;  // beside the model's own; the id is emitted, its text not
  bool ignore_eos = false;
  std::string route;  // empty = default
  std::string id;     // empty = the engine makes one
  // Smaller = sooner; each level is worth the time of engine.priority_aging_ms in the queue.
  int32_t priority = 0;
  int64_t deadline_ms = 0;  // from arrived_ns; then it ends with kDeadlineExceeded. 0 = none
  // When the client asked, by now_ns(): what it waits is counted from here. 0 = at submission.
  uint64_t arrived_ns = 0;
  std::string cache_salt;  // cached prefixes are shared with requests of the same salt only
  std::optional<int32_t> draft_nodes_max;  // less than the route's; 0 = no drafts
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };
constexpr size_t kFinishReasonCount = 5;  // kNone included
const char* finish_reason_name(FinishReason reason);

// What a request did; every drafted node ends as accepted, rejected or discarded (a probe, or
// accepted beyond the end of the text). What validation cut was never drafted.
struct Usage {
  int32_t prompt_tokens = 0;
  int32_t completion_tokens = 0;
  int32_t cached_prompt_tokens = 0;  // of the prompt, from the prefix cache
  int32_t preemptions = 0;           // times that it lost its pages and was computed again
  int64_t steps = 0;                 // decode steps (forward passes that emitted)
  int64_t draft_tokens = 0;
  int64_t accepted_tokens = 0;
  int64_t rejected_tokens = 0;
  int64_t discarded_tokens = 0;
  uint64_t queue_ns = 0, prefill_ns = 0, decode_ns = 0;
};

struct Event {
  std::vector<int32_t> tokens;  // newly committed ids
  std::string text;             // newly complete text, valid UTF-8
  bool done = false;            // last event of the request
  FinishReason finish = FinishReason::kNone;
  Status error;  // kError and kCancelled
  Usage usage;   // when done
};
// Called on the step thread, in order; must not block and must not call the engine.
using Sink = std::function<void(const Event&)>;

}  // namespace specd
