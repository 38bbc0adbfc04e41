#include "core/base/status.h"

#include <gtest/gtest.h>

namespace specd {
namespace {

TEST(Status, shows_code_field_and_message) {
  const Status plain(Code::kExhausted, "no pages");
  EXPECT_EQ(plain.to_string(), "RESOURCE_EXHAUSTED: no pages");
  EXPECT_EQ(plain.text(), "no pages");
  const Status status(Code::kInvalidArgument, "max_tokens", "expected 1, found 0");
  EXPECT_EQ(status.to_string(), "INVALID_ARGUMENT: max_tokens: expected 1, found 0");
  EXPECT_EQ(status.text(), "max_tokens: expected 1, found 0");
  EXPECT_EQ(Status().to_string(), "OK");
}

TEST(Status, a_field_gets_its_parents_and_the_message_its_context) {
  const auto field = [](const char* own, const char* parent) {
    return Status(Code::kNotFound, own, "x").in_field(parent).field();
  };
  EXPECT_EQ(field("n", "drafter.config"), "drafter.config.n");
  EXPECT_EQ(field("[0]", "devices"), "devices[0]");
  EXPECT_EQ(field("", "drafter"), "drafter");
  EXPECT_EQ(field("n", ""), "n");
  EXPECT_EQ(Status(Code::kNotFound, "n", "x").with_context("plugin 'p'"),
            Status(Code::kNotFound, "n", "plugin 'p': x"));
  EXPECT_TRUE(Status().in_field("n").ok());
  EXPECT_TRUE(Status().with_context("n").ok());
  EXPECT_EQ(Result<int>(Status(Code::kNotFound, "x")).in_field("n").status().field(), "n");
  EXPECT_EQ(Result<int>(7).in_field("n").value(), 7);
}

}  // namespace
}  // namespace specd
