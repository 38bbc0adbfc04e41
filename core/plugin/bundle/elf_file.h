// What can be learned from a library's bytes before the dynamic linker sees them.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/base/status.h"

namespace specd {

// A shared object of this machine: ELF, 64 bits, byte order, architecture, type. `head` is the
// start of the file, at least 64 bytes where the file has them; `where` names it in errors
// (kDataLoss).
Status check_elf_header(std::span<const std::byte> head, const std::string& where);

struct ElfExport {
  std::string name;  // cut to 256 bytes
  bool is_function = false;
};

// What a shared object asks of the process that loads it, and offers.
struct ElfLibrary {
  // The first nine symbols that the dynamic linker can find in it: defined, global or weak, not
  // hidden.
  std::vector<ElfExport> exports;
  // What it needs of a sanitizer's runtime, "__asan_init" or "libasan.so.8"; empty = nothing.
  std::string sanitizer;
  bool wants_executable_stack = false;
};

// Read from the dynamic segment, which the linker itself uses. Every offset is checked against the
// file, and so is every loadable segment: a truncated file would otherwise fault when it is mapped.
Result<ElfLibrary> read_elf_library(std::span<const std::byte> file, const std::string& where);

}  // namespace specd
