#include "core/engine/routes/journal.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <utility>

#include "core/base/log.h"
#include "core/base/quote.h"
#include "core/base/sha256.h"

namespace specd {
namespace {

constexpr char kName[] = "routes.journal";

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json hash_of(const Json& definition) {
  return definition.is_null() ? Json() : Json(to_hex(sha256(text_of(definition))));
}

std::string kept_line(const std::string& route, const Json& kept, const Json& configured) {
  return text_of(
      {{"change", "kept"}, {"route", route}, {"kept", kept}, {"over", hash_of(configured)}});
}

}  // namespace

Result<std::unique_ptr<RouteJournal>> RouteJournal::open(
    const std::string& directory, const std::vector<RouteOptions>& configured) {
  std::unique_ptr<RouteJournal> made(new RouteJournal);
  RouteJournal& self = *made;
  self.configured_ = configured;
  LineFile::Content content;
  SPECD_TRY(self.file_, LineFile::open(directory, kName, content));
  const std::string name = quote(self.file_->path(), 400);
  bool has_bad = !content.bad.empty(), has_dropped = false;
  for (const size_t number : content.bad) {
    log(LogLevel::kError, name + ":" + std::to_string(number) + ": the checksum is wrong; skipped");
  }
  for (const LineFile::Line& line : content.lines) {
    const Status taken = self.take(line, has_dropped);
    if (taken.ok()) continue;
    has_bad = true;
    log(LogLevel::kError,
        name + ":" + std::to_string(line.number) + ": " + taken.text() + "; skipped");
  }
  if (has_bad) {
    log(LogLevel::kError, name +
                              " is rewritten without what was skipped; the old file is kept as " +
                              quote(self.file_->path() + ".damaged", 400));
  }
  if (has_bad || self.file_->n_bytes() > self.rewrite_at_)
    SPECD_OK_OR_RETURN(self.rewrite(has_bad));
  return made;
}

Status RouteJournal::take(const LineFile::Line& line, bool& has_dropped) {
  SPECD_TRY(const Json json, parse_json(line.text, "the line"));
  if (!json.is_object()) return Status(Code::kDataLoss, "the line: expected an object");
  SPECD_TRY(const std::string route, json_string(json, "route", "the line"));
  const auto kept = json.find("kept");
  if (kept == json.end()) return Status();
  if (!kept->is_null()) {
    SPECD_TRY(const RouteOptions definition, route_from_json(*kept));
    if (definition.name != route) {
      return Status(Code::kDataLoss,
                    "route " + quote(route) + " has the definition of " + quote(definition.name));
    }
  }
  if (json.value("over", Json()) == hash_of(configured(route))) {
    changed_[route] = *kept;
    return Status();
  }
  changed_.erase(route);
  has_dropped = true;
  log(LogLevel::kInfo, quote(file_->path(), 400) + ":" + std::to_string(line.number) + ": route " +
                           quote(route) +
                           " is another one in the configuration now, and that holds");
  return Status();
}

Status RouteJournal::configure(const std::vector<RouteOptions>& configured) {
  const std::vector<RouteOptions> before = std::exchange(configured_, configured);
  const auto definition = [](const std::vector<RouteOptions>& all, const std::string& name) {
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](const RouteOptions& each) { return each.name == name; });
    return found == all.end() ? Json() : route_to_json(*found);
  };
  std::erase_if(changed_, [&](const auto& changed) {
    return definition(before, changed.first) != definition(configured_, changed.first);
  });
  return rewrite(false);
}

Json RouteJournal::configured(const std::string& route) const {
  for (const RouteOptions& each : configured_) {
    if (each.name == route) return route_to_json(each);
  }
  return nullptr;
}

Json RouteJournal::kept(const std::string& route) const {
  const auto found = changed_.find(route);
  return found != changed_.end() ? found->second : configured(route);
}

std::vector<RouteOptions> RouteJournal::routes() const {
  std::vector<RouteOptions> all;
  const auto add = [&](const Json& definition) {
    // Whatever is kept was written, or has been read, as a definition.
    if (!definition.is_null()) all.push_back(route_from_json(definition).value());
  };
  for (const RouteOptions& each : configured_) add(kept(each.name));
  for (const auto& [route, definition] : changed_) {
    if (configured(route).is_null()) add(definition);
  }
  return all;
}

Status RouteJournal::write(const EngineEvent& change, const std::optional<Json>& kept) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json line{{"at", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
            {"change", event_kind_name(change.kind)},
            {"route", change.route},
            {"generation", change.generation},
            {"text", change.text}};
  if (!change.request_id.empty()) line["request_id"] = change.request_id;
  if (kept.has_value()) {
    line["kept"] = *kept;
    line["over"] = hash_of(configured(change.route));
  }
  std::map<std::string, Json> changed = changed_;
  if (kept.has_value()) changed[change.route] = *kept;
  SPECD_OK_OR_RETURN(file_->append(text_of(line)));
  // The line is on disk: nothing may fail for want of memory from here on.
  std::swap(changed_, changed);
  if (file_->n_bytes() <= rewrite_at_) return Status();
  try {
    if (const Status status = rewrite(false); !status.ok()) log(LogLevel::kWarn, status.text());
  } catch (const std::bad_alloc&) {  // the next line tries again
  }
  return Status();
}

Status RouteJournal::rewrite(bool keeps_old) {
  std::vector<std::string> lines;
  for (const auto& [route, kept] : changed_) {
    lines.push_back(kept_line(route, kept, configured(route)));
  }
  SPECD_OK_OR_RETURN(file_->replace(lines, keeps_old));
  rewrite_at_ = file_->n_bytes() + kBytesMax;
  return Status();
}

}  // namespace specd
