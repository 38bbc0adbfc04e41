#include "host/base/output.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace specd::host {
namespace {

int failure = 0;  // the errno

}  // namespace

int write_output(std::string_view text) {
  if (failure != 0) return failure;
  // Flushed each time: a later flush would not tell why an earlier write failed.
  if (std::fwrite(text.data(), 1, text.size(), stdout) < text.size() || std::fflush(stdout) != 0)
    failure = errno;
  return failure;
}

int end_output(const char* program, int code) {
  if (failure == 0 || failure == EPIPE) return code;
  std::fprintf(stderr, "%s: cannot write to standard output: %s\n", program,
               std::strerror(failure));
  return code != 0 ? code : 1;
}

}  // namespace specd::host
