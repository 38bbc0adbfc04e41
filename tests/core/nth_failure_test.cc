// Loading a model or a plugin with the first, second, third .. allocation or system call failing,
// until one passes untouched: what fails says so and gives everything back (SQLite's method).
//
// operator new is replaced (tests/failing_new.h); what opens, reads, maps and writes files is
// wrapped by the linker.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <utility>

#include "core/base/run_within.h"
#include "core/model/checkpoint.h"
#include "core/model/generation_config.h"
#include "core/model/transformer.h"
#include "core/plugin/bundle/manifest.h"
#include "core/chat/chat_template.h"
#include "core/text/tokenizer.h"
#include "tests/core/plugin/bundle_fixture.h"
#include "tests/entries_of.h"
#include "tests/failing_new.h"

namespace {

// As g_allocations_left, of the wrapped calls.
long g_calls_left = 0;
// Memory ends in place of the call, where the C library's declaration lets it throw.
bool g_calls_throw = false;
// What g_allocations_left becomes once a library is mapped.
long g_allocations_left_once_mapped = 0;

bool call_fails() { return specd::fails(g_calls_left); }
bool call_fails_or_throws() {
  const bool now = call_fails();
  if (now && g_calls_throw) throw std::bad_alloc();
  return now;
}

}  // namespace

extern "C" {
int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  if (call_fails_or_throws()) return errno = EMFILE, -1;
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return __real_open(path, flags, mode);
}
int __real_openat(int folder, const char* path, int flags, ...);
int __wrap_openat(int folder, const char* path, int flags, ...) {
  if (call_fails_or_throws()) return errno = EMFILE, -1;
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return __real_openat(folder, path, flags, mode);
}
ssize_t __real_write(int fd, const void* from, size_t bytes);
ssize_t __wrap_write(int fd, const void* from, size_t bytes) {
  if (fd != STDERR_FILENO && call_fails_or_throws()) return errno = ENOSPC, -1;
  return __real_write(fd, from, bytes > 100 ? bytes / 2 : bytes);
}
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
  if (call_fails()) return errno = EROFS, -1;
  return __real_fchmod(fd, mode);
}
int __real_renameat(int from_folder, const char* from, int to_folder, const char* to);
int __wrap_renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (call_fails()) return errno = EIO, -1;
  return __real_renameat(from_folder, from, to_folder, to);
}
int __real_fstat(int fd, struct stat* out);
int __wrap_fstat(int fd, struct stat* out) {
  if (call_fails()) return errno = EIO, -1;
  return __real_fstat(fd, out);
}
ssize_t __real_read(int fd, void* to, size_t bytes);
ssize_t __wrap_read(int fd, void* to, size_t bytes) {
  if (call_fails_or_throws()) return errno = EIO, -1;
  return __real_read(fd, to, bytes > 100 ? bytes / 2 : bytes);  // and never all at once
}
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (call_fails()) return errno = ENOMEM, MAP_FAILED;
  return __real_mmap(at, bytes, protection, flags, fd, offset);
}
void* __real_dlopen(const char* path, int mode);
void* __wrap_dlopen(const char* path, int mode) {
  void* const library = __real_dlopen(path, mode);
  if (library != nullptr) std::swap(specd::g_allocations_left, g_allocations_left_once_mapped);
  return library;
}
}

namespace specd {
namespace {

namespace fs = std::filesystem;
const std::string kModels = std::string(SPECD_TEST_REFERENCE) + "/models/";

class NthFailure : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/specd_nth_XXXXXX";
    ASSERT_NE(mkdtemp(folder), nullptr);
    root_ = folder;
    fs::copy(kModels + "mistral", root_ + "/model");
    fs::copy_file(kModels + "tokenizer.json", root_ + "/model/tokenizer.json");
    fs::copy_file(std::string(SPECD_TEST_REFERENCE) + "/chat_templates/chatml.jinja",
                  root_ + "/model/chat_template.jinja");
    model_ = root_ + "/model";
    device_ = CpuDevice::create("", 1).value();
  }
  void TearDown() override { fs::remove_all(root_); }

  // Everything that loading reads, in one go.
  Status load() {
    SPECD_TRY(ModelConfig config, load_model_config(model_));
    SPECD_OK_OR_RETURN(load_eos_tokens(model_, config.vocab_size, config.eos_tokens));
    SPECD_OK_OR_RETURN(load_generation_config(model_).status());
    SPECD_TRY(const auto tokenizer, Tokenizer::load(model_ + "/tokenizer.json"));
    SPECD_OK_OR_RETURN(ChatTemplate::load(model_, "").status());
    SPECD_TRY(const auto model, Transformer::load(*device_, model_, config, 4, 4, {}));
    SPECD_TRY(const std::string manifest, read_text_file(SPECD_TEST_MANIFEST, kManifestBytesMax));
    return read_manifest(manifest, SPECD_TEST_MANIFEST).status();
  }

  // Fails the n-th of what `left` counts, for every n, until nothing is left to fail.
  long until_untouched(long& left) {
    EXPECT_TRUE(load().ok()) << load().to_string();
    const size_t before = entries_of("/proc/self/fd");
    for (long n = 1;; ++n) {
      g_failed = false;
      left = n;
      Status status;
      bool thrown = false;
      try {
        status = load();
      } catch (const std::bad_alloc&) {
        thrown = true;
      }
      left = 0;
      if (!g_failed) {
        EXPECT_TRUE(status.ok()) << status.to_string();
        return n;
      }
      if (!thrown && status.ok()) ++n_absorbed_;
      if (!thrown && !status.ok()) {
        EXPECT_FALSE(status.message().empty());
        // A template's refusal goes to clients, who are told no folders.
        EXPECT_TRUE(status.message().find(root_) != std::string::npos ||
                    status.message().find(SPECD_TEST_MANIFEST) != std::string::npos ||
                    status.message().find("chat_template.jinja") != std::string::npos ||
                    status.message().find(": needs ") != std::string::npos)
            << n << ": " << status.to_string();
      }
      EXPECT_EQ(entries_of("/proc/self/fd"), before) << n;
      if (HasFailure()) return n;
    }
  }

  std::string root_, model_;
  std::unique_ptr<CpuDevice> device_;
  long n_absorbed_ = 0;
};

TEST_F(NthFailure, of_allocations_leaves_nothing_behind) {
  EXPECT_GT(until_untouched(g_allocations_left), 1000);
  EXPECT_TRUE(load().ok());
}

TEST_F(NthFailure, of_opens_reads_and_mappings_is_told_with_the_file) {
  const long n = until_untouched(g_calls_left);
  EXPECT_GT(n, 50);
  EXPECT_EQ(n_absorbed_, 0) << "a failure that nobody was told of";
}

class NthPluginFailure : public testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(tree_.cache());
    fs::permissions(tree_.cache(), fs::perms::owner_all);
  }
  // Memory that ends is a failure without a place.
  Status load(const std::string& factory = "") {
    try {
      SPECD_TRY(const auto registry, tree_.open(host_));
      return registry->make_drafter("org.example.fixture", factory, Json::object(), target_, "d")
          .status();
    } catch (const std::bad_alloc&) {
      return Status(Code::kExhausted, "'/'");
    }
  }
  static bool is_mapped(const std::string& library) {
    const std::string maps = read_bytes("/proc/self/maps");
    return maps.find(to_hex(sha256(library))) != std::string::npos;
  }

  TestServices services_;
  const specd_host* host_ = make_host(&services_);
  specd_target_info target_ = test_target();
  BundleTree tree_;
  const std::string good_ = read_bytes(fixture("good"));
};

// As an error of the call, or by memory that ends there.
class NthPluginCallFailure : public NthPluginFailure, public testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Throws, NthPluginCallFailure, testing::Bool());

TEST_P(NthPluginCallFailure, of_what_loading_calls_is_told_with_the_file_and_leaves_no_half_copy) {
  const size_t before = entries_of("/proc/self/fd");
  long n = 1;
  for (;; ++n) {
    // Or it would be mapped already.
    tree_.add("a", good_ + std::to_string(n) + (GetParam() ? " throws" : " fails"));
    g_failed = false;
    g_calls_throw = GetParam();
    g_calls_left = n;
    const Status status = load();
    g_calls_left = 0;
    EXPECT_EQ(entries_of("/proc/self/fd"), before) << n;
    for (const auto& entry : fs::directory_iterator(tree_.cache()))
      EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << n << ": " << entry.path();
    if (!g_failed) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      break;
    }
    ASSERT_FALSE(status.ok()) << n << ": a failure that nobody was told of";
    // A file of the bundle, of the cache, or a folder on the way to them.
    EXPECT_NE(status.message().find("'/"), std::string::npos) << n << ": " << status.to_string();
    const Status again = load();
    ASSERT_TRUE(again.ok()) << n << ": " << again.to_string();
  }
  EXPECT_GT(n, 20);
}

TEST_F(NthPluginFailure, of_allocations_leaves_a_mapped_library_mapped_and_the_loader_free) {
  long n = 1;
  for (;; ++n) {
    const std::string library = good_ + std::to_string(n) + " mapped";
    tree_.add("a", library);
    g_failed = false;
    g_allocations_left_once_mapped = n;
    // Loading is over where the factory is looked for.
    const Status status = load("absent");
    g_allocations_left = g_allocations_left_once_mapped = 0;
    EXPECT_TRUE(is_mapped(library)) << n << ": code that has run";
    if (!g_failed) {
      EXPECT_EQ(status.code(), Code::kNotFound) << status.to_string();
      break;
    }
    const Status again = load();
    ASSERT_TRUE(again.ok()) << n << ": " << again.to_string();
    tree_.add("a", library + ", another");
    const Status other = load();
    ASSERT_TRUE(other.ok()) << n << ": " << other.to_string();
  }
  EXPECT_GT(n, 5);
}

TEST(NthRunWithinFailure, of_allocations_is_its_answer) {
  long n = 1;
  for (;; ++n) {
    std::string late_plugin;
    g_failed = false;
    g_allocations_left = n;
    const Status status = run_within(
        std::chrono::seconds(60), [](const std::atomic<bool>&) {}, late_plugin);
    g_allocations_left = 0;
    if (!g_failed) {
      EXPECT_TRUE(status.ok()) << status.to_string();
      break;
    }
    EXPECT_EQ(status.code(), Code::kExhausted) << n << ": " << status.to_string();
  }
  EXPECT_GT(n, 2) << "what both threads share, and the thread";
}

}  // namespace
}  // namespace specd
