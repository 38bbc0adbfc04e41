// Sessions without a transport: what a client gets, in which order, at which pace, and how it ends.
#include "host/serve/session.h"

#include <gtest/gtest.h>
#include <map>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/serve/sessions.h"
#include "tests/core/engine_rig.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;

enum class Pace { kQuick, kByHand };

// A transport in memory: writes down what it gets and takes the next at once or by hand.
class Client final : SessionReader {
 public:
  explicit Client(Sessions& sessions, Pace pace = Pace::kQuick)
      : pace_(pace), session_(sessions.open(*this)) {}
  ~Client() {
    read_on();
    (void)wait();
    session_->close();
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  void start(const Request& request, const SessionOptions& options = {}) {
    session_->start(request, options);
  }
  void disconnect() { session_->disconnect(); }
  // The next so many calls find no memory.
  void fail(int writes, int ends) {
    const std::lock_guard lock(mutex_);
    writes_to_fail_ = writes;
    ends_to_fail_ = ends;
  }
  // While it lives, the thread of Sessions waits in its next call of this client.
  std::unique_lock<std::mutex> hold() { return std::unique_lock(mutex_); }
  // From now on takes everything at once.
  void read_on() {
    const std::unique_lock lock(mutex_);
    pace_ = Pace::kQuick;
    if (std::exchange(writing_, false)) session_->written();
  }
  Status wait() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(5), [this] { return ends_ > 0; }))
        << "a session did not end";
    return status_;
  }
  void wait_for_outputs(size_t n) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(5),
                                  [&] { return outputs_.size() >= n || ends_ > 0; }));
    EXPECT_GE(outputs_.size(), n);
  }
  int ends() {
    const std::lock_guard lock(mutex_);
    return ends_;
  }
  std::vector<SessionOutput> outputs() {
    const std::lock_guard lock(mutex_);
    return outputs_;
  }
  std::vector<int32_t> tokens() {
    std::vector<int32_t> all;
    for (const SessionOutput& each : outputs())
      if (const auto* text = std::get_if<SessionText>(&each))
        all.insert(all.end(), text->tokens.begin(), text->tokens.end());
    return all;
  }

 private:
  void write(SessionOutput output) override {
    const std::lock_guard lock(mutex_);
    EXPECT_EQ(ends_, 0) << "an output after the end";
    EXPECT_FALSE(writing_) << "two outputs at once";
    if (writes_to_fail_ > 0 && writes_to_fail_-- > 0) throw std::bad_alloc();
    outputs_.push_back(std::move(output));
    writing_ = pace_ == Pace::kByHand;
    if (!writing_) session_->written();
    changed_.notify_all();
  }
  void end(const Status& status) override {
    const std::lock_guard lock(mutex_);
    EXPECT_FALSE(writing_) << "an end while a write is under way";
    if (ends_to_fail_ > 0 && ends_to_fail_-- > 0) throw std::bad_alloc();
    EXPECT_EQ(++ends_, 1);
    status_ = status;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Pace pace_;
  bool writing_ = false;
  int ends_ = 0, writes_to_fail_ = 0, ends_to_fail_ = 0;
  Status status_;
  std::vector<SessionOutput> outputs_;
  const std::shared_ptr<Session> session_;
};

// Occupies both prompt threads until it is opened or destroyed.
class Gate {
 public:
  explicit Gate(Sessions& sessions) {
    const std::shared_future<void> opened(open_.get_future());
    constexpr int kThreads = 2;  // of the prompt queue
    for (int i = 0; i < kThreads; ++i) {
      EXPECT_TRUE(sessions
                      .queue(Request(),
                             [this, opened] {
                               ++n_inside_;
                               opened.wait();
                               --n_inside_;
                             })
                      .ok());
    }
    while (n_inside_ < kThreads) std::this_thread::yield();
  }
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(is_open_, true)) open_.set_value();
    while (n_inside_ > 0) std::this_thread::yield();
  }

 private:
  std::promise<void> open_;
  std::atomic<int> n_inside_{0};
  bool is_open_ = false;
};

class SessionTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    EngineOptions o = options();
    o.routes = {route("lookup", plugin("specd.drafter.prompt_lookup"), 5)};
    o.default_route = "lookup";
    EngineTest::start(o);
    open_sessions();
  }
  void open_sessions(size_t buffer_bytes_max = Sessions::kBufferBytesMax,
                     size_t unread_bytes_max = Sessions::kUnreadBytesMax) {
    sessions_.emplace(*engine_, "lookup", buffer_bytes_max, unread_bytes_max);
  }
  void TearDown() override {
    EXPECT_TRUE(sessions_->wait_closed(milliseconds(0)));
    sessions_.reset();
    audit();
    EngineTest::TearDown();
  }
  static Request text_request(int32_t max_tokens, const std::string& id = "") {
    Request made = request(prompts()[0], "", max_tokens);
    made.id = id;
    return made;
  }
  // Submitted on the thread that starts the session.
  static Request ids_request(int32_t max_tokens, const std::string& id = "") {
    Request made = text_request(max_tokens, id);
    made.prompt.clear();
    made.prompt_tokens = {5, 6, 7};
    return made;
  }
  // A request whose sink holds the step thread once it has a token.
  Pending hold_step_thread() {
    Pending holder;
    holder.hold_at(1);
    EXPECT_TRUE(engine_->submit(request(prompts()[1], "off", 100), holder.sink()).ok());
    holder.wait_for_tokens(1);
    return holder;
  }

  // Lets the step thread run until the holder has `n` tokens, and so about n of whatever runs beside.
  static void run_on(Pending& holder, size_t n) {
    holder.hold_at(n);
    holder.wait_for_tokens(n);
  }
  // The thread of Sessions has done all that it was woken for: it takes the oldest first.
  void flush() {
    Client probe(*sessions_);
    probe.disconnect();
    (void)probe.wait();
  }

  std::optional<Sessions> sessions_;
};

TEST_F(SessionTest, outputs_are_one_start_the_text_and_one_finish) {
  const Outcome direct = run(request(prompts()[0], "lookup", 40));
  Client client(*sessions_);
  client.start(text_request(40, "mine"), {.return_prompt_tokens = true, .time_left = {}});
  ASSERT_TRUE(client.wait().ok()) << client.wait().to_string();
  const std::vector<SessionOutput> outputs = client.outputs();
  ASSERT_GE(outputs.size(), 3u);
  const auto& start = std::get<SessionStart>(outputs.front());
  EXPECT_EQ(start.request_id, "mine");
  EXPECT_EQ(start.route, "lookup");
  EXPECT_EQ(start.sampling.temperature, 0);
  EXPECT_EQ(start.prompt_tokens, engine_->encode(prompts()[0]).value());
  std::string text;
  for (size_t i = 1; i + 1 < outputs.size(); ++i) text += std::get<SessionText>(outputs[i]).text;
  EXPECT_EQ(text, direct.text);
  EXPECT_EQ(client.tokens(), direct.tokens);
  const auto& finish = std::get<SessionFinish>(outputs.back());
  EXPECT_EQ(finish.reason, FinishReason::kLength);
  EXPECT_EQ(finish.usage.completion_tokens, 40);
}

TEST_F(SessionTest, prompt_tokens_are_returned_only_when_asked_for) {
  Client client(*sessions_);
  client.start(ids_request(2));
  ASSERT_TRUE(client.wait().ok());
  const std::vector<SessionOutput> outputs = client.outputs();
  const auto& start = std::get<SessionStart>(outputs.front());
  EXPECT_TRUE(start.prompt_tokens.empty());
  EXPECT_FALSE(start.request_id.empty());
}

TEST_F(SessionTest, a_slow_reader_holds_up_neither_the_step_thread_nor_others) {
  Client slow(*sessions_, Pace::kByHand);
  slow.start(text_request(60));
  slow.wait_for_outputs(1);
  Client quick(*sessions_);
  quick.start(text_request(60));
  EXPECT_TRUE(quick.wait().ok());
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(slow.outputs().size(), 1u);
  EXPECT_EQ(slow.ends(), 0) << "the end must not overtake what is unread";
  slow.read_on();
  EXPECT_TRUE(slow.wait().ok());
  EXPECT_EQ(slow.tokens(), quick.tokens());
}

TEST_F(SessionTest, a_reader_that_leaves_too_much_unread_is_cancelled) {
  sessions_.reset();
  open_sessions(200);
  Pending holder = hold_step_thread();
  Client client(*sessions_, Pace::kByHand);
  client.start(ids_request(1500));
  run_on(holder, 60);
  flush();
  holder.let_go();
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(engine_->status().cancelled, 1u);
  client.read_on();
  const Status status = client.wait();
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.text().find("more than 200 bytes unread"), std::string::npos) << status.text();
  EXPECT_LE(client.outputs().size(), 1u) << "what was unread is dropped";
}

TEST_F(SessionTest, texts_that_come_at_once_are_not_unread_before_they_can_be_read) {
  sessions_.reset();
  open_sessions(200);
  Client client(*sessions_, Pace::kByHand);
  Request request = ids_request(60);
  request.n = 2;
  request.best_of = 3;
  client.start(request);
  EXPECT_TRUE(engine_->wait_idle(60'000));
  flush();
  client.read_on();
  EXPECT_TRUE(client.wait().ok()) << client.wait().to_string();
  EXPECT_EQ(client.tokens().size(), 120u);
}

TEST_F(SessionTest, of_all_that_is_unread_the_largest_part_is_dropped_and_who_reads_is_served) {
  Request plain = ids_request(40);
  plain.route = "off";  // one token an event, so that what is unread is the same each time
  size_t unread = 0;
  {
    Client measured(*sessions_);
    measured.start(plain);
    ASSERT_TRUE(measured.wait().ok());
    for (const SessionOutput& each : measured.outputs())
      if (const auto* text = std::get_if<SessionText>(&each))
        unread += 8 + 4 * text->tokens.size() + text->text.size();
    unread += 8;                                                         // the finish
    unread += measured.outputs().size() * (sizeof(SessionOutput) + 32);  // each of them
  }
  sessions_.reset();
  open_sessions(Sessions::kBufferBytesMax, unread);
  Client lazy(*sessions_, Pace::kByHand);
  lazy.start(plain);
  EXPECT_TRUE(engine_->wait_idle(60'000));
  flush();
  EXPECT_EQ(lazy.ends(), 0) << "as much as may be unread";
  // Every output is one too many now, but it is not these clients that do not read.
  for (int i = 0; i < 3; ++i) {
    Client quick(*sessions_);
    Request few = plain;
    few.max_tokens = 10;
    quick.start(few);
    EXPECT_TRUE(quick.wait().ok()) << quick.wait().to_string();
    EXPECT_EQ(quick.tokens().size(), 10u);
  }
  lazy.read_on();
  const Status status = lazy.wait();
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.text().find(std::to_string(unread) + " bytes unread in all"), std::string::npos)
      << status.text();
  EXPECT_EQ(lazy.outputs().size(), 1u) << "what was unread is dropped";
  EXPECT_EQ(engine_->status().cancelled, 0u);
}

TEST_F(SessionTest, a_reader_without_memory_ends_its_own_session_with_the_reason) {
  Pending holder = hold_step_thread();
  Client client(*sessions_), other(*sessions_);
  client.fail(/*writes=*/1, /*ends=*/2);
  client.start(ids_request(1500));
  other.start(ids_request(4));
  flush();
  flush();  // the failure wakes the thread of Sessions once more
  holder.let_go();
  const Status status = client.wait();
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.text().find("not enough memory"), std::string::npos) << status.text();
  EXPECT_TRUE(client.outputs().empty());
  EXPECT_TRUE(other.wait().ok());
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(engine_->status().cancelled, 1u);
}

TEST_F(SessionTest, the_ids_of_a_prompt_do_not_count_as_unread) {
  sessions_.reset();
  open_sessions(200);
  Client before(*sessions_), client(*sessions_);
  Request request = ids_request(2);
  request.prompt_tokens = std::vector<int32_t>(100, 5);
  {
    const auto held = before.hold();  // so that nothing of `client` is written
    before.start(ids_request(1));
    client.start(request, {.return_prompt_tokens = true, .time_left = {}});
    EXPECT_TRUE(engine_->wait_idle(60'000));
  }
  ASSERT_TRUE(client.wait().ok()) << client.wait().to_string();
  EXPECT_EQ(std::get<SessionStart>(client.outputs().front()).prompt_tokens, request.prompt_tokens);
  EXPECT_EQ(client.tokens().size(), 2u);
}

TEST_F(SessionTest, a_request_that_the_engine_refuses_ends_without_output) {
  Client client(*sessions_);
  Request request = text_request(4);
  request.sampling.temperature = -1;
  client.start(request);
  EXPECT_EQ(client.wait().code(), Code::kInvalidArgument);
  EXPECT_TRUE(client.outputs().empty());
  EXPECT_EQ(engine_->status().refused, 1u);
}

TEST_F(SessionTest, a_client_that_has_gone_before_the_start_is_not_begun) {
  Client client(*sessions_);
  client.disconnect();
  client.start(ids_request(4));
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_TRUE(client.outputs().empty());
  EXPECT_EQ(engine_->status().admitted, 0u);
}

TEST_F(SessionTest, a_prompt_that_waits_is_cancelled_at_once_by_its_id) {
  Gate gate(*sessions_);
  Client other(*sessions_), client(*sessions_);
  other.start(text_request(4, "other"));
  client.start(text_request(4, "mine"));
  EXPECT_FALSE(sessions_->cancel("nobody"));
  EXPECT_FALSE(sessions_->cancel(""));
  EXPECT_TRUE(sessions_->cancel("mine"));
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_FALSE(sessions_->cancel("mine")) << "it has ended";
  EXPECT_EQ(engine_->status().admitted, 0u);
  gate.open();
  EXPECT_TRUE(other.wait().ok());
  EXPECT_EQ(engine_->status().admitted, 1u);
}

TEST_F(SessionTest, a_client_that_goes_while_its_prompt_waits_is_not_begun) {
  Gate gate(*sessions_);
  Client client(*sessions_);
  client.start(text_request(4));
  client.disconnect();
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  gate.open();
  EXPECT_TRUE(sessions_->wait_prompts(std::chrono::minutes(1)));
  EXPECT_EQ(engine_->status().admitted, 0u);
}

TEST_F(SessionTest, prompts_are_taken_in_their_order) {
  Gate gate(*sessions_);
  std::mutex mutex;
  std::map<std::thread::id, std::vector<int>> taken;  // by the thread that took them
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(sessions_
                    ->queue(Request(),
                            [&, i] {
                              const std::lock_guard lock(mutex);
                              taken[std::this_thread::get_id()].push_back(i);
                            })
                    .ok());
  }
  gate.open();
  EXPECT_TRUE(sessions_->wait_prompts(std::chrono::minutes(1)));
  // Between taking a prompt and noting it a thread may be overtaken by the others, never by itself.
  size_t n_taken = 0;
  for (const auto& [thread, order] : taken) {
    EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
    n_taken += order.size();
  }
  EXPECT_EQ(n_taken, 20u);
}

TEST_F(SessionTest, an_admitted_request_that_waits_is_cancelled_by_its_id) {
  Pending holder = hold_step_thread();
  Client client(*sessions_);
  client.start(ids_request(4, "mine"));
  client.wait_for_outputs(1);
  EXPECT_TRUE(sessions_->cancel("mine"));
  holder.let_go();
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_EQ(client.outputs().size(), 1u);  // the start
  EXPECT_EQ(holder.wait().finish, FinishReason::kLength);
}

TEST_F(SessionTest, a_running_request_is_cancelled_when_its_client_goes) {
  Pending holder = hold_step_thread();
  Client client(*sessions_);
  client.start(ids_request(1500));
  run_on(holder, 10);
  client.wait_for_outputs(2);
  client.disconnect();
  flush();
  holder.let_go();
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(engine_->status().cancelled, 1u);
}

TEST_F(SessionTest, a_client_that_goes_during_a_write_ends_when_the_write_does) {
  Client client(*sessions_, Pace::kByHand);
  client.start(text_request(1500));
  client.wait_for_outputs(1);
  client.disconnect();
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(client.ends(), 0);
  client.read_on();
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_EQ(client.outputs().size(), 1u);
}

TEST_F(SessionTest, a_client_that_goes_before_it_has_read_the_end_gets_no_more) {
  Client client(*sessions_, Pace::kByHand);
  client.start(ids_request(4));
  EXPECT_TRUE(engine_->wait_idle(60'000));
  client.disconnect();
  client.read_on();
  EXPECT_EQ(client.wait().code(), Code::kCancelled);
  EXPECT_LE(client.outputs().size(), 1u);
  EXPECT_EQ(engine_->status().completed, 1u);
}

TEST_F(SessionTest, nothing_comes_after_the_end) {
  Client client(*sessions_);
  client.start(text_request(2, "mine"));
  ASSERT_TRUE(client.wait().ok());
  const size_t n = client.outputs().size();
  client.disconnect();
  EXPECT_FALSE(sessions_->cancel("mine"));
  sessions_->abort_all(Status(Code::kUnavailable, "stop"));
  Client other(*sessions_);
  other.start(text_request(2));
  EXPECT_TRUE(other.wait().ok());  // on the same thread, after what was asked for above
  EXPECT_EQ(client.outputs().size(), n);
  EXPECT_EQ(client.ends(), 1);
}

TEST_F(SessionTest, a_deadline_that_passes_in_the_prompt_queue_is_told_at_its_turn) {
  Gate gate(*sessions_);
  Client client(*sessions_);
  Request request = text_request(4);
  request.deadline_ms = 60'000;
  client.start(request, {.return_prompt_tokens = false, .time_left = milliseconds(5)});
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_EQ(client.ends(), 0);
  gate.open();
  const Status status = client.wait();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_NE(status.text().find("deadline_ms: 5 ms"), std::string::npos) << status.text();
}

TEST_F(SessionTest, the_earlier_one_of_two_deadlines_holds) {
  Pending holder = hold_step_thread();
  Client client(*sessions_);
  Request request = ids_request(1500);
  request.deadline_ms = 30;
  client.start(request, {.return_prompt_tokens = false, .time_left = std::chrono::hours(1)});
  std::this_thread::sleep_for(milliseconds(50));
  holder.let_go();
  EXPECT_EQ(client.wait().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(engine_->status().deadline_misses, 1u);
  // A deadline that is out of range is refused, whatever the caller's own is.
  Client wrong(*sessions_);
  request.deadline_ms = -1;
  wrong.start(request, {.return_prompt_tokens = false, .time_left = std::chrono::hours(1)});
  EXPECT_EQ(wrong.wait().code(), Code::kInvalidArgument);
}

TEST_F(SessionTest, prompts_beyond_those_that_may_wait_are_refused_and_counted) {
  Gate gate(*sessions_);
  for (size_t i = 0; i < PromptQueue::kPromptsMax; ++i)
    ASSERT_TRUE(sessions_->queue(Request(), [] {}).ok());
  Client client(*sessions_), by_ids(*sessions_);
  client.start(text_request(4));
  EXPECT_EQ(client.wait().code(), Code::kExhausted);
  EXPECT_EQ(engine_->status().refused, 1u);
  by_ids.start(ids_request(4));  // need not wait for the others
  EXPECT_TRUE(by_ids.wait().ok());
}

TEST_F(SessionTest, while_draining_prompts_that_wait_are_served_and_new_ones_refused) {
  Gate gate(*sessions_);
  Client waiting(*sessions_), late(*sessions_), late_ids(*sessions_);
  waiting.start(text_request(4));
  sessions_->start_drain();
  late.start(text_request(4));
  late_ids.start(ids_request(4));
  EXPECT_EQ(late.wait().code(), Code::kUnavailable);
  EXPECT_EQ(late_ids.wait().code(), Code::kUnavailable);
  EXPECT_EQ(sessions_->queue(Request(), [] {}).status().code(), Code::kUnavailable);
  EXPECT_FALSE(sessions_->wait_prompts(milliseconds(10)));
  gate.open();
  EXPECT_TRUE(sessions_->wait_prompts(std::chrono::minutes(1)));
  EXPECT_TRUE(waiting.wait().ok());
  EXPECT_EQ(engine_->status().refused, 2u);
}

TEST_F(SessionTest, abort_ends_every_session_with_the_reason) {
  Pending holder = hold_step_thread();
  Client admitted(*sessions_), unread(*sessions_, Pace::kByHand);
  admitted.start(ids_request(1500));
  unread.start(ids_request(1500));
  Gate gate(*sessions_);
  Client waiting(*sessions_);
  waiting.start(text_request(4));
  sessions_->abort_all(Status(Code::kUnavailable, "stopped"));
  EXPECT_EQ(waiting.wait().message(), "stopped");
  flush();
  holder.let_go();
  unread.read_on();
  EXPECT_EQ(admitted.wait().message(), "stopped");
  EXPECT_EQ(unread.wait().code(), Code::kUnavailable);
  EXPECT_TRUE(engine_->wait_idle(60'000));
  EXPECT_EQ(engine_->status().cancelled, 2u);
}

TEST_F(SessionTest, every_session_ends_once_however_starts_and_cancels_fall_together) {
  constexpr int kThreads = 4, kRounds = 25;
  std::atomic<int> n_ok{0}, n_cancelled{0}, n_other{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const std::string id = std::to_string(t) + "-" + std::to_string(i);
        Client client(*sessions_, i % 5 == 0 ? Pace::kByHand : Pace::kQuick);
        std::thread other([&, i] {
          if (i % 3 == 0) (void)sessions_->cancel(id);
          if (i % 3 == 1) client.disconnect();
        });
        client.start(i % 2 == 0 ? text_request(3, id) : ids_request(3, id));
        other.join();
        client.read_on();
        const Status status = client.wait();
        ++(status.ok() ? n_ok : status.code() == Code::kCancelled ? n_cancelled : n_other);
        if (!status.ok()) continue;
        const std::vector<SessionOutput> outputs = client.outputs();
        ASSERT_FALSE(outputs.empty());
        EXPECT_TRUE(std::holds_alternative<SessionFinish>(outputs.back()));
        EXPECT_EQ(client.tokens().size(), 3u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_other, 0);
  EXPECT_EQ(n_ok + n_cancelled, kThreads * kRounds);
  EXPECT_GE(n_ok, kThreads * (kRounds / 3));  // those that nobody cancelled
  EXPECT_TRUE(engine_->wait_idle(60'000));
}

}  // namespace
}  // namespace specd::host
