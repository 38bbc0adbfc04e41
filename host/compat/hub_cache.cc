#include "host/compat/hub_cache.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "core/base/json.h"
#include "core/base/quote.h"
#include "host/compat/below.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

constexpr size_t kHubNameMax = 96;
constexpr size_t kRevisionMax = 255;
constexpr size_t kCommitDigits = 40;
constexpr char kHubLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

bool is_commit(std::string_view name) {
  return name.size() == kCommitDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// What git allows and a path below refs/ cannot misuse.
bool is_revision(std::string_view name) {
  const std::string letters = std::string(kHubLetters) + "/+@";
  return !name.empty() && name.size() <= kRevisionMax && name.front() != '/' &&
         name.back() != '/' && name.find("..") == std::string_view::npos &&
         name.find("//") == std::string_view::npos &&
         name.find_first_not_of(letters) == std::string_view::npos;
}

// One model, for errors.
struct Wanted {
  const std::string& cache;
  const std::string& name;
  const std::string& revision;

  std::string command() const {
    return "specd downloads nothing: run `hf download " + name +
           (revision == "main" ? "" : " --revision " + revision) +
           "`; a folder of this machine is written as an absolute path or begins with ./";
  }
  Status missing(const std::string& what) const {
    return {Code::kNotFound, "expected the model " + quote(name) + " in the Hugging Face cache " +
                                 quote(cache, 400) + ", found " + what + "; " + command()};
  }
  Status damaged(const std::string& what) const {
    return {Code::kDataLoss, "the Hugging Face cache " + quote(cache, 400) + " has for " +
                                 quote(name) + " " + what +
                                 "; remove that model from it, and download it again"};
  }
};

Result<std::string> commit_of(const fs::path& model, const Wanted& wanted) {
  if (is_commit(wanted.revision)) return wanted.revision;
  const std::string reference = (model / "refs" / wanted.revision).string();
  if (!path_exists(reference)) return wanted.missing("no revision " + quote(wanted.revision));
  constexpr size_t kReferenceMax = 256;
  auto text = read_text_file(reference, kReferenceMax);
  if (!text.ok())
    return wanted.damaged("a reference that cannot be read (" + text.status().text() + ")");
  std::string commit = std::move(text).value();
  if (commit.ends_with('\n')) commit.pop_back();
  if (!is_commit(commit))
    return wanted.damaged("in refs/" + wanted.revision +
                          " no commit of 40 hexadecimal digits, but " + quote(commit, 60));
  return commit;
}

// What a checkpoint is saved in. The files of the training program beside it are no weights.
bool is_weights(const fs::path& file) {
  const std::string name = file.filename().string(), kind = file.extension().string();
  if (kind == ".bin") return name.starts_with("pytorch_model");
  if (kind != ".pt" && kind != ".pth") return kind == ".safetensors";
  constexpr const char* kOthers[] = {"optimizer", "scheduler", "scaler", "rng_state",
                                     "training_args"};
  return std::ranges::none_of(kOthers, [&](const char* other) { return name.starts_with(other); });
}

using Variables = std::function<const char*(const char*)>;

// Python's expanduser() and expandvars(), but for the homes of other users.
std::string expanded(std::string path, const Variables& variable) {
  const char* const home = variable("HOME");
  if (home != nullptr && (path == "~" || path.starts_with("~/"))) path.replace(0, 1, home);
  constexpr char kNameLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  for (size_t at = path.find('$'); at != std::string::npos; at = path.find('$', at)) {
    const bool in_braces = path.compare(at, 2, "${") == 0;
    const size_t begin = at + (in_braces ? 2 : 1);
    const size_t end = std::min(path.find_first_not_of(kNameLetters, begin), path.size());
    const bool is_closed = !in_braces || path.compare(end, 1, "}") == 0;
    const size_t after = end + (in_braces ? 1 : 0);
    const char* const value =
        is_closed && end > begin ? variable(path.substr(begin, end - begin).c_str()) : nullptr;
    if (value == nullptr) {
      ++at;
      continue;
    }
    path.replace(at, after - at, value);
    at += std::string_view(value).size();  // a value is not expanded again
  }
  return path;
}

// All files of the snapshot are whole and in the cache, and weights are among them: programs that
// only tokenize download the rest.
Status check_snapshot(const fs::path& snapshot, const fs::path& root, const Wanted& wanted) {
  bool has_weights = false;
  std::error_code failure;
  fs::directory_iterator entry(snapshot, failure);
  for (; !failure && entry != fs::directory_iterator(); entry.increment(failure)) {
    const fs::path& path = entry->path();
    const std::string file = path.filename().string();
    std::error_code dangling;
    const fs::path real = fs::canonical(path, dangling);
    if (dangling) return wanted.missing("a link to nothing in place of " + quote(file));
    if (!is_below(real, root))
      return wanted.damaged("the file " + quote(file) + ", a link that leads out of it, to " +
                            quote(real.string(), 400));
    has_weights = has_weights || is_weights(path);
  }
  if (failure) return wanted.damaged("a snapshot that cannot be read: " + failure.message());
  return has_weights ? Status() : wanted.missing("no weights there, only a part of its files");
}

}  // namespace

std::string hub_cache_folder(const Variables& variable) {
  const auto below = [&](const char* name, const char* rest) -> std::string {
    const char* value = variable(name);
    if (value == nullptr || *value == '\0') return "";
    std::error_code unused;
    fs::path folder = fs::absolute(expanded(value, variable), unused);
    if (*rest != '\0') folder /= rest;
    return folder.lexically_normal().string();
  };
  for (const auto& [name, rest] : {std::pair("HF_HUB_CACHE", ""),
                                   {"HUGGINGFACE_HUB_CACHE", ""},
                                   {"HF_HOME", "hub"},
                                   {"XDG_CACHE_HOME", "huggingface/hub"},
                                   {"HOME", ".cache/huggingface/hub"}})
    if (std::string folder = below(name, rest); !folder.empty()) return folder;
  return "";
}

bool is_hub_name(std::string_view name) {
  if (name.size() > kHubNameMax || name.find("..") != std::string_view::npos ||
      name.find("--") != std::string_view::npos)
    return false;
  const auto is_part = [](std::string_view part) {
    const std::string_view ends = "-.";
    return !part.empty() && part.find_first_not_of(kHubLetters) == std::string_view::npos &&
           ends.find(part.front()) == std::string_view::npos &&
           ends.find(part.back()) == std::string_view::npos;
  };
  const size_t slash = name.find('/');
  if (slash == std::string_view::npos) return is_part(name);
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

Result<std::string> find_in_hub_cache(const std::string& cache, const std::string& name,
                                      const std::string& revision) {
  const Wanted wanted{.cache = cache, .name = name, .revision = revision};
  if (!is_revision(revision))
    return Status(Code::kInvalidArgument,
                  "expected a branch, a tag or a commit, found " + quote(revision));
  std::string folder = "models--" + name;
  if (const size_t slash = folder.find('/'); slash != std::string::npos)
    folder.replace(slash, 1, "--");
  std::error_code failure;
  const fs::path root = fs::canonical(cache, failure);
  if (cache.empty() || failure) return wanted.missing("no such cache");
  const fs::path model = root / folder;
  if (!path_exists(model.string())) return wanted.missing("nothing");
  const fs::path real_model = fs::canonical(model, failure);
  if (failure) return wanted.missing("a link to nothing");
  const fs::path home = is_below(real_model, root) ? root : real_model;
  SPECD_TRY(const std::string commit, commit_of(model, wanted));
  const fs::path snapshot = fs::canonical(model / "snapshots" / commit, failure);
  if (failure || !fs::is_directory(snapshot, failure))
    return wanted.missing("no snapshot " + commit);
  if (!is_below(snapshot, home))
    return wanted.damaged("the snapshot " + commit + ", a link that leads out of it, to " +
                          quote(snapshot.string(), 400));
  SPECD_OK_OR_RETURN(check_snapshot(snapshot, home, wanted));
  return snapshot.string();
}

}  // namespace specd::host
