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

// Null when there is none.
Json definition_in(const std::vector<RouteOptions>& routes, const std::string& name) {
  const auto found = std::find_if(routes.begin(), routes.end(),
                                  [&](const RouteOptions& each) { return each.name == name; });
  return found == routes.end() ? Json() : route_to_json(*found);
}

Json hash_of(const Json& definition) {
  return definition.is_null() ? Json() : Json(to_hex(sha256(text_of(definition))));
}

// What is kept and is as configured says nothing.
void keep(std::map<std::string, Json>& changed, const std::vector<RouteOptions>& configured,
          const std::string& route, const Json& kept) {
  if (kept == definition_in(configured, route)) {
    changed.erase(route);
  } else {
    changed[route] = kept;
  }
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
  bool has_bad = !content.bad.empty(), drops = false;
  for (const size_t number : content.bad) {
    log(LogLevel::kError, name + ":" + std::to_string(number) + ": the checksum is wrong; skipped");
  }
  for (const LineFile::Line& line : content.lines) {
    const Status taken = self.take(line, drops);
    if (taken.ok()) continue;
    has_bad = true;
    log(LogLevel::kError,
        name + ":" + std::to_string(line.number) + ": " + taken.text() + "; skipped");
  }
  if (has_bad) log(LogLevel::kError, name + " is rewritten without what was skipped");
  // What was dropped must not come back when the configuration is again as it was.
  if (has_bad || drops || self.file_->n_bytes() > self.rewrite_at_) {
    SPECD_OK_OR_RETURN(
        self.rewrite(lines_of(configured, self.changed_, self.generation_), has_bad));
  }
  return made;
}

Status RouteJournal::take(const LineFile::Line& line, bool& drops) {
  constexpr char kLine[] = "the line";
  SPECD_TRY(const Json json, parse_json(line.text, kLine));
  if (!json.is_object()) return Status(Code::kDataLoss, "the line: expected an object");
  SPECD_TRY(const std::string route, json_string(json, "route", kLine));
  SPECD_TRY(const int64_t generation, json_int_or(json, "generation", 0, 0, INT64_MAX, kLine));
  const auto kept = json.find("kept");
  if (kept != json.end() && !kept->is_null()) {
    SPECD_TRY(const RouteOptions definition, route_from_json(*kept));
    if (definition.name != route) {
      return Status(Code::kDataLoss,
                    "route " + quote(route) + " has the definition of " + quote(definition.name));
    }
  }
  generation_ = std::max(generation_, static_cast<uint64_t>(generation));
  if (kept == json.end()) return Status();
  if (json.value("over", Json()) == hash_of(definition_in(configured_, route))) {
    keep(changed_, configured_, route, *kept);
    return Status();
  }
  changed_.erase(route);
  drops = true;
  log(LogLevel::kInfo, quote(file_->path(), 400) + ":" + std::to_string(line.number) + ": route " +
                           quote(route) +
                           " is another one in the configuration now, and that holds");
  return Status();
}

Json RouteJournal::kept(const std::string& route) const {
  const auto found = changed_.find(route);
  return found != changed_.end() ? found->second : definition_in(configured_, route);
}

std::vector<RouteOptions> RouteJournal::routes() const {
  std::vector<RouteOptions> all;
  const auto add = [&](const Json& definition) {
    // Whatever is kept was written, or has been read, as a definition.
    if (!definition.is_null()) all.push_back(route_from_json(definition).value());
  };
  for (const RouteOptions& each : configured_) add(kept(each.name));
  for (const auto& [route, definition] : changed_) {
    if (definition_in(configured_, route).is_null()) add(definition);
  }
  return all;
}

RouteJournal::Entry RouteJournal::entry(const EngineEvent& change,
                                        const std::optional<Json>& kept) const {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json line = json_object({{"at", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
                           {"change", event_kind_name(change.kind)},
                           {"route", change.route},
                           {"generation", change.generation},
                           {"text", change.text}});
  if (!change.request_id.empty()) line["request_id"] = change.request_id;
  Entry made;
  made.changed = changed_;
  made.generation = std::max(generation_, change.generation);
  if (kept.has_value()) {
    line["kept"] = *kept;
    line["over"] = hash_of(definition_in(configured_, change.route));
    keep(made.changed, configured_, change.route, *kept);
  }
  made.line = LineFile::line_of(text_of(line));
  return made;
}

Status RouteJournal::write(Entry entry) {
  SPECD_OK_OR_RETURN(file_->append(entry.line));
  changed_.swap(entry.changed);
  generation_ = entry.generation;
  // The line is on disk, whatever becomes of this.
  if (file_->n_bytes() <= rewrite_at_) return Status();
  try {
    const Status status = rewrite(lines_of(configured_, changed_, generation_), false);
    if (!status.ok()) log(LogLevel::kWarn, status.text());
  } catch (const std::bad_alloc&) {  // the next line tries again
  }
  return Status();
}

RouteJournal::Configuration RouteJournal::configuration(
    const std::vector<RouteOptions>& routes) const {
  Configuration made;
  made.routes = routes;
  made.changed = changed_;
  std::erase_if(made.changed, [&](const auto& changed) {
    return definition_in(configured_, changed.first) != definition_in(routes, changed.first);
  });
  made.lines = lines_of(made.routes, made.changed, generation_);
  return made;
}

Status RouteJournal::configure(Configuration next) {
  configured_.swap(next.routes);
  changed_.swap(next.changed);
  return rewrite(next.lines, false);
}

std::string RouteJournal::lines_of(const std::vector<RouteOptions>& configured,
                                   const std::map<std::string, Json>& changed,
                                   uint64_t generation) {
  std::string lines;
  const auto add = [&](std::initializer_list<std::pair<const char*, Json>> line) {
    lines += LineFile::line_of(text_of(json_object(line)));
  };
  add({{"change", "rewritten"}, {"route", ""}, {"generation", generation}});
  for (const auto& [route, kept] : changed) {
    add({{"change", "kept"},
         {"route", route},
         {"kept", kept},
         {"over", hash_of(definition_in(configured, route))}});
  }
  return lines;
}

Status RouteJournal::rewrite(const std::string& lines, bool keeps_old) {
  SPECD_OK_OR_RETURN(file_->replace(lines, keeps_old));
  rewrite_at_ = file_->n_bytes() + kBytesMax;
  return Status();
}

}  // namespace specd
