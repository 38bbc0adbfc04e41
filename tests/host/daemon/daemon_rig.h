// A real daemon in its own folder, for tests that use it as a client would.
#pragma once

#include <fcntl.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "host/rpc/client.h"
#include "host/base/unix_socket.h"
#include "tests/host/base/read_file.h"
#include "tests/host/base/run_command.h"

namespace specd::host {

namespace fs = std::filesystem;

inline bool eventually(const std::function<bool()>& condition) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
       std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(std::chrono::milliseconds(10)))
    if (condition()) return true;
  return false;
}

inline uint64_t resident_bytes(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  uint64_t size = 0, resident = 0;
  file >> size >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// One specd process in a folder of its own.
class Daemon {
 public:
  Daemon() {
    std::string pattern = (fs::temp_directory_path() / "specd-daemon-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    folder_ = pattern;
  }
  ~Daemon() {
    if (pid_ > 0) stop(SIGKILL);
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }

  const fs::path& folder() const { return folder_; }
  std::string socket() const { return (folder_ / "specd.sock").string(); }
  std::string output() const { return read_file(folder_ / "log"); }
  pid_t pid() const { return pid_; }

  void write_config(const std::string& more_routes = "", const std::string& plugins = SPECD_PLUGINS,
                    const std::string& head = "") {
    std::ofstream(folder_ / "c.yaml")
        << "listen: unix:specd.sock\n"
        << head << "engine: {threads: 2, max_sequences: 8}\n"
        << "model: {name: pico, path: " << SPECD_SOURCE_DIR << "/configs/zoo/pico-target}\n"
        << "plugins: {directories: [" << plugins << "], cache_directory: cache}\n"
        << "default_route: lookup\n"
        << "routes:\n"
        << "  lookup:\n"
        << "    drafter: {plugin: specd.drafter.prompt_lookup}\n"
        << "    verifier: {plugin: specd.verifier.match}\n"
        << more_routes;
  }

  // A whole configuration except `listen`; ZOO, PLUGINS, HANG and BAD are
  // replaced by the folders.
  void write_config_text(std::string text) {
    const auto replace = [&](const std::string& word, const std::string& with) {
      for (size_t i = text.find(word); i != std::string::npos; i = text.find(word, i + with.size()))
        text.replace(i, word.size(), with);
    };
    replace("ZOO", std::string(SPECD_SOURCE_DIR) + "/configs/zoo");
    replace("PLUGINS", SPECD_PLUGINS);
    replace("HANG", SPECD_HANG_PLUGINS);
    replace("BAD", SPECD_BAD_PLUGINS);
    std::ofstream(folder_ / "c.yaml") << "listen: unix:specd.sock\n" << text;
  }

  // `in_child` runs between fork and exec.
  void spawn(const std::function<void()>& in_child = [] {}) {
    spawn_words(serve_words(), in_child);
  }
  // The words of `specd serve`, with settings such as "engine.threads=2".
  std::vector<std::string> serve_words(const std::vector<std::string>& settings = {}) const {
    std::vector<std::string> words{SPECD_BINARY, "serve", "--config",
                                   (folder_ / "c.yaml").string()};
    for (const std::string& setting : settings) words.insert(words.end(), {"--set", setting});
    return words;
  }
  // A program, by its path or its name, with its arguments.
  void spawn_words(
      std::vector<std::string> words, const std::function<void()>& in_child = [] {}) {
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      const int log = open((folder_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(log, STDERR_FILENO);
      dup2(log, STDOUT_FILENO);
      in_child();
      execvp(arguments.front(), arguments.data());
      _exit(127);
    }
  }
  bool wait_ready() {
    return eventually([&] { return output().find(" ready on unix:") != std::string::npos; });
  }
  bool start() {
    spawn();
    return wait_ready();
  }
  // The process was waited for.
  void forget() { pid_ = -1; }
  // The exit code, or 1000 + the signal.
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }
  int stop(int number = SIGTERM) {
    kill(pid_, number);
    return wait();
  }
  // "127.0.0.1:PORT" that the daemon chose, as it logs it; "" before it does.
  std::string http_endpoint() const {
    const std::string front = "HTTP on http://";
    const std::string text = output();
    const size_t begin = text.find(front);
    if (begin == std::string::npos) return "";
    const size_t end = text.find('\n', begin + front.size());
    return text.substr(begin + front.size(), end - begin - front.size());
  }
  std::shared_ptr<grpc::Channel> channel() const {
    return grpc::CreateChannel(socket_uri(socket()), grpc::InsecureChannelCredentials());
  }
  Client client() const {
    auto client = Client::connect(socket());
    EXPECT_TRUE(client.ok()) << client.status().text() << output();
    return std::move(client).value();
  }

 private:
  fs::path folder_;
  pid_t pid_ = -1;
};

inline constexpr char kPrompt[] =
    "class Point:\n    def __init__(self, x, y):\n        self.x = x\n        self.y = y\n\n"
    "class Vector:\n    def __init__(self, x, y):\n        self.x = x\n";

inline v1::GenerateRequest make_request(const std::string& route, int32_t max_tokens,
                                        float temperature = 0) {
  v1::GenerateRequest request;
  request.set_text(kPrompt);
  request.set_route(route);
  request.set_max_tokens(max_tokens);
  request.mutable_sampling()->set_temperature(temperature);
  request.mutable_sampling()->set_seed(7);
  request.set_ignore_eos(true);
  return request;
}

// A call without the generated code: "/grpc.health.v1.Health/Check", and the bytes of its message.
inline grpc::Status call_raw(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& method, const std::string& body,
                             grpc::ByteBuffer& response) {
  const grpc::Slice slice(body);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  grpc::CompletionQueue queue;
  grpc::TemplatedGenericStub<grpc::ByteBuffer, grpc::ByteBuffer> stub(channel);
  const auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

// grpc.health.v1 by hand: its messages are one string and one enum.
inline std::string health(const std::shared_ptr<grpc::Channel>& channel,
                          const std::string& service) {
  std::string body;
  if (!service.empty()) body = std::string("\x0a") + static_cast<char>(service.size()) + service;
  grpc::ByteBuffer response;
  const grpc::Status status = call_raw(channel, "/grpc.health.v1.Health/Check", body, response);
  if (!status.ok()) return "error " + std::to_string(status.error_code());
  std::vector<grpc::Slice> slices;
  if (!response.Dump(&slices).ok()) return "no body";
  std::string bytes;
  for (const grpc::Slice& part : slices)
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  return bytes == "\x08\x01" ? "SERVING" : bytes == "\x08\x02" ? "NOT_SERVING" : "other";
}

inline std::pair<int, std::string> run_specctl(const Daemon& daemon, const std::string& arguments) {
  return run_command((fs::path(SPECD_BINARY).parent_path() / "specctl").string() + " --socket " +
                     daemon.socket() + " " + arguments);
}

// Runs the command, which ends with this code and prints these words.
inline void expect_specctl(const Daemon& daemon, const std::string& command, int code,
                           const std::string& words) {
  const auto [ended, text] = run_specctl(daemon, command);
  EXPECT_EQ(ended, code) << command << ": " << text;
  EXPECT_NE(text.find(words), std::string::npos) << command << ": " << text;
}

// One daemon for the tests that leave it as they found it; the books are checked after each.
class DaemonTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    daemon_ = new Daemon;
    daemon_->write_config();
    ASSERT_TRUE(daemon_->start()) << daemon_->output();
  }
  static void TearDownTestSuite() {
    EXPECT_EQ(daemon_->stop(), 0) << daemon_->output();
    EXPECT_FALSE(fs::exists(daemon_->socket()));
    delete daemon_;
  }
  void TearDown() override {
    Client client = daemon_->client();
    EXPECT_TRUE(eventually([&] {
      const auto status = client.status();
      return status.ok() && status.value().running() == 0 && status.value().waiting() == 0;
    }));
    const auto status = client.status();
    ASSERT_TRUE(status.ok());
    const v1::GetStatusResponse& s = status.value();
    EXPECT_EQ(s.admitted(), s.completed() + s.failed() + s.cancelled());
    const auto models = client.models();
    ASSERT_TRUE(models.ok());
    const v1::Model& model = models.value().models(0);
    EXPECT_EQ(model.kv_pages_free() + model.kv_pages_cached(), model.kv_pages_total());
    const auto routes = client.routes();
    ASSERT_TRUE(routes.ok());
    for (const v1::Route& route : routes.value().routes())
      EXPECT_EQ(route.drafted(), route.accepted() + route.rejected() + route.discarded())
          << route.name();
  }
  static inline Daemon* daemon_ = nullptr;
};

}  // namespace specd::host
