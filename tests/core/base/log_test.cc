#include "core/base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace specd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A process of its own whose standard error is a pipe, because its log thread never ends.
class LogProcess {
 public:
  // `body` runs in the process and gives its exit code; `go` lets it wait for the test.
  template <typename Body>
  explicit LogProcess(Body body) {
    int error[2], go[2];
    if (pipe(error) != 0 || pipe(go) != 0) std::abort();
    pid_ = fork();
    if (pid_ == 0) {
      dup2(error[1], STDERR_FILENO);
      close(error[0]);
      close(error[1]);
      close(go[1]);
      _exit(body([&] {
        char byte = 0;
        (void)!read(go[0], &byte, 1);
      }));
    }
    close(error[1]);
    close(go[0]);
    error_ = error[0];
    go_ = go[1];
  }
  ~LogProcess() {
    close(error_);
    if (go_ >= 0) close(go_);
  }
  LogProcess(const LogProcess&) = delete;
  LogProcess& operator=(const LogProcess&) = delete;

  // Up to `end`, or what comes until the process ends.
  std::string read_until(const std::string& end) {
    std::string text;
    char bytes[4096];
    while (text.find(end) == std::string::npos) {
      const ssize_t n = read(error_, bytes, sizeof(bytes));
      if (n <= 0) break;
      text.append(bytes, static_cast<size_t>(n));
    }
    return text;
  }
  void let_go() {
    close(go_);
    go_ = -1;
  }
  int wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
  int error_ = -1, go_ = -1;
};

size_t count(const std::string& text, const std::string& word) {
  size_t n = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(Log, lines_and_texts_keep_their_order_and_are_all_written_before_flush_returns) {
  LogProcess process([](auto) {
    start_log_thread();
    for (int i = 0; i < 500; ++i) {
      log(LogLevel::kInfo, "line " + std::to_string(i) + ".");
      say("text " + std::to_string(i) + ".\n");
    }
    flush_log(seconds(60));
    return 3;
  });
  const std::string all = process.read_until("no such text");
  EXPECT_EQ(process.wait(), 3);
  size_t at = 0;
  for (int i = 0; i < 500; ++i) {
    for (const char* kind : {"line ", "text "}) {
      const size_t found = all.find(kind + std::to_string(i) + ".\n", at);
      ASSERT_NE(found, std::string::npos) << kind << i;
      at = found;
    }
  }
  EXPECT_EQ(count(all, "\n"), 1000u);
}

TEST(Log, a_pipe_that_nobody_reads_blocks_nobody_and_losses_are_counted) {
  constexpr int kLines = 40'000;
  LogProcess process([](auto wait_for_go) {
    start_log_thread();
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        for (int i = 0; i < kLines / 4; ++i) log(LogLevel::kInfo, std::string(100, 'x'));
      });
    }
    for (std::thread& thread : threads) thread.join();
    flush_log(milliseconds(100));
    if (std::chrono::steady_clock::now() - start > seconds(50)) return 1;
    wait_for_go();
    flush_log(seconds(50));
    log(LogLevel::kInfo, "the end");
    flush_log(seconds(50));
    return 0;
  });
  // It writes nothing more until the test reads: 64 KiB of the pipe and 1 MiB of the queue are full.
  std::this_thread::sleep_for(milliseconds(200));
  process.let_go();
  const std::string all = process.read_until("the end");
  EXPECT_EQ(process.wait(), 0);
  const size_t kept = count(all, std::string(100, 'x'));
  EXPECT_GT(kept, 5000u);
  EXPECT_LT(kept, static_cast<size_t>(kLines));
  // On a slow machine some come after the first are told.
  size_t n_lost = 0;
  const std::string words = " lines of the log were lost: nobody read standard error";
  for (size_t at = all.find(words); at != std::string::npos; at = all.find(words, at + 1)) {
    const size_t number = all.rfind(' ', at - 1) + 1;
    n_lost += std::stoul(all.substr(number, at - number));
  }
  EXPECT_GT(n_lost, 0u);
  EXPECT_EQ(n_lost + kept, static_cast<size_t>(kLines));
}

TEST(Log, what_is_logged_while_the_process_ends_is_still_written) {
  LogProcess process([](auto) {
    start_log_thread();
    log(LogLevel::kWarn, "the last words");
    std::exit(5);
    return 0;
  });
  EXPECT_NE(process.read_until("no such text").find("the last words"), std::string::npos);
  EXPECT_EQ(process.wait(), 5);
}

TEST(Log, reader_that_is_gone_ends_nothing) {
  LogProcess process([](auto wait_for_go) {
    signal(SIGPIPE, SIG_IGN);
    start_log_thread();
    close(STDERR_FILENO);
    int closed[2];
    if (pipe(closed) != 0 || dup2(closed[1], STDERR_FILENO) < 0) return 1;
    close(closed[0]);
    wait_for_go();
    for (int i = 0; i < 1000; ++i) log(LogLevel::kWarn, "nobody hears it");
    flush_log(seconds(50));
    return 7;
  });
  process.let_go();
  EXPECT_EQ(process.wait(), 7);
}

}  // namespace
}  // namespace specd
