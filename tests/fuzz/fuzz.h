// What the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: libFuzzer drives
// it (preset fuzz), or replay.cc runs it over its corpus, which is a test of every preset.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "core/base/status.h"
#include "core/base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace specd::fuzz {

// Ends the run with a crash that libFuzzer keeps.
[[noreturn]] inline void fail(const std::string& what) {
  std::fprintf(stderr, "fuzz: %s\n", what.c_str());
  std::abort();
}

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// A refusal names the place, in valid UTF-8 of limited length.
inline void check_message(const Status& status, const std::string& where) {
  if (status.ok()) return;
  if (status.text().find(where) == std::string::npos)
    fail("no '" + where + "' in: " + status.text());
  if (status.text().size() > 4096) fail("a message of " + std::to_string(status.text().size()));
  if (utf8_error_offset(status.text()) != std::string::npos)
    fail("a message that is not UTF-8: " + status.text());
}

// A file in memory, with a name in /proc.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view content) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) fail("memfd_create");
    for (size_t at = 0; at < content.size();) {
      const ssize_t n = write(fd_, content.data() + at, content.size() - at);
      if (n <= 0) fail("write");
      at += static_cast<size_t>(n);
    }
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace specd::fuzz
