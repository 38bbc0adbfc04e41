#include "host/daemon/reload.h"

#include <map>
#include <string>
#include <utility>

#include "host/config/config_print.h"

namespace specd::host {
namespace {

using Values = std::map<std::string, std::string>;

bool is_setting(const std::string& key) { return key == "log_level" || key == "drain_seconds"; }

Values values_of(const Config& config) {
  Values values;
  for (const auto& [key, value] : config_values(config)) values[key] = value;
  return values;
}

std::string value_in(const Values& values, const std::string& key) {
  const auto found = values.find(key);
  return found == values.end() ? "nothing" : found->second;
}

}  // namespace

Result<Reloaded> Reload::run(Engine& engine, const ChangeOptions& how) {
  const MutexLock lock(mutex_);
  SPECD_TRY(Config fresh, config_.read_again());
  const Values before = values_of(config_), after = values_of(fresh);
  Values all = before;
  all.insert(after.begin(), after.end());
  Reloaded done;
  for (const auto& [key, unused] : all) {
    const std::string was = value_in(before, key), is = value_in(after, key);
    if (was == is || key.starts_with("routes")) continue;
    if (!is_setting(key)) {
      return with_place(fresh, Status(Code::kFailedPrecondition, key,
                                      "it would be " + is + " and was " + was +
                                          "; this needs a restart, so nothing was changed"));
    }
    done.settings.push_back(key + ": " + is + ", was " + was);
  }
  std::vector<Renewed> renewed;
  for (const Renewal& read : renewals_) {
    SPECD_TRY(Renewed one, read());
    if (!one.news.empty()) done.settings.push_back(one.news);
    renewed.push_back(std::move(one));
  }
  Result<ConfiguredRoutes> routes = engine.configure_routes(fresh.engine.routes, how);
  if (!routes.ok()) {
    const bool is_in_file = routes.status().field() != "request_id";
    return is_in_file ? with_place(fresh, routes.status()) : routes.status();
  }
  done.routes = std::move(routes).value();
  if (how.dry_run) return done;
  for (const Renewed& each : renewed) each.use();
  set_log_level(fresh.log_level);
  drain_seconds_ = fresh.drain_seconds;
  config_ = std::move(fresh);
  return done;
}

}  // namespace specd::host
