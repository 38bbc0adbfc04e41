// Files of other programs, model.yaml of TensorRT-LLM and model.json of vLLM: refused with file, line
// and column, or turned into a configuration of ours that is read or refused in the same way.
#include <filesystem>

#include "host/compat/model_file.h"
#include "host/config/config.h"
#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace specd;
  using namespace specd::host;
  const std::string file = "/nonexistent/model.yaml";
  static const YamlNode ours =
      parse_yaml(
          "listen: unix:/tmp/specd-fuzz.sock\nmodel: {name: m}\nplugins: {directories: [/]}\n",
          file)
          .value();
  const auto theirs = parse_yaml(fuzz::text_of(data, size), file);
  fuzz::check_message(theirs.status(), file + ":");
  if (!theirs.ok()) return 0;
  const Value value{.node = theirs.value(), .file = file};
  for (auto* const add : {&add_llm_api_model, &add_vllm_model}) {
    for (const bool is_strict : {false, true}) {
      ModelPlaces places{.hub_cache = "/nonexistent/hub", .repository = "/nonexistent"};
      UnknownKeys unknown{.are_errors = is_strict};
      YamlNode root = ours;
      const Status status = add(value, places, unknown, root);
      fuzz::check_message(status, file + ":");
      if (status.ok() && is_strict && !unknown.found.empty()) fuzz::fail("a key got away");
      if (!status.ok()) continue;
      fuzz::check_message(check_missing(places, root), file + ":");
      fuzz::check_message(load_tree(std::move(root), file).status(), file + ":");
    }
  }
  return 0;
}
