// The daemon over TCP: certificates on both sides, or everybody on this machine after a word.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/host/daemon/daemon_rig.h"
#include "tests/host/rpc/doors_rig.h"
#include "tests/host/rpc/http2_frames.h"
#include "tests/host/rpc/tls_rig.h"

namespace specd::host {
namespace {

class Tcp : public testing::Test {
 protected:
  Tcp() { signal(SIGPIPE, SIG_IGN); }  // of OpenSSL in this process

  // `tcp` and `users` of the configuration.
  void write_config(const std::string& users, bool has_tls = true) {
    authority_.write(daemon_.folder() / "ca");
    server_.write(daemon_.folder() / "server");
    daemon_.write_config(
        "", SPECD_PLUGINS,
        "tcp:\n  listen: 127.0.0.1:0\n" +
            std::string(has_tls ? "  tls: {certificate: server.pem, key: server.key, client_ca: "
                                  "ca.pem}\n"
                                : "") +
            (users.empty() ? "" : "users: [" + users + "]\n"));
  }
  void start(const std::string& users) {
    write_config(users);
    ASSERT_TRUE(daemon_.start()) << daemon_.output();
  }
  void stop() { EXPECT_EQ(daemon_.stop(), 0) << daemon_.output(); }
  // "127.0.0.1:PORT"
  std::string address() const {
    const std::string text = daemon_.output(), front = " and 127.0.0.1:";
    const size_t begin = text.find(front);
    if (begin == std::string::npos) return "127.0.0.1:1";
    return "127.0.0.1:" + std::to_string(std::stoi(text.substr(begin + front.size())));
  }
  std::shared_ptr<grpc::Channel> channel(const Identity& client) const {
    return grpc::CreateChannel(
        address(), grpc::SslCredentials({.pem_root_certs = authority_.certificate_text(),
                                         .pem_private_key = client.key_text(),
                                         .pem_cert_chain = client.certificate_text()}));
  }
  Identity identity(const std::string& name) const {
    return Identity({.common_name = name}, &authority_);
  }
  bool has_logged(const std::string& words) const {
    return eventually([&] { return daemon_.output().find(words) != std::string::npos; });
  }

  Daemon daemon_;
  const Identity authority_{{.common_name = "authority", .is_authority = true}};
  const Identity server_{{.alternative_names = "IP:127.0.0.1,DNS:localhost", .usage = "serverAuth"},
                         &authority_};
};

TEST_F(Tcp, each_rpc_is_served_to_certificates_with_its_right) {
  std::string users;
  for (const auto& [given, rights] : kCredentials)
    users += (users.empty() ? "" : ", ") +
             ("{certificate: 'may " + given + "', rights: [" + given + "]}");
  start(users);
  const Identity unlisted = identity("nobody");
  expect_rpcs(channel(unlisted), address(), "", {}, {});
  EXPECT_TRUE(
      has_logged("address 127.0.0.1, with a certificate of 'nobody', may not use " + address()))
      << daemon_.output();
  for (const auto& [given, rights] : kCredentials) {
    if (given == "operate") continue;  // it drains the daemon
    const Identity client = identity("may " + given);
    expect_rpcs(channel(client), address(), given, rights, {"infer", "read", "operate"});
  }
  expect_refusals_only(daemon_.output());
  EXPECT_TRUE(eventually([&] {
    return daemon_.output().find(
               "by client 'may read': refused, for want of the right 'operate'") !=
           std::string::npos;
  })) << daemon_.output();
  const Identity client = identity("may operate");
  expect_rpcs(channel(client), address(), "operate", {"read", "operate"},
              {"infer", "read", "operate"});
  EXPECT_EQ(daemon_.wait(), 0) << "it was drained: " << daemon_.output();
  EXPECT_NE(daemon_.output().find("by client 'may operate'"), std::string::npos)
      << daemon_.output();
}

TEST_F(Tcp, the_first_user_who_fits_counts_also_one_without_rights) {
  start("{certificate: lost, rights: []}, {certificate: team, rights: [infer, read]}");
  const auto is_served = [&](const std::string& names) {
    const Identity client({.common_name = "x", .alternative_names = names}, &authority_);
    grpc::ByteBuffer unused;
    return call_raw(channel(client), "/specd.v1.Control/GetStatus", "", unused).ok();
  };
  EXPECT_TRUE(is_served("DNS:team"));
  EXPECT_FALSE(is_served("DNS:team,DNS:lost"));
  EXPECT_FALSE(is_served("DNS:x"));
  EXPECT_TRUE(is_served("DNS:x,URI:team"));
  stop();
}

TEST_F(Tcp, a_client_without_a_certificate_never_reaches_grpc) {
  start("{certificate: client, rights: [infer]}");
  const double before = cpu_seconds(daemon_.pid());
  const std::string hello = kHttp2Preface + http2_frame(4, 0, 0, "");
  const std::string frame = http2_frame(9, 0, 1, std::string(16'000, 'x'));
  for (int connection = 0; connection < 20; ++connection) {  // a mebibyte each
    const FileDescriptor client = connect_tcp(address());
    send(client.get(), hello.data(), hello.size(), MSG_NOSIGNAL);
    for (int i = 0; i < 64 && send(client.get(), frame.data(), frame.size(), MSG_NOSIGNAL) > 0;
         ++i) {
    }
    std::string answer(100, '\0');
    const ssize_t n = recv(client.get(), answer.data(), answer.size(), 0);
    // An alert of TLS at most, whose first byte is 21; a frame of gRPC begins with its length, 0.
    EXPECT_TRUE(n <= 0 || answer[0] == 21) << "an answer of gRPC";
  }
  EXPECT_LT(cpu_seconds(daemon_.pid()) - before, 0.1);
  TlsClient client(address(), nullptr);
  client.send(hello);
  EXPECT_EQ(client.read_all(), "");
  EXPECT_TRUE(has_logged("address 127.0.0.1 was turned away at " + address() + ": "))
      << daemon_.output();
  const Identity listed = identity("client");
  const auto stub = v1::Inference::NewStub(channel(listed));
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, make_request("off", 5));
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok()) << "and the one who has one is served";
  stop();
}

TEST_F(Tcp, texts_are_those_of_the_socket_and_specctl_works_as_it_does_there) {
  start("{certificate: client, rights: [infer, operate]}");
  identity("client").write(daemon_.folder() / "client");
  const std::string folder = daemon_.folder().string() + "/";
  auto client = Client::connect_tcp(address(), Client::Tls{.ca = folder + "ca.pem",
                                                           .certificate = folder + "client.pem",
                                                           .key = folder + "client.key"});
  ASSERT_TRUE(client.ok()) << client.status().text();
  for (const float temperature : {0.0F, 0.8F}) {
    const auto there = daemon_.client().generate(make_request("lookup", 60, temperature), {});
    const auto here = client.value().generate(make_request("lookup", 60, temperature), {});
    ASSERT_TRUE(there.ok() && here.ok());
    EXPECT_EQ(here.value().token_ids, there.value().token_ids);
  }
  const std::string specctl =
      (fs::path(SPECD_BINARY).parent_path() / "specctl").string() + " --server ";
  const std::string files = " --tls-ca " + folder + "ca.pem --tls-certificate " + folder +
                            "client.pem --tls-key " + folder + "client.key ";
  const auto [code, text] = run_command(specctl + address() + files + "routes");
  EXPECT_EQ(code, 0) << text;
  EXPECT_NE(text.find("lookup"), std::string::npos) << text;
  const auto [wrong_code, wrong] =
      run_command(specctl + address() + " --tls-ca " + folder + "client.pem --tls-certificate " +
                  folder + "client.pem --tls-key " + folder + "client.key routes");
  EXPECT_EQ(wrong_code, 4) << "the server is not one of this authority: " << wrong;
  EXPECT_NE(wrong.find("nobody answers on " + address() + " who has a certificate of this host"),
            std::string::npos)
      << wrong;
  stop();
}

TEST_F(Tcp, certificates_are_read_again_with_the_configuration_or_nothing_is) {
  start("{certificate: client, rights: [infer, operate]}");
  const auto reload = [&] { return run_specctl(daemon_, "reload"); };
  const auto is_served = [&](const Identity& client) {
    grpc::ByteBuffer unused;
    return call_raw(channel(client), "/specd.v1.Control/GetStatus", "", unused).ok();
  };
  const Identity other({.common_name = "other", .is_authority = true});
  const Identity of_other({.common_name = "client"}, &other), client = identity("client");
  std::ofstream(daemon_.folder() / "ca.pem") << "no certificate";
  const auto [code, text] = reload();
  EXPECT_EQ(code, 1) << text;
  EXPECT_NE(text.find("c.yaml:4:51: tcp.tls.client_ca: "), std::string::npos) << text;
  EXPECT_TRUE(is_served(client)) << "all is as it was";
  other.write(daemon_.folder() / "ca");
  EXPECT_FALSE(is_served(of_other));
  const auto [done, told] = reload();
  EXPECT_EQ(done, 0) << told;
  EXPECT_NE(told.find("tcp.tls: a certificate that expires "), std::string::npos) << told;
  EXPECT_EQ(reload().second.find("certificate"), std::string::npos) << "nothing is new";
  EXPECT_TRUE(is_served(of_other));
  EXPECT_FALSE(is_served(client));
  stop();
}

TEST_F(Tcp, without_certificates_it_takes_a_word_and_serves_inference_to_this_machine) {
  write_config("", false);
  daemon_.spawn();
  EXPECT_EQ(daemon_.wait(), 3) << daemon_.output();
  EXPECT_NE(daemon_.output().find("c.yaml:2:1: tcp.tls: expected certificates; to let everybody on "
                                  "this machine use Inference without, start with --insecure"),
            std::string::npos)
      << daemon_.output();
  std::vector<std::string> words = daemon_.serve_words();
  words.emplace_back("--insecure");
  daemon_.spawn_words(words);
  ASSERT_TRUE(daemon_.wait_ready()) << daemon_.output();
  expect_rpcs(grpc::CreateChannel(address(), grpc::InsecureChannelCredentials()), address(),
              "infer", {"infer"}, {"infer"});
  const auto client = Client::connect_tcp(address(), std::nullopt);
  ASSERT_TRUE(client.ok()) << client.status().text();
  stop();
}

TEST_F(Tcp, a_port_that_is_taken_is_named) {
  start("");
  Daemon other;
  other.write_config("", SPECD_PLUGINS, "tcp: {listen: '" + address() + "'}\n");
  std::vector<std::string> words = other.serve_words();
  words.emplace_back("--insecure");
  other.spawn_words(words);
  EXPECT_EQ(other.wait(), 1);
  EXPECT_NE(other.output().find("c.yaml:2:7: tcp.listen: cannot listen on " + address() +
                                ": bind: Address already in use"),
            std::string::npos)
      << other.output();
  stop();
}

}  // namespace
}  // namespace specd::host
