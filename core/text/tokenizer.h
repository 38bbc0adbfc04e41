// tokenizer.json: text to token ids and back, exactly as Hugging Face tokenizers does it.
//
//   text ─ added tokens ─> segments ─ normalizer, added tokens ─> pre_tokenizer ─> pieces ─ BPE ─>
//   ids
//
// Supported: BPE in the byte-level kind (Llama 3, Qwen, GPT-2) and the sentencepiece kind (Llama 2,
// Mistral), with what README.md lists. Everything else is refused at load with its place in the
// file (kUnsupported), because a tokenizer that is nearly right is wrong in silence.
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
#include "core/text/added_tokens.h"
#include "core/text/bpe.h"
#include "core/text/decoder.h"
#include "core/text/normalizer.h"
#include "core/text/pre_tokenizer.h"
#include "core/text/step_budget.h"
#include "core/text/text_range.h"

namespace specd {

struct EncodeOptions {
  // Put the template's BOS and EOS around the ids.
  bool add_special_tokens = true;
  // Special tokens spelled out in the text become their ids. Otherwise they are plain text (added
  // tokens that are not special are recognised in either case).
  bool parse_special_tokens = true;
  // Stretches of the text, sorted and disjoint, where no special token is recognised, not even one
  // that lies there in part: text of strangers inside a template. They change nothing else.
  std::span<const TextRange> plain = {};
  // There no other added token is recognised either: some models part turns by tokens that their
  // files do not call special, and such a token could hide a special one that stands beside it.
  bool plain_hides_all = false;
};

// Immutable; every const call is thread-safe.
class Tokenizer {
 public:
  static Result<std::shared_ptr<const Tokenizer>> load(const std::string& path);
  // `where` names the text in errors.
  static Result<std::shared_ptr<const Tokenizer>> from_text(std::string_view json,
                                                            const std::string& where);

  // The ids of `text`. kInvalidArgument with the byte offset when `text` is not UTF-8, when it is
  // 2^31 bytes or longer, or when the ranges are not as they should be. kUnsupported when the
  // file's own rules blow the text up or take too long on it.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions& options = {}) const;

  // The text of all ids together, U+FFFD for what is not UTF-8. Ids without a token are left out,
  // and so are special tokens when skip_special is set.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // The same id by id: push() appends the text that `id` completes, finish() what waits.
  struct TextState {
    DecodeStream stream;  // of this tokenizer's decoder
    bool first = true;    // no token has come yet
  };
  TextState begin_text() const { return {DecodeStream(decoder_), true}; }
  // The same behind text that is there already: begin_text() would strip a space that parts them.
  TextState continue_text() const {
    TextState state{DecodeStream(decoder_), false};
    state.stream.continue_text();
    return state;
  }
  void push(int32_t id, bool skip_special, TextState& state, std::string& text) const;

  // The bytes that one token is in the middle of a text; often not whole characters. Empty for ids
  // without a token. The view lives as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;
  // The id of a token by its text in the file ("<|end_of_text|>"), of added tokens only; -1 if
  // none.
  int32_t added_token_id(std::string_view text) const;

  // One more than the greatest id; holes are possible. The model's vocabulary may be larger.
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
  Status read_post_processor(const Json& processor, const std::string& where);
  Status read_template(const Json& processor, const std::string& where);

  bool has_token(int32_t id) const {
    return id >= 0 && id < vocab_size() && present_[static_cast<size_t>(id)];
  }
  // Append the ids of text that holds no token of raw_finder_, or no added token at all.
  Status encode_segment(SourceText text, bool parse_special, StepBudget& budget,
                        std::vector<int32_t>& ids) const;
  Status encode_text(SourceText text, StepBudget& budget, std::vector<int32_t>& ids) const;

  Bpe bpe_;
  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Decoder decoder_;
  std::vector<Decoder::Piece> pieces_;        // by id, added tokens included
  std::vector<Decoder::Piece> first_pieces_;  // of the first token, where that differs; or empty
  std::vector<bool> present_;                 // by id
  std::vector<bool> special_;                 // by id
  std::unordered_map<std::string, int32_t, KeyedHash, std::equal_to<>> added_;
  size_t added_bytes_ = 0;              // that are looked for
  AddedTokenFinder raw_finder_;         // tokens looked for in the raw text
  AddedTokenFinder normalized_finder_;  // and in what the normalizer makes of the rest
  bool has_template_ = false;
  std::vector<int32_t> prefix_;  // the template's ids before and after the text
  std::vector<int32_t> suffix_;
  Sha256Digest sha256_{};
};

}  // namespace specd
