#include "host/compat/head_kind.h"

#include <algorithm>
#include <string_view>

#include "core/base/json.h"

namespace specd::host {
namespace {

constexpr uint64_t kConfigBytesMax = 1 << 20;

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  return out;
}

bool has(const std::string& name, const char* part) { return name.find(part) != std::string::npos; }

std::string first_architecture(const Json& config) {
  const auto list = config.find("architectures");
  if (list == config.end() || !list->is_array() || list->empty() || !list->front().is_string())
    return "";
  return lower(list->front().get<std::string>());
}

}  // namespace

Result<Head> head_in(const std::string& folder, const std::string& name) {
  Json config = Json::object();
  const std::string file = folder + "/config.json";
  if (path_exists(file)) {
    SPECD_TRY(config, parse_json_file(file, kConfigBytesMax));
    if (!config.is_object()) return Status(Code::kDataLoss, file + ": expected an object");
  }
  SPECD_TRY(const std::string type, json_string_or(config, "model_type", "", file));
  const std::string architecture = first_architecture(config), called = lower(name);
  const auto is = [&](HeadKind kind) { return Head{.kind = kind, .type = type}; };
  if (has(architecture, "eagle3") || config.contains("draft_vocab_size"))
    return is(HeadKind::kEagle3);
  if (type == "medusa") return is(HeadKind::kMedusa);
  if (type == "recurrent_drafting_drafter") return is(HeadKind::kRedrafter);
  if (type == "mlp_speculator") return is(HeadKind::kUnsupported);
  if (has(called, "eagle3")) return is(HeadKind::kEagle3);
  if (type == "eagle" || has(architecture, "eagle") || has(called, "eagle-"))
    return is(HeadKind::kEagle);
  return is(HeadKind::kModel);
}

}  // namespace specd::host
