// Reads a corpus: one document per line, each a JSON list of token ids.
#ifndef SPECD_SUFFIX_CORPUS_FILE_H
#define SPECD_SUFFIX_CORPUS_FILE_H

#include <cstdint>
#include <string>

#include "edge_table.h"

namespace specd::suffix {

// Both functions throw sdk::Error(SPECD_E_CONFIG) naming the file and, where it applies, the byte.

// Upper bound on the tokens and document ends in the file, from its size.
uint64_t corpus_tokens_max(const std::string& path, uint64_t max_tokens);

// Returns all documents, each followed by SuffixAutomaton::kSeparator. Token ids are in
// [0, vocab_size).
HostVector<int32_t> read_corpus(const std::string& path, uint64_t max_tokens, uint32_t vocab_size,
                                const HostAllocator& memory);

}  // namespace specd::suffix

#endif
