#include "core/model/weight_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "core/base/quote.h"

namespace specd {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kConfigFileBytesMax = 1u << 20;
constexpr const char* kSingleFile = "/model.safetensors";
constexpr const char* kIndexFile = "/model.safetensors.index.json";

bool is_inside(const fs::path& file, const fs::path& folder) {
  return file.parent_path() == folder;
}

// Whether `file`, a path in `folder`, is really there.
Status check_place(const std::string& file, const fs::path& folder) {
  std::error_code failure;
  const fs::path real = fs::canonical(file, failure);
  if (failure) {
    return Status(Code::kNotFound, quote(file, 400) + ": " + failure.message());
  }
  // .../models--NAME/snapshots/REVISION/FILE is a link to .../models--NAME/blobs/HASH.
  const bool is_snapshot = folder.parent_path().filename() == "snapshots";
  const fs::path blobs = folder.parent_path().parent_path() / "blobs";
  if (is_inside(real, folder) || (is_snapshot && is_inside(real, blobs))) return Status();
  return Status(Code::kFailedPrecondition,
                quote(file, 400) + " is a link to " + quote(real.string(), 400) +
                    ", expected a file of its folder; copy it there (cp -L)");
}

}  // namespace

WeightFile::WeightFile(std::string path, Checkpoint checkpoint)
    : path_(std::move(path)), checkpoint_(std::move(checkpoint)) {
  static std::atomic<uint64_t> last{0};
  number_ = ++last;
}

Result<std::shared_ptr<const WeightFile>> WeightFile::open(const std::string& path) {
  std::error_code failure;
  const bool is_folder = fs::is_directory(path, failure);
  const fs::path folder = fs::canonical(
      is_folder ? fs::path(path) : fs::absolute(path, failure).parent_path(), failure);
  if (failure) {
    return Status(Code::kNotFound, quote(path, 400) + ": " + failure.message() +
                                       "; expected a safetensors file, or a folder with "
                                       "model.safetensors or its shards");
  }
  if (is_folder) {
    for (const char* name : {kSingleFile, kIndexFile}) {
      const std::string file = path + name;
      if (path_exists(file)) SPECD_OK_OR_RETURN(check_place(file, folder));
    }
  }
  SPECD_TRY(Checkpoint checkpoint,
            is_folder ? Checkpoint::open(path) : Checkpoint::open_file(path));
  if (is_folder) {
    for (const SafetensorsFile& file : checkpoint.files()) {
      SPECD_OK_OR_RETURN(check_place(file.path(), folder));
    }
  }
  std::shared_ptr<WeightFile> made(new WeightFile(path, std::move(checkpoint)));
  made->config_path_ = (folder / "config.json").string();
  if (path_exists(made->config_path_)) {
    SPECD_OK_OR_RETURN(check_place(made->config_path_, folder));
    SPECD_TRY(made->config_, parse_json_file(made->config_path_, kConfigFileBytesMax));
    if (!made->config_->is_object()) {
      return Status(Code::kDataLoss, quote(made->config_path_, 400) + ": expected an object");
    }
  }
  for (const char* name : kQuantizationFiles) {
    const std::string file = (folder / name).string();
    if (path_exists(file)) SPECD_OK_OR_RETURN(check_place(file, folder));
  }
  SPECD_OK_OR_RETURN(made->find_coded(folder.string()));
  made->identity_ = made->identity();
  return std::shared_ptr<const WeightFile>(std::move(made));
}

Status WeightFile::find_coded(const std::string& folder) {
  const Checkpoint::Tensors& tensors = checkpoint_.tensors();
  std::vector<std::string> modules;
  const std::string* codes = nullptr;  // a tensor that is nothing else
  bool has_codes = false;
  for (const auto& [name, entry] : tensors) {
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos) continue;
    const std::string_view end = std::string_view(name).substr(dot + 1);
    const bool is_weight = end == "weight" && entry.view->shape.size() == 2,
               is_packed = end == "weight_packed" || end == "qweight";
    if (!is_weight && !is_packed) continue;
    const std::string module = name.substr(0, dot), weight = module + ".weight";
    if (is_packed && tensors.contains(weight)) {
      return Status(Code::kDataLoss, quote(checkpoint_.path_of(weight), 400) + ", tensor " +
                                         quote(weight) + ": expected none beside the codes of " +
                                         quote(module));
    }
    if (is_packed) codes = &name;
    has_codes |= is_packed || !kernel_dtype(entry.view->type).ok();
    modules.push_back(module);
  }
  std::set<std::string, std::less<>> parts;
  if (has_codes) {
    SPECD_TRY(const Quantization quantization,
              Quantization::read(config_.value_or(Json::object()), folder, modules));
    if (codes != nullptr && quantization.is_empty()) {
      return Status(Code::kDataLoss, quote(checkpoint_.path_of(*codes), 400) + ", tensor " +
                                         quote(*codes) + ": has codes, and " +
                                         quote(config_path_, 400) +
                                         " does not say how they are quantized; copy the one that "
                                         "was published with them");
    }
    for (const std::string& module : modules) {
      const MatrixFormat* format = quantization.of(module);
      const auto plain = tensors.find(module + ".weight");
      if (format == nullptr ||
          (plain != tensors.end() && kernel_dtype(plain->second.view->type).ok()))
        continue;
      SPECD_TRY(const auto shape, QuantizedMatrix::shape_of(checkpoint_, module, *format));
      SPECD_TRY(QuantizedMatrix matrix,
                QuantizedMatrix::open(checkpoint_, module, shape.first, shape.second, *format,
                                      [&](const std::string& name) { parts.insert(name); }));
      const kernels::CodeOrder counts = PlacedOrder::counts(matrix.kind());
      coded_.emplace(module + ".weight", Coded{std::move(matrix), counts});
    }
  }
  for (const auto& [name, entry] : tensors) {
    if (!parts.contains(name)) names_.push_back(name);
  }
  for (const auto& [name, matrix] : coded_) names_.push_back(name);
  std::ranges::sort(names_);
  return Status();
}

// Of every file, and of those that would be read instead if they came to be.
std::string WeightFile::identity() const {
  std::string identity;
  const auto add = [&](const std::string& file) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) info = {};
    for (const auto number :
         {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino),
          static_cast<uint64_t>(info.st_size), static_cast<uint64_t>(info.st_mtim.tv_sec),
          static_cast<uint64_t>(info.st_mtim.tv_nsec)}) {
      identity += std::to_string(number) + ",";
    }
  };
  add(path_ + kSingleFile);
  add(path_ + kIndexFile);
  add(config_path_);
  for (const char* name : kQuantizationFiles)
    add((fs::path(config_path_).parent_path() / name).string());
  for (const SafetensorsFile& file : checkpoint_.files()) add(file.path());
  return identity;
}

}  // namespace specd
