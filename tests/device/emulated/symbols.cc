#include "tests/device/emulated/symbols.h"

#include <dlfcn.h>
#include <link.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace specd::emulated {

std::string line_of(const Where& where) {
  return std::string(where.file_name()) + ":" + std::to_string(where.line());
}

std::string line_of(const void* pc) {
  Dl_info info{};
  if (dladdr(pc, &info) == 0 || info.dli_fname == nullptr) return "an unknown place";
  // The call is before the address that it returns to.
  const uintptr_t offset =
      reinterpret_cast<uintptr_t>(pc) - reinterpret_cast<uintptr_t>(info.dli_fbase) - 1;
  char text[1024];
  std::snprintf(text, sizeof(text), "addr2line -e '%s' 0x%zx 2>/dev/null", info.dli_fname, offset);
  if (std::FILE* tool = popen(text, "r")) {
    const bool got = std::fgets(text, sizeof(text), tool) != nullptr;
    pclose(tool);
    text[std::strcspn(text, "\n")] = '\0';
    if (got && text[0] != '?') return text;
  }
  std::snprintf(text, sizeof(text), "%s+0x%zx", info.dli_fname, offset);
  return text;
}

bool is_constant(const void* data) {
  static std::vector<std::pair<uintptr_t, uintptr_t>> images;  // found before
  const auto at = reinterpret_cast<uintptr_t>(data);
  for (const auto& [begin, end] : images) {
    if (at >= begin && at < end) return true;
  }
  struct Search {
    uintptr_t at, begin, end;
  } search{at, 0, 0};
  dl_iterate_phdr(
      [](dl_phdr_info* image, size_t, void* out) {
        auto* found = static_cast<Search*>(out);
        for (int i = 0; i < image->dlpi_phnum; ++i) {
          const auto& part = image->dlpi_phdr[i];
          const uintptr_t begin = image->dlpi_addr + part.p_vaddr;
          const bool constant =
              part.p_type == PT_GNU_RELRO || (part.p_type == PT_LOAD && (part.p_flags & PF_W) == 0);
          if (!constant) continue;
          if (found->at < begin || found->at >= begin + part.p_memsz) continue;
          found->begin = begin, found->end = begin + part.p_memsz;
          return 1;
        }
        return 0;
      },
      &search);
  if (search.end == 0) return false;
  images.emplace_back(search.begin, search.end);
  return true;
}

}  // namespace specd::emulated
