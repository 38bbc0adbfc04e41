// A shared object's bytes before the dynamic linker sees them.
#include "core/plugin/bundle/elf_file.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  fuzz::check_message(check_elf_header(bytes, "library.so"), "library.so");
  fuzz::check_message(read_elf_library(bytes, "library.so").status(), "library.so");
  return 0;
}
