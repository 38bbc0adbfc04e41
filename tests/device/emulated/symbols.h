// What a program knows of its own addresses.
#pragma once

#include <string>

#include "tests/device/emulated/emulator.h"

namespace specd::emulated {

// "file:line".
std::string line_of(const Where& where);
// "file:line" of an instruction by addr2line, or "library+offset" without it. For reports: slow.
std::string line_of(const void* pc);

// Whether data is a constant of this process. Device code has its own copies of them; here it may read
// those of the host.
bool is_constant(const void* data);

}  // namespace specd::emulated
