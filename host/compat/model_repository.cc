#include "host/compat/model_repository.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "core/base/words.h"
#include "host/compat/below.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

constexpr char kLlmApiFile[] = "model.yaml";
constexpr char kVllmFile[] = "model.json";
constexpr size_t kModelsShownMax = 16;

Status wrong(const fs::path& where, const std::string& text) {
  return {Code::kInvalidArgument, quote(where.string(), 400) + ": " + text};
}

// The folders in a folder, sorted; links to folders too.
Result<std::vector<std::string>> folders_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failure;
  fs::directory_iterator entry(folder, failure);
  for (; !failure && entry != fs::directory_iterator(); entry.increment(failure)) {
    std::error_code unused;
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && entry->is_directory(unused)) names.push_back(name);
  }
  if (failure)
    return wrong(folder, "expected a folder, which cannot be read: " + failure.message());
  std::ranges::sort(names);
  return names;
}

std::string listed(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() == kModelsShownMax) {
      shown.push_back("and " + std::to_string(names.size() - kModelsShownMax) + " more");
      break;
    }
    shown.push_back(escaped(name));
  }
  return shown.empty() ? "none" : joined(shown);
}

// As Triton reads the name of a folder.
std::optional<uint64_t> version_of(const std::string& name) {
  uint64_t number = 0;
  const char* const name_end = name.data() + name.size();
  const auto [end, bad] = std::from_chars(name.data(), name_end, number);
  if (bad != std::errc() || end != name_end || name.front() == '0') return std::nullopt;
  return number;
}

std::vector<std::string> versions_among(const std::vector<std::string>& names) {
  std::vector<std::string> versions;
  for (const std::string& name : names)
    if (version_of(name).has_value()) versions.push_back(name);
  std::ranges::sort(versions, {}, version_of);
  return versions;
}

Result<std::string> choose_model(const fs::path& repository, const std::string& wanted) {
  SPECD_TRY(const std::vector<std::string> models, folders_in(repository));
  if (!wanted.empty()) {
    if (std::ranges::find(models, wanted) != models.end()) return wanted;
    return wrong(repository, "expected the model " + quote(wanted) +
                                 " of --load-model; there are: " + listed(models) +
                                 did_you_mean(wanted, models));
  }
  if (models.empty())
    return wrong(repository, "expected a model: a folder NAME/VERSION with " +
                                 std::string(kLlmApiFile) + " or " + kVllmFile + ", found none");
  if (!versions_among(models).empty())
    return wrong(repository, "expected a folder of models, found versions of one (" +
                                 listed(versions_among(models)) + "): name the folder above");
  if (models.size() > 1)
    return wrong(repository, "expected one model, found " + std::to_string(models.size()) + ": " +
                                 listed(models) +
                                 ". Triton serves them all, specd serves one: choose it with "
                                 "--load-model NAME");
  return models.front();
}

// `wanted`: empty = the highest.
Result<std::string> choose_version(const fs::path& model, const std::string& wanted,
                                   std::string& notice) {
  SPECD_TRY(const std::vector<std::string> folders, folders_in(model));
  const std::vector<std::string> versions = versions_among(folders);
  if (versions.empty())
    return wrong(model, "expected a folder for a version, named by its number, such as " +
                            (model / "1").string() + "; the folders there: " + listed(folders));
  if (wanted.empty()) {
    if (versions.size() > 1)
      notice =
          quote(model.string(), 400) + " has the versions " + listed(versions) +
          ". specd serves one of them, the highest, unless --load-model NAME/VERSION says another";
    return versions.back();
  }
  if (std::ranges::find(versions, wanted) != versions.end()) return wanted;
  return wrong(model, "expected the version " + quote(wanted) +
                          " of --load-model; there are: " + listed(versions));
}

}  // namespace

Result<RepositoryModel> find_model(const std::string& repository, const std::string& wanted) {
  std::error_code failure;
  const fs::path root = fs::canonical(repository, failure);
  if (failure || !fs::is_directory(root, failure))
    return wrong(repository, std::string("expected the folder of a model repository, found ") +
                                 (failure ? "nothing" : "something else"));
  const size_t slash = std::min(wanted.find('/'), wanted.size());
  RepositoryModel found;
  found.root = root.string();
  SPECD_TRY(found.name, choose_model(repository, wanted.substr(0, slash)));
  const fs::path model = fs::path(repository) / found.name;
  const std::string version = slash == wanted.size() ? "" : wanted.substr(slash + 1);
  if (slash < wanted.size() && version.empty())
    return wrong(model, "expected --load-model NAME or NAME/VERSION, found " + quote(wanted));
  SPECD_TRY(found.version, choose_version(model, version, found.notice));

  const fs::path folder = model / found.version;
  const bool has_yaml = path_exists((folder / kLlmApiFile).string());
  const bool has_json = path_exists((folder / kVllmFile).string());
  if (has_yaml == has_json)
    return wrong(folder, std::string("expected ") + kLlmApiFile +
                             ", of TensorRT-LLM's LLM API, or " + kVllmFile +
                             ", of the vLLM backend, found " + (has_yaml ? "both" : "neither"));
  const fs::path file = folder / (has_yaml ? kLlmApiFile : kVllmFile);
  const fs::path real = fs::canonical(file, failure);
  if (failure) return wrong(file, "a link to nothing");
  if (!is_below(real, root))
    return wrong(file, "a link that leads out of the repository, to " + quote(real.string(), 400) +
                           "; put the file there");
  found.backend = has_yaml ? RepositoryModel::Backend::kLlmApi : RepositoryModel::Backend::kVllm;
  found.file = file.string();
  return found;
}

}  // namespace specd::host
