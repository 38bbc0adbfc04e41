// A folder with a model repository, a made-up Hugging Face cache and what a configuration needs.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "host/compat/load.h"

namespace specd::host {

namespace fs = std::filesystem;

inline constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

// The two files of NVIDIA's tutorial, word for word
// (Feature_Guide/Speculative_Decoding/TRT-LLM/README.md).
inline constexpr char kTutorialEagle3[] = R"(model: meta-llama/Llama-3.1-8B-Instruct
backend: pytorch

tensor_parallel_size: 1
pipeline_parallel_size: 1

speculative_config:
  decoding_type: Eagle3
  max_draft_len: 3
  speculative_model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B

triton_config:
  max_batch_size: 0
  decoupled: False
)";
inline constexpr char kTutorialDraftTarget[] = R"(model: meta-llama/Llama-3.1-8B-Instruct
backend: pytorch

tensor_parallel_size: 1
pipeline_parallel_size: 1

speculative_config:
  decoding_type: Draft_Target
  max_draft_len: 3
  speculative_model: /path/to/draft_model  # Must share the same tokenizer as the target model

triton_config:
  max_batch_size: 0
  decoupled: False
)";

class CompatFolder {
 public:
  CompatFolder() {
    std::string pattern = (fs::temp_directory_path() / "specd-compat-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = fs::canonical(pattern);
    for (const char* name : {"plugins", "run", "hub", "repository"})
      fs::create_directory(path_ / name);
  }
  ~CompatFolder() { fs::remove_all(path_); }
  CompatFolder(const CompatFolder&) = delete;
  CompatFolder& operator=(const CompatFolder&) = delete;

  const fs::path& path() const { return path_; }
  std::string hub() const { return (path_ / "hub").string(); }
  std::string repository() const { return (path_ / "repository").string(); }
  Surroundings surroundings() const {
    return {.hub_cache = hub(),
            .socket = (path_ / "run/s.sock").string(),
            .plugins = (path_ / "plugins").string()};
  }

  void write(const fs::path& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  // What `hf download NAME` leaves: blobs, links to them, a reference. The files are those of
  // `source`, or an empty config.json and weights.
  fs::path download(const std::string& name, const fs::path& source = "") const {
    std::string folder = "models--" + name;
    if (const size_t slash = folder.find('/'); slash != std::string::npos)
      folder.replace(slash, 1, "--");
    const fs::path model = path_ / "hub" / folder;
    const fs::path snapshot = model / "snapshots" / kCommit;
    fs::create_directories(snapshot);
    fs::create_directories(model / "blobs");
    fs::create_directories(model / "refs");
    std::ofstream(model / "refs/main") << kCommit;
    const auto link = [&](const std::string& file) {
      fs::create_symlink("../../blobs/" + file, snapshot / file);
    };
    if (source.empty()) {
      std::ofstream(model / "blobs/config.json") << "{}";
      std::ofstream(model / "blobs/model.safetensors") << "";
      for (const char* file : {"config.json", "model.safetensors"}) link(file);
    } else {
      for (const auto& entry : fs::directory_iterator(source)) {
        fs::copy(entry.path(), model / "blobs" / entry.path().filename());
        link(entry.path().filename().string());
      }
    }
    return snapshot;
  }
  // A model of the repository by its files' text.
  void write_yaml(const std::string& text) const { write("repository/llama/1/model.yaml", text); }
  void write_json(const std::string& text) const { write("repository/llama/1/model.json", text); }

  Result<Config> load_repository(LoadOptions options = {}) const {
    if (options.config.empty()) options.model_repository = repository();
    return load(options, surroundings());
  }
  // The message, with this folder as DIR, or "ok" and the warnings.
  std::string told(const LoadOptions& options = {}) const {
    const Result<Config> config = load_repository(options);
    std::string text = config.ok() ? "ok" : config.status().text();
    if (config.ok())
      for (const std::string& warning : config.value().warnings) text += "\n" + warning;
    for (size_t at = text.find(path_.string()); at != std::string::npos;
         at = text.find(path_.string()))
      text.replace(at, path_.string().size(), "DIR");
    return text;
  }

 private:
  fs::path path_;
};

}  // namespace specd::host
