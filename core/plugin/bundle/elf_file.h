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

// The first nine names that the dynamic linker can find in the file, cut to 256 bytes: defined,
// global or weak, not hidden. Read from the dynamic segment, which the linker itself uses. Every
// offset is checked against the file, and so is every loadable segment: a truncated file would
// otherwise fault when it is mapped.
Result<std::vector<std::string>> elf_exports(std::span<const std::byte> file,
                                             const std::string& where);

}  // namespace specd
