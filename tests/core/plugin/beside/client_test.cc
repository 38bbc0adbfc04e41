#include "core/plugin/beside/client.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/core/plugin/beside/driver.h"

namespace specd {
namespace {

constexpr size_t kRing = size_t{1} << 16;

struct RingBlock {
  std::vector<RingHeader> memory = std::vector<RingHeader>(2 + kRing / sizeof(RingHeader));
  RingHeader& header() { return memory[0]; }
};

// The step's end alone; the test is the drafter.
struct Alone {
  RingBlock requests, replies;
  RingWriter answers{replies.header(), kRing};
  RingReader reader{replies.header(), kRing};
  int n_called = 0;
  CallShape shape{.max_batch = 4,
                  .node_capacity = kNodes,
                  .vocab_size = 1000,
                  .sends_parents = true,
                  .sends_flags = true};
  DrafterClient client{"hostile",
                       shape,
                       {.wait_ns = 20'000, .hang_ns = 60 * kSecondNs},
                       RingWriter(requests.header(), kRing),
                       &reader,
                       {.on_called = [this](CallKind, const Status&, uint64_t) { ++n_called; }}};

  void answer(const std::vector<std::byte>& bytes) {
    std::byte* const to = answers.reserve(bytes.size());
    ASSERT_NE(to, nullptr);
    std::memcpy(to, bytes.data(), bytes.size());
    answers.publish();
  }
  // Two sequences with two nodes each.
  std::vector<std::byte> proposals(uint64_t number) const {
    const std::string text = "a reason";
    const ReplyHead head{.kind = CallKind::kPropose,
                         .number = number,
                         .was_called = 1,
                         .n_seqs = 2,
                         .text_bytes = static_cast<uint32_t>(text.size())};
    const ReplyLayout at(head, shape);
    std::vector<std::byte> bytes(at.bytes);
    std::memcpy(bytes.data(), &head, sizeof(head));
    for (uint32_t s = 0; s < 2; ++s) {
      const ReplySequence its{.seq_id = s + 1, .slot = s, .n_nodes = 2};
      std::memcpy(bytes.data() + at.sequences + s * sizeof(its), &its, sizeof(its));
      const int32_t tokens[2] = {7, 8}, parents[2] = {-1, 0};
      std::memcpy(bytes.data() + at.token + s * kNodes * 4, tokens, sizeof(tokens));
      std::memcpy(bytes.data() + at.parent + s * kNodes * 4, parents, sizeof(parents));
    }
    std::memcpy(bytes.data() + at.text, text.data(), text.size());
    return bytes;
  }
};

TEST(DrafterClient, an_answer_becomes_the_proposals_of_its_sequences) {
  Alone alone;
  Driver driver(alone.client);
  driver.begin(0, 1, {1, 2});
  driver.begin(1, 2, {3});
  driver.asks_first = false;
  alone.answer(alone.proposals(3));  // begin, begin, propose
  EXPECT_EQ(driver.propose(4, true, true),
            "1 SPECD_OK (0): 7<-1!0 8<0!0\n2 SPECD_OK (0): 7<-1!0 8<0!0\n");
}

// Memory is checked by the sanitizer that this runs under.
TEST(DrafterClient, a_hostile_answer_costs_drafts_and_nothing_else) {
  std::mt19937_64 random(6);
  int n_drafts = 0, n_late = 0;
  for (int i = 0; i < 800; ++i) {
    Alone alone;
    Driver driver(alone.client);
    driver.begin(0, 1, {1, 2});
    driver.begin(1, 2, {3});
    driver.asks_first = false;
    std::vector<std::byte> bytes = alone.proposals(3);
    const int kind = i % 4;
    if (kind == 0) {  // a word becomes anything
      const auto value = static_cast<uint32_t>(random() % 2 == 0 ? random() : random() % 16);
      std::memcpy(bytes.data() + random() % (bytes.size() / 4) * 4, &value, sizeof(value));
    } else if (kind == 1) {  // shorter or longer
      bytes.resize(1 + random() % (2 * bytes.size()));
    } else if (kind == 2) {  // not even alike
      for (std::byte& each : bytes) each = static_cast<std::byte>(random());
    } else {  // another call, with sequences that nobody asked about
      ReplyHead head;
      std::memcpy(&head, bytes.data(), sizeof(head));
      head.kind = static_cast<CallKind>(random() % 6);
      head.number = random() % 6;
      std::memcpy(bytes.data(), &head, sizeof(head));
      const auto slot = static_cast<uint32_t>(random());
      std::memcpy(bytes.data() + sizeof(head) + offsetof(ReplySequence, slot), &slot, 4);
    }
    alone.answer(bytes);
    Status status;
    const std::string drafts = driver.propose(4, true, true, &status);
    EXPECT_TRUE(status.ok() || drafts.empty());
    n_drafts += drafts.find("7<") != std::string::npos ? 1 : 0;
    n_late += status.code() == Code::kDeadlineExceeded ? 1 : 0;
    (void)driver.take_losses();
  }
  EXPECT_GT(n_drafts, 100) << "a token that is wrong is for who checks the trees";
  EXPECT_GT(n_late, 200);
}

TEST(DrafterClient, a_ring_that_somebody_else_wrote_is_told_apart_from_a_late_answer) {
  {
    Alone alone;
    alone.replies.header().written = 12345;
    EXPECT_EQ(alone.client.take_answers().code(), Code::kDataLoss);
  }
  Alone alone;
  Driver driver(alone.client);
  driver.begin(0, 1, {1, 2});
  EXPECT_TRUE(alone.client.take_answers().ok());
  alone.requests.header().read = uint64_t{1} << 40;
  EXPECT_EQ(alone.client.take_answers().code(), Code::kDataLoss);
}

TEST(DrafterClient, answers_without_end_do_not_keep_the_step) {
  Alone alone;
  const ReplyHead head{.kind = CallKind::kUpdate, .was_called = 1};
  std::vector<std::byte> bytes(sizeof(head));
  std::memcpy(bytes.data(), &head, sizeof(head));
  for (int i = 0; i < 1000; ++i) alone.answer(bytes);
  EXPECT_TRUE(alone.client.take_answers().ok());
  EXPECT_LT(alone.n_called, 1000);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(alone.client.take_answers().ok());
  EXPECT_EQ(alone.n_called, 1000);
}

}  // namespace
}  // namespace specd
