// Changes a safetensors file.
#pragma once

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>

#include "core/base/json.h"

namespace specd {

// `change` may change the header and the values behind it.
inline void change_file(const std::string& path,
                        const std::function<void(Json&, std::string&)>& change) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  Json header = Json::parse(bytes.substr(8, length));
  std::string values = bytes.substr(8 + length);
  change(header, values);
  const std::string text = header.dump();
  length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text << values;
}

inline void change_header(const std::string& path, const std::function<void(Json&)>& change) {
  change_file(path, [&](Json& header, std::string&) { change(header); });
}

// `change` gets each tensor's name, entry and values; false removes the tensor.
inline void change_tensors(
    const std::string& path,
    const std::function<bool(const std::string&, Json&, std::string&)>& change) {
  change_file(path, [&](Json& header, std::string& values) {
    Json changed = Json::object();
    std::string all;
    for (auto& [name, tensor] : header.items()) {
      if (!tensor.contains("data_offsets")) continue;
      const size_t begin = tensor["data_offsets"][0], end = tensor["data_offsets"][1];
      std::string own = values.substr(begin, end - begin);
      if (!change(name, tensor, own)) continue;
      tensor["data_offsets"] = {all.size(), all.size() + own.size()};
      changed[name] = tensor;
      all += own;
    }
    header = changed;
    values = all;
  });
}

// Rounds every F32 to the 8 bits that BF16 and, unless it is tiny, F16 have.
inline void shorten_values(const std::string& path) {
  change_tensors(path, [](const std::string&, Json& tensor, std::string& values) {
    if (tensor["dtype"] != "F32") return true;
    for (size_t i = 0; i < values.size(); i += 4) values[i] = values[i + 1] = 0;
    return true;
  });
}

// Stores short values of F32 as BF16 or F16. Returns how many tensors it found.
inline size_t store_as(const std::string& path, const std::map<std::string, std::string>& types) {
  size_t found = 0;
  change_tensors(path, [&](const std::string& name, Json& tensor, std::string& values) {
    const auto type = types.find(name);
    if (type == types.end() || tensor["dtype"] != "F32") return true;
    std::string narrow;
    for (size_t i = 0; i < values.size(); i += 4) {
      uint32_t bits = 0;
      std::memcpy(&bits, values.data() + i, 4);
      auto half = static_cast<uint16_t>(bits >> 16);
      if (type->second == "F16" && bits << 1 != 0)  // 112: between the exponents of both
        half = static_cast<uint16_t>((half & 0x8000) | (((bits & 0x7fffffff) >> 13) - (112 << 10)));
      narrow.append(reinterpret_cast<const char*>(&half), 2);
    }
    values = narrow;
    tensor["dtype"] = type->second;
    ++found;
    return true;
  });
  return found;
}

}  // namespace specd
