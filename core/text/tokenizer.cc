#include "core/text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "core/base/quote.h"
#include "core/text/llama3_split.h"
#include "core/text/utf8.h"

namespace specd {
namespace {

constexpr uint64_t kFileBytesMax = 256u << 20;

Status unsupported(const std::string& where, const Json& found, const std::string& supported) {
  return Status(Code::kUnsupported, where + ": found " + quote(found.dump(-1, ' ', true)) +
                                        ", supported: " + supported);
}

const Json& value_or_null(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

// Sequence[Split(Llama 3's expression, Isolated), ByteLevel without an expression of its own]
Status check_pre_tokenizer(const Json& found, const std::string& where) {
  const std::string supported =
      "a Sequence of Split with the expression of Llama 3 (Isolated) and ByteLevel (use_regex "
      "false)";
  if (!found.is_object() || value_or_null(found, "type") != "Sequence") {
    return unsupported(where, found, supported);
  }
  const Json& steps = value_or_null(found, "pretokenizers");
  if (!steps.is_array() || steps.size() != 2 || !steps[0].is_object() || !steps[1].is_object()) {
    return unsupported(where + ".pretokenizers", steps, supported);
  }
  const auto require = [&](int step, const char* key, const Json& only) -> Status {
    const Json& value = value_or_null(steps[static_cast<size_t>(step)], key);
    if (value == only) return Status();
    return unsupported(where + ".pretokenizers[" + std::to_string(step) + "]." + key, value,
                       only.dump());
  };
  SPECD_OK_OR_RETURN(require(0, "type", "Split"));
  SPECD_OK_OR_RETURN(require(0, "pattern", Json{{"Regex", std::string(kLlama3SplitPattern)}}));
  SPECD_OK_OR_RETURN(require(0, "behavior", "Isolated"));
  SPECD_OK_OR_RETURN(require(0, "invert", false));
  SPECD_OK_OR_RETURN(require(1, "type", "ByteLevel"));
  SPECD_OK_OR_RETURN(require(1, "add_prefix_space", false));
  return require(1, "use_regex", false);
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
  for (const char* key : {"truncation", "padding", "normalizer"}) {
    const Json& value = value_or_null(root, key);
    if (!value.is_null()) return unsupported(where + ": " + key, value, "null");
  }
  const Json& decoder = value_or_null(root, "decoder");
  if (!decoder.is_object() || value_or_null(decoder, "type") != "ByteLevel") {
    return unsupported(where + ": decoder", decoder, "{\"type\": \"ByteLevel\"}");
  }
  return check_pre_tokenizer(value_or_null(root, "pre_tokenizer"), where + ": pre_tokenizer");
}

}  // namespace

void Tokenizer::Matcher::add(std::string_view text, int32_t id) {
  uint32_t node = 0;
  first_bytes_[static_cast<unsigned char>(text[0])] = true;
  for (const char c : text) {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c);
    const auto [edge, added] = edges_.try_emplace(key, nodes_);
    if (added) ++nodes_;
    node = edge->second;
  }
  ids_[node] = id;
}

size_t Tokenizer::Matcher::match(std::string_view text, size_t at, int32_t& id) const {
  if (!first_bytes_[static_cast<unsigned char>(text[at])]) return 0;
  size_t length = 0;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge =
        edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (const auto end = ids_.find(node); end != ids_.end()) {
      length = i + 1 - at;
      id = end->second;
    }
  }
  return length;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const std::string& path) {
  SPECD_TRY(const std::string text, read_text_file(path, kFileBytesMax));
  return from_text(text, path);
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_text(std::string_view json,
                                                              const std::string& where) {
  SPECD_TRY(const Json root, parse_json(json, where));
  if (!root.is_object()) return Status(Code::kDataLoss, where + ": expected a JSON object");
  SPECD_OK_OR_RETURN(check_top_level(root, where));
  // A token takes at least six bytes of the file ("a":1,): ids without great holes lie below this,
  // and a lying id cannot make us allocate much more than the file.
  const auto id_end = static_cast<int64_t>(json.size() / 6);
  SPECD_TRY(ByteBpe bpe,
            ByteBpe::from_json(value_or_null(root, "model"), id_end, where + ": model"));
  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(bpe)));
  tokenizer->token_bytes_ = tokenizer->bpe_.take_token_bytes();
  SPECD_OK_OR_RETURN(tokenizer->read_added_tokens(root, id_end, where + ": added_tokens"));
  SPECD_OK_OR_RETURN(tokenizer->read_post_processor(value_or_null(root, "post_processor"),
                                                    where + ": post_processor"));
  tokenizer->sha256_ = specd::sha256(json);
  return std::shared_ptr<const Tokenizer>(tokenizer);
}

Status Tokenizer::read_added_tokens(const Json& root, int64_t id_end, const std::string& where) {
  special_.assign(token_bytes_.size(), false);
  const Json& list = value_or_null(root, "added_tokens");
  if (list.is_null()) return Status();
  if (!list.is_array()) return Status(Code::kDataLoss, where + ": expected a list");
  const Json& vocab = root["model"]["vocab"];
  std::vector<bool> taken(static_cast<size_t>(id_end));
  for (const auto& [text, id] : vocab.items()) taken[id.get<size_t>()] = true;

  int index = 0;
  for (const Json& entry : list) {
    const std::string place = where + "[" + std::to_string(index++) + "]";
    SPECD_TRY(const std::string content, json_string(entry, "content", place));
    SPECD_TRY(const int64_t id, json_int(entry, "id", 0, id_end - 1, place));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      SPECD_TRY(const bool set, json_bool_or(entry, key, false, place));
      if (set) return unsupported(place + "." + key, true, "false");
    }
    SPECD_TRY(const bool special, json_bool_or(entry, "special", false, place));
    SPECD_TRY(const bool normalized, json_bool_or(entry, "normalized", !special, place));
    if (content.empty()) return Status(Code::kDataLoss, place + ": 'content' is empty");
    if (const auto in_vocab = vocab.find(content); in_vocab != vocab.end()) {
      if (*in_vocab != id) {
        return Status(Code::kDataLoss, place + ": " + quote(content) + " has the id " +
                                           std::to_string(id) + " here and " + in_vocab->dump() +
                                           " in model.vocab");
      }
    } else if (taken[static_cast<size_t>(id)]) {
      return Status(Code::kDataLoss,
                    place + ": the id " + std::to_string(id) + " belongs to another token too");
    }
    taken[static_cast<size_t>(id)] = true;
    if (!added_.emplace(content, static_cast<int32_t>(id)).second) {
      return Status(Code::kDataLoss, place + ": " + quote(content) + " occurs twice");
    }
    const auto slot = static_cast<size_t>(id);
    if (slot >= token_bytes_.size()) {
      token_bytes_.resize(slot + 1);
      special_.resize(slot + 1, false);
    }
    token_bytes_[slot] = byte_level_bytes(content);
    special_[slot] = special;
    matchers_[normalized ? 1 : 0].add(content, static_cast<int32_t>(id));
  }
  return Status();
}

Status Tokenizer::read_post_processor(const Json& processor, const std::string& where) {
  if (processor.is_null()) return Status();
  SPECD_TRY(const std::string type, json_string(processor, "type", where));
  if (type == "ByteLevel") return Status();  // moves offsets only
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
      (seen_text ? suffix_ : prefix_).push_back(static_cast<int32_t>(value));
    }
  }
  if (!seen_text) return unsupported(place, single, supported);
  return Status();
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special_tokens,
                                               bool parse_special_tokens) const {
  if (text.size() >= static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return Status(Code::kInvalidArgument,
                  "text of " + std::to_string(text.size()) + " bytes, expected fewer than 2^31");
  }
  if (const size_t offset = utf8_error_offset(text); offset != std::string_view::npos) {
    return Status(Code::kInvalidArgument,
                  "text is not UTF-8: ill-formed at byte " + std::to_string(offset));
  }
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = prefix_;
  encode_segment(text, matchers_, parse_special_tokens, ids);
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  return ids;
}

void Tokenizer::encode_segment(std::string_view text, std::span<const Matcher> matchers,
                               bool parse_special_tokens, std::vector<int32_t>& ids) const {
  if (matchers.empty()) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = llama3_piece_end(text, at);
      bpe_.encode_piece(text.substr(at, end - at), ids);
      at = end;
    }
    return;
  }
  size_t begin = 0;  // of the segment before the next token
  for (size_t at = 0; at < text.size();) {
    int32_t id = 0;
    const size_t length = matchers[0].match(text, at, id);
    if (length > 0 && (parse_special_tokens || !is_special(id))) {
      encode_segment(text.substr(begin, at - begin), matchers.subspan(1), parse_special_tokens,
                     ids);
      ids.push_back(id);
      begin = at + length;
    }
    // A special token taken as plain text still hides the tokens that start inside it.
    at += std::max<size_t>(length, 1);
  }
  encode_segment(text.substr(begin), matchers.subspan(1), parse_special_tokens, ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  std::string text;
  utf8_append_lossy(bytes, true, text);
  return text;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? std::string_view(token_bytes_[static_cast<size_t>(id)])
                                      : std::string_view();
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && id < vocab_size() && special_[static_cast<size_t>(id)];
}

int32_t Tokenizer::added_token_id(std::string_view text) const {
  const auto found = added_.find(std::string(text));
  return found == added_.end() ? -1 : found->second;
}

}  // namespace specd
