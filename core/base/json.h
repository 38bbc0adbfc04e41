// nlohmann-json behind a guard: bounded depth and size, errors with their place, no duplicate keys,
// getters that never truncate. (The packaged 3.11.2 crashes on deep nesting, its
// get<int>() turns 4294967297 into 1, and a zero byte ends its text.) A published file takes a few
// times its size in memory; the worst case, small objects inside objects, is bounded by the number
// of values (about 0.7 GB) and by the size that each caller allows.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/base/status.h"

namespace specd {

using Json = nlohmann::json;

// An object with these members. Json{{..}, {..}} of 3.11.2 leaks the members made so far when memory runs out.
Json json_object(std::initializer_list<std::pair<const char*, Json>> members);

// `where` names the text in errors ("model/config.json"). kDataLoss with line:column on malformed
// input, nesting deeper than 64 levels, duplicate keys, and more than 4 million values (twice as
// many as the largest tokenizers have).
Result<Json> parse_json(std::string_view text, const std::string& where);
// Whether the path exists. Also true for a dangling link: opening it then gives the error.
bool path_exists(const std::string& path);
// Without Git LFS, a clone has a short text file that begins like this in place of each large file.
inline bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs");
}
inline constexpr char kIsLfsPointer[] =
    ": a Git LFS pointer is in place of the file; fetch it (git lfs pull)";
// Read a whole regular file of at most bytes_max bytes, as text or as JSON. Errors call the text
// file `name`, or show its path when that is empty.
Result<std::string> read_text_file(const std::string& path, uint64_t bytes_max,
                                   const std::string& name = "");
Result<Json> parse_json_file(const std::string& path, uint64_t bytes_max);

// Checked getters for one key of an object. Errors name `where` and the key: kDataLoss for a
// missing key, a wrong type, or a number outside [min, max]. The *_or forms return `fallback` when
// the key is absent or null.
Result<int64_t> json_int(const Json& object, const char* key, int64_t min, int64_t max,
                         const std::string& where);
Result<int64_t> json_int_or(const Json& object, const char* key, int64_t fallback, int64_t min,
                            int64_t max, const std::string& where);
Result<double> json_double_or(const Json& object, const char* key, double fallback,
                              const std::string& where);
// The range also applies to the fallback.
Result<double> json_double_or(const Json& object, const char* key, double fallback, double min,
                              double max, const std::string& where);
Result<bool> json_bool_or(const Json& object, const char* key, bool fallback,
                          const std::string& where);
Result<std::string> json_string(const Json& object, const char* key, const std::string& where);
Result<std::string> json_string_or(const Json& object, const char* key, const std::string& fallback,
                                   const std::string& where);

}  // namespace specd
