#include "core/text/byte_bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>

#include "core/base/quote.h"
#include "core/text/utf8.h"

namespace specd {
namespace {

constexpr int32_t kNone = -1;

uint64_t pack(int32_t high, int32_t low) {
  return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
}

// Byte of a character of GPT-2's alphabet: 33-126, 161-172, 174-255 stand for themselves, the other
// 68 bytes in increasing order are U+0100 to U+0143.
constexpr size_t kAlphabetEnd = 0x144;
const std::array<int16_t, kAlphabetEnd>& alphabet() {
  static const std::array<int16_t, kAlphabetEnd> table = [] {
    std::array<int16_t, kAlphabetEnd> made{};
    made.fill(kNone);
    int16_t next = 0x100;
    for (int16_t byte = 0; byte < 256; ++byte) {
      const bool itself =
          (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      made[static_cast<size_t>(itself ? byte : next++)] = byte;
    }
    return made;
  }();
  return table;
}

// The vocabulary as the file spells it; views into the Json.
using IdsByText = std::unordered_map<std::string_view, int32_t>;

Result<IdsByText> read_vocab(const Json& model, int64_t id_end, const std::string& where) {
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_object()) {
    return Status(Code::kDataLoss, where + ".vocab: expected an object of token ids");
  }
  IdsByText ids;
  ids.reserve(vocab->size());
  std::vector<bool> used(static_cast<size_t>(id_end));
  for (auto entry = vocab->begin(); entry != vocab->end(); ++entry) {
    const Json& value = entry.value();
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(id_end)) {
      return Status(Code::kDataLoss, where + ".vocab: " + quote(entry.key()) +
                                         ": expected an id below " + std::to_string(id_end) +
                                         ", found " + quote(value.dump(-1, ' ', true)));
    }
    const auto id = value.get<int32_t>();
    if (used[static_cast<size_t>(id)]) {
      return Status(Code::kDataLoss, where + ".vocab: " + quote(entry.key()) + ": the id " +
                                         std::to_string(id) + " belongs to another token too");
    }
    used[static_cast<size_t>(id)] = true;
    ids.emplace(entry.key(), id);
  }
  return ids;
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

Status check_options(const Json& model, const std::string& where) {
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
  // unk_token, fuse_unk and byte_fallback speak of characters without a token; there are none.
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

}  // namespace

std::string byte_level_bytes(std::string_view token_text) {
  std::string bytes;
  for (size_t at = 0; at < token_text.size();) {
    const Utf8Step step = utf8_step(token_text, at);
    const bool inside = step.kind == Utf8Step::Kind::kValid && step.code_point < kAlphabetEnd &&
                        alphabet()[step.code_point] != kNone;
    if (!inside) return std::string(token_text);
    bytes += static_cast<char>(alphabet()[step.code_point]);
    at += step.bytes;
  }
  return bytes;
}

Result<ByteBpe> ByteBpe::from_json(const Json& model, int64_t id_end, const std::string& where) {
  if (!model.is_object()) return Status(Code::kDataLoss, where + ": expected an object");
  SPECD_OK_OR_RETURN(check_options(model, where));
  ByteBpe bpe;
  SPECD_TRY(bpe.ignore_merges_, json_bool_or(model, "ignore_merges", false, where));
  SPECD_TRY(const IdsByText ids, read_vocab(model, id_end, where));

  int32_t id_max = kNone;
  for (const auto& [text, id] : ids) id_max = std::max(id_max, id);
  bpe.token_bytes_.resize(static_cast<size_t>(id_max + 1));
  std::fill(std::begin(bpe.byte_ids_), std::end(bpe.byte_ids_), kNone);
  for (const auto& [text, id] : ids) {
    std::string bytes = byte_level_bytes(text);
    // A text outside the alphabet can never equal a piece; its bytes are only for decoding.
    const bool in_alphabet = bytes != text || std::all_of(text.begin(), text.end(), [](char c) {
                               return c >= 33 && c <= 126;
                             });
    if (in_alphabet && bytes.size() == 1) bpe.byte_ids_[static_cast<unsigned char>(bytes[0])] = id;
    if (in_alphabet && bpe.ignore_merges_) bpe.whole_pieces_.emplace(bytes, id);
    bpe.token_bytes_[static_cast<size_t>(id)] = std::move(bytes);
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (bpe.byte_ids_[byte] == kNone) {
      return Status(Code::kUnsupported, where + ".vocab: no token for the byte " +
                                            std::to_string(byte) +
                                            "; supported: vocabularies with all 256 bytes");
    }
  }

  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) {
    return Status(Code::kDataLoss, where + ".merges: expected a list of pairs");
  }
  bpe.merges_.reserve(merges->size());
  int32_t rank = 0;
  std::string joined;
  for (const Json& entry : *merges) {
    const std::string at = where + ".merges[" + std::to_string(rank) + "]";
    std::string_view left;
    std::string_view right;
    if (!split_merge(entry, left, right)) {
      return Status(Code::kDataLoss,
                    at + ": expected \"left right\" or [\"left\", \"right\"], found " +
                        quote(entry.dump(-1, ' ', true)));
    }
    joined.assign(left).append(right);
    const auto left_id = ids.find(left);
    const auto right_id = ids.find(right);
    const auto joined_id = ids.find(joined);
    for (const auto& [found, text] : {std::pair{left_id, left}, std::pair{right_id, right},
                                      std::pair{joined_id, std::string_view(joined)}}) {
      if (found == ids.end()) {
        return Status(Code::kDataLoss, at + ": " + quote(text) + " is not in the vocabulary");
      }
    }
    bpe.merges_[pack(left_id->second, right_id->second)] = Merge{rank, joined_id->second};
    ++rank;
  }
  return bpe;
}

void ByteBpe::encode_piece(std::string_view piece, std::vector<int32_t>& ids) const {
  if (ignore_merges_) {
    if (const auto whole = whole_pieces_.find(std::string(piece)); whole != whole_pieces_.end()) {
      ids.push_back(whole->second);
      return;
    }
  }
  SPECD_CHECK(piece.size() < static_cast<size_t>(std::numeric_limits<int32_t>::max()),
              "piece of " + std::to_string(piece.size()) + " bytes");
  // Symbols are a linked list over positions; a symbol merged into its left neighbour has no id.
  struct Symbol {
    int32_t id;
    int32_t previous;
    int32_t next;
  };
  const auto n = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(piece.size());
  for (int32_t i = 0; i < n; ++i) {
    symbols[static_cast<size_t>(i)] = {byte_ids_[static_cast<unsigned char>(piece[i])], i - 1,
                                       i + 1 == n ? kNone : i + 1};
  }
  const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto find_merge = [&](int32_t left) -> const Merge* {
    if (left == kNone || symbol(left).next == kNone) return nullptr;
    const auto found = merges_.find(pack(symbol(left).id, symbol(symbol(left).next).id));
    return found == merges_.end() ? nullptr : &found->second;
  };

  // Candidates, least rank first, then leftmost: rank << 32 | position of the left symbol.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;
  const auto consider = [&](int32_t left) {
    if (const Merge* merge = find_merge(left)) queue.push(pack(merge->rank, left));
  };
  for (int32_t i = 0; i + 1 < n; ++i) consider(i);
  while (!queue.empty()) {
    const auto rank = static_cast<int32_t>(queue.top() >> 32);
    const auto at = static_cast<int32_t>(queue.top() & UINT32_MAX);
    queue.pop();
    // Stale when one of the two symbols has changed since.
    if (symbol(at).id == kNone) continue;
    const Merge* merge = find_merge(at);
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
