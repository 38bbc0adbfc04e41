// Sessions while the first, second, third .. allocation on one of their threads fails, until a
// request passes untouched: each one ends, and the next is served.
#include <gtest/gtest.h>
#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "host/serve/sessions.h"
#include "tests/core/engine_rig.h"
#include "tests/host/base/failing_new_of_thread.h"

namespace specd::host {
namespace {

class Reader final : SessionReader {
 public:
  explicit Reader(Sessions& sessions) : session_(sessions.open(*this)) {}
  ~Reader() { session_->close(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void start(Request request) { session_->start(std::move(request), {}); }
  void wait() {  // without an allocation
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::minutes(5), [this] { return has_ended_; }));
  }
  // After wait().
  Status status() const { return status_; }
  std::vector<int32_t> tokens() const { return tokens_; }

 private:
  void write(SessionOutput output) override {
    if (const auto* text = std::get_if<SessionText>(&output))
      tokens_.insert(tokens_.end(), text->tokens.begin(), text->tokens.end());
    session_->written();
  }
  void end(const Status& status) override {
    const std::lock_guard lock(mutex_);
    status_ = status;
    has_ended_ = true;
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool has_ended_ = false;
  Status status_;
  std::vector<int32_t> tokens_;
  const std::shared_ptr<Session> session_;
};

class SessionNthFailure : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    EngineTest::start(options());
  }

  // The first allocation on `thread` that a request does not reach.
  long until_untouched(const char* thread, const Request& request) {
    Sessions sessions(*engine_, "off");
    const auto expected = [&] {
      Reader reader(sessions);
      reader.start(request);
      reader.wait();
      EXPECT_TRUE(reader.status().ok()) << reader.status().to_string();
      return reader.tokens();
    };
    const std::vector<int32_t> tokens = expected();
    g_failing_thread = thread;
    for (long n = 1;; ++n) {
      bool is_untouched = false;
      {
        Reader reader(sessions);
        Request one = request;
        g_calls_left = n;
        reader.start(std::move(one));
        reader.wait();
        is_untouched = g_calls_left.exchange(0) > 0;
        const Status status = reader.status();
        EXPECT_TRUE(status.ok() || status.code() == Code::kExhausted) << n << status.to_string();
        EXPECT_TRUE(status.ok() || !is_untouched) << n << status.to_string();
        if (status.ok()) {
          EXPECT_EQ(reader.tokens(), tokens) << n;
        }
      }
      EXPECT_TRUE(engine_->wait_idle(60'000)) << n;
      EXPECT_EQ(expected(), tokens) << n;
      if (is_untouched || HasFailure()) return n;
    }
  }

  static Request text_request() { return request("def main():", "off", 3); }
  static Request ids_request() {
    Request made = text_request();
    made.prompt.clear();
    made.prompt_tokens = {5, 6, 7};
    return made;
  }
};

TEST_F(SessionNthFailure, of_allocations_on_a_thread_that_renders_prompts_ends_one_request) {
  EXPECT_GT(until_untouched("specd-prompts", text_request()), 10);
}

TEST_F(SessionNthFailure, of_allocations_on_the_thread_that_writes_ends_one_request) {
  EXPECT_GT(until_untouched("specd-write", ids_request()), 1);
}

TEST_F(SessionNthFailure, of_allocations_on_the_thread_that_starts_ends_one_request) {
  static char own[16] = "";
  ASSERT_EQ(pthread_getname_np(pthread_self(), own, sizeof(own)), 0);
  EXPECT_GT(until_untouched(own, ids_request()), 5);
}

}  // namespace
}  // namespace specd::host
