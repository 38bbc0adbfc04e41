#include "core/base/library_file.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

namespace specd {
namespace {

std::vector<std::string> places(const LibraryFile& wanted) {
  if (const char* given = std::getenv(wanted.variable); given != nullptr && *given != '\0') {
    return {given};
  }
  char path[4096];
  const ssize_t n = readlink("/proc/self/exe", path, sizeof(path));
  const std::string executable(path, n > 0 ? static_cast<size_t>(n) : 0);
  const std::string folder = executable.substr(0, executable.rfind('/') + 1);
  return {folder + wanted.name, folder + "../lib/" + wanted.name};
}

}  // namespace

Result<LoadedLibrary> load_library(const LibraryFile& wanted) {
  std::string tried;
  for (const std::string& place : places(wanted)) {
    tried += (tried.empty() ? "" : ", ") + place;
    if (access(place.c_str(), F_OK) != 0) continue;
    void* handle = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      const char* why = dlerror();
      return Status(Code::kUnsupported, place + " cannot be loaded: " + (why ? why : "no reason"));
    }
    void* symbol = dlsym(handle, wanted.symbol);
    if (symbol == nullptr) {
      return Status(Code::kUnsupported, place + " exports no " + wanted.symbol);
    }
    return LoadedLibrary{.symbol = symbol, .path = place};
  }
  return Status(Code::kUnsupported, "this installation has no " + std::string(wanted.what) +
                                        " (looked for " + tried + "); build with " + wanted.option +
                                        ", or set " + wanted.variable + " to its path");
}

}  // namespace specd
