#include "core/request/choices.h"

#include <gtest/gtest.h>

#include <vector>

namespace specd {
namespace {

Event text(std::vector<int32_t> tokens, std::vector<float> logprobs = {}) {
  Event event;
  event.tokens = std::move(tokens);
  for (const int32_t token : event.tokens) event.text += static_cast<char>('a' + token);
  event.logprobs.token = std::move(logprobs);
  return event;
}
Event ended(Event event, FinishReason finish, int32_t completion_tokens = 0) {
  event.done = true;
  event.finish = finish;
  event.usage.prompt_tokens = 7;
  event.usage.completion_tokens = completion_tokens;
  if (finish == FinishReason::kError) event.error = Status(Code::kInternal, "broken");
  return event;
}

struct Client {
  std::vector<Event> events;
  std::vector<Sink> sinks;

  explicit Client(const Request& request)
      : sinks(choice_sinks(request, [this](const Event& event) {
          ASSERT_TRUE(events.empty() || !events.back().done) << "an event after the last one";
          events.push_back(event);
        })) {}
};

TEST(Choices, come_as_they_are_written_and_the_last_event_sums_what_they_used) {
  Request request;
  request.n = 2;
  Client client(request);
  ASSERT_EQ(client.sinks.size(), 2u);
  client.sinks[1](text({1}));
  client.sinks[0](ended(text({2, 3}), FinishReason::kStop, 2));
  client.sinks[1](ended(text({4}), FinishReason::kLength, 2));
  ASSERT_EQ(client.events.size(), 3u);
  EXPECT_EQ(client.events[0].index, 1);
  EXPECT_EQ(client.events[0].finish, FinishReason::kNone);
  EXPECT_EQ(client.events[1].index, 0);
  EXPECT_EQ(client.events[1].text, "cd");
  EXPECT_EQ(client.events[1].finish, FinishReason::kStop);
  EXPECT_FALSE(client.events[1].done) << "the other choice goes on";
  EXPECT_TRUE(client.events[2].done);
  EXPECT_EQ(client.events[2].finish, FinishReason::kLength);
  EXPECT_EQ(client.events[2].usage.prompt_tokens, 7) << "of the one prompt";
  EXPECT_EQ(client.events[2].usage.completion_tokens, 4);
}

// Means are -1.5, -0.5, -2 and -0.5 again.
TEST(Choices, the_best_come_best_first_when_all_have_ended) {
  Request request;
  request.n = 3;
  request.best_of = 4;
  Client client(request);
  client.sinks[1](text({1}, {-0.75f}));
  client.sinks[0](ended(text({0, 0}, {-1, -2}), FinishReason::kStop));
  client.sinks[3](ended(text({3}, {-0.5f}), FinishReason::kStop));
  client.sinks[2](ended(text({2}, {-2}), FinishReason::kLength));
  EXPECT_TRUE(client.events.empty());
  client.sinks[1](ended(text({1}, {-0.25f}), FinishReason::kLength));
  ASSERT_EQ(client.events.size(), 3u);
  EXPECT_EQ(client.events[0].text, "bb");
  EXPECT_EQ(client.events[0].finish, FinishReason::kLength);
  EXPECT_EQ(client.events[1].text, "d") << "the lower index first on ties";
  EXPECT_EQ(client.events[2].text, "aa");
  for (int i = 0; i < 3; ++i) {
    const Event& event = client.events[static_cast<size_t>(i)];
    EXPECT_EQ(event.index, i);
    EXPECT_EQ(event.done, i == 2);
    EXPECT_TRUE(event.logprobs.token.empty()) << "the client asked for none";
  }
}

TEST(Choices, one_that_fails_ends_the_request_with_its_error_once_the_others_have_stopped) {
  for (const int32_t best_of : {3, 5}) {
    Request request;
    request.n = 3;
    request.best_of = best_of;
    Client client(request);
    for (size_t i = 0; i + 1 < client.sinks.size(); ++i) {
      client.sinks[i](ended(text({}), i == 0 ? FinishReason::kError : FinishReason::kCancelled));
      EXPECT_TRUE(client.events.empty() || !client.events.back().done);
    }
    client.sinks.back()(ended(text({1}, {-1}), FinishReason::kStop));
    ASSERT_EQ(client.events.size(), 1u);
    EXPECT_TRUE(client.events[0].done);
    EXPECT_EQ(client.events[0].finish, FinishReason::kError) << "the first reason";
    EXPECT_EQ(client.events[0].error.message(), "broken");
    EXPECT_TRUE(client.events[0].tokens.empty());
  }
}

TEST(Choices, a_single_one_goes_straight_to_the_client) {
  Client client(Request{});
  ASSERT_EQ(client.sinks.size(), 1u);
  client.sinks[0](ended(text({1}), FinishReason::kError));
  ASSERT_EQ(client.events.size(), 1u);
  EXPECT_EQ(client.events[0].tokens, std::vector<int32_t>{1});
  EXPECT_EQ(client.events[0].error.message(), "broken");
}

}  // namespace
}  // namespace specd
