// Changes a safetensors file.
#pragma once

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
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

// Stores these tensors of BF16 as F32: the same values. Returns how many it found.
inline int widen_tensors(const std::string& path, const std::set<std::string>& names) {
  int found = 0;
  change_tensors(path, [&](const std::string& name, Json& tensor, std::string& values) {
    if (!names.contains(name) || tensor["dtype"] != "BF16") return true;
    std::string wide;
    for (size_t i = 0; i < values.size(); i += 2) wide.append(2, '\0').append(values, i, 2);
    values = wide;
    tensor["dtype"] = "F32";
    ++found;
    return true;
  });
  return found;
}

}  // namespace specd
