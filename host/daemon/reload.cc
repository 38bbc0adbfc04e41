#include "host/daemon/reload.h"

#include <map>
#include <string>
#include <utility>

#include "host/config/config_print.h"

namespace specd::host {
namespace {

using Values = std::map<std::string, std::string>;

// What cannot change while specd runs.
Values fixed_values(const Config& config) {
  Values values;
  for (const auto& [key, value] : config_values(config)) {
    if (!key.starts_with("routes") && key != "log_level" && key != "drain_seconds")
      values[key] = value;
  }
  return values;
}

Status check_fixed(const Config& now, const Config& fresh) {
  const Values before = fixed_values(now), after = fixed_values(fresh);
  Values all = before;
  all.insert(after.begin(), after.end());
  for (const auto& [key, unused] : all) {
    const auto old = before.find(key), its = after.find(key);
    if (old != before.end() && its != after.end() && old->second == its->second) continue;
    const auto text = [](bool is_there, const auto& found) {
      return is_there ? found->second : std::string("nothing");
    };
    return with_place(fresh, Status(Code::kFailedPrecondition, key,
                                    "it was " + text(old != before.end(), old) + ", the file has " +
                                        text(its != after.end(), its) +
                                        "; this needs a restart, so nothing was changed"));
  }
  return Status();
}

}  // namespace

Result<ConfiguredRoutes> Reload::run(Engine& engine, const ChangeOptions& how) {
  const MutexLock lock(mutex_);
  SPECD_TRY(Config fresh, load_config(config_.file, config_.overrides));
  SPECD_OK_OR_RETURN(check_fixed(config_, fresh));
  const Result<ConfiguredRoutes> done = engine.configure_routes(fresh.engine.routes, how);
  if (!done.ok()) return with_place(fresh, done.status());
  if (how.dry_run) return done;
  set_log_level(fresh.log_level);
  drain_seconds_ = fresh.drain_seconds;
  config_ = std::move(fresh);
  return done;
}

}  // namespace specd::host
