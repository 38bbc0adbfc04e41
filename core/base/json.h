// nlohmann-json behind a guard: parsing of bounded depth and size that reports the place, duplicate
// keys refused, and getters that never truncate (the packaged 3.11.2 crashes on deep nesting when a
// value is copied, get<int>() turns 4294967297 into 1, and a zero byte ends the text). What a file of
// published form takes in memory is a few times its size; the worst, small objects in objects, is
// bounded by the number of values (some 0.7 GB) and by the size that each reader allows.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/status.h"

namespace specd {

using Json = nlohmann::json;

// `where` names the text in errors ("model/config.json"). kDataLoss with line:column on malformed
// input, on nesting deeper than 64, on more than 4 million values (twice those of the largest
// tokenizers) and on duplicate keys.
Result<Json> parse_json(std::string_view text, const std::string& where);
// Whether a name is taken; by a link that leads nowhere, too, which whoever opens it will tell.
bool path_exists(const std::string& path);
// A large file of a repository that was cloned without Git LFS is a few lines that begin so.
inline bool is_lfs_pointer(std::string_view text) {
  return text.starts_with("version https://git-lfs");
}
inline constexpr char kIsLfsPointer[] =
    ": a pointer of Git LFS stands in place of the file; fetch it (git lfs pull)";
// A whole regular file of at most bytes_max; as text, and parsed. Errors call the text file `name`,
// or by its quoted path.
Result<std::string> read_text_file(const std::string& path, uint64_t bytes_max,
                                   const std::string& name = "");
Result<Json> parse_json_file(const std::string& path, uint64_t bytes_max);

// Checked getters of one key of an object. Errors name `where` and the key; kDataLoss on a missing
// key, another type or a number out of [min, max]. The *_or forms give `fallback` when the key is
// absent or null.
Result<int64_t> json_int(const Json& object, const char* key, int64_t min, int64_t max,
                         const std::string& where);
Result<int64_t> json_int_or(const Json& object, const char* key, int64_t fallback, int64_t min,
                            int64_t max, const std::string& where);
Result<double> json_double_or(const Json& object, const char* key, double fallback,
                              const std::string& where);
// Within [min, max], the fallback as well.
Result<double> json_double_or(const Json& object, const char* key, double fallback, double min,
                              double max, const std::string& where);
Result<bool> json_bool_or(const Json& object, const char* key, bool fallback,
                          const std::string& where);
Result<std::string> json_string(const Json& object, const char* key, const std::string& where);
Result<std::string> json_string_or(const Json& object, const char* key, const std::string& fallback,
                                   const std::string& where);

}  // namespace specd
