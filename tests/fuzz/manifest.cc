// plugin.json: names that are accepted stay in the bundle.
#include "core/plugin/bundle/manifest.h"

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  const auto manifest = read_manifest(fuzz::text_of(data, size), "plugin.json");
  fuzz::check_message(manifest.status(), "plugin.json");
  if (!manifest.ok()) return 0;
  if (!manifest.value().files.contains(manifest.value().library)) fuzz::fail("no such library");
  for (const auto& [name, hash] : manifest.value().files) {
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos)
      fuzz::fail("a name that leaves the bundle: " + name);
    if (hash.size() != 64) fuzz::fail("a hash of " + std::to_string(hash.size()));
  }
  return 0;
}
