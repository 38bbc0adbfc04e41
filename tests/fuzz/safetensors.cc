// A safetensors file: what is accepted lies in the file, every byte of it in one tensor.
#include "core/model/safetensors.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const fuzz::MemoryFile memory(fuzz::text_of(data, size));
  const auto file = SafetensorsFile::open(memory.path());
  fuzz::check_message(file.status(), memory.path());
  if (!file.ok()) return 0;
  uint64_t covered = 0;
  volatile uint8_t sum = 0;  // read, whatever the compiler thinks of it
  for (const auto& [name, view] : file.value().tensors()) {
    if (view.file_offset + view.bytes > size) fuzz::fail("a tensor leaves the file");
    for (uint64_t i = 0; i < view.bytes; ++i) sum = sum ^ static_cast<const uint8_t*>(view.data)[i];
    covered += view.bytes;
  }
  if (covered > size) fuzz::fail("tensors overlap");
  return 0;
}
