// The small tokenizers of tests/reference/tokenizer_kinds and what the reference makes with them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/utf8.h"
#include "core/text/tokenizer.h"

namespace specd {

inline const std::vector<std::string>& kind_names() {
  static const std::vector<std::string> names = {
      "qwen", "cased_expression", "gpt2", "llama2_legacy", "metaspace_first", "metaspace_words"};
  return names;
}

inline Json read_kind_file(const std::string& name) {
  const std::string folder = std::string(SPECD_TEST_REFERENCE) + "/tokenizer_kinds/";
  return parse_json_file(folder + name + ".json", 1 << 20).value();
}

struct TokenizerKind {
  Json goldens;
  std::shared_ptr<const Tokenizer> tokenizer;
};

inline const TokenizerKind& tokenizer_kind(const std::string& name) {
  static std::map<std::string, TokenizerKind> kinds;
  auto [found, added] = kinds.try_emplace(name);
  if (added) {
    found->second.goldens = read_kind_file(name);
    found->second.tokenizer =
        Tokenizer::from_text(found->second.goldens["tokenizer"].dump(), name).value();
  }
  return found->second;
}

inline const std::vector<std::string>& kind_texts() {
  static const auto texts = read_kind_file("texts")["texts"].get<std::vector<std::string>>();
  return texts;
}

// A character for each id: U+0080 + id.
inline std::vector<int32_t> unpack_ids(const Json& packed) {
  const auto& text = packed.get_ref<const std::string&>();
  std::vector<int32_t> ids;
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text, at);
    ids.push_back(static_cast<int32_t>(step.code_point) - 0x80);
    at += step.bytes;
  }
  return ids;
}

}  // namespace specd
