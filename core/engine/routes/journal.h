// Keeps changes of routes over a restart, in `routes.journal` of a folder that one engine has for itself.
//
//   {"at":..,"change":"promoted","route":"r","generation":3,"text":"..","kept":{..},"over":".."}
//
// A line for each change, on disk before the change is made. `kept` is in the lines after which the next
// start takes another definition of the route: the last one that was live and not on probation, or null
// when the route was deleted. `over` is the hash of the route's definition in the configuration then: a
// change is dropped, for good, when a start finds another one there. A line that is garbled or that this
// version cannot read is skipped, and logged: of it the route stays as it was before.
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

  // `configured`: the routes of the configuration. Errors name the file.
  static Result<std::unique_ptr<RouteJournal>> open(const std::string& directory,
                                                    const std::vector<RouteOptions>& configured);

  // What a start takes: the configured routes in their order, changed, then those that were added.
  std::vector<RouteOptions> routes() const;
  // What the next start takes of one: a definition, or null.
  Json kept(const std::string& route) const;
  // The largest of a change so far.
  uint64_t generation() const { return generation_; }

  // A change that can be written: made beforehand, so that writing it needs no memory. One at a time counts,
  // but for one that takes another back.
  class Entry {
    friend class RouteJournal;
    std::string line;
    std::map<std::string, Json> changed;
    uint64_t generation = 0;
  };
  // After it the next start takes `kept` for the route, if that is given.
  Entry entry(const EngineEvent& change, const std::optional<Json>& kept) const;
  // Returns when the line is on disk. After an error the next start takes what it took before.
  Status write(Entry entry);

  // The same for a configuration that was read again.
  class Configuration {
    friend class RouteJournal;
    std::vector<RouteOptions> routes;
    std::map<std::string, Json> changed;
    std::string lines;
  };
  Configuration configuration(const std::vector<RouteOptions>& routes) const;
  Status configure(Configuration next);

 private:
  RouteJournal() = default;
  // Sets `drops` when it finds a change over another definition than there is.
  Status take(const LineFile::Line& line, bool& drops);
  // All that counts, as lines.
  static std::string lines_of(const std::vector<RouteOptions>& configured,
                              const std::map<std::string, Json>& changed, uint64_t generation);
  Status rewrite(const std::string& lines, bool keeps_old);

  std::unique_ptr<LineFile> file_;
  uint64_t rewrite_at_ = kBytesMax;
  uint64_t generation_ = 0;
  std::vector<RouteOptions> configured_;
  std::map<std::string, Json> changed_;  // what is kept instead of the configured, by route
};

}  // namespace specd
