// Who may connect, and who may call what.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/rpc/doors_rig.h"
#include "tests/host/rpc/http2_frames.h"

namespace specd::host {
namespace {

using std::chrono::milliseconds;

std::string control_socket(const Daemon& daemon) {
  return (daemon.folder() / "control.sock").string();
}

// "users: [{name: '1000', rights: [infer]}]" and a second socket.
std::string users(const std::string& list, bool has_control = true) {
  return (list.empty() ? "" : "users: [" + list + "]\n") +
         std::string(has_control ? "control: {listen: unix:control.sock}\n" : "");
}
std::string user(uid_t id, const std::string& rights, const std::string& more = "") {
  return "{name: '" + std::to_string(id) + "', rights: [" + rights + "]" + more + "}";
}

std::shared_ptr<grpc::Channel> channel_to(const std::string& path) {
  return grpc::CreateChannel(socket_uri(path), grpc::InsecureChannelCredentials());
}

// A connection as another user would make it; -1 when there is none. Only root can do that.
int connect_as(uid_t other, const std::string& path) {
  int fd = -1;
  // The system call is for one thread; the C library's function is for all of them.
  std::thread([&] {
    if (syscall(SYS_setresuid, -1, other, -1) != 0) return;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    path.copy(to.sun_path, sizeof(to.sun_path) - 1);
    if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0) return;
    close(fd);
    fd = -1;
  }).join();
  return fd;
}
std::unique_ptr<v1::Inference::Stub> inference_as(uid_t other, const std::string& path) {
  const int fd = connect_as(other, path);
  EXPECT_GE(fd, 0);
  return v1::Inference::NewStub(grpc::CreateInsecureChannelFromFd("daemon", fd));
}

// For tests that connect as others.
void let_others_in(const Daemon& daemon) {
  fs::permissions(daemon.folder(),
                  fs::perms::owner_all | fs::perms::group_exec | fs::perms::others_exec);
}

TEST(Doors, each_rpc_is_served_on_its_socket_to_users_with_its_right) {
  for (const bool has_control : {true, false}) {
    for (const auto& [given, rights] : kCredentials) {
      Daemon daemon;
      daemon.write_config("", SPECD_PLUGINS, users(user(geteuid(), given), has_control));
      ASSERT_TRUE(daemon.start()) << daemon.output();
      if (has_control) {
        expect_rpcs(channel_to(daemon.socket()), daemon.socket(), given, rights, {"infer"});
        const std::string socket = control_socket(daemon);
        expect_rpcs(channel_to(socket), socket, given, rights, {"read", "operate"});
      } else {
        expect_rpcs(channel_to(daemon.socket()), daemon.socket(), given, rights,
                    {"infer", "read", "operate"});
      }
      if (given == "operate") {
        EXPECT_EQ(daemon.wait(), 0) << "it was drained: " << daemon.output();
      } else {
        expect_refusals_only(daemon.output());
        EXPECT_EQ(daemon.stop(), 0) << daemon.output();
      }
      EXPECT_FALSE(fs::exists(control_socket(daemon)));
    }
  }
}

TEST(Doors, one_socket_serves_both_where_the_configuration_names_one) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, users(user(4711, "read"), false));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  Client client = daemon.client();
  EXPECT_TRUE(client.status().ok());
  EXPECT_TRUE(client.generate(make_request("off", 3), {}).ok());
  EXPECT_FALSE(client.load_plugin({}).ok()) << "it names none";
  EXPECT_TRUE(eventually([&] { return daemon.output().find(", by user ") != std::string::npos; }))
      << "whose change it was: " << daemon.output();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Doors, a_second_daemon_takes_neither_socket) {
  Daemon daemon, other;
  daemon.write_config("", SPECD_PLUGINS, users(""));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  other.write_config("", SPECD_PLUGINS,
                     "control: {listen: 'unix:" + control_socket(daemon) + "'}\n");
  other.spawn();
  EXPECT_EQ(other.wait(), 1);
  EXPECT_NE(other.output().find("another specd (process " + std::to_string(daemon.pid()) +
                                ") serves " + control_socket(daemon)),
            std::string::npos)
      << other.output();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Doors, a_user_who_is_not_listed_never_reaches_grpc) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS, users(user(4711, "infer")));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  let_others_in(daemon);
  const double before = cpu_seconds(daemon.pid());
  std::string flood = kHttp2Preface + http2_frame(4, 0, 0, "");
  const std::string frame = http2_frame(9, 0, 1, std::string(16'000, 'x'));
  EXPECT_LT(connect_as(4711, control_socket(daemon)), 0) << "it could do nothing there";
  for (int connection = 0; connection < 20; ++connection) {  // a mebibyte each
    const int fd = connect_as(4712, daemon.socket());
    ASSERT_GE(fd, 0) << "the socket is open: 4711 is listed";
    send(fd, flood.data(), flood.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 64 && send(fd, frame.data(), frame.size(), MSG_NOSIGNAL) > 0; ++i) {
    }
    char byte = 0;
    EXPECT_LE(recv(fd, &byte, 1, 0), 0) << "an answer of gRPC";
    close(fd);
  }
  EXPECT_LT(cpu_seconds(daemon.pid()) - before, 0.1);
  EXPECT_TRUE(eventually([&] {
    return daemon.output().find("user 4712 may not use ") != std::string::npos;
  })) << daemon.output();
  // And the one who is listed is served.
  const auto stub = inference_as(4711, daemon.socket());
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 5));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Doors, a_user_cancels_own_requests_only_and_an_operator_all) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can connect as another user";
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS,
                      users(user(4711, "infer") + ", " + user(4712, "infer"), false));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  let_others_in(daemon);
  const auto owner = inference_as(4711, daemon.socket());
  const auto stranger = inference_as(4712, daemon.socket());
  const auto cancel = [](v1::Inference::Stub& as, const std::string& id) {
    grpc::ClientContext context;
    v1::CancelRequest request;
    request.set_request_id(id);
    v1::CancelResponse response;
    EXPECT_TRUE(as.Cancel(&context, request, &response).ok());
    return response.found();
  };
  const auto operate = v1::Inference::NewStub(daemon.channel());
  for (v1::Inference::Stub* who : {owner.get(), operate.get()}) {
    grpc::ClientContext context;
    v1::GenerateRequest request = make_request("off", 1500);
    request.set_request_id("mine");
    const auto reader = owner->Generate(&context, request);
    v1::GenerateResponse message;
    ASSERT_TRUE(reader->Read(&message));
    EXPECT_FALSE(cancel(*stranger, "mine"));
    // Nor does it help to have the same id.
    grpc::ClientContext same_context;
    const auto same = stranger->Generate(&same_context, request);
    v1::GenerateResponse unused;
    EXPECT_FALSE(same->Read(&unused));
    EXPECT_FALSE(cancel(*stranger, "mine"));
    EXPECT_EQ(same->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    ASSERT_TRUE(reader->Read(&message)) << "it goes on";
    EXPECT_TRUE(cancel(*who, "mine"));
    while (reader->Read(&message)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Doors, a_user_has_no_more_waiting_requests_than_its_limit) {
  Daemon daemon;
  daemon.write_config("", SPECD_PLUGINS,
                      users(user(geteuid(), "infer, read", ", waiting_max: 1"), false));
  // Two run at a time.
  std::vector<std::string> words = daemon.serve_words({"engine.max_sequences=2"});
  daemon.spawn_words(words);
  ASSERT_TRUE(daemon.wait_ready()) << daemon.output();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
    bool has_text = false;
    void read() {
      v1::GenerateResponse message;
      while (!has_text && reader->Read(&message)) has_text = message.has_chunk();
    }
  };
  std::array<Call, 4> calls;
  const auto open = [&](Call& call) {
    call.reader = stub->Generate(&call.context, make_request("off", 1900));
  };
  for (Call* const each : {&calls[0], &calls[1]}) {
    open(*each);
    each->read();
    EXPECT_TRUE(each->has_text);
  }
  open(calls[2]);
  v1::GenerateResponse started;
  EXPECT_TRUE(calls[2].reader->Read(&started) && started.has_started());
  open(calls[3]);
  calls[3].read();
  EXPECT_FALSE(calls[3].has_text);
  const grpc::Status refused = calls[3].reader->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.error_message().find(
                "has 1 requests that wait for their first output, which is its limit (waiting_max"),
            std::string::npos)
      << refused.error_message();
  // The one that waited runs once there is room for it, and its place is free.
  calls[0].context.TryCancel();
  calls[2].read();
  EXPECT_TRUE(calls[2].has_text);
  calls[1].context.TryCancel();
  calls[2].context.TryCancel();
  Client client = daemon.client();
  EXPECT_TRUE(client.generate(make_request("off", 4), {}).ok());
  for (Call* const each : {&calls[0], &calls[1], &calls[2]}) (void)each->reader->Finish();
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

TEST(Doors, a_user_has_no_more_requests_and_bytes_than_its_limits) {
  Daemon daemon;
  daemon.write_config(
      "", SPECD_PLUGINS,
      users(user(geteuid(), "infer, read", ", requests_max: 2, bytes_max: 2000"), false));
  ASSERT_TRUE(daemon.start()) << daemon.output();
  const auto stub = v1::Inference::NewStub(daemon.channel());
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  const auto open = [&] {
    auto call = std::make_unique<Call>();
    call->reader = stub->Generate(&call->context, make_request("off", 1900));
    v1::GenerateResponse message;
    EXPECT_TRUE(call->reader->Read(&message));
    return call;
  };
  const auto first = open(), second = open();
  const auto refusal = [&](const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
    }
    const grpc::Status status = reader->Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    return status.error_message();
  };
  EXPECT_NE(
      refusal(make_request("off", 4)).find("has 2 requests, which is its limit (requests_max"),
      std::string::npos);
  for (const auto& each : {first.get(), second.get()}) {
    each->context.TryCancel();
    (void)each->reader->Finish();
  }
  Client client = daemon.client();
  EXPECT_TRUE(eventually([&] { return client.generate(make_request("off", 4), {}).ok(); }))
      << "their places are free again";
  v1::GenerateRequest large = make_request("off", 4);
  large.set_text(std::string(2001, 'x'));
  EXPECT_NE(refusal(large).find("bytes of requests, and this one has 20"), std::string::npos);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(client.generate(make_request("off", 1), {}).ok()) << i;
  EXPECT_EQ(daemon.stop(), 0) << daemon.output();
}

}  // namespace
}  // namespace specd::host
