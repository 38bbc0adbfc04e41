// model.safetensors.index.json next to two shards, which share a quantized matrix.
#include <filesystem>
#include <fstream>

#include "core/model/checkpoint.h"
#include "core/model/quantized_matrix.h"
#include "tests/fuzz/fuzz.h"

namespace {

void write_shard(const std::string& path, const std::string& header) {
  const uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << header << "abcdefghijkl";
}

std::string make_folder() {
  char folder[] = "/tmp/specd-fuzz-XXXXXX";
  if (mkdtemp(folder) == nullptr) specd::fuzz::fail("mkdtemp");
  write_shard(std::string(folder) + "/a.safetensors",
              R"({"m.weight": {"dtype": "I8", "shape": [2, 4], "data_offsets": [0, 8]},
                  "x": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}})");
  write_shard(std::string(folder) + "/b.safetensors",
              R"({"m.weight_scale": {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]},
                  "y": {"dtype": "U8", "shape": [4], "data_offsets": [8, 12]}})");
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
    if (name != "x" && name != "y" && name != "m.weight" && name != "m.weight_scale")
      fuzz::fail("a tensor that no shard has: " + name);
    if (checkpoint.value().path_of(name).find(folder) != 0) fuzz::fail("a file elsewhere");
  }
  const MatrixFormat format{.layout = MatrixFormat::Layout::kInt8,
                            .scales = MatrixFormat::Scales::kChannel,
                            .scale = "weight_scale"};
  const auto matrix =
      QuantizedMatrix::open(checkpoint.value(), "m", 2, 4, format, [](const std::string&) {});
  fuzz::check_message(matrix.status(), folder);
  const bool is_whole = checkpoint.value().tensors().contains("m.weight") &&
                        checkpoint.value().tensors().contains("m.weight_scale");
  if (matrix.ok() != is_whole) fuzz::fail("a matrix is read without its parts, or not with them");
  return 0;
}
