// Reads a corpus: one document a line, each a JSON list of token ids.
#ifndef SPECD_SUFFIX_CORPUS_FILE_H
#define SPECD_SUFFIX_CORPUS_FILE_H

#include <cstdint>
#include <string>

#include "edge_table.h"

namespace specd::suffix {

// Both throw sdk::Error(SPECD_E_CONFIG) that names the file, and the byte where there is one.

// Tokens and ends of documents that the file can hold at most, by its size.
uint64_t corpus_tokens_max(const std::string& path, uint64_t max_tokens);

// All documents, SuffixAutomaton::kSeparator after each. Token ids are in [0, vocab_size).
HostVector<int32_t> read_corpus(const std::string& path, uint64_t max_tokens, uint32_t vocab_size,
                                const HostAllocator& memory);

}  // namespace specd::suffix

#endif
