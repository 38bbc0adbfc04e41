#include "core/plugin/process/shared_rings.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "core/plugin/process/shadow_reports.h"

namespace specd {
namespace {

constexpr size_t kRing = 1 << 14;

TEST(SharedRings, the_other_end_sees_the_messages_and_cannot_take_the_pages_away) {
  const auto ours = SharedRings::make(kRing, kRing).value();
  const int file = ours->file();
  EXPECT_NE(ftruncate(file, 0), 0) << "a file that shrinks would be SIGBUS here";
  EXPECT_NE(ftruncate(file, 1 << 20), 0);
  const auto theirs = SharedRings::map(FileDescriptor(dup(file)), kRing, kRing).value();
  RingWriter writer(ours->requests(), kRing);
  std::memcpy(writer.reserve(5), "hello", 5);
  writer.publish();
  RingReader reader(theirs->requests(), kRing);
  EXPECT_EQ(reader.front().size(), 5u);
  EXPECT_EQ(std::memcmp(reader.front().data(), "hello", 5), 0);
  EXPECT_EQ(SharedRings::map(FileDescriptor(dup(file)), kRing, 2 * kRing).status().code(),
            Code::kDataLoss);
  EXPECT_FALSE(SharedRings::map(FileDescriptor(), kRing, kRing).ok());
}

struct Told final : ShadowObserver {
  std::string text;
  void called(CallKind kind, const Status& status, uint64_t took_ns) override {
    text += "called " + std::to_string(static_cast<int>(kind)) + " " + status.message() + " " +
            std::to_string(took_ns) + ";";
  }
  void lost(uint32_t n, const std::string& why) override {
    text += "lost " + std::to_string(n) + " " + why + ";";
  }
  void refused(uint32_t n, const std::string& defect) override {
    text += "refused " + std::to_string(n) + " " + defect + ";";
  }
  void scored(int32_t n_nodes, int32_t n_accepted) override {
    text += "scored " + std::to_string(n_nodes) + " " + std::to_string(n_accepted) + ";";
    EXPECT_LE(n_accepted, n_nodes);
    EXPECT_GE(n_accepted, 0);
    EXPECT_LE(n_nodes, 8);
  }
};
constexpr ShadowReportLimits kLimits{.max_batch = 4, .node_capacity = 8, .max_depth = 4};

TEST(ShadowReports, what_an_observer_is_told_there_is_told_here) {
  const auto rings = SharedRings::make(kRing, kRing).value();
  RingWriter writer(rings->replies(), kRing);
  RingReader reader(rings->replies(), kRing);
  const std::atomic<bool> stop{false};
  ShadowReportWriter there(writer, stop);
  there.called(CallKind::kBegin, Status(), 7);
  there.called(CallKind::kPropose, Status(Code::kInternal, "broken"), 8);
  there.lost(2, "why");
  there.refused(3, "defect");
  there.scored(8, 3);
  Told here;
  int n_answered = 0;
  take_shadow_reports(reader, kLimits, here,
                      [&](CallKind, const Status&, uint64_t) { ++n_answered; });
  EXPECT_EQ(here.text, "called 1  7;called 3 broken 8;lost 2 why;refused 3 defect;scored 8 3;");
  EXPECT_EQ(n_answered, 2);
}

TEST(ShadowReports, one_that_is_not_read_ends_when_it_is_told_to) {
  const auto rings = SharedRings::make(kRing, kRing).value();
  RingWriter writer(rings->replies(), kRing);
  const std::atomic<bool> stop{true};
  ShadowReportWriter there(writer, stop);
  for (int i = 0; i < 10000; ++i) there.scored(1, 1);
}

TEST(ShadowReports, those_of_a_hostile_process_are_left_out) {
  std::mt19937 random(1);
  const std::atomic<bool> stop{true};
  for (int round = 0; round < 300; ++round) {
    const auto rings = SharedRings::make(kRing, kRing).value();
    RingWriter writer(rings->replies(), kRing);
    ShadowReportWriter there(writer, stop);
    there.called(CallKind::kUpdate, Status(Code::kInternal, "text"), 1);
    there.scored(8, 4);
    // Whatever lies in the ring, or says where its messages end.
    auto* const bytes = reinterpret_cast<unsigned char*>(&rings->replies());
    for (int i = 0; i < 20; ++i)
      bytes[random() % (sizeof(RingHeader) + 256)] = static_cast<unsigned char>(random());
    RingReader reader(rings->replies(), kRing);
    Told here;
    take_shadow_reports(reader, kLimits, here, {});
  }
}

}  // namespace
}  // namespace specd
