// Byte-pair encoding: vocabulary, merges and the encoding of one piece of text, character by
// character.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/json.h"
#include "core/base/siphash.h"
#include "core/base/status.h"

namespace specd {

// Immutable after from_json(); const calls are thread-safe. Moves, does not copy.
class Bpe {
 public:
  // `model` is the "model" object of a tokenizer.json. Ids must be below id_end, which bounds what
  // a hostile file can make us allocate. `byte_level`: pieces come in GPT-2's alphabet.
  // kUnsupported where encoding could be inexact or lose text: a vocabulary needs all 256 bytes
  // (`byte_level` or byte_fallback) or an unk_token.
  static Result<Bpe> from_json(const Json& model, int64_t id_end, bool byte_level,
                               const std::string& where);

  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  // Appends the ids of one piece. O(n log n). REQUIRES well-formed UTF-8, fewer than 2^31 bytes.
  // With ignore_merges, a piece that equals a token gets that token's id, unless `not_whole` has
  // the id set (indexed by id, may be shorter than the vocabulary; null: none is set).
  void encode_piece(std::string_view piece, const std::vector<bool>* not_whole,
                    std::vector<int32_t>& ids) const;

  static constexpr int32_t kNone = -1;
  // The id of a token by its text in the file, or kNone.
  int32_t find(std::string_view text) const;
  // One more than the greatest id.
  int32_t id_end() const { return static_cast<int32_t>(texts_.size()); }
  bool has(int32_t id) const { return present_[static_cast<size_t>(id)]; }
  // REQUIRES 0 <= id < id_end(). Empty for ids without a token.
  const std::string& text(int32_t id) const { return texts_[static_cast<size_t>(id)]; }

 private:
  // A hash table of merges by pair in one block of memory: encoding looks up pairs constantly.
  class MergeTable {
   public:
    struct Merge {
      uint64_t pair = kEmpty;  // left << 32 | right
      int32_t rank = 0;
      int32_t result = 0;
    };
    void reserve(size_t count);  // REQUIRES empty
    void put(uint64_t pair, int32_t rank, int32_t result);
    const Merge* find(uint64_t pair) const;

   private:
    static constexpr uint64_t kEmpty = UINT64_MAX;
    size_t slot(uint64_t pair) const;
    uint64_t seed_ = SipKey::random().k0;  // the author of a file cannot choose collisions
    std::vector<Merge> slots_;             // a power of two, at most half full
  };
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };

  Bpe() = default;
  Status read_options(const Json& model, const std::string& where);
  Status read_vocab(const Json& model, int64_t id_end, const std::string& where);
  Status read_bytes(bool byte_level, const std::string& where);
  Status read_merges(const Json& model, const std::string& where);
  void append_symbols(std::string_view piece, std::vector<Symbol>& symbols) const;

  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::string unk_token_;
  int32_t unk_id_ = kNone;
  std::vector<std::string> texts_;                                     // by id
  std::vector<bool> present_;                                          // by id
  std::unordered_map<std::string_view, int32_t, KeyedHash> ids_;       // views into texts_
  std::unordered_map<char32_t, int32_t, KeyedIntHash> character_ids_;  // tokens of one character
  std::vector<int32_t> common_character_ids_;                          // those below U+0800
  int32_t byte_ids_[256] = {};                                         // of <0x00> to <0xFF>
  MergeTable merges_;
};

}  // namespace specd
