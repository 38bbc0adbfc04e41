// Libraries that belong to the program and are loaded when they are needed.
#pragma once

#include <string>

#include "core/base/status.h"

namespace specd {

struct LibraryFile {
  const char* what;      // "CUDA library"
  const char* name;      // "libspecd_cuda.so"
  const char* variable;  // of the environment, with another path
  const char* symbol;
  const char* option;  // of CMake that builds it
};
struct LoadedLibrary {
  void* symbol = nullptr;
  std::string path;
};

// Looks for the library at the path in the environment, otherwise beside the executable and in ../lib
// relative to it. It is never unloaded. kUnsupported: the error says where it was looked for, or why it
// cannot be loaded.
Result<LoadedLibrary> load_library(const LibraryFile& wanted);

}  // namespace specd
