// Recorded continuations, found by their first tokens.
#ifndef SPECD_REPLAY_RECORD_H
#define SPECD_REPLAY_RECORD_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace specd::replay {

struct Record {
  std::vector<int32_t> tokens;  // prompt, then output
  std::size_t prompt = 0;       // length of the prompt
  bool has_seed = false;
  uint64_t seed = 0;  // seed of the recorded request
};

class RecordBook {
 public:
  // Reads {"sequences": [{"prompt": [ids], "output": [ids], "seed": n (optional)}, ...]}.
  // Throws sdk::Error naming the file and the element: DATA for content, CONFIG when the file
  // cannot be read.
  RecordBook(const std::string& path, int32_t vocab_size);

  // Returns the record whose prompt, followed by a part of its output, is exactly `tokens`,
  // or null. A record with a seed matches only that request seed, and takes precedence over
  // one without.
  const Record* find(const int32_t* tokens, std::size_t n, uint64_t seed) const;

 private:
  std::vector<Record> records_;
  std::unordered_multimap<uint64_t, std::size_t> by_prompt_;  // hash of the prompt
};

}  // namespace specd::replay

#endif
