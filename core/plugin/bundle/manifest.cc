#include "core/plugin/bundle/manifest.h"

#include <algorithm>
#include <utility>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/words.h"

namespace specd {
namespace {

constexpr size_t kFieldBytesMax = 256;
constexpr size_t kFilesMax = 256;
constexpr size_t kHexDigits = 64;

Status damaged(const std::string& where, const std::string& text) {
  return Status(Code::kDataLoss, where + ": " + text);
}

Status check_keys(const Json& object, const std::vector<std::string>& known,
                  const std::string& where) {
  for (const auto& [key, unused] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return damaged(where, "unknown key " + quote(key) + "; a manifest has " + joined(known));
  }
  return Status();
}

bool is_name(std::string_view text, std::string_view marks) {
  return !text.empty() && text.size() <= kFieldBytesMax &&
         std::all_of(text.begin(), text.end(), [marks](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                  marks.find(c) != std::string_view::npos;
         });
}

// A single path component that cannot lead out of its directory.
bool is_file_name(std::string_view text) {
  return is_name(text, "._+-") && text != "." && text != "..";
}

Result<std::string> text_of(const Json& object, const char* key, std::string_view marks,
                            const std::string& where) {
  SPECD_TRY(std::string text, json_string(object, key, where));
  if (!is_name(text, marks)) {
    return damaged(where, std::string("key '") + key + "' is " + quote(text) +
                              ", expected 1 to 256 letters, digits or '" + std::string(marks) +
                              "'");
  }
  return text;
}

Result<std::vector<FactoryInfo>> factories_of(const Json& object, const std::string& where) {
  const auto list = object.find("factories");
  if (list == object.end() || !list->is_array() || list->empty() || list->size() > kFactoriesMax) {
    return damaged(where, "key 'factories' needs a list of 1 to 64 objects with id and kind");
  }
  std::vector<FactoryInfo> factories;
  for (const Json& entry : *list) {
    if (!entry.is_object()) return damaged(where, "a factory is not an object");
    SPECD_OK_OR_RETURN(check_keys(entry, {"id", "kind"}, where));
    FactoryInfo factory;
    SPECD_TRY(factory.id, text_of(entry, "id", "._-", where));
    SPECD_TRY(factory.kind, text_of(entry, "kind", "_", where));
    if (factory.kind != "drafter" && factory.kind != "verifier") {
      return damaged(where, "factory " + quote(factory.id) + " has kind " + quote(factory.kind) +
                                ", expected 'drafter' or 'verifier'");
    }
    for (const FactoryInfo& other : factories) {
      if (other.id == factory.id) {
        return damaged(where, "factory " + quote(factory.id) + " is there twice");
      }
    }
    factories.push_back(std::move(factory));
  }
  return factories;
}

Result<std::map<std::string, std::string>> files_of(const Json& object, const std::string& where) {
  const auto list = object.find("files");
  if (list == object.end() || !list->is_object() || list->empty() || list->size() > kFilesMax) {
    return damaged(where, "key 'files' needs an object of 1 to 256 file names with their hashes");
  }
  constexpr std::string_view kPrefix = "sha256:";
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : list->items()) {
    if (!is_file_name(name)) {
      return damaged(where, "file " + quote(name) +
                                " is not a plain name; files lie in the bundle's own directory");
    }
    const std::string text = value.is_string() ? value.get<std::string>() : std::string();
    const bool hex =
        text.size() == kPrefix.size() + kHexDigits && text.rfind(kPrefix, 0) == 0 &&
        text.find_first_not_of("0123456789abcdef", kPrefix.size()) == std::string::npos;
    if (!hex) {
      return damaged(where, "file " + quote(name) +
                                ": expected 'sha256:' and 64 lower-case hex digits, found " +
                                quote(value.is_string() ? text : value.dump()));
    }
    files[name] = text.substr(kPrefix.size());
  }
  return files;
}

}  // namespace

Result<Manifest> read_manifest(std::string_view text, const std::string& where) {
  SPECD_TRY(const Json object, parse_json(text, where));
  if (!object.is_object()) return damaged(where, "expected an object");
  SPECD_OK_OR_RETURN(check_keys(
      object, {"manifest", "id", "version", "abi", "library", "factories", "license", "files"},
      where));
  SPECD_TRY(const int64_t format, json_int(object, "manifest", 0, INT32_MAX, where));
  if (format != 1) {
    return damaged(
        where, "key 'manifest': found format " + std::to_string(format) + ", this host reads 1");
  }
  Manifest manifest;
  SPECD_TRY(manifest.id, text_of(object, "id", "._-", where));
  SPECD_TRY(manifest.version, text_of(object, "version", ".+-", where));
  SPECD_TRY(manifest.license, text_of(object, "license", ".+-() ", where));
  SPECD_TRY(manifest.abi, text_of(object, "abi", "-", where));
  SPECD_TRY(manifest.library, json_string(object, "library", where));
  if (!is_file_name(manifest.library)) {
    return damaged(where, "library " + quote(manifest.library) +
                              " is not a plain file name; it lies in the bundle's own directory, "
                              "without slashes or '..'");
  }
  SPECD_TRY(manifest.factories, factories_of(object, where));
  SPECD_TRY(manifest.files, files_of(object, where));
  if (manifest.files.count(manifest.library) == 0) {
    return damaged(where, "library " + quote(manifest.library) + " has no hash in 'files'");
  }
  return manifest;
}

}  // namespace specd
