// Changes the header of a safetensors file; the values stay.
#pragma once

#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "core/base/json.h"

namespace specd {

inline void change_header(const std::string& path, const std::function<void(Json&)>& change) {
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  Json header = Json::parse(bytes.substr(8, length));
  change(header);
  const std::string text = header.dump(), values = bytes.substr(8 + length);
  length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8);
  out << text << values;
}

}  // namespace specd
