// The daemon's configuration: refused with file, line and column, or read; then printing it and
// reading that again gives the same.
#include <filesystem>

#include "host/config/config.h"
#include "host/config/config_print.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  static const std::string folder = [] {
    char name[] = "/tmp/specd-fuzz-XXXXXX";
    if (mkdtemp(name) == nullptr) fuzz::fail("mkdtemp");
    std::filesystem::create_directories(std::string(name) + "/model");
    std::filesystem::create_directories(std::string(name) + "/plugins");
    static const std::string made = name;
    std::atexit([] { std::filesystem::remove_all(made); });
    return made;
  }();
  const std::string file = folder + "/specd.yaml";
  const auto config = host::parse_config(fuzz::text_of(data, size), file);
  fuzz::check_message(config.status(), file + ":");
  if (!config.ok()) {
    EngineOptions engine;
    const auto route = host::parse_route(fuzz::text_of(data, size), file, engine);
    fuzz::check_message(route.status(), file + ":");
    return 0;
  }
  const auto again = host::parse_config(host::print_config(config.value()), file);
  if (!again.ok()) fuzz::fail("what was printed is refused: " + again.status().to_string());
  if (!(again.value().engine == config.value().engine) ||
      again.value().socket_path != config.value().socket_path ||
      again.value().control != config.value().control || again.value().tcp != config.value().tcp ||
      again.value().users != config.value().users || again.value().http != config.value().http ||
      again.value().log_level != config.value().log_level ||
      again.value().drain_seconds != config.value().drain_seconds)
    fuzz::fail("what was printed is another configuration");
  return 0;
}
