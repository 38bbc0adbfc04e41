#include "core/base/failpoint.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <thread>

namespace specd {
namespace {

#ifdef SPECD_FAILPOINTS

class Failpoints : public testing::Test {
 protected:
  static bool set(const std::string& text) {
    const Status status = set_failpoints(text);
    EXPECT_TRUE(status.ok()) << status.text();
    return status.ok();
  }
  static std::string refusal(const std::string& text) {
    const Status status = set_failpoints(text);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_EQ(status.field(), "SPECD_FAILPOINTS");
    return status.message();
  }
  static bool writes() { return !SPECD_FAILS(kJournalWrite, ENOSPC); }
  ~Failpoints() override { set(""); }
};

TEST_F(Failpoints, do_nothing_until_one_is_set) {
  EXPECT_TRUE(writes());
  set("route.flip=fail");
  EXPECT_TRUE(writes());
  EXPECT_EQ(n_reached(Failpoint::kJournalWrite), 1u);
}

TEST_F(Failpoints, fail_every_time_or_at_one_with_the_error_of_the_place) {
  set("journal.write=fail");
  for (int i = 0; i < 3; ++i) {
    errno = 0;
    EXPECT_FALSE(writes());
    EXPECT_EQ(errno, ENOSPC);
  }
  set("journal.write=fail@2;route.flip=fail");
  EXPECT_TRUE(writes());
  EXPECT_FALSE(writes());
  EXPECT_TRUE(writes());
  EXPECT_EQ(n_reached(Failpoint::kJournalWrite), 3u);
  set("");
  EXPECT_TRUE(writes());
}

TEST_F(Failpoints, block_until_others_are_set) {
  set("step.begin=block@1");
  std::thread blocked([] { SPECD_FAILPOINT(kStepBegin); });
  while (n_blocked(Failpoint::kStepBegin) == 0) std::this_thread::yield();
  SPECD_FAILPOINT(kStepBegin);  // the second time
  set("");
  blocked.join();
}

TEST_F(Failpoints, sleep_as_long_as_was_said) {
  set("step.begin=sleep 20");
  const auto begin = std::chrono::steady_clock::now();
  SPECD_FAILPOINT(kStepBegin);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(20));
}

TEST_F(Failpoints, end_the_process) {
  set("step.begin=crash@2");
  EXPECT_EXIT(
      {
        SPECD_FAILPOINT(kStepBegin);
        SPECD_FAILPOINT(kStepBegin);
      },
      testing::KilledBySignal(SIGKILL), "");
}

TEST_F(Failpoints, that_do_not_exist_are_refused_with_the_list_and_change_nothing) {
  set("journal.write=fail");
  EXPECT_NE(refusal("step.begin=block;journal.wriet=fail")
                .find("'journal.wriet=fail': no failpoint is called 'journal.wriet'; did you mean "
                      "'journal.write'?"),
            std::string::npos);
  for (const char* bad : {"journal.write", "journal.write=", "journal.write=fall",
                          "journal.write=sleep", "journal.write=sleep x", "journal.write=sleep 0"})
    EXPECT_NE(refusal(bad).find("expected NAME=ACTION"), std::string::npos) << bad;
  for (const char* bad : {"journal.write=fail@", "journal.write=fail@0", "journal.write=fail@1x"})
    EXPECT_NE(refusal(bad).find("expected a number from 1"), std::string::npos) << bad;
  EXPECT_NE(refusal("step.begin=fail").find("this place cannot fail"), std::string::npos);
  EXPECT_FALSE(writes());
}

#else

TEST(Failpoints, are_refused_by_a_build_without_them) {
  EXPECT_TRUE(set_failpoints_of_environment().ok());
  setenv("SPECD_FAILPOINTS", "", 1);
  const Status refused = set_failpoints_of_environment();
  unsetenv("SPECD_FAILPOINTS");
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.text(),
            "SPECD_FAILPOINTS: this build has no failpoints; unset the variable, or build with "
            "-DSPECD_FAILPOINTS=ON, for tests only");
}

TEST(Failpoints, are_nothing_in_a_build_without_them) {
  static_assert(!SPECD_FAILS(kJournalWrite, ENOSPC));
  SPECD_FAILPOINT(kStepBegin);
}

#endif

}  // namespace
}  // namespace specd
