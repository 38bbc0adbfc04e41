// tokenizer.json: text to token ids and back, exactly as Hugging Face tokenizers does it.
//
// Supported: byte-level BPE with Llama 3's split expression, no normalizer, plain added tokens, BOS
// and EOS by a TemplateProcessing. Everything else is refused at load with its place in the file
// (kUnsupported), because a tokenizer that is nearly right is wrong in silence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/text/byte_bpe.h"

namespace specd {

// Immutable; every const call is thread-safe.
class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  // `where` names the text in errors.
  static Result<std::shared_ptr<const Tokenizer>> from_text(std::string_view json,
                                                            const std::string& where);

  // The ids of `text`. add_special_tokens: put the template's BOS and EOS around them. Special
  // tokens spelled out in the text become their ids, as in Hugging Face; with parse_special_tokens
  // false they are plain text (added tokens that are not special are recognised in either case).
  // kInvalidArgument with the byte offset when `text` is not UTF-8, or is 2^31 bytes or longer.
  Result<std::vector<int32_t>> encode(std::string_view text, bool add_special_tokens,
                                      bool parse_special_tokens = true) const;

  // The text of all ids together, U+FFFD for what is not UTF-8. Ids without a token are left out,
  // and so are special tokens when skip_special is set.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The raw bytes of one token; often not whole characters. Empty for ids without a token. The view
  // lives as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // The id of a token by its text in the file ("<|end_of_text|>"), of added tokens only; -1 if
  // none.
  int32_t added_token_id(std::string_view text) const;

  // One more than the greatest id; holes are possible. The model's vocabulary may be larger.
  int32_t vocab_size() const { return static_cast<int32_t>(token_bytes_.size()); }
  const Sha256Digest& sha256() const { return sha256_; }  // of the file

 private:
  // Finds added tokens in text: a byte trie, longest match at the leftmost place.
  class Matcher {
   public:
    void add(std::string_view text, int32_t id);
    // The longest token that starts at `at`: its length (0: none) and id.
    size_t match(std::string_view text, size_t at, int32_t& id) const;

   private:
    std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
    std::unordered_map<uint32_t, int32_t> ids_;     // of the nodes where a token ends
    bool first_bytes_[256] = {};
    uint32_t nodes_ = 1;
  };

  explicit Tokenizer(ByteBpe bpe) : bpe_(std::move(bpe)) {}
  Status read_added_tokens(const Json& root, int64_t id_end, const std::string& where);
  Status read_post_processor(const Json& processor, const std::string& where);
  Status read_template(const Json& processor, const std::string& where);

  // Appends the ids of text without tokens of `matchers`, which are tried one after the other.
  void encode_segment(std::string_view text, std::span<const Matcher> matchers,
                      bool parse_special_tokens, std::vector<int32_t>& ids) const;

  ByteBpe bpe_;
  std::vector<std::string> token_bytes_;  // by id, added tokens included
  std::vector<bool> special_;             // by id
  std::unordered_map<std::string, int32_t> added_;
  Matcher matchers_[2];  // Hugging Face looks for all tokens with normalized false first
  bool has_template_ = false;
  std::vector<int32_t> prefix_;  // the template's ids before and after the text
  std::vector<int32_t> suffix_;
  Sha256Digest sha256_{};
};

}  // namespace specd
