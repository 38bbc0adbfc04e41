// A configuration from the files of other programs: Triton's model repository, and vLLM's
// --speculative-config.
//
//   DIR ──> find_model() ──> model.yaml or model.json ──> a tree of our keys, each with the place
//   of theirs ──> SPECD__ variables and --set ──> the checks of our own files ──> Config
#pragma once

#include <string>

#include "host/config/config.h"

namespace specd::host {

// What the machine and the program say.
struct Surroundings {
  std::string hub_cache;  // Hugging Face's, of downloaded models
  std::string socket;     // where a configuration that names none listens
  std::string plugins;    // the folder of the plugins that came with the program
};
// The socket: $SPECD_SOCKET, which specctl takes too, else specd.sock in $RUNTIME_DIRECTORY
// (systemd) or $XDG_RUNTIME_DIR, else /tmp/specd-UID.sock. The plugins: beside the program, in
// ../lib/specd/plugins where it is installed or ../plugins where it was built.
Surroundings surroundings_of_process();

// One of `config` and `model_repository` is given.
struct LoadOptions {
  std::string config;              // a file of our own
  std::string model_repository;    // Triton's: port 8000 for HTTP, 8001 for gRPC, 8002 for metrics
  std::string load_model;          // NAME or NAME/VERSION in it; empty: the only model
  std::string speculative_config;  // JSON, in place of what the file says; empty: none
  bool is_strict = false;          // unknown keys of theirs are errors, and not one warning
  Overrides overrides = {};
};

// What load_config() does, and for the rest the same with the same checks; its read_again() looks
// at all files again. Errors of theirs have the place in their file, or name the option.
Result<Config> load(const LoadOptions& options, const Surroundings& surroundings);

}  // namespace specd::host
