// Keeps changes of routes over a restart, in `routes.journal` of a folder that one engine has for itself.
//
//   {"at":..,"change":"promoted","route":"r","generation":3,"text":"..","kept":{..},"over":".."}
//
// A line for each change, on disk before the change is made. `kept` is in the lines after which the next
// start takes another definition of the route: the last one that was live and not on probation, or null
// when the route was deleted. `over` is the hash of the route's definition in the configuration then. A
// line that is garbled or that this version cannot read is skipped, and logged: of it the route stays as
// it was before.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/status.h"
#include "core/engine/routes/line_file.h"
#include "core/spec/engine_event.h"
#include "core/spec/route.h"

namespace specd {

// [control] all functions.
class RouteJournal {
 public:
  // The file is rewritten, with what still counts, when it has grown by more bytes.
  static constexpr uint64_t kBytesMax = uint64_t{16} << 20;

  // `configured`: the routes of the configuration. What was changed over another definition than that is
  // dropped, and that is logged. Errors name the file.
  static Result<std::unique_ptr<RouteJournal>> open(const std::string& directory,
                                                    const std::vector<RouteOptions>& configured);

  // What a start takes: the configured routes in their order, changed, then those that were added.
  std::vector<RouteOptions> routes() const;

  // Returns when the line of a change is on disk. After it the next start takes `kept` for the route, if
  // that is given. After an error it takes what it took before.
  Status write(const EngineEvent& change, const std::optional<Json>& kept);
  // The configuration has other routes now. What was changed over a definition that it does not have any
  // more is dropped.
  Status configure(const std::vector<RouteOptions>& configured);
  // What the next start takes: a definition, or null.
  Json kept(const std::string& route) const;

 private:
  RouteJournal() = default;
  Status take(const LineFile::Line& line, bool& has_dropped);
  Status rewrite(bool keeps_old);
  Json configured(const std::string& route) const;  // null when it is not

  std::unique_ptr<LineFile> file_;
  uint64_t rewrite_at_ = kBytesMax;
  std::vector<RouteOptions> configured_;
  std::map<std::string, Json> changed_;  // what is kept, by route
};

}  // namespace specd
