#include "host/compat/model_names.h"

#include <filesystem>
#include <system_error>

#include "core/base/quote.h"
#include "host/compat/below.h"
#include "host/compat/hub_cache.h"
#include "host/config/config_key.h"

namespace specd::host {
namespace {

namespace fs = std::filesystem;

bool is_relative_path(const std::string& name) {
  return name == "." || name == ".." || name.starts_with("./") || name.starts_with("../");
}

}  // namespace

Result<std::string> model_folder(const Value& model, const std::optional<Value>& revision,
                                 ModelPlaces& places) {
  const Result<std::string> text = read_text(model);
  if (!text.ok()) return text.status();
  // A reference: GCC 12 takes the buffer of a string moved here for uninitialized.
  const std::string& name = text.value();
  if (name.starts_with('/')) return name;
  if (is_relative_path(name)) {
    SPECD_TRY(std::string path, resolve_path(model, name));
    std::error_code failure;
    const fs::path real = fs::weakly_canonical(path, failure);
    if (!places.repository.empty() && (failure || !is_below(real, places.repository)))
      return model.error("expected a path in the repository, found " + quote(name) +
                         ", which leads to " + quote(real.string(), 400) +
                         "; write a folder elsewhere as an absolute path");
    return path;
  }
  if (!is_hub_name(name))
    return model.error(
        "expected the name of a model on Hugging Face's hub, such as ORG/NAME, or a folder: an "
        "absolute path or one that begins with ./; found " +
        quote(name));
  std::string wanted = "main";
  if (revision) {
    SPECD_TRY(wanted, read_text(*revision));
  }
  auto found = find_in_hub_cache(places.hub_cache, name, wanted);
  if (found.ok()) return found;
  const bool is_revision = found.status().code() == Code::kInvalidArgument;
  Status why = (is_revision ? *revision : model).error(found.status().message());
  std::string path = "/nowhere/" + name;
  places.missing.emplace(path, std::move(why));
  return path;
}

Status check_missing(const ModelPlaces& places, const YamlNode& root) {
  if (places.missing.empty()) return Status();
  if (root.kind == YamlNode::Kind::kScalar)
    if (const auto found = places.missing.find(root.value); found != places.missing.end())
      return found->second;
  for (const YamlNode& item : root.items) SPECD_OK_OR_RETURN(check_missing(places, item));
  return Status();
}

}  // namespace specd::host
