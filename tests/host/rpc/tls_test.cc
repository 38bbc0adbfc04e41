#include "host/rpc/tls.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "host/rpc/listener.h"
#include "tests/host/rpc/tls_rig.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

class Tls : public testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);  // as the daemon does
    std::string pattern = (fs::temp_directory_path() / "specd-tls-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    authority_.write(folder_ / "ca");
    server_.write(folder_ / "server");
  }
  void TearDown() override {
    listener_.reset();
    taken_.clear();
    fs::remove_all(folder_);
  }

  TlsOptions files() const {
    return {.certificate = (folder_ / "server.pem").string(),
            .key = (folder_ / "server.key").string(),
            .client_ca = (folder_ / "ca.pem").string()};
  }
  // "FIELD: what is wrong", without the folder.
  std::string problem() const {
    const auto loaded = TlsKeys::load(files());
    if (loaded.ok()) return "none";
    std::string text = loaded.status().field() + ": " + loaded.status().message();
    const std::string path = folder_.string() + "/";
    for (size_t i = text.find(path); i != std::string::npos; i = text.find(path))
      text.erase(i, path.size());
    return text;
  }
  void write(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ / file) << text;
  }

  void listen(Listener::Limits limits = {64, 64, 64, 64}) {
    auto keys = TlsKeys::load(files());
    ASSERT_TRUE(keys.ok()) << keys.status().text();
    keys_ = std::move(keys).value();
    auto socket = ListenSocket::at_address("127.0.0.1", 0);
    ASSERT_TRUE(socket.ok()) << socket.status().text();
    const auto admit = [this](const Listener::Credentials& shown) -> Listener::Host {
      EXPECT_FALSE(shown.user.has_value());
      const std::lock_guard lock(mutex_);
      names_ = shown.names;
      return {&take_, "somebody"};
    };
    auto made = Listener::start(std::move(socket).value(), limits, admit, keys_.get());
    ASSERT_TRUE(made.ok()) << made.status().text();
    listener_ = std::move(made).value();
  }
  // The n-th connection as the server holds it.
  int taken(size_t n) {
    for (int i = 0; i < 10'000; ++i) {
      {
        const std::lock_guard lock(mutex_);
        if (taken_.size() > n) return taken_[n].get();
      }
      std::this_thread::sleep_for(milliseconds(1));
    }
    ADD_FAILURE() << "nobody came";
    return -1;
  }
  size_t n_taken() {
    const std::lock_guard lock(mutex_);
    return taken_.size();
  }
  // Whom the certificate names as the server sees it.
  std::vector<std::string> seen(const Wanted& wanted) {
    const Identity client(wanted, &authority_);
    const size_t before = n_taken();
    const TlsClient connection(listener_->name(), &client);
    taken(before);
    const std::lock_guard lock(mutex_);
    return names_;
  }

  fs::path folder_;
  const Identity authority_{{.common_name = "authority", .is_authority = true}};
  const Identity server_{{.alternative_names = "IP:127.0.0.1", .usage = "serverAuth"}, &authority_};
  const Identity client_{{.common_name = "client"}, &authority_};
  std::unique_ptr<TlsKeys> keys_;
  std::mutex mutex_;
  std::vector<FileDescriptor> taken_;
  std::vector<std::string> names_;
  const Listener::Take take_ = [this](int fd) {
    const std::lock_guard lock(mutex_);
    taken_.emplace_back(fd);
  };
  std::unique_ptr<Listener> listener_;
};

TEST_F(Tls, what_is_wrong_with_a_file_is_said) {
  EXPECT_EQ(problem(), "none");
  const auto expect = [&](const std::string& words) {
    EXPECT_EQ(problem().substr(0, words.size()), words) << problem();
  };
  fs::remove(folder_ / "ca.pem");
  expect("client_ca: 'ca.pem': cannot open");
  write("ca.pem", "hello");
  expect("client_ca: 'ca.pem': expected certificates as PEM");
  write("ca.pem", authority_.certificate_text() + "-----BEGIN CERTIFICATE-----\nAAAA");
  expect(
      "client_ca: 'ca.pem': expected certificates as PEM (-----BEGIN CERTIFICATE-----); "
      "number 2: ");
  write("ca.pem", client_.certificate_text());
  expect("client_ca: 'ca.pem': expected certificates of authorities");
  authority_.write(folder_ / "ca");

  write("server.key", client_.key_text());
  expect("key: 'server.key': expected the key of the certificate 'server.pem'");
  write("server.key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
  expect("key: 'server.key': expected a private key as PEM");
  server_.write(folder_ / "server");
  fs::permissions(folder_ / "server.key", fs::perms(0644));
  expect("key: 'server.key': others may read or change it");
  fs::permissions(folder_ / "server.key", fs::perms(0440));
  EXPECT_EQ(problem(), "none");
  for (const char* file : {"ca.pem", "server.pem"}) {
    fs::permissions(folder_ / file, fs::perms(0664));
    EXPECT_NE(problem().find("others may change it"), std::string::npos) << problem();
    fs::permissions(folder_ / file, fs::perms(0644));
  }
  fs::remove(folder_ / "server.key");
  fs::create_directory(folder_ / "server.key", folder_);
  expect("key: 'server.key': ");
  fs::remove(folder_ / "server.key");

  Identity({.usage = "serverAuth", .end_seconds = -30}, &authority_).write(folder_ / "server");
  expect("certificate: 'server.pem': it expired on ");
  Identity({.usage = "serverAuth", .begin_seconds = 1000}, &authority_).write(folder_ / "server");
  expect("certificate: 'server.pem': it is valid from ");
  write("server.pem", std::string(2 << 20, 'x'));
  expect("certificate: 'server.pem': 2097152 bytes, expected at most ");
}

TEST_F(Tls, a_client_is_whom_its_certificate_names) {
  listen();
  using Names = std::vector<std::string>;
  EXPECT_EQ(seen({.common_name = "client"}), Names{"client"});
  EXPECT_EQ(seen({.common_name = "client",
                  .alternative_names = "DNS:a.example,URI:spiffe://x/y,"
                                       "email:c@d.example,IP:1.2.3.4"}),
            (Names{"a.example", "spiffe://x/y", "c@d.example"}))
      << "the common name counts only where there is no other";
  EXPECT_EQ(seen({.common_name = std::string("client\0.evil.example", 20)}),
            Names{std::string("client\0.evil.example", 20)})
      << "which is another one than 'client'";
  EXPECT_EQ(seen({}), Names{}) << "nobody";
}

TEST_F(Tls, only_certificates_of_the_authority_for_clients_that_are_valid_now_are_taken) {
  listen();
  const Identity stranger({.common_name = "authority", .is_authority = true});
  const Identity of_stranger({.common_name = "client"}, &stranger);
  const Identity expired({.common_name = "client", .end_seconds = -30}, &authority_);
  const Identity early({.common_name = "client", .begin_seconds = 1000}, &authority_);
  const Identity of_server({.common_name = "client", .usage = "serverAuth"}, &authority_);
  const Identity by_client({.common_name = "client"}, &client_);
  for (const Identity* shown : std::initializer_list<const Identity*>{
           nullptr, &of_stranger, &expired, &early, &of_server, &by_client}) {
    TlsClient client(listener_->name(), shown);
    client.send("hello");
    EXPECT_EQ(client.read_all(), "");
  }
  // Not TLS at all, and nothing at all.
  const FileDescriptor plain = connect_tcp(listener_->name());
  send(plain.get(), "PRI * HTTP/2.0", 14, MSG_NOSIGNAL);
  char unused[100];
  while (recv(plain.get(), unused, sizeof(unused), 0) > 0) {
  }
  { const FileDescriptor silent = connect_tcp(listener_->name()); }
  EXPECT_EQ(n_taken(), 0U);
  const TlsClient client(listener_->name(), &client_);
  EXPECT_GE(taken(0), 0) << "the right one is";
}

TEST_F(Tls, an_authority_below_another_counts_alone) {
  const Identity below({.common_name = "below", .is_authority = true}, &authority_);
  const Identity beside({.common_name = "beside", .is_authority = true}, &authority_);
  below.write(folder_ / "ca");
  listen();
  const Identity of_below({.common_name = "client"}, &below);
  const Identity of_beside({.common_name = "client"}, &beside);
  const TlsClient client(listener_->name(), &of_below);
  ASSERT_GE(taken(0), 0);
  for (const Identity* shown : {&of_beside, &client_})
    EXPECT_EQ(TlsClient(listener_->name(), shown).read_all(), "");
  EXPECT_EQ(n_taken(), 1U);
}

TEST_F(Tls, a_client_that_talks_on_gets_the_last_bytes_all_the_same) {
  listen();
  TlsClient client(listener_->name(), &client_);
  const int server = taken(0);
  ASSERT_GE(server, 0);
  const std::string answer(1'000'000, 'a');
  std::thread serve([&] {
    for (std::string_view left = answer; !left.empty();) {
      pollfd can{.fd = server, .events = POLLOUT, .revents = 0};
      if (poll(&can, 1, 10'000) <= 0) break;
      const ssize_t n = send(server, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) left.remove_prefix(static_cast<size_t>(n));
    }
    const std::lock_guard lock(mutex_);
    taken_.clear();  // all is under way, and the server closes
  });
  std::string got;
  for (std::string part = client.read_some(); !part.empty(); part = client.read_some()) {
    got += part;
    client.send("more, please");
  }
  serve.join();
  EXPECT_TRUE(got == answer) << got.size();
  EXPECT_TRUE(client.has_ended());
}

TEST_F(Tls, a_client_that_changes_keys_for_ever_is_cut_off_and_one_that_does_so_at_times_is_not) {
  listen();
  TlsClient honest(listener_->name(), &client_), other(listener_->name(), &client_);
  ASSERT_GE(taken(1), 0);
  const int server = taken(0);
  for (int i = 0; i < 20; ++i) {
    honest.update_keys(10);
    EXPECT_EQ(honest.send("x"), 1U);
  }
  std::string got;
  while (got.size() < 20) {
    pollfd wait{.fd = server, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&wait, 1, 10'000), 1);
    char block[100];
    const ssize_t n = recv(server, block, sizeof(block), 0);
    ASSERT_GT(n, 0);
    got.append(block, static_cast<size_t>(n));
  }
  other.update_keys(100);
  pollfd end{.fd = taken(1), .events = POLLIN, .revents = 0};
  ASSERT_EQ(poll(&end, 1, 10'000), 1);
  char byte = 0;
  EXPECT_EQ(recv(end.fd, &byte, 1, 0), 0) << "the server is told that the client has left";
}

TEST_F(Tls, a_record_that_comes_in_pieces_is_waited_for) {
  listen();
  SlowTlsClient client(listener_->name(), client_);
  const int server = taken(0);
  ASSERT_GE(server, 0);
  const std::string text(10'000, 'x');
  for (int round = 0; round < 3; ++round) {
    const std::string record = client.record_of(text);
    for (size_t at = 0; at < record.size(); at += 1000) {
      client.send(record.substr(at, 1000));
      // The server has had its turn when it has read what came.
      client.wait_until_taken();
    }
    std::string got;
    while (got.size() < text.size()) {
      pollfd wait{.fd = server, .events = POLLIN, .revents = 0};
      ASSERT_EQ(poll(&wait, 1, 10'000), 1);
      std::string block(20'000, '\0');
      const ssize_t n = recv(server, block.data(), block.size(), 0);
      ASSERT_GT(n, 0) << "the connection was cut";
      got.append(block, 0, static_cast<size_t>(n));
    }
    EXPECT_TRUE(got == text);
  }
}

TEST_F(Tls, bytes_arrive_unchanged_in_both_directions_and_the_end_is_told) {
  listen();
  std::string request(3'000'001, '\0'), answer(5'000'001, '\0');
  for (size_t i = 0; i < request.size(); ++i) request[i] = static_cast<char>(i * 2654435761U >> 13);
  for (size_t i = 0; i < answer.size(); ++i) answer[i] = static_cast<char>(i * 40503U >> 7);
  TlsClient client(listener_->name(), &client_);
  const int server = taken(0);
  ASSERT_GE(server, 0);
  std::string got;
  std::thread both([&] {
    std::string_view left = answer;
    std::string block(50'000, '\0');
    bool is_open = true;
    while (is_open || !left.empty()) {
      pollfd can{.fd = server, .events = POLLIN, .revents = 0};
      if (!left.empty()) can.events |= POLLOUT;
      if (poll(&can, 1, 10'000) <= 0) break;
      if ((can.revents & POLLOUT) != 0) {
        const ssize_t n = send(server, left.data(), left.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) left.remove_prefix(static_cast<size_t>(n));
      }
      if ((can.revents & POLLIN) == 0) continue;
      const ssize_t n = recv(server, block.data(), block.size(), MSG_DONTWAIT);
      if (n == 0) is_open = false;
      if (n > 0) got.append(block, 0, static_cast<size_t>(n));
    }
    const std::lock_guard lock(mutex_);
    taken_.clear();
  });
  // A blocking client of one thread reads nothing while it sends: both sides fill up.
  EXPECT_EQ(client.send(request), request.size());
  client.finish();
  EXPECT_TRUE(client.read_all() == answer);
  EXPECT_TRUE(client.has_ended());
  both.join();
  EXPECT_TRUE(got == request);
}

TEST_F(Tls, clients_that_say_nothing_lose_their_place_to_others_and_after_a_while) {
  listen({.connections = 4,
          .of_origin = 4,
          .of_user = 4,
          .of_users = 4,
          .greeting = std::chrono::seconds(60)});
  std::vector<FileDescriptor> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(connect_tcp(listener_->name()));
  const TlsClient client(listener_->name(), &client_);
  EXPECT_GE(taken(0), 0);
  EXPECT_TRUE(listener_->status().ok()) << listener_->status().text();
  char byte = 0;
  for (int i = 0; i < 16; ++i) EXPECT_EQ(recv(silent[i].get(), &byte, 1, 0), 0) << i;

  listener_.reset();
  listen({.connections = 4,
          .of_origin = 4,
          .of_user = 4,
          .of_users = 4,
          .greeting = milliseconds(50)});
  const FileDescriptor late = connect_tcp(listener_->name());
  EXPECT_EQ(recv(late.get(), &byte, 1, 0), 0);
}

TEST_F(Tls, new_keys_are_for_new_connections) {
  listen();
  const Identity other({.common_name = "other authority", .is_authority = true});
  const Identity of_other({.common_name = "client"}, &other);
  TlsClient before(listener_->name(), &client_);
  ASSERT_GE(taken(0), 0);
  other.write(folder_ / "ca");
  auto read = keys_->read();
  ASSERT_TRUE(read.ok()) << read.status().text();
  EXPECT_TRUE(keys_->are_new(*read.value()));
  EXPECT_EQ(TlsClient(listener_->name(), &of_other).read_all(), "") << "they are not in use yet";
  EXPECT_EQ(n_taken(), 1U);
  keys_->use(std::move(read).value());
  const TlsClient after(listener_->name(), &of_other);
  ASSERT_GE(taken(1), 0);
  EXPECT_EQ(TlsClient(listener_->name(), &client_).read_all(), "");
  EXPECT_EQ(n_taken(), 2U);
  EXPECT_EQ(before.send("still here"), 10U);
  char byte = 0;
  pollfd wait{.fd = taken(0), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&wait, 1, 10'000), 1);
  EXPECT_EQ(recv(taken(0), &byte, 1, 0), 1);
}

}  // namespace
}  // namespace specd::host
