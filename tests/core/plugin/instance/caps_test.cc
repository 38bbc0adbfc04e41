#include "core/plugin/instance/caps.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/core/plugin/bundle_fixture.h"

namespace specd {
namespace {

class Caps : public testing::Test {
 protected:
  static specd_drafter_caps good() {
    static const char* const services[] = {SPECD_SERVICE_MEMORY};
    specd_drafter_caps caps{};
    caps.struct_size = sizeof(caps);
    caps.tree_mode = SPECD_TREE_VARIABLE;
    caps.needs = SPECD_NEED_HIDDEN;
    caps.attach_modes = SPECD_ATTACH_FRESH;
    caps.device_types = 1u << SPECD_DEV_CPU;
    caps.max_nodes = 1024;
    caps.max_depth = 64;
    caps.taps[1] = 2;
    caps.taps[2] = 3;
    caps.n_taps = 3;
    caps.services = services;
    caps.n_services = 1;
    return caps;
  }
  std::string fault(const std::function<void(specd_drafter_caps&)>& edit) {
    specd_drafter_caps caps = good();
    edit(caps);
    return check_caps(caps, target_, *host_, "p").text();
  }

  TestServices services_;
  const specd_host* host_ = make_host(&services_);
  specd_target_info target_ = test_target();
};

TEST_F(Caps, every_field_is_checked) {
  const auto expect = [&](const std::function<void(specd_drafter_caps&)>& edit,
                          const std::string& words) {
    const std::string text = fault(edit);
    EXPECT_NE(text.find(words), std::string::npos) << text << "\nlacks " << words;
  };
  EXPECT_EQ(fault([](specd_drafter_caps&) {}), "");
  expect([](auto& c) { c.struct_size = 0; }, "struct_size = 0");
  expect([](auto& c) { c.tree_mode = 3; }, "tree_mode = 3");
  expect([](auto& c) { c.draft_rule = 3; }, "draft_rule = 3");
  expect([](auto& c) { c.attach_modes = 0; }, "attach_modes = 0");
  expect([](auto& c) { c.attach_modes = 1u << 9; }, "attach_modes = 0");
  expect([](auto& c) { c.device_types = 0; }, "device_types");
  expect([](auto& c) { c.max_nodes = 0; }, "max_nodes = 0");
  expect([](auto& c) { c.max_nodes = 1025; }, "max_nodes = 1025");
  expect([](auto& c) { c.max_depth = 0; }, "max_depth = 0");
  expect([](auto& c) { c.max_depth = 65; }, "max_depth = 65");
  expect([](auto& c) { c.n_taps = 17; }, "n_taps = 17");
  expect([](auto& c) { c.top_k = 65; }, "top_k = 65, expected at most 64");
  expect([](auto& c) { c.n_taps = 0; }, "taps exactly when SPECD_NEED_HIDDEN");
  expect([](auto& c) { c.needs = 0; }, "taps exactly when SPECD_NEED_HIDDEN");
  expect([](auto& c) { c.services = nullptr; }, "n_services = 1");
  expect([](auto& c) { c.n_services = 33; }, "n_services = 33");
  expect(
      [](auto& c) {
        static const char* const absent[] = {nullptr};
        c.services = absent;
      },
      "services = 0");
}

TEST_F(Caps, chain_is_shortened_to_its_depth) {
  specd_drafter_caps caps = good();
  caps.tree_mode = SPECD_TREE_CHAIN;
  caps.max_nodes = 40;
  caps.max_depth = 5;
  ASSERT_TRUE(check_caps(caps, target_, *host_, "p").ok());
  EXPECT_EQ(caps.max_nodes, 5u);
}

TEST_F(Caps, verifier_caps_are_checked) {
  specd_verifier_caps caps{};
  const auto text = [&] { return check_caps(caps, *host_, "p").text(); };
  EXPECT_NE(text().find("struct_size"), std::string::npos);
  caps.struct_size = sizeof(caps);
  caps.tree_modes = 1u << 7;
  EXPECT_NE(text().find("tree_modes = 0"), std::string::npos);
  caps.tree_modes = 1;
  EXPECT_NE(text().find("device_types"), std::string::npos);
  caps.device_types = 1u << SPECD_DEV_CPU;
  caps.guarantee[1] = 4;
  EXPECT_NE(text().find("guarantee[1] = 4"), std::string::npos);
  caps.guarantee[1] = 3;
  EXPECT_EQ(text(), "");
}

TEST_F(Caps, quota_saturates) {
  specd_drafter_caps caps = good();
  caps.bytes_fixed = 10;
  caps.bytes_per_seq = 5;
  EXPECT_EQ(quota_of(caps, 1), 15u);
  EXPECT_EQ(quota_of(caps, 4), 30u);
  caps.bytes_per_seq = UINT64_MAX / 2;
  EXPECT_EQ(quota_of(caps, 4), UINT64_MAX);
}

TEST_F(Caps, quota_beyond_the_memory_is_refused_with_its_numbers) {
  specd_drafter_caps caps = good();
  caps.bytes_fixed = 10;
  caps.bytes_per_seq = 5;
  EXPECT_TRUE(check_quota(caps, 4, 30, "p").ok());
  const Status refused = check_quota(caps, 4, 29, "p");
  EXPECT_EQ(refused.code(), Code::kExhausted);
  for (const char* part : {"p: ", "bytes_fixed = 10", "bytes_per_seq = 5", "4 sequences", "29"})
    EXPECT_NE(refused.text().find(part), std::string::npos) << refused.text();
  caps.bytes_per_seq = UINT64_MAX;
  EXPECT_FALSE(check_quota(caps, 2, UINT64_MAX - 1, "p").ok());
}

}  // namespace
}  // namespace specd
