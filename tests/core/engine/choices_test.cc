// Several texts for one prompt: those of single requests with the same seeds, on one copy of the
// prompt's KV.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <semaphore>
#include <thread>

#include "tests/core/engine_rig.h"

namespace specd {
namespace {

class ChoicesTest : public EngineTest {
 protected:
  // A request's choices, collected.
  struct Choices {
    std::map<int32_t, Outcome> by_index;
    Outcome last;  // its end
  };
  Choices choices_of(const Request& request) {
    Pending end;  // waits for the last event
    auto all = std::make_shared<Choices>();
    const auto ticket = engine_->submit(request, [all, sink = end.sink()](const Event& event) {
      Outcome& out = all->by_index[event.index];
      EXPECT_EQ(out.finish, FinishReason::kNone) << "a choice goes on after its end";
      out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
      out.text += event.text;
      out.logprobs.append(event.logprobs);
      out.finish = event.finish;
      if (event.done)
        sink({.done = true, .finish = event.finish, .error = event.error, .usage = event.usage});
    });
    EXPECT_TRUE(ticket.ok()) << ticket.status().to_string();
    Choices found;
    found.last = end.wait();
    found.by_index = all->by_index;
    return found;
  }
  // So that a prompt takes many steps.
  void start_in_small_steps(int32_t max_sequences) {
    EngineOptions o = options();
    o.step_tokens_max = 16;
    o.max_sequences = max_sequences;
    start(o);
  }
  // n texts of 200 tokens.
  static Request long_request(int32_t n) {
    Request r = request(long_prompt(), "off", 200, 0.9f, 7);
    r.n = n;
    return r;
  }
  // The same as requests of their own.
  static std::vector<Request> single_requests(const Request& request) {
    std::vector<Request> all(static_cast<size_t>(request.n_choices()), request);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].n = 1;
      all[i].best_of = 0;
      all[i].sampling.seed = *request.sampling.seed + i;
    }
    return all;
  }
};

TEST_F(ChoicesTest, are_the_texts_of_the_seeds_in_a_row_and_read_their_prompt_once) {
  EngineOptions o = options();
  o.routes = {route("chain", plugin("specd.drafter.prompt_lookup", {{"prompt_lookup_min", 1}}), 5)};
  int32_t n_prompt = 0;
  for (const int32_t spare_pages : {0, 8}) {
    const int32_t pages = spare_pages == 0 ? 0 : n_prompt / 16 + spare_pages;
    o.model.kv_pages = pages;
    o.model.kv_bytes_max = pages == 0 ? 64 << 20 : 0;
    start(o);
    for (const char* name : {"off", "chain"}) {
      Request r = request(long_prompt(), name, 60, 0.9f, 1000);
      r.n = 5;
      r.logprobs = 2;
      n_prompt = static_cast<int32_t>(engine_->encode(r.prompt).value().size());
      engine_->clear_prefix_cache();
      const uint64_t hits_before = engine_->model().prefix_hit_tokens;
      const Choices found = choices_of(r);
      const uint64_t hits = engine_->model().prefix_hit_tokens - hits_before;
      const auto whole_pages = static_cast<uint64_t>(n_prompt / 16 * 16);
      EXPECT_EQ(hits, 4 * std::min<uint64_t>(whole_pages, static_cast<uint64_t>(n_prompt) - 1));
      const std::vector<Outcome> single = run_all(single_requests(r));
      ASSERT_EQ(found.by_index.size(), 5u);
      int32_t tokens = 0;
      for (const auto& [i, choice] : found.by_index) {
        const Outcome& expected = single[static_cast<size_t>(i)];
        EXPECT_EQ(choice.tokens, expected.tokens) << name << ", choice " << i;
        EXPECT_EQ(choice.text, expected.text) << name << ", choice " << i;
        EXPECT_EQ(choice.finish, expected.finish) << name << ", choice " << i;
        EXPECT_EQ(choice.logprobs.token, expected.logprobs.token) << name << ", choice " << i;
        tokens += static_cast<int32_t>(choice.tokens.size());
      }
      EXPECT_NE(single[0].tokens, single[1].tokens);
      EXPECT_EQ(found.last.usage.completion_tokens, tokens);
      EXPECT_EQ(found.last.usage.prompt_tokens, n_prompt);
      EXPECT_EQ(found.last.usage.preemptions > 0, pages > 0) << pages << " pages";
    }
  }
}

TEST_F(ChoicesTest, the_best_of_many_are_those_with_the_highest_mean_log_probability) {
  start(options());
  Request r = request(prompts()[3], "off", 12, 1.2f, 50);
  r.n = 2;
  r.best_of = 6;
  const Choices found = choices_of(r);
  std::vector<Request> each = single_requests(r);
  for (Request& one : each) one.logprobs = 0;
  std::vector<Outcome> single = run_all(each);
  std::stable_sort(single.begin(), single.end(), [](const Outcome& a, const Outcome& b) {
    const auto sum = [](const Outcome& one) {
      return std::accumulate(one.logprobs.token.begin(), one.logprobs.token.end(), 0.0);
    };
    return sum(a) > sum(b);  // all have 12 tokens
  });
  ASSERT_EQ(found.by_index.size(), 2u);
  for (const auto& [i, choice] : found.by_index) {
    EXPECT_EQ(choice.tokens, single[static_cast<size_t>(i)].tokens) << i;
    EXPECT_TRUE(choice.logprobs.token.empty());
  }
  EXPECT_EQ(found.last.usage.completion_tokens, 6 * 12);
}

// In the queue, while the first reads the prompt, and while all write.
TEST_F(ChoicesTest, a_cancelled_request_ends_all_its_choices_at_any_moment) {
  start_in_small_steps(3);
  for (const size_t after_tokens : {size_t{0}, size_t{1}, size_t{40}}) {
    Request r = long_request(4);
    r.id = "several";
    Pending end;
    size_t tokens = 0;
    std::binary_semaphore reached(0), go_on(0);
    const auto ticket = engine_->submit(r, [&, sink = end.sink()](const Event& event) {
      const bool before = tokens < after_tokens;
      tokens += event.tokens.size();
      if (before && tokens >= after_tokens) {  // holds the step
        reached.release();
        go_on.acquire();
      }
      if (event.done) sink({.done = true, .finish = event.finish});
    });
    ASSERT_TRUE(ticket.ok());
    EXPECT_EQ(engine_->submit(r, [](const Event&) {}).status().field(), "request_id");
    if (after_tokens > 0) reached.acquire();
    EXPECT_TRUE(engine_->cancel("several"));
    if (after_tokens > 0) go_on.release();
    EXPECT_EQ(end.wait().finish, FinishReason::kCancelled);
    EXPECT_FALSE(engine_->cancel("several")) << "the id is free";
  }
  const EngineReport report = engine_->status();
  EXPECT_EQ(report.cancelled, 12u) << "each choice counts";
}

// While the first reads the prompt; the error of a choice is that of the request.
TEST_F(ChoicesTest, a_missed_deadline_is_the_reason_of_the_whole_request) {
  start_in_small_steps(8);
  Request r = long_request(3);
  r.prompt_logprobs = 0;
  r.deadline_ms = 50;
  Pending end;
  const auto ticket = engine_->submit(r, [sink = end.sink()](const Event& event) {
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    if (event.done) sink({.done = true, .finish = event.finish, .error = event.error});
  });
  ASSERT_TRUE(ticket.ok());
  const Outcome outcome = end.wait();
  EXPECT_EQ(outcome.finish, FinishReason::kError);
  EXPECT_EQ(outcome.error.code(), Code::kDeadlineExceeded);
  ASSERT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(engine_->status().failed, 3u);
  EXPECT_EQ(engine_->status().deadline_misses, 3u);
}

TEST_F(ChoicesTest, an_engine_that_ends_while_choices_wait_ends_them_all_once) {
  start_in_small_steps(8);
  const Request r = long_request(5);
  auto n_last = std::make_shared<std::atomic<int>>(0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        engine_->submit(r, [n_last](const Event& event) { *n_last += event.done ? 1 : 0; }).ok());
  }
  engine_.reset();
  EXPECT_EQ(*n_last, 3);
}

// The drain starts while the first choice reads the prompt.
TEST_F(ChoicesTest, that_wait_when_the_drain_starts_are_completed) {
  start_in_small_steps(8);
  Request r = long_request(5);
  r.max_tokens = 12;
  r.prompt_logprobs = 0;  // events before the first token
  Pending end;
  std::map<int32_t, FinishReason> finish;
  bool is_draining = false;
  const auto ticket = engine_->submit(r, [&, sink = end.sink()](const Event& event) {
    if (!is_draining) {
      EXPECT_TRUE(event.tokens.empty());
      EXPECT_EQ(engine_->status().waiting, 4);
      engine_->start_drain();
      is_draining = true;
    }
    if (event.finish != FinishReason::kNone) finish[event.index] = event.finish;
    if (event.done) sink({.done = true, .finish = event.finish, .usage = event.usage});
  });
  ASSERT_TRUE(ticket.ok());
  EXPECT_EQ(end.wait().usage.completion_tokens, 5 * 12);
  ASSERT_EQ(finish.size(), 5u);
  for (const auto& [index, reason] : finish) EXPECT_EQ(reason, FinishReason::kLength) << index;
  EXPECT_EQ(engine_->submit(r, [](const Event&) {}).status().code(), Code::kUnavailable);
}

TEST_F(ChoicesTest, wait_in_the_queue_as_many_and_more_than_it_holds_are_refused) {
  EngineOptions o = options();
  o.queue_max = 4;
  start(o);
  Request r = request(prompts()[0], "off", 4, 1.0f, 1);
  r.n = 5;
  EXPECT_EQ(engine_->check(r).to_string(),
            "INVALID_ARGUMENT: n: expected at most engine.queue_max, 4, found 5");
  r.n = 0;
  EXPECT_EQ(engine_->check(r).field(), "n");
  r.n = 3;
  r.best_of = 2;
  EXPECT_EQ(engine_->check(r).to_string(), "INVALID_ARGUMENT: best_of: expected 3 to 128, found 2");
  r.best_of = 4;
  r.logprobs = -3;
  EXPECT_EQ(engine_->check(r).to_string(),
            "INVALID_ARGUMENT: logprobs: expected 0 to 20, found -3");
  r.max_tokens = 1500;
  r.logprobs = 20;
  EXPECT_EQ(
      engine_->check(r).to_string(),
      "INVALID_ARGUMENT: best_of: expected best_of times max_tokens of 176 bytes (16, and 8 for "
      "each of logprobs) to be at most 1048576, found 1056000");
  r.max_tokens = 4;
  EXPECT_EQ(choices_of(r).by_index.size(), 3u);
}

}  // namespace
}  // namespace specd
