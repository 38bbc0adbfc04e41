#include "core/base/sha256.h"

#include <gtest/gtest.h>

#include "core/base/quote.h"

namespace specd {
namespace {

TEST(Sha256, equals_the_published_examples) {
  EXPECT_EQ(to_hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, pieces_make_the_same_digest) {
  const std::string text(1000, 'x');
  Sha256 hash;
  for (size_t at = 0; at < text.size(); at += 7) {
    const std::string_view piece = std::string_view(text).substr(at, 7);
    hash.update(std::as_bytes(std::span<const char>(piece.data(), piece.size())));
  }
  EXPECT_EQ(hash.finish(), sha256(text));
}

TEST(Quote, makes_text_from_outside_harmless) {
  EXPECT_EQ(quote("a b"), "'a b'");
  EXPECT_EQ(quote(std::string("a\n\0\x7F", 4)), "'a\\x0a\\x00\\x7f'");
  EXPECT_EQ(quote("abcdef", 3), "'abc'... (6 bytes)");
  EXPECT_EQ(quote("ab\u00e9", 3), "'ab'... (4 bytes)");  // not inside a character
}

}  // namespace
}  // namespace specd
