#include "core/text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/text/byte_level.h"

namespace specd {
namespace {

constexpr char32_t kCommonEnd = 0x800;

uint64_t pack(int32_t high, int32_t low) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

// Both spellings of a merge: "a b" and ["a", "b"].
bool split_merge(const Json& entry, std::string_view& left, std::string_view& right) {
  if (entry.is_string()) {
    const std::string_view text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
      return false;
    }
    left = text.substr(0, space);
    right = text.substr(space + 1);
    return true;
  }
  if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) {
    return false;
  }
  left = entry[0].get_ref<const std::string&>();
  right = entry[1].get_ref<const std::string&>();
  return true;
}

std::string byte_token(int byte) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  return std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + '>';
}

}  // namespace

void Bpe::MergeTable::reserve(size_t count) {
  size_t slots = 2;
  while (slots < 2 * count) slots *= 2;
  slots_.assign(slots, Merge());
}

size_t Bpe::MergeTable::slot(uint64_t pair) const {
  uint64_t h = pair ^ seed_;
  h = (h ^ h >> 33) * 0xFF51AFD7ED558CCDull;
  h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53ull;
  h ^= h >> 33;
  size_t at = h & (slots_.size() - 1);
  while (slots_[at].pair != pair && slots_[at].pair != kEmpty) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void Bpe::MergeTable::put(uint64_t pair, int32_t rank, int32_t result) {
  slots_[slot(pair)] = {pair, rank, result};
}

const Bpe::MergeTable::Merge* Bpe::MergeTable::find(uint64_t pair) const {
  const Merge& found = slots_[slot(pair)];
  return found.pair == kEmpty ? nullptr : &found;
}

Result<Bpe> Bpe::from_json(const Json& model, int64_t id_end, bool byte_level,
                           const std::string& where) {
  if (!model.is_object()) return Status(Code::kDataLoss, where + ": expected an object");
  Bpe bpe;
  SPECD_OK_OR_RETURN(bpe.read_options(model, where));
  SPECD_OK_OR_RETURN(bpe.read_vocab(model, id_end, where));
  SPECD_OK_OR_RETURN(bpe.read_bytes(byte_level, where));
  SPECD_OK_OR_RETURN(bpe.read_merges(model, where));
  return bpe;
}

Status Bpe::read_options(const Json& model, const std::string& where) {
  SPECD_TRY(const std::string type, json_string_or(model, "type", "", where));
  if (type != "BPE") {
    return Status(Code::kUnsupported, where + ".type: found " + quote(type) + ", supported: 'BPE'");
  }
  SPECD_TRY(const double dropout, json_double_or(model, "dropout", 0, where));
  if (dropout != 0) {
    return Status(Code::kUnsupported,
                  where + ".dropout: found " + std::to_string(dropout) + ", supported: null or 0");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SPECD_TRY(const std::string text, json_string_or(model, key, "", where));
    if (!text.empty()) {
      return Status(Code::kUnsupported,
                    where + "." + key + ": found " + quote(text) + ", supported: null or empty");
    }
  }
  SPECD_TRY(ignore_merges_, json_bool_or(model, "ignore_merges", false, where));
  SPECD_TRY(byte_fallback_, json_bool_or(model, "byte_fallback", false, where));
  SPECD_TRY(fuse_unk_, json_bool_or(model, "fuse_unk", false, where));
  SPECD_TRY(unk_token_, json_string_or(model, "unk_token", "", where));
  static constexpr std::string_view kKnown[] = {"type",
                                                "dropout",
                                                "unk_token",
                                                "continuing_subword_prefix",
                                                "end_of_word_suffix",
                                                "fuse_unk",
                                                "byte_fallback",
                                                "vocab",
                                                "ignore_merges",
                                                "merges"};
  for (const auto& [key, value] : model.items()) {
    if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      return Status(Code::kUnsupported, where + ": unknown key " + quote(key));
    }
  }
  return Status();
}

Status Bpe::read_vocab(const Json& model, int64_t id_end, const std::string& where) {
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_object()) {
    return Status(Code::kDataLoss, where + ".vocab: expected an object of token ids");
  }
  texts_.reserve(vocab->size());
  for (auto entry = vocab->begin(); entry != vocab->end(); ++entry) {
    const Json& value = entry.value();
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(id_end)) {
      return Status(Code::kDataLoss, where + ".vocab: " + quote(entry.key()) +
                                         ": expected an id below " + std::to_string(id_end) +
                                         ", found " + quote(value.dump(-1, ' ', true)));
    }
    const auto id = value.get<size_t>();
    if (id >= texts_.size()) {
      texts_.resize(id + 1);
      present_.resize(id + 1);
    }
    if (present_[id]) {
      return Status(Code::kDataLoss, where + ".vocab: " + quote(entry.key()) + ": the id " +
                                         std::to_string(id) + " belongs to another token too");
    }
    present_[id] = true;
    texts_[id] = entry.key();
  }
  ids_.reserve(vocab->size());
  common_character_ids_.assign(kCommonEnd, kNone);
  for (int32_t id = 0; id < this->id_end(); ++id) {
    if (!has(id)) continue;
    ids_.emplace(text(id), id);
    if (text(id).empty()) continue;
    const Utf8Step first = utf8_step(text(id), 0);
    if (first.kind != Utf8Step::Kind::kValid || first.bytes != text(id).size()) continue;
    character_ids_.emplace(first.code_point, id);
    if (first.code_point < kCommonEnd) common_character_ids_[first.code_point] = id;
  }
  return Status();
}

Status Bpe::read_bytes(bool byte_level, const std::string& where) {
  if (!unk_token_.empty()) {
    unk_id_ = find(unk_token_);
    if (unk_id_ == kNone) {
      return Status(Code::kDataLoss,
                    where + ".unk_token: " + quote(unk_token_) + " is not in the vocabulary");
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    const auto missing = [&](std::string_view token) {
      return Status(Code::kUnsupported, where + ".vocab: no token for the byte " +
                                            std::to_string(byte) + ", " + quote(token) +
                                            "; supported: vocabularies with all 256 bytes");
    };
    const std::string_view letter = byte_level_character(static_cast<unsigned char>(byte));
    if (byte_level && find(letter) == kNone) return missing(letter);
    byte_ids_[byte] = find(byte_token(byte));
    if (byte_fallback_ && byte_ids_[byte] == kNone) return missing(byte_token(byte));
  }
  if (!byte_level && !byte_fallback_ && unk_id_ == kNone) {
    return Status(Code::kUnsupported,
                  where +
                      ".unk_token: found null, expected a token: without it, byte_fallback or a "
                      "ByteLevel pre_tokenizer, characters would be lost");
  }
  return Status();
}

Status Bpe::read_merges(const Json& model, const std::string& where) {
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) {
    return Status(Code::kDataLoss, where + ".merges: expected a list of pairs");
  }
  merges_.reserve(merges->size());
  int32_t rank = -1;
  std::string joined;
  for (const Json& entry : *merges) {
    ++rank;
    const auto at = [&] { return where + ".merges[" + std::to_string(rank) + "]"; };
    // Lists converted from merges.txt keep its first line.
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    std::string_view left;
    std::string_view right;
    if (!split_merge(entry, left, right)) {
      return Status(Code::kDataLoss,
                    at() + ": expected \"left right\" or [\"left\", \"right\"], found " +
                        quote(entry.dump(-1, ' ', true)));
    }
    joined.assign(left).append(right);
    const std::string_view texts[] = {left, right, joined};
    int32_t ids[3];
    for (int i = 0; i < 3; ++i) {
      ids[i] = find(texts[i]);
      if (ids[i] == kNone) {
        return Status(Code::kDataLoss, at() + ": " + quote(texts[i]) + " is not in the vocabulary");
      }
    }
    merges_.put(pack(ids[0], ids[1]), rank, ids[2]);
  }
  return Status();
}

int32_t Bpe::find(std::string_view text) const {
  const auto found = ids_.find(text);
  return found == ids_.end() ? kNone : found->second;
}

// The characters of a piece as tokens. A character without a token becomes its bytes or unk_token.
void Bpe::append_symbols(std::string_view piece, std::vector<Symbol>& symbols) const {
  const auto add = [&](int32_t id) {
    const auto at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  };
  bool after_unk = false;
  for (size_t at = 0; at < piece.size();) {
    const Utf8Step step = utf8_step(piece, at);
    int32_t id = kNone;
    if (step.code_point < kCommonEnd) {
      id = common_character_ids_[step.code_point];
    } else if (const auto found = character_ids_.find(step.code_point);
               found != character_ids_.end()) {
      id = found->second;
    }
    if (id != kNone) {
      add(id);
    } else if (byte_fallback_) {
      for (size_t i = at; i < at + step.bytes; ++i) {
        add(byte_ids_[static_cast<unsigned char>(piece[i])]);
      }
    } else if (unk_id_ != kNone && !(after_unk && fuse_unk_)) {
      add(unk_id_);
    }
    after_unk = id == kNone;
    at += step.bytes;
  }
  if (!symbols.empty()) symbols.back().next = kNone;
}

void Bpe::encode_piece(std::string_view piece, const std::vector<bool>* not_whole,
                       std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    const int32_t whole = find(piece);
    const bool forbidden = not_whole != nullptr && whole != kNone &&
                           static_cast<size_t>(whole) < not_whole->size() &&
                           (*not_whole)[static_cast<size_t>(whole)];
    if (whole != kNone && !forbidden) {
      ids.push_back(whole);
      return;
    }
  }
  SPECD_CHECK(piece.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
              "piece of " + std::to_string(piece.size()) + " bytes");
  // Symbols form a linked list. A symbol that was merged into its left neighbour has no id.
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  append_symbols(piece, symbols);
  const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto find_merge = [&](int32_t left) -> const MergeTable::Merge* {
    if (left == kNone || symbol(left).next == kNone) return nullptr;
    return merges_.find(pack(symbol(left).id, symbol(symbol(left).next).id));
  };

  // Candidate merges, lowest rank first, then leftmost: rank << 32 | position of the left symbol.
  std::vector<uint64_t> candidates;
  const auto n = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i + 1 < n; ++i) {
    if (const auto* merge = find_merge(i)) candidates.push_back(pack(merge->rank, i));
  }
  std::priority_queue queue(std::greater<uint64_t>(), std::move(candidates));
  const auto consider = [&](int32_t left) {
    if (const auto* merge = find_merge(left)) queue.push(pack(merge->rank, left));
  };
  while (!queue.empty()) {
    const auto rank = static_cast<int32_t>(queue.top() >> 32);
    const auto at = static_cast<int32_t>(queue.top() & UINT32_MAX);
    queue.pop();
    // Skip a stale candidate: one of its symbols has changed since.
    if (symbol(at).id == kNone) continue;
    const MergeTable::Merge* merge = find_merge(at);
    if (merge == nullptr || merge->rank != rank) continue;
    Symbol& left = symbol(at);
    Symbol& right = symbol(left.next);
    left.id = merge->result;
    right.id = kNone;
    left.next = right.next;
    if (left.next != kNone) symbol(left.next).previous = at;
    consider(left.previous);
    consider(at);
  }
  for (int32_t at = n == 0 ? kNone : 0; at != kNone; at = symbol(at).next) {
    ids.push_back(symbol(at).id);
  }
}

}  // namespace specd
