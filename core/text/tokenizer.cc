#include "core/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/text/tokenizer_json.h"

namespace specd {
namespace {

constexpr uint64_t kFileBytesMax = 64u << 20;  // twice the largest published file
constexpr size_t kTemplateIdsMax = 64;
constexpr uint64_t kStepsOfBpe = 8;  // per byte
constexpr size_t kAddedBytesMax = 4 << 20;

const Json& value_or_null(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

Status check_top_level(const Json& root, const std::string& where) {
  static constexpr std::string_view kKnown[] = {"version",        "truncation", "padding",
                                                "added_tokens",   "normalizer", "pre_tokenizer",
                                                "post_processor", "decoder",    "model"};
  for (const auto& [key, value] : root.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      return Status(Code::kUnsupported, where + ": unknown key " + quote(key));
    }
  }
  SPECD_TRY(const std::string version, json_string_or(root, "version", "1.0", where));
  if (version != "1.0") return unsupported(where + ": version", version, "\"1.0\"");
  // truncation and padding are ignored, as transformers does in any call that asks for neither.
  return Status();
}

// The marks of a whole text with these plain ranges.
Result<std::string> marks_of(std::string_view text, std::span<const TextRange> plain,
                             bool hides_all) {
  std::string marks(text.size(), 0);
  if (!text.empty())
    marks.replace(0, utf8_step(text, 0).bytes, utf8_step(text, 0).bytes, kMarkFirst);
  size_t end = 0;
  for (const TextRange& range : plain) {
    if (range.begin < end || range.end < range.begin || range.end > text.size()) {
      return Status(Code::kInvalidArgument, "plain range " + std::to_string(range.begin) + " to " +
                                                std::to_string(range.end) +
                                                ": expected ranges in order, without overlap, "
                                                "inside the text of " +
                                                std::to_string(text.size()) + " bytes");
    }
    end = range.end;
    for (size_t i = range.begin; i < range.end; ++i)
      marks[i] |= hides_all ? kMarkPlain | kMarkText : kMarkPlain;
  }
  return marks;
}

SourceText cut(std::string_view text, std::string_view marks, const TextRange& range) {
  const size_t bytes = range.end - range.begin;
  return {std::string(text.substr(range.begin, bytes)),
          std::string(marks.substr(range.begin, bytes))};
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
  const auto text = read_text_file(path, kFileBytesMax);
  if (text.ok() && is_lfs_pointer(text.value()))
    return Status(Code::kDataLoss, quote(path, 400) + kIsLfsPointer);
  if (text.ok()) return from_text(text.value(), path);
  if (text.status().code() != Code::kNotFound || path_exists(path)) return text.status();
  return Status(Code::kNotFound, text.status().message() +
                                     "; only this format is supported: transformers' AutoTokenizer "
                                     "converts others (tokenizer.model, vocab.json) with "
                                     "save_pretrained()");
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_text(std::string_view json,
                                                              const std::string& where) {
  SPECD_TRY(const Json root, parse_json(json, where));
  if (!root.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  SPECD_OK_OR_RETURN(check_top_level(root, where));
  SPECD_TRY(Normalizer normalizer,
            Normalizer::from_json(value_or_null(root, "normalizer"), where + ": normalizer"));
  SPECD_TRY(
      PreTokenizer pre_tokenizer,
      PreTokenizer::from_json(value_or_null(root, "pre_tokenizer"), where + ": pre_tokenizer"));
  if (pre_tokenizer.asks_for_first() && !normalizer.keeps_track_of_first()) {
    return Status(Code::kUnsupported, where +
                                          ": pre_tokenizer: prepend_scheme 'first' after the "
                                          "normalizer NFC is not supported");
  }
  SPECD_TRY(Decoder decoder,
            Decoder::from_json(value_or_null(root, "decoder"), where + ": decoder"));
  // A token takes at least six bytes of the file ("a":1,). So ids without large gaps are below
  // this, and a hostile id cannot make us allocate much more than the size of the file.
  const auto id_end = static_cast<int64_t>(json.size() / 6);
  SPECD_TRY(Bpe bpe, Bpe::from_json(value_or_null(root, "model"), id_end,
                                    pre_tokenizer.ends_in_byte_level(), where + ": model"));
  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(
      std::move(bpe), std::move(normalizer), std::move(pre_tokenizer), std::move(decoder)));
  // Shared by the rules as they run over all tokens of the file.
  StepBudget budget(json.size() / 4);
  SPECD_OK_OR_RETURN(tokenizer->read_pieces(where + ": model.vocab", budget));
  SPECD_OK_OR_RETURN(tokenizer->read_added_tokens(value_or_null(root, "added_tokens"), id_end,
                                                  where + ": added_tokens", budget));
  SPECD_OK_OR_RETURN(tokenizer->read_post_processor(value_or_null(root, "post_processor"),
                                                    where + ": post_processor"));
  tokenizer->set_bytes_per_token_max();
  tokenizer->sha256_ = specd::sha256(json);
  return std::shared_ptr<const Tokenizer>(tokenizer);
}

void Tokenizer::set_bytes_per_token_max() {
  // In GPT-2's alphabet each byte is a letter and has a token, so nothing is unknown.
  if (!pre_tokenizer_.ends_in_byte_level() || pre_tokenizer_.removes() || added_token_strips_)
    return;
  size_t most = longest_added_;
  for (int32_t id = 0; id < bpe_.id_end(); ++id)
    if (bpe_.has(id)) most = std::max(most, bpe_.text(id).size());  // at least its letters
  bytes_per_token_max_ = most * normalizer_.shrinks_at_most();
}

Status Tokenizer::read_pieces(const std::string& where, StepBudget& budget) {
  for (int32_t id = 0; id < bpe_.id_end(); ++id) {
    if (bpe_.has(id)) SPECD_OK_OR_RETURN(put_piece(id, bpe_.text(id), budget).with_context(where));
  }
  return Status();
}

Status Tokenizer::put_piece(int32_t id, std::string_view token, StepBudget& budget) {
  const auto slot = static_cast<size_t>(id);
  if (slot >= pieces_.size()) {
    const size_t size = std::max<size_t>(slot + 1, static_cast<size_t>(bpe_.id_end()));
    pieces_.resize(size);
    present_.resize(size);
    special_.resize(size);
    if (decoder_.first_differs()) first_pieces_.resize(size);
  }
  present_[slot] = true;
  SPECD_TRY(pieces_[slot], decoder_.piece(token, false, budget));
  if (!decoder_.first_differs()) return Status();
  SPECD_TRY(first_pieces_[slot], decoder_.piece(token, true, budget));
  return Status();
}

Status Tokenizer::read_added_tokens(const Json& list, int64_t id_end, const std::string& where,
                                    StepBudget& budget) {
  if (list.is_null()) return Status();
  if (!list.is_array()) return Status(Code::kDataLoss, where + ": expected a list");
  int index = 0;
  for (const Json& entry : list) {
    SPECD_OK_OR_RETURN(
        read_added_token(entry, id_end, where + "[" + std::to_string(index++) + "]", budget));
  }
  raw_finder_.finish();
  normalized_finder_.finish();
  return Status();
}

Status Tokenizer::read_added_token(const Json& entry, int64_t id_end, const std::string& place,
                                   StepBudget& budget) {
  SPECD_TRY(const std::string content, json_string(entry, "content", place));
  SPECD_TRY(const int64_t id64, json_int(entry, "id", 0, id_end - 1, place));
  const auto id = static_cast<int32_t>(id64);
  AddedTokenFinder::Token token;
  token.id = id;
  SPECD_TRY(token.special, json_bool_or(entry, "special", false, place));
  SPECD_TRY(token.single_word, json_bool_or(entry, "single_word", false, place));
  SPECD_TRY(token.lstrip, json_bool_or(entry, "lstrip", false, place));
  SPECD_TRY(token.rstrip, json_bool_or(entry, "rstrip", false, place));
  longest_added_ = std::max(longest_added_, content.size());
  added_token_strips_ = added_token_strips_ || token.lstrip || token.rstrip;
  SPECD_TRY(const bool normalized, json_bool_or(entry, "normalized", !token.special, place));
  if (content.empty()) return Status(Code::kDataLoss, place + ": 'content' is empty");
  if (const int32_t in_vocab = bpe_.find(content); in_vocab != Bpe::kNone) {
    if (in_vocab != id) {
      return Status(Code::kDataLoss, place + ": " + quote(content) + " has the id " +
                                         std::to_string(id) + " here and " +
                                         std::to_string(in_vocab) + " in model.vocab");
    }
  } else if (has_token(id)) {
    return Status(Code::kDataLoss,
                  place + ": the id " + std::to_string(id) + " belongs to another token too");
  }
  if (!added_.emplace(content, id).second) {
    return Status(Code::kDataLoss, place + ": " + quote(content) + " occurs twice");
  }
  SourceText text{content, std::string(content.size(), 0)};
  if (normalized) {
    StepBudget own(content.size());  // bounds the length, too
    const uint64_t before = own.left();
    SPECD_OK_OR_RETURN(normalizer_.apply(text, own).with_context(place));
    SPECD_OK_OR_RETURN(take_steps(before - own.left(), budget).with_context(place));
  }
  if (text.text.empty() || text.text.size() > kAddedTokenBytesMax) {
    return Status(Code::kUnsupported, place + ": " + std::to_string(text.text.size()) +
                                          " bytes to look for, supported: 1 to " +
                                          std::to_string(kAddedTokenBytesMax));
  }
  if (!(normalized ? normalized_finder_ : raw_finder_).add(text.text, token)) {
    return Status(Code::kDataLoss,
                  place + ": the normalizer makes " + quote(content) + " equal to another token");
  }
  added_bytes_ += text.text.size();
  if (added_bytes_ > kAddedBytesMax) {
    return Status(Code::kUnsupported,
                  place + ": the added tokens up to here have " + std::to_string(added_bytes_) +
                      " bytes together, supported: " + std::to_string(kAddedBytesMax));
  }
  // A token decodes to the text that is searched for.
  SPECD_OK_OR_RETURN(put_piece(id, text.text, budget).with_context(place));
  special_[static_cast<size_t>(id)] = token.special;
  return Status();
}

Status Tokenizer::read_post_processor(const Json& processor, const std::string& where) {
  if (processor.is_null()) return Status();
  SPECD_TRY(const std::string type, json_string(processor, "type", where));
  if (type == "ByteLevel") return Status();  // only changes offsets
  if (type == "TemplateProcessing") return read_template(processor, where);
  const Json& steps = value_or_null(processor, "processors");
  if (type != "Sequence" || !steps.is_array()) {
    return unsupported(where, processor,
                       "null, ByteLevel, TemplateProcessing or a Sequence of them");
  }
  int index = 0;
  for (const Json& step : steps) {
    SPECD_OK_OR_RETURN(
        read_post_processor(step, where + ".processors[" + std::to_string(index++) + "]"));
  }
  return Status();
}

Status Tokenizer::read_template(const Json& processor, const std::string& where) {
  const std::string place = where + ".single";
  const Json& single = value_or_null(processor, "single");
  const std::string supported = "special tokens around one {\"Sequence\": {\"id\": \"A\"}}";
  if (has_template_) return unsupported(where, "a second TemplateProcessing", "one");
  if (!single.is_array()) return unsupported(place, single, supported);
  has_template_ = true;
  const Json& tokens = value_or_null(processor, "special_tokens");
  bool seen_text = false;
  for (const Json& piece : single) {
    const Json& text = piece.is_object() ? value_or_null(piece, "Sequence") : piece;
    if (text.is_object()) {
      if (seen_text || value_or_null(text, "id") != "A")
        return unsupported(place, single, supported);
      seen_text = true;
      continue;
    }
    const Json& special = piece.is_object() ? value_or_null(piece, "SpecialToken") : piece;
    if (!special.is_object()) return unsupported(place, piece, supported);
    SPECD_TRY(const std::string name, json_string(special, "id", place));
    const auto token = tokens.find(name);
    const Json& ids = tokens.is_object() && token != tokens.end() && token->is_object()
                          ? value_or_null(*token, "ids")
                          : special;
    if (!ids.is_array()) {
      return Status(Code::kDataLoss, where + ".special_tokens: no ids for " + quote(name));
    }
    for (const Json& id : ids) {
      SPECD_TRY(const int64_t value, json_int(Json{{"ids", id}}, "ids", 0, vocab_size() - 1,
                                              where + ".special_tokens: " + quote(name)));
      std::vector<int32_t>& into = seen_text ? suffix_ : prefix_;
      if (into.size() == kTemplateIdsMax) {
        return unsupported(place, "more than " + std::to_string(kTemplateIdsMax) + " ids",
                           "at most that many before and after the text");
      }
      into.push_back(static_cast<int32_t>(value));
    }
  }
  if (!seen_text) return unsupported(place, single, supported);
  return Status();
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text,
                                               const EncodeOptions& options) const {
  if (text.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Status(Code::kInvalidArgument,
                  "text of " + std::to_string(text.size()) + " bytes, expected fewer than 2^31");
  }
  if (const size_t offset = utf8_error_offset(text); offset != std::string_view::npos) {
    return Status(Code::kInvalidArgument, "expected UTF-8, found an ill-formed character at byte " +
                                              std::to_string(offset));
  }
  SPECD_TRY(const std::string marks, marks_of(text, options.plain, options.plain_hides_all));
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids = prefix_;
  StepBudget budget(text.size());
  std::vector<AddedTokenFinder::Segment> segments;
  raw_finder_.find(text, marks, options.parse_special_tokens, segments);
  for (const AddedTokenFinder::Segment& segment : segments) {
    if (segment.id != AddedTokenFinder::kText) {
      ids.push_back(segment.id);
    } else {
      SPECD_OK_OR_RETURN(encode_segment(cut(text, marks, segment.range),
                                        options.parse_special_tokens, budget, ids));
    }
  }
  if (options.add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

Status Tokenizer::encode_segment(SourceText text, bool parse_special, StepBudget& budget,
                                 std::vector<int32_t>& ids) const {
  SPECD_OK_OR_RETURN(normalizer_.apply(text, budget));
  std::vector<AddedTokenFinder::Segment> segments;
  normalized_finder_.find(text.text, text.marks, parse_special, segments);
  for (const AddedTokenFinder::Segment& segment : segments) {
    if (segment.id != AddedTokenFinder::kText) {
      ids.push_back(segment.id);
    } else {
      SPECD_OK_OR_RETURN(encode_text(cut(text.text, text.marks, segment.range), budget, ids));
    }
  }
  return Status();
}

Status Tokenizer::encode_text(SourceText text, StepBudget& budget,
                              std::vector<int32_t>& ids) const {
  Pieces pieces;
  pieces.ranges = {{0, text.text.size()}};
  pieces.text = std::move(text);
  SPECD_OK_OR_RETURN(pre_tokenizer_.apply(pieces, budget));
  SPECD_OK_OR_RETURN(take_steps(kStepsOfBpe * pieces.text.text.size(), budget));
  for (const TextRange& range : pieces.ranges) {
    const size_t bytes = range.end - range.begin;
    const std::string_view marks = std::string_view(pieces.text.marks).substr(range.begin, bytes);
    const bool plain =
        std::any_of(marks.begin(), marks.end(), [](char mark) { return (mark & kMarkPlain) != 0; });
    bpe_.encode_piece(std::string_view(pieces.text.text).substr(range.begin, bytes),
                      plain ? &special_ : nullptr, ids);
  }
  return Status();
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  TextState state = begin_text();
  for (const int32_t id : ids) push(id, skip_special, state, text);
  state.stream.flush(text);
  return text;
}

void Tokenizer::push(int32_t id, bool skip_special, TextState& state, std::string& text) const {
  if (!has_token(id) || (skip_special && is_special(id))) return;
  const auto& pieces = state.first && decoder_.first_differs() ? first_pieces_ : pieces_;
  const Decoder::Piece& piece = pieces[static_cast<size_t>(id)];
  state.stream.push(piece.bytes, piece.is_byte, text);
  state.first = false;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return has_token(id) ? std::string_view(pieces_[static_cast<size_t>(id)].bytes)
                       : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return has_token(id) && special_[static_cast<size_t>(id)];
}

int32_t Tokenizer::added_token_id(std::string_view text) const {
  const auto found = added_.find(std::string(text));
  return found == added_.end() ? -1 : found->second;
}

}  // namespace specd
