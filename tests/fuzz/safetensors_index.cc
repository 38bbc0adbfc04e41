// model.safetensors.index.json next to two shards.
#include <filesystem>
#include <fstream>

#include "core/model/checkpoint.h"
#include "tests/fuzz/fuzz.h"

namespace {

void write_shard(const std::string& path, const std::string& tensor) {
  const std::string header =
      "{\"" + tensor + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << "ab";
}

std::string make_folder() {
  char folder[] = "/tmp/specd-fuzz-XXXXXX";
  if (mkdtemp(folder) == nullptr) specd::fuzz::fail("mkdtemp");
  write_shard(std::string(folder) + "/a.safetensors", "x");
  write_shard(std::string(folder) + "/b.safetensors", "y");
  static const std::string made = folder;
  std::atexit([] { std::filesystem::remove_all(made); });
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  static const std::string folder = make_folder();
  std::ofstream(folder + "/model.safetensors.index.json", std::ios::binary)
      << fuzz::text_of(data, size);
  const auto checkpoint = Checkpoint::open(folder);
  fuzz::check_message(checkpoint.status(), folder);
  if (!checkpoint.ok()) return 0;
  for (const auto& [name, entry] : checkpoint.value().tensors()) {
    if (name != "x" && name != "y") fuzz::fail("a tensor that no shard has: " + name);
    if (checkpoint.value().path_of(name).find(folder) != 0) fuzz::fail("a file elsewhere");
  }
  return 0;
}
