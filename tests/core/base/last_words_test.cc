#include "core/base/last_words.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>

#include "core/base/log.h"
#include "core/base/sanitizer.h"

namespace specd {
namespace {

// Stands for the code of a plugin. The C library returns to the byte behind the call.
__attribute__((noinline)) void abort_here() { std::abort(); }
constexpr size_t kCodeBytes = 128;

void write_to(uintptr_t address) {
  volatile uintptr_t at = address;  // or the compiler would know better
  *reinterpret_cast<volatile int*>(at) = 1;
}

class LastWords : public testing::Test {
 protected:
  void SetUp() override {
    if (SPECD_HAS_SANITIZER) GTEST_SKIP() << "a sanitizer has last words of its own";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
  }
};

TEST_F(LastWords, abort_on_a_thread_of_a_plugin_names_the_code_that_called_it) {
  const auto die = [] {
    install_last_words();
    name_memory(reinterpret_cast<uintptr_t>(&abort_here), kCodeBytes, "plugin org.example.p");
    std::thread(abort_here).join();
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGABRT),
              "specd: SIGABRT, with code of plugin org\\.example\\.p on its stack");
}

// Weights have names too, and pointers to them are on every stack.
TEST_F(LastWords, file_on_the_stack_is_not_blamed) {
  const auto die = [] {
    install_last_words();
    name_memory(reinterpret_cast<uintptr_t>(&abort_here), kCodeBytes, "'/models/x.safetensors'");
    std::thread(abort_here).join();
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGABRT), "specd: SIGABRT; the process ends");
}

#if defined(__x86_64__)
// The kernel does not know the address of an access to one that no processor has.
TEST_F(LastWords, fault_without_an_address_tells_none) {
  const auto die = [] {
    install_last_words();
    write_to(uintptr_t{1} << 63);
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGSEGV), "specd: SIGSEGV; the process ends");
}
#endif

TEST_F(LastWords, fault_tells_its_address) {
  const auto die = [] {
    install_last_words();
    write_to(16);
  };
  EXPECT_EXIT(die(), testing::KilledBySignal(SIGSEGV), "specd: SIGSEGV at address 0x10");
}

TEST_F(LastWords, exit_that_nobody_asked_for_still_writes_what_waits_in_the_log) {
  const auto die = [] {
    install_last_words();
    start_log_thread();
    watch_exit();  // as before a plugin is loaded
    for (int i = 0; i < 4000; ++i) log(LogLevel::kInfo, std::string(100, 'x') + std::to_string(i));
    std::exit(0);
  };
  EXPECT_EXIT(die(), testing::ExitedWithCode(1), "x3999");
}

}  // namespace
}  // namespace specd
