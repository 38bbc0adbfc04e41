// Bundles made in a temporary directory out of the fixture libraries, and a host to load them with.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "core/base/json.h"
#include "core/base/sha256.h"
#include "core/plugin/instance/host_context.h"
#include "core/plugin/bundle/registry.h"
#include "specd/plugin_api/abi_layout.h"
#include "specd/plugin_api/services/memory.h"

namespace specd {

inline std::string fixture(const std::string& name) {
  return std::string(SPECD_TEST_FIXTURES) + "/" + name + ".so";
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

inline void write_bytes(const std::string& path, const std::string& bytes, mode_t mode = 0644) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << bytes;
  chmod(path.c_str(), mode);
}

class BundleTree {
 public:
  BundleTree() {
    std::string pattern = (std::filesystem::temp_directory_path() / "specd-plugin-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
    std::filesystem::create_directory(plugins());
    chmod(plugins().c_str(), 0755);
  }
  ~BundleTree() {
    std::error_code error;
    std::filesystem::remove_all(root_, error);
  }

  std::string plugins() const { return root_ + "/plugins"; }
  std::string cache() const { return root_ + "/cache"; }
  std::string bundle(const std::string& name) const { return plugins() + "/" + name; }

  // The manifest of a fixture library, good unless edited.
  static Json manifest(const std::string& bytes, const std::string& version = "1.0.0") {
    return Json{{"manifest", 1},
                {"id", "org.example.fixture"},
                {"version", version},
                {"abi", SPECD_ABI_LAYOUT},
                {"library", "plugin.so"},
                {"license", "Apache-2.0"},
                {"factories", Json::parse(R"([{"id": "next", "kind": "drafter"},
                                              {"id": "none", "kind": "verifier"}])")},
                {"files", {{"plugin.so", "sha256:" + to_hex(sha256(bytes))}}}};
  }
  std::string add(const std::string& name, const std::string& bytes, const Json& manifest) {
    std::filesystem::create_directory(bundle(name));
    chmod(bundle(name).c_str(), 0755);
    write_bytes(bundle(name) + "/plugin.so", bytes, 0755);
    write_bytes(bundle(name) + "/plugin.json", manifest.dump());
    return bundle(name);
  }
  std::string add(const std::string& name, const std::string& bytes) {
    return add(name, bytes, manifest(bytes));
  }

  Result<std::unique_ptr<PluginRegistry>> open(const specd_host* host) const {
    return PluginRegistry::open({{plugins()}, cache()}, host);
  }

 private:
  std::string root_;
};

// Offers memory/1 only, counting what it hands out; enough for the fixture.
class TestServices final : public ServiceDirectory {
 public:
  ~TestServices() override { retire_host(this); }
  std::span<const ServiceTable> services() const override {
    static const specd_memory memory = {sizeof(specd_memory), 0, alloc, nullptr, nullptr};
    static const ServiceTable all[] = {{SPECD_SERVICE_MEMORY, &memory}};
    return all;
  }

 private:
  static specd_status alloc(const specd_host*, specd_owner* owner, int32_t, int32_t, uint64_t bytes,
                            uint64_t, void** out) noexcept {
    *out = std::aligned_alloc(16, (bytes + 15) / 16 * 16);
    owner->blocks.emplace(
        *out,
        OwnedBlock{bytes, Buffer(*out, bytes, [](void* data, uint64_t) { std::free(data); })});
    owner->used_bytes += bytes;
    return SPECD_OK;
  }
};

inline specd_target_info test_target() {
  specd_target_info target{};
  target.struct_size = sizeof(target);
  target.vocab_size = 100;
  target.hidden_size = 16;
  target.n_layers = 2;
  target.max_positions = 64;
  target.model_id = "target";
  target.architecture = "test";
  static const uint8_t tokenizer[32] = {};
  target.tokenizer_sha256 = tokenizer;
  return target;
}

}  // namespace specd
