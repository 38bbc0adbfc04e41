// What clients send that no request is, to the real daemon: the words, the bounds, and that it goes
// on.
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <thread>

#include "tests/host/daemon/daemon_rig.h"

namespace specd::host {
namespace {

class RequestTest : public DaemonTest {
 protected:
  using Edit = std::function<void(v1::GenerateRequest&)>;
  // How a good request with this edit ends; one that is taken is cancelled.
  static grpc::Status status_of(const Edit& edit) {
    v1::GenerateRequest request = make_request("off", 4);
    edit(request);
    const auto stub = v1::Inference::NewStub(daemon_->channel());
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    if (reader->Read(&message)) context.TryCancel();
    while (reader->Read(&message)) {
    }
    return reader->Finish();
  }
};

// G30. What clients are told, word for word, in request_errors.txt: where this fails for a good
// reason, the new words are printed.
TEST_F(RequestTest, each_field_out_of_range_is_an_invalid_argument_that_names_it) {
  const std::pair<const char*, Edit> table[] = {
      {"prompt", [](auto& r) { r.clear_prompt(); }},
      {"text", [](auto& r) { r.set_text(""); }},
      {"text", [](auto& r) { r.set_text("def \xff"); }},
      {"text", [](auto& r) { r.set_text("def \xff"), r.set_return_prompt_token_ids(true); }},
      {"token_ids", [](auto& r) { r.mutable_token_ids(); }},
      {"chat.messages",
       [](auto& r) {
         for (int i = 0; i < 5000; ++i) r.mutable_chat()->add_messages();
       }},
      {"add_bos", [](auto& r) { r.mutable_token_ids()->add_ids(1), r.set_add_bos(true); }},
      {"parse_special_tokens", [](auto& r) { r.mutable_chat(), r.set_parse_special_tokens(true); }},
      {"token_ids[1]",
       [](auto& r) { r.mutable_token_ids()->add_ids(1), r.mutable_token_ids()->add_ids(-1); }},
      {"token_ids[0]", [](auto& r) { r.mutable_token_ids()->add_ids(1 << 30); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-0.5F); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(NAN); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(INFINITY); }},
      {"sampling.temperature", [](auto& r) { r.mutable_sampling()->set_temperature(1e30F); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(1.5F); }},
      {"sampling.top_p", [](auto& r) { r.mutable_sampling()->set_top_p(NAN); }},
      {"sampling.top_k", [](auto& r) { r.mutable_sampling()->set_top_k(-1); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(1.5F); }},
      {"sampling.min_p", [](auto& r) { r.mutable_sampling()->set_min_p(NAN); }},
      {"sampling.typical_p", [](auto& r) { r.mutable_sampling()->set_typical_p(0); }},
      {"sampling.typical_p", [](auto& r) { r.mutable_sampling()->set_typical_p(NAN); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.repetition_penalty",
       [](auto& r) { r.mutable_sampling()->set_repetition_penalty(NAN); }},
      {"sampling.frequency_penalty",
       [](auto& r) { r.mutable_sampling()->set_frequency_penalty(-2.5F); }},
      {"sampling.presence_penalty",
       [](auto& r) { r.mutable_sampling()->set_presence_penalty(INFINITY); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(0); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(-5); }},
      {"max_tokens", [](auto& r) { r.set_max_tokens(std::numeric_limits<int32_t>::max()); }},
      {"stop", [](auto& r) { r.add_stop(""); }},
      {"stop", [](auto& r) { r.add_stop(std::string(100'000, 'x')); }},
      {"stop",
       [](auto& r) {
         for (int i = 0; i < 1000; ++i) r.add_stop("x");
       }},
      {"stop", [](auto& r) { r.add_stop("\xc3"); }},
      {"stop_token_ids[0]", [](auto& r) { r.add_stop_token_ids(-1); }},
      {"stop_token_ids[0]", [](auto& r) { r.add_stop_token_ids(1 << 30); }},
      {"stop_token_ids",
       [](auto& r) {
         for (int i = 0; i < 2000; ++i) r.add_stop_token_ids(1);
       }},
      {"min_tokens", [](auto& r) { r.set_min_tokens(-1); }},
      {"min_tokens", [](auto& r) { r.set_max_tokens(4), r.set_min_tokens(5); }},
      {"logit_bias[-1]", [](auto& r) { (*r.mutable_logit_bias())[-1] = 1; }},
      {"logit_bias[1073741824]", [](auto& r) { (*r.mutable_logit_bias())[1 << 30] = 1; }},
      {"logit_bias[7]", [](auto& r) { (*r.mutable_logit_bias())[7] = -INFINITY; }},
      {"logit_bias[7]", [](auto& r) { (*r.mutable_logit_bias())[7] = NAN; }},
      {"logit_bias",
       [](auto& r) {
         for (int i = 0; i < 1025; ++i) (*r.mutable_logit_bias())[i] = 1;
       }},
      {"logprobs", [](auto& r) { r.set_logprobs(-1); }},
      {"logprobs", [](auto& r) { r.set_logprobs(21); }},
      {"prompt_logprobs", [](auto& r) { r.set_prompt_logprobs(21); }},
      {"n", [](auto& r) { r.set_n(0); }},
      {"n", [](auto& r) { r.set_n(129); }},
      {"best_of", [](auto& r) { r.set_n(3), r.set_best_of(2); }},
      {"priority", [](auto& r) { r.set_priority(1001); }},
      {"priority", [](auto& r) { r.set_priority(std::numeric_limits<int32_t>::min()); }},
      {"deadline_ms", [](auto& r) { r.set_deadline_ms(-1); }},
      {"deadline_ms", [](auto& r) { r.set_deadline_ms(std::numeric_limits<int64_t>::max()); }},
      {"cache_salt", [](auto& r) { r.set_cache_salt(std::string(257, 'x')); }},
      {"draft_nodes_max", [](auto& r) { r.set_draft_nodes_max(-1); }},
      {"draft_nodes_max", [](auto& r) { r.set_draft_nodes_max(5000); }},
      {"route", [](auto& r) { r.set_route("nowhere"); }},
      {"route", [](auto& r) { r.set_route(std::string(5000, 'x')); }},
      {"route", [](auto& r) { r.set_route("\xc3\xa9"); }},
      {"request_id", [](auto& r) { r.set_request_id("\xc3\xa9"); }},
      {"request_id", [](auto& r) { r.set_request_id(std::string(5000, 'x')); }},
      {"request_id", [](auto& r) { r.set_request_id("a\nb"); }},
  };
  const uint64_t refused_before = daemon_->client().status().value().refused();
  std::string told;
  for (const auto& [field, edit] : table) {
    const grpc::Status status = status_of(edit);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << field << ": " << status.error_message();
    const std::string front = status.error_message().substr(0, std::strlen(field) + 1);
    EXPECT_TRUE(front == std::string(field) + ":" || front == std::string(field) + "[")
        << field << ": " << status.error_message();
    told += status.error_message() + "\n";
  }
  EXPECT_EQ(daemon_->client().status().value().refused() - refused_before, std::size(table))
      << "each is counted once, whoever refuses it";
  std::ifstream file(std::string(SPECD_SOURCE_DIR) + "/tests/host/rpc/request_errors.txt");
  const std::string words((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  EXPECT_EQ(told, words);
  // Nothing of the machine: folders, addresses, source files.
  for (const std::string& inner :
       {daemon_->folder().string(), std::string("/tmp"), std::string(SPECD_SOURCE_DIR),
        std::string("0x"), std::string(".cc"), std::string(".h:")}) {
    EXPECT_EQ(told.find(inner), std::string::npos) << inner;
  }
}

TEST_F(RequestTest, what_is_at_a_bound_is_taken_and_the_next_value_is_refused) {
  struct Bound {
    const char* field;
    Edit inside, outside;
  };
  const auto sampling = [](auto set, float value) -> Edit {
    return [set, value](v1::GenerateRequest& r) { (r.mutable_sampling()->*set)(value); };
  };
  const auto below = [](float value) { return std::nextafter(value, -INFINITY); };
  const auto above = [](float value) { return std::nextafter(value, INFINITY); };
  const auto floats = [&](const char* field, auto set, float low, float high) {
    return std::vector<Bound>{{field, sampling(set, low), sampling(set, below(low))},
                              {field, sampling(set, high), sampling(set, above(high))}};
  };
  const auto stops = [](size_t n, size_t bytes) -> Edit {
    return [n, bytes](v1::GenerateRequest& r) {
      for (size_t i = 0; i < n; ++i) r.add_stop(std::string(bytes, 'x'));
    };
  };
  const auto stop_ids = [](int n, int32_t id) -> Edit {
    return [n, id](v1::GenerateRequest& r) {
      for (int i = 0; i < n; ++i) r.add_stop_token_ids(id);
    };
  };
  const auto biases = [](int32_t n, int32_t first, float add) -> Edit {
    return [n, first, add](v1::GenerateRequest& r) {
      for (int32_t i = 0; i < n; ++i) (*r.mutable_logit_bias())[first + i] = add;
    };
  };
  const auto ids = [](int n, int32_t id, int32_t max_tokens) -> Edit {
    return [n, id, max_tokens](v1::GenerateRequest& r) {
      for (int i = 0; i < n; ++i) r.mutable_token_ids()->add_ids(id);
      r.set_max_tokens(max_tokens);
    };
  };
  using S = v1::Sampling;
  using R = v1::GenerateRequest;
  std::vector<Bound> bounds;
  for (const std::vector<Bound>& each :
       {floats("sampling.temperature", &S::set_temperature, 0.01F, 100),
        floats("sampling.min_p", &S::set_min_p, 0, 1),
        floats("sampling.typical_p", &S::set_typical_p, std::numeric_limits<float>::denorm_min(),
               1),
        floats("sampling.repetition_penalty", &S::set_repetition_penalty, 0.01F, 100),
        floats("sampling.frequency_penalty", &S::set_frequency_penalty, -2, 2),
        floats("sampling.presence_penalty", &S::set_presence_penalty, -2, 2),
        floats("sampling.top_p", &S::set_top_p, std::numeric_limits<float>::denorm_min(), 1)}) {
    bounds.insert(bounds.end(), each.begin(), each.end());
  }
  const std::vector<Bound> others = {
      {"sampling.top_k", [](R& r) { r.mutable_sampling()->set_top_k(0); },
       [](R& r) { r.mutable_sampling()->set_top_k(-1); }},
      {"sampling.top_k", [](R& r) { r.mutable_sampling()->set_top_k(INT32_MAX); },
       [](R& r) { r.mutable_sampling()->set_top_k(INT32_MIN); }},
      {"max_tokens", [](R& r) { r.set_max_tokens(1); }, [](R& r) { r.set_max_tokens(0); }},
      // The context holds 2048.
      {"max_tokens", ids(1, 5, 2047), ids(1, 5, 2048)},
      {"token_ids", ids(2047, 5, 1), ids(2048, 5, 1)},
      {"max_tokens", ids(1, 5, 2047), ids(1, 5, 2049)},
      {"token_ids", ids(3, 0, 4), ids(3, -1, 4)},
      {"token_ids", ids(3, 4095, 4), ids(3, 4096, 4)},
      {"stop", stops(16, 3), stops(17, 3)},
      {"stop", stops(1, 1), stops(1, 0)},
      {"stop", stops(1, 256), stops(1, 257)},
      {"stop_token_ids", stop_ids(1, 0), stop_ids(1, -1)},
      {"stop_token_ids", stop_ids(1, 4095), stop_ids(1, 4096)},
      {"stop_token_ids", stop_ids(1024, 1), stop_ids(1025, 1)},
      {"min_tokens", [](R& r) { r.set_min_tokens(0); }, [](R& r) { r.set_min_tokens(-1); }},
      {"min_tokens", [](R& r) { r.set_max_tokens(2), r.set_min_tokens(2); },
       [](R& r) { r.set_max_tokens(2), r.set_min_tokens(3); }},
      {"logit_bias", biases(1024, 0, 100), biases(1025, 0, 100)},
      {"logit_bias", biases(1, 0, -100), biases(1, 0, below(-100))},
      {"logit_bias", biases(1, 4095, 100), biases(1, 4095, above(100))},
      {"logit_bias", biases(1, 4095, 0), biases(1, 4096, 0)},
      {"priority", [](R& r) { r.set_priority(1000); }, [](R& r) { r.set_priority(1001); }},
      {"priority", [](R& r) { r.set_priority(-1000); }, [](R& r) { r.set_priority(-1001); }},
      {"deadline_ms", [](R& r) { r.set_deadline_ms(0); }, [](R& r) { r.set_deadline_ms(-1); }},
      {"deadline_ms", [](R& r) { r.set_deadline_ms(604'800'000); },
       [](R& r) { r.set_deadline_ms(604'800'001); }},
      {"cache_salt", [](R& r) { r.set_cache_salt(std::string(256, 'x')); },
       [](R& r) { r.set_cache_salt(std::string(257, 'x')); }},
      {"draft_nodes_max", [](R& r) { r.set_draft_nodes_max(0); },
       [](R& r) { r.set_draft_nodes_max(-1); }},
      {"draft_nodes_max", [](R& r) { r.set_draft_nodes_max(1024); },
       [](R& r) { r.set_draft_nodes_max(1025); }},
      {"logprobs", [](R& r) { r.set_logprobs(20); }, [](R& r) { r.set_logprobs(21); }},
      {"prompt_logprobs", [](R& r) { r.set_prompt_logprobs(0); },
       [](R& r) { r.set_prompt_logprobs(-1); }},
      {"n", [](R& r) { r.set_n(128); }, [](R& r) { r.set_n(129); }},
      {"best_of", [](R& r) { r.set_best_of(128); }, [](R& r) { r.set_best_of(129); }},
      {"request_id", [](R& r) { r.set_request_id(std::string(128, 'x')); },
       [](R& r) { r.set_request_id(std::string(129, 'x')); }},
      {"request_id", [](R& r) { r.set_request_id("!~"); }, [](R& r) { r.set_request_id("\x7f"); }},
  };
  bounds.insert(bounds.end(), others.begin(), others.end());
  for (const Bound& each : bounds) {
    // The choices of a cancelled request may still fill the queue.
    for (Client client = daemon_->client(); client.status().value().waiting() > 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const grpc::Status taken = status_of(each.inside);
    EXPECT_TRUE(taken.ok() || taken.error_code() == grpc::StatusCode::CANCELLED)
        << each.field << ": " << taken.error_message();
    const grpc::Status refused = status_of(each.outside);
    EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << each.field;
    EXPECT_TRUE(refused.error_message().starts_with(each.field)) << refused.error_message();
  }
}

// Two bytes of a message can take forty in memory.
TEST_F(RequestTest, a_message_that_grows_in_memory_is_refused) {
  v1::GenerateRequest request = make_request("off", 4);
  google::protobuf::UnknownFieldSet* const unknown =
      request.GetReflection()->MutableUnknownFields(&request);
  for (int i = 0; i < 1'000'000; ++i) unknown->AddVarint(100, 1);
  const auto stub = v1::Inference::NewStub(daemon_->channel());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(status.error_message().starts_with("request: expected at most 8388608 bytes in"))
      << status.error_message();
  grpc::ClientContext other;
  v1::RenderChatResponse rendered;
  status = stub->RenderChat(&other, request, &rendered);
  EXPECT_TRUE(status.error_message().starts_with("request: expected at most 8388608 bytes in"))
      << status.error_message();
}

// A name is a string of the wire: protobuf refuses what is not UTF-8 before any service sees it.
TEST_F(RequestTest, a_name_that_is_not_utf8_is_no_message_and_the_daemon_goes_on) {
  for (const auto& edit : std::vector<Edit>{[](auto& r) { r.set_route("\xff"); },
                                            [](auto& r) { r.set_request_id("\xff"); }}) {
    EXPECT_FALSE(status_of(edit).ok());
  }
  // Our own client says which, and neither escapes nor sends it.
  v1::GenerateRequest request = make_request("no\xff", 4);
  const auto refused = [&] { return daemon_->client().generate(request, {}).status().text(); };
  EXPECT_EQ(refused(), "route: expected UTF-8");
  request.set_route("off");
  request.set_request_id("\xff");
  EXPECT_EQ(refused(), "request_id: expected UTF-8");
  request.clear_request_id();
  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->add_messages()->set_role("\xff");
  EXPECT_EQ(refused(), "chat.messages[1].role: expected UTF-8");
  EXPECT_EQ(daemon_->client().cancel("\xff").status().text(), "request_id: expected UTF-8");
}

TEST_F(RequestTest, prompt_beyond_the_context_is_refused) {
  v1::GenerateRequest request = make_request("off", 4);
  for (int i = 0; i < 5000; ++i) request.mutable_token_ids()->add_ids(5);
  const auto result = daemon_->client().generate(request, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << result.status().text();
}

TEST_F(RequestTest, message_beyond_the_limit_is_refused_and_the_daemon_goes_on) {
  v1::GenerateRequest request = make_request("off", 4);
  request.set_text(std::string(5 << 20, 'x'));
  const auto result = daemon_->client().generate(request, {});
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), Code::kExhausted) << result.status().text();
  EXPECT_TRUE(daemon_->client().status().ok());
}

TEST_F(RequestTest, bytes_that_are_not_http2_are_survived) {
  for (const char* bytes :
       {"GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff", ""}) {
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, daemon_->socket().c_str(), sizeof(address.sun_path) - 1);
    ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(send(fd, bytes, std::strlen(bytes), MSG_NOSIGNAL),
              static_cast<ssize_t>(std::strlen(bytes)));
    close(fd);
  }
  EXPECT_TRUE(daemon_->client().generate(make_request("off", 2), {}).ok());
}

}  // namespace
}  // namespace specd::host
