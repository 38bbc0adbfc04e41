// Programs as a shell runs them.
#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>

namespace specd::host {

// A command line: its exit code, and its output with its errors.
inline std::pair<int, std::string> run_command(const std::string& line) {
  FILE* pipe = popen(("exec 2>&1; " + line).c_str(), "r");
  if (pipe == nullptr) return {-1, "popen"};
  std::string output;
  char buffer[4096];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe)) output.append(buffer, got);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

}  // namespace specd::host
