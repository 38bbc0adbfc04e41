// Runs a target over files and folders: what libFuzzer's own main does, for compilers without it.
// Every input has one second.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "tests/cpu_clock.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i]))
      files.emplace_back(argv[i]);
    else
      for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  double slowest = 0;
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    const auto start = specd::CpuClock::now();
    // A copy of its own size, so that a read past its end is seen.
    const std::vector<uint8_t> input(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(input.data(), input.size());
    const double seconds = std::chrono::duration<double>(specd::CpuClock::now() - start).count();
    slowest = std::max(slowest, seconds);
    if (seconds > specd::kSlowdown)
      specd::fuzz::fail(path.string() + " took " + std::to_string(seconds) + " s");
  }
  std::printf("%zu inputs, the slowest took %.3f s\n", files.size(), slowest);
  return files.empty() ? 1 : 0;
}
