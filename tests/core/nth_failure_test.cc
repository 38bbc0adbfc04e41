// Loading a model or a plugin with the first, second, third .. allocation or system call failing,
// until one passes untouched: what fails says so and gives everything back (SQLite's method).
//
// operator new is replaced here; what opens, reads, maps and writes files is wrapped by the linker.
#include <execinfo.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>

#include "core/model/checkpoint.h"
#include "core/model/generation_config.h"
#include "core/model/transformer.h"
#include "core/plugin/manifest.h"
#include "core/text/chat_template.h"
#include "core/text/tokenizer.h"
#include "tests/core/plugin/bundle_fixture.h"
#include "tests/entries_of.h"

namespace {

// Calls until one fails; 0 = none will. The tests are single-threaded where they are armed.
long g_allocations_left = 0, g_calls_left = 0;
bool g_failed = false;

bool fails(long& left) {
  if (left == 0 || --left > 0) return false;
  g_failed = true;
  return true;
}

// nlohmann-json 3.11 allocates where it destroys, so that it need not recurse: memory that ends
// there ends the process, and nothing around it can help. That one allocation is left alone.
bool destroys_json() {
  void* frames[24];
  const int n = backtrace(frames, 24);
  char** names = backtrace_symbols(frames, n);
  bool found = false;
  for (int i = 0; i < n; ++i) {
    found = found || (std::strstr(names[i], "json_value") != nullptr &&
                      std::strstr(names[i], "destroy") != nullptr);
  }
  std::free(names);
  return found;
}

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (g_allocations_left == 1 && destroys_json()) g_allocations_left = 2;
  if (fails(g_allocations_left)) throw std::bad_alloc();
  void* data = alignment <= alignof(std::max_align_t)
                   ? std::malloc(bytes == 0 ? 1 : bytes)
                   : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

// GCC 12 does not see that these belong together once a sanitizer is on.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete[](void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
void operator delete[](void* data, std::size_t) noexcept { std::free(data); }
void operator delete(void* data, std::align_val_t) noexcept { std::free(data); }
void operator delete(void* data, std::size_t, std::align_val_t) noexcept { std::free(data); }

extern "C" {
int __real_open(const char* path, int flags, ...);
int __wrap_open(const char* path, int flags, ...) {
  if (fails(g_calls_left)) return errno = EMFILE, -1;
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return __real_open(path, flags, mode);
}
int __real_openat(int folder, const char* path, int flags, ...);
int __wrap_openat(int folder, const char* path, int flags, ...) {
  if (fails(g_calls_left)) return errno = EMFILE, -1;
  va_list rest;
  va_start(rest, flags);
  const int mode = (flags & O_CREAT) != 0 ? va_arg(rest, int) : 0;
  va_end(rest);
  return __real_openat(folder, path, flags, mode);
}
ssize_t __real_write(int fd, const void* from, size_t bytes);
ssize_t __wrap_write(int fd, const void* from, size_t bytes) {
  if (fd != STDERR_FILENO && fails(g_calls_left)) return errno = ENOSPC, -1;
  return __real_write(fd, from, bytes > 100 ? bytes / 2 : bytes);
}
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
  if (fails(g_calls_left)) return errno = EROFS, -1;
  return __real_fchmod(fd, mode);
}
int __real_renameat(int from_folder, const char* from, int to_folder, const char* to);
int __wrap_renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (fails(g_calls_left)) return errno = EIO, -1;
  return __real_renameat(from_folder, from, to_folder, to);
}
int __real_fstat(int fd, struct stat* out);
int __wrap_fstat(int fd, struct stat* out) {
  if (fails(g_calls_left)) return errno = EIO, -1;
  return __real_fstat(fd, out);
}
ssize_t __real_read(int fd, void* to, size_t bytes);
ssize_t __wrap_read(int fd, void* to, size_t bytes) {
  if (fails(g_calls_left)) return errno = EIO, -1;
  return __real_read(fd, to, bytes > 100 ? bytes / 2 : bytes);  // and never all at once
}
void* __real_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset);
void* __wrap_mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (fails(g_calls_left)) return errno = ENOMEM, MAP_FAILED;
  return __real_mmap(at, bytes, protection, flags, fd, offset);
}
}

// nlohmann-json 3.11 loses the object or list it has begun when memory ends inside a constructor.
extern "C" const char* __lsan_default_suppressions() { return "leak:nlohmann::json_abi"; }

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

  // Fails the n-th of what `left` counts, for every `step`-th n, until nothing is left to fail.
  long until_untouched(long& left, long step) {
    EXPECT_TRUE(load().ok()) << load().to_string();
    const size_t before = entries_of("/proc/self/fd");
    for (long n = 1;; n += step) {
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
                    status.message().find("the machine has") != std::string::npos)
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
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  const long step = 11;
#else
  const long step = 1;
#endif
  EXPECT_GT(until_untouched(g_allocations_left, step), 1000);
  EXPECT_TRUE(load().ok());
}

TEST_F(NthFailure, of_opens_reads_and_mappings_is_told_with_the_file) {
  const long n = until_untouched(g_calls_left, 1);
  EXPECT_GT(n, 50);
  EXPECT_EQ(n_absorbed_, 0) << "a failure that nobody was told of";
}

TEST(NthPluginFailure, of_what_loading_calls_is_told_with_the_file_and_leaves_no_half_copy) {
  TestServices services;
  const specd_host* host = make_host(&services);
  specd_target_info target = test_target();
  BundleTree tree;
  const auto load = [&]() -> Status {
    SPECD_TRY(const auto registry, tree.open(host));
    return registry->make_drafter("org.example.fixture", "", Json::object(), target, "d").status();
  };
  const std::string good = read_bytes(fixture("good"));
  fs::create_directory(tree.cache());
  fs::permissions(tree.cache(), fs::perms::owner_all);
  const size_t before = entries_of("/proc/self/fd");
  long n = 1;
  for (;; ++n) {
    tree.add("a", good + std::to_string(n));  // or it would be mapped already
    g_failed = false;
    g_calls_left = n;
    const Status status = load();
    g_calls_left = 0;
    EXPECT_EQ(entries_of("/proc/self/fd"), before) << n;
    for (const auto& entry : fs::directory_iterator(tree.cache()))
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

}  // namespace
}  // namespace specd
