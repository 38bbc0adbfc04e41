#include "core/text/decoder.h"

#include <utility>

#include "core/base/quote.h"
#include "core/base/utf8.h"
#include "core/text/byte_level.h"
#include "core/text/normalizer.h"
#include "core/text/tokenizer_json.h"

namespace specd {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";
constexpr size_t kGrowthMax = 16;
constexpr size_t kGrowthFree = 64;
constexpr int64_t kStripMax = 1000;

bool is_one_character(std::string_view text) {
  return !text.empty() && utf8_step(text, 0).bytes == text.size();
}

void strip_left(const std::string& content, size_t& count, std::string_view& text) {
  while (count > 0 && !text.empty()) {
    if (!text.starts_with(content)) {
      count = 0;
      return;
    }
    text.remove_prefix(content.size());
    --count;
  }
}

// The byte of "<0x0A>". The two digits may have either case; as in Rust's parser, one may be a plus
// sign.
int byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  const int low = digit(token[4]);
  const int high = token[3] == '+' ? 0 : digit(token[3]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

Result<Decoder> Decoder::from_json(const Json& decoder, const std::string& where) {
  Decoder made;
  SPECD_OK_OR_RETURN(made.read(decoder, where));
  return made;
}

Status Decoder::read(const Json& decoder, const std::string& where) {
  const auto unsupported = [&](const std::string& why) {
    return Status(Code::kUnsupported,
                  where + ": found " + quote(decoder.dump(-1, ' ', true)) + ", " + why);
  };
  const std::string supported =
      "supported: ByteLevel, Metaspace, or a Sequence of Metaspace, Replace, Strip, ByteFallback, "
      "Fuse, Strip in this order";
  if (decoder.is_null()) return unsupported(supported);
  SPECD_TRY(const std::string type, json_string(decoder, "type", where));
  if (type == "Sequence") {
    const auto list = decoder.find("decoders");
    if (list == decoder.end() || !list->is_array()) {
      return Status(Code::kDataLoss, where + ".decoders: expected a list");
    }
    int index = 0;
    for (const Json& step : *list) {
      SPECD_OK_OR_RETURN(read(step, where + ".decoders[" + std::to_string(index++) + "]"));
    }
    return Status();
  }
  const bool joined = fused_ || byte_level_;
  if (per_token_.size() + after_fuse_.size() >= kStepsMax) return unsupported("too many steps");
  if (type == "Strip") {
    Strip strip;
    SPECD_TRY(strip.content, json_string(decoder, "content", where));
    SPECD_TRY(const int64_t start, json_int(decoder, "start", 0, kStripMax, where));
    SPECD_TRY(const int64_t stop, json_int(decoder, "stop", 0, kStripMax, where));
    if (!is_one_character(strip.content)) {
      return Status(Code::kDataLoss, where + ".content: expected one character");
    }
    if (stop != 0) return unsupported("supported: \"stop\": 0");
    if (byte_fallback_ && !joined) return unsupported(supported);
    strip.count = static_cast<size_t>(start);
    if (joined) {
      after_fuse_.push_back(std::move(strip));
    } else {
      per_token_.emplace_back(std::move(strip));
    }
    return Status();
  }
  if (type == "Fuse") {
    fused_ = true;  // a second Fuse changes nothing
    return Status();
  }
  if (joined || byte_fallback_) return unsupported(supported);
  if (type == "ByteFallback") {
    byte_fallback_ = true;
    return Status();
  }
  if (type == "ByteLevel") {
    byte_level_ = true;
    return Status();
  }
  if (type == "Replace") {
    SPECD_TRY(auto parts, read_replace(decoder, where));
    per_token_.emplace_back(Replace{std::move(parts.first), std::move(parts.second)});
    return Status();
  }
  if (type == "Metaspace" && metaspace_.empty() && per_token_.empty()) {
    SPECD_TRY(metaspace_, json_string(decoder, "replacement", where));
    SPECD_TRY(const std::string scheme, json_string_or(decoder, "prepend_scheme", "always", where));
    SPECD_TRY(const bool add_prefix, json_bool_or(decoder, "add_prefix_space", true, where));
    if (!is_one_character(metaspace_) ||
        (scheme != "first" && scheme != "always" && scheme != "never") ||
        (!add_prefix && scheme != "never")) {
      return Status(Code::kDataLoss, where +
                                         ": expected one character as replacement and a "
                                         "prepend_scheme of first, always or never");
    }
    metaspace_strips_first_ = scheme != "never";
    return Status();
  }
  return unsupported(supported);
}

Result<Decoder::Piece> Decoder::piece(std::string_view token, bool first,
                                      StepBudget& budget) const {
  std::string text(token);
  const size_t bytes_max = token.size() * kGrowthMax + kGrowthFree;
  if (!metaspace_.empty()) {
    std::string spaced;
    for (size_t at = 0; at < text.size();) {
      if (text.compare(at, metaspace_.size(), metaspace_) == 0) {
        if (!first || !metaspace_strips_first_) spaced += ' ';
        at += metaspace_.size();
      } else {
        spaced += text[at++];
      }
    }
    text = std::move(spaced);
  }
  for (const auto& step : per_token_) {
    if (const auto* strip = std::get_if<Strip>(&step)) {
      size_t count = strip->count;
      std::string_view rest = text;
      strip_left(strip->content, count, rest);
      text = std::string(rest);
      continue;
    }
    const auto& [pattern, content] = std::get<Replace>(step);
    std::vector<Pattern::Part> parts;
    SPECD_OK_OR_RETURN(pattern.cut(text, budget, parts));
    std::string replaced;
    for (const Pattern::Part& part : parts) {
      replaced += part.is_match ? content : text.substr(part.begin, part.end - part.begin);
      if (replaced.size() > bytes_max) {
        return Status(Code::kUnsupported, "the decoder makes the token " + quote(token) +
                                              " more than " + std::to_string(kGrowthMax) +
                                              " times as long");
      }
    }
    text = std::move(replaced);
  }
  Piece piece;
  if (byte_level_) {
    piece.bytes = byte_level_bytes(text);
  } else if (const int byte = byte_fallback_ ? byte_of_token(text) : -1; byte >= 0) {
    piece.bytes = static_cast<char>(byte);
    piece.is_byte = true;
  } else {
    piece.bytes = std::move(text);
  }
  return piece;
}

DecodeStream::DecodeStream(const Decoder& decoder) : decoder_(&decoder) {
  for (const Decoder::Strip& strip : decoder.after_fuse_) strips_left_.push_back(strip.count);
}

void DecodeStream::push(std::string_view bytes, bool is_byte, std::string& text) {
  if (is_byte) return push_byte(bytes[0], text);
  end_run(text);
  if (!decoder_->byte_level_) return emit(bytes, text);
  std::string joined;
  waiting_ += bytes;
  waiting_.erase(0, utf8_append_lossy(waiting_, false, joined));
  emit(joined, text);
}

void DecodeStream::push_byte(char byte, std::string& text) {
  if (broken_run_) return emit(kReplacementCharacter, text);
  waiting_ += byte;
  while (whole_ < waiting_.size()) {
    const Utf8Step step = utf8_step(waiting_, whole_);
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    if (step.kind == Utf8Step::Kind::kInvalid) {
      broken_run_ = true;
      return replace_waiting(text);
    }
    whole_ += step.bytes;
  }
  if (waiting_.size() < kRunBytesMax) return;
  emit(std::string_view(waiting_).substr(0, whole_), text);
  waiting_.erase(0, whole_);
  whole_ = 0;
}

void DecodeStream::replace_waiting(std::string& text) {
  for (size_t i = 0; i < waiting_.size(); ++i) emit(kReplacementCharacter, text);
  waiting_.clear();
  whole_ = 0;
}

void DecodeStream::end_run(std::string& text) {
  if (decoder_->byte_level_) return;
  broken_run_ = false;
  if (whole_ != waiting_.size()) return replace_waiting(text);
  emit(waiting_, text);
  waiting_.clear();
  whole_ = 0;
}

void DecodeStream::flush(std::string& text) {
  std::string joined;
  if (decoder_->byte_level_) {
    utf8_append_lossy(waiting_, true, joined);
    waiting_.clear();
    emit(joined, text);
  }
  end_run(text);
  *this = DecodeStream(*decoder_);
}

void DecodeStream::emit(std::string_view joined, std::string& text) {
  for (size_t i = 0; i < strips_left_.size(); ++i) {
    strip_left(decoder_->after_fuse_[i].content, strips_left_[i], joined);
  }
  text += joined;
}

}  // namespace specd
