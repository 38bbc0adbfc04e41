// tokenizer.json: text to token ids and back, exactly as Hugging Face tokenizers does it.
//
//   SPECD_TRY(const auto tokenizer, Tokenizer::load("model/tokenizer.json"));
//   SPECD_TRY(const std::vector<int32_t> ids, tokenizer->encode("Hello"));
//   const std::string text = tokenizer->decode(ids, /*skip_special=*/true);
//
// Supports byte-level BPE (Llama 3, Qwen, GPT-2) and sentencepiece BPE (Llama 2, Mistral) with the
// steps that README.md lists. Anything else is refused at load with its place in the file
// (kUnsupported): a tokenizer that is almost right fails silently.
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
#include "core/base/siphash.h"
#include "core/base/status.h"
#include "core/base/text_range.h"
#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/decoder.h"
#include "core/text/normalizer.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/step_budget.h"

namespace specd {

struct EncodeOptions {
  // Put the file's BOS and EOS tokens around the ids.
  bool add_special_tokens = true;
  // Turn special tokens spelled out in the text into their ids. Otherwise they stay plain text.
  // (Added tokens that are not special are recognised in either case.)
  bool parse_special_tokens = true;
  // Ranges of the text, sorted and disjoint, in which no special token is recognised, not even one
  // that lies only partly inside: untrusted text within a template. They change nothing else.
  std::span<const TextRange> plain = {};
  // Recognise no other added token there either. Some models separate turns by tokens that their
  // files do not mark as special, and such a token could hide a special one beside it.
  bool plain_hides_all = false;
};

// Immutable; every const call is thread-safe.
class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  // `where` names the text in errors.
  static Result<std::shared_ptr<const Tokenizer>> from_text(std::string_view json,
                                                            const std::string& where);

  // The ids of `text`. kInvalidArgument when `text` is not UTF-8 (with the byte offset) or has 2^31
  // bytes or more, or when the ranges are out of order or out of bounds. kUnsupported when the
  // rules of the file make the text too long or take too many steps.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // A text of more than n times as many bytes has more than n tokens. 0 when there is no such bound:
  // a rule may drop text, or make one token of a text of any length.
  size_t bytes_per_token_max() const { return bytes_per_token_max_; }

  // The text of all ids together, with U+FFFD for bytes that are not UTF-8. Skips ids without a
  // token and, with skip_special, special tokens.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The same, one id at a time: push() appends the text that `id` completes. At the end call
  // state.stream.flush() for what is held back.
  struct TextState {
    DecodeStream stream;  // of this tokenizer's decoder
    bool first = true;    // no token has come yet
  };
  TextState begin_text() const { return {DecodeStream(decoder_), true}; }
  // For ids that continue an existing text, where begin_text() would strip the separating space.
  TextState continue_text() const {
    TextState state{DecodeStream(decoder_), false};
    state.stream.continue_text();
    return state;
  }
  void push(int32_t id, bool skip_special, TextState& state, std::string& text) const;

  // The bytes that a token adds in the middle of a text; often not whole characters. Empty for ids
  // without a token. The view lives as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // The id of an added token by its text in the file ("<|end_of_text|>"), or -1.
  int32_t added_token_id(std::string_view text) const;

  // One more than the largest id. Ids may have gaps, and the model's vocabulary may be larger.
  int32_t vocab_size() const { return static_cast<int32_t>(pieces_.size()); }
  const Sha256Digest& sha256() const { return sha256_; }  // of the file

 private:
  Tokenizer(Bpe bpe, Normalizer normalizer, PreTokenizer pre_tokenizer, Decoder decoder)
      : bpe_(std::move(bpe)),
        normalizer_(std::move(normalizer)),
        pre_tokenizer_(std::move(pre_tokenizer)),
        decoder_(std::move(decoder)) {}
  Status read_pieces(const std::string& where, StepBudget& budget);
  Status put_piece(int32_t id, std::string_view token, StepBudget& budget);
  Status read_added_tokens(const Json& list, int64_t id_end, const std::string& where,
                           StepBudget& budget);
  Status read_added_token(const Json& entry, int64_t id_end, const std::string& place,
                          StepBudget& budget);
  void set_bytes_per_token_max();
  Status read_post_processor(const Json& processor, const std::string& where);
  Status read_template(const Json& processor, const std::string& where);

  bool has_token(int32_t id) const {
    return id >= 0 && id < vocab_size() && present_[static_cast<size_t>(id)];
  }
  // Append the ids of text without tokens of raw_finder_, and of text without any added token.
  Status encode_segment(SourceText text, bool parse_special, StepBudget& budget,
                        std::vector<int32_t>& ids) const;
  Status encode_text(SourceText text, StepBudget& budget, std::vector<int32_t>& ids) const;

  Bpe bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Decoder decoder_;
  std::vector<Decoder::Piece> pieces_;        // by id, added tokens included
  std::vector<Decoder::Piece> first_pieces_;  // for the first token; empty when they do not differ
  std::vector<bool> present_;                 // by id
  std::vector<bool> special_;                 // by id
  std::unordered_map<std::string, int32_t, KeyedHash, std::equal_to<>> added_;
  size_t bytes_per_token_max_ = 0;
  size_t longest_added_ = 0;  // bytes of its content
  bool added_token_strips_ = false;
  size_t added_bytes_ = 0;              // total size of the added tokens' search texts
  AddedTokenFinder raw_finder_;         // searches the raw text
  AddedTokenFinder normalized_finder_;  // searches the normalized rest
  bool has_template_ = false;
  std::vector<int32_t> prefix_;  // the template's ids before and after the text
  std::vector<int32_t> suffix_;
  Sha256Digest sha256_{};
};

}  // namespace specd
