// Prompts that wait until others are rendered: who waits, who does not, and how waiting ends.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/sanitizer.h"
#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kSlowTemplate[] =
    "{% if slow is defined %}{% for i in range(slow) %}{% for j in range(1000) %}{% endfor %}"
    "{% endfor %}{{ raise_exception('slow') }}{% endif %}{{ messages[0].content }}";
#if SPECD_ASAN
constexpr char kSlow[] = R"({"slow": 200})", kSlower[] = R"({"slow": 800})";
#else
constexpr char kSlow[] = R"({"slow": 2000})", kSlower[] = R"({"slow": 8000})";
#endif

v1::GenerateRequest ids_request() {
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(5);
  request.set_max_tokens(2);
  return request;
}

v1::GenerateRequest text_request(int32_t max_tokens) {
  v1::GenerateRequest request;
  request.set_text("def main():");
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

// Renders for a tenth of a second or more, and is refused then.
v1::GenerateRequest slow_request() {
  v1::GenerateRequest request;
  v1::ChatMessage& message = *request.mutable_chat()->add_messages();
  message.set_role("user");
  message.set_content("x");
  request.mutable_chat()->set_template_arguments_json(kSlow);
  request.set_max_tokens(8);
  return request;
}

// So many slow requests at once, two of which are rendered at a time.
class Crowd {
 public:
  Crowd(const Daemon& daemon, size_t size, v1::GenerateRequest request = slow_request())
      : request_(std::move(request)) {
    constexpr size_t kOfChannel = 100;  // the daemon takes 128 a connection
    for (size_t i = 0; i < size; ++i) {
      if (i % kOfChannel == 0) {
        grpc::ChannelArguments arguments;
        arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
        stubs_.push_back(v1::Inference::NewStub(grpc::CreateCustomChannel(
            socket_uri(daemon.socket()), grpc::InsecureChannelCredentials(), arguments)));
      }
      calls_.push_back(std::make_unique<Call>(*this, *stubs_.back()));
    }
  }
  ~Crowd() {
    for (const auto& call : calls_) call->context.TryCancel();
    (void)wait();
  }

  std::vector<grpc::Status> ended() {
    const std::lock_guard lock(mutex_);
    return ended_;
  }
  size_t count(grpc::StatusCode code) {
    const std::vector<grpc::Status> all = ended();
    return static_cast<size_t>(std::count_if(
        all.begin(), all.end(), [&](const auto& each) { return each.error_code() == code; }));
  }
  bool most_wait() { return ended().size() < calls_.size() / 2; }
  std::vector<grpc::Status> wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return ended_.size() == calls_.size(); });
    return ended_;
  }

 private:
  struct Call : grpc::ClientReadReactor<v1::GenerateResponse> {
    Call(Crowd& its, v1::Inference::Stub& stub) : crowd(its) {
      stub.async()->Generate(&context, &crowd.request_, this);
      StartRead(&message);
      StartCall();
    }
    void OnDone(const grpc::Status& status) override {
      const std::lock_guard lock(crowd.mutex_);
      crowd.ended_.push_back(status);
      crowd.changed_.notify_all();
    }
    Crowd& crowd;
    grpc::ClientContext context;
    v1::GenerateResponse message;
  };

  const v1::GenerateRequest request_;
  std::vector<std::unique_ptr<v1::Inference::Stub>> stubs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<grpc::Status> ended_;
  std::vector<std::unique_ptr<Call>> calls_;
};

class PromptQueueTest : public testing::Test {
 protected:
  void start(const std::string& head = "") {
    std::ofstream(daemon_.folder() / "slow.jinja") << kSlowTemplate;
    daemon_.write_config_text(
        head + "model: {name: pico, path: ZOO/pico-target, chat_template: slow.jinja}\n");
    ASSERT_TRUE(daemon_.start()) << daemon_.output();
    client_.emplace(daemon_.client());
  }
  std::future<Result<Generation>> generate(const v1::GenerateRequest& request) {
    return std::async(std::launch::async,
                      [this, request] { return client_->generate(request, {}); });
  }
  // What was sent before has arrived, and so much of the crowd has been answered since.
  static bool arrived(Crowd& crowd, size_t answers = 4) {
    return eventually([&] { return crowd.ended().size() >= answers; });
  }
  Daemon daemon_;
  std::optional<Client> client_;
};

TEST_F(PromptQueueTest, ids_wait_for_no_template) {
  start();
  Crowd crowd(daemon_, 64);
  ASSERT_TRUE(eventually([&] { return !crowd.ended().empty(); }));
  EXPECT_TRUE(client_->generate(ids_request(), {}).ok());
  EXPECT_TRUE(crowd.most_wait());
}

TEST_F(PromptQueueTest, cancel_finds_a_prompt_that_waits_and_ends_it_at_once) {
  start();
  Crowd crowd(daemon_, 64);
  ASSERT_TRUE(arrived(crowd));
  v1::GenerateRequest request = text_request(1500);
  request.set_request_id("waits");
  auto generation = generate(request);
  Client& client = *client_;
  EXPECT_TRUE(eventually([&] { return client.cancel("waits").value().found(); }));
  EXPECT_EQ(generation.get().status().code(), Code::kCancelled);
  EXPECT_TRUE(crowd.most_wait());
  EXPECT_EQ(client.status().value().admitted(), 0u);
  EXPECT_FALSE(client.cancel("waits").value().found());
}

TEST_F(PromptQueueTest, a_client_that_hangs_up_while_its_prompt_waits_is_not_begun) {
  start();
  {
    Crowd crowd(daemon_, 48);
    ASSERT_TRUE(arrived(crowd));
    const auto stub = v1::Inference::NewStub(daemon_.channel());
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, text_request(4));
    ASSERT_TRUE(arrived(crowd, 12));
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
    EXPECT_TRUE(crowd.most_wait());
    (void)crowd.wait();
  }
  EXPECT_EQ(client_->status().value().admitted(), 0u);
}

TEST_F(PromptQueueTest, a_rendering_whose_client_hangs_up_gives_its_place_back_at_once) {
  start();
  // Four times as slow, since much is sent while they wait.
  v1::GenerateRequest slower = slow_request();
  slower.mutable_chat()->set_template_arguments_json(kSlower);
  Crowd crowd(daemon_, 200, slower);
  ASSERT_TRUE(arrived(crowd));
  v1::GenerateRequest large = slow_request();  // 16 of them have the bytes that may wait
  large.mutable_chat()->mutable_messages(0)->set_content(std::string((4 << 20) - 4096, 'x'));
  const auto stub = v1::Inference::NewStub(daemon_.channel());
  std::array<grpc::ClientContext, 20> contexts;
  std::atomic<int> n_refused{0};
  std::vector<std::future<void>> renderings;
  for (grpc::ClientContext& context : contexts) {
    renderings.push_back(std::async(std::launch::async, [&] {
      v1::RenderChatResponse response;
      const grpc::Status status = stub->RenderChat(&context, large, &response);
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++n_refused;
    }));
  }
  EXPECT_TRUE(eventually([&] { return n_refused > 0; }));
  for (grpc::ClientContext& context : contexts) context.TryCancel();
  renderings.clear();  // waits for their ends
  // One more is found by its id while it waits, or refused.
  large.set_request_id("fits");
  EXPECT_TRUE(eventually([&] {
    auto generation = generate(large);
    while (generation.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready)
      (void)client_->cancel("fits");
    return generation.get().status().code() == Code::kCancelled;
  }));
  EXPECT_TRUE(crowd.most_wait());
}

TEST_F(PromptQueueTest, deadlines_and_waiting_times_count_from_the_start_of_the_call) {
  start();
  Crowd crowd(daemon_, 32);
  ASSERT_TRUE(arrived(crowd));
  const auto sent = Clock::now();
  v1::GenerateRequest late = text_request(4);
  late.set_deadline_ms(50);
  auto refused = generate(late);
  std::future<double> waited_ms = std::async(std::launch::async, [&] {
    double first_ms = 0, queue_ms = 0;
    const auto done = client_->generate(text_request(4), [&](const auto& message) {
      if (message.has_started())
        first_ms = std::chrono::duration<double, std::milli>(Clock::now() - sent).count();
    });
    EXPECT_TRUE(done.ok()) << done.status().text();
    if (done.ok()) queue_ms = done.value().finished.times().queue_ms();
    EXPECT_GT(queue_ms, first_ms / 2);
    return first_ms;
  });
  EXPECT_GT(waited_ms.get(), 50);
  const Status status = refused.get().status();
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded) << status.text();
  EXPECT_NE(status.text().find("deadline_ms: 50 ms"), std::string::npos) << status.text();
  EXPECT_EQ(client_->status().value().admitted(), 1u);  // the other one
}

TEST_F(PromptQueueTest, prompts_beyond_those_that_may_wait_are_refused_and_counted) {
  start();
  Crowd crowd(daemon_, 400);  // 2 are rendered, 256 wait
  ASSERT_TRUE(eventually([&] { return crowd.count(grpc::StatusCode::RESOURCE_EXHAUSTED) >= 100; }));
  EXPECT_GE(client_->status().value().refused(), 100u);
  EXPECT_LE(crowd.count(grpc::StatusCode::RESOURCE_EXHAUSTED), 400u - 258u);
  for (const grpc::Status& each : crowd.ended()) {
    if (each.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) {
      EXPECT_NE(each.error_message().find("256 requests wait for their prompts"),
                std::string::npos);
    }
  }
}

TEST_F(PromptQueueTest, what_is_refused_anyway_is_not_rendered) {
  start();
  v1::GenerateRequest request = slow_request();
  request.set_return_prompt_token_ids(true);
  request.set_route("nowhere");
  const Status status = client_->generate(request, {}).status();
  EXPECT_EQ(status.text().rfind("route: ", 0), 0u) << status.text();
}

TEST_F(PromptQueueTest, sigterm_lets_prompts_that_wait_be_rendered_and_served) {
  start("drain_seconds: 300\n");
  Client& late = *client_;
  Crowd crowd(daemon_, 64);
  ASSERT_TRUE(arrived(crowd));
  auto generation = generate(text_request(4));
  auto rendered = std::async(std::launch::async, [&] { return client_->render(text_request(1)); });
  ASSERT_TRUE(arrived(crowd, 16));
  ASSERT_EQ(kill(daemon_.pid(), SIGTERM), 0);
  ASSERT_TRUE(eventually([&] { return daemon_.output().find("draining") != std::string::npos; }));
  EXPECT_TRUE(eventually(
      [&] { return late.generate(text_request(1), {}).status().code() == Code::kUnavailable; }));
  EXPECT_EQ(late.generate(ids_request(), {}).status().code(), Code::kUnavailable);
  EXPECT_EQ(late.render(text_request(1)).status().code(), Code::kUnavailable);
  EXPECT_TRUE(crowd.most_wait());
  for (const grpc::Status& each : crowd.wait())
    EXPECT_EQ(each.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << each.error_message();
  EXPECT_TRUE(generation.get().ok());
  EXPECT_TRUE(rendered.get().ok());
  EXPECT_EQ(daemon_.wait(), 0) << daemon_.output();
}

TEST_F(PromptQueueTest, the_drain_limit_cuts_prompts_that_wait_with_a_reason) {
  start("drain_seconds: 0\n");
  Crowd crowd(daemon_, 64);
  ASSERT_TRUE(arrived(crowd));
  ASSERT_EQ(kill(daemon_.pid(), SIGTERM), 0);
  (void)crowd.wait();
  EXPECT_GE(crowd.count(grpc::StatusCode::UNAVAILABLE), 32u);
  for (const grpc::Status& each : crowd.ended()) {
    if (each.error_code() == grpc::StatusCode::UNAVAILABLE) {
      EXPECT_NE(each.error_message().find("drain limit"), std::string::npos)
          << each.error_message();
    }
  }
  EXPECT_EQ(daemon_.wait(), 4) << daemon_.output();
}

}  // namespace
}  // namespace specd::host
