// Folders of weights for tests of trained heads: safetensors with values that any language can make
// again, so that a recorded reference needs no weights beside it.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace specd {

// Element i of the tensor `name`: the upper bits of a splitmix64 step over the name's FNV-1a hash plus i,
// as a multiple of 1/1024 in [-1, 1), times `scale`, which is a power of two. bfloat16 would round
// such values, so tensors are stored as float32.
inline std::vector<float> head_values(const std::string& name, size_t n, float scale) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) {
    uint64_t x = hash + (i + 1) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    values[i] = (static_cast<float>(x >> 53) / 1024 - 1) * scale;
  }
  return values;
}

class HeadFile {
 public:
  // A tensor of float32 with head_values().
  HeadFile& add(const std::string& name, std::vector<int64_t> shape, float scale = 0.125f,
                float offset = 0) {
    size_t n = 1;
    for (const int64_t size : shape) n *= static_cast<size_t>(size);
    std::vector<float> values = head_values(name, n, scale);
    for (float& each : values) each += offset;
    return add(name, "F32", std::move(shape), values);
  }
  template <typename T>
  HeadFile& add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    header_[name] = {
        {"dtype", dtype}, {"shape", shape}, {"data_offsets", {data_.size(), data_.size() + bytes}}};
    data_.append(reinterpret_cast<const char*>(values.data()), bytes);
    return *this;
  }
  // Writes model.safetensors and, unless it is null, config.json.
  void write(const std::string& folder, const Json& config = nullptr) const {
    std::filesystem::create_directories(folder);
    const std::string text = header_.dump();
    const uint64_t n = text.size();
    std::ofstream(folder + "/model.safetensors", std::ios::binary)
        << std::string(reinterpret_cast<const char*>(&n), 8) << text << data_;
    if (!config.is_null()) std::ofstream(folder + "/config.json") << config.dump();
  }

 private:
  Json header_ = Json::object();
  std::string data_;
};

}  // namespace specd
